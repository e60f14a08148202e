"""Draw replicas, forecasts and rates over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import polars as pl

from planner.outputs.render.figure import (
    BLUE,
    COLOURS,
    FEW_REPLICAS,
    GREY,
    MAX_POINTS,
    ORANGE,
    PALETTE,
    SKY,
    UTC,
    Figure,
    figure,
    line,
)
from planner.policies.registry import TRAITS

BAND = "rgba(86, 180, 233, 0.25)"
AREA = "rgba(138, 143, 152, 0.18)"

POLICY_LINES: dict[str, tuple[str, str, float]] = {  # colour, dash, width
    name: (COLOURS[style.colour], style.dash, style.width)
    for name, traits in TRAITS.items()
    if (style := traits.style)
}


def times(table: pl.DataFrame, column: str, clock: str) -> list[Any]:
    """Return a time column for an axis: ISO text, or hours since the start on a relative clock."""
    if clock == "relative":
        return (table[column].dt.epoch("ms") / 3.6e6).round(4).to_list()
    moments = table[column]
    return moments.dt.strftime("%Y-%m-%dT%H:%M:%S").to_list()


def axis_title(clock: str) -> str:
    return "hours since the trace began" if clock == "relative" else UTC


def whole_ticks(most: float) -> dict[str, int]:
    """Return the tick settings of an axis of replicas: a short axis shows whole numbers only."""
    return {"dtick": 1} if most <= FEW_REPLICAS else {}


def steps(table: pl.DataFrame, time: str, value: str, every: str = "") -> pl.DataFrame:
    """Keep the rows where a step line changes, and its first and last: fewer points, same picture.

    ``every``: keep also the first row of each such span, so that a constant line has points to
    select. A line that still has too many points is averaged over equal spans.
    """
    table = table.sort(time)
    changed = (pl.col(value) != pl.col(value).shift(1)).fill_null(value=True)
    last = pl.int_range(pl.len()) == pl.len() - 1
    span = pl.col(time).dt.truncate(every) if every else pl.lit(0)
    begins = (span != span.shift(1)).fill_null(value=False)
    kept = table.filter(changed | last | begins)
    return thin(kept, time, value) if kept.height > MAX_POINTS else kept


def thin(table: pl.DataFrame, time: str, *values: str) -> pl.DataFrame:
    """Average a line over equal spans if it has more points than a screen can show."""
    if table.height <= MAX_POINTS:
        return table
    at_ms = table[time].dt.epoch("ms").to_numpy()
    every = f"{max(1, round((at_ms.max() - at_ms.min()) / MAX_POINTS))}ms"
    return (
        table.sort(time).group_by_dynamic(time, every=every).agg(pl.col(v).mean() for v in values)
    )


def pool_rows(table: pl.DataFrame, pool: tuple[str, str] | None) -> pl.DataFrame:
    """Return the rows of one (model, region), or all rows if ``pool`` is None."""
    if pool is None:
        return table
    return table.filter((pl.col("model") == pool[0]) & (pl.col("region") == pool[1]))


def replica_figure(
    replicas: pl.DataFrame,
    demand: pl.DataFrame | None,
    *,
    labels: dict[str, str],
    shown: Sequence[str],
    pool: tuple[str, str] | None,
    clock: str,
    capacity: pl.DataFrame | None = None,
    forecast: pl.DataFrame | None = None,
    height: int = 520,
) -> Figure:
    """Draw demand and capacity in input tokens/s, and below them the replicas of each policy.

    ``replicas`` has columns policy, time, model, region and ready. ``demand`` has time, model,
    region and input_tps. ``capacity`` has policy, time, model, region and capacity_tps, each value
    valid from its time on. ``forecast`` gives the band. Both lines of a policy outside ``shown``
    are hidden until the reader selects it in the legend.
    """
    counts = (
        pool_rows(replicas, pool).group_by("policy", "time").agg(pl.col("ready").sum().round(3))
    )
    lines: list[Any] = []
    grid: pl.DataFrame | None = None  # times at which every line needs a value for the hover text
    if forecast is not None and not forecast.is_empty():
        lines += _band(forecast, pool, clock)
    if demand is not None and not demand.is_empty():
        load = thin(_load(demand, pool, "input_tps"), "time", "input_tps")
        grid = load.select("time")
        lines.append(
            line(
                times(load, "time", clock), load["input_tps"].round(2), "Demand", GREY, width=1,
                fill="tozeroy", fillcolor=AREA, hover="%{y:,.0f} input tokens/s asked",
            )
        )  # fmt: skip
    below: list[Any] = []
    for name, label in labels.items():
        rows = _at(counts.filter(pl.col("policy") == name), "ready", grid)
        if rows.is_empty():
            continue
        colour, dash, width = POLICY_LINES.get(name, (PALETTE[len(below) % 7], "solid", 1.5))
        same: dict[str, Any] = {
            "dash": dash, "width": width, "line_shape": "hv", "legendgroup": name,
            "visible": True if name in shown else "legendonly",
        }  # fmt: skip
        if capacity is not None:
            carried = _at(_carried(capacity, name, pool), "capacity_tps", grid)
            lines.append(
                line(
                    times(carried, "time", clock), carried["capacity_tps"].round(1),
                    f"{label}: can carry", colour, showlegend=False,
                    hover="%{y:,.0f} input tokens/s within its limits", **same,
                )
            )  # fmt: skip
        below.append(
            line(
                times(rows, "time", clock), rows["ready"], label, colour, yaxis="y2",
                hover="%{y:,.1~f} replicas", **same,
            )
        )  # fmt: skip
    most = max(counts["ready"].to_list(), default=0.0)
    under = {"title": {"text": "replicas"}, "rangemode": "tozero", "automargin": True,
             "domain": [0, 0.28]}  # fmt: skip
    return figure(
        [*lines, *below], height=height, x=axis_title(clock), y="input tokens/s", together=True,
        hoversubplots="axis", hoverdistance=-1, xaxis={"anchor": "y2"},
        yaxis={"domain": [0.36, 1]}, yaxis2=under | whole_ticks(most),
    )  # fmt: skip


def _band(forecast: pl.DataFrame, pool: tuple[str, str] | None, clock: str) -> list[Any]:
    """Draw the forecast's 10 to 90% band, as it was at the decision for each period."""
    rows = thin(_load(forecast, pool, "p10", "p90"), "time", "p10", "p90")
    moments = times(rows, "time", clock)
    return [
        line(
            moments, rows["p90"].round(1), "90 %", SKY, width=0, showlegend=False, hoverinfo="skip",
            hover=None,
        ),
        line(
            moments, rows["p10"].round(1), "Forecast, 10 to 90 %", SKY, width=0, fill="tonexty",
            fillcolor=BAND, hoverinfo="skip", hover=None,
        ),
    ]  # fmt: skip


