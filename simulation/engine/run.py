"""``simulate``: replay a trace on a fleet under a policy, with faults and progress reports."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from simulation import invariants
from simulation.arrays import Array
from simulation.deadlines import due_s
from simulation.engine import entry_points, policy_actions, result_tables
from simulation.engine.allocation import allocate
from simulation.engine.compiled_observation import Reading
from simulation.engine.control_loop import Controller
from simulation.engine.holding import (
    DECISION,
    INTERVAL,
    Timing,
    next_times,
    without_decisions,
)
from simulation.engine.request_supply import NothingMore, RequestFeed
from simulation.engine.state import State
from simulation.errors import SimulationError
from simulation.faults import fault_events
from simulation.fleet import Fleet
from simulation.policy import Hold, ScalingPolicy
from simulation.results import SimulationResult
from simulation.trace import Trace

STEP_SHARE = 0.02  # share of the window simulated without a report of progress
REPORT_EVERY_S = 0.5  # wall time after which progress is reported
REPORT_SHARE = 0.01  # share of the window after which progress is reported
Watch = Callable[[float, Array], None]
# longest time for unfinished requests after the window, unless they are due later
DRAIN_S = 4 * 3600.0


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
        feed: RequestFeed,
    ) -> None:
        """Begin at time 0 with ``faults`` by time, for a window of ``duration_s`` seconds."""
        self._state = state
        self._faults = faults
        self._duration_s = duration_s
        self._progress = progress
        self._feed = feed
        self._next = 0  # index of the next fault
        self._reported = 0.0  # fraction done
        self._reported_at = time.monotonic()
        self._reached_s = 0.0  # every event before it was processed
        self._step_s = STEP_SHARE * duration_s
        self._no_decisions = without_decisions(state)

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

        The advance ends before the next fault, after the share STEP_SHARE of the window, or at a
        decision that may differ. Return True in the last case; ``reading`` then has the observation
        at that decision.
        """
        faults = self._faults[self._next :]
        fault_s = float(faults[0]["time"]) if len(faults) else np.inf
        longest_s = now + self._step_s
        until = min(hold.until_s, longest_s, fault_s, self._feed.next_s, self._duration_s)
        *_, no_guard, no_limits = self._no_decisions
        guard = no_guard if hold.guard is None else hold.guard
        limits = no_limits if hold.limits is None else hold.limits
        targets = np.ascontiguousarray(hold.targets, np.int64)
        handle = self._state.handle
        stopped = entry_points.advance(handle, until, timing, reading, targets, guard, limits)
        self._reached_s = float(reading.observed_s[0]) if stopped else max(now, until)
        self._report_progress(until / self._duration_s)
        return bool(stopped)

    def _advance_with_refills(self, until: float) -> None:
        """Process events before ``until``, and load more requests before they arrive."""
        while self._feed.next_s < until:
            self._events(self._feed.next_s)
            self._feed.refill(self._state)
        self._events(until)

    def _events(self, until: float) -> None:
        """Process events before ``until``; if someone follows the progress, in steps.

        A drain may take thousands of steps of a short window.
        """
        step_s = np.inf if self._progress is None else self._step_s
        while self._reached_s < until:
            self._reached_s = min(self._reached_s + step_s, until)
            entry_points.advance(self._state.handle, self._reached_s, *self._no_decisions)
            self._report_progress(self._reached_s / self._duration_s)

    def _report_progress(self, fraction: float) -> None:
        """Report progress if it advanced enough or enough wall time passed; it never decreases."""
        if self._progress is None:
            return
        fraction = min(max(fraction, self._reported), 1.0)
        now = time.monotonic()
        if fraction >= self._reported + REPORT_SHARE or now >= self._reported_at + REPORT_EVERY_S:
            self._reported, self._reported_at = fraction, now
            self._progress(fraction)


