"""Sections of the scenario file on traffic and its SLOs."""

from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from planner.schema_types import BinS, CheckedSection, Milliseconds, Moment, Name, Section, Share
from simulation.arrays import FloatArray

MONTH_S = 365.25 / 12 * 86_400


class Tier(CheckedSection):
    """A class of requests with its limits."""

    name: Name  # name of the tier
    ttft_ms: Milliseconds | None = None  # limit of the time to the first token
    tbt_ms: Milliseconds | None = None  # limit of the mean gap between output tokens
    e2e_ms: Milliseconds | None = None  # limit of the whole request
    # Share of requests that must meet every limit, %.
    percentile: Annotated[float, Field(gt=0, lt=100)] = 95
    deferrable: bool = False  # requests may wait in a queue (NIW)
    # Seconds until a deferrable request is urgent; default: 10/24 of e2e_ms.
    priority_after_s: Annotated[float, Field(ge=0, le=31_536_000)] | None = None
    # Worth of a request served within every limit, in any unit. If capacity is short, `limited`
    # serves the demand with the most utility.
    utility: Annotated[float, Field(ge=0, le=1_000_000_000)] = 0.0

    def _faults(self) -> Iterator[str]:
        if self.ttft_ms is None and self.tbt_ms is None and self.e2e_ms is None:
            yield "give at least one of ttft_ms, tbt_ms and e2e_ms"
        if self.priority_after_s is None:
            return
        if not self.deferrable:
            yield "priority_after_s needs a deferrable tier. Set deferrable: true"
        if self.e2e_ms is not None and self.priority_after_s * 1000 > self.e2e_ms:
            yield "priority_after_s is past the deadline, e2e_ms. Choose a shorter one"


class Lengths(Section):
    """Tokens per request, if the file has none: log-normal with this mean and spread."""

    mean: Annotated[float, Field(gt=0, le=1_000_000)]  # mean tokens of a request; log-normal
    cv: Annotated[float, Field(ge=0, le=100)] = 1.0  # coefficient of variation


Shape = Literal["flat", "office", "worldwide", "campus", "evening"]
ByHour = Annotated[
    list[Annotated[float, Field(ge=0, le=1_000_000)]], Field(min_length=24, max_length=24)
]


class Launch(CheckedSection):
    """Traffic without a trace: its amount, and its shape over day and week.

    Traffic before the window is drawn too, so that a plan has a history to forecast from.
    """

    rps: Annotated[float, Field(gt=0, le=1_000_000)] | None = (
        None  # mean requests per second over a week
    )
    requests_per_day: Annotated[float, Field(gt=0, le=1e11)] | None = None  # or per day
    day: Shape | ByHour = "office"  # a known shape, or relative rates by hour of local time
    # Requests of a weekend day as a share of a weekday's. Default: from the shape.
    weekend: Annotated[float, Field(ge=0, le=10)] | None = None
    utc_offset_h: Annotated[float, Field(ge=-12, le=14)] = 0  # local time less UTC
    # Coefficient of variation of an hour around its shape (Azure 2024: 0.08 to 0.10).
    variation: Annotated[float, Field(ge=0, le=2)] = 0.1
    begins: datetime | None = None  # needed if no trace gives the begin of the window

    def _faults(self) -> Iterator[str]:
        if (self.rps is None) == (self.requests_per_day is None):
            yield "give either rps (requests/s on average) or requests_per_day"
        if not isinstance(self.day, str) and not any(self.day):
            yield "day has no hour with any requests. Give one of its 24 numbers above 0"


class Source(CheckedSection):
    """A trace, a part of one, or a launch, and where its requests go.

    Labels of the file apply unless ``model``, ``regions`` and ``tiers`` replace them.
    """

    trace: str | None = None  # name of a stored trace
    file: str | None = None  # path relative to the scenario file; command line only
    # Zone of local times in the file. Default: UTC.
    timezone: Annotated[str, Field(max_length=60)] | None = None
    launch: Launch | None = None  # traffic without a trace
    series: str | None = None  # one series of a demand file, or one model label of a trace
    model: Name | None = None  # model that serves it; default: the label in the file
    regions: dict[Name, Share] = {}  # share of the requests by home region
    tiers: dict[Name, Share] = {}  # share of the requests by tier
    scale: Annotated[float, Field(gt=0, le=1_000_000)] = 1.0  # factor on the number of requests
    input_tokens: Lengths | None = None  # lengths, if the file has none
    output_tokens: Lengths | None = None  # lengths, if the file has none
    # Share of input tokens that a prefix cache has; needs prefix_caching. Default: the file's
    # cached_tokens.
    cached_share: Annotated[float, Field(ge=0, lt=1)] | None = None
    # For counts: variance over mean of the requests per second within a bin; 1 is Poisson.
    dispersion: Annotated[float, Field(ge=1, le=1000)] = 1.0

    def _faults(self) -> Iterator[str]:
        if (self.trace is not None) + (self.file is not None) + (self.launch is not None) != 1:
            yield "give either trace (a stored trace's name), file (a path), or launch (no trace)"
        if self.timezone is not None and self.file is None:
            yield "timezone is for a file. A stored trace has its zone from its upload"
        if self.launch is not None:
            needed = "model", "input_tokens", "output_tokens"
            if missing := [name for name in needed if getattr(self, name) is None]:
                yield f"a launch needs {', '.join(missing)} too"
            if self.series is not None:
                yield "series belongs to a file. Leave it out with launch"
        for name in ("regions", "tiers"):
            shares = getattr(self, name)
            if shares and abs(sum(shares.values()) - 1) > 1e-6:
                yield f"the shares of {name} must add up to 1, not {sum(shares.values()):g}"


class Growth(Section):
    """Growth of the traffic after its end, for windows after it."""

    factor: Annotated[float, Field(gt=0, le=1000)] = 1.0  # factor on the forecast
    # Growth per month, compounded: 0.05 is 5%.
    per_month: Annotated[float, Field(ge=-0.9, le=10)] = 0.0

    def __bool__(self) -> bool:
        return self.factor != 1.0 or self.per_month != 0.0

    def at(self, after_s: float | FloatArray) -> FloatArray:
        """Return the growth factor ``after_s`` seconds after the end of the traffic."""
        months = np.asarray(after_s, np.float64) / MONTH_S
        return np.asarray(self.factor * (1.0 + self.per_month) ** months, np.float64)

    @property
    def words(self) -> str:
        """Return the growth as "1.5 times, and 4.0% more each month"; "" without growth."""
        phrases = [f"{self.factor:.4g} times"] if self.factor != 1.0 else []
        if self.per_month:
            direction = "more" if self.per_month > 0 else "less"
            phrases.append(f"{abs(self.per_month):.1%} {direction} each month")
        return ", and ".join(phrases)


class Traffic(Section):
    """What arrives."""

    # Traces, or launches without a trace.
    sources: Annotated[list[Source], Field(min_length=1, max_length=1000)]
    # End of known traffic; later data is not used. Default: the end of the data.
    until: Moment | None = None
    growth: Growth = Growth()  # growth in windows after the traffic
    bin_s: BinS | None = None  # default: 900 s for traces of days, 60 s for traces of hours
    # With more requests, one of several equal cells of the fleet is simulated.
    max_replayed: Annotated[int, Field(ge=1000, le=200_000_000)] = 100_000_000
