"""Steps of a study that do not wait for each other, two at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from threading import Lock
from typing import TypeVar

from planner.studies.progress import Progress, shared
from simulation.replayed import is_long

T = TypeVar("T")
AT_ONCE = 2
MOST = 4_000_000  # requests of a replay, of which each takes some 140 bytes while it runs
TELL_S = 0.2  # between two looks at what the steps have told


class _Stopped(Exception):
    """In a step whose others failed, or that nobody waits for any more."""


class _Telling:
    """What steps tell, each in its thread, for the thread that asked for them to pass on: whom they
    tell may write to a database, and raises to cancel."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._fraction = 0.0
        self._stages: list[str] = []  # that began since the last look
        self._begun: set[str] = set()
        self._heard = False
        self.stopped = False

    def __call__(self, fraction: float, stage: str) -> None:
        if self.stopped:
            raise _Stopped
        with self._lock:
            self._heard = True
            self._fraction = max(self._fraction, fraction)
            if stage not in self._begun:
                self._begun.add(stage)
                self._stages.append(stage)

    def pass_on(self, progress: Progress) -> None:
        """Each stage once, or they would take turns; nothing where nothing was told since: silence
        says that a run is stuck."""
        with self._lock:
            heard, self._heard = self._heard, False
            stages, self._stages = self._stages, []
        for stage in stages or [""] * heard:
            progress(self._fraction, stage)


def side_by_side(
    steps: Sequence[Callable[[Progress], T]], progress: Progress, *, at_once: int = AT_ONCE
) -> list[T]:
    """What each of ``steps`` gives, in their order: a replay is compiled code outside Python's lock
    for much of its time, so that two take less than one after the other. Where one raises, or
    ``progress`` does, the others end at what they tell next, and then it is raised."""
    telling = _Telling()
    each = shared(telling, len(steps))
    with ThreadPoolExecutor(at_once) as pool:
        begun = [pool.submit(step, report) for step, report in zip(steps, each, strict=True)]
        going = set(begun)
        try:
            while going:
                done, going = wait(going, TELL_S, FIRST_COMPLETED)
                for future in done:
                    future.result()
                telling.pass_on(progress)
        except BaseException:
            telling.stopped = True
            for future in begun:
                future.cancel()
            raise
    return [future.result() for future in begun]


def replays_at_once(requests: int) -> int:
    """Of so many requests each; those of streams are not in memory."""
    return AT_ONCE if requests <= MOST or is_long(requests) else 1
