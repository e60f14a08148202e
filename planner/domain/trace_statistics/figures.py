"""Define the figures of a trace, each with its unit.

A kind of label is a column that splits the traffic, such as "model"; a label is one of its values.
"""

from dataclasses import dataclass

import polars as pl

from forecasting.demand import DemandSeries
from planner.domain.traffic.window_rank import TimeSpan

LABEL_KINDS = ("model", "region", "tier", "series")  # kinds of labels
UNLABELLED = "not said"  # shown for requests without a label
# Levels of the quantiles of lengths.
QUANTILE_LEVELS = (
    0.0,
    0.01,
    *(round(0.02 * step, 2) for step in range(1, 50)),
    0.99,
    0.995,
    0.999,
    1.0,
)


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens per request, of all requests or of those with one label.

    A file of requests has all figures. A file of counts per bin has only the mean (others: None).
    """

    field: str  # "input_tokens" or "output_tokens"
    by: str  # "all", or one of LABEL_KINDS
    label: str
    requests: float
    mean: float
    cv: float | None = None  # standard deviation over mean
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None
    most: float | None = None
    quantiles: tuple[
        float, ...
    ] = ()  # tokens at each of QUANTILE_LEVELS; empty: only the mean is known


@dataclass(frozen=True, slots=True)
class Volume:
    """The traffic of one label."""

    by: str  # "all", or one of LABEL_KINDS
    label: str
    requests: float | None  # None: the file does not count them
    input_tokens: float | None
    output_tokens: float | None
    share: float | None  # share of all requests, or of their tokens
    mean: float  # per second, over the trace without gaps; tokens if requests are not counted
    peak: float  # per second, in the busiest bin
    peak_to_mean: float | None
    autocorrelation_day: float | None  # of hourly amounts (or wider bins) a day apart
    autocorrelation_week: float | None
    utility: float | None  # sum over its requests, if the file has it
    utility_per_request: float | None


@dataclass(frozen=True, slots=True)
class Cell:
    """The traffic of one model in one region for one tier (requests, or tokens)."""

    model: str
    region: str
    tier: str
    amount: float
    share: float


@dataclass(frozen=True, slots=True)
class Imbalance:
    """The imbalance of traffic between the labels of one kind."""

    by: str
    labels: int
    most: str
    most_share: float
    least: str
    least_share: float
    effective: float  # effective number of labels: 1 over the sum of squared shares


@dataclass(frozen=True, slots=True)
class Burstiness:
    """The variation of the amounts per bin, for one bin width."""

    bin_s: float
    bins: int
    dispersion: float | None  # variance over mean; 1 for Poisson arrivals at one rate
    within_10_min: float | None  # the same within ten minutes, so without the daily cycle
    peak_to_mean: float | None
    cv: float | None
    empty: float  # share of empty bins


@dataclass(frozen=True, slots=True)
class Rhythm:
    """Rates by hour and weekday in UTC; for a relative clock, counted from the trace's start."""

    bin_s: float  # bin of the autocorrelations, s
    autocorrelation_day: float | None  # None: less than two days
    autocorrelation_week: float | None  # None: less than two weeks
    weekday_hour: tuple[tuple[float | None, ...], ...]  # [7][24] mean per second; None: not seen
    hour: tuple[float | None, ...]  # [24] mean per second over all days
    peak_hour: int | None
    trough_hour: int | None
    peak_to_trough: float | None
    weekend_to_weekday: float | None  # None for a relative clock: weekdays are unknown


@dataclass(frozen=True, slots=True)
class Day:
    """One calendar day; unknown bins are not in its sums."""

    start_s: float
    name: str
    requests: float | None
    input_tokens: float | None
    output_tokens: float | None
    seen: float  # share of known bins
    series: int  # number of series that cover it
    rank: int | None  # 1 is the busiest; None: too many unknown bins
    of_busiest: float | None  # amount over that of the busiest day


@dataclass(frozen=True, slots=True)
class Days:
    """All days of a trace, ranked."""

    days: tuple[Day, ...]
    ranked: int
    busiest_day: TimeSpan | None
    busiest_week: TimeSpan | None
    words: tuple[str, ...]  # sentences on the last day, the busiest week and partial days


@dataclass(frozen=True, slots=True)
class LostBins:
    """A run of bins without a request that is an outage rather than demand."""

    series: str  # "all": an outage of the whole trace
    start_s: float
    end_s: float
    bins: int
    missing: float  # expected amount, from the bins around
    after: float | None  # amount in the next bin over the expected one


@dataclass(frozen=True, slots=True)
class Sessions:
    """Sessions with at least two requests. Each request of a session is a turn."""

    sessions: int
    share: float  # share of requests in these sessions
    turns_mean: float  # per session
    turns_p50: float
    turns_p95: float
    turns_most: int
    gap_s_p50: float  # seconds between the arrivals of two turns
    gap_s_p95: float
    think_s_p50: float | None  # seconds from an answer to the next turn; None: not in the file
    think_s_p95: float | None
    growing: float  # share of later turns with a prompt at least as long as the one before
    growth_p50: float  # prompt tokens that a later turn has more than the one before


@dataclass(frozen=True, slots=True)
class Character:
    """All figures of a trace; a list is empty if the file lacks the data for it."""

    trace: str
    kind: str  # "requests" or "demand"
    clock: str  # "utc" or "relative": then it starts at epoch 0
    unit: str  # of rates, ranks and rhythm: requests, or tokens if requests are not counted
    start_s: float
    end_s: float
    bin_s: float  # width of the bins of the figures
    series: int
    total: Volume
    volumes: tuple[Volume, ...]
    cells: tuple[Cell, ...]  # the largest
    imbalance: tuple[Imbalance, ...]
    levels: tuple[float, ...]  # levels of the quantiles of lengths
    lengths: tuple[Lengths, ...]
    rhythm: Rhythm
    interarrival_cv: float | None  # variation of gaps between requests; Poisson: 1
    burstiness: tuple[Burstiness, ...]
    days: Days
    gaps: int  # bins of the total that are unknown in the file
    outages: tuple[LostBins, ...]
    outages_found: int  # number of all outages; ``outages`` is a limited list
    notes: tuple[str, ...]
    sessions: Sessions | None = None  # None: the file has none with two requests


@dataclass(frozen=True, slots=True, eq=False)
class Characterisation:
    """The figures of a trace, with the data for charts and rankings.

    ``rates`` has a row per label and interval of time. Its columns are by (kind of label), label,
    place (rank of the label by amount, 0 for the largest), start_s, seconds (length of the
    interval), and the amounts requests, input_tokens, output_tokens and total_tokens (null:
    unknown).
    """

    character: Character
    rates: pl.DataFrame
    total: tuple[DemandSeries, ...]  # one per counted amount, in bins of ``bin_s``
