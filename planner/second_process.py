"""Compute part of a command in a second process, on a second core.

Python runs one thread at a time, so imports and closed forms gain nothing from threads. The second
process is forked as a command starts: before any thread exists, and before anything large is
imported. It imports what its calls need while the first process imports the rest.

Calls are begun with ``begin``. ``result_of`` takes the result, or computes it here if the call was
not begun. Results are therefore the same with and without a second process.
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
    """A forked process that carries out calls in the order in which they were begun."""

    def __init__(self, modules: Sequence[str]) -> None:
        context = multiprocessing.get_context("fork")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(theirs, self._connection, modules), daemon=True
        )
        self._process.start()
        theirs.close()
        # One thread waits for answers, so that a full pipe never blocks the command.
        self._asking = ThreadPoolExecutor(max_workers=1)
        self._stopped = False

    def begin(self, function: Callable[[*Ts], T], *arguments: *Ts) -> Future[T]:
        """Begin ``function(*arguments)``; function, arguments and result must be picklable."""
        return self._asking.submit(self._ask, function, arguments)

    def stop(self) -> None:
        """End the process, without waiting for calls that were begun."""
        self._stopped = True
        self._process.kill()
        self._process.join()
        self._asking.shutdown(wait=False, cancel_futures=True)

    def _ask(self, function: Callable[[*Ts], T], arguments: tuple[*Ts]) -> T:
        """Have the process carry out a call; do it here if the process has died."""
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
    """Carry out calls until the first process ends."""
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
    """Begin a call whose result is needed later; without a second process do nothing."""
    if _running:
        _begun[_key(function, arguments)] = _running[0].begin(function, *arguments)


def result_of(function: Callable[[*Ts], T], *arguments: *Ts) -> T:
    """Return ``function(*arguments)``, from the second process if ``begin`` had it begin there."""
    call = _begun.pop(_key(function, arguments), None) if _begun else None
    return function(*arguments) if call is None else call.result()


def results_of(
    function: Callable[[*Ts], T], calls: Sequence[tuple[*Ts]], progress: Callable[[float], None]
) -> list[T]:
    """Return ``function`` of the arguments of each of ``calls``, in their order.

    The second process works from the first call on, if they were begun. Meanwhile this process
    carries out those that the other has not reached, from the last on. ``progress`` takes the share
    that is done here.
    """
    here: dict[int, T] = {}
    elsewhere: dict[int, Future[T]] = {}
    for i in reversed(range(len(calls))):
        progress(1.0 - (i + 1) / len(calls))
        call = _begun.pop(_key(function, calls[i]), None) if _begun else None
        if call is None or call.cancel():
            here[i] = function(*calls[i])
        else:
            elsewhere[i] = call
    return [here[i] if i in here else elsewhere[i].result() for i in range(len(calls))]


def _key(function: Callable[..., Any], arguments: tuple[Any, ...]) -> str:
    return digest_of((function, arguments))
