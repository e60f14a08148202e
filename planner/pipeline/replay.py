"""Every policy of a scenario replayed on the same requests and the same hardware."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from planner.errors import ScenarioError
from planner.optimizer.problem import ScalingPlan
from planner.pipeline.detail import Detail, detail_of
from planner.pipeline.planning import (
    CONTROL_S,
    Planned,
    flat_at_peak,
    plan_window,
    schedule,
)
from planner.pipeline.progress import Progress, part, silent
from planner.pipeline.sizing import Sizes
from planner.pipeline.smallest import Meets, fewest, trimmed
from planner.pipeline.traffic import Traffic
from planner.pipeline.window import Window
from planner.scenario.build import Hardware
from planner.scenario.schema import POLICIES, Policy, Scenario
from simulation.engine import simulate
from simulation.fleet import Fleet
from simulation.metrics import Summary, summarise, tiers_met
from simulation.policies.base import ScalingPolicy
from simulation.policies.capped import WithinCapacity
from simulation.policies.flat import Flat
from simulation.policies.reactive import UnifiedReactive
from simulation.policies.scheduled import Scheduled
from simulation.results import PoolSeries
from simulation.trace import Trace

IntArray = npt.NDArray[np.int64]

METHODS = {"lt-i": None, "lt-i-last-value": "last-value", "lt-i-perfect": "perfect"}
MAX_INTERVALS = 1440  # of the series kept per policy: by the minute for a day


@dataclass(frozen=True, slots=True, eq=False)
class Study:
    """What all policies of one scenario share."""

    scenario: Scenario
    hardware: Hardware
    traffic: Traffic
    window: Window
    sizes: Sizes
    trace: Trace  # the requests of the window
    peak: IntArray  # [l, r, g] the flat fleet at peak
    misfit: str  # why that does not cover the peak, "" where it does

    @property
    def today(self) -> IntArray:
        """What runs now; where the scenario does not say, a flat fleet at peak is assumed."""
        return self.peak if self.hardware.today is None else self.hardware.today

    def pools(self, counts: IntArray) -> IntArray:
        """``[..., l, r, g]`` to ``[..., pools]``."""
        index = tuple(np.array(self.hardware.pool_index).T)
        return np.asarray(counts[(..., *index)])


@dataclass(frozen=True, slots=True, eq=False)
class PolicyRun:
    """One policy's outcome."""

    name: str
    label: str
    summary: Summary
    fleet: Fleet
    series: PoolSeries
    plan: ScalingPlan | None  # of the planned ones
    detail: Detail

    @property
    def meets_slo(self) -> bool:
        return all(self.summary.met.values())


def prepare(
    scenario: Scenario,
    hardware: Hardware,
    traffic: Traffic,
    window: Window,
    sizes: Sizes,
    requests: Trace,
) -> Study:
    peak, misfit = flat_at_peak(scenario, hardware, traffic, window, sizes)
    return Study(scenario, hardware, traffic, window, sizes, requests, peak, misfit)


def run_policy(
    study: Study,
    policy: Policy,
    *,
    seed: int,
    progress: Progress,
    planned: Planned | None = None,
    requests: bool = False,
) -> PolicyRun:
    """Replay one policy; ``planned`` saves planning again where the caller has planned already,
    with ``requests`` a row per request is kept."""
    check_policy(study, policy.name)
    label = POLICIES[policy.name]
    counts = study.pools(study.today)
    plan: ScalingPlan | None = None
    chosen: ScalingPolicy
    run = part(progress, 0.5, 1.0)
    if policy.name == "today":
        chosen = Flat(counts, name=policy.name)
    elif policy.name == "flat-peak":
        counts = study.pools(study.peak)
        chosen = Flat(counts, name=policy.name)
    elif policy.name == "flat-min":
        counts = smallest_flat(study, seed=seed, progress=part(progress, 0.0, 0.9))
        chosen, run = Flat(counts, name=policy.name), part(progress, 0.9, 1.0)
    elif policy.name == "reactive":
        chosen = WithinCapacity(_reactive(policy), _shared_gpus(study))
    else:
        if planned is None:
            planned = plan_window(
                study.scenario,
                study.hardware,
                study.traffic,
                study.window,
                study.sizes,
                current=study.today,
                progress=part(progress, 0.0, 0.5),
                method=METHODS[policy.name],
            )
        plan = planned.plan
        times, targets = schedule(plan, study.window)
        counts = study.pools(plan.target[0])
        chosen = WithinCapacity(
            Scheduled(times, study.pools(targets), name=policy.name, interval_s=CONTROL_S),
            _shared_gpus(study),
        )
    fleet = _fleet(study, counts)
    if policy.name == "today":  # as it is, also where that is below the scenario's minimum
        lowest = (replace(pool, minimum=min(pool.minimum, pool.initial)) for pool in fleet.pools)
        fleet = replace(fleet, pools=tuple(lowest))
    interval = max(60.0, float(np.ceil(study.window.duration_s / MAX_INTERVALS / 60) * 60))
    result = simulate(
        study.trace,
        fleet,
        chosen,
        seed=seed,
        duration_s=study.window.duration_s,
        interval_s=interval,
        progress=lambda done: run(done, f"Replaying: {label}"),
    )
    labels = [study.hardware.arrangement(m, g) for m, _, g in study.hardware.pool_index]
    detail = detail_of(result, labels, requests=requests)
    return PolicyRun(policy.name, label, summarise(result), fleet, result.series, plan, detail)