def simulate(
    trace: Trace,
    fleet: Fleet,
    policy: ScalingPolicy,
    *,
    seed: int = 0,
    duration_s: float | None = None,
    interval_s: float = 60.0,
    progress: Callable[[float], None] | None = None,
    watch: Watch | None = None,
) -> SimulationResult:
    """Replay ``trace`` on ``fleet`` under ``policy`` and return the result.

    The window includes requests that arrive in ``[0, duration_s)``. Its default length is the whole
    intervals that contain every arrival. After the window nothing scales or arrives. The run goes
    on until every request has finished, and deferred ones are still released. It ends at the latest
    when the last request is due and four hours have passed. Requests left then are unfinished, or
    not yet due if none of their limits has passed.

    Hours are counted in the window. ``AfterWindow`` counts those of instances with work after it,
    each to the end of its last iteration. Idle instances cost nothing after the window.

    The one-way latency is added twice to a request served away from home, there and back. It
    reaches its instance ``latency_s[home, serving]`` after routing, and TTFT and E2E add the same
    again. They also add the profile's ``start_s``, which uses no capacity.

    Models, regions and tiers of the trace are matched to the fleet by name. Requests that no pool
    can serve, or that may not be sent to one, are rejected and counted.

    ``progress(fraction)`` is called about once a second or more often. ``watch(now, records)`` gets
    the records of the requests at the ends of intervals, at least 50 times in the window. Both may
    raise an exception to cancel. Only faults are random. They are drawn from ``seed`` before the
    run, so that the same inputs give the same bytes.

    Raises ``SimulationError`` for inputs that cannot be simulated, and ``InvariantViolated`` if the
    result violates an invariant (a bug).
    """
    began = time.perf_counter()
    interval_s = float(interval_s)
    check_inputs(fleet, policy, trace.regions, trace.tiers, interval_s)
    trace, duration_s = _requests_in_window(trace, duration_s, interval_s)
    state = allocate(trace, fleet, duration_s, interval_s, seed)
    time_advance = begin(state, fleet, policy, duration_s, seed, progress, NothingMore())
    waiting, at_router = run_window(
        state, fleet, policy, duration_s, interval_s, time_advance, watch
    )
    due = due_s(trace, fleet.tiers)
    last_due_s = float(due[np.isfinite(due)].max(initial=0.0))
    until_s = drain(state, duration_s, last_due_s, policy.interval_s, time_advance)
    log = result_tables.request_log(state, due > until_s)
    result = SimulationResult(
        policy=policy.name,
        seed=seed,
        fleet=fleet,
        trace=trace,
        duration_s=duration_s,
        requests=log,
        series=result_tables.pool_series(state, duration_s, interval_s, waiting, at_router),
        totals=result_tables.pool_totals(state),
        after=result_tables.after_window(state, until_s),
        reject_reasons=result_tables.reject_reasons(log),
        wall_seconds=time.perf_counter() - began,
    )
    invariants.check_state(state.pools, state.instances, int(state.clock[0]["unfinished"]))
    invariants.check_invariants(result)
    if progress is not None:
        progress(1.0)
    return replace(result, wall_seconds=time.perf_counter() - began)


def begin(
    state: State,
    fleet: Fleet,
    policy: ScalingPolicy,
    duration_s: float,
    seed: int,
    progress: Callable[[float], None] | None,
    feed: RequestFeed,
) -> TimeAdvance:
    """Place the first instances and draw the faults; return the object that advances time."""
    regions = tuple(region.name for region in fleet.regions)
    faults = fault_events(fleet.faults, state.pools["maximum"], regions, duration_s, seed)
    policy_actions.place(state, fleet, policy.reset(fleet))
    return TimeAdvance(state, faults, duration_s, progress, feed)


def check_inputs(
    fleet: Fleet,
    policy: ScalingPolicy,
    regions: Sequence[str],
    tiers: Sequence[str],
    interval_s: float,
) -> None:
    """Raise ``SimulationError`` if the fleet or the policy cannot be simulated.

    It is also raised if the fleet lacks a region or tier of the trace.
    """
    if not interval_s > 0 or not policy.interval_s > 0:
        raise SimulationError("interval_s must be positive, of the series and of the policy.")
    if not fleet.pools:
        raise SimulationError("The fleet has no pool. Give it at least one.")
    for pool in fleet.pools:
        pool_words = f"Pool of {pool.model} in {pool.region}"
        if not 0 <= pool.minimum <= pool.maximum:
            raise SimulationError(f"{pool_words}: needs 0 <= minimum <= maximum replicas.")
        if not 0 <= pool.startup_s < np.inf:
            raise SimulationError(f"{pool_words}: startup_s must be a number of seconds >= 0.")
    if not (np.all(fleet.latency_s >= 0) and np.all(np.isfinite(np.diagonal(fleet.latency_s)))):
        raise SimulationError(
            "Latency between regions must be a number of seconds >= 0: infinite where no request "
            "may go, finite within one."
        )
    _check_names("region", regions, [region.name for region in fleet.regions])
    _check_names("tier", tiers, [tier.name for tier in fleet.tiers])


def _check_names(kind: str, names: Sequence[str], known_names: Sequence[str]) -> None:
    """Raise ``SimulationError`` if the trace has a region or tier that the fleet lacks."""
    for name in names:
        if name not in known_names:
            raise SimulationError(
                f"The trace's {kind} {name!r} is not in the fleet. "
                f"Add it, or map it to one of {', '.join(known_names)}."
            )


