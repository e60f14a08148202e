"""``simulate``: set up, advance from instant to instant, ask the policy, hand over the result."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from simulation import invariants
from simulation.engine import entry
from simulation.engine.observing import Observer
from simulation.engine.state import (
    S_BUSY,
    S_DRAINING,
    S_INPUT,
    S_KV,
    S_OUTPUT,
    S_READY,
    S_STARTING,
    Array,
    State,
    allocate,
)
from simulation.errors import SimulationError
from simulation.fleet import Fleet
from simulation.policies.base import ScalingPolicy, actions_of
from simulation.results import PoolSeries, PoolTotals, RequestLog, SimulationResult
from simulation.trace import Trace

DRAIN_S = 4 * 3600.0  # how long stragglers may take after the window


def simulate(
    trace: Trace,
    fleet: Fleet,
    policy: ScalingPolicy,
    *,
    seed: int = 0,
    duration_s: float | None = None,
    interval_s: float = 60.0,
    progress: Callable[[float], None] | None = None,
) -> SimulationResult:
    """Replay ``trace`` on ``fleet`` under ``policy``.

    Requests arriving in ``[0, duration_s)`` are taken (default: the whole intervals that hold every
    arrival) and hours are counted in that window. Then, with no scaling and no arrivals, the run
    goes on until every request has finished (deferred ones are still let in) or four hours passed;
    those left are unfinished.
    A request served away from home pays the one-way latency there and back: it reaches its instance
    ``latency_s[home, serving]`` after it was routed, and TTFT and E2E add the same again.

    Models, regions and tiers of the trace are matched to the fleet by name; requests of a model
    without a pool are rejected and counted. ``progress(fraction)`` is called now and then and may
    raise to cancel. The engine draws no random numbers: ``seed`` is recorded for the result, and
    the same inputs give the same bytes. Raises ``SimulationError`` for inputs that cannot be
    simulated and ``InvariantViolated`` if the result breaks a law (a bug).
    """
    began = time.perf_counter()
    interval_s = float(interval_s)
    trace, duration_s = _window(trace, fleet, policy, duration_s, interval_s)
    s, reasons = allocate(trace, fleet, duration_s, interval_s)
    entry.scale(s, _targets(policy.reset(fleet), fleet), 0.0, True)
    waiting = _run_window(s, fleet, policy, duration_s, interval_s, progress)
    _drain(s, duration_s, policy.interval_s)
    entry.close(s)
    result = SimulationResult(
        policy=policy.name,
        seed=seed,
        fleet=fleet,
        trace=trace,
        duration_s=duration_s,
        requests=_request_log(s),
        series=_series(s, duration_s, interval_s, waiting),
        totals=PoolTotals(
            **{
                name: s.pools[name].copy()
                for name in (
                    "starting_s",
                    "idle_s",
                    "prefill_s",
                    "decode_s",
                    "iterations",
                    "preemptions",
                    "outside",
                )
            }
        ),
        reject_reasons=reasons,
        wall_seconds=time.perf_counter() - began,
    )
    invariants.check_state(s.pools, s.instances, int(s.clock[0]["open"]))
    invariants.check(result)
    if progress is not None:
        progress(1.0)
    return replace(result, wall_seconds=time.perf_counter() - began)


def _window(
    trace: Trace, fleet: Fleet, policy: ScalingPolicy, duration_s: float | None, interval_s: float
) -> tuple[Trace, float]:
    """The requests and the length of the window, after checking that they can be simulated."""
    if not interval_s > 0 or not policy.interval_s > 0:
        raise SimulationError("interval_s must be positive, of the series and of the policy.")
    if not fleet.pools:
        raise SimulationError("The fleet has no pool; give it at least one.")
    for pool in fleet.pools:
        place = f"Pool of {pool.model} in {pool.region}"
        if not 0 <= pool.minimum <= pool.maximum:
            raise SimulationError(f"{place}: needs 0 <= minimum <= maximum instances.")
        if not 0 <= pool.startup_s < np.inf:
            raise SimulationError(f"{place}: startup_s must be a number of seconds >= 0.")
    if not np.all(np.isfinite(fleet.latency_s) & (fleet.latency_s >= 0)):
        raise SimulationError("Latency between regions must be a number of seconds >= 0.")
    for kind, names, known in (
        ("region", trace.regions, [region.name for region in fleet.regions]),
        ("tier", trace.tiers, [tier.name for tier in fleet.tiers]),
    ):
        for name in names:
            if name not in known:
                raise SimulationError(
                    f"The trace's {kind} {name!r} is not in the fleet; "
                    f"add it, or map it to one of {', '.join(known)}."
                )
    if len(trace) and trace.arrival_s[0] < 0:
        raise SimulationError("Trace arrivals must not be negative; move start_s to the first.")
    if len(trace) and min(trace.input_tokens.min(), trace.output_tokens.min()) < 1:
        raise SimulationError("Every request needs at least one input and one output token.")
    if duration_s is None:
        duration_s = (np.floor(trace.duration_s / interval_s) + 1.0) * interval_s
    elif not duration_s > 0:
        raise SimulationError("duration_s must be positive.")
    return _before(trace, float(duration_s)), float(duration_s)


def _before(trace: Trace, end_s: float) -> Trace:
    """Requests arriving before ``end_s``. Not ``Trace.window``: sums with epoch seconds would lose
    what lies within their rounding of the edge."""
    keep = slice(0, int(np.searchsorted(trace.arrival_s, end_s)))
    return trace if keep.stop == len(trace) else trace.rows(keep)


def _targets(wanted: npt.NDArray[np.int64], fleet: Fleet) -> npt.NDArray[np.int64]:
    targets = np.array(wanted, np.int64, order="C")  # writable: one compiled signature
    if targets.shape != (len(fleet.pools),):
        raise SimulationError("A policy must name one instance count per pool of the fleet.")
    return targets


def _run_window(
    s: State,
    fleet: Fleet,
    policy: ScalingPolicy,
    duration_s: float,
    interval_s: float,
    progress: Callable[[float], None] | None,
) -> Array:
    """Advance to the end of the window; requests waiting per pool at the end of each interval."""
    intervals = s.series.shape[2]
    waiting = np.zeros((len(fleet.pools), intervals))
    observe = Observer(s, policy)
    control, interval, reported = 1, 0, 0.0
    now = 0.0
    while now < duration_s:
        next_control = control * float(policy.interval_s)
        interval_end = min((interval + 1) * interval_s, duration_s)
        if interval == intervals - 1:
            interval_end = duration_s
        now = float(min(next_control, interval_end))
        entry.advance(s, now)
        if now == interval_end:
            waiting[:, interval] = s.pools["waiting"]
            interval += 1
        if now == next_control:
            control += 1
            if now < duration_s:
                asked = actions_of(policy.decide(observe(now)))
                entry.scale(s, _targets(asked.targets, fleet), now, False)
                entry.tend(s, now)
        if progress is not None and now / duration_s >= reported + 0.01:
            reported = now / duration_s
            progress(reported)
    return waiting


def _drain(s: State, duration_s: float, interval_s: float) -> None:
    now, ticks = duration_s, 0
    while s.clock[0]["open"] and now < duration_s + DRAIN_S:
        ticks += 1
        now = float(min(duration_s + ticks * interval_s, duration_s + DRAIN_S))
        if entry.advance(s, now):
            entry.tend(s, now)


def _request_log(s: State) -> RequestLog:
    requests = s.requests
    pool = requests["pool"].copy()
    away = np.where(pool < 0, 0.0, s.latency[requests["home"], s.pools["region"][pool]])
    osl = requests["osl"]
    gaps = np.where(osl > 1, osl - 1.0, np.nan)
    return RequestLog(
        outcome=requests["outcome"].copy(),
        pool=pool,
        first_token_s=requests["first"].copy(),
        last_token_s=requests["last"].copy(),
        ttft_s=requests["first"] + away - requests["arrival"],
        tbt_s=(requests["last"] - requests["first"]) / gaps,
        e2e_s=requests["last"] + away - requests["arrival"],
    )


def _series(s: State, duration_s: float, interval_s: float, waiting: Array) -> PoolSeries:
    intervals = s.series.shape[2]
    starts = np.arange(intervals) * interval_s
    width = np.minimum(starts + interval_s, duration_s) - starts
    capacity = s.series[S_READY] * s.pools["kv_capacity"][:, None]
    return PoolSeries(
        interval_s=interval_s,
        ready=s.series[S_READY] / width,
        starting=s.series[S_STARTING] / width,
        draining=s.series[S_DRAINING] / width,
        busy=s.series[S_BUSY] / width,
        utilisation=s.series[S_KV] / np.where(capacity > 0, capacity, 1.0),
        waiting=waiting,
        input_tokens=s.series[S_INPUT].copy(),
        output_tokens=s.series[S_OUTPUT].copy(),
    )
