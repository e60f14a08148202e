"""Generate past traffic from the scenario's description of a service that has no trace yet.

Such a description is called a launch. The generated traffic is then used as a trace is.
"""

from datetime import UTC
from math import ceil, floor

import numpy as np

from planner.domain.traffic.window import DAY_S, HOUR_S, UTC_CLOCK
from planner.errors import ScenarioError
from planner.inputs.catalogue.shapes import DayShape, shapes
from planner.inputs.ingest.store import DemandColumns
from planner.inputs.scenario.schema.traffic import Launch, Source
from simulation.arrays import FloatArray, IntArray
from simulation.performance.specs import Provenance

WEEKS_BEFORE_LAUNCH = 4  # weeks drawn before the described traffic begins, if there is no trace
DEFAULT_BIN_S = 900.0
EPOCH_WEEKDAY = 3  # 1 January 1970 was a Thursday, counted from Monday


def shape_of(launch: Launch) -> DayShape:
    """Return the shape of a day of a launch: a built-in one, or the scenario's own 24 numbers."""
    if isinstance(launch.day, str):
        return shapes()[launch.day]
    mean = sum(launch.day) / 24
    by_hour = tuple(rate / mean for rate in launch.day)
    provenance = Provenance("assumed", "scenario")
    return DayShape("own", "24 custom numbers", by_hour, weekend=1.0, provenance=provenance)


def weekend_of(launch: Launch) -> float:
    """Return the requests of a weekend day of a launch, divided by those of a weekday."""
    return shape_of(launch).weekend if launch.weekend is None else launch.weekend


def mean_rps(launch: Launch) -> float:
    """Return the mean requests/s of a launch over a week."""
    return launch.rps if launch.rps is not None else (launch.requests_per_day or 0.0) / DAY_S


def expected_counts(
    launch: Launch, start_s: float, bin_s: float, bins: int, clock: str
) -> FloatArray:
    """Return the expected requests of a launch in each bin from ``start_s`` on, ``[bins]``.

    The rate is constant within each hour of local time. ``clock`` is UTC_CLOCK if times have dates.
    Otherwise day 1 counts as a Monday.
    """
    local_s = start_s + HOUR_S * launch.utc_offset_h
    first_hour = floor(local_s / HOUR_S)
    hours = np.arange(first_hour, ceil((local_s + bins * bin_s) / HOUR_S))
    first_weekday = EPOCH_WEEKDAY if clock == UTC_CLOCK else 0  # of time 0; 0 is Monday
    rate = _hourly_rates(launch, hours, first_weekday)
    # Requests up to each hour; the counts are the differences at the edges of bins.
    arrived = np.concatenate([[0.0], np.cumsum(rate * HOUR_S)])
    edges = (local_s + bin_s * np.arange(bins + 1)) / HOUR_S - first_hour
    return np.diff(np.interp(edges, np.arange(len(arrived)), arrived))


def _hourly_rates(launch: Launch, hours: IntArray, first_weekday: int) -> FloatArray:
    """Return the requests/s of a launch in ``hours``, counted from a midnight of that weekday."""
    shape, weekend_share = shape_of(launch), weekend_of(launch)
    weekday_rps = mean_rps(launch) * 7 / (5 + 2 * weekend_share)
    weekday = (hours // 24 + first_weekday) % 7
    day_factor = np.where(weekday >= 5, weekend_share, 1.0)
    return np.asarray(weekday_rps * np.asarray(shape.by_hour)[hours % 24] * day_factor)


def draw_counts(
    launch: Launch, expected: FloatArray, bin_s: float, rng: np.random.Generator
) -> FloatArray:
    """Draw counts per bin around ``expected [bins]``.

    Each hour is multiplied by a gamma variate with mean 1 and coefficient of variation
    ``launch.variation``. The counts of each bin are then Poisson. Without variation, return
    ``expected`` unchanged.
    """
    if not launch.variation:
        return expected
    bins_per_hour = max(1, round(HOUR_S / bin_s))
    shape = launch.variation**-2  # of the gamma distribution
    factor_of_hour = rng.gamma(shape, 1 / shape, ceil(len(expected) / bins_per_hour))
    factors = np.repeat(factor_of_hour, bins_per_hour)[: len(expected)]
    return rng.poisson(expected * factors).astype(np.float64)


def described_bins(
    source: Source,
    where: str,
    span: tuple[float, float] | None,
    bin_s: float | None,
    clock: str,
    rng: np.random.Generator,
) -> DemandColumns:
    """Return the launch of a source as counts per bin, drawn at random around its rate.

    The bins cover ``span`` (epoch seconds), the time of the measured sources. Without such sources,
    they cover the time of ``_span_before``. ``where`` names the source in messages.
    """
    launch = source.launch
    if launch is None:
        raise ValueError("a launch is needed")
    width = bin_s or DEFAULT_BIN_S
    if span is None:
        start_s, end_s = _span_before(launch, where, width)
    else:
        first_s, last_s = span
        start_s, end_s = floor(first_s / width) * width, ceil(last_s / width) * width
    bins = round((end_s - start_s) / width)
    expected = expected_counts(launch, start_s, width, bins, clock)
    counts = draw_counts(launch, expected, width, rng)
    name, model = source.model or "launch", source.model
    return DemandColumns(
        name, model, region=None, tier=None, start_s=start_s, bin_s=width, requests=counts,
        input_tokens=None, output_tokens=None, total_tokens=None,
    )  # fmt: skip


def _span_before(launch: Launch, where: str, bin_s: float) -> tuple[float, float]:
    """Return (start, end) of the weeks before a launch begins, in whole bins (epoch s).

    There are ``WEEKS_BEFORE_LAUNCH`` weeks.

    Raises ScenarioError if the launch has no date.
    """
    if launch.begins is None:
        raise ScenarioError(
            f"{where}.launch.begins: no trace says when this begins. Give a date, such as "
            "2027-01-04."
        )
    begins = launch.begins if launch.begins.tzinfo else launch.begins.replace(tzinfo=UTC)
    end_s = floor(begins.timestamp() / bin_s) * bin_s
    return end_s - ceil(WEEKS_BEFORE_LAUNCH * 7 * DAY_S / bin_s) * bin_s, end_s


def words_of(source: Source) -> str:
    """Describe the launch of a source: "4 requests/s on average (345,600 a day), by day ..."."""
    launch = source.launch
    if launch is None:
        raise ValueError("a launch is needed")
    rps, shape = mean_rps(launch), shape_of(launch)
    return (
        f"{rps:,.4g} requests/s on average ({rps * DAY_S:,.0f} a day), by day {shape.name} "
        f"({shape.words}), a weekend day {weekend_of(launch):.0%} of a weekday"
    )
