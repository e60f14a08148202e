"""What a scenario asks of traffic, window and plan, as the steps of a study take it: the file's own
sections and names end here, as its facts do in ``build_hardware``."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

import numpy as np

from planner.errors import ScenarioError
from planner.optimizer.problem import Weights
from planner.scenario.schema import Forecast, Objective, Scenario, Source
from planner.scenario.schema.fleet import ScaleIn
from simulation.arrays import FloatArray

NOTHING: dict[str, float] = {"usd": 0.0, "gpu_hours": 0.0, "kwh": 0.0, "kg": 0.0}
MEASURE = {"cost": "usd", "gpu-hours": "gpu_hours", "energy": "kwh", "carbon": "kg"}
UNITS = {"usd": "$", "gpu_hours": "GPU-hours", "kwh": "kWh", "kg": "kg CO2"}
WEIGHTED = "weighted"
ALL = "all"  # periods in one program
MONTH_S = 365.25 / 12 * 86_400


@dataclass(frozen=True, slots=True)
class TrafficSettings:
    """Whose requests arrive, and where they come from."""

    models: tuple[str, ...]
    regions: tuple[str, ...]
    tiers: tuple[str, ...]
    sources: tuple[Source, ...]
    bin_s: float | None  # None: by the length of the traffic
    until_s: float | None  # epoch seconds: what comes from then on is not known; None: all there is
    max_replayed: int  # requests of a window; of more, those of a cell
    prefix_caching: bool  # of any model
    seed: int
    holidays: tuple[str, ...] = ()  # countries and dates


@dataclass(frozen=True, slots=True)
class Growth:
    """How many times as much comes after the traffic as a forecast of it says."""

    factor: float = 1.0
    per_month: float = 0.0  # more each month, a share, compounded

    def __bool__(self) -> bool:
        return self.factor != 1.0 or self.per_month != 0.0

    def at(self, after_s: float | FloatArray) -> FloatArray:
        """So many times as much ``after_s`` seconds after the traffic's end."""
        months = np.asarray(after_s, np.float64) / MONTH_S
        return np.asarray(self.factor * (1.0 + self.per_month) ** months, np.float64)

    @property
    def words(self) -> str:
        """Describe the growth, such as "1.5 times, and 4% more each month"; "" without growth."""
        times = [f"{self.factor:.4g} times"] if self.factor != 1.0 else []
        way = "more" if self.per_month > 0 else "less"
        month = [f"{abs(self.per_month):.1%} {way} each month"] if self.per_month else []
        return ", and ".join(times + month)


NO_GROWTH = Growth()


@dataclass(frozen=True, slots=True)
class WindowSettings:
    """Which stretch of the traffic is planned; what is None is left to us."""

    start: datetime | Literal["end"] | None
    duration_s: float | None
    period_s: float | None
    lead_s: float
    growth: Growth = NO_GROWTH


@dataclass(frozen=True, slots=True)
class Spending:
    """What may be taken of each, infinite where nothing is said."""

    usd: float
    carbon_kg: float
    changes: float

    @classmethod
    def of(cls, usd: float | None, carbon_kg: float | None, changes: float | None) -> Spending:
        return cls(*(np.inf if most is None else most for most in (usd, carbon_kg, changes)))


@dataclass(frozen=True, slots=True)
class SpareSettings:
    """What may be gone while demand is still carried."""

    instances: int = 0
    by_pool: bool = True  # of every pool, or of all that a model has in a region
    region: bool = False  # any one of them

    def __bool__(self) -> bool:
        return self.instances > 0 or self.region


@dataclass(frozen=True, slots=True, eq=False)
class PlanSettings:
    """What the plan minimises, on what forecast, within what limits, and how hard the solver
    tries. Axes: ``l`` models, ``r`` regions."""

    forecast: Forecast
    minimise: str  # cost, gpu-hours, energy, carbon or weighted
    weights: Weights
    each_hour: Spending  # in every period: dollars and kg CO2 by the hour, changes of the period
    in_all: Spending  # over all periods, which ``periods: all`` knows
    epsilon: float
    spot_share: float
    spare: SpareSettings
    periods: str  # one: each from the one before; all: at once
    lend_share: float | None  # of its price, what lending an instance earns
    reroute: (
        FloatArray | None
    )  # [r, r] share of a region's demand that another may serve; None: any
    limited: str | None  # how to choose where not all can be served; None: no plan
    criticality: str  # of the greedy ones: tier, of each model's tiers apart; model, of the model
    model_worth: FloatArray  # [l] of a token
    tier_worth: dict[str, float]  # where it is not 1
    solver: str
    gap: float
    time_limit_s: float

    @property
    def tiers_apart(self) -> bool:
        """Whether every interactive tier is forecast and planned for by itself."""
        return bool(self.forecast.quantiles or self.tier_worth)

    @property
    def unit(self) -> str:
        """Of the plan's objective; "" of a weighted sum."""
        return "" if self.minimise == WEIGHTED else UNITS[MEASURE[self.minimise]]

    def worth(self, tiers: tuple[str, ...], waiting: frozenset[str]) -> FloatArray:
        """Worth of a token of each tier and model, ``[k, l]``; one row where tiers are one. A tier
        that is not the scenario's own is worth as little as any of those that can wait."""
        if not tiers:
            return self.model_worth[None]
        least = min((self.tier_worth.get(name, 1.0) for name in waiting), default=1.0)
        return np.array([self.tier_worth.get(name, least) * self.model_worth for name in tiers])


