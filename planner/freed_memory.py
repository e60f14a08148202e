"""Reuse of freed memory in a process that runs one command."""

import ctypes

# Parameters of glibc's mallopt(3).
TRIM_THRESHOLD, MMAP_MAX, ARENA_MAX = -1, -4, -8
NEVER = 2**31 - 1  # bytes of free memory at the end of the heap


def keep_freed_memory() -> bool:
    """Keep freed memory in this process for later replays; return whether glibc does.

    Each replay fills arrays of about 130 bytes a request. By default, glibc returns these pages to
    the kernel, which clears them again for the next replay. That takes a tenth of the time. Memory
    is kept up to the largest amount ever used, so this is for commands, not for servers.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:  # another C library
        return False
    options = ((ARENA_MAX, 1), (MMAP_MAX, 0), (TRIM_THRESHOLD, NEVER))
    return all(mallopt(option, value) == 1 for option, value in options)
