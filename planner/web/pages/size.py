"""Build the page of a size run: pools, and TTFT and TBT over the rate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from planner.models import Run
from planner.selectors.runs import run_result, run_table, run_tables
from planner.web.charts.figure import BLUE, GREY, ORANGE, RED, Figure, figure, line, points

POOLS = (2, 8, 64)  # pool sizes whose rate per replica is shown
DOUBLED = tuple(2**n for n in range(12))  # pool sizes that the axis labels


def page_context(run: Run, params: Mapping[str, str]) -> dict[str, Any]:
    result = run_result(run)
    curve = run_table(run, "curve")
    return {
        "run": run,
        "result": result,
        "tables": run_tables(run),
        "pools": [
            pool | {"figures": _figures(_of(curve, pool), pool), "each": _each(pool)}
            for pool in result["pools"]
        ],
    }


def _each(pool: dict[str, Any]) -> list[float]:
    """Return requests/s per replica in pools of 2, 8 and 64; older runs have none."""
    known, isl = pool.get("pool_tps", ()), pool["input_tps"] / pool["max_rps"]
    return [known[n - 1] / n / isl for n in POOLS if n <= len(known)]


def _of(curve: pl.DataFrame, pool: dict[str, Any]) -> pl.DataFrame:
    for name in ("model", "arrangement", "role"):
        curve = curve.filter(pl.col(name) == pool[name])
    return curve.sort("rate")


def _figures(curve: pl.DataFrame, pool: dict[str, Any]) -> list[tuple[str, Figure]]:
    """Draw TTFT and TBT with limit and size; omit a latency that the pool's role does not have."""
    figures = []
    for name, limit in (("ttft", "ttft_limit_ms"), ("tbt", "tbt_limit_ms")):
        if curve.is_empty() or curve[f"{name}_ms"].null_count() == curve.height:
            continue
        figures.append((name.upper(), latency_figure(curve, name, pool, pool[limit])))
    if "pool_tps" in pool:
        figures.append(("Pools", together_figure(pool)))
    return figures


def together_figure(pool: dict[str, Any]) -> Figure:
    """Draw requests/s per replica over the pool size, and the simulated pools."""
    isl, tps = pool["input_tps"] / pool["max_rps"], pool["pool_tps"]
    hover = "%{x}: %{y:,.4~g}/s each"
    each = [carried / n / isl for n, carried in enumerate(tps, start=1)]
    pools = pool["simulated_pools"]
    traces = [
        line(list(range(1, len(tps) + 1)), each, "to count on", BLUE, hover=hover),
        points(
            [point["instances"] for point in pools],
            [point["max_rps"] / point["instances"] for point in pools],
            "simulated", ORANGE, size=10, symbol="diamond", hover=hover,
        ),
    ]  # fmt: skip
    axis = {"type": "log", "tickvals": [n for n in DOUBLED if n <= len(tps)]}
    return figure(traces, height=300, x="replicas of a pool", y="requests/s of each", xaxis=axis)


def latency_figure(
    curve: pl.DataFrame, name: str, pool: dict[str, Any], limit_ms: float | None
) -> Figure:
    """Draw one latency over the rate by closed forms: its mean, the tier's percentile and limit.

    A point shows what the simulation found at the size.
    """
    rates, hover = curve["rate"], "%{x:,.4~g}/s: %{y:,.4~g} ms"
    percentile = f"p{pool['percentile']:g}, closed forms"
    traces = [
        line(rates, curve[f"{name}_ms"], percentile, BLUE, hover=hover),
        line(rates, curve[f"{name}_mean_ms"], "mean, closed forms", GREY, dash="dash", hover=hover),
    ]
    if limit_ms is not None:
        traces.append(
            line(
                [0, rates[-1]], [limit_ms, limit_ms], "limit", RED, width=1.5, dash="dot",
                hover="%{y:,.4~g} ms",
            )
        )  # fmt: skip
    if pool[f"{name}_ms"] is not None:
        traces.append(
            points(
                [pool["max_rps"]], [pool[f"{name}_ms"]], "the size, simulated", ORANGE,
                size=10, symbol="diamond", hover=hover,
            )
        )  # fmt: skip
    top = 3 * limit_ms if limit_ms else None
    highest = max(latency for latency in curve[f"{name}_ms"] if latency is not None)
    axis = {"range": [0, top]} if top and highest > top else {}
    return figure(traces, height=300, x="requests/s of one replica", y="ms", yaxis=axis)
