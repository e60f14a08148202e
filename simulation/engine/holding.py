"""Compiled advance to a given time, through the scaling decisions that change nothing.

Most decisions repeat the one before. Asking the policy in Python each time would take longer than
the simulation of the requests in between.
"""

from typing import Any, NamedTuple

import numpy as np

from simulation.arrays import FloatArray, IntArray
from simulation.compiler import kernel
from simulation.engine.compiled_observation import (
    LOAD,
    UTILISATION,
    WAITING,
    Reading,
    read_observation,
)
from simulation.engine.loop import advance_until, route_deferred_requests
from simulation.engine.scaling import apply_targets
from simulation.engine.signals import (
    BATCH,
    DECODE_TPS,
    LATE_DONE,
    LATE_FIRST,
    PREFILL_TPS,
    forget_latencies,
)
from simulation.engine.state import State
from simulation.policies.parts.guard import OBSERVED, decide_targets, inactive_guard
from simulation.policy import Guard

DECISION, INTERVAL = range(2)  # of ``Timing.indices``
ALL = np.iinfo(np.int64).max  # of lent instances: none is taken back


class Timing(NamedTuple):
    """Times of the decisions and of the series, and the queue lengths of the series.

    Queue lengths are those at the end of each interval.
    """

    indices: IntArray  # [2] the next decision (DECISION) and the present interval (INTERVAL)
    spans_s: FloatArray  # [3] seconds between decisions, of an interval, of the window
    waiting: FloatArray  # [pool, interval] requests that wait at the instances
    at_router: FloatArray  # [pool, interval] requests at the router or in the NIW queue


def next_times(timing: Timing) -> tuple[float, float]:
    """Return the times of the next decision and of the end of the present interval, in seconds."""
    scaling_interval_s, interval_s, window_s = timing.spans_s
    decision, interval = timing.indices
    # The last interval ends with the window, whatever the rounding.
    interval_end_s = window_s
    if interval < timing.waiting.shape[1] - 1:
        interval_end_s = min((interval + 1) * interval_s, window_s)
    return decision * scaling_interval_s, interval_end_s


_next_times = kernel(next_times)


def without_decisions(state: State) -> tuple[Timing, Reading, IntArray, Guard, FloatArray]:
    """Return arguments of ``entry_points.advance`` for an advance without scaling decisions.

    Neither a decision nor the end of an interval ever comes, so what they would fill is empty.
    """
    pools, no_rows = len(state.pools), np.zeros((0, 0))
    timing = Timing(np.ones(2, np.int64), np.full(3, np.inf), no_rows, no_rows)
    no_counts = np.zeros((0, 0), np.int64)
    reading = Reading(
        router_pool=no_counts,
        requested_model=np.zeros(0, np.int64),
        requested_tokens=no_counts,
        observed_s=np.zeros(1),
        last_totals=no_rows,
        counts=no_counts,
        amounts=no_rows,
        measured=no_rows,
    )
    unlimited = np.outer([-np.inf, np.inf], np.ones(pools))
    return timing, reading, np.zeros(pools, np.int64), inactive_guard(pools), unlimited


@kernel
def record_queues(state: Any, timing: Any, reading: Any) -> None:
    """Store the queue lengths at the end of the present interval of the series; begin the next.

    Requests at a router or in a NIW queue count for the pool that ``reading.router_pool`` names.
    """
    interval = timing.indices[INTERVAL]
    for p in range(state.pools.shape[0]):
        timing.waiting[p, interval] = state.pools[p].waiting
    for service in range(reading.router_pool.shape[0]):
        for home in range(reading.router_pool.shape[1]):
            count = state.router_waiting[service, home] + state.deferred_by_home[service, home]
            if count:
                timing.at_router[reading.router_pool[service, home], interval] += count
    timing.indices[INTERVAL] += 1


@kernel
def hold_decision(
    state: Any, until: float, timing: Any, reading: Any, planned: Any, guard: Any, limits: Any
) -> bool:
    """Advance to ``until`` while every decision keeps the ready and starting instances.

    The targets of a decision are ``planned [pool]``, or those of ``guard`` if it has any pools. The
    decision is applied without lending or a soft scale-in.
    Return True after the observation of a decision with other targets, or with a pool's utilization
    outside ``limits [2, pool]`` (``Hold.limits``). Otherwise process every event before ``until``,
    and return False.
    """
    pools = state.pools.shape[0]
    no_lending, no_soft_s = np.zeros(pools, np.bool_), np.zeros(pools)
    keep_all = np.full(pools, ALL)
    targets = planned.copy()
    while True:
        decision_s, interval_end_s = _next_times(timing)
        now = min(decision_s, interval_end_s)
        advance_until(state, min(now, until))
        if now >= until:
            return False
        if now == interval_end_s:
            record_queues(state, timing, reading)
        if now < decision_s:
            continue
        timing.indices[DECISION] += 1
        read_observation(state, now, reading)
        if guard.pools.shape[1]:
            decide_targets(now, _guard_inputs(reading, planned), guard)
            targets[:] = guard.targets.astype(np.int64)
        for p in range(pools):
            pool = state.pools[p]
            if targets[p] != pool.ready + pool.missing_instances + pool.starting:
                return True
            utilization = max(reading.amounts[LOAD, p], reading.amounts[UTILISATION, p])
            if utilization < limits[0, p] or utilization > limits[1, p]:
                return True
        if reading.measured.shape[0]:
            forget_latencies(state)
        apply_targets(state, targets, no_soft_s, no_lending, keep_all, now)
        route_deferred_requests(state, now)


@kernel
def _guard_inputs(reading: Any, planned: Any) -> Any:
    """Return what the guard observes, ``[OBSERVED, pool]``, as ``guarded_plan._guard_inputs``.

    ``planned [pool]`` are the planned instances. Row 7 is the share of late first tokens plus that
    of late completions. Without signals, rows 4 to 7 are NaN.
    """
    rows = np.full((len(OBSERVED), len(planned)), np.nan)
    rows[0] = planned
    rows[1:3] = reading.counts[:2]  # ready and starting instances
    rows[3] = reading.counts[WAITING]
    if reading.measured.shape[0]:
        rows[4] = reading.measured[PREFILL_TPS]
        rows[5] = reading.measured[DECODE_TPS]
        rows[6] = reading.measured[BATCH]
        for p in range(len(planned)):
            late_first = reading.measured[LATE_FIRST, p]
            late_done = reading.measured[LATE_DONE, p]
            # NaN: nothing was measured.
            rows[7, p] = late_first if late_first > 0 else 0.0
            rows[7, p] += late_done if late_done > 0 else 0.0
    return rows
