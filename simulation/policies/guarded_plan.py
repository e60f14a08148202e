"""A plan as the minimum, and a reactive guard above it.

KEDA does the same with the cron triggers of a schedule and a trigger by load: the largest wins
(keda.sh, "Scaling Deployments").
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np

from simulation.arrays import BoolArray, FloatArray, IntArray
from simulation.errors import SimulationError
from simulation.fleet import Fleet
from simulation.policies.hpa import SCALING_POLICY_PERIOD_S
from simulation.policies.parts.overload import InstanceLoad, OverloadMemory, allowed_late_share
from simulation.policies.parts.pool_metrics import per_instance
from simulation.policies.parts.pooled_capacity import PooledCapacity
from simulation.policies.parts.schedule import Schedule
from simulation.policies.parts.service_controller import DECODE, PREFILL
from simulation.policies.parts.stability import ROUNDING
from simulation.policies.proportional import PILED_UP
from simulation.policy import Actions, ComputedParameter, Observation, ScalingPolicy

# Names of its targets in results
PROMPT = "above the plan: prompt tokens a second an instance"
OUTPUT = "above the plan: output tokens a second an instance"
IN_FLIGHT = "above the plan: requests in flight an instance"
PER_POOL_OR_REGION = {
    n: f"above the plan: of that, what each of {n} does" for n in (1, 2, 4, 8, 16, 64)
}
OVERLOAD = "above the plan: of that, what came late without a pile"
Each = float | Sequence[float] | FloatArray  # per instance: one number, or one per pool


@dataclass(frozen=True, slots=True, eq=False)
class _Decision:
    time_s: float
    served: FloatArray  # [pools] served load, in instances of a large pool
    flight: FloatArray  # [pools] requests running or waiting
    holds: FloatArray  # [pools] requests that fit the ready instances within the limits
    strain: InstanceLoad


@dataclass(eq=False)
class Guarded(ScalingPolicy):
    """Follow the ``schedule`` at once, and add to it in each pool.

    Three counts can exceed the plan:

    - the instances for the tokens served, at ``prefill_tps`` and ``decode_tps`` of one. They count
      if the load exceeds the capacity of the planned instances by over ``tolerance``, in the pool
      and in all reachable pools of that model and role together, since a plan counts on spare
      capacity in other regions;
    - the instances for the requests in flight, at ``in_flight`` of one. They count if that is
      PILED_UP times what the ready instances hold, since served tokens cannot exceed what all
      instances can do. Nothing more is added while the pile falls by more than ``tolerance``, or
      waits for starting instances and no longer grows. Nothing is removed before it is gone;
    - the instances for the tokens served at the observed capacity (``OverloadMemory``), if that is
      below the planned one: requests were late, none piled up, and more were in flight than the
      instances hold by over ``tolerance``.

    Capacities are those of a large pool; in a small one each instance does ``shares`` of it
    (``PooledCapacity``), so that the guard acts exactly when the load exceeds the plan. Requests in
    flight follow by Little's law: less load, fewer requests.

    Each count must hold for every decision of the last ``rise_s``. So nothing is added while the
    plan is right, and what it did not expect (longer outputs, a crowd, lost instances) is answered
    within minutes. Added instances stay until no decision of the last ``fall_s`` needs them. Growth
    is limited as in Kubernetes: at most ``scale_up_factor`` times the instances, or
    ``scale_up_instances``, in 15 s.
    """

    wants_signals = True

    schedule: Schedule
    prefill_tps: Each
    decode_tps: Each
    in_flight: Each
    shares: FloatArray | None = None  # [pools, N] as of Staffing; None: each does the same
    tolerance: float = 0.1
    rise_s: float = 60.0
    fall_s: float = 300.0
    scale_up_factor: float = 1.0
    scale_up_instances: int = 4
    interval_s: float = 15.0
    name: str = "lt-g"

    def reset(self, fleet: Fleet) -> IntArray:
        counts = self.schedule.reset(fleet)
        roles = [pool.role for pool in fleet.pools]
        idle = np.array([[role == other for role in roles] for other in (DECODE, PREFILL)])
        each = [
            self._each(most_tps, len(counts)) for most_tps in (self.prefill_tps, self.decode_tps)
        ]
        self._tps = np.where(idle, np.inf, each)  # [2, pools] prompt and output tokens/s
        self._holds = self._each(self.in_flight, len(counts))
        self._staffing = PooledCapacity(len(counts), self.shares)
        self._kv = np.array([pool.profile.kv_capacity_tokens for pool in fleet.pools], np.float64)
        islands = fleet.islands.tolist()
        kinds = [
            (pool.model, pool.role, island)
            for pool, island in zip(fleet.pools, islands, strict=True)
        ]
        self._kind = np.array([kinds.index(kind) for kind in kinds])
        self._worth = np.where(np.isinf(self._tps[0]), self._tps[1], self._tps[0])
        self._allowed = np.array([allowed_late_share(fleet, pool) for pool in fleet.pools])
        self._learned = OverloadMemory(len(counts), self.tolerance)
        none = np.zeros(len(counts))
        self._looks = deque([_Decision(0.0, none, none, none, InstanceLoad(none, none, none > 0))])
        self._piled_s = np.full(len(counts), -np.inf)  # time of each pool's last pile
        self._asked: deque[tuple[float, IntArray]] = deque()
        return counts

    def decide(self, observation: Observation) -> Actions:
        self.schedule.observe(observation)
        step = self.schedule.step_at(observation.time_s)
        lent = np.zeros_like(step.counts) if step.lent is None else step.lent
        planned = step.counts - lent
        targets = np.maximum(planned, self._instances_above_plan(observation, planned))
        if step.lent is None:
            return Actions(targets, shares=step.shares)
        return Actions(targets, lend=lent > 0, keep_lent=lent, shares=step.shares)

    def computed_parameters(self) -> tuple[ComputedParameter, ...]:
        prefill, decode = (np.where(np.isinf(tps), np.nan, tps) for tps in self._tps)
        learned = self._learned.too_much
        return (
            ComputedParameter(PROMPT, prefill),
            ComputedParameter(OUTPUT, decode),
            ComputedParameter(IN_FLIGHT, self._holds),
            ComputedParameter(OVERLOAD, np.where(np.isinf(learned), np.nan, learned)),
            *(
                ComputedParameter(words, self._staffing.share(n))
                for n, words in PER_POOL_OR_REGION.items()
            ),
        )

    def _each(self, value: Each, pools: int) -> FloatArray:
        each = np.asarray(value, np.float64)
        if each.ndim > 1 or not np.all(each > 0) or (each.ndim and len(each) != pools):
            raise SimulationError(
                f"Policy {self.name!r}: give what an instance shows as one number above 0, or as "
                f"one for each of the {pools} pools."
            )
        return np.broadcast_to(each, pools)

    def _instances_above_plan(self, observation: Observation, planned: IntArray) -> IntArray:
        """Return the instances that the guard needs, ``[pools]``; 0 where the plan suffices."""
        decision = self._look(observation)
        serving = _minimum_per_pool([decision.served for decision in self._looks])
        room = self._staffing.carried(planned) * (1 + self.tolerance) + ROUNDING
        more = (serving > room) & (self._reachable_loads(serving) > self._reachable_loads(room))
        guarded = np.where(more, self._staffing.fewest(serving), 0.0) if more.any() else 0.0
        piled = self._has_long_queue(observation, decision)
        self._learn(observation, piled > 0)
        if self._learned.anything:
            learned = self._staffing.fewest(self._learned.needed(serving))
            guarded = np.maximum(guarded, np.where(learned > planned, learned, 0.0))
        guarded = np.maximum(guarded, piled)
        present = observation.ready + observation.starting
        windows = max(1.0, self.interval_s / SCALING_POLICY_PERIOD_S)
        by_factor = present * (1 + self.scale_up_factor) ** windows
        limit = np.maximum(by_factor, present + self.scale_up_instances * windows)
        self._asked.append((decision.time_s, np.minimum(guarded, limit).astype(np.int64)))
        while self._asked[0][0] < decision.time_s - self.fall_s:
            self._asked.popleft()
        return np.asarray(reduce(np.maximum, (counts for _, counts in self._asked)))

    def _reachable_loads(self, loads: FloatArray) -> FloatArray:
        """Return the tokens/s of all reachable pools of a pool's model and role, ``[pools]``."""
        return np.asarray(np.bincount(self._kind, loads * self._worth)[self._kind])

    def _look(self, observation: Observation) -> _Decision:
        """Return the load at this decision; ``_looks`` are those of the last ``rise_s``."""
        now, ready, signals = observation.time_s, observation.ready, observation.signals
        served = np.zeros(len(ready))
        if signals is not None:
            tps = _nan_to_zero([signals.prefill_tps, signals.decode_tps])
            served = (tps / self._tps).max(axis=0)
        each = _nan_to_zero(per_instance("concurrency", observation, self._kv))
        flight = np.where(ready > 0, each * ready, observation.waiting)
        late = np.zeros(len(ready), np.bool_)
        if signals is not None:  # NaN, without requests, is not late
            late = (signals.late_first > self._allowed) | (signals.late_done > self._allowed)
        carried = self._staffing.carried(np.maximum(ready, 1))
        holds = self._holds * carried
        look = _Decision(
            now, served, flight, holds, InstanceLoad(served / carried, flight / holds, late)
        )
        self._looks.append(look)
        while self._looks[0].time_s <= now - self.rise_s < now:
            self._looks.popleft()
        return look

    def _learn(self, observation: Observation, piled: BoolArray) -> None:
        self._piled_s[piled] = observation.time_s
        calm = observation.time_s - self._piled_s > self.fall_s
        self._learned.observe(
            [look.strain for look in self._looks], calm & (observation.starting == 0)
        )

    def _has_long_queue(self, observation: Observation, look: _Decision) -> IntArray:
        """Return the instances that hold the piled-up requests, or 0 without a pile."""
        piled: BoolArray = (
            _minimum_per_pool([look.flight for look in self._looks]) > PILED_UP * look.holds
        )
        if not piled.any():
            return np.zeros(len(piled), np.int64)
        before, waits = self._looks[0].flight, observation.starting > 0
        lasts = look.flight > (1 + np.where(waits, self.tolerance, -self.tolerance)) * before
        holding = self._staffing.fewest(look.flight / self._holds)
        present = observation.ready + observation.starting
        out = np.where(piled, np.where(lasts, np.maximum(holding, present), present), 0)
        return out.astype(np.int64)


def _minimum_per_pool(seen: Sequence[FloatArray]) -> FloatArray:
    """Return the minimum of each pool. Comparing a few numbers is faster than stacking arrays."""
    return np.asarray(reduce(np.minimum, seen))


def _nan_to_zero(seen: FloatArray | Sequence[FloatArray]) -> FloatArray:
    """Replace NaN, where nothing was measured, by 0."""
    seen = np.asarray(seen)
    return np.where(np.isnan(seen), 0.0, seen)
