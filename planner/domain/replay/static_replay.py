"""Replay a static fleet model by model, and keep the results.

Models share no replicas, so the result of one does not depend on the others.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress

import numpy as np

from planner.domain.replay.initial_fleet import fleet_from_today
from planner.domain.study import Study
from simulation.arrays import BoolArray, FloatArray, IntArray, count_codes
from simulation.cells import per_cell, simulate_cell
from simulation.early_stop import LateCounter, TargetMissed, first_missed_tier
from simulation.fleet import Fleet, Tier
from simulation.policies.guarded_plan import GuardedPlan
from simulation.policies.parts.guard import OBSERVED
from simulation.policies.parts.schedule import FixedSchedule
from simulation.policies.static import Static
from simulation.trace import Trace
from simulation.trace_replay import due_and_late, summarise_replay

MAX_RECORDED_DECISIONS = 20_000  # decisions of a window whose observations are kept: 3.5 days


@dataclass(frozen=True, slots=True, eq=False)
class ServedRequests:
    """What a static fleet served of one model: requests due and late by tier, and its cost.

    ``due`` counts requests that were finished or late. If ``stopped_early``, too many requests were
    late. Then ``late`` counts those until that time, and ``due`` all requests of the window.
    ``guard_signals`` is what a reactive guard would observe, if recorded
    (``GuardedPlan.recorded_observations``).
    """

    due: IntArray
    late: IntArray
    stopped_early: bool = False
    cost_usd: float = 0.0
    guard_signals: FloatArray | None = None


# Results by study, model, seed, and replica counts of one cell (shard) of the fleet.
KnownResults = dict[tuple[Study, int, int, bytes], ServedRequests]
Requests = dict[tuple[Study, int], Trace]  # by study and model


@dataclass(frozen=True, slots=True, eq=False)
class FlatWindow:
    """A test of static fleets in one window: do they meet ``goals`` (attainment by tier)?

    Only requests of ``models`` (indices) count. ``before_replay`` may raise to cancel. ``known``
    and ``requests`` keep results and traces for other tests.
    """

    study: Study
    models: Sequence[int]
    goals: Mapping[str, float]
    seed: int
    before_replay: Callable[[], None]
    known: KnownResults
    requests: Requests = field(default_factory=dict)

    def meets(self, counts: IntArray) -> bool:
        """Return whether a static fleet meets the goal of every tier.

        ``counts`` has the replicas of each pool of the tested models. Known results are used
        first. A model is replayed only until a miss is certain.
        """
        study_tiers = self.study.hardware.tiers
        tiers = [replace(tier, attainment=self.goals[tier.name]) for tier in study_tiers]
        requests_by_model = {m: self._requests_by_tier(m) for m in self.models}
        all_requests = np.sum(list(requests_by_model.values()), axis=0)
        known_results = {m: self.known.get(self.key(m, counts)) for m in self.models}
        served = {m: result for m, result in known_results.items() if result is not None}
        for m in self.models:
            # The late requests known so far may already rule out a goal.
            late = _late_by_tier(served, all_requests)
            if first_missed_tier(tiers, late, all_requests) is not None:
                return False
            if m not in served or served[m].stopped_early:
                # The late requests of the other models limit those that this one may have.
                served.pop(m, None)
                late = _late_by_tier(served, all_requests)  # of the other models
                length_s = self.study.window.duration_s
                watch = LateCounter(tiers, length_s, late, all_requests - requests_by_model[m])
                served[m] = self._count_served(m, counts, watch)
                self.known[self.key(m, counts)] = served[m]
        return _meets_every_tier(tiers, list(served.values()))

    def _count_served(self, m: int, counts: IntArray, watch: LateCounter) -> ServedRequests:
        """Replay model ``m`` alone, and count its requests that are due and late.

        ``counts`` has the replicas of each pool of the tested models. ``watch`` ends the replay
        once a tier is sure to miss its goal.
        """
        study, carried = self.study, self.study.carried
        self.before_replay()
        all_counts = self._counts_of_all_pools(counts)
        policy = self._policy(all_counts[model_pool_mask(study, [m])])
        try:
            result = simulate_cell(
                self._trace(m),
                fleet_of_models(self._begun_fleet(all_counts), study, [m]),
                policy,
                cells=study.cells,
                seed=self.seed,
                duration_s=study.window.duration_s,
                watch=watch,
                brief=True,
                carried=None if carried is None else carried.rows(carried.model == m),
            )
        except TargetMissed:
            return ServedRequests(self._requests_by_tier(m), watch.late.copy(), stopped_early=True)
        cost_usd = summarise_replay(result, brief=True).cost_usd
        signals = policy.recorded_observations if isinstance(policy, GuardedPlan) else None
        return ServedRequests(*due_and_late(result), cost_usd=cost_usd, guard_signals=signals)

    def _begun_fleet(self, counts: IntArray) -> Fleet:
        """Return the static fleet ``counts [pools of the study]``, begun from today's fleet."""
        fleet = self.study.fleet(counts)
        # After a loss, a fleet may have fewer replicas than a pool's minimum.
        pools = (replace(pool, minimum=min(pool.minimum, pool.initial)) for pool in fleet.pools)
        fleet = replace(fleet, pools=tuple(pools))
        return fleet_from_today(self.study, fleet, range(len(counts)), Static(counts), lend=False)

    def _policy(self, counts: IntArray) -> Static | GuardedPlan:
        """Return a policy that keeps ``counts``, and records what a reactive guard would observe.

        Nothing is recorded in long windows, for a fleet divided into cells (shards), or with
        deferrable tiers, whose requests are released at scaling decisions.
        """
        study, every_s = self.study, GuardedPlan.interval_s
        decisions = int(np.ceil(study.window.duration_s / every_s))
        deferrable = any(tier.deferrable for tier in study.hardware.tiers)
        if study.cells > 1 or deferrable or decisions > MAX_RECORDED_DECISIONS:
            return Static(counts)
        schedule = FixedSchedule([0.0], counts[None])
        return GuardedPlan(schedule, np.inf, np.inf, np.inf, recorded=decisions, name="flat")

    def key(self, m: int, counts: IntArray) -> tuple[Study, int, int, bytes]:
        """Return the key in ``known`` for model ``m`` on a fleet of ``counts``."""
        of_model = model_pool_mask(self.study, [m])
        model_counts = self._counts_of_all_pools(counts)[of_model]
        return self.study, m, self.seed, per_cell(model_counts, self.study.cells).tobytes()

    def _counts_of_all_pools(self, counts: IntArray) -> IntArray:
        """Return ``counts`` of the tested models' pools, with 0 for all other pools."""
        all_counts = np.zeros(len(self.study.hardware.model_region_gpu), np.int64)
        all_counts[model_pool_mask(self.study, self.models)] = counts
        return all_counts

    def _trace(self, m: int) -> Trace:
        """Return the model's requests in the window, selected once per search."""
        if (self.study, m) not in self.requests:
            trace = self.study.trace
            is_only = len(trace.models) == 1
            self.requests[self.study, m] = trace if is_only else trace.rows(trace.model == m)
        return self.requests[self.study, m]

    def _requests_by_tier(self, m: int) -> IntArray:
        """Return the number of the model's requests in the window, by tier of the fleet."""
        trace = self._trace(m)
        counts = count_codes(trace.tier, len(trace.tiers)).tolist()
        count_of_name = dict(zip(trace.tiers, counts, strict=True))
        tiers = self.study.hardware.tiers
        return np.array([count_of_name.get(tier.name, 0) for tier in tiers], np.int64)


