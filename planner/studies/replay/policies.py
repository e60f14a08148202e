"""From a scenario's words for a policy to the policy and the fleet it begins with: one table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from planner.errors import ScenarioError
from planner.optimizer.problem import ScalingPlan
from planner.scenario.own import own_policy
from planner.scenario.schema import Policy
from planner.scenario.schema import policies as words
from planner.studies.planning.planning import (
    CONTROL_S,
    Planned,
    plan_load,
    plan_window,
    schedule,
    scheduled_lending,
)
from planner.studies.progress import Progress, part
from planner.studies.replay.flat import smallest_flat
from planner.studies.replay.pressure import PressureTests
from planner.studies.traffic.forecasts import by_model_and_region, interactive
from planner.studies.values import Study
from simulation.arrays import BoolArray, IntArray
from simulation.fleet import Fleet
from simulation.policies.chiron import Chiron
from simulation.policies.deferred import Deferred
from simulation.policies.feedback import TBT, TTFT, Feedback, Latency
from simulation.policies.flat import Flat
from simulation.policies.hpa import Hpa
from simulation.policies.kv_aware import KvAware
from simulation.policies.parts.ratio import FIXED, OBSERVED, Ratio
from simulation.policies.parts.silos import chiron_fleet, siloed
from simulation.policies.parts.stability import Stability
from simulation.policies.periodic import DAY_S, Periodic
from simulation.policies.proportional import Proportional, SignalName
from simulation.policies.reactive import UnifiedReactive
from simulation.policies.scheduled import Scheduled
from simulation.policies.wrappers.capped import WithinCapacity
from simulation.policies.wrappers.combined import Combined
from simulation.policy import ScalingPolicy

METHODS = {"lt-i-last-value": "last-value", "lt-i-perfect": "perfect"}  # others: the scenario's
PLANS = ("lt-i", "lt-u", "lt-ua")  # on the scenario's own forecast: one plan for all of them


@dataclass(frozen=True, slots=True, eq=False)
class Ready:
    """A policy with the fleet it begins with; ``whence`` is the pool of the scenario's fleet that
    each of ``fleet`` came from, ``after`` the share of the work that is done."""

    policy: ScalingPolicy
    fleet: Fleet
    whence: Sequence[int]
    plan: ScalingPlan | None = None
    after: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Making:
    """What a builder has at hand besides the words for its policy."""

    study: Study
    seed: int
    progress: Progress
    given: Planned | None
    tests: PressureTests

    def planned(self, name: str) -> Planned:
        """The plan that a policy follows, made here where it was not handed in."""
        if self.given is not None:
            return self.given
        study = self.study
        return plan_window(
            study.scenario,
            study.hardware,
            study.traffic,
            study.window,
            study.sizes,
            current=study.today,
            progress=part(self.progress, 0.0, 0.5),
            method=METHODS.get(name),
            periods="all" if name == "lt-h" else None,
        )


def make_ready(
    study: Study,
    policy: Policy,
    *,
    seed: int,
    progress: Progress,
    planned: Planned | None = None,
    tests: PressureTests | None = None,
) -> Ready:
    """The policy that ``policy`` describes, on this study's fleet. Raises ScenarioError or
    SimulationError in one sentence where the study lacks what the policy needs."""
    build = BUILDERS[type(policy)]
    return build(Making(study, seed, progress, planned, tests or PressureTests(study)), policy)


def _fixed(at: Making, given: words.FixedFleet) -> Ready:
    study, after = at.study, 0.0
    counts = study.pools(study.today if given.name == "today" else study.peak)
    if given.name == "flat-min":
        counts = smallest_flat(study, seed=at.seed, progress=part(at.progress, 0.0, 0.9))
        after = 0.9
    fleet = study.fleet(counts)
    if given.name == "today":  # as it is, also where that is below the scenario's minimum
        lowest = (replace(pool, minimum=min(pool.minimum, pool.initial)) for pool in fleet.pools)
        fleet = replace(fleet, pools=tuple(lowest))
    return Ready(Flat(counts, name=given.key), fleet, range(len(counts)), after=after)


def _planned(at: Making, given: words.Planned) -> Ready:
    planned = at.planned(given.name)
    return _scheduled(at, given.key, planned.plan, planned.plan)


def _scheduled(at: Making, key: str, plan: ScalingPlan, shown: ScalingPlan | None) -> Ready:
    times, targets = schedule(plan, at.study.window)
    lent = scheduled_lending(plan, at.study.window)
    policy = Scheduled(
        times,
        at.study.pools(targets),
        name=key,
        interval_s=CONTROL_S,
        lent=None if lent is None else at.study.pools(lent),
    )
    return replace(_on(at, policy, at.study.pools(plan.target[0])), plan=shown, after=0.5)


def _deferred(at: Making, given: words.LtU | words.LtUa) -> Ready:
    study, planned = at.study, at.planned(given.name)
    times, targets = schedule(planned.plan, study.window)
    more: dict[str, Any] = {}
    if isinstance(given, words.LtUa):
        index = np.array(study.hardware.pool_index)
        more = {
            "forecast_tps": planned.load_tps.max(axis=3)[:, index[:, 0], index[:, 1]],
            "last_share": given.last_share,
            "underestimated": given.underestimated,
            "overestimated": given.overestimated,
            "observed_s": given.observed_s,
        }
    policy = Deferred(
        times,
        study.pools(targets),
        period_s=study.window.period_s,
        name=given.key,
        **_thresholds(given),
        **more,
    )
    counts = study.pools(planned.plan.target[0])
    return replace(_on(at, policy, counts), plan=planned.plan, after=0.5)


def _periodic(at: Making, given: words.Periodic) -> Ready:
    study = at.study
    if not given.timetable:
        return _scheduled(at, given.key, _day_before(at), None)
    rows = sorted(given.timetable, key=lambda row: row.at)
    seconds = [int(row.at[:2]) * 3600.0 + int(row.at[3:]) * 60.0 for row in rows]
    now = study.pools(study.today)
    counts: dict[float, IntArray] = {}
    for _ in range(2):  # the second time round, what the evening left holds in the morning
        for row, second in zip(rows, seconds, strict=True):
            now = np.where(_about(study, row), row.replicas, now)
            counts[second] = now
    policy = Periodic(
        list(counts),
        np.array(list(counts.values())),
        offset_s=study.window.start_s % DAY_S,
        name=given.key,
    )
    return _on(at, policy, policy.reset(study.fleet(now)))


def _about(study: Study, row: words.TimetableStep) -> BoolArray:
    """Pools that a row of the timetable is about, ``[pools]``."""
    hardware = study.hardware
    return np.array(
        [
            row.model in (None, hardware.models[m].name)
            and row.region in (None, hardware.regions[r].name)
            and row.gpu in (None, hardware.gpus[g].name)
            for m, r, g in hardware.pool_index
        ]
    )


def _day_before(at: Making) -> ScalingPlan:
    """The plan for what came at the same times of the last day before each period that is known."""
    study = at.study
    window, demand = study.window, study.traffic.demand
    load = np.zeros((len(window.period_starts_s), *study.today.shape[:2], window.bins_per_period))
    deferrable = {tier.name for tier in study.hardware.tiers if tier.deferrable}
    buffer = study.scenario.forecast.niw_buffer
    for tiers, weight in ((interactive(study.hardware), 1.0), (deferrable, buffer)):
        for (m, r), series in by_model_and_region(study.traffic, tiers):
            for p, (start, known) in enumerate(
                zip(window.period_starts_s, window.origins_s, strict=True)
            ):
                begin = start - DAY_S * np.ceil((start + window.period_s - known) / DAY_S)
                if begin < demand.start_s:
                    raise ScenarioError(
                        "policies: 'periodic' goes by the day before, and the traffic has none "
                        "before the window; give it a timetable, or choose a later horizon.start."
                    )
                rate = series.window(begin, begin + window.period_s).rate()
                most = np.nanmax(rate) if np.any(~np.isnan(rate)) else 0.0
                load[p, m, r] += weight * np.where(np.isnan(rate), most, rate)
    return plan_load(
        study.scenario,
        study.hardware,
        window,
        study.sizes,
        load,
        current=study.today,
        progress=part(at.progress, 0.0, 0.5),
        clock=study.traffic.clock,
    )


def _hpa(at: Making, given: words.Hpa) -> Ready:
    return _from_today(at, Hpa(**given.arguments, name=given.key))


def _reactive(at: Making, given: words.Reactive) -> Ready:
    return _from_today(at, UnifiedReactive(**_thresholds(given), name=given.key))


def _siloed(at: Making, given: words.Siloed) -> Ready:
    whole = at.study.fleet(at.study.pools(at.study.today))
    fleet, whence = siloed(whole, given.batch_share)
    policy = UnifiedReactive(**_thresholds(given), name=given.key)
    return Ready(_within(at.study, policy, whence), fleet, whence)


def _chiron(at: Making, given: words.Chiron) -> Ready:
    """Its start scaled down, where need be, to the GPUs that there are."""
    study = at.study
    whole = study.fleet(study.pools(study.today))
    asked = np.array([given.interactive, given.mixed, given.batch]) * given.scale
    for share in np.linspace(1.0, 0.0, 101):
        start = np.maximum(np.round(asked * share), [1, 0, 0]).astype(int).tolist()
        fleet, whence = chiron_fleet(whole, tuple(start))
        placed = sum(pool.initial for pool in fleet.pools)
        kinds = 3 if any(tier.deferrable for tier in fleet.tiers) else 2
        places = len({(pool.model, pool.region) for pool in fleet.pools if pool.maximum})
        if placed == places * sum(start[:kinds]) and _fits(study, fleet, whence):
            break
    lengths = [study.traffic.lengths[m] for m, _, _ in study.hardware.pool_index]
    means = [(float(isl.mean()), float(osl.mean())) for isl, osl in lengths]
    policy = Chiron(
        [means[p] for p in whence],
        theta=given.theta,
        grow=given.grow,
        shrink=given.shrink,
        tune_batch=given.tune_batch,
        interval_s=given.interval_s,
        name=given.key,
    )
    return Ready(_within(study, policy, whence), fleet, whence)


def _proportional(at: Making, given: words.Proportional) -> Ready:
    policy = _driver(at, given, given.name, given.target)
    return _from_today(at, policy)


def _feedback(at: Making, given: words.Feedback) -> Ready:
    signal = TTFT if given.name.startswith(TTFT) else TBT
    target = None if given.target_ms is None else given.target_ms / 1000
    return _from_today(at, _layer(at, given, signal, target, given.key))


def _heteroscale(at: Making, given: words.HeteroScale) -> Ready:
    limits = [tier for tier in at.study.hardware.tiers if not tier.deferrable]
    layers = tuple(
        _layer(at, given, signal, None, given.key)
        for signal, there in (
            (TTFT, any(tier.ttft_s is not None for tier in limits)),
            (TBT, any(tier.tbt_s is not None for tier in limits)),
        )
        if there
    )
    driver = _driver(at, given, given.signal, given.target)
    return _from_today(at, Combined(driver, layers, name=given.key))


def _kv_aware(at: Making, given: words.KvAware) -> Ready:
    own = ("target", "preemptions_per_min", "evicted_share", "hit_drop", "memory_s", "step")
    return _from_today(
        at,
        KvAware(
            **{name: getattr(given, name) for name in own},
            **_steady(at, given),
            name=given.key,
        ),
    )


def _own(at: Making, given: words.Own) -> Ready:
    made = own_policy(given.name)
    try:
        policy = made(**given.arguments)
    except (TypeError, ValueError) as problem:
        raise ScenarioError(
            f"policies: {given.key!r} does not take these parameters: {problem}."
        ) from None
    return _from_today(at, policy)


def _driver(
    at: Making,
    given: words.Proportional | words.HeteroScale,
    signal: SignalName,
    target: float | None,
) -> Proportional:
    shown = at.tests.at(given.ratio).of(signal) if target is None else target
    return Proportional(signal, shown, **_steady(at, given), name=given.key)


def _layer(
    at: Making,
    given: words.Feedback | words.HeteroScale,
    signal: Latency,
    target_s: float | None,
    key: str,
) -> Feedback:
    own = ("alpha_out", "beta_out", "gamma_in", "urgent", "moderate", "shrink")
    return Feedback(
        signal,
        target_s,
        **{name: getattr(given, name) for name in own},
        **_steady(at, given),
        name=key,
    )


def _steady(at: Making, given: Any) -> dict[str, Any]:
    names = ("theta_out", "theta_in", "cool_out_s", "cool_in_s", "damping", "soft_s")
    return {
        "stability": Stability(**{name: getattr(given, name) for name in names}),
        "ratio": _ratio(at, given),
        "interval_s": given.interval_s,
    }


def _ratio(at: Making, given: Any) -> Ratio:
    if given.ratio == OBSERVED:
        tested = at.tests.at(OBSERVED)
        return Ratio(
            OBSERVED,
            prefill_tps=tested.of("prefill-tps"),
            decode_tps=tested.of("decode-tps"),
            half_life_s=given.half_life_s,
        )
    return Ratio(FIXED, None if given.ratio == FIXED else given.ratio)


def _thresholds(given: Any) -> dict[str, Any]:
    return {
        "scale_out_above": given.scale_out_above,
        "scale_in_below": given.scale_in_below,
        "cooldown_s": given.cooldown_s,
        "interval_s": given.interval_s,
    }


def _from_today(at: Making, policy: ScalingPolicy) -> Ready:
    return _on(at, policy, at.study.pools(at.study.today))


def _on(at: Making, policy: ScalingPolicy, counts: IntArray) -> Ready:
    whence = range(len(counts))
    return Ready(_within(at.study, policy, whence), at.study.fleet(counts), whence)


def _within(study: Study, policy: ScalingPolicy, whence: Sequence[int]) -> WithinCapacity:
    return WithinCapacity(policy, _shared_gpus(study, whence))


def _shared_gpus(study: Study, whence: Sequence[int]) -> list[tuple[list[int], int]]:
    """Pools by region and GPU type, with the GPUs they share."""
    groups: dict[tuple[int, int], list[int]] = {}
    types = study.hardware.types
    for p, source in enumerate(whence):
        _, r, g = study.hardware.pool_index[source]
        groups.setdefault((r, int(types[g])), []).append(p)
    return [(pools, int(study.hardware.capacity_gpus[r, t])) for (r, t), pools in groups.items()]


def _fits(study: Study, fleet: Fleet, whence: Sequence[int]) -> bool:
    each = np.array([pool.initial * pool.gpus_per_instance for pool in fleet.pools])
    return all(int(each[pools].sum()) <= gpus for pools, gpus in _shared_gpus(study, whence))


BUILDERS: dict[type, Callable[[Making, Any], Ready]] = {
    words.FixedFleet: _fixed,
    words.Planned: _planned,
    words.Periodic: _periodic,
    words.Hpa: _hpa,
    words.Reactive: _reactive,
    words.Siloed: _siloed,
    words.LtU: _deferred,
    words.LtUa: _deferred,
    words.Chiron: _chiron,
    words.Proportional: _proportional,
    words.Feedback: _feedback,
    words.HeteroScale: _heteroscale,
    words.KvAware: _kv_aware,
    words.Own: _own,
}
