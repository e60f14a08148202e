"""Compile the simulator in one process while runs wait and show the time left.

The process that compiles holds a lock on a file in the data directory. It writes the seconds left
into that file. The system releases the lock when the process ends, so no run waits for a dead
process. A run that finds the simulator not compiled compiles it itself.
"""

import fcntl
import math
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from django.conf import settings

FIRST_GUESS_S = 30.0  # first guess of the time that compiling takes


def compile_ahead() -> None:
    """Compile the simulator; meanwhile write the estimated remaining time once a second."""
    from numba.core.dispatcher import Dispatcher

    from simulation.engine.compilation import warm_up

    kernels = {
        value
        for name, module in list(sys.modules.items())
        if name.startswith("simulation.")
        for value in vars(module).values()
        if isinstance(value, Dispatcher)
    }
    _lock_file().touch()
    began, compiled = time.monotonic(), threading.Event()

    def write_seconds_left() -> None:
        """Write the expected time left into the lock file each second, for waiting processes."""
        while not compiled.wait(1.0):
            compiled_share = sum(bool(kernel.signatures) for kernel in kernels) / len(kernels)
            # At least 2 %, so that the first estimate is finite.
            left = (time.monotonic() - began) * (1.0 / max(compiled_share, 0.02) - 1.0)
            with _lock_file().open("r+") as file:
                file.write(f"{left:9.0f}")

    writer = threading.Thread(target=write_seconds_left, daemon=True)
    writer.start()
    warm_up()
    compiled.set()
    writer.join()


def compile_lock() -> IO[str] | None:
    """Return the lock file, locked for this process; None if another process has the lock.

    A child process that inherits the open file keeps the lock until it ends.
    """
    file = _lock_file().open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    file.truncate(0)
    return file


def compilation_seconds_left() -> float | None:
    """Return the estimated seconds until compilation ends; None if no process compiles."""
    try:
        file = _lock_file().open()
    except FileNotFoundError:
        return None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return float(file.read() or FIRST_GUESS_S)
    return None


def wait_until_compiled(progress: Callable[[float, str], None]) -> None:
    """Wait until no process compiles the simulator.

    ``progress`` gets the remaining time in words. It may raise to stop the wait.
    """
    while (remaining_s := compilation_seconds_left()) is not None:
        rounded_s = 10 * max(1, math.ceil(remaining_s / 10))
        progress(
            0.0, f"The simulator is being compiled, about {rounded_s} s left. Then this run starts"
        )
        time.sleep(0.5)


def _lock_file() -> Path:
    return Path(settings.HEADROOM_DATA_DIR) / "compiling"
