"""Freed memory is used again, without the kernel clearing its pages."""

import subprocess
import sys

import pytest

FILL_TWICE = """
import resource, sys
from planner.freed_memory import keep_freed_memory
kept = sys.argv[1] == "keep" and keep_freed_memory()
for _ in range(2):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    filled = b"x" * int(sys.argv[2])
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    del filled
print(int(kept), faults)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc only")
def test_pages_are_cleared_once() -> None:
    pages = {}
    for mode in ("keep", "return"):
        size = 256 * 4096 * 64  # larger than the largest threshold of glibc
        out = subprocess.run(
            [sys.executable, "-c", FILL_TWICE, mode, str(size)],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        kept, pages[mode] = map(int, out.stdout.split())
        assert kept == (mode == "keep")
    assert pages["keep"] < pages["return"] / 20