def served_by(
    study: Study, counts: IntArray, seed: int, known: KnownResults, goals: Mapping[str, float]
) -> ServedRequests | None:
    """Return what a static fleet of ``counts [pools]`` served, summed over all models.

    Models without a result in ``known`` are replayed. ``goals`` are the attainment targets by tier.
    Return None if the replay of a model was skipped, because the other models missed a tier
    already.
    """
    models = range(len(study.hardware.models))
    window = FlatWindow(study, models, goals, seed, before_replay=lambda: None, known=known)
    window.meets(counts)  # fills ``known``
    results = [known.get(window.key(m, counts)) for m in models]
    served = [result for result in results if result is not None]
    if len(served) < len(results):
        return None
    return ServedRequests(
        np.sum([result.due for result in served], axis=0),
        np.sum([result.late for result in served], axis=0),
        any(result.stopped_early for result in served),
        sum(result.cost_usd for result in served),
    )


def recorded_signals(
    study: Study, counts: IntArray, seed: int, known: KnownResults
) -> FloatArray | None:
    """Return what a reactive guard would observe on a static fleet of ``counts [pools]``.

    The shape is ``[decisions, guard.OBSERVED, pools]``, see ``GuardedPlan.recorded_observations``.
    Nothing is replayed: None unless earlier replays in ``known`` recorded it for every model.
    """
    models = range(len(study.hardware.models))
    window = FlatWindow(study, models, {}, seed, before_replay=lambda: None, known=known)
    signals = []
    for m in models:
        served = known.get(window.key(m, counts))
        if served is None or served.guard_signals is None:
            return None
        signals.append(served.guard_signals)
    joined = np.empty((len(signals[0]), len(OBSERVED), len(counts)))
    for m, model_signals in zip(models, signals, strict=True):
        joined[..., model_pool_mask(study, [m])] = model_signals
    return joined


def _late_by_tier(served: Mapping[int, ServedRequests], total: IntArray) -> IntArray:
    """Return the late requests by tier, summed over the models in ``served``.

    ``total [tiers]`` only gives the number of tiers.
    """
    late = np.zeros_like(total)
    for served_requests in served.values():
        late += served_requests.late
    return late


def _meets_every_tier(tiers: Sequence[Tier], served: Sequence[ServedRequests]) -> bool:
    """Return whether requests of several models together meet the target of each of ``tiers``."""
    if any(result.stopped_early for result in served):
        return False
    due = np.sum([result.due for result in served], axis=0)
    late = np.sum([result.late for result in served], axis=0)
    targets = np.array([tier.attainment for tier in tiers])
    attained = (due - late) / np.maximum(due, 1)
    return bool(((due == 0) | (attained >= targets)).all())


def model_pool_mask(study: Study, models: Collection[int]) -> BoolArray:
    """Return a mask of the pools of ``models`` (indices), ``[pools]``."""
    return np.array([m in models for m, _, _ in study.hardware.model_region_gpu])


def fleet_of_models(fleet: Fleet, study: Study, models: Collection[int]) -> Fleet:
    """Return the fleet with only the pools of ``models``."""
    of_models = model_pool_mask(study, models)
    return Fleet(
        tiers=fleet.tiers,
        regions=fleet.regions,
        pools=tuple(compress(fleet.pools, of_models)),
        latency_s=fleet.latency_s,
        routing=fleet.routing,
    )
