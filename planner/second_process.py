"""Compute part of a command in a second process, on a second core.

Python runs one thread at a time, so imports and closed forms gain nothing from threads. The second
process is forked as a command starts: before any thread exists, and before anything large is
imported. It imports what its calls need while the first process imports the rest.

``begin`` sends a call to the second process. ``result_of`` returns its result, or computes it here
if the second process has not begun it. Results are the same with and without a second process.
"""

import gc
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from multiprocessing.connection import Connection
from typing import Any, TypeVar, TypeVarTuple

from simulation.digest import digest_of

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class SecondProcess:
    """A forked process that carries out calls in the order in which they were sent."""

    def __init__(self, modules: Sequence[str]) -> None:
        context = multiprocessing.get_context("fork")
        self._connection, child_connection = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(child_connection, self._connection, modules), daemon=True
        )
        self._process.start()
        child_connection.close()
        # One thread waits for results, so that a full pipe never blocks the command.
        self._waiting_thread = ThreadPoolExecutor(max_workers=1)
        self._stopped = False

    def begin(self, function: Callable[[*Ts], T], *arguments: *Ts) -> Future[T]:
        """Send the call ``function(*arguments)``; all of it and the result must be picklable."""
        return self._waiting_thread.submit(self._call, function, arguments)

    def stop(self) -> None:
        """End the process, without waiting for results."""
        self._stopped = True
        self._process.kill()
        self._process.join()
        self._waiting_thread.shutdown(wait=False, cancel_futures=True)

    def _call(self, function: Callable[[*Ts], T], arguments: tuple[*Ts]) -> T:
        """Have the process carry out a call, or carry it out here if the process has died."""
        try:
            self._connection.send((function, arguments))
            result, error = self._connection.recv()
        except (EOFError, OSError):
            if self._stopped:
                raise CancelledError from None
            return function(*arguments)
        if error is not None:
            raise error
        return result  # type: ignore[no-any-return]


def _serve(connection: Connection, other_end: Connection, modules: Sequence[str]) -> None:
    """Carry out the calls from ``connection`` until the first process ends.

    ``other_end`` is the first process's end of the connection, ``modules`` are imported first.
    """
    other_end.close()  # else the end of the first process would go unnoticed
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the first process, which ends this
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    gc.disable()
    for module in modules:
        import_module(module)
    gc.freeze()
    gc.enable()
    while True:
        try:
            function, arguments = connection.recv()
        except EOFError:
            return
        result, problem = None, None
        try:
            result = function(*arguments)
        except Exception as error:  # noqa: BLE001 - the first process raises it
            problem = error
        connection.send((result, problem))


_running: list[SecondProcess] = []  # at most one
_begun: dict[str, Future[Any]] = {}  # by digest of function and arguments


@contextmanager
def second_process(modules: Sequence[str]) -> Iterator[None]:
    """Run the block with a second process that imports ``modules``.

    Without modules or with a single core, there is none.
    """
    if not modules or not hasattr(os, "fork") or len(os.sched_getaffinity(0)) < 2:
        yield
        return
    process = SecondProcess(modules)
    _running.append(process)
    try:
        yield
    finally:
        _running.remove(process)
        _begun.clear()
        process.stop()


def begin(function: Callable[[*Ts], T], *arguments: *Ts) -> None:
    """Send a call to the second process, for a later ``result_of``; do nothing without one."""
    if _running:
        key = _key(function, arguments)
        if key not in _begun:
            _begun[key] = _running[0].begin(function, *arguments)


def result_of(function: Callable[[*Ts], T], *arguments: *Ts) -> T:
    """Return ``function(*arguments)``, from the second process if it has begun the call.

    Otherwise compute it here.
    """
    call = _begun.pop(_key(function, arguments), None) if _begun else None
    has_begun = call is not None and not call.cancel()  # one that has begun cannot be cancelled
    if call is None or not has_begun:
        return function(*arguments)
    result: T = call.result()
    return result


def results_of(
    function: Callable[[*Ts], T], calls: Sequence[tuple[*Ts]], progress: Callable[[float], None]
) -> list[T]:
    """Return the result of ``function`` for the arguments of each of ``calls``, in their order.

    If all were given to ``begin`` before, the second process works forwards from the first call,
    and this one backwards from the last, until they meet. ``progress`` takes the share that is
    done, 0 to 1.
    """
    from_last = []
    for done, arguments in enumerate(reversed(calls)):
        progress(done / len(calls))
        from_last.append(result_of(function, *arguments))
    return from_last[::-1]


def _key(function: Callable[..., Any], arguments: tuple[Any, ...]) -> str:
    """Return the key of a call in ``_begun``."""
    return digest_of((function, arguments))
