"""What a plan is made from, and what it hands on."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from planner.optimizer.problem import ScalingPlan
from planner.scenario.build import Hardware
from planner.scenario.settings import ALL, PlanSettings
from planner.studies.progress import Progress
from planner.studies.sizing.sizing import Sizes
from planner.studies.traffic.forecasts import SeriesForecast
from planner.studies.traffic.quantile import PlannedQuantile, Quantiles
from planner.studies.traffic.traffic import Traffic
from planner.studies.traffic.window import Window
from simulation.arrays import FloatArray, IntArray


@dataclass(frozen=True, slots=True, eq=False)
class PlanInput:
    """What is planned, on what, from which fleet on."""

    settings: PlanSettings
    hardware: Hardware
    traffic: Traffic
    window: Window
    sizes: Sizes
    current: IntArray  # [l, r, g]
    # Energy is counted at the load that instances are sized for; else at their GPUs' constants.
    at_load: bool = True
    quantiles: Quantiles | None = None  # None: its own

    def of(self, period: int) -> PlanInput:
        """The same as the decision for a period knows it."""
        return replace(self, sizes=self.sizes.of(period))

    @property
    def at_once_asked(self) -> bool:
        """Whether all periods are planned on what is known before the first."""
        return self.settings.periods == ALL

    def planned_quantiles(self, progress: Progress) -> tuple[PlannedQuantile, ...]:
        """What is planned for, by group of tiers."""
        quantiles = self.quantiles or quantiles_of(self)
        return quantiles.of(at_once=self.at_once_asked, progress=progress)

    def at_once(self) -> PlanInput:
        """The same with all periods in one program, whatever the scenario says."""
        return replace(self, settings=replace(self.settings, periods=ALL))


@dataclass(frozen=True, slots=True, eq=False)
class Load:
    """Input tokens/s to plan for, ``[p, l, r, w]``, and by tier where tiers are told apart."""

    tps: FloatArray
    tiers: tuple[str, ...] = ()
    tier_tps: FloatArray | None = None  # [k, p, l, r, w], adding up to ``tps``
    # [p, l, r, w] of interactive requests as they are expected: the forecasts' means
    expected_tps: FloatArray | None = None

    def times(self, factor: float) -> Load:
        """So many times as much to plan for; what is expected stays."""
        if factor == 1.0:
            return self
        tiers = None if self.tier_tps is None else self.tier_tps * factor
        return replace(self, tps=self.tps * factor, tier_tps=tiers)


@dataclass(frozen=True, slots=True, eq=False)
class Planned:
    """A plan and what it stands on: the forecasts, and the load that each period was planned
    for."""

    plan: ScalingPlan
    forecasts: tuple[SeriesForecast, ...]
    load: Load
    quantiles: tuple[PlannedQuantile, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Foreseen:
    """The load to plan for, the forecasts it is made of, and at which quantiles of them."""

    load: Load
    forecasts: tuple[SeriesForecast, ...]
    quantiles: tuple[PlannedQuantile, ...]


def quantiles_of(inputs: PlanInput) -> Quantiles:
    """Those of the scenario, what it leaves out to be chosen before the window of ``inputs``."""
    return Quantiles(
        inputs.hardware,
        inputs.traffic,
        inputs.window,
        inputs.settings.forecast,
        apart=inputs.settings.tiers_apart,
        usd_per_tps=usd_per_tps(inputs.hardware, inputs.sizes),
    )


def usd_per_tps(hardware: Hardware, sizes: Sizes) -> FloatArray:
    """Dollars an hour for one input token per second at the cheapest column, in large pools
    ``[l, r]``: of every stage where prefill and decode are apart."""
    each = np.full((*sizes.theta_tps.shape[:1], len(hardware.regions), len(hardware.gpus)), np.inf)
    for (m, g), profile in hardware.profiles.items():
        if sizes.theta_tps[m, g] > 0:
            each[m, :, g] = profile.tp * hardware.usd_per_gpu_hour[:, g] / sizes.theta_tps[m, g]
    stages = [each[:, :, hardware.stages == stage].min(axis=2) for stage in set(hardware.stages)]
    return np.asarray(np.sum(stages, axis=0), np.float64)
