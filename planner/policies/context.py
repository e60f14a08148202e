"""Define what a study offers to a policy, and what a policy returns."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from planner.errors import ScenarioError
from planner.optimizer.problem import ScalingPlan
from simulation.arrays import FloatArray, IntArray
from simulation.fleet import Fleet, Tier
from simulation.policies.feedback import TTFT, Latency
from simulation.policies.guarded_plan import GuardedPlan
from simulation.policies.modules import ModuleScaling
from simulation.policies.parts.pool_metrics import Metric
from simulation.policies.parts.schedule import Schedule
from simulation.policies.proportional import SIGNALS, SignalName
from simulation.policies.wrappers.capacity_limit import CapacityLimit, SharedLimit
from simulation.policy import ScalingPolicy
from simulation.trace_replay import Replayed


@dataclass(frozen=True, slots=True)
class Plan:
    """How the plan that a policy follows is made; None: as the scenario says."""

    method: str | None = None  # forecast method
    periods: str | None = None  # "one" period at a time, or "all" in one program
    load_factor: float = 1.0  # factor on the forecast


@dataclass(frozen=True, slots=True, eq=False)
class FollowedPlan:
    """A plan that a policy follows during a replay."""

    schedule: Schedule
    start: IntArray  # [pools] instances at the start
    plan: Callable[[], ScalingPlan]  # the plan; after the replay, as decided during it
    expected_tps: FloatArray  # [bins, pools] forecast interactive load of the model in the region
    bin_s: float


@dataclass(frozen=True, slots=True, eq=False)
class Pressure:
    """What autoscalers would read at one instance at its rated load, from a pressure test.

    A pressure test simulates pools at their rated capacity. NaN marks a pool that does not run, or
    that got no requests.
    """

    readings: dict[str, FloatArray]  # [pools] by field of ``Signals`` or by gauge
    ratio: FloatArray  # [pools] prefill per decode instance in the test; NaN: aggregated
    rate_tps: FloatArray  # [pools] input tokens/s of one instance in the test

    def signal_targets(self, signal: SignalName) -> FloatArray:
        """Return the target of each pool for a proportional ``signal``: its reading.

        A pool without a reading gets the mean of the other pools. Raises ScenarioError if no pool
        has a reading.
        """
        return self._targets(self.readings[SIGNALS[signal].reading], signal)

    def metric_targets(self, metric: Metric) -> FloatArray:
        """Return the target of each pool for the gauge of an autoscaler, as ``signal_targets``."""
        return self._targets(self.readings[metric], metric)

    @staticmethod
    def _targets(values: FloatArray, reading: str) -> FloatArray:
        """Return ``values [pools]`` with their mean for pools without one; see ``signal_targets``.

        ``reading`` names them in the error.
        """
        measured = values > 0
        if not measured.any():
            raise ScenarioError(
                f"policies: the pressure test read no {reading}. Give the policy a target."
            )
        return np.where(measured, values, values[measured].mean())


@dataclass(frozen=True, slots=True, eq=False)
class Modules:
    """Sizes and speeds of the modules (layers) of a pool's instances, for scaling by modules."""

    layers: int
    layer_bytes: float  # weights of one layer
    attention_share: float  # share of these weights
    kv_layer_token_bytes: float  # KV cache of a token in one layer
    hidden_bytes: float  # activations of a token between layers
    link_bytes_s: float  # bandwidth between two devices
    relative_speeds: FloatArray  # [pools] on each pool's GPUs; NaN: other region or unknown


@dataclass(frozen=True, slots=True, eq=False)
class BuiltPolicy:
    """A policy built for a study, with the fleet at the start of its replay."""

    policy: ScalingPolicy
    fleet: Fleet
    source_pools: Sequence[int]  # index of the study's pool that each pool of ``fleet`` came from
    plan: Callable[[], ScalingPlan] | None = None  # the plan that it follows; None: no plan
    work_done: float = 0.0  # share of the run's work that building took, for progress
    modules: ModuleScaling | None = None  # the policy, if it moves modules
    # Never runs fewer replicas than its plan or, without a plan, than at the start.
    keeps_floor: bool = False
    guard: GuardedPlan | None = None  # the only rule that adds to the plan or the first fleet
    replay: Replayed | None = None  # a replay in the study's window, if building made one


