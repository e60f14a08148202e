"""Turn the sections of a scenario into the settings that the steps of a study read.

Only this module knows the file's sections and names. ``build_hardware`` does the same for facts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal

import numpy as np

from planner.errors import ScenarioError
from planner.inputs.scenario.schema import Forecast, Growth, Objective, Scenario, Source
from planner.inputs.scenario.schema.fleet import ScaleIn
from planner.optimizer.problem import SolverOptions, Weights
from simulation.arrays import FloatArray

# The measure (field of Weights) that each objective of ``minimise`` has alone.
MEASURE = {"cost": "usd", "gpu-hours": "gpu_hours", "energy": "kwh", "carbon": "kg"}
UNITS = {"usd": "$", "gpu_hours": "GPU-hours", "kwh": "kWh", "kg": "kg CO2e"}
WEIGHTED = "weighted"
ALL = "all"  # periods in one program
CHEAPEST = "cheapest"  # objective.defer


@dataclass(frozen=True, slots=True)
class TrafficSettings:
    """The sources of traffic, and the names of models, regions and tiers that they refer to."""

    models: tuple[str, ...]
    regions: tuple[str, ...]
    tiers: tuple[str, ...]
    sources: tuple[Source, ...]
    bin_s: float | None  # None: by the length of the traffic
    until_s: float | None  # epoch seconds; later traffic is not used; None: no limit
    max_replayed: int  # requests of a window; if there are more, only one cell is replayed
    prefix_caching: bool  # True if any model caches prefixes
    seed: int
    holidays: tuple[str, ...] = ()  # countries and dates
    deferrable: frozenset[str] = frozenset()  # names of tiers
    period_s: float | None = None  # seconds between decisions; bins are no longer


NO_GROWTH = Growth()


@dataclass(frozen=True, slots=True)
class WindowSettings:
    """The time window that is planned. None: it is chosen from the traffic."""

    start: datetime | Literal["end"] | None
    duration_s: float | None
    period_s: float | None
    lead_s: float
    growth: Growth = NO_GROWTH


@dataclass(frozen=True, slots=True)
class Spending:
    """Limits of a plan on cost (USD), carbon (kg) and replica changes; infinite without one."""

    usd: float
    carbon_kg: float
    changes: float

    @classmethod
    def of(cls, usd: float | None, carbon_kg: float | None, changes: float | None) -> Spending:
        return cls(*(np.inf if limit is None else limit for limit in (usd, carbon_kg, changes)))


@dataclass(frozen=True, slots=True)
class SpareSettings:
    """The losses that the remaining fleet must absorb."""

    instances: int = 0
    by_pool: bool = True  # per pool; False: per model and region
    region: bool = False  # True: also the loss of any one region

    def __bool__(self) -> bool:
        return self.instances > 0 or self.region


@dataclass(frozen=True, slots=True, eq=False)
class PlanSettings:
    """The objective, forecast and limits of a plan, and the effort of the solver.

    Axes: ``l`` models, ``r`` regions.
    """

    objective: Objective  # as in the scenario; the other values are derived from it
    forecast: Forecast
    minimise: str  # cost, gpu-hours, energy, carbon or weighted
    weights: Weights
    each_hour: Spending  # dollars and kg CO2e per hour, changes per period
    in_all: Spending  # totals over all periods; needs ``periods: all``
    spare: SpareSettings
    # [r, r] share of a region's demand that another may serve; None: any.
    reroute: FloatArray | None
    model_worth: FloatArray  # [l] worth of a token
    tier_worth: dict[str, float]  # tiers with a worth other than 1
    by_utility: bool  # the utility of tiers decides, as no worth of a tier is stated

    def with_objective(self, **changes: Any) -> PlanSettings:
        """Return settings with other values of ``objective``, unchecked; derived values stay."""
        return replace(self, objective=self.objective.model_copy(update=changes))

    @property
    def solver_options(self) -> SolverOptions:
        """Return the settings of the solver."""
        objective = self.objective
        return SolverOptions(
            solver=objective.solver, gap=objective.gap, time_limit_s=objective.time_limit_s
        )

    @property
    def plans_tiers_separately(self) -> bool:
        """Return whether each interactive tier is forecast and planned on its own."""
        return bool(self.forecast.quantiles or self.tier_worth or self.by_utility)

    @property
    def unit(self) -> str:
        """Return the unit of the objective; "" for a weighted sum."""
        return "" if self.minimise == WEIGHTED else UNITS[MEASURE[self.minimise]]

    def token_worth(self, tiers: tuple[str, ...], waiting: frozenset[str]) -> FloatArray:
        """Return the worth of a token by tier and model, ``[tier, model]``, without a unit.

        Without ``tiers``, there is one row: the worth by model. A tier without a stated worth, such
        as the common pool of deferrable tiers, has the lowest worth of the tiers in ``waiting``
        (deferrable tiers).
        """
        if not tiers:
            return self.model_worth[None]
        waiting_worths = [self.tier_worth.get(name, 1.0) for name in waiting]
        default_worth = min(waiting_worths, default=1.0)
        tier_worths = [self.tier_worth.get(name, default_worth) for name in tiers]
        return np.array([worth * self.model_worth for worth in tier_worths])


@dataclass(frozen=True, slots=True, eq=False)
class Settings:
    """All settings of a study, with its name and seed."""

    name: str
    seed: int
    traffic: TrafficSettings
    window: WindowSettings
    plan: PlanSettings
    scale_in: ScaleIn


def settings_of(scenario: Scenario) -> Settings:
    """Return a scenario's settings of traffic, window and plan, with defaults filled in."""
    horizon, startup_s = scenario.horizon, scenario.fleet.startup_s
    # Requests before a launch are generated. They are no window to plan, so plan what follows.
    is_generated = all(source.launch is not None for source in scenario.traffic.sources)
    return Settings(
        name=scenario.name,
        seed=scenario.seed,
        traffic=_traffic(scenario),
        window=WindowSettings(
            start=horizon.start or ("end" if is_generated else None),
            duration_s=horizon.duration_s,
            period_s=horizon.period_s,
            lead_s=startup_s if horizon.lead_s is None else horizon.lead_s,
            growth=scenario.traffic.growth,
        ),
        plan=_plan(scenario),
        scale_in=scenario.fleet.scale_in,
    )


