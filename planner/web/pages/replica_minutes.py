"""Show the replicas of one policy by the minute, over all pools or over selected ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from planner.models import Run
from planner.outputs.render.figure import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    RED,
    Figure,
    figure,
    line,
)
from planner.selectors.policies import default_policy, policies_in_order
from planner.selectors.runs import run_result, run_table, run_tables
from planner.web.charts.over_time import axis_title, thin, times, whole_ticks

POOL = ("model", "region", "arrangement")


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart: its name, and its expression over the pools that are shown."""

    column: str  # column of the table; older runs may lack it
    name: str
    colour: str
    value: pl.Expr
    note: str = ""  # explanation, shown below the chart if the line is shown
    dash: str = "solid"


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart and its lines; ``stacked`` lines are areas that add up."""

    name: str
    title: str
    unit: str
    note: str
    lines: tuple[Line, ...]
    stacked: bool = False
    hover: str = "%{y:,.3~g}"


def total(column: str, name: str, colour: str, note: str = "") -> Line:
    return Line(column, name, colour, pl.col(column).sum(), note)


def mean_over(column: str, weight: str, name: str, colour: str, note: str, dash: str) -> Line:
    """Return the mean of ``column`` weighted by ``weight``, or null without weights or values."""
    known = pl.when(pl.col(column).is_not_null()).then(pl.col(weight)).otherwise(0.0)
    over = (pl.col(column).fill_null(0.0) * known).sum() / known.sum()
    return Line(column, name, colour, over.fill_nan(None), note, dash)


SERVING = pl.col("ready").sum() + pl.col("draining").sum()
ITERATING = (pl.col("busy").sum() / SERVING).fill_nan(None)
IN_BATCHES = (pl.col("batch") * pl.col("busy")).sum()
CHARTS = (
    Chart(
        "states", "Replicas by state", "replicas", "Means over the interval.",
        (
            total("ready", "Serving", BLUE),
            total("starting", "Starting", ORANGE),
            total(
                "draining", "Draining", GREY,
                "Draining replicas finish their requests and take no new ones.",
            ),
            total("lent", "Lent as spot", GREEN),
        ),
        stacked=True,
    ),
    Chart(
        "tokens", "Tokens per second", "tokens/s", "Prompt tokens computed and tokens given out.",
        (
            total("input_tps", "In", BLUE),
            total("output_tps", "Out", ORANGE),
        ),
    ),
    Chart(
        "requests", "Requests there", "requests", "",
        (
            total(
                "waiting", "Waiting", RED,
                "Waiting at a replica, at the end of the interval.",
            ),
            total(
                "held", "Held back", ORANGE,
                "Waiting: at the router, without a ready replica, or deferred.",
            ),
            Line("batch", "In batches", BLUE, IN_BATCHES, "In batches on average over it."),
        ),
    ),
    Chart(
        "shares", "How busy they are", "share", "Of serving replicas:",
        (
            Line(
                "busy", "Iterating", BLUE, ITERATING,
                "the share of time with an iteration running;",
            ),
            mean_over("utilisation", "ready", "KV memory", ORANGE, "of KV memory in use;",
                      "solid"),
            mean_over(
                "sm_activity", "ready", "SMs", GREEN,
                "of time their SMs compute, modelled by a full iteration of prompts.",
                "dash",
            ),
            mean_over("hit_rate", "input_tps", "Prefix cache", PURPLE,
                      "of prompt tokens found in the prefix cache.", "dot"),
        ),
        hover="%{y:.1%}",
    ),
    Chart(
        "power", "Power", "kW", "GPUs and the servers around them, cooling included (modelled).",
        (total("power_kw", "Power", BLUE),),
    ),
)  # fmt: skip
FIRST = ("states", "tokens")  # charts shown at once; the others are folded


def minutes_context(run: Run, params: Mapping[str, str]) -> dict[str, Any]:
    """Return the charts of the chosen policy and pools, by default all pools."""
    result = run_result(run)
    if "replicas" not in run_tables(run):
        return {"run": run, "minute_charts": []}
    table = run_table(run, "replicas")
    labels = {name: row["label"] for name, row in policies_in_order(result).items()}
    policy = params.get("policy", "")
    if policy not in labels:
        policy = default_policy(result) or table["policy"][0]
    table = table.filter(pl.col("policy") == policy)
    choices = pool_choices(table)
    pool = params.get("pool", "")
    chosen = choices.get(pool, {})
    for column, value in chosen.items():
        table = table.filter(pl.col(column) == value)
    clock = (result.get("window") or {}).get("clock", "utc")
    return {
        "run": run,
        "minute_policies": labels or {policy: policy},
        "minute_policy": policy,
        "minute_pools": list(choices),
        "minute_pool": pool if chosen else "",
        "minute_step_s": _step_s(table),
        "minute_charts": minute_charts(table, clock),
    }


def pool_choices(table: pl.DataFrame) -> dict[str, dict[str, str]]:
    """Return the choices of pools: each model and region, and each pool if these have several."""
    columns = [name for name in POOL if name in table.columns]
    rows = table.select(columns).unique().sort(columns)
    choices: dict[str, dict[str, str]] = {}
    for (model, region), part in rows.group_by(["model", "region"], maintain_order=True):
        where = {"model": str(model), "region": str(region)}
        choices[f"{model} / {region}"] = where
        if "arrangement" in columns and part.height > 1:
            for name in part["arrangement"]:
                choices[f"{model} / {region} / {name}"] = where | {"arrangement": name}
    return choices


def minute_charts(table: pl.DataFrame, clock: str) -> list[dict[str, Any]]:
    """Return every chart that has data, in the form that the template needs."""
    shown = []
    for chart in CHARTS:
        lines = [line for line in chart.lines if line.column in table.columns]
        rows = table.group_by("time").agg(line.value.alias(line.name) for line in lines)
        names = [line.name for line in lines if rows[line.name].null_count() < rows.height]
        names = [n for n in names if n in _always(chart) or (rows[n].fill_null(0.0) != 0).any()]
        if not names:
            continue
        rows = thin(rows.sort("time").select("time", *names), "time", *names)
        drawn = [course for course in lines if course.name in names]
        shown.append(
            {"name": chart.name, "title": chart.title, "note": _note(chart, drawn),
             "figure": _figure(chart, drawn, rows, clock), "first": chart.name in FIRST,
             "label": f"{chart.title} over time, {chart.unit}"}
        )  # fmt: skip
    return shown


def _note(chart: Chart, lines: list[Line]) -> str:
    notes = " ".join(part for part in (chart.note, *(line.note for line in lines)) if part)
    return f"{notes.rstrip(';.')}." if notes else ""


def _always(chart: Chart) -> tuple[str, ...]:
    """Return the lines that are shown even if they are 0 throughout: the first one."""
    return (chart.lines[0].name,)


def _figure(chart: Chart, lines: list[Line], rows: pl.DataFrame, clock: str) -> Figure:
    moments = times(rows, "time", clock)
    area = {"stackgroup": "one"} if chart.stacked else {}
    hover = chart.hover if chart.unit == "share" else f"{chart.hover} {chart.unit}"
    traces = [
        line(
            moments, rows[course.name].round(4), course.name, course.colour, dash=course.dash,
            width=1.5, line_shape="hv", hover=hover, **area,
        )
        for course in lines
    ]  # fmt: skip
    axis: dict[str, Any] = {"tickformat": ".0%"} if chart.unit == "share" else {}
    if chart.stacked:
        total = rows.select(pl.sum_horizontal(course.name for course in lines).max()).item()
        axis |= whole_ticks(total or 0.0)
    return figure(
        traces, height=260, x=axis_title(clock), y=chart.unit, together=True, yaxis=axis,
        showlegend=len(lines) > 1,
    )  # fmt: skip


def _step_s(table: pl.DataFrame) -> float | None:
    times = table["time"].unique().sort()
    return (times[1] - times[0]).total_seconds() if len(times) > 1 else None
