"""Sections of the scenario file on the forecast, the objective and the window of the plan."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag

from planner.inputs.scenario.holidays import Holiday
from planner.schema_types import (
    Buffer,
    CheckedSection,
    Delay,
    Moment,
    Name,
    Quantile,
    Section,
    Share,
)

MEAN = "mean"
LEVEL_KINDS = "[quantile]", "[mean]"


# The forecast percentile to plan for, or the mean. Its type tells which: the mean is a text.
Level = Annotated[
    Annotated[Quantile, Tag(LEVEL_KINDS[0])] | Annotated[Literal["mean"], Tag(LEVEL_KINDS[1])],
    Discriminator(lambda value: LEVEL_KINDS[isinstance(value, str)]),
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

    method: Method = "auto"  # forecast method
    # Percentile to plan for, or the mean. Default: chosen on the days before the window.
    quantile: Level | None = None
    # Percentiles by interactive tier.
    quantiles: dict[Name, Level] = {}
    # Cost of a late request in $. The percentile then minimizes the cost of capacity and misses.
    late_usd: LateUsd | None = None
    # Share of the last period's deferrable load that is added (SageServe's beta). Default: by
    # deadlines.
    niw_buffer: Buffer | None = None
    # Countries (US, DE-BY) or dates with their own kind of day.
    holidays: Annotated[tuple[Holiday, ...], Field(max_length=100)] = ()


class ObjectiveWeights(CheckedSection):
    """Weights of a mixed objective: the sum of $, GPU-hours, kWh and kg of CO2, each weighted."""

    usd: Weight = 0.0  # weight of a unit
    gpu_hours: Weight = 0.0  # weight of a unit
    kwh: Weight = 0.0  # weight of a unit
    kg: Weight = 0.0  # weight of a unit

    def _faults(self) -> Iterator[str]:
        if not (self.usd or self.gpu_hours or self.kwh or self.kg):
            yield "give at least one of usd, gpu_hours, kwh and kg a weight above 0"


class Priorities(Section):
    """Worth of a token by model and tier, if capacity is short.

    A tier of a model is worth both numbers multiplied.
    """

    models: dict[Name, Above0] = {}  # worth by name; default: 1
    tiers: dict[Name, Above0] = {}  # worth by name; default: 1


class Limits(Section):
    """Limits of the plan: per hour, per period, or over the window (with ``periods: all``)."""

    usd_per_hour: Limit | None = None  # limit per hour
    carbon_kg_per_hour: Limit | None = None  # limit per hour
    changes_per_period: Limit | None = None  # starts and stops per period
    usd: Limit | None = None  # over the window; needs periods: all
    carbon_kg: Limit | None = None  # over the window; needs periods: all
    changes: Limit | None = None  # starts and stops over the window; needs periods: all


class Spare(Section):
    """What may be lost while the plan still serves all demand within the SLO."""

    instances: Annotated[int, Field(ge=0, le=1000)] = 0  # replicas that may be lost at once
    by: Literal["pool", "region"] = "pool"  # of every pool, or of all pools of a model in a region
    # 1: any one region may be lost; the others serve the joint demand.
    regions: Annotated[int, Field(ge=0, le=1)] = 0


class Objective(CheckedSection):
    """The objective of the plan, its limits, and the effort of the solver."""

    minimise: Minimise = "cost"  # what the plan minimizes
    weights: ObjectiveWeights | None = None  # replaces minimise
    limits: Limits = Limits()  # budget, carbon and changes
    # Whom to serve if capacity is short. Default: no plan.
    limited: Literal["Exact", "None", "PriorityExhaustive", "PriorityRoundRobin", "RoundRobin"] | (
        None
    ) = None
    # If capacity is short: worth of a model times worth of a tier.
    priorities: Priorities = Priorities()
    # Dollars per unit of `tiers.utility`. The plan then maximizes utility minus cost.
    utility_usd: LateUsd | None = None
    # Whether greedy modes order tiers, or whole models by their most valuable tier.
    criticality: Literal["tier", "model"] = "tier"
    # one: each period on the forecast of its decision. all: the whole window at once.
    periods: Periods = "one"
    # Deferrable work: even until it is urgent, or in the cheapest periods and regions before.
    # cheapest needs periods: all.
    defer: Literal["even", "cheapest"] = "even"
    # Committed price at which the plan may reserve GPUs for the window; needs periods: all.
    reserve: Literal["one_year", "three_years"] | None = None
    # Income of a lent replica as a share of its price; needs periods: all.
    lend_share: Annotated[float, Field(ge=0, le=1)] | None = None
    epsilon: Share = 0.8  # share of a region's peak served in the region
    # Share of a region's demand that another may serve: {from: {to: share}}. Default: any. A route
    # with share 0, or without a share, is closed.
    reroute: dict[Name, dict[Name, Annotated[float, Field(ge=0, le=1)]]] | None = None
    # Largest share of a model's capacity in a region on spot GPUs (assumed).
    spot_share: Annotated[float, Field(ge=0, le=1)] = 0.5
    spare: Spare = Spare()  # what may be lost (N+1)
    solver: Solver = "highs"  # solver of the integer program
    gap: Gap = 1e-4  # allowed gap, as a share of fleet cost
    time_limit_s: TimeLimit = 30.0  # seconds per period
    # Policy that savings compare with. Default: today or flat-before.
    baseline: Annotated[str, Field(min_length=1, max_length=161)] | None = None

    def _faults(self) -> Iterator[str]:
        greedy = self.limited not in (None, "Exact")
        totals = ("usd", "carbon_kg", "changes")
        about_window = [f"limits.{x}" for x in totals if getattr(self.limits, x) is not None]
        about_window += [x for x in ("lend_share", "reserve") if getattr(self, x) is not None]
        about_window += ["defer: cheapest"] if self.defer == "cheapest" else []
        if self.periods == "one" and about_window:
            yield f"{', '.join(about_window)} is about the whole window. Give periods: all with it"
        if self.utility_usd is not None and (self.weights or self.minimise != "cost" or greedy):
            yield "utility_usd is compared with dollars. Leave out weights, minimise and limited"
        if self.reroute is not None and greedy:
            yield "only limited: Exact keeps to reroute. Give that, or leave one out"
        if self.spare.regions and greedy:
            yield "only limited: method: exact respects spare.regions. Give that, or leave one out"
        if self.periods == "all" and greedy:
            yield "periods: all always uses the exact method. Give limited: Exact, or periods: one"


class Horizon(Section):
    """The window to plan. Default: the last day of a long trace, or the last half of a short one.

    A window inside the trace is planned with the data known at each moment, and simulated with the
    requests that came. A window after its end uses the forecast for both.
    """

    # A moment inside the trace, or end: right after it; default: the last day.
    start: Moment | Literal["end"] | None = None
    duration_s: Annotated[float, Field(gt=0, le=366 * 86_400)] | None = None  # length of the window
    # Seconds between decisions. Counts of longer bins are interpolated. Default: an hour, or less
    # for short traces.
    period_s: Annotated[float, Field(gt=0, le=366 * 86_400)] | None = None
    lead_s: Delay | None = None  # seconds from a decision to its period; default: startup_s
