"""What is said of a trace: plain figures, each with its unit."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from forecasting.demand import DemandSeries
from planner.studies.traffic.ranking import Stretch

BY = ("model", "region", "tier", "series")  # what traffic can be told apart by
UNSAID = "not said"  # the label of requests without one
# Shares of requests at which a distribution of lengths is given.
LEVELS = (0.0, 0.01, *(round(0.02 * step, 2) for step in range(1, 50)), 0.99, 0.995, 0.999, 1.0)


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens per request, of all requests or of those with one label.

    From requests every figure is exact. A file of counts per bin has the mean alone: what lies
    within a bin it does not say.
    """

    field: str  # "input_tokens" or "output_tokens"
    by: str  # "all", or one of BY
    label: str
    requests: float
    mean: float
    cv: float | None  # standard deviation over mean
    p50: float | None
    p95: float | None
    p99: float | None
    most: float | None
    quantiles: tuple[float, ...]  # tokens at each of LEVELS; empty where only the mean is known


@dataclass(frozen=True, slots=True)
class Volume:
    """How much came under one label."""

    by: str
    label: str
    requests: float | None  # None: the file does not count them
    input_tokens: float | None
    output_tokens: float | None
    share: float | None  # of the requests of all labels; of tokens where requests are not counted
    mean: float  # per second, of the unit of the whole; over the bins that are known
    peak: float  # per second, in the busiest bin
    peak_to_mean: float | None
    autocorrelation_day: float | None  # of amounts an hour (or bin) each, a day apart
    autocorrelation_week: float | None
    utility: float | None  # sum over its requests, where the file gives it
    utility_per_request: float | None


@dataclass(frozen=True, slots=True)
class Cell:
    """Requests (or tokens) of one model in one region for one tier."""

    model: str
    region: str
    tier: str
    amount: float
    share: float


@dataclass(frozen=True, slots=True)
class Imbalance:
    """How unevenly a kind of label shares the traffic."""

    by: str
    labels: int
    most: str
    most_share: float
    least: str
    least_share: float
    effective: float  # labels of equal share that would be as uneven: 1 over the sum of squares


@dataclass(frozen=True, slots=True)
class Burstiness:
    """Amounts per bin of one width."""

    bin_s: float
    bins: int
    dispersion: float | None  # variance over mean; 1 for Poisson arrivals at one rate
    within_10_min: float | None  # the same about the mean of ten minutes: without the day's cycle
    peak_to_mean: float | None
    cv: float | None
    empty: float  # share of bins without anything


@dataclass(frozen=True, slots=True)
class Rhythm:
    """Hours and weekdays, in UTC; counted from the trace's origin on a relative clock."""

    bin_s: float  # of the autocorrelations
    autocorrelation_day: float | None  # None: less than two days
    autocorrelation_week: float | None  # None: less than two weeks
    weekday_hour: tuple[tuple[float | None, ...], ...]  # [7][24] mean per second; None: not seen
    hour: tuple[float | None, ...]  # [24] mean per second over all days
    peak_hour: int | None
    trough_hour: int | None
    peak_to_trough: float | None
    weekend_to_weekday: float | None  # None on a relative clock: nobody knows the weekday


@dataclass(frozen=True, slots=True)
class Day:
    """One calendar day; what is not known of it is not in its sums."""

    start_s: float
    name: str
    requests: float | None
    input_tokens: float | None
    output_tokens: float | None
    seen: float  # share of its bins that are known
    series: int  # that cover it
    rank: int | None  # 1 is the busiest; None where too little of it is known
    of_busiest: float | None  # its amount over that of the busiest


@dataclass(frozen=True, slots=True)
class Days:
    """All days of a trace, ranked."""

    days: tuple[Day, ...]
    ranked: int
    busiest_day: Stretch | None
    busiest_week: Stretch | None
    words: tuple[str, ...]  # the last day, busiest day and busiest week in sentences


@dataclass(frozen=True, slots=True)
class LostBins:
    """Bins without a request that cannot be demand."""

    series: str  # "all" where the whole trace has it
    start_s: float
    end_s: float
    bins: int
    missing: float  # that the bins around would have had in it
    after: float | None  # what came in the bin after it, over what was to be expected


@dataclass(frozen=True, slots=True)
class Character:
    """A trace characterised; every list is empty where the file says nothing of the kind."""

    trace: str
    kind: str  # "requests" or "demand"
    clock: str  # "utc" or "relative": then it starts at epoch 0
    unit: str  # of rates, ranks and rhythm: requests, or tokens where requests are not counted
    start_s: float
    end_s: float
    bin_s: float  # of what is summed in bins; a demand file's own
    series: int
    total: Volume
    volumes: tuple[Volume, ...]
    cells: tuple[Cell, ...]  # the largest
    imbalance: tuple[Imbalance, ...]
    levels: tuple[float, ...]  # of the lengths' quantiles
    lengths: tuple[Lengths, ...]
    rhythm: Rhythm
    interarrival_cv: float | None  # of the gaps between requests: 1 for Poisson arrivals
    burstiness: tuple[Burstiness, ...]
    days: Days
    gaps: int  # bins of the total of which nothing was known from the file
    outages: tuple[LostBins, ...]
    outages_found: int  # of which `outages` has the longest
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Characterisation:
    """The figures, and what charts and rankings are made of.

    ``rates`` has by, label, place (0 for the largest), start_s, seconds, and the amounts requests,
    input_tokens, output_tokens and total_tokens of each stretch (null: not known).
    """

    character: Character
    rates: pl.DataFrame
    total: tuple[DemandSeries, ...]  # of each amount that the file counts, in bins of ``bin_s``
