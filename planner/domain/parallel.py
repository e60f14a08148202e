"""Run independent steps of a study in parallel, two at a time."""

import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from typing import TypeVar

from planner.domain.progress import Progress, split_progress
from simulation.trace_replay import is_long

T = TypeVar("T")
DEFAULT_THREADS = 2
# Largest replay that runs beside others: each request takes about 140 bytes.
MAX_PARALLEL_REQUESTS = 4_000_000
REPORT_EVERY_S = 0.2  # interval at which progress is passed on
NICENESS = 15  # added to that of background threads, so that others go first


class _Stopped(Exception):
    """Raised inside a step to end it after another step or the caller has failed."""


class _ThreadProgress:
    """Collects the progress of steps in threads, and reports it in the calling thread.

    Only the calling thread may call its ``progress``, which can write to a database and can raise
    to cancel.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._fraction = 0.0
        self._stages: list[str] = []  # stages that began since the last ``pass_on``
        self._begun: set[str] = set()
        self._has_report = False
        self.stopped = False

    def __call__(self, fraction: float, stage: str) -> None:
        """Record the progress of a step, in its thread; raise to end the step if it must stop."""
        if self.stopped:
            raise _Stopped
        with self._lock:
            self._has_report = True
            self._fraction = max(self._fraction, fraction)
            if stage not in self._begun:
                self._begun.add(stage)
                self._stages.append(stage)

    def pass_on(self, progress: Progress) -> None:
        """Report the fraction and each new stage to ``progress``, in the calling thread.

        Each stage is reported only once, because parallel stages would alternate otherwise. If no
        step reported since the last call, report nothing, so that a stuck run stays visible.
        """
        with self._lock:
            has_report, self._has_report = self._has_report, False
            stages, self._stages = self._stages, []
        if has_report and not stages:
            stages = [""]  # report the fraction alone
        for stage in stages:
            progress(self._fraction, stage)


def run_in_parallel(
    steps: Sequence[Callable[[Progress], T]], progress: Progress, *, at_once: int = DEFAULT_THREADS
) -> list[T]:
    """Run ``steps`` in at most ``at_once`` threads, and return their results in order.

    Much of a replay is compiled code that releases Python's lock, so threads save time. If a step
    or ``progress`` raises, the other steps end at their next report. The exception is then raised.
    """
    with begun(steps, at_once=at_once) as results:
        return results(progress)


@contextmanager
def begun(
    steps: Sequence[Callable[[Progress], T]], *, at_once: int, background: bool = False
) -> Iterator[Callable[[Progress], list[T]]]:
    """Begin ``steps`` in at most ``at_once`` threads, and yield a function that waits for them.

    The function takes the progress to report to, and returns the results in order. If the context
    ends with an exception, the steps end at their next report. With ``background``, they mostly use
    cores that other threads leave idle.
    """
    collector = _ThreadProgress()
    reports = split_progress(collector, len(steps))
    with ThreadPoolExecutor(at_once, initializer=_lower_priority if background else None) as pool:
        futures = [pool.submit(step, report) for step, report in zip(steps, reports, strict=True)]

        def results(progress: Progress) -> list[T]:
            """Return the results of all steps, or raise the exception of the first that failed."""
            running = set(futures)
            while running:
                done, running = wait(running, REPORT_EVERY_S, FIRST_COMPLETED)
                for future in done:
                    future.result()
                collector.pass_on(progress)
            return [future.result() for future in futures]

        try:
            yield results
        except BaseException:
            collector.stopped = True
            for future in futures:
                future.cancel()
            raise


def _lower_priority() -> None:
    """Lower the priority of this thread, where the system has priorities of threads (Linux)."""
    if sys.platform == "linux":
        with suppress(OSError):  # a sandbox may forbid it
            thread = threading.get_native_id()
            niceness = os.getpriority(os.PRIO_PROCESS, thread) + NICENESS
            os.setpriority(os.PRIO_PROCESS, thread, niceness)


def parallel_replays(requests: int) -> int:
    """Return how many replays can run at the same time, each of this number of ``requests``.

    The limit is memory. Long replays are streamed, so they need little.
    """
    return DEFAULT_THREADS if requests <= MAX_PARALLEL_REQUESTS or is_long(requests) else 1