def _requests_in_window(
    trace: Trace, duration_s: float | None, interval_s: float
) -> tuple[Trace, float]:
    """Return the requests of ``trace`` in the window, and the length of the window in seconds.

    ``duration_s`` None: the window is the whole intervals that contain every arrival. Raises
    ``SimulationError`` for arrivals, lengths or a duration that cannot be simulated.
    """
    if len(trace) and trace.arrival_s[0] < 0:
        raise SimulationError("Trace arrivals must not be negative. Move start_s to the first.")
    if len(trace) and min(trace.input_tokens.min(), trace.output_tokens.min()) < 1:
        raise SimulationError("Every request needs at least one input and one output token.")
    if duration_s is None:
        duration_s = duration_in_whole_intervals_s(trace, interval_s)
    elif not duration_s > 0:
        raise SimulationError("duration_s must be positive.")
    # Not Trace.window: its sums with epoch seconds would round arrivals near the edge.
    count = int(np.searchsorted(trace.arrival_s, float(duration_s)))
    return trace if count == len(trace) else trace.rows(slice(0, count)), float(duration_s)


def duration_in_whole_intervals_s(trace: Trace, interval_s: float) -> float:
    """Return the shortest multiple of ``interval_s`` (seconds) that contains every arrival."""
    return float((np.floor(trace.duration_s / interval_s) + 1.0) * interval_s)


def run_window(
    state: State,
    fleet: Fleet,
    policy: ScalingPolicy,
    duration_s: float,
    interval_s: float,
    time_advance: TimeAdvance,
    watch: Watch | None = None,
) -> tuple[Array, Array]:
    """Advance to the end of the window; return two arrays of queue lengths, ``[pool, interval]``.

    They count the requests that wait at the end of each interval: first at the pool's instances,
    then at the router or in the NIW queue (deferred requests) for the pool. Normally, the policy is
    called at each scaling decision. If it returns a ``Hold``, its decision stays the same for a
    known time, which compiled code simulates without calling it. Compiled code then stops at a
    decision that may differ, and has read its observation. ``watch`` gets the records of requests
    at the end of each interval.
    """
    intervals = state.series.shape[2] - 1
    waiting, at_router = np.zeros((2, len(fleet.pools), intervals))
    controller = Controller(state, fleet, policy)
    reading = controller.observe.reading
    spans_s = np.array([float(policy.interval_s), interval_s, duration_s])
    timing = Timing(np.array([1, 0]), spans_s, waiting, at_router)
    now, hold = 0.0, None
    while now < duration_s:
        interval_before = int(timing.indices[INTERVAL])
        was_observed = hold is not None and time_advance.hold(now, hold, timing, reading)
        is_decision = was_observed
        if was_observed:
            now = float(reading.observed_s[0])
        else:
            # Advance to the next decision or end of an interval, or to both at once.
            decision_s, interval_end_s = next_times(timing)
            now = min(decision_s, interval_end_s)
            time_advance.advance(now)
            if now == interval_end_s:
                entry_points.end_interval(state.handle, timing, reading)
            if now == decision_s:
                timing.indices[DECISION] += 1
                is_decision = now < duration_s
        interval_ended = timing.indices[INTERVAL] > interval_before
        # A watch expects arrivals in order, which postponed turns of sessions are not in.
        if watch is not None and interval_ended and not state.clock[0]["has_sessions"]:
            watch(now, state.requests)
        if is_decision:
            hold = controller.decide(now, read=was_observed)
            reading, spans_s[0] = controller.observe.reading, float(policy.interval_s)
            entry_points.route_deferred(state.handle, now)
    return waiting, at_router


def drain(
    state: State, duration_s: float, last_due_s: float, interval_s: float, time_advance: TimeAdvance
) -> float:
    """Serve the requests left after the window, and return the time at which the simulation ends.

    Deferred requests are released as soon as there is room, because a plan covers the window alone.
    The simulation ends at the latest when all requests are due and ``DRAIN_S`` has passed. All
    counts are complete then.
    """
    until_s = max(duration_s + DRAIN_S, last_due_s)
    now, intervals_passed = duration_s, 0
    state.releasable_tokens[:] = np.inf
    while state.clock[0]["unfinished"] and now < until_s:
        intervals_passed += 1
        now = float(min(duration_s + intervals_passed * interval_s, until_s))
        time_advance.advance(now)
        if state.clock[0]["unfinished"]:
            entry_points.route_deferred(state.handle, now)
    entry_points.close(state.handle, now)
    return now
