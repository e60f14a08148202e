"""Draw a provisioning run: devices, layers, and the sensitivity of operators."""

from __future__ import annotations

from typing import Any

import numpy as np
import plotly.graph_objects as go
import polars as pl

from planner.outputs.render.figure import (
    BLUE,
    DASHES,
    GREEN,
    GREY,
    LOGARITHMIC,
    ORANGE,
    PALETTE,
    Figure,
    figure,
    line,
    points,
)

COLOURS = (*PALETTE, "#F0E442", "#44AA99", "#882255", "#999933", "#AA4499", "#6699CC")
MANY = 60  # most devices: more bars are illegible
STRETCHES = 400  # most spans of a line over time
SHOWN = 8  # operators in a plot of lines
MEASURES = (("gpus", "GPUs", BLUE), ("energy", "power", ORANGE), ("memory", "memory", GREEN))
# Operator-level autoscaling, section 4.3, figures 10 to 13 as the text gives them.
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


def memory_figure(shards: pl.DataFrame, room_gb: float, height: int = 350) -> Figure:
    """Draw the memory used on each device, stacked by operator, and its capacity."""
    shown = shards.filter(pl.col("device") < MANY)
    names = shards["operator"].unique(maintain_order=True).to_list()
    bars = []
    for i, name in enumerate(names):
        rows = shown.filter(pl.col("operator") == name)
        bars.append(
            go.Bar(
                x=(rows["device"] + 1).to_list(),
                y=rows["memory_gb"].round(3).to_list(),
                name=name.replace("_", " "),
                customdata=rows["shards"].to_list(),
                marker={"color": COLOURS[i % len(COLOURS)]},
                hovertemplate=f"{name.replace('_', ' ')}: %{{customdata}} on GPU %{{x}}, "
                "%{y:,.3~g} GB<extra></extra>",
            )
        )
    last = int(shown["device"].max() or 0) + 1  # type: ignore[arg-type]
    bars.append(line([0.4, last + 0.6], [room_gb] * 2, "memory there is", GREY, dash="dash"))
    return figure(
        bars, height=height, x="GPU", y="GB", barmode="stack", bargap=0.15,
        xaxis={"dtick": 1} if last <= 12 else {},
    )  # fmt: skip


def load_figure(devices: pl.DataFrame, height: int = 350) -> Figure:
    """Draw the shares of arithmetic and of memory bandwidth in use on each device."""
    shown = devices.filter(pl.col("device") < MANY)
    x = (shown["device"] + 1).to_list()
    bars: list[Any] = [
        go.Bar(
            x=x,
            y=(100 * shown[column]).round(2).to_list(),
            name=name,
            marker={"color": colour},
            hovertemplate=f"{name}: %{{y:.3~g}}% of GPU %{{x}}<extra></extra>",
        )
        for column, name, colour in (
            ("compute", "arithmetic", BLUE),
            ("bandwidth", "memory bandwidth", ORANGE),
        )
    ]
    return figure(
        bars, height=height, x="GPU", y="% in use", barmode="group",
        xaxis={"dtick": 1} if len(x) <= 12 else {}, yaxis={"range": [0, 100]},
    )  # fmt: skip


def strip_figure(shards: pl.DataFrame, order: list[str], height: int = 350) -> Figure:
    """Draw which GPU holds which layers: a row per GPU, a column per module."""
    last = int(shards["device"].max() or 0) + 1  # type: ignore[arg-type]
    rows = min(last, MANY)
    grid = np.zeros((rows, len(order)))
    for row in shards.filter(pl.col("device") < rows).iter_rows(named=True):
        grid[row["device"], order.index(row["operator"])] = row["shards"]
    cells = go.Heatmap(
        z=grid.tolist(),
        x=order,
        y=[f"GPU {d + 1}" for d in range(rows)],
        colorscale=[[0, "rgba(138,143,152,0.12)"], [1, BLUE]],
        zmin=0,
        zmax=max(1.0, float(grid.max())),
        showscale=False,
        xgap=3,
        ygap=3,
        hovertemplate="%{x} on %{y}: %{z:.0f}<extra></extra>",
    )
    return figure([cells], height=max(height, 120 + 22 * rows), yaxis={"autorange": "reversed"})


