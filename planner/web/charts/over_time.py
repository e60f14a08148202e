"""Draw replicas, forecasts and rates over time."""

from typing import Any

import polars as pl

from planner.domain.formats import zone_name
from planner.outputs.render.figure import MAX_POINTS, TRACE_TIME


def times(table: pl.DataFrame, column: str, clock: str) -> list[Any]:
    """Return a time column as ISO text for an axis."""
    zone = "UTC" if clock == "relative" else zone_name()
    moments = table[column].dt.convert_time_zone(zone)
    return moments.dt.strftime("%Y-%m-%dT%H:%M:%S").to_list()


def axis_title(clock: str) -> str:
    """Return the title of a time axis: the reader's zone, or that times count from the trace."""
    return TRACE_TIME if clock == "relative" else zone_name()


def steps(table: pl.DataFrame, time: str, value: str, every: str = "") -> pl.DataFrame:
    """Return only the rows at which a step line changes, and the first and last row.

    ``every`` is a time span such as "1h". The first row of each span is kept too, so that a
    constant line has points to select. A line that still has too many points is averaged over
    equal spans.
    """
    table = table.sort(time)
    is_change = (pl.col(value) != pl.col(value).shift(1)).fill_null(value=True)
    is_last = pl.int_range(pl.len()) == pl.len() - 1
    span = pl.col(time).dt.truncate(every) if every else pl.lit(0)  # one span for all rows
    begins_span = (span != span.shift(1)).fill_null(value=False)
    points = table.filter(is_change | is_last | begins_span)
    return thin(points, time, value) if points.height > MAX_POINTS else points


def thin(table: pl.DataFrame, time: str, *values: str) -> pl.DataFrame:
    """Return the columns ``values`` as means over at most MAX_POINTS equal spans of ``time``.

    A table with at most MAX_POINTS rows is returned as it is.
    """
    if table.height <= MAX_POINTS:
        return table
    epoch_ms = table[time].dt.epoch("ms").to_numpy()
    span_ms = max(1, round((epoch_ms.max() - epoch_ms.min()) / MAX_POINTS))
    spans = table.sort(time).group_by_dynamic(time, every=f"{span_ms}ms")
    return spans.agg(pl.col(value).mean() for value in values)
