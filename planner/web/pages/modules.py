"""Show module-level scaling of a run: the devices of the modules over time."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

import polars as pl

from planner.models import Run
from planner.outputs.render.figure import BLUE, GREEN, GREY, ORANGE, PALETTE, Figure, figure, line
from planner.selectors.runs import run_result, run_table, run_tables
from planner.web.charts.over_time import axis_title, steps, times

POOLS = 4  # most pools with a chart: those with the most operations


@dataclass(frozen=True, slots=True)
class PoolView:
    """One pool of one policy with its figures and its chart."""

    policy: str
    row: dict[str, Any]
    figure: Figure | None
    label: str
    anchor: str


def modules_context(run: Run) -> dict[str, Any]:
    """Return the pools with module-level scaling, or nothing if no policy moved modules."""
    result = run_result(run)
    moved = result.get("modules")
    if not moved:
        return {}
    names = run_tables(run)
    table = run_table(run, "modules") if "modules" in names else pl.DataFrame()
    window = result.get("window") or {}
    clock = window.get("clock", "utc")
    if not table.is_empty() and "end" in window:
        table = _to_its_end(table, datetime.fromisoformat(window["end"]))
    rows = [(policy, row) for policy in moved for row in policy["pools"]]
    rows.sort(key=lambda pair: -pair[1]["operations"])
    shown = [id(row) for _, row in rows[:POOLS]]
    parts = {name: figures for policy in moved for name, figures in policy["parts"].items()}
    return {
        "modules": moved,
        "module_pools": [
            PoolView(
                policy["label"],
                row,
                _figure(table, policy["policy"], row, clock) if id(row) in shown else None,
                "Copied layers, moved modules and borrowed GPUs over time, "
                f"{row['model']} in {row['region']}",
                f"module-chart-{i}",
            )
            for i, (policy, row) in enumerate(rows)
        ],
        "module_parts": parts,
        "module_operations": "module_operations" in names,
    }


def _to_its_end(table: pl.DataFrame, end: datetime) -> pl.DataFrame:
    """Repeat the last state of each device at the end of the window."""
    keys = ["policy", "model", "region", "arrangement", "device"]
    last = table.sort("time").group_by(keys, maintain_order=True).last()
    last = last.with_columns(pl.lit(end).cast(table.schema["time"]).alias("time"))
    return pl.concat([table, last.select(table.columns)])


def _figure(table: pl.DataFrame, policy: str, row: dict[str, Any], clock: str) -> Figure | None:
    if table.is_empty() or not row["operations"]:
        return None
    of_pool = table.filter(
        (pl.col("policy") == policy)
        & (pl.col("model") == row["model"])
        & (pl.col("region") == row["region"])
        & (pl.col("arrangement") == row["arrangement"])
    )
    lines: list[Any] = []
    for d in sorted(of_pool.filter("borrowed")["device"].unique().to_list()):
        there = steps(of_pool.filter(pl.col("device") == d), "time", "copies")
        gpu = of_pool.filter(pl.col("device") == d)["gpu"][0]
        lines.append(
            line(
                times(there, "time", clock), there["copies"], f"copies on device {d} ({gpu})",
                PALETTE[d % len(PALETTE)], line_shape="hv", hover="%{y} layers copied",
            )
        )  # fmt: skip
    away = of_pool.filter("borrowed").group_by("time").agg(
        pl.col("layers", "projections", "caches").sum(), pl.col("borrowed_instances").first(),
    )  # fmt: skip
    for name, words, colour in (
        ("layers", "layers moved away", ORANGE),
        ("projections", "feed-forward parts away", GREEN),
        ("caches", "KV caches away", BLUE),
    ):
        if away[name].sum():
            there = steps(away, "time", name)
            lines.append(
                line(
                    times(there, "time", clock), there[name], words, colour, line_shape="hv",
                    dash="dot", hover=f"%{{y}} {words}",
                )
            )  # fmt: skip
    borrowed = steps(away, "time", "borrowed_instances")
    lines.append(
        line(
            times(borrowed, "time", clock), borrowed["borrowed_instances"],
            "devices borrowed in all", GREY, line_shape="hv", yaxis="y2",
            hover="%{y} devices borrowed",
        )
    )  # fmt: skip
    under = {"title": {"text": "devices"}, "rangemode": "tozero", "automargin": True,
             "domain": [0, 0.25]}  # fmt: skip
    return figure(
        lines, height=350, x=axis_title(clock), y="modules of an instance", xaxis={"anchor": "y2"},
        yaxis={"domain": [0.33, 1], "rangemode": "tozero"}, yaxis2=under,
    )  # fmt: skip