def response_figures(responses: dict[str, Any]) -> list[tuple[str, str, Figure]]:
    """Return the title, description and figure of each sensitivity."""
    plots = (
        ("Latency by length", "times that of the shortest", "lengths", "latency_by_length",
         "tokens of a request", True),
        ("Memory by length", "GB of one request in flight, without weights", "lengths",
         "memory_by_length", "tokens of a request", True),
        ("Latency by batch", "times that of one request", "batches", "latency_by_batch",
         "requests in a batch", True),
        ("Queueing", "fewest stable replicas, batch 1", "rates", "replicas_by_rate",
         "requests/s", True),
        ("Waiting by rate", "mean seconds, fewest stable replicas", "rates", "wait_by_rate",
         "requests/s", True),
        ("Waiting by length", "mean seconds at this load, fewest stable replicas", "lengths",
         "wait_by_length", "tokens of a request", True),
        ("Arithmetic by length", "% of the rate that kernels reach", "lengths",
         "arithmetic_by_length", "tokens of a request", True),
        ("Memory bandwidth by length", "% of the rate that kernels reach", "lengths",
         "bandwidth_by_length", "tokens of a request", True),
        ("Data handed on", "GB per request", "lengths", "data_by_length",
         "tokens of a request", True),
        ("Transfer", "% of the time it computes, over the link", "lengths", "transfer_by_length",
         "tokens of a request", False),
        ("Share of the GPU", "latency, times that of the whole GPU", "shares", "latency_by_share",
         "share of the multiprocessors", False),
        ("Multiprocessors in use", "% of those given", "shares", "sm_use_by_share",
         "share of the multiprocessors", False),
    )  # fmt: skip
    scale = {"memory_by_length": 1e-9, "data_by_length": 1e-9, "transfer_by_length": 100.0,
             "arithmetic_by_length": 100.0, "bandwidth_by_length": 100.0,
             "sm_use_by_share": 100.0}  # fmt: skip
    names = responses["operators"]
    out = []
    for title, unit, axis, key, x, logarithmic in plots:
        if key not in responses:
            continue  # an older run without these results
        values = np.asarray(responses[key]) * scale.get(key, 1.0)
        most = np.argsort(-values.max(axis=1), kind="stable")[:SHOWN]
        lines = [
            line(
                responses[axis],
                values[v],
                names[v].replace("_", " "),
                COLOURS[i],
                dash=DASHES[i % 4],
            )
            for i, v in enumerate(sorted(most))
        ]
        scaled = LOGARITHMIC if logarithmic else {}
        out.append((title, unit, figure(lines, height=350, x=x, y=unit, xaxis=scaled)))
    return out


def sweep_figure(sweep: dict[str, Any], height: int = 350) -> Figure:
    """Draw savings in percent: our results as lines, those of the source as crosses."""
    by = sweep["by"]
    rows = [row for row in sweep["rows"] if "gpus" in row]
    traces: list[Any] = []
    for (measure, name, colour), dash in zip(MEASURES, DASHES, strict=False):
        traces.append(
            line([row["at"] for row in rows], [round(100 * row[measure], 2) for row in rows],
                 name, colour, dash=dash, mode="lines+markers")
        )  # fmt: skip
        source = SOURCE[by][measure]
        traces.append(
            points([x for x, _ in source], [100 * share for _, share in source],
                   f"{name}, the source", colour, symbol="x", hover="%{x}: %{y:.3~g}%")
        )  # fmt: skip
    return figure(
        traces, height=height, x=AXES[by], y="% saved against whole replicas",
        xaxis={} if by == "size" else LOGARITHMIC, yaxis={"rangemode": "normal", "zeroline": True},
    )  # fmt: skip


def course_figure(courses: pl.DataFrame, height: int = 350) -> Figure:
    """Draw the GPUs of each level and the mean requests/s, over hours from the start.

    Windows are grouped into equal spans. Each point is the largest number of GPUs of its span.
    """
    start = courses["time_s"].min() or 0.0
    hours = (pl.col("time_s") - start) / 3600
    end = float(courses["time_s"].max() or 0.0) - float(start)  # type: ignore[arg-type]
    stretch = max(end / STRETCHES, 1.0)
    course = (
        courses.with_columns(((pl.col("time_s") - start) / stretch).floor().alias("stretch"))
        .group_by("level", "stretch")
        .agg(hours.first().alias("hours"), pl.col("gpus").max(), pl.col("requests_s").mean())
        .sort("stretch")
    )
    lines = []
    for level, name, colour in (
        ("model", "whole replicas", GREY), ("module", "layers", ORANGE),
        ("operator", "operators", BLUE),
    ):  # fmt: skip
        rows = course.filter(pl.col("level") == level)
        if rows.is_empty():
            continue
        lines.append(
            line(rows["hours"].round(4), rows["gpus"], name, colour, line_shape="hv",
                 hover="%{y} GPUs at %{x:.2f} h")
        )  # fmt: skip
    load = course.filter(pl.col("level") == "model")
    rate = line(load["hours"].round(4), load["requests_s"].round(3), "requests/s", GREEN,
                dash="dot", yaxis="y2")  # fmt: skip
    return figure(
        [*lines, rate], height=height, x="hours", y="GPUs", right="requests/s",
        yaxis2={"tickformat": ",.0f"},
    )  # fmt: skip
