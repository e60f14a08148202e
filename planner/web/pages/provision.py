"""Build the part of a provisioning page beside its report: one pool's graph and devices."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from planner.domain.deserialise import from_json
from planner.domain.kinds.provision import Options, ProvisionResult
from planner.domain.provisioning.figures import LEVEL_NAMES, PoolFigures
from planner.domain.report import Axis, Chart, Role, Series, Shape
from planner.domain.reports.provision import pool_levels
from planner.domain.serialise import clean
from planner.models import Run
from planner.outputs.render.figure import (
    BLUE,
    DASHES,
    GREEN,
    LOGARITHMIC,
    ORANGE,
    Figure,
    figure,
    line,
    plain_figure,
    points,
)
from planner.outputs.render.html import shown_table
from planner.outputs.render.plotly import figure_of
from planner.selectors.runs import run_table, typed_result
from planner.services import provisioning as service
from planner.web.forms.options import OptionsForm
from planner.web.request import TemplateContext

MANY = 60  # most devices: more bars are illegible
SPANS = 400  # most spans of a line over time
SHOWN = 8  # operators in a plot of lines
MEASURES = (("gpus", "GPUs", BLUE), ("energy", "power", ORANGE), ("memory", "memory", GREEN))
# Published savings by variable and measure, each (x, share). Operator-level autoscaling, section
# 4.3, figures 10 to 13 as the text gives them.
SOURCE: dict[str, dict[str, list[tuple[Any, float]]]] = {
    "length": {"gpus": [(4096, 0.30)], "energy": [(4096, 0.25)], "memory": [(32768, 0.60)]},
    "rate": {"gpus": [(20, 0.0), (40, 0.30)], "energy": [(80, 0.25)], "memory": [(100, 0.50)]},
    "size": {
        "gpus": [("qwen2-0.5b", 0.15), ("qwen2-7b", 0.25)],
        "energy": [("qwen2-7b", 0.25), ("qwen2-72b", 0.50)],
        "memory": [("qwen2-7b", 0.35), ("qwen2-72b", 0.50)],
    },
}
AXES = {"length": "prompt tokens", "rate": "requests/s", "size": "model"}
KEYS = ("model", "region", "gpu", "phase", "weights")  # of a pool
# What operators respond to: the key of its values, and its axis.
LENGTH = "lengths", Axis("tokens of a request", log=True)
BATCH = "batches", Axis("requests in a batch", log=True)
RATE = "rates", Axis("requests/s", log=True)
SHARE = "shares", Axis("share of the multiprocessors")
EVEN_LENGTH = "lengths", Axis("tokens of a request")
# Responses of operators: title, unit, key, factor from its values to the unit, and the x axis.
RESPONSES = (
    ("Latency by length", "factor to the shortest request", "latency_by_length", 1, LENGTH),
    ("Memory by length", "GB of one request in flight, without weights", "memory_by_length", 1e-9,
     LENGTH),
    ("Latency by batch", "factor to one request", "latency_by_batch", 1, BATCH),
    ("Queueing", "replicas for stable queues, batch 1", "replicas_by_rate", 1, RATE),
    ("Waiting by rate", "mean seconds with the fewest replicas", "wait_by_rate", 1, RATE),
    ("Waiting by length", "mean seconds at this load", "wait_by_length", 1, LENGTH),
    ("Arithmetic by length", "% of the achievable FLOP/s", "arithmetic_by_length", 100, LENGTH),
    ("Memory bandwidth by length", "% of the achievable bandwidth", "bandwidth_by_length", 100,
     LENGTH),
    ("Data handed on", "GB per request", "data_by_length", 1e-9, LENGTH),
    ("Transfer", "time over the link, % of compute time", "transfer_by_length", 100, EVEN_LENGTH),
    ("Share of the GPU", "latency, times that of the whole GPU", "latency_by_share", 1, SHARE),
    ("Multiprocessors in use", "% of those given", "sm_use_by_share", 100, SHARE),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class OperatorNode:
    """A row of the table ``operators``: an operator of a plan, as a node of its graph.

    ``after`` names the operators before it. ``share`` is its GPU places over the most of any.
    """

    operator: str
    after: str
    replicas: int = 0
    batch: int = 0
    parallel: int = 0
    slots: int = 0
    sojourn_ms: float = 0.0
    busy: float = 0.0  # share of time
    slowdown: float = 1.0
    bottleneck: bool = False
    timing: str = ""  # source of its times
    share: float = 0.0


def page_context(run: Run, params: Mapping[str, str]) -> TemplateContext:
    """Return the plan of the pool, phase and level that ``params`` select.

    A level says what is scaled: operators, layers or replicas. The form provisions the pool again.
    """
    result = typed_result(run, ProvisionResult)
    pools = sorted(result.pools, key=lambda pool: not pool.chosen)
    by_name: dict[str, dict[str, PoolFigures]] = {}
    for pool, name in zip(pools, service.pool_names(pools), strict=True):
        by_name.setdefault(name, {})[pool.phase] = pool
    name = _one_of(list(by_name), params.get("pool", ""))
    phase = _one_of(list(by_name[name]), params.get("phase", ""))
    pool = by_name[name][phase]
    planned = [level for level in LEVEL_NAMES if level in pool.levels]
    level = _one_of(planned, params.get("level", "")) if planned else ""
    context: TemplateContext = {
        "run": run,
        "form": OptionsForm(Options, without=("level",), initial=run.options),
        "pool": pool,
        "pool_name": name,
        "pool_names": list(by_name),
        "phase": phase,
        "phases": ("prefill", "decode"),
        "level": level,
        "level_choices": [(level, LEVEL_NAMES[level]) for level in planned],
        "pool_levels": shown_table(pool_levels([pool]), "utc", live=True) if planned else None,
    }
    if level:
        context |= plan_context(run, pool, level)
    if result.over_time is not None and pool.chosen:
        context["course_figure"] = course_figure(_rows(run, "courses", pool))
    return context


def _one_of(known: list[str], name: str) -> str:
    return name if name in known else known[0]


def plan_context(run: Run, pool: PoolFigures, level: str) -> TemplateContext:
    """Return the operators of a plan in graph order, and its devices."""
    operators, devices, shards = (
        _rows(run, name, pool).filter(pl.col("level") == level)
        for name in ("operators", "devices", "shards")
    )
    most_slots = max(operators["slots"].to_list(), default=1)
    shares = operators.with_columns(share=pl.col("slots") / most_slots)
    nodes = [from_json(OperatorNode, row) for row in shares.to_dicts()]
    context: TemplateContext = {"columns": columns(nodes), "nodes": nodes}
    if not devices.is_empty():
        # GB in use over the share in use is the memory of a device.
        device_gb = float((devices["memory_gb"] / devices["memory"].clip(1e-9)).median() or 0.0)  # type: ignore[arg-type]
        context |= {
            "memory_figure": memory_figure(shards, device_gb),
            "load_figure": load_figure(devices),
            "devices_shown": min(devices.height, MANY),
            "devices_all": devices.height,
        }
        if level == "module":
            order = [node.operator for node in nodes]
            context["strip_figure"] = strip_figure(shards, order)
    return context


def columns(nodes: Sequence[OperatorNode]) -> list[list[OperatorNode]]:
    """Return nodes grouped into columns by depth, the longest path from a source node.

    Nodes come in topological order. Without any edges, as for layers, each is a column.
    """
    if not any(node.after for node in nodes):
        return [[node] for node in nodes]
    depths: dict[str, int] = {}
    for node in nodes:
        after = f" {node.after} "  # names may contain spaces: do not split
        depths_before = [depth for name, depth in depths.items() if f" {name} " in after]
        depths[node.operator] = 1 + max(depths_before, default=-1)
    return [
        [node for node in nodes if depths[node.operator] == depth]
        for depth in range(1 + max(depths.values()))
    ]


def _chosen_pool(run: Run, params: Mapping[str, str]) -> PoolFigures:
    """Return the pool and phase that ``params`` select, by default the first."""
    return service.pool_of_run(run, params.get("pool", ""), params.get("phase", ""))


def sensitivity_context(run: Run, params: Mapping[str, str]) -> TemplateContext:
    """Return how the operators of a pool respond to length, batch, rate and share of a GPU."""
    pool = _chosen_pool(run, params)
    responses = service.operator_sensitivity(run, pool)
    return {"pool": pool, "responses": response_figures(responses)}


def sweep_context(by: str, run: Run, params: Mapping[str, str]) -> TemplateContext:
    """Return the savings of operators against whole replicas, by length, rate or model size."""
    pool = _chosen_pool(run, params)
    sweep = service.savings_sweep(run, pool, by)
    return {"pool": pool, "by": by, "sweep": sweep, "sweep_figure": sweep_figure(sweep)}


def _rows(run: Run, table: str, pool: PoolFigures) -> pl.DataFrame:
    """Return the rows of one pool, matched by those key columns that the table has.

    Tables of older runs have no precisions, nor has the table of courses.
    """
    rows = run_table(run, table)
    return rows.filter(pl.col(name) == getattr(pool, name) for name in KEYS if name in rows.columns)


def memory_figure(shards: pl.DataFrame, device_gb: float) -> Figure:
    """Draw the memory used on each device, stacked by operator, and its capacity."""
    shown = shards.filter(pl.col("device") < MANY)
    series = [
        Series(
            str(name).replace("_", " "),
            tuple(rows["device"] + 1),
            tuple(rows["memory_gb"].round(3)),
            shape=Shape.BAR,
            notes=tuple(f"{count} of them" for count in rows["shards"]),
        )
        for (name,), rows in shown.group_by("operator", maintain_order=True)
    ]
    last = int(shown["device"].max() or 0) + 1  # type: ignore[arg-type]
    capacity = (device_gb, device_gb)
    series.append(Series("memory there is", (0.4, last + 0.6), capacity, Role.LIMIT))
    x = Axis("GPU", ticks=_device_ticks(last))
    return figure_of(Chart("", x, Axis("GB", "GB"), tuple(series), stacked=True))


def _device_ticks(count: int) -> tuple[int, ...]:
    """Return one tick per device if there are few; for more, the axis chooses."""
    return tuple(range(1, count + 1)) if count <= 12 else ()


def load_figure(devices: pl.DataFrame) -> Figure:
    """Draw the shares of arithmetic and of memory bandwidth in use on each device."""
    shown = devices.filter(pl.col("device") < MANY)
    gpus = tuple(shown["device"] + 1)
    series = tuple(
        Series(name, gpus, tuple((100 * shown[column]).round(2)), shape=Shape.BAR)
        for column, name in (("compute", "arithmetic"), ("bandwidth", "memory bandwidth"))
    )
    x = Axis("GPU", ticks=_device_ticks(len(gpus)))
    return figure_of(Chart("", x, Axis("% in use", "%", top=100), series))


def strip_figure(shards: pl.DataFrame, order: list[str]) -> Figure:
    """Draw which GPU has which layers: a row per GPU, a column per module in ``order``."""
    last = int(shards["device"].max() or 0) + 1  # type: ignore[arg-type]
    rows = min(last, MANY)
    grid = np.zeros((rows, len(order)))
    for row in shards.filter(pl.col("device") < rows).iter_rows(named=True):
        grid[row["device"], order.index(row["operator"])] = row["shards"]
    cells = {
        "type": "heatmap", "z": grid.tolist(), "x": order,
        "y": [f"GPU {device + 1}" for device in range(rows)],
        "colorscale": [[0, "rgba(138,143,152,0.12)"], [1, BLUE]], "zmin": 0,
        "zmax": max(1.0, float(grid.max())), "showscale": False, "xgap": 3, "ygap": 3,
        "hovertemplate": "%{x} on %{y}: %{z:.0f}<extra></extra>",
    }  # fmt: skip
    height = max(350, 120 + 22 * rows)
    return plain_figure([cells], height=height, yaxis={"autorange": "reversed"})


def response_figures(responses: dict[str, Any]) -> list[tuple[str, str, Figure]]:
    """Return the title, unit and figure of each response of the operators that respond most."""
    names = responses["operators"]
    out = []
    for title, unit, key, factor, (x_key, x_axis) in RESPONSES:
        if key not in responses:
            continue  # an older run without these results
        values = factor * np.asarray(responses[key], np.float64)  # [operator, x]
        strongest = np.argsort(-values.max(axis=1), kind="stable")[:SHOWN]
        series = tuple(
            Series(
                names[index].replace("_", " "),
                tuple(responses[x_key]),
                tuple(map(clean, values[index].tolist())),
            )
            for index in sorted(strongest)
        )
        chart = Chart(title, x_axis, Axis(unit, unit), series)
        out.append((title, unit, figure_of(chart)))
    return out


def sweep_figure(sweep: dict[str, Any]) -> Figure:
    """Draw savings in percent: computed ones as lines, published ones as crosses."""
    variable = sweep["by"]
    rows = [row for row in sweep["rows"] if "gpus" in row]
    traces: list[Any] = []
    for (measure, name, colour), dash in zip(MEASURES, DASHES, strict=False):
        shares = [round(100 * row[measure], 2) for row in rows]
        drawn = line([row["at"] for row in rows], shares, name, colour, dash=dash)
        traces.append(drawn | {"mode": "lines+markers"})
        source = SOURCE[variable][measure]
        traces.append(
            points([x for x, _ in source], [100 * share for _, share in source],
                   f"{name}, the source", colour, symbol="x", hover="%{x}: %{y:.3~g}%")
        )  # fmt: skip
    return figure(
        traces, height=350, x=AXES[variable], y="% saved against whole replicas",
        xaxis={} if variable == "size" else LOGARITHMIC,
        yaxis={"rangemode": "normal", "zeroline": True},
    )  # fmt: skip


def course_figure(courses: pl.DataFrame) -> Figure:
    """Draw the GPUs over time when scaling operators, layers or replicas, and requests/s.

    Hours count from the first row of ``courses``. Rows are grouped into equal spans of time, each
    with its largest number of GPUs and its mean rate.
    """
    start = courses["time_s"].min() or 0.0
    hours = (pl.col("time_s") - start) / 3600
    end = float(courses["time_s"].max() or 0.0) - float(start)  # type: ignore[arg-type]
    span_s = max(end / SPANS, 1.0)
    grouped = (
        courses.with_columns(((pl.col("time_s") - start) / span_s).floor().alias("span"))
        .group_by("level", "span")
        .agg(hours.first().alias("hours"), pl.col("gpus").max(), pl.col("requests_s").mean())
        .sort("span")
    )
    series = []
    for level in reversed(LEVEL_NAMES):  # from the coarsest
        rows = grouped.filter(pl.col("level") == level)
        if not rows.is_empty():
            times = tuple(rows["hours"].round(4))
            gpus = tuple(rows["gpus"])
            series.append(Series(LEVEL_NAMES[level].lower(), times, gpus, shape=Shape.STEP))
    load = grouped.filter(pl.col("level") == "model")
    times, rate = tuple(load["hours"].round(4)), tuple(load["requests_s"].round(3))
    series.append(Series("requests/s", times, rate, Role.LIMIT, right=True))
    right = Axis("requests/s", "requests/s")
    return figure_of(Chart("", Axis("hours"), Axis("GPUs", "GPUs"), tuple(series), right=right))