@dataclass(frozen=True, slots=True, eq=False)
class Settings:
    """All of them, with what names and seeds a study."""

    name: str
    seed: int
    traffic: TrafficSettings
    window: WindowSettings
    plan: PlanSettings
    scale_in: ScaleIn


def settings_of(scenario: Scenario) -> Settings:
    """The settings that a scenario's sections say."""
    horizon, startup_s = scenario.horizon, scenario.fleet.startup_s
    return Settings(
        name=scenario.name,
        seed=scenario.seed,
        traffic=TrafficSettings(
            models=tuple(model.name for model in scenario.models),
            regions=tuple(region.name for region in scenario.regions),
            tiers=tuple(tier.name for tier in scenario.tiers),
            sources=tuple(scenario.traffic.sources),
            bin_s=scenario.traffic.bin_s,
            until_s=_epoch_s(scenario.traffic.until),
            max_replayed=scenario.traffic.max_replayed,
            prefix_caching=any(row.prefix_caching for row in scenario.serving),
            seed=scenario.seed,
            holidays=scenario.forecast.holidays,
        ),
        window=WindowSettings(
            start=horizon.start or ("end" if _launched(scenario) else None),
            duration_s=horizon.duration_s,
            period_s=horizon.period_s,
            lead_s=startup_s if horizon.lead_s is None else horizon.lead_s,
            growth=Growth(scenario.traffic.growth.factor, scenario.traffic.growth.per_month),
        ),
        plan=_plan(scenario),
        scale_in=scenario.fleet.scale_in,
    )


def _epoch_s(moment: datetime | None) -> float | None:
    """UTC where it does not say."""
    if moment is None:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


def _launched(scenario: Scenario) -> bool:
    """Whether all traffic is described: what was drawn before it begins is no past to plan."""
    return all(source.launch is not None for source in scenario.traffic.sources)


def _plan(scenario: Scenario) -> PlanSettings:
    objective = scenario.objective
    limits, worth = objective.limits, objective.priorities
    return PlanSettings(
        forecast=scenario.forecast,
        minimise=WEIGHTED if objective.weights else objective.minimise,
        weights=_weights(objective),
        each_hour=Spending.of(
            limits.usd_per_hour, limits.carbon_kg_per_hour, limits.changes_per_period
        ),
        in_all=Spending.of(limits.usd, limits.carbon_kg, limits.changes),
        epsilon=objective.epsilon,
        spot_share=objective.spot_share,
        spare=_spare(scenario),
        periods=objective.periods,
        lend_share=objective.lend_share,
        reroute=_reroute(scenario),
        limited=objective.limited,
        criticality=objective.criticality,
        model_worth=np.array([worth.models.get(model.name, 1.0) for model in scenario.models]),
        tier_worth=worth.tiers,
        solver=objective.solver,
        gap=objective.gap,
        time_limit_s=objective.time_limit_s,
    )


def _spare(scenario: Scenario) -> SpareSettings:
    spare = scenario.objective.spare
    if spare.regions and len(scenario.regions) < 2:
        raise ScenarioError(
            "objective.spare.regions is 1 and there is one region: nothing is left where it is "
            "lost. Give another region, or leave it out."
        )
    return SpareSettings(spare.instances, spare.by == "pool", bool(spare.regions))


def _weights(objective: Objective) -> Weights:
    """What the plan charges per unit."""
    if objective.weights is not None:
        return Weights(**objective.weights.model_dump())
    return Weights(**NOTHING | {MEASURE[objective.minimise]: 1.0})


def _reroute(scenario: Scenario) -> FloatArray | None:
    ways = scenario.objective.reroute
    if ways is None:
        return None
    names = [region.name for region in scenario.regions]
    return np.array([[ways.get(home, {}).get(other, 0.0) for other in names] for home in names])
