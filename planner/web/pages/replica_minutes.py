"""Show the replicas of one policy by the minute, over all pools or over selected ones."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import polars as pl

from planner.domain.report import Axis, Chart, Form, Series, Shape
from planner.models import Run
from planner.outputs.render.figure import FEW_REPLICAS, Figure
from planner.outputs.render.plotly import figure_of
from planner.selectors.runs import run_table, run_tables, stored_result
from planner.web.charts.over_time import thin
from planner.web.pages.selects import Select, policy_select
from planner.web.request import TemplateContext

POOL = ("model", "region", "arrangement")


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart: its name, and a Polars expression over the pools shown."""

    column: str  # column of the table; older runs may lack it
    name: str
    value: pl.Expr
    note: str = ""  # explanation, shown below the chart if the line is shown


@dataclass(frozen=True, slots=True)
class MinuteChart:
    """A chart of one or more lines; areas are stacked."""

    name: str
    title: str
    y: Axis
    note: str
    lines: tuple[Line, ...]
    shape: Shape = Shape.STEP


@dataclass(frozen=True, slots=True)
class ShownChart:
    """A chart of the page; it is shown at once if ``first``, else in a fold."""

    name: str
    title: str
    note: str
    figure: Figure
    first: bool
    label: str  # for screen readers


def total(column: str, name: str, note: str = "") -> Line:
    """Return a chart's line for the sum of ``column`` over pools."""
    return Line(column, name, pl.col(column).sum(), note)


def mean_over(column: str, weight: str, name: str, note: str) -> Line:
    """Return a chart's line for the mean of ``column`` over pools, weighted by ``weight``.

    It is null where no pool has a value.
    """
    weights = pl.when(pl.col(column).is_not_null()).then(pl.col(weight)).otherwise(0.0)
    mean = (pl.col(column).fill_null(0.0) * weights).sum() / weights.sum()
    return Line(column, name, mean.fill_nan(None), note)


# Over pools: replicas that serve, the busy share of their time, and their requests in batches.
SERVING = pl.col("ready").sum() + pl.col("draining").sum()
ITERATING = (pl.col("busy").sum() / SERVING).fill_nan(None)
IN_BATCHES = (pl.col("batch") * pl.col("busy")).sum()
CHARTS = (
    MinuteChart(
        "states", "Replicas by state", Axis("replicas", "replicas"), "Means over the interval.",
        (
            total("ready", "Serving"),
            total("starting", "Starting"),
            total(
                "draining", "Draining",
                "Draining replicas finish their requests and take no new ones.",
            ),
            total("lent", "Lent as spot"),
        ),
        Shape.AREA,
    ),
    MinuteChart(
        "tokens", "Tokens per second", Axis("tokens/s", "tokens/s"),
        "Prompt tokens computed, and output tokens.",
        (total("input_tps", "In"), total("output_tps", "Out")),
    ),
    MinuteChart(
        "requests", "Requests there", Axis("requests", "requests"), "",
        (
            total("waiting", "Waiting", "Waiting at a replica, at the end of the interval."),
            total(
                "held", "Held back",
                "Waiting: at the router, without a ready replica, or deferred.",
            ),
            Line("batch", "In batches", IN_BATCHES, "In batches, mean over the interval."),
        ),
    ),
    MinuteChart(
        "shares", "How busy they are", Axis("share", form=Form.SHARE), "Of serving replicas:",
        (
            Line("busy", "Iterating", ITERATING, "the share of time with an iteration running;"),
            mean_over("utilisation", "ready", "KV memory", "of KV memory in use;"),
            mean_over(
                "sm_activity", "ready", "SMs",
                "of the time in which SMs compute (modelled).",
            ),
            mean_over("hit_rate", "input_tps", "Prefix cache",
                      "of prompt tokens found in the prefix cache."),
        ),
    ),
    MinuteChart(
        "power", "Power", Axis("kW", "kW"),
        "GPUs and the servers around them, cooling included (modelled).",
        (total("power_kw", "Power"),),
    ),
)  # fmt: skip
FIRST = ("states", "tokens")  # charts shown at once; the others are folded


