"""What a run frees is kept for what it allocates next.

The C library gives the pages of a large array back when it is freed and asks for new ones for the
next, which the system has to clear: up to a tenth of a replay, of which a comparison has eighty.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# <malloc.h>, the options of mallopt(3) and their defaults
TRIM_THRESHOLD, MMAP_MAX, ARENA_MAX = -1, -4, -8
DEFAULTS = {TRIM_THRESHOLD: 128 * 1024, MMAP_MAX: 65_536}
MOST_KEPT = 512 * 1024**2  # bytes at the heap's end: it counts towards HEADROOM_MAX_RUN_MB


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """While it lasts; then all that is free is given back. Nothing without GNU's C library."""
    if not available():
        yield
        return
    library: Any = ctypes.CDLL(None)
    # Threads have heaps of their own, too small for large arrays, unless all share one.
    for option, value in ((ARENA_MAX, 1), (MMAP_MAX, 0), (TRIM_THRESHOLD, MOST_KEPT)):
        library.mallopt(option, value)
    try:
        yield
    finally:
        for option, value in DEFAULTS.items():
            library.mallopt(option, value)
        library.malloc_trim(0)


def available() -> bool:
    """Whether the C library can be told so."""
    library = ctypes.CDLL(None)
    return hasattr(library, "mallopt") and hasattr(library, "malloc_trim")
