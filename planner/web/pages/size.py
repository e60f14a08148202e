"""What the page of a size run shows: pools, and TTFT and TBT against the rate."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go
import polars as pl

from planner.models import Run
from planner.selectors.runs import run_result, run_table, run_tables
from planner.web.charts import BLUE, GREY, ORANGE, RED, Figure
from planner.web.pages.provision_figures import drawn


def size_context(run: Run) -> dict[str, Any]:
    result = run_result(run)
    curve = run_table(run, "curve")
    return {
        "run": run,
        "result": result,
        "tables": run_tables(run),
        "pools": [pool | {"figures": _figures(_of(curve, pool), pool)} for pool in result["pools"]],
    }


def _of(curve: pl.DataFrame, pool: dict[str, Any]) -> pl.DataFrame:
    for name in ("model", "arrangement", "role"):
        curve = curve.filter(pl.col(name) == pool[name])
    return curve.sort("rate")


def _figures(curve: pl.DataFrame, pool: dict[str, Any]) -> list[tuple[str, Figure]]:
    """TTFT and TBT, each with its limit and the size; a role without one has no picture of it."""
    found = []
    for name, limit in (("ttft", "ttft_limit_ms"), ("tbt", "tbt_limit_ms")):
        if curve.is_empty() or curve[f"{name}_ms"].null_count() == curve.height:
            continue
        found.append((name.upper(), latency_figure(curve, name, pool, pool[limit])))
    return found


def latency_figure(
    curve: pl.DataFrame, name: str, pool: dict[str, Any], limit_ms: float | None
) -> Figure:
    """One latency against the rate by closed forms: mean and the tier's percentile, its limit, and
    what simulation found at the size."""
    rates = curve["rate"].to_list()

    def line(column: str, label: str, colour: str, dash: str) -> Any:
        return go.Scatter(
            x=rates,
            y=curve[column].to_list(),
            name=label,
            mode="lines",
            line={"color": colour, "width": 2, "dash": dash},
            hovertemplate="%{x:,.4~g}/s: %{y:,.4~g} ms",
        )

    lines = [
        line(f"{name}_ms", f"p{pool['percentile']:g}, closed forms", BLUE, "solid"),
        line(f"{name}_mean_ms", "mean, closed forms", GREY, "dash"),
    ]
    if limit_ms is not None:
        lines.append(
            go.Scatter(
                x=[0, rates[-1]], y=[limit_ms, limit_ms], name="limit", mode="lines",
                line={"color": RED, "width": 1.5, "dash": "dot"}, hovertemplate="%{y:,.4~g} ms",
            )
        )  # fmt: skip
    if pool[f"{name}_ms"] is not None:
        lines.append(
            go.Scatter(
                x=[pool["max_rps"]], y=[pool[f"{name}_ms"]], name="the size, simulated",
                mode="markers", marker={"color": ORANGE, "size": 10, "symbol": "diamond"},
                hovertemplate="%{x:,.4~g}/s: %{y:,.4~g} ms",
            )
        )  # fmt: skip
    top = 3 * limit_ms if limit_ms else None
    highest = max(v for v in curve[f"{name}_ms"].to_list() if v is not None)
    axis = {"range": [0, top]} if top and highest > top else {}
    return drawn(lines, height=300, x="requests/s of one replica", y="ms", yaxis=axis)
