"""End child processes when their parent ends, even if it is killed."""

import ctypes
import signal
import sys

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_libc = ctypes.CDLL(None)  # loaded here: between fork and exec few calls are safe


def die_with_parent() -> None:
    """Have the kernel kill this process when the thread that started it ends.

    Linux only; elsewhere it does nothing, and only an orderly stop ends the children.
    """
    if sys.platform == "linux":
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