def check_policy(study: Study, name: str) -> None:
    """Raise ScenarioError where the study does not have what the policy needs."""
    if name == "today" and study.hardware.today is None:
        raise ScenarioError("policies: 'today' needs fleet.today to say what runs today.")
    if name == "lt-i-perfect" and study.window.ahead:
        raise ScenarioError(
            "policies: 'lt-i-perfect' is told what came, which nobody knows of a window after the "
            "traffic; leave it out, or choose a horizon.start within the traffic."
        )


def _reactive(policy: Policy) -> UnifiedReactive:
    """With the scenario's parameters where it gives them, else the source's (E8)."""
    given: dict[str, float | None] = {
        "scale_out": policy.scale_out_above,
        "scale_in": policy.scale_in_below,
        "cooldown_s": policy.cooldown_s,
    }
    known: dict[str, float] = {name: v for name, v in given.items() if v is not None}
    return UnifiedReactive(**known)  # type: ignore[arg-type]  # no name among them


def smallest_flat(study: Study, *, seed: int, progress: Progress = silent) -> IntArray:
    """The fewest instances per pool that, held all the time, meet every tier (X1).

    Models do not share instances, so each is first searched alone: bisection over its total, spread
    over pools as the flat fleet at peak is. Then single instances are taken out of the whole fleet,
    the dearest first, until none can go: tiers are counted over all models together (X4).
    Attainment need not be monotone in the total, so it is the smallest *found*. A model that
    cannot meet its tiers with all the GPUs there are gets as many as were tried last.
    """
    base, counts = study.pools(study.peak), np.zeros(len(study.hardware.pool_index), np.int64)
    names = [model.name for model in study.hardware.models]
    for m, name in enumerate(names):
        progress(0.8 * m / len(names), f"Searching the smallest flat fleet for {name}")
        mine = np.array([at[0] == m for at in study.hardware.pool_index])
        requests = study.trace.rows(study.trace.model == m)
        whole = _fleet(study, base)
        fleet = Fleet(
            tiers=whole.tiers,
            regions=whole.regions,
            pools=tuple(p for p, own in zip(whole.pools, mine, strict=True) if own),
            latency_s=whole.latency_s,
            routing=whole.routing,
        )

        meets = _judge(study, requests, fleet, seed, partial(progress, 0.8 * m / len(names), ""))
        low = np.array([pool.minimum for pool in fleet.pools], np.int64)
        high = np.array([pool.maximum for pool in fleet.pools], np.int64)
        counts[mine] = fewest(meets, base[mine], low, _within_gpus(study, mine, base, high))
    whole = _fleet(study, counts)
    least = np.array([pool.minimum for pool in whole.pools], np.int64)
    usd = np.array([pool.usd_per_gpu_hour * pool.gpus_per_instance for pool in whole.pools])
    return trimmed(
        _judge(study, study.trace, whole, seed, partial(progress, 0.8, "")), counts, least, -usd
    )


def _judge(
    study: Study, requests: Trace, fleet: Fleet, seed: int, alive: Callable[[], None]
) -> Meets:
    """Whether a flat fleet meets every tier on ``requests``; ``alive`` is a chance to cancel."""

    def meets(at: IntArray) -> bool:
        alive()
        result = simulate(requests, fleet, Flat(at), seed=seed, duration_s=study.window.duration_s)
        return all(tiers_met(result).values())

    return meets


def _within_gpus(
    study: Study, mine: npt.NDArray[np.bool_], base: IntArray, high: IntArray
) -> IntArray:
    """Most instances a model may hold, other models keeping their share of ``base``."""
    out, types = high.copy(), study.hardware.types
    places = [at for at, own in zip(study.hardware.pool_index, mine, strict=True) if own]
    for i, (m, r, g) in enumerate(places):
        others = sum(
            int(count) * study.hardware.profiles[other, g2].tp
            for (other, r2, g2), count in zip(study.hardware.pool_index, base, strict=True)
            if (r2, types[g2]) == (r, types[g]) and other != m
        )
        free = int(study.hardware.capacity_gpus[r, types[g]]) - others
        out[i] = max(0, min(int(high[i]), free // study.hardware.profiles[m, g].tp))
    return out


def _fleet(study: Study, counts: IntArray) -> Fleet:
    initial = np.zeros(study.hardware.minimum.shape, np.int64)
    for at, count in zip(study.hardware.pool_index, counts, strict=True):
        initial[at] = count
    return study.hardware.fleet(initial)


def _shared_gpus(study: Study) -> list[tuple[list[int], int]]:
    """Pools by region and GPU type, with the GPUs they share."""
    groups: dict[tuple[int, int], list[int]] = {}
    types = study.hardware.types
    for p, (_, r, g) in enumerate(study.hardware.pool_index):
        groups.setdefault((r, int(types[g])), []).append(p)
    return [(pools, int(study.hardware.capacity_gpus[r, t])) for (r, t), pools in groups.items()]
