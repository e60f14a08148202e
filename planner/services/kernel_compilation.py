"""Compile the simulator in one process, while runs in other processes wait and show how far it is.

The process that compiles holds a lock on a file in the data directory. It writes how many functions
are compiled into that file. The system releases the lock when the process ends, so no run waits for
a dead process. If nobody holds the lock, a run compiles what it needs itself.
"""

import fcntl
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from django.conf import settings


def compile_ahead() -> None:
    """Compile the simulator; meanwhile write how far it is into the lock file.

    The file has text such as "12 of 80": the compiled functions and all functions of the simulator.
    """
    from numba.core.dispatcher import Dispatcher

    from simulation.engine.compilation import warm_up

    kernels: set[Dispatcher] = set()
    for name, module in list(sys.modules.items()):
        if name.startswith("simulation."):
            values = vars(module).values()
            kernels.update(value for value in values if isinstance(value, Dispatcher))
    _lock_file().touch()
    compiled = threading.Event()

    def write_count() -> None:
        """Write the count of compiled functions into the lock file each second."""
        while not compiled.wait(1.0):
            count = sum(bool(kernel.signatures) for kernel in kernels)
            with _lock_file().open("r+") as file:
                file.write(f"{count} of {len(kernels)}")  # never shorter than the last

    writer = threading.Thread(target=write_count, daemon=True)
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


def compiled_count() -> str | None:
    """Return how many functions are compiled, such as "3 of 40"; None if no process compiles.

    Until the first count is written, return "".
    """
    try:
        file = _lock_file().open()
    except FileNotFoundError:
        return None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return file.read()
    return None


def wait_until_compiled(progress: Callable[[float, str], None]) -> bool:
    """Wait until no process compiles the simulator; return whether it had to wait.

    ``progress`` gets in words how far the compiler is. It may raise to stop the wait.
    """
    has_waited = False
    count = compiled_count()
    while count is not None:
        has_waited = True
        progress(0.0, compiling_sentence(count))
        time.sleep(0.5)
        count = compiled_count()
    return has_waited


def compiling_sentence(count: str) -> str:
    """Return what a run waits for, with the ``count`` of compiled functions ("": not known)."""
    done = f" ({count} functions)" if count else ""
    return f"Compiling the simulator{done}. Then this run starts"


def _lock_file() -> Path:
    return Path(settings.HEADROOM_DATA_DIR) / "compiling"
