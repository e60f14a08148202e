"""Define the values that the steps of a run share: the study, and the replay of a policy.

Axes of replica counts: ``l`` models, ``r`` regions, ``g`` GPU columns (GPU type, number of GPUs and
role, owned or spot). A pool is one combination of the three.
"""

from dataclasses import dataclass

import numpy as np
import polars as pl

from planner.domain.module_figures import ModuleRun
from planner.domain.planning.inputs import PlanInput
from planner.domain.planning.planning import StaticBefore
from planner.domain.sizing.sizing import Sizes
from planner.domain.traffic.forecast_percentile import Quantiles
from planner.domain.traffic.traffic import Traffic
from planner.domain.traffic.window import Window
from planner.inputs.scenario.build import Hardware
from planner.inputs.scenario.settings import Settings
from planner.inputs.scenario.topology import Network
from planner.optimizer.problem import ScalingPlan
from planner.policies.base import Traits
from planner.policies.registry import traits_of
from simulation.arrays import FloatArray, IntArray
from simulation.fleet import Fleet
from simulation.metrics import Summary
from simulation.policies.wrappers.signal_range import SignalRange
from simulation.results import PoolSeries
from simulation.trace import Trace


@dataclass(frozen=True, slots=True, eq=False)
class Study:
    """The inputs that all policies of a scenario share in one window.

    A large fleet is simulated as one of ``cells`` equal parts of it.
    """

    settings: Settings
    hardware: Hardware
    traffic: Traffic
    window: Window
    sizes: Sizes
    trace: Trace  # the requests of the window, of one cell
    peak: IntArray  # [l, r, g] smallest static fleet for the peak
    misfit: str  # why that fleet does not cover the peak; "" if it does
    before: StaticBefore  # static fleet for the time before the window
    network: Network | None = None  # network in which replicas are placed
    cells: int = 1
    quantiles: Quantiles | None = None  # shared with backtest windows; None: chosen per window
    carried: Trace | None = None  # requests in flight as the window begins, of one cell

    @property
    def today(self) -> IntArray:
        """Return the fleet at the start of the window, ``[l, r, g]``.

        If the scenario does not state it, it is the static fleet for the time before.
        """
        return self.before.counts if self.hardware.today is None else self.hardware.today

    @property
    def plan_input(self) -> PlanInput:
        """Return the inputs of a plan that starts from today's fleet."""
        return PlanInput(
            settings=self.settings.plan,
            hardware=self.hardware,
            traffic=self.traffic,
            window=self.window,
            sizes=self.sizes,
            current=self.today,
            quantiles=self.quantiles,
        )

    @property
    def replica_usd(self) -> FloatArray:
        """Return the mean price of a replica in the window, in USD per hour, ``[pools]``."""
        usd = self.hardware.gpu_usd(self.window.start_s, self.window.duration_s)
        profiles = self.hardware.profiles
        return np.array(
            [profiles[m, g].tp * usd[r, g] for m, r, g in self.hardware.model_region_gpu]
        )

    def counts_by_pool(self, counts: IntArray) -> IntArray:
        """Return ``counts [..., model, region, GPU column]`` by pool, ``[..., pools]``."""
        m, r, g = np.array(self.hardware.model_region_gpu).T  # of each pool
        return np.asarray(counts[..., m, r, g])

    def fleet(self, counts: IntArray) -> Fleet:
        """Return the simulator's fleet that starts with the replicas ``counts [pools]``."""
        initial = np.zeros(self.hardware.minimum.shape, np.int64)
        for pool_index, count in zip(self.hardware.model_region_gpu, counts, strict=True):
            initial[pool_index] = count
        return self.hardware.fleet(initial)


@dataclass(frozen=True, slots=True, eq=False)
class Detail:
    """The tables of a policy's replay.

    ``minutes`` has the replicas, with a row per interval and pool. ``groups`` has the results, with
    a row per tier, model and home region, and for all of each together. ``requests`` has a row per
    request; None: not kept.
    """

    minutes: pl.DataFrame
    groups: pl.DataFrame
    requests: pl.DataFrame | None
    capacity: pl.DataFrame | None = None  # joint capacity of each model's replicas in a region


NO_DETAIL = Detail(pl.DataFrame(), pl.DataFrame(), None)  # of replays that only need figures


@dataclass(frozen=True, slots=True)
class Setting:
    """One parameter of a policy in a replay, from the scenario or computed.

    ``where`` is the pool or service that it is for; "": all.
    """

    what: str
    where: str
    value: float | str | bool


@dataclass(frozen=True, slots=True)
class Survival:
    """The SLO attainment of interactive tiers after the loss of replicas; None: no requests.

    ``share`` is the attainment of the tier with the smallest margin above its target, and
    ``shortfall`` is how far that tier is below its target. If an interactive tier misses its target
    even without a loss, ``share`` is None and ``shortfall`` is that without a loss.
    """

    attainment: dict[str, float | None]
    share: float | None
    shortfall: float


@dataclass(frozen=True, slots=True, eq=False)
class PolicyRun:
    """The replay of one policy: its figures, its tables and its plan."""

    name: str  # with its label, if it has one
    label: str
    summary: Summary
    fleet: Fleet
    series: PoolSeries
    plan: ScalingPlan | None  # only of policies that plan
    detail: Detail
    asked: bool = True  # False: a baseline that every comparison includes
    flat_usd: float | None = None  # cost of the smallest static fleet with the same attainment
    signal_range: SignalRange | None = None  # range of the signal, if the policy uses only one
    settings: tuple[Setting, ...] = ()  # parameters to copy
    survival: Survival | None = None  # of the worst loss; None: not simulated, or no such requests
    worst_loss: int | None = None  # the loss that leaves the least capacity, see ``losses_of``
    # How far ``survives`` is below its target; 0 if the scenario requires no spare replicas.
    lacks_spare: float = 0.0
    modules: ModuleRun | None = None  # only of policies that move modules
    # Starts refused because no GPUs were free. Each counts once until it is granted or withdrawn.
    refused_starts: int = 0

    @property
    def traits(self) -> Traits:
        """Return the traits of the policy, such as whether it is static or has a plan."""
        return traits_of(self.name)

    @property
    def survives(self) -> float | None:
        """Return the SLO attainment after the worst loss, of the tier nearest to a miss.

        None if no loss was simulated, or without interactive requests.
        """
        return None if self.survival is None else self.survival.share

    @property
    def n_plus_1(self) -> bool | None:
        """Return whether every interactive tier meets its SLO after the worst loss.

        None if no loss was simulated, or without interactive requests.
        """
        return None if self.survival is None else not self.survival.shortfall

    @property
    def meets_slo(self) -> bool:
        """Return whether every tier meets its SLO."""
        return all(self.summary.slo_met.values())
