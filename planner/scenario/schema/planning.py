"""Forecast, objective and window of the plan."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from planner.scenario.holidays import Holiday
from planner.sections import (
    Buffer,
    Delay,
    Moment,
    Name,
    Quantile,
    Section,
    Share,
)

MEAN = "mean"
LEVEL_KINDS = "[quantile]", "[mean]"


def _level(value: object) -> str:
    return LEVEL_KINDS[isinstance(value, str)]


# What of a forecast is planned for; which of the two is meant is told by the value's type.
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
    # To plan for; mean: the mean, as the source. Left out: chosen on the days before the window.
    quantile: Level | None = None
    # By interactive tier, where some are to be planned for more surely than others.
    quantiles: dict[Name, Level] = {}
    # What a late request costs, $: the quantile is then that of least cost of capacity and of late
    # requests together. Left out: the smallest that covers the share which the tier asks for.
    late_usd: LateUsd | None = None
    # beta: share of the last period's NIW load added, as the source; left out: what has to be done
    # in each period so that none is left when it becomes urgent.
    niw_buffer: Buffer | None = None
    # Days that are a kind of their own: countries (US, DE-BY) by their public holidays, or dates.
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

    # Of every pool (a model's instances on one column of a region), or of all instances that a
    # model has in a region, whichever they are.
    instances: Annotated[int, Field(ge=0, le=1000)] = 0
    by: Literal["pool", "region"] = "pool"
    # 1: any one region; the others then carry the joint demand.
    regions: Annotated[int, Field(ge=0, le=1)] = 0


class Objective(Section):
    """What the plan minimises, within what limits, and how hard the solver tries."""

    minimise: Minimise = "cost"
    weights: ObjectiveWeights | None = None  # in place of minimise
    limits: Limits = Limits()
    # Where not all can be served within capacity and limits: how to choose. Left out: no plan.
    limited: Literal["Exact", "None", "PriorityExhaustive", "PriorityRoundRobin", "RoundRobin"] | (
        None
    ) = None
    priorities: Priorities = Priorities()
    # Whose criticality the greedy policies go by: tier, of each model's tiers apart (its worthy
    # ones before another's, its others after); model, of its most worthy tier for all of a model.
    criticality: Literal["tier", "model"] = "tier"
    # one: each period from the one before on the forecast of that moment (E7). all: the whole
    # window at once, on what is known before it.
    periods: Periods = "one"
    # Of its price, what lending an instance for a period earns (E9); needs periods: all.
    lend_share: Annotated[float, Field(ge=0, le=1)] | None = None
    epsilon: Share = 0.8  # share of a region's peak served in the region
    # Share of a region's demand that plans may send to another: {from: {to: share}}. Left out: any,
    # within epsilon. A way that is not named, or has a share of 0, is closed to every request too.
    reroute: dict[Name, dict[Name, Annotated[float, Field(ge=0, le=1)]]] | None = None
    # Of what a model is served with in a region, at most this rests on spot instances (assumed).
    spot_share: Annotated[float, Field(ge=0, le=1)] = 0.5
    spare: Spare = Spare()
    solver: Solver = "highs"
    gap: Gap = 1e-4
    time_limit_s: TimeLimit = 30.0
    # Savings are counted against it (a policy's name, with its label name:label); left out: today
    # or flat-peak.
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
    # Between decisions; left out: an hour, or less for short traces.
    period_s: Annotated[float, Field(gt=0, le=366 * 86_400)] | None = None
    lead_s: Delay | None = None  # decide this long before a period; left out: startup_s
