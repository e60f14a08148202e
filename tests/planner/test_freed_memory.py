"""Memory that a run frees, kept for what it allocates next and given back when it ends."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from planner.freed_memory import available

LARGE = 100_000_000  # bytes
# Resident memory in MB before, after a large array is freed while a run goes on, after the run.
STEPS = f"""
import json
import resource
import numpy as np
from planner.freed_memory import freed_memory_kept

def resident():
    pages = int(open("/proc/self/statm").read().split()[1])
    return pages * resource.getpagesize() / 1e6

def allocate():
    np.ones({LARGE}, np.int8)

allocate()
seen = [resident()]
with freed_memory_kept():
    allocate()
    seen.append(resident())
seen.append(resident())
allocate()
seen.append(resident())
print(json.dumps(seen))
"""


@pytest.mark.skipif(not available(), reason="GNU's C library alone says how it keeps memory")
def test_what_is_freed_is_kept_while_a_run_goes_on_and_given_back_after():
    done = subprocess.run(
        [sys.executable, "-c", STEPS], check=True, capture_output=True, text=True, timeout=60
    )
    before, meanwhile, after, again = json.loads(done.stdout)
    assert meanwhile > before + 0.9 * LARGE / 1e6
    assert after < before + 0.1 * LARGE / 1e6
    assert again < before + 0.1 * LARGE / 1e6  # as it was before: large arrays go at once
