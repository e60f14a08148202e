"""What is dear to make and the same for all tests, made by one of the suite's processes."""

import fcntl
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def once(name: str, make: Callable[[], T]) -> T:
    """What ``make`` gives, which the other processes read from a file of that ``name``; who asks
    while it is made waits."""
    folder = Path(os.environ["HEADROOM_TEST_DIR"]) / "once"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            path.write_bytes(pickle.dumps(make()))
    kept: T = pickle.loads(path.read_bytes())
    return kept
