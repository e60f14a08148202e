"""A plan as the minimum, and a reactive guard that adds instances if load exceeds the plan.

KEDA does the same with the cron triggers of a schedule and a trigger by load: the largest wins
(keda.sh, "Scaling Deployments").
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from simulation.arrays import FloatArray, IntArray
from simulation.fleet import Fleet
from simulation.policies.hpa import SCALING_POLICY_PERIOD_S
from simulation.policies.parts import guard
from simulation.policies.parts.endpoints import allowed_late_share
from simulation.policies.parts.schedule import Schedule, hold_step
from simulation.policies.parts.service_controller import DECODE, PREFILL
from simulation.policy import Actions, ComputedParameter, Guard, Hold, Observation, ScalingPolicy

# Names of its targets in results
PROMPT_TPS = "above the plan: prompt tokens/s per replica"
OUTPUT_TPS = "above the plan: output tokens/s per replica"
IN_FLIGHT = "above the plan: requests in flight per replica"
PER_POOL_OR_REGION = {
    n: f"above the plan: share of that load, pools of {n}" for n in (1, 2, 4, 8, 16, 64)
}
OVERLOAD_SHARE = "above the plan: share of that load, late without a queue"
ALLOWED_LATE_SHARE = "above the plan: maximum share of late requests"
TTFT_LIMIT = "above the plan: TTFT limit (s)"
TPOT_LIMIT = "above the plan: TPOT limit (s)"
PerInstance = float | Sequence[float] | FloatArray  # one number for all pools, or one per pool


@dataclass(eq=False)
class GuardedPlan(ScalingPolicy):
    """Follow the ``schedule`` at once, and add instances to it in each pool.

    Four counts of instances can exceed the plan:

    - for the tokens served, at ``prefill_tps`` and ``decode_tps`` of one instance. It counts if the
      load exceeds the capacity of the planned instances by over ``tolerance``. That must be so in
      the pool, and in all reachable pools of that model and role together, since a plan uses spare
      capacity in other regions;
    - for the requests in flight, at ``in_flight`` of one instance. It counts if they pile up:
      PILED_UP times the requests that the ready instances hold. Served tokens alone cannot show
      that, since they never exceed what all instances can serve. Nothing more is added while these
      requests fall by more than ``tolerance``, or wait for starting instances and no longer grow.
      Nothing is removed before they are gone;
    - for the tokens served, at the observed capacity (``guard._late_load``). It counts if this
      capacity is below the planned one: requests were late, none piled up, and the requests in
      flight exceeded those that the instances hold by over ``tolerance``;
    - for late requests, if more were late in the last LATE_S than the tiers allow, and none piled
      up (``guard._instances_for_late``). So it corrects a profile that is too fast.

    ``prefill_tps``, ``decode_tps`` and ``in_flight`` are of an instance in a large pool. In a small
    pool each instance serves ``shares`` of them (``guard.capacity_table``), so that the guard acts
    exactly when the load exceeds the plan. Requests in flight are reduced by the same share
    (Little's law).

    A count applies if every decision of the last ``rise_s`` requires it. So nothing is added while
    the plan is right. Unexpected changes (longer outputs, a crowd, lost instances) are answered
    within minutes. Added instances stay until no decision of the last ``fall_s`` requires them.
    Growth is limited as in Kubernetes: in 15 s, at most ``scale_up_factor`` times the instances or
    ``scale_up_instances`` are added, whichever is more.
    """

    wants_signals = True

    schedule: Schedule
    prefill_tps: PerInstance
    decode_tps: PerInstance
    in_flight: PerInstance
    shares: FloatArray | None = None  # [pools, N] of ``guard.capacity_table``
    tolerance: float = 0.1
    rise_s: float = 60.0
    fall_s: float = 300.0
    scale_up_factor: float = 1.0
    scale_up_instances: int = 4
    interval_s: float = 15.0
    recorded: int = 0  # decisions of which ``seen`` keeps the observations
    name: str = "lt-g"

    def reset(self, fleet: Fleet) -> IntArray:
        """Start the schedule and the guard; return the scheduled counts, ``[pools]``.

        The arrays of the guard are shared with compiled code.
        """
        counts = self.schedule.reset(fleet)
        pools = len(counts)
        capacity = guard.capacity_table(pools, self.shares)
        # Decisions that count for adding instances, and for keeping them
        load_rows = self._decisions_within(self.rise_s)
        requested_rows = self._decisions_within(self.fall_s)
        # Limits on growth are per period, so they apply several times in a longer interval.
        periods = max(1.0, self.interval_s / SCALING_POLICY_PERIOD_S)
        growth = (1 + self.scale_up_factor) ** periods
        least_growth = self.scale_up_instances * periods
        loads_s = np.full(load_rows, guard.UNUSED_S)  # times of past decisions
        loads_s[-1] = 0.0
        self._guard = Guard(
            pools=self._rows_of_pools(fleet),
            capacity=capacity,
            loads=np.zeros((load_rows, len(guard.LOAD), pools)),
            loads_s=loads_s,
            memory=_first_memory(capacity, counts),
            requested=np.zeros((requested_rows, pools)),
            requested_s=np.full(requested_rows, guard.UNUSED_S),
            targets=counts.astype(np.float64),
            decided_s=np.full(1, np.nan),
            settings=np.array([self.tolerance, self.rise_s, self.fall_s, growth, least_growth]),
            seen=np.zeros((self.recorded, len(guard.OBSERVED), pools)),
            seen_count=np.zeros(1, np.int64),
        )
        self._limits_s = np.array([_limits_s(fleet, p) for p in range(pools)]).T
        return counts

    def _decisions_within(self, span_s: float) -> int:
        """Return the most decisions within ``span_s``, and one for rounding."""
        return int(span_s // self.interval_s) + 2

    def _rows_of_pools(self, fleet: Fleet) -> FloatArray:
        """Return the capacities, groups and allowed late shares of pools, ``[guard.POOLS, pools]``.

        Pools of one group share requests: those of one model and role that can reach each other.
        """
        roles = np.array([pool.role for pool in fleet.pools])
        # No load limits the prompts of decode pools, which compute none, or the output of prefill.
        prefill_tps = np.where(roles == DECODE, np.inf, self.prefill_tps)
        decode_tps = np.where(roles == PREFILL, np.inf, self.decode_tps)
        in_flight = np.full(len(roles), self.in_flight)
        models = [pool.model for pool in fleet.pools]
        groups = list(zip(models, roles, fleet.islands, strict=True))
        group_numbers = [groups.index(group) for group in groups]
        # Tokens/s of an instance in its role, to add up the loads of unlike pools
        group_weights = np.where(np.isinf(prefill_tps), decode_tps, prefill_tps)
        allowed = [allowed_late_share(fleet, [p]) for p in range(len(roles))]
        return np.array([prefill_tps, decode_tps, in_flight, group_numbers, group_weights, allowed])

    def decide(self, observation: Observation) -> Actions:
        """Return the targets of the guard: the scheduled counts without lent replicas, or more."""
        self.schedule.observe(observation)
        step = self.schedule.step_at(observation.time_s)
        lent = np.zeros_like(step.counts) if step.lent is None else step.lent
        # While a decision is held, the engine's compiled code has called the guard already.
        if self._guard.decided_s[0] != observation.time_s:
            seen = _guard_inputs(observation, step.counts - lent)
            guard.decide(observation.time_s, seen, self._guard)
        targets = self._guard.targets.astype(np.int64)
        if step.lent is None:
            return Actions(targets, shares=step.shares, release_tokens=step.release)
        # Instances removed there go to the spot pool, of which at most ``lent`` stay.
        return Actions(
            targets, lend=lent > 0, keep_lent=lent, shares=step.shares, release_tokens=step.release
        )

    def hold(self, time_s: float) -> Hold | None:
        return hold_step(self.schedule, time_s, self._guard)

    @property
    def recorded_observations(self) -> FloatArray:
        """Return what the guard observed at the first decisions, at most ``recorded`` of them.

        The shape is ``[decisions, guard.OBSERVED, pools]``.
        """
        return self._guard.seen[: int(self._guard.seen_count[0])]

    def never_acts(self, fleet: Fleet, seen: FloatArray) -> bool:
        """Return whether the guard would add nothing to a ``fleet`` with the observations ``seen``.

        They are the ``recorded_observations`` of a guard with the same interval, and a fleet that
        never changed.
        """
        copy = replace(self, recorded=0)  # several threads may call this at the same time
        planned = copy.reset(fleet).astype(np.float64)
        return bool(guard.never_acts(self.interval_s, planned, seen, copy._guard))

    def computed_parameters(self) -> tuple[ComputedParameter, ...]:
        """Return the capacity of an instance, the learned overload, and the limits of requests."""
        prefill_tps, decode_tps, in_flight = self._guard.pools[:3]
        ttft_s, tpot_s = self._limits_s
        overload = self._guard.memory[guard.OVERLOAD]
        # The load of an instance in pools of n, as shares of that in a large pool
        capacity = self._guard.capacity
        load_shares = [
            ComputedParameter(words, _load_of(capacity, np.full(len(capacity), n)) / n)
            for n, words in PER_POOL_OR_REGION.items()
        ]
        return (
            ComputedParameter(PROMPT_TPS, _nan_if_infinite(prefill_tps)),
            ComputedParameter(OUTPUT_TPS, _nan_if_infinite(decode_tps)),
            ComputedParameter(IN_FLIGHT, in_flight),
            ComputedParameter(OVERLOAD_SHARE, _nan_if_infinite(overload)),
            ComputedParameter(ALLOWED_LATE_SHARE, self._guard.pools[guard.ALLOWED]),
            ComputedParameter(TTFT_LIMIT, ttft_s),
            ComputedParameter(TPOT_LIMIT, tpot_s),
            *load_shares,
        )


def _first_memory(capacity: FloatArray, counts: IntArray) -> FloatArray:
    """Return ``Guard.memory`` as if the plan of ``counts [pools]`` was right until now."""
    memory = np.zeros((len(guard.MEMORY), len(counts)))
    memory[guard.PILED_S] = guard.UNUSED_S
    memory[guard.OVERLOAD] = np.inf
    memory[guard.READY] = counts
    memory[guard.SERVED] = _load_of(capacity, counts)
    return memory


def _nan_if_infinite(values: FloatArray) -> FloatArray:
    """Return ``values`` with NaN for those that are infinite, which results show as empty."""
    return np.where(np.isinf(values), np.nan, values)


def _load_of(capacity: FloatArray, counts: IntArray) -> FloatArray:
    """Return the load that ``counts [pools]`` instances serve, in loads of a large pool's instance.

    For ``capacity`` see ``Guard``. It does the same as the compiled ``guard.load_of``.
    """
    largest = capacity.shape[1] - 1  # each further instance serves a load of 1
    within = np.minimum(counts, largest)
    loads: FloatArray = capacity[np.arange(len(counts)), within] + (counts - within)
    return loads


def _limits_s(fleet: Fleet, p: int) -> tuple[float, float]:
    """Return the limits of TTFT and of TPOT of pool ``p`` in seconds.

    NaN if there is no limit, if the pool's role has no such latency, or if limits of tiers differ.
    """
    pool = fleet.pools[p]
    tiers = [tier for tier in fleet.tiers if not tier.deferrable and pool.takes(tier.name)]
    ttft_limits = {tier.ttft_s for tier in tiers if pool.role != DECODE}
    tpot_limits = {tier.tbt_s for tier in tiers if pool.role != PREFILL}
    return _only_limit(ttft_limits), _only_limit(tpot_limits)


def _only_limit(limits: set[float | None]) -> float:
    """Return the single limit in ``limits``; NaN if it is None, or if there are several or none."""
    limit = limits.pop() if len(limits) == 1 else None
    return np.nan if limit is None else limit


def _guard_inputs(observation: Observation, planned: IntArray) -> FloatArray:
    """Return the inputs of the guard's decision, ``[guard.OBSERVED, pools]``; NaN: not measured.

    ``planned [pools]`` are the scheduled counts.
    """
    rows = np.full((len(guard.OBSERVED), len(observation.ready)), np.nan)
    rows[:4] = planned, observation.ready, observation.starting, observation.waiting
    signals = observation.signals
    if signals is not None:
        # Few requests miss both limits, so the sum is hardly above the share of late requests.
        late = np.nan_to_num(signals.late_first) + np.nan_to_num(signals.late_done)
        rows[4:] = signals.prefill_tps, signals.decode_tps, signals.batch, late
    return rows