@dataclass(frozen=True, slots=True, eq=False)
class PolicyContext:
    """The study for which a policy is built: fleet, limits, and figures that it may need.

    Expensive values are callables, so that a policy pays only for those that it uses.
    """

    today: IntArray  # [pools] instances that run now
    peak: IntArray  # [pools] static fleet sized for the peak
    lengths: tuple[tuple[float, float], ...]  # [pools] mean input and output tokens of the model
    shared_limits: tuple[SharedLimit, ...]  # GPUs, or watts, that pools share
    model_weights: FloatArray  # [pools] weight of the model if GPUs are scarce
    tier_weights: Mapping[str, float]  # weight of each tier; default: 1
    # [pools] interactive tiers with traffic of the model: it has to meet their limits
    tiers: tuple[tuple[Tier, ...], ...]
    start_s: float  # of the window, epoch seconds
    period_s: float
    fleet: Callable[[IntArray], Fleet]  # the fleet that starts with the counts [pools]
    # [pools] minimum static fleet that meets every tier (oracle)
    smallest_oracle: Callable[[], IntArray]
    deployable_static: Callable[[], IntArray]  # [pools] the static fleet that may be deployed
    followed_plan: Callable[[Plan], FollowedPlan]
    # The plan for a factor times the demand at the same times of the last day.
    plan_of_day_before: Callable[[float], FollowedPlan]
    pressure: Callable[[str | float], Pressure]  # pressure test of an instance at a P/D ratio
    pressure_among_many: Callable[[], Pressure]  # the same in a large pool, at the best ratio
    capacity_tps: FloatArray  # [pools, N] capacity C(n) of 1 to N instances, input tokens/s
    modules: Callable[[], tuple[Modules | None, ...]]  # [pools]; None: layers are not known

    def tightest_s(self, latency: Latency) -> FloatArray:
        """Return the tightest limit on ``latency`` for each pool, ``[pools]``, in seconds.

        It is that of the model's tiers. If they have none, it is the tightest of any interactive
        tier. NaN: no tier has a limit.
        """
        limits = np.array([_tightest(tiers, latency) for tiers in self.tiers], np.float64)
        interactive = (tier for tier in self.fleet(self.today).tiers if not tier.deferrable)
        return np.where(np.isnan(limits), _tightest(interactive, latency), limits)

    def with_current_fleet(self, policy: ScalingPolicy) -> BuiltPolicy:
        """Return ``policy`` on the fleet that runs now."""
        return self.starting_from(policy, self.today)

    def starting_from(self, policy: ScalingPolicy, counts: IntArray) -> BuiltPolicy:
        """Return ``policy`` on a fleet that starts with ``counts [pools]``."""
        return self.limited_to_shared_gpus(policy, self.fleet(counts), range(len(counts)))

    def limited_to_shared_gpus(
        self, policy: ScalingPolicy, fleet: Fleet, source_pools: Sequence[int]
    ) -> BuiltPolicy:
        """Return ``policy`` on ``fleet``, limited to the GPUs and the power that its pools share.

        ``source_pools`` has the index of the study's pool that each pool of ``fleet`` came from.
        Where GPUs are scarce, a pool has the priority of its model's weight, times the largest
        weight of the tiers that it serves.
        """
        priorities = []
        for pool, source in zip(fleet.pools, source_pools, strict=True):
            names = [tier.name for tier in fleet.tiers if pool.takes(tier.name)]
            weights = (self.tier_weights.get(name, 1.0) for name in names)
            priorities.append(float(self.model_weights[source]) * max(weights, default=1.0))
        limits = self._limits_of(source_pools)
        limited = CapacityLimit(policy, limits, np.array(priorities))
        return BuiltPolicy(limited, fleet, source_pools)

    def fits_available_gpus(self, fleet: Fleet, source_pools: Sequence[int]) -> bool:
        """Return whether the initial instances of ``fleet`` fit the available GPUs and power."""
        initial_counts = np.array([pool.initial for pool in fleet.pools])
        gpus_each = np.array([pool.gpus_per_instance for pool in fleet.pools])
        for limit in self._limits_of(source_pools):
            pools = list(limit.pools)
            per_instance = gpus_each if limit.per_instance is None else limit.per_instance
            if pools and int(initial_counts[pools] @ per_instance[pools]) > limit.amount:
                return False
        return True

    def _limits_of(self, source_pools: Sequence[int]) -> list[SharedLimit]:
        """Return the limits on GPUs or power for pools that came from ``source_pools``."""
        source_of_pool, limits = np.array(source_pools, np.int64), list[SharedLimit]()
        for limit in self.shared_limits:
            pools = np.flatnonzero(np.isin(source_of_pool, limit.pools)).tolist()
            per_instance = (
                None if limit.per_instance is None else limit.per_instance[source_of_pool]
            )
            limits.append(SharedLimit(pools, limit.amount, per_instance))
        return limits


def _tightest(tiers: Iterable[Tier], latency: Latency) -> float:
    """Return the tightest limit of ``tiers`` on a latency in seconds; NaN without a limit."""
    limits = [tier.ttft_s if latency == TTFT else tier.tbt_s for tier in tiers]
    return min((limit for limit in limits if limit is not None), default=np.nan)
