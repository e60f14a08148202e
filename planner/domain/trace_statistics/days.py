"""Rank the days of a trace, because the size of a plan depends on its day."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from forecasting.demand import DemandSeries
from planner.domain.trace_statistics.figures import Day, Days
from planner.domain.trace_statistics.grid import Grid
from planner.domain.traffic.window import DAY_S
from planner.domain.traffic.window_rank import (
    SEEN,
    WEEK_S,
    Stretch,
    busiest,
    day_words,
    span_words,
    stretches,
    window_rank,
)
from simulation.arrays import BoolArray, FloatArray

LISTED = 1100  # most listed days (three years); a longer trace lists its busiest
COVERED = 0.99  # share of a day that a series must span to count as present


def days(grid: Grid, lost: BoolArray, clock: str) -> Days:
    """Return the calendar days of the trace in order, each with its rank by demand.

    Of more than ``LISTED`` days, the busiest are listed. A day with too many unknown bins has no
    rank. ``lost [bins]`` marks bins that are not real demand. Returns no days if bins exceed a day.
    """
    if grid.bin_s > DAY_S:
        return Days((), 0, None, None, ())
    amounts = grid.total(grid.unit)
    total = replace(amounts, values=np.where(lost, np.nan, amounts.values))
    every_day = _every_day(grid, total, clock)
    top_day, top_week = busiest(total, DAY_S), busiest(total, WEEK_S)
    words = tuple(_words(every_day, total, top_week, len(grid.names), clock))
    ranked = sum(day.rank is not None for day in every_day)
    listed = every_day
    if len(every_day) > LISTED:
        words = (*words, f"{len(every_day):,} days; the {LISTED:,} busiest are listed.")
        busy_first = sorted(every_day, key=lambda day: -(day.of_busiest or 0.0))
        listed = sorted(busy_first[:LISTED], key=lambda day: day.start_s)
    return Days(tuple(listed), ranked, top_day, top_week, words)


def _every_day(grid: Grid, total: DemandSeries, clock: str) -> list[Day]:
    """Return all calendar days of the trace in order; ``total`` is its demand over all series."""
    day_of_bin = np.floor(grid.edges_s / DAY_S + 1e-9).astype(np.int64)
    first = int(day_of_bin[0])
    count = int(day_of_bin[-1] - day_of_bin[0]) + 1

    def per_day(values: FloatArray | BoolArray) -> FloatArray:
        """Return the sum of ``values [bins]`` over each day; unknown bins count as 0."""
        return np.bincount(day_of_bin - first, np.nan_to_num(values), count).astype(np.float64)

    observed = per_day(~np.isnan(total.values)) * grid.bin_s / DAY_S
    first_bins = np.searchsorted(day_of_bin, first + np.arange(count))
    present_bins = np.add.reduceat(grid.present, first_bins, axis=1, dtype=np.int64)
    series = (present_bins * grid.bin_s / DAY_S >= COVERED).sum(axis=0)
    sums = {field: per_day(grid.summed(field)) for field in grid.amounts}
    # Only days with enough known bins are compared.
    amount_of = {stretch.start_s: stretch.amount for stretch in stretches(total, DAY_S)}
    ascending = np.sort(list(amount_of.values()))
    every_day = []
    for day in range(count):
        start_s = (first + day) * DAY_S
        amount = amount_of.get(start_s)
        rank = of_busiest = None
        if amount is not None:
            busier = ascending.size - np.searchsorted(ascending, amount, side="right")
            rank = 1 + int(busier)
            of_busiest = amount / ascending[-1] if ascending[-1] else None
        every_day.append(
            Day(
                start_s=start_s,
                name=day_words(start_s, clock),
                requests=_known_sum(sums, "requests", day),
                input_tokens=_known_sum(sums, "input_tokens", day),
                output_tokens=_known_sum(sums, "output_tokens", day),
                seen=min(1.0, float(observed[day])),
                series=int(series[day]),
                rank=rank,
                of_busiest=of_busiest,
            )
        )
    return every_day


def _words(
    days_listed: list[Day], total: DemandSeries, top_week: Stretch | None, series: int, clock: str
) -> Iterator[str]:
    """Yield sentences on the last, the busiest and the unranked days."""
    ranked = [day for day in days_listed if day.rank is not None]
    if not ranked:
        yield f"No day has {SEEN:.0%} or more of its data, so days are not ranked."
        return
    last = ranked[-1].start_s
    yield f"Last whole day: {window_rank(total, last, last + DAY_S, clock).sentence}"
    if top_week is not None and len(ranked) > 7:
        yield f"Busiest seven days: {span_words(top_week.start_s, top_week.end_s, clock)}."
    without = len(days_listed) - len(ranked)
    if without:
        yield (
            f"{without:,} partial {'day is' if without == 1 else 'days are'} not ranked, with less "
            f"than {SEEN:.0%} of the data."
        )
    partly = sum(day.series < series for day in ranked)
    if partly:
        yield (
            f"{partly:,} of {len(ranked):,} days lack some of the {series:,} series. Their totals "
            "are too low."
        )


def _known_sum(sums: dict[str, np.ndarray], field: str, day: int) -> float | None:
    """Return a day's sum of ``field``; None if it is not known."""
    return float(sums[field][day]) if field in sums else None
