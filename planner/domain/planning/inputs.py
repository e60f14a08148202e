"""Define the inputs of a plan and the values that planning returns."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from planner.domain.progress import Progress
from planner.domain.sizing.sizing import Sizes
from planner.domain.traffic.forecast_percentile import PlannedQuantile, Quantiles
from planner.domain.traffic.forecasts import SeriesForecast
from planner.domain.traffic.traffic import Traffic
from planner.domain.traffic.window import Window
from planner.inputs.scenario.build import Hardware
from planner.inputs.scenario.settings import ALL, PlanSettings
from planner.optimizer.problem import ScalingPlan, Shift
from simulation.arrays import FloatArray, IntArray


@dataclass(frozen=True, slots=True, eq=False)
class PlanInput:
    """All inputs of a plan."""

    settings: PlanSettings
    hardware: Hardware
    traffic: Traffic
    window: Window
    sizes: Sizes
    current: IntArray  # [model, region, GPU column] fleet before the first period
    # Power of a replica. True: at the load that it is sized for. False: its GPU type's constant.
    at_load: bool = True
    quantiles: Quantiles | None = None  # None: chosen for this window

    def at_period(self, period: int) -> PlanInput:
        """Return the inputs with the replica capacities that the decision for ``period`` knows."""
        return replace(self, sizes=self.sizes.at_period(period))

    @property
    def plans_all_at_once(self) -> bool:
        """Return whether the scenario plans all periods in one program, before the first begins."""
        return self.settings.objective.periods == ALL

    def planned_quantiles(self, progress: Progress) -> tuple[PlannedQuantile, ...]:
        """Return the forecast percentile that is planned for, by group of tiers."""
        quantiles = self.quantiles or quantiles_of(self)
        return quantiles.planned_quantiles(at_once=self.plans_all_at_once, progress=progress)

    def at_once(self) -> PlanInput:
        """Return the inputs with all periods planned in one program, whatever the scenario says."""
        return replace(self, settings=self.settings.with_objective(periods=ALL))


@dataclass(frozen=True, slots=True, eq=False)
class Load:
    """Demand to plan for in input tokens/s, ``tps [period, model, region, bin]``.

    If tiers are planned separately, ``tier_tps`` has the demand of each of ``tiers``.
    """

    tps: FloatArray
    tiers: tuple[str, ...] = ()
    tier_tps: FloatArray | None = None  # [tier, period, model, region, bin], adding up to ``tps``
    expected_tps: FloatArray | None = None  # like ``tps``: mean forecasts of interactive load
    shift: Shift | None = None  # when deferrable work is planned, if it follows prices

    @classmethod
    def of_tiers(
        cls,
        tiers: tuple[str, ...],
        tier_tps: FloatArray,
        expected_tps: FloatArray,
        shift: Shift | None = None,
    ) -> Load:
        """Return the load of ``tiers``: groups of interactive tiers, and a last, deferrable one.

        ``tier_tps`` has the tokens/s of each. With one interactive group, tiers are planned
        together: the load has only their sum.
        """
        load = cls(tier_tps.sum(axis=0), expected_tps=expected_tps, shift=shift)
        interactive_groups = len(tiers) - 1
        if interactive_groups == 1:
            return load
        return replace(load, tiers=tiers, tier_tps=tier_tps)

    def scaled(self, factor: float) -> Load:
        """Return the load with ``factor`` times the demand to plan for, and the same means."""
        if factor == 1.0:
            return self
        tier_tps = None if self.tier_tps is None else self.tier_tps * factor
        shift = None if self.shift is None else self.shift.scaled(factor)
        return replace(self, tps=self.tps * factor, tier_tps=tier_tps, shift=shift)


@dataclass(frozen=True, slots=True, eq=False)
class PlannedWindow:
    """A plan with its forecasts and the demand that each period was planned for."""

    plan: ScalingPlan
    forecasts: tuple[SeriesForecast, ...]
    load: Load
    quantiles: tuple[PlannedQuantile, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class ForecastLoad:
    """The demand to plan for, its forecasts, and the forecast quantiles used."""

    load: Load
    forecasts: tuple[SeriesForecast, ...]
    quantiles: tuple[PlannedQuantile, ...]


def quantiles_of(inputs: PlanInput) -> Quantiles:
    """Return the percentiles that plans of this study use, each chosen when first needed."""
    return Quantiles(
        inputs.hardware,
        inputs.traffic,
        inputs.window,
        inputs.settings.forecast,
        tiers_planned_separately=inputs.settings.plans_tiers_separately,
        usd_per_tps=usd_per_tps(inputs.hardware, inputs.sizes),
    )


def usd_per_tps(hardware: Hardware, sizes: Sizes) -> FloatArray:
    """Return the dollars per hour of capacity for one input token/s, ``[model, region]``.

    It is the price at the cheapest GPU column, in large pools. With disaggregated serving, it is
    the sum over prefill and decode.
    """
    shape = len(hardware.models), len(hardware.regions), len(hardware.gpus)
    by_column = np.full(shape, np.inf)
    for (m, g), profile in hardware.profiles.items():
        if sizes.theta_tps[m, g] > 0:
            usd_per_hour = profile.tp * hardware.usd_per_gpu_hour[:, g]
            by_column[m, :, g] = usd_per_hour / sizes.theta_tps[m, g]
    cheapest = [
        by_column[:, :, hardware.stages == stage].min(axis=2) for stage in set(hardware.stages)
    ]
    return np.asarray(np.sum(cheapest, axis=0), np.float64)
