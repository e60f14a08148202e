"""Forecast, objective and window of the plan."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from planner.inputs.scenario.holidays import Holiday
from planner.schema_types import Buffer, Delay, Moment, Name, Quantile, Section, Share

MEAN = "mean"
LEVEL_KINDS = "[quantile]", "[mean]"


def _level(value: object) -> str:
    return LEVEL_KINDS[isinstance(value, str)]


# The forecast percentile to plan for, or the mean. The value's type tells which.
Level = Annotated[
    Annotated[Quantile, Tag(LEVEL_KINDS[0])] | Annotated[Literal["mean"], Tag(LEVEL_KINDS[1])],
    Discriminator(_level),
]
LateUsd = Annotated[float, Field(gt=0, le=1_000_000)]
Weight = Annotated[float, Field(ge=0, le=1_000_000)]
Above0 = Annotated[float, Field(gt=0, le=1_000_000)]
Limit = Annotated[float, Field(ge=0, le=1e12)]
Method = Literal[
    "auto",
    "ensemble",
    "last-value",
    "seasonal-naive",
    "seasonal-naive-week",
    "week-shape",
    "moving-maximum",
    "exponential-smoothing",
    "seasonal-smoothing",
    "kalman",
    "regression",
    "regression-root",
    "autoregression",
    "arima",
    "arima-fourier",
]
Minimise = Literal["cost", "gpu-hours", "energy", "carbon"]
Periods = Literal["one", "all"]
Solver = Literal["highs", "cbc"]
Gap = Annotated[float, Field(ge=0, le=1)]  # of fleet cost
TimeLimit = Annotated[float, Field(gt=0, le=3600)]  # s


class Forecast(Section):
    """How demand is forecast."""

    method: Method = "auto"
    # Percentile to plan for; mean: the mean, as in the source. Default: chosen on the days before
    # the window.
    quantile: Level | None = None
    # By interactive tier, if tiers need different percentiles.
    quantiles: dict[Name, Level] = {}
    # Cost of a late request in $. The quantile is then the one with the least total cost of
    # capacity and late requests. Default: the smallest that covers the tier's SLO target.
    late_usd: LateUsd | None = None
    # beta, the share of the last period's NIW load that is added, as in the source. Default: the
    # load that each period must do so that none is left when it becomes urgent.
    niw_buffer: Buffer | None = None
    # Days forecast as a separate kind: public holidays by country (US, DE-BY), or dates.
    holidays: Annotated[tuple[Holiday, ...], Field(max_length=100)] = ()


class ObjectiveWeights(Section):
    """What the plan charges per unit, in place of one measure."""

    usd: Weight = 0.0
    gpu_hours: Weight = 0.0
    kwh: Weight = 0.0
    kg: Weight = 0.0  # of CO2

    @model_validator(mode="after")
    def _some(self) -> ObjectiveWeights:
        if not (self.usd or self.gpu_hours or self.kwh or self.kg):
            raise ValueError("give at least one of usd, gpu_hours, kwh and kg a weight above 0")
        return self


class Priorities(Section):
    """Worth of a token of each model and tier where not all can be served; what is left out: 1.

    A tier of a model is worth both numbers multiplied.
    """

    models: dict[Name, Above0] = {}
    tiers: dict[Name, Above0] = {}


class Limits(Section):
    """What the plan may take. By the hour in every period, or over the whole window (which needs
    ``periods: all``); changes are starts and stops."""

    usd_per_hour: Limit | None = None
    carbon_kg_per_hour: Limit | None = None
    changes_per_period: Limit | None = None
    usd: Limit | None = None
    carbon_kg: Limit | None = None
    changes: Limit | None = None


class Spare(Section):
    """What may be gone while all demand is still carried within the SLOs."""

    # Instances that may be lost. by: pool means in every pool (a model's instances on one column of
    # a region). by: region means among all instances of a model in a region.
    instances: Annotated[int, Field(ge=0, le=1000)] = 0
    by: Literal["pool", "region"] = "pool"
    # 1: any one region may be lost. The other regions then serve the joint demand.
    regions: Annotated[int, Field(ge=0, le=1)] = 0


class Objective(Section):
    """What the plan minimises, within what limits, and how hard the solver tries."""

    minimise: Minimise = "cost"
    weights: ObjectiveWeights | None = None  # replaces minimise
    limits: Limits = Limits()
    # How to choose if capacity and limits do not allow to serve all. Default: no plan.
    limited: Literal["Exact", "None", "PriorityExhaustive", "PriorityRoundRobin", "RoundRobin"] | (
        None
    ) = None
    priorities: Priorities = Priorities()
    # The criticality that greedy policies order by. tier: of each tier of a model. model: of the
    # model's most valuable tier, for all its tiers.
    criticality: Literal["tier", "model"] = "tier"
    # one: plan each period from the previous one, on the forecast of that moment (E7).
    # all: plan the whole window at once, on data from before it.
    periods: Periods = "one"
    # Income of an instance lent for a period, as a share of its price (E9); needs periods: all.
    lend_share: Annotated[float, Field(ge=0, le=1)] | None = None
    epsilon: Share = 0.8  # share of a region's peak served in the region
    # Share of a region's demand that plans may send to another: {from: {to: share}}. Default: any,
    # within epsilon. A route with a share of 0, or without a share, is closed to every request.
    reroute: dict[Name, dict[Name, Annotated[float, Field(ge=0, le=1)]]] | None = None
    # Largest share of a model's capacity in a region that may be on spot instances (assumed).
    spot_share: Annotated[float, Field(ge=0, le=1)] = 0.5
    spare: Spare = Spare()
    solver: Solver = "highs"
    gap: Gap = 1e-4
    time_limit_s: TimeLimit = 30.0
    # The policy that savings compare with, by name or name:label. Default: today or flat-peak.
    baseline: Annotated[str, Field(min_length=1, max_length=161)] | None = None

    @model_validator(mode="after")
    def _together(self) -> Objective:
        of_window = [
            n for n in ("usd", "carbon_kg", "changes") if getattr(self.limits, n) is not None
        ]
        if self.periods == "one" and (of_window or self.lend_share is not None):
            names = ", ".join([f"limits.{name}" for name in of_window] or ["lend_share"])
            raise ValueError(f"{names} is about the whole window; give periods: all with it")
        if self.reroute is not None and self.limited not in (None, "Exact"):
            raise ValueError("only limited: Exact keeps to reroute; give that, or leave one out")
        if self.spare.regions and self.limited not in (None, "Exact"):
            raise ValueError(
                "only limited: Exact keeps to spare.regions; give that, or leave one out"
            )
        if self.periods == "all" and self.limited not in (None, "Exact"):
            raise ValueError("periods: all chooses exactly; give limited: Exact, or periods: one")
        return self


class Horizon(Section):
    """The window to plan; left out, the last day of a long trace or the last half of a short one.

    A window inside the trace is planned with what was known at each moment and replayed against
    what then came; a window after its end is planned and replayed on the forecast.
    """

    start: Moment | Literal["end"] | None = None  # "end": right after the trace
    duration_s: Annotated[float, Field(gt=0, le=366 * 86_400)] | None = None
    # Time between decisions. Default: an hour, or less for short traces.
    period_s: Annotated[float, Field(gt=0, le=366 * 86_400)] | None = None
    lead_s: Delay | None = None  # decision before the start of a period; default: startup_s