def _traffic(scenario: Scenario) -> TrafficSettings:
    """Return the traffic settings of a scenario; a moment without an offset is in UTC."""
    traffic, until = scenario.traffic, scenario.traffic.until
    if until is not None and until.tzinfo is None:
        until = until.replace(tzinfo=UTC)
    return TrafficSettings(
        models=tuple(model.name for model in scenario.models),
        regions=tuple(region.name for region in scenario.regions),
        tiers=tuple(tier.name for tier in scenario.tiers),
        sources=tuple(traffic.sources),
        bin_s=traffic.bin_s,
        until_s=None if until is None else until.timestamp(),
        max_replayed=traffic.max_replayed,
        prefix_caching=any(row.prefix_caching for row in scenario.serving),
        seed=scenario.seed,
        holidays=scenario.forecast.holidays,
        deferrable=frozenset(tier.name for tier in scenario.tiers if tier.deferrable),
        period_s=scenario.horizon.period_s,
    )


def _plan(scenario: Scenario) -> PlanSettings:
    """Return the plan settings in the scenario's objective, forecast and limits."""
    objective, spare = scenario.objective, scenario.objective.spare
    if spare.regions and len(scenario.regions) < 2:
        raise ScenarioError(
            "objective.spare.regions is 1, and the scenario has only one region. Give another "
            "region, or remove the key."
        )
    limits, priorities = objective.limits, objective.priorities
    serves_by_choice = objective.limited is not None or objective.utility_usd is not None
    has_utility = any(tier.utility > 0 for tier in scenario.tiers)
    # Without weights, the objective is the one measure to minimise.
    single_weight = {"usd": 0.0} | {MEASURE[objective.minimise]: 1.0}
    weights = objective.weights.model_dump() if objective.weights else single_weight
    return PlanSettings(
        objective=objective,
        forecast=scenario.forecast,
        minimise=WEIGHTED if objective.weights else objective.minimise,
        weights=Weights(**weights),
        each_hour=Spending.of(
            limits.usd_per_hour, limits.carbon_kg_per_hour, limits.changes_per_period
        ),
        in_all=Spending.of(limits.usd, limits.carbon_kg, limits.changes),
        spare=SpareSettings(spare.instances, spare.by == "pool", bool(spare.regions)),
        reroute=_reroute(scenario),
        model_worth=np.array([priorities.models.get(model.name, 1.0) for model in scenario.models]),
        tier_worth=priorities.tiers,
        by_utility=serves_by_choice and not priorities.tiers and has_utility,
    )


def _reroute(scenario: Scenario) -> FloatArray | None:
    """Return the share of a region's demand that another may serve, ``[r, r]``; None: any."""
    stated = scenario.objective.reroute
    if stated is None:
        return None
    names = [region.name for region in scenario.regions]
    return np.array([[stated.get(home, {}).get(other, 0.0) for other in names] for home in names])
