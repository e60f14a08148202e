"""Figures of the pages: tables in, Plotly figures as plain data out.

Colours of text and grid are left to the page's theme (static/js/charts.js). Series colours are
those of Okabe and Ito (2008), which people with the common colour blindnesses tell apart; line
styles differ as well.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go
import polars as pl

Figure = dict[str, Any]

BLUE, ORANGE, GREEN, RED = "#0072B2", "#E69F00", "#009E73", "#D55E00"
PURPLE, SKY, GREY = "#CC79A7", "#56B4E9", "#8A8F98"
PALETTE = (BLUE, ORANGE, GREEN, PURPLE, SKY, RED, GREY)
BAND = "rgba(86, 180, 233, 0.25)"
AREA = "rgba(138, 143, 152, 0.18)"

POLICY_LINES: dict[str, tuple[str, str, float]] = {  # colour, dash, width
    "lt-i": (BLUE, "solid", 2.5),
    "lt-h": (PURPLE, "longdash", 2.0),
    "today": (RED, "dash", 1.5),
    "flat-peak": (GREY, "dash", 1.5),
    "flat-min": (ORANGE, "dot", 1.5),
    "reactive": (GREEN, "solid", 1.5),
    "lt-i-last-value": (PURPLE, "dashdot", 1.5),
    "lt-i-perfect": (SKY, "solid", 1.5),
}
MAX_LINES = 6  # of a trace: more cannot be told apart
MAX_POINTS = 2000  # per line: more than a screen has pixels


FEW_REPLICAS = 6  # up to here every whole number has a tick


def figure(traces: Sequence[Any], *, height: int, y: str, x: str = "", **layout: Any) -> Figure:
    """Traces with the axes and margins that all charts share, as plain data for JSON."""
    drawn = go.Figure(data=list(traces))
    drawn.update_traces(mode="lines")
    drawn.update_layout(
        template=None,
        height=height,
        margin={"l": 56, "r": 16, "t": 8, "b": 40},
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "traceorder": "normal"},
        hovermode="x unified",
        xaxis={"title": {"text": x}, "showgrid": False, "automargin": True},
        yaxis={"title": {"text": y}, "rangemode": "tozero", "automargin": True},
        **layout,
    )
    plain: Figure = json.loads(drawn.to_json())
    plain["layout"].pop("template", None)
    return plain


def times(table: pl.DataFrame, column: str, clock: str) -> list[Any]:
    """A time column for an axis: ISO text, or hours since the start on a relative clock."""
    if clock == "relative":
        return (table[column].dt.epoch("ms") / 3.6e6).round(4).to_list()
    moments = table[column]
    return moments.dt.strftime("%Y-%m-%dT%H:%M:%S").to_list()


def axis_title(clock: str) -> str:
    return "hours since the trace began" if clock == "relative" else "UTC"


def steps(table: pl.DataFrame, time: str, value: str) -> pl.DataFrame:
    """The rows where a step line changes, with its first and last: the same picture, fewer points.

    A line that still has too many is averaged over equal spans.
    """
    table = table.sort(time)
    changed = (pl.col(value) != pl.col(value).shift(1)).fill_null(value=True)
    last = pl.int_range(pl.len()) == pl.len() - 1
    kept = table.filter(changed | last)
    return thin(kept, time, value) if kept.height > MAX_POINTS else kept


def thin(table: pl.DataFrame, time: str, *values: str) -> pl.DataFrame:
    """Means over equal spans, where a line has more points than can be seen."""
    if table.height <= MAX_POINTS:
        return table
    at_ms = table[time].dt.epoch("ms").to_numpy()
    every = f"{max(1, round((at_ms.max() - at_ms.min()) / MAX_POINTS))}ms"
    return (
        table.sort(time).group_by_dynamic(time, every=every).agg(pl.col(v).mean() for v in values)
    )


def pool_rows(table: pl.DataFrame, pool: tuple[str, str] | None) -> pl.DataFrame:
    """Rows of one (model, region), of all where ``pool`` is None."""
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
    height: int = 400,
) -> Figure:
    """Ready replicas over time, one step line per policy, over demand on a second axis.

    ``replicas`` has policy, time, model, region and ready; ``demand`` time, model, region and
    input_tps. Policies outside ``shown`` wait in the legend.
    """
    counts = (
        pool_rows(replicas, pool).group_by("policy", "time").agg(pl.col("ready").sum().round(3))
    )
    drawn: list[Any] = []
    if demand is not None and not demand.is_empty():
        load = thin(_load(demand, pool, "input_tps"), "time", "input_tps")
        drawn.append(
            go.Scatter(
                x=times(load, "time", clock),
                y=load["input_tps"].round(2).to_list(),
                name="Demand (right axis)",
                yaxis="y2",
                line={"color": GREY, "width": 1},
                fill="tozeroy",
                fillcolor=AREA,
                hovertemplate="%{y:,.0f} input tokens/s",
            )
        )
    for name, label in labels.items():
        line = steps(counts.filter(pl.col("policy") == name), "time", "ready")
        if line.is_empty():
            continue
        colour, dash, width = POLICY_LINES.get(name, (PALETTE[len(drawn) % 7], "solid", 1.5))
        drawn.append(
            go.Scatter(
                x=times(line, "time", clock),
                y=line["ready"].to_list(),
                name=label,
                line={"shape": "hv", "color": colour, "dash": dash, "width": width},
                visible=True if name in shown else "legendonly",
                hovertemplate="%{y:,.1~f} replicas",
            )
        )
    second = {
        "title": {"text": "input tokens/s"},
        "overlaying": "y",
        "tickmode": "auto",
        "side": "right",
        "showgrid": False,
        "rangemode": "tozero",
        "automargin": True,
    }
    chart = figure(drawn, height=height, x=axis_title(clock), y="replicas ready", yaxis2=second)
    if max(counts["ready"].to_list(), default=0.0) <= FEW_REPLICAS:
        chart["layout"]["yaxis"]["dtick"] = 1  # there is no half replica to point at
    return chart


def forecast_figure(
    forecast: pl.DataFrame,
    *,
    pool: tuple[str, str] | None,
    clock: str,
    unit: str = "input tokens/s",
    height: int = 360,
) -> Figure:
    """Demand as it came, the mean forecast and its 10 to 90 % band, all in ``unit``."""
    line = thin(
        _load(forecast, pool, "actual", "mean", "p10", "p90"),
        "time", "actual", "mean", "p10", "p90",
    )  # fmt: skip
    at = times(line, "time", clock)

    def drawn(column: str, name: str, **style: Any) -> Any:
        return go.Scatter(x=at, y=line[column].round(2).to_list(), name=name, **style)

    hover = f"%{{y:,.4~g}} {unit}"
    return figure(
        [
            drawn("p90", "90 %", line={"width": 0}, showlegend=False, hovertemplate=hover),
            drawn(
                "p10", "10 to 90 % band", line={"width": 0}, fill="tonexty", fillcolor=BAND,
                hovertemplate=hover,
            ),
            drawn("mean", "Forecast", line={"color": BLUE, "width": 2}, hovertemplate=hover),
            drawn("actual", "Actual", line={"color": ORANGE, "width": 1.5}, hovertemplate=hover),
        ],
        height=height,
        x=axis_title(clock),
        y=unit,
    )  # fmt: skip


def rate_figure(rates: pl.DataFrame, *, unit: str, clock: str, height: int = 300) -> Figure:
    """One line per series; ``rates`` has time, series and per_s, which is in ``unit``.

    Of many series the largest are drawn, and the others as their sum.
    """
    drawn = []
    rates = _largest(rates)
    by_name = rates.sort("series", "time").partition_by("series", as_dict=True)
    for i, ((name,), rows) in enumerate(by_name.items()):
        line = thin(rows, "time", "per_s")
        drawn.append(
            go.Scatter(
                x=times(line, "time", clock),
                y=line["per_s"].round(4).to_list(),
                name=str(name),
                line={"color": PALETTE[i % len(PALETTE)], "width": 1.2},
                hovertemplate=f"%{{y:,.4~g}} {unit}",
            )
        )
    return figure(drawn, height=height, x=axis_title(clock), y=unit, showlegend=True)


def _largest(rates: pl.DataFrame) -> pl.DataFrame:
    total = pl.col("per_s").sum()
    order = rates.group_by("series").agg(total).sort("per_s", "series", descending=[True, False])
    if order.height <= MAX_LINES:
        return rates
    few = order["series"].head(MAX_LINES - 1)
    rest = rates.filter(~pl.col("series").is_in(few.implode()))
    summed = rest.group_by("time").agg(
        pl.lit(f"{order.height - len(few)} others").alias("series"),
        pl.when(pl.col("per_s").null_count() == 0).then(total).otherwise(None).alias("per_s"),
    )
    largest = rates.filter(pl.col("series").is_in(few.implode()))
    return pl.concat(
        [largest.select("series", "time", "per_s"), summed.select("series", "time", "per_s")]
    )


def _load(table: pl.DataFrame, pool: tuple[str, str] | None, *columns: str) -> pl.DataFrame:
    """Sums over tiers (and pools) per time; a time at which one of them is a gap is a gap."""

    def known_sum(column: str) -> pl.Expr:
        total = pl.col(column).sum()
        return pl.when(pl.col(column).null_count() == 0).then(total).otherwise(None).alias(column)

    rows = pool_rows(table, pool)
    return rows.group_by("time").agg(known_sum(column) for column in columns).sort("time")
