"""What the steps of a study hand to each other: the study itself, and a policy's outcome on it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from planner.optimizer.problem import ScalingPlan
from planner.policies.base import Traits
from planner.policies.registry import traits_of
from planner.scenario.build import Hardware
from planner.scenario.settings import Settings
from planner.scenario.topology import Network
from planner.studies.modules import ModuleRun
from planner.studies.planning.inputs import PlanInput
from planner.studies.planning.planning import Before
from planner.studies.sizing.sizing import Sizes
from planner.studies.traffic.quantile import Quantiles
from planner.studies.traffic.traffic import Traffic
from planner.studies.traffic.window import Window
from simulation.arrays import IntArray
from simulation.fleet import Fleet
from simulation.metrics import Summary
from simulation.policies.wrappers.signal_range import SignalRange
from simulation.results import PoolSeries
from simulation.trace import Trace


@dataclass(frozen=True, slots=True, eq=False)
class Study:
    """What all policies of one scenario share."""

    settings: Settings
    hardware: Hardware
    traffic: Traffic
    window: Window
    sizes: Sizes
    trace: Trace  # the requests of the window
    peak: IntArray  # [l, r, g] the flat fleet at peak
    misfit: str  # why that does not cover the peak, "" where it does
    before: Before  # the flat fleet of the time before the window
    network: Network | None = None  # in which instances are placed as they come and go
    cells: int = 1  # equal ones that the fleet is cut into, of which ``trace`` is of one
    quantiles: Quantiles | None = None  # planned for, on earlier windows too; None: each its own

    @property
    def today(self) -> IntArray:
        """What runs as the window begins; where the scenario does not say, the flat fleet that the
        time before it would have bought."""
        return self.before.counts if self.hardware.today is None else self.hardware.today

    @property
    def plan_input(self) -> PlanInput:
        """What its plans are made from, from today's fleet on."""
        return PlanInput(
            self.settings.plan,
            self.hardware,
            self.traffic,
            self.window,
            self.sizes,
            self.today,
            quantiles=self.quantiles,
        )

    def pools(self, counts: IntArray) -> IntArray:
        """``[..., l, r, g]`` to ``[..., pools]``."""
        index = tuple(np.array(self.hardware.pool_index).T)
        return np.asarray(counts[(..., *index)])

    def fleet(self, counts: IntArray) -> Fleet:
        """The fleet that begins with ``counts`` ``[pools]``."""
        initial = np.zeros(self.hardware.minimum.shape, np.int64)
        for place, count in zip(self.hardware.pool_index, counts, strict=True):
            initial[place] = count
        return self.hardware.fleet(initial)


@dataclass(frozen=True, slots=True, eq=False)
class Detail:
    """``minutes`` has a row per interval and pool, ``groups`` one per tier, model and home region
    with each of them also together, ``requests`` one per request, None where not asked for."""

    minutes: pl.DataFrame
    groups: pl.DataFrame
    requests: pl.DataFrame | None
    capacity: pl.DataFrame | None = None  # what each model's instances in a region carry together


NO_DETAIL = Detail(pl.DataFrame(), pl.DataFrame(), None)  # of what is replayed only for its figures


@dataclass(frozen=True, slots=True)
class Setting:
    """One parameter that a policy ran with: as its scenario has it, or as it was found on the
    study; ``where`` is the pool or service that it is of, "" of all."""

    what: str
    where: str
    value: float | str | bool


@dataclass(frozen=True, slots=True, eq=False)
class PolicyRun:
    """One policy's outcome."""

    name: str  # with its label, where it has one
    label: str
    summary: Summary
    fleet: Fleet
    series: PoolSeries
    plan: ScalingPlan | None  # of the planned ones
    detail: Detail
    asked: bool = True  # else one of the baselines that stand in every comparison
    flat_usd: float | None = None  # of the smallest flat fleet that serves as well
    swing: SignalRange | None = None  # of the one signal it goes by
    settings: tuple[Setting, ...] = ()  # what to copy
    # Share of the time in which the scenario's spare, else any one instance, might be lost, and how
    # far that is below what is wanted where the scenario asks for spare.
    survives: float | None = None
    lacks_spare: float = 0.0
    modules: ModuleRun | None = None  # of one that moves modules
    refused_starts: int = 0  # for want of GPUs, each once until granted or no longer asked for

    @property
    def traits(self) -> Traits:
        """Of its policy."""
        return traits_of(self.name)

    @property
    def meets_slo(self) -> bool:
        return all(self.summary.slo_met.values())
