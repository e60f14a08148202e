"""Advance of the engine through time, with planned faults and progress reports."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from simulation.engine import entry_points
from simulation.engine.compiled_observation import Reading
from simulation.engine.holding import Timing
from simulation.engine.request_supply import Feed
from simulation.engine.state import State
from simulation.policies.parts.guard import unguarded
from simulation.policy import Hold

EVENTS = 300_000  # between two checks of the wall clock; less than a second
MOST_HELD = 0.02  # share of the window simulated without a report of progress
REPORT_EVERY_S = 0.5  # wall time after which progress is reported
STEP = 0.01  # share of the window after which progress is reported


class TimeAdvance:
    """Advances the simulation to a given time, with its faults, and reports progress.

    ``progress(fraction)`` may raise an exception to cancel. ``feed`` supplies later requests.
    """

    def __init__(
        self,
        state: State,
        faults: npt.NDArray[Any],
        duration_s: float,
        progress: Callable[[float], None] | None,
        feed: Feed,
    ) -> None:
        self._state = state
        self._faults = faults
        self._duration_s = duration_s
        self._progress = progress
        self._feed = feed
        self._next = 0
        self._reported = 0.0
        self._reported_at = time.monotonic()
        self._unguarded = unguarded(len(state.pools))
        self._unlimited = np.outer([-np.inf, np.inf], np.ones(len(state.pools)))

    def advance(self, until: float) -> None:
        """Process every event before ``until``, and every fault up to and including it."""
        while self._next < len(self._faults) and self._faults[self._next]["time"] <= until:
            event = self._faults[self._next]
            fault_s = float(event["time"])
            self._advance_with_refills(fault_s)
            entry_points.fault(
                self._state.handle,
                int(event["kind"]),
                int(event["target"]),
                int(event["slot_or_rank"]),
                float(event["until"]),
                float(event["factor"]),
                fault_s,
            )
            self._next += 1
        self._advance_with_refills(until)
        self._report_progress(until / self._duration_s)

    def hold(self, now: float, hold: Hold, timing: Timing, reading: Reading) -> bool:
        """Advance through scaling decisions that repeat the one at ``now``.

        It ends before the next fault, after the share MOST_HELD of the run, or at a decision that
        may differ. Returns True in the last case; ``reading`` then has its observation.
        """
        faults = self._faults[self._next :]
        fault_s = float(faults[0]["time"]) if len(faults) else np.inf
        most_s = now + MOST_HELD * self._duration_s
        until = min(hold.until_s, most_s, fault_s, self._feed.next_s, self._duration_s)
        guard = self._unguarded if hold.guard is None else hold.guard
        limits = self._unlimited if hold.limits is None else hold.limits
        targets = np.ascontiguousarray(hold.targets, np.int64)
        read = entry_points.hold(self._state.handle, until, timing, reading, targets, guard, limits)
        self._report_progress(min(until, self._duration_s) / self._duration_s)
        return bool(read)

    def _advance_with_refills(self, until: float) -> None:
        """Process events before ``until`` and load more requests as they come due."""
        while self._feed.next_s < until:
            self._events(self._feed.next_s)
            self._feed.refill(self._state)
        self._events(until)

    def _events(self, until: float) -> None:
        """Process events before ``until`` and report progress in between."""
        while not entry_points.advance(self._state.handle, until, EVENTS):
            clock, requests = self._state.clock[0], self._state.requests
            coming = int(clock["arrival"])
            reached = requests[coming]["arrival"] if coming < len(requests) else until
            self._report_progress(min(float(reached), until) / self._duration_s)

    def _report_progress(self, fraction: float) -> None:
        """Report progress if it advanced enough or enough wall time passed; it never decreases."""
        if self._progress is None:
            return
        fraction = min(max(fraction, self._reported), 1.0)
        now = time.monotonic()
        if fraction >= self._reported + STEP or now >= self._reported_at + REPORT_EVERY_S:
            self._reported, self._reported_at = fraction, now
            self._progress(fraction)