def _carried(capacity: pl.DataFrame, policy: str, pool: tuple[str, str] | None) -> pl.DataFrame:
    """Sum capacity over models and regions, each of which has rows only at its changes."""
    rows = pool_rows(capacity.filter(pl.col("policy") == policy), pool).sort("time")
    moments = rows.select("time").unique().sort("time")
    parts = rows.partition_by("model", "region")
    joined = [
        moments.join_asof(part.select("time", "capacity_tps"), on="time", strategy="backward")
        for part in parts
    ]
    return pl.concat(joined).group_by("time").agg(pl.col("capacity_tps").sum()).sort("time")


def _at(table: pl.DataFrame, value: str, grid: pl.DataFrame | None) -> pl.DataFrame:
    """Return a step line at its changes and at every time of ``grid`` within it.

    The hover text then shows a value at each of these times.
    """
    changes = steps(table, "time", value)
    if grid is None or changes.is_empty():
        return changes
    first, last = changes["time"][0], changes["time"][-1]
    inside = grid.filter(pl.col("time").is_between(first, last))
    inside = inside.with_columns(pl.col("time").cast(changes.schema["time"]))
    moments = pl.concat([changes.select("time"), inside]).unique().sort("time")
    return moments.join_asof(changes.sort("time"), on="time")


def forecast_figure(
    forecast: pl.DataFrame,
    *,
    pool: tuple[str, str] | None,
    clock: str,
    unit: str = "input tokens/s",
    height: int = 360,
) -> Figure:
    """Draw the mean forecast, its 10 to 90% band and actual demand, all in ``unit``."""
    columns = ("actual", "mean", "p10", "p90")
    rows = thin(_load(forecast, pool, *columns), "time", *columns)
    moments = times(rows, "time", clock)

    def course(column: str, name: str, colour: str, width: float, **style: Any) -> Any:
        hover = f"%{{y:,.4~g}} {unit}"
        return line(moments, rows[column].round(2), name, colour, width=width, hover=hover, **style)

    lines = [
        course("p90", "90 %", SKY, 0, showlegend=False),
        course("p10", "10 to 90 % band", SKY, 0, fill="tonexty", fillcolor=BAND),
        course("mean", "Forecast", BLUE, 2),
    ]
    if rows["actual"].null_count() < len(rows):  # demand in the future is unknown
        lines.append(course("actual", "Actual", ORANGE, 1.5))
    return figure(lines, height=height, x=axis_title(clock), y=unit, together=True)


def _load(table: pl.DataFrame, pool: tuple[str, str] | None, *columns: str) -> pl.DataFrame:
    """Sum over tiers and pools per time; a missing part makes the sum a gap."""

    def known_sum(column: str) -> pl.Expr:
        total = pl.col(column).sum()
        return pl.when(pl.col(column).null_count() == 0).then(total).otherwise(None).alias(column)

    rows = pool_rows(table, pool)
    return rows.group_by("time").agg(known_sum(column) for column in columns).sort("time")