def minutes_context(run: Run, params: Mapping[str, str]) -> TemplateContext:
    """Return the charts over time of the policy and the pool in ``params``; default: all pools.

    A run without simulated replicas has no charts.
    """
    result = stored_result(run)
    if "replicas" not in run_tables(run):
        return {"run": run, "minute_charts": []}
    table = run_table(run, "replicas")
    policy = policy_select(params, result, table)
    table = table.filter(pl.col("policy") == policy.chosen)
    pools = pool_choices(table)
    names = {name: name for name in pools} if len(pools) > 1 else {}
    pool = Select.of(params, "pool", "Model, region and pool", {"": "Total"} | names)
    for column, value in pools.get(pool.chosen, {}).items():
        table = table.filter(pl.col(column) == value)
    times = table["time"].unique().sort()
    step_s = (times[1] - times[0]).total_seconds() if len(times) > 1 else None
    return {
        "run": run,
        "minute_selects": (policy, pool),
        "minute_step_s": step_s,
        "minute_charts": minute_charts(table, result.clock),
    }


def pool_choices(table: pl.DataFrame) -> dict[str, dict[str, str]]:
    """Return for each choice of the select the values of columns that its rows have.

    A choice is a model in a region, or one of its pools if it has several.
    """
    columns = [name for name in POOL if name in table.columns]
    rows = table.select(columns).unique().sort(columns)
    choices: dict[str, dict[str, str]] = {}
    for (model, region), part in rows.group_by(["model", "region"], maintain_order=True):
        conditions = {"model": str(model), "region": str(region)}
        choices[f"{model} / {region}"] = conditions
        if "arrangement" in columns and part.height > 1:
            for name in part["arrangement"]:
                choices[f"{model} / {region} / {name}"] = conditions | {"arrangement": name}
    return choices


def minute_charts(table: pl.DataFrame, clock: str) -> list[ShownChart]:
    """Return every chart that has data, without lines that are always 0."""
    shown = []
    for chart in CHARTS:
        lines = [line for line in chart.lines if line.column in table.columns]
        rows = table.group_by("time").agg(line.value.alias(line.name) for line in lines)
        drawn = []
        for line in lines:
            values = rows[line.name]
            # The first line is shown even if it is 0 throughout.
            has_value = line is chart.lines[0] or (values.fill_null(0.0) != 0).any()
            if has_value and values.null_count() < rows.height:
                drawn.append(line)
        if not drawn:
            continue
        names = [line.name for line in drawn]
        rows = thin(rows.sort("time").select("time", *names), "time", *names)
        notes = " ".join(part for part in (chart.note, *(line.note for line in drawn)) if part)
        shown.append(
            ShownChart(
                name=chart.name,
                title=chart.title,
                note=f"{notes.rstrip(';.')}." if notes else "",
                figure=_figure(chart, rows, clock),
                first=chart.name in FIRST,
                label=f"{chart.title} over time, {chart.y.title}",
            )
        )
    return shown


def _figure(chart: MinuteChart, rows: pl.DataFrame, clock: str) -> Figure:
    """Draw the lines of a chart over the time in ``rows``."""
    moments = tuple(rows["time"].to_list())
    series = tuple(
        Series(column.name, moments, tuple(column.round(4).to_list()), shape=chart.shape)
        for column in rows.drop("time")
    )
    y = chart.y
    if chart.shape is Shape.AREA:
        largest = rows.select(pl.sum_horizontal(pl.exclude("time")).max()).item() or 0.0
        # A short axis of replicas has whole numbers only.
        y = replace(y, ticks=tuple(range(int(largest) + 1)) if largest <= FEW_REPLICAS else ())
    return figure_of(Chart(chart.title, Axis(), y, series, small=True), clock)
