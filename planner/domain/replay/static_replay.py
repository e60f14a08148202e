"""Replay a static fleet model by model, and keep the results.

Models share no replicas, so the result of one does not depend on the others.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from planner.domain.replay.initial_fleet import fleet_from_today
from planner.domain.study import Study
from simulation.arrays import BoolArray, IntArray, count_codes
from simulation.cells import per_cell, simulate_cell
from simulation.early_stop import LateCounter, TargetMissed, first_missed_tier
from simulation.fleet import Fleet
from simulation.policies.static import Static
from simulation.trace import Trace
from simulation.trace_replay import due_and_late, summarise_replay


@dataclass(frozen=True, slots=True, eq=False)
class ServedRequests:
    """Due and late requests of one model, by tier of the fleet, and the cost of its replicas.

    ``cut``: the replay ended early because too many requests were late. Then ``late`` counts
    those until then, and ``due`` counts all requests of the window.
    """

    due: IntArray
    late: IntArray
    cut: bool = False
    cost_usd: float = 0.0


# Results by study, model, seed and replica counts of each cell.
Known = dict[tuple[Study, int, int, bytes], ServedRequests]
Requests = dict[tuple[Study, int], Trace]  # by study and model


@dataclass(frozen=True, slots=True, eq=False)
class FlatWindow:
    """Requests of ``models`` in the window of ``study``, with attainment ``goals`` by tier."""

    study: Study
    models: Sequence[int]
    goals: Mapping[str, float]
    seed: int
    alive: Callable[[], None]
    known: Known
    requests: Requests = field(default_factory=dict)

    def meets(self, counts: IntArray) -> bool:
        """Return whether the fleet meets every goal.

        ``counts`` are those of the models' pools, in their order. Known results are counted first.
        A model is replayed only until a miss is certain.
        """
        tiers = [
            replace(tier, attainment=self.goals[tier.name]) for tier in self.study.hardware.tiers
        ]
        count = {m: self._count(m) for m in self.models}
        every = np.sum(list(count.values()), axis=0)
        served = {m: its for m in self.models if (its := self.known.get(self.key(m, counts)))}
        for m in self.models:
            if first_missed_tier(tiers, _late_by_tier(served, every), every) is not None:
                return False
            if m not in served or served[m].cut:
                others = {other: its for other, its in served.items() if other != m}
                length_s, late = self.study.window.duration_s, _late_by_tier(others, every)
                watch = LateCounter(tiers, length_s, late, every - count[m])
                served[m] = self.known[self.key(m, counts)] = self._count_served(m, counts, watch)
        due = np.sum([its.due for its in served.values()], axis=0)
        late = _late_by_tier(served, every)
        return not any(its.cut for its in served.values()) and all(
            of == 0 or (of - its_late) / of >= tier.attainment
            for tier, of, its_late in zip(tiers, due.tolist(), late.tolist(), strict=True)
        )

    def _count_served(self, m: int, counts: IntArray, watch: LateCounter) -> ServedRequests:
        study, its = self.study, self._pool_mask(m)
        if not len(self._trace(m)):
            return ServedRequests(self._count(m), self._count(m))
        self.alive()
        every = self._counts_of_all_pools(counts)
        fleet = fleet_from_today(
            study, study.fleet(every), range(len(every)), Static(every), lend=False
        )
        try:
            result = simulate_cell(
                self._trace(m),
                of_models(fleet, study, [m]),
                Static(every[its]),
                cells=study.cells,
                seed=self.seed,
                duration_s=study.window.duration_s,
                watch=watch,
                carried=self._requests_in_flight(m),
            )
        except TargetMissed:
            return ServedRequests(self._count(m), watch.late.copy(), cut=True)
        cost_usd = summarise_replay(result, brief=True).cost_usd
        return ServedRequests(*due_and_late(result), cost_usd=cost_usd)

    def key(self, m: int, counts: IntArray) -> tuple[Study, int, int, bytes]:
        """Return the key of model ``m`` on a fleet of ``counts`` in ``known``."""
        of_cell = per_cell(self._counts_of_all_pools(counts)[self._pool_mask(m)], self.study.cells)
        return self.study, m, self.seed, of_cell.tobytes()

    def _pool_mask(self, m: int) -> BoolArray:
        return pools_of(self.study, [m])

    def _counts_of_all_pools(self, counts: IntArray) -> IntArray:
        every = np.zeros(len(self.study.hardware.pool_index), np.int64)
        every[pools_of(self.study, self.models)] = counts
        return every

    def _trace(self, m: int) -> Trace:
        if (self.study, m) not in self.requests:
            trace = self.study.trace
            self.requests[self.study, m] = trace.rows(trace.model == m)
        return self.requests[self.study, m]

    def _requests_in_flight(self, m: int) -> Trace | None:
        carried = self.study.carried
        return None if carried is None else carried.rows(carried.model == m)

    def _count(self, m: int) -> IntArray:
        """Return the number of the model's requests, by tier of the fleet."""
        trace = self._trace(m)
        counts = count_codes(trace.tier, len(trace.tiers)).tolist()
        of_name = dict(zip(trace.tiers, counts, strict=True))
        return np.array([of_name.get(tier.name, 0) for tier in self.study.hardware.tiers], np.int64)


def served_by(study: Study, counts: IntArray, seed: int, known: Known) -> ServedRequests | None:
    """Return what a static fleet of ``counts [pools]`` served, from ``known`` or by a replay.

    Requests of all models are counted together. None: a replay of a model ended early.
    """
    models = range(len(study.hardware.models))
    goals = {tier.name: tier.attainment for tier in study.hardware.tiers}
    window = FlatWindow(study, models, goals, seed, lambda: None, known)
    window.meets(counts)
    every = [known.get(window.key(m, counts)) for m in models]
    if any(its is None for its in every):
        return None
    served = [its for its in every if its is not None]
    return ServedRequests(
        np.sum([its.due for its in served], axis=0),
        np.sum([its.late for its in served], axis=0),
        any(its.cut for its in served),
        sum(its.cost_usd for its in served),
    )


def _late_by_tier(served: Mapping[int, ServedRequests], every: IntArray) -> IntArray:
    """Return the late requests known so far, by tier."""
    late = np.zeros_like(every)
    for its in served.values():
        late += its.late
    return late


def pools_of(study: Study, models: Collection[int]) -> BoolArray:
    return np.array([place[0] in models for place in study.hardware.pool_index])


def of_models(fleet: Fleet, study: Study, models: Collection[int]) -> Fleet:
    """Return the fleet with only the pools of ``models``."""
    of = pools_of(study, models)
    return Fleet(
        tiers=fleet.tiers,
        regions=fleet.regions,
        pools=tuple(pool for pool, its in zip(fleet.pools, of, strict=True) if its),
        latency_s=fleet.latency_s,
        routing=fleet.routing,
    )
