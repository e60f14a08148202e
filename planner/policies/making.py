"""What a study has at hand for a policy, and what a policy makes of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from planner.errors import ScenarioError
from planner.optimizer.problem import ScalingPlan
from simulation.arrays import FloatArray, IntArray
from simulation.fleet import Fleet, Pool, Tier
from simulation.policies.feedback import TTFT, Latency
from simulation.policies.modules import ModuleScaling
from simulation.policies.parts.course import Course
from simulation.policies.parts.gauges import Metric
from simulation.policies.proportional import SIGNALS, SignalName
from simulation.policies.wrappers.capacity_limit import CapacityLimit
from simulation.policy import ScalingPolicy


@dataclass(frozen=True, slots=True)
class Plan:
    """A plan to follow: on which forecast, and of one period at a time or all together; None: as
    the scenario says. It is made for ``load_factor`` times what is forecast."""

    method: str | None = None
    periods: str | None = None
    load_factor: float = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Followed:
    """A plan to follow: its ``course``, which begins with ``start`` ``[pools]`` up, and after it
    was followed the ``plan`` that was carried out. ``expected_tps`` ``[bins, pools]``, bins of
    ``bin_s``, is the interactive load that was forecast, of the pool's model in its region."""

    course: Course
    start: IntArray
    plan: Callable[[], ScalingPlan]
    expected_tps: FloatArray
    bin_s: float


@dataclass(frozen=True, slots=True, eq=False)
class Pressure:
    """Readings of one instance at its rate, by field of ``Signals`` or gauge, shape ``[pools]``;
    NaN where a pool does not run or was not reached."""

    readings: dict[str, FloatArray]
    ratio: FloatArray  # [pools] prefill instances to one of decode in the test; NaN: not apart
    rate_tps: FloatArray  # [pools] input tokens/s of one instance in the test

    def of(self, signal: SignalName) -> FloatArray:
        """Targets per pool for one of the proportional signals, with the mean of the others where
        a pool has none; raises ScenarioError where nothing was read."""
        return self._targets(self.readings[SIGNALS[signal].reading], signal)

    def shown(self, metric: Metric) -> FloatArray:
        """The same for a gauge that autoscalers go by."""
        return self._targets(self.readings[metric], metric)

    @staticmethod
    def _targets(values: FloatArray, what: str) -> FloatArray:
        there = values > 0
        if not there.any():
            raise ScenarioError(
                f"policies: the pressure test read no {what}; give the policy a target."
            )
        return np.where(there, values, values[there].mean())


@dataclass(frozen=True, slots=True, eq=False)
class Modules:
    """What the instances of a pool consist of; ``paces`` ``[pools]`` how fast the model is on the
    GPUs of each pool, 1 on its own, NaN in another region or where nobody knows."""

    layers: int
    layer_bytes: float  # weights of one
    attention_share: float  # of them
    kv_layer_token_bytes: float  # KV cache of a token in one layer
    hidden_bytes: float  # of a token between layers
    link_bytes_s: float  # between two devices
    paces: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Ready:
    """A policy with the fleet it begins with; ``whence`` is the pool of the scenario's fleet that
    each of ``fleet`` came from, ``plan`` what it has followed once it ran, ``after`` the share of
    the work that is done. ``modules``: what moves modules, and says afterwards what it did."""

    policy: ScalingPolicy
    fleet: Fleet
    whence: Sequence[int]
    plan: Callable[[], ScalingPlan] | None = None
    after: float = 0.0
    modules: ModuleScaling | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Making:
    """The study that a policy is made on; what takes long is made when it is asked for."""

    today: IntArray  # [pools] what runs now
    peak: IntArray  # [pools] the flat fleet at peak
    lengths: tuple[tuple[float, float], ...]  # [pools] mean tokens of the model's requests, in, out
    gpus: tuple[tuple[tuple[int, ...], int], ...]  # pools that share GPUs, and how many
    worth: FloatArray  # [pools] of the model, where GPUs are short
    tier_worth: Mapping[str, float]  # by tier, 1 where it is left out
    # [pools] interactive tiers whose limits the model has to keep: those that it has traffic of
    tiers: tuple[tuple[Tier, ...], ...]
    start_s: float  # of the window, epoch seconds
    period_s: float
    fleet: Callable[[IntArray], Fleet]  # that begins with counts [pools]
    smallest: Callable[[], IntArray]  # [pools] the smallest flat fleet that meets every tier
    before: Callable[[], IntArray]  # [pools] the smallest that does on the days before
    planned: Callable[[Plan], Followed]
    # Planned for so many times what came at the same times of the last day.
    day_before: Callable[[float], Followed]
    pressure: Callable[[str | float], Pressure]  # what an instance shows, at a P/D ratio
    pressure_among_many: Callable[[], Pressure]  # the same in a large pool, at the best ratio
    carries_tps: FloatArray  # [pools, N] input tokens/s that 1 to N instances carry together, C(n)
    modules: Callable[[], tuple[Modules | None, ...]]  # [pools]; None: known by its memory alone

    def tightest_s(self, latency: Latency) -> FloatArray:
        """``[pools]`` the tightest limit on a latency of the model's tiers; of any interactive tier
        where its own have none, NaN where no tier has one."""
        limits = np.array([_tightest(tiers, latency) for tiers in self.tiers], np.float64)
        interactive = (tier for tier in self.fleet(self.today).tiers if not tier.deferrable)
        return np.where(np.isnan(limits), _tightest(interactive, latency), limits)

    def from_today(self, policy: ScalingPolicy) -> Ready:
        """On what runs now."""
        return self.on(policy, self.today)

    def on(self, policy: ScalingPolicy, counts: IntArray) -> Ready:
        return self.cut(policy, self.fleet(counts), range(len(counts)))

    def cut(self, policy: ScalingPolicy, fleet: Fleet, whence: Sequence[int]) -> Ready:
        """On pools cut out of the scenario's; it stays within the GPUs that they share."""
        worth = np.array(
            [self._worth(pool, p, fleet) for p, pool in zip(whence, fleet.pools, strict=True)]
        )
        return Ready(CapacityLimit(policy, self._shared(whence), worth), fleet, whence)

    def _worth(self, pool: Pool, p: int, fleet: Fleet) -> float:
        """Of the most worthy tier that a pool takes, cut out of pool ``p`` of the scenario's."""
        names = [tier.name for tier in fleet.tiers if pool.takes(tier.name)]
        tiers = (self.tier_worth.get(name, 1.0) for name in names)
        return float(self.worth[p]) * max(tiers, default=1.0)

    def fits(self, fleet: Fleet, whence: Sequence[int]) -> bool:
        """Whether the GPUs that there are hold what the fleet begins with."""
        each = np.array([pool.initial * pool.gpus_per_instance for pool in fleet.pools])
        return all(int(each[pools].sum()) <= gpus for pools, gpus in self._shared(whence))

    def _shared(self, whence: Sequence[int]) -> list[tuple[list[int], int]]:
        return [
            ([p for p, source in enumerate(whence) if source in pools], gpus)
            for pools, gpus in self.gpus
        ]


def _tightest(tiers: Iterable[Tier], latency: Latency) -> float:
    limits = [tier.ttft_s if latency == TTFT else tier.tbt_s for tier in tiers]
    return min((limit for limit in limits if limit is not None), default=np.nan)
