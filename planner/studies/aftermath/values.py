"""What was held while a plan was in force, and what it is found to have been worth."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from simulation.arrays import FloatArray, IntArray


@dataclass(frozen=True, slots=True, eq=False)
class HeldPool:
    """Replicas of one deployment from ``times_s[i]`` on, both ``[steps]``, epoch seconds."""

    model: str
    region: str
    gpu: str
    tp: int | None  # None, as the next two, where the plan is of a release that did not keep it
    role: str
    market: str | None
    arrangement: str | None
    times_s: FloatArray
    replicas: IntArray


@dataclass(frozen=True, slots=True)
class ForecastBin:
    """What a bin of a series was told to have, input tokens/s, by a forecast made before."""

    mean: float
    planned: float


@dataclass(frozen=True, slots=True)
class DemandError:
    """Of the forecast that the plan was made on, over all series; input tokens. None where the run
    that told it is gone, or nothing came."""

    wape: float | None  # sum of absolute errors of the mean over the sum of what came
    bias: float | None  # of what came: what the mean was too high by
    covered: float | None  # share of what came within what was planned for
    hours: float  # that were observed


@dataclass(frozen=True, slots=True)
class Hour:
    """One period: input tokens/s of all series, and replicas of all pools."""

    begins: datetime
    forecast_tps: float | None
    planned_tps: float | None  # the most of any bin
    came_tps: float | None
    peak_tps: float | None  # of any bin
    held: int
    needed: int | None


@dataclass(frozen=True, slots=True)
class LengthDrift:
    """Of a model's requests: mean tokens as known before the window, and in it. ``flagged``: one
    differs by more than a tenth, and by more than chance."""

    model: str
    input_known: float
    input_came: float
    output_known: float
    output_came: float
    flagged: bool


@dataclass(frozen=True, slots=True)
class SpeedDrift:
    """Of a profile, by the Kalman filter on observed iteration times: how many times as long an
    iteration takes as the profile says, at the mean load, with its 95% interval. ``flagged``: by
    more than a twentieth, and the interval does not hold 1."""

    model: str
    gpu: str
    tp: int
    observations: int
    times: float
    low: float
    high: float
    flagged: bool
    since: datetime | None = None  # where flagged: from when on it was off by as much
    region: str = ""  # where it was observed

    @property
    def sentence(self) -> str:
        way = "longer" if self.times > 1 else "shorter"
        here = f" in {self.region}" if self.region else ""
        since = f" since {self.since.day} {self.since:%b %Y, %H:%M} UTC" if self.since else ""
        return (
            f"the speed of {self.model} on {self.gpu}{here} has drifted: iterations take "
            f"{abs(self.times - 1):.0%} {way} than its profile says{since}"
        )


@dataclass(frozen=True, slots=True)
class CameTrue:
    """A plan against what came of its time. Costs are of the replay of what came; ``needed`` is the
    cheapest plan that knew it, period by period, and what that charges."""

    begins: datetime
    ends: datetime
    demand: DemandError
    attainment: dict[str, float | None]  # by tier, of the requests that came
    targets: dict[str, float]
    met: dict[str, bool]
    cost_usd: float
    gpu_hours: float
    replica_hours: float  # that the plan asked for
    needed_replica_hours: float | None
    needed_usd: float | None
    planned_usd: float  # that the plan charges, without what starts took
    short_hours: float  # in which what was held carries less than the peak that came
    lengths: tuple[LengthDrift, ...]
    speed: tuple[SpeedDrift, ...]
    hours: tuple[Hour, ...]
    notes: tuple[str, ...]

    @property
    def missed(self) -> tuple[str, ...]:
        return tuple(tier for tier, is_met in self.met.items() if not is_met)

    @property
    def sentence(self) -> str:
        parts = [
            f"It missed {', '.join(self.missed)}" if self.missed else "It came true",
            *self._in_time(),
        ]
        if (off := self.demand.wape) is not None and (bias := self.demand.bias) is not None:
            way = "more" if bias > 0 else "less"
            parts.append(f"demand was off by {off:.1%} ({abs(bias):.1%} {way} forecast than came)")
        if self.needed_usd is not None and self.needed_replica_hours is not None:
            parts.append(
                f"{self.replica_hours:,.0f} replica-hours were held for ${self.planned_usd:,.2f}; "
                f"knowing what came {self.needed_replica_hours:,.0f} for ${self.needed_usd:,.2f}"
            )
        drifted = [length.model for length in self.lengths if length.flagged]
        if drifted:
            parts.append(f"lengths of {', '.join(drifted)} drifted")
        slow = [speed.sentence for speed in self.speed if speed.flagged]
        return "; ".join([*parts, *slow]) + "."

    def _in_time(self) -> list[str]:
        return [
            f"{share:.1%} of {tier} in time ({100 * self.targets[tier]:.4g}% asked)"
            for tier, share in self.attainment.items()
            if share is not None
        ]
