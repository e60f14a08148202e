"""Define the results of plan versus actual: the replicas of an active plan, and how well it did."""

from dataclasses import dataclass, field
from datetime import datetime

from planner.domain.serialise import KEY, MERGED
from simulation.arrays import FloatArray, IntArray


@dataclass(frozen=True, slots=True, eq=False)
class RequestedPool:
    """The replicas that a plan requested for one pool over time.

    ``replicas[i]`` apply from ``times_s[i]`` (epoch seconds) on.
    """

    model: str
    region: str
    gpu: str
    tp: int | None  # None in plans of older releases, like market and arrangement
    role: str
    market: str | None
    arrangement: str | None
    times_s: FloatArray
    replicas: IntArray


@dataclass(frozen=True, slots=True)
class ForecastBin:
    """The plan's forecast of one bin of a series, in input tokens/s."""

    mean: float
    planned: float


@dataclass(frozen=True, slots=True)
class DemandError:
    """The error of the plan's forecast over all series, in input tokens.

    Errors are None if the run with the forecast was deleted, or if no tokens came.
    """

    wape: float | None  # sum of absolute errors of the mean over the sum of actual tokens
    bias: float | None  # excess of the mean forecast, as a share of actual tokens
    covered: float | None  # share of actual tokens within the planned level
    hours: float  # observed hours


@dataclass(frozen=True, slots=True)
class Hour:
    """One period of a plan: input tokens/s of all series, and replicas of all pools."""

    begins: datetime
    forecast_tps: float | None  # mean forecast; None: not stored
    planned_tps: float | None  # largest planned level of a bin
    came_tps: float | None  # actual mean; None: not observed
    peak_tps: float | None  # largest actual rate of a bin
    # Replicas that the plan requested and that serve.
    plan_replicas: int = field(metadata={KEY: "held"})
    # Replicas of the cheapest plan for the known traffic; None: there is none.
    needed_replicas: int | None = field(metadata={KEY: "needed"})


@dataclass(frozen=True, slots=True)
class LengthDrift:
    """The mean tokens of a model's requests before the window and in it.

    ``flagged``: a mean differs by more than a tenth, and by more than chance explains.
    """

    model: str
    input_known: float  # before the window
    input_came: float  # in the window
    output_known: float
    output_came: float
    flagged: bool


@dataclass(frozen=True, slots=True)
class SpeedDrift:
    """The observed iteration time over the profile's (``times``), at the mean load.

    ``low`` and ``high`` are the ends of the 95% interval. ``flagged``: the drift exceeds a
    twentieth, and the interval excludes 1.
    """

    model: str
    gpu: str
    tp: int
    observations: int
    times: float
    low: float
    high: float
    flagged: bool
    since: datetime | None = None  # if flagged: start of the drift
    region: str = ""  # of the observation

    @property
    def sentence(self) -> str:
        """Return the drift as a clause for a sentence."""
        direction = "longer" if self.times > 1 else "shorter"
        region_words = f" in {self.region}" if self.region else ""
        since = f" since {self.since.day} {self.since:%b %Y, %H:%M} UTC" if self.since else ""
        return (
            f"the speed of {self.model} on {self.gpu}{region_words} has drifted: iterations take "
            f"{abs(self.times - 1):.0%} {direction} than its profile says{since}"
        )


SpeedKey = tuple[str, str, str, str, int]  # scenario, model, region, GPU type, tp


@dataclass(frozen=True, slots=True)
class JudgedSpeed:
    """The speed drift in an active plan, as stored with the live source that measured it.

    ``told``: a notification of the drift was sent.
    """

    drift: SpeedDrift = field(metadata={MERGED: True})
    scenario: str
    run: int
    until: datetime  # end of the data
    told: bool = False

    @property
    def key(self) -> SpeedKey:
        """Return the key of a speed: scenario, model, region, GPU type and GPUs per replica."""
        drift = self.drift
        return self.scenario, drift.model, drift.region, drift.gpu, drift.tp


@dataclass(frozen=True, slots=True)
class PlanEvaluation:
    """Plan versus actual: how a plan did on the traffic that came.

    ``cost_usd`` and ``gpu_hours`` come from a replay of that traffic. The ``needed`` fields are
    those of the cheapest plan for it, period by period (oracle).
    """

    begins: datetime
    ends: datetime
    demand: DemandError
    attainment: dict[str, float | None]  # SLO attainment by tier, of the actual requests
    targets: dict[str, float]
    met: dict[str, bool]
    cost_usd: float
    gpu_hours: float
    replica_hours: float  # requested by the plan
    needed_replica_hours: float | None
    needed_usd: float | None
    planned_usd: float  # cost of the plan's replicas, without cold starts
    short_hours: float  # hours with less capacity than the actual peak
    lengths: tuple[LengthDrift, ...]
    speed: tuple[SpeedDrift, ...]
    hours: tuple[Hour, ...]
    notes: tuple[str, ...]

    @property
    def missed_tiers(self) -> tuple[str, ...]:
        """Return the tiers that missed their SLO attainment targets."""
        return tuple(tier for tier, is_met in self.met.items() if not is_met)

    @property
    def sentence(self) -> str:
        """Return the result in a sentence: targets, forecast error, cost and drifts."""
        parts = [
            f"It missed {', '.join(self.missed_tiers)}" if self.missed_tiers else "It came true",
            *(
                f"{tier}: SLO attainment {share:.1%} (target {100 * self.targets[tier]:.4g}%)"
                for tier, share in self.attainment.items()
                if share is not None
            ),
        ]
        error, bias = self.demand.wape, self.demand.bias
        if error is not None and bias is not None:
            direction = "above" if bias > 0 else "below"
            parts.append(
                f"demand WAPE {error:.1%} (forecast {abs(bias):.1%} {direction} actual demand)"
            )
        if self.needed_usd is not None and self.needed_replica_hours is not None:
            parts.append(
                f"{self.replica_hours:,.0f} replica-hours planned for ${self.planned_usd:,.2f}, "
                f"needed: {self.needed_replica_hours:,.0f} for ${self.needed_usd:,.2f}"
            )
        drifted = [length.model for length in self.lengths if length.flagged]
        if drifted:
            parts.append(f"lengths of {', '.join(drifted)} drifted")
        slow = [speed.sentence for speed in self.speed if speed.flagged]
        return "; ".join([*parts, *slow]) + "."
