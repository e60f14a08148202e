"""Build the page of a P:D ratio run: the curve, the heat tables and the best ratio over time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.models import Run
from planner.outputs.render.figure import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    RED,
    SKY,
    Figure,
    figure,
    line,
    points,
)
from planner.selectors.runs import run_result, run_tables
from planner.web.charts.over_time import axis_title

BOUNDS = {
    "ttft": (BLUE, "circle"),
    "tbt": (ORANGE, "square"),
    "memory": (GREEN, "triangle-up"),
    "link": (RED, "x"),
    "throughput": (SKY, "diamond"),
    "e2e": (GREY, "cross"),
}
SHADES = 8  # of the heat tables


def page_context(run: Run, params: Mapping[str, str]) -> dict[str, Any]:
    result = run_result(run)
    best = result["best"]
    rows = [
        row | {"best": (row["prefill"], row["decode"]) == (best["prefill"], best["decode"])}
        for row in result["ratios"]
    ]
    moved = result["sensitivity"]
    return {
        "run": run,
        "result": result,
        "tables": run_tables(run),
        "rows": rows,
        "best": best,
        "sides": _sides(result["ratios"]),
        "curve_figure": curve_figure(result),
        "by_lengths": _heat(moved["isl"], moved["by_lengths"]),
        "by_limits": _heat(moved["ttft_ms"], moved["by_limits"]),
        "moved": moved,
        "drift_figure": drift_figure(result) if len(result["over_time"]) > 1 else None,
        "drift_loses": max((row["kept_loses"] or 0.0 for row in result["over_time"]), default=0.0),
        "link_speed": result["link_gb_s"],
    }


def curve_figure(result: dict[str, Any]) -> Figure:
    """Draw tokens/s at every ratio with its binding limit and the best ratio.

    See HeteroScale, figure 4.
    """
    rows, best = result["ratios"], result["best"]
    names = [f"{row['prefill']}P/{row['decode']}D" for row in rows]
    rates = [row["max_tps"] for row in rows]
    traces = [line(names, rates, "", GREY, width=1.5, showlegend=False, hoverinfo="skip")]
    for bound, (colour, symbol) in BOUNDS.items():
        bounded = [i for i, row in enumerate(rows) if row["bound_by"] == bound]
        if not bounded:
            continue
        label = bound.upper() if bound in ("ttft", "tbt", "e2e") else bound
        traces.append(
            points(
                [names[i] for i in bounded], [rates[i] for i in bounded], f"bound by {label}",
                colour, symbol=symbol, customdata=[rows[i]["by"] for i in bounded],
                hover="%{x}: %{y:,.0f} tokens/s, %{customdata}<extra></extra>",
            )
        )  # fmt: skip
    traces.append(
        points(
            [f"{best['prefill']}P/{best['decode']}D"], [best["max_tps"]], "best", RED,
            symbol="circle-open", size=18, marker_line_width=2, hoverinfo="skip",
        )
    )  # fmt: skip
    mixed = result["mixed"]
    if mixed and mixed["max_tps"] > 0:
        traces.append(
            line(
                [names[0], names[-1]], [mixed["max_tps"]] * 2, "as many mixed instances", GREEN,
                width=1.5, dash="dash", hover="%{y:,.0f} tokens/s<extra></extra>",
            )
        )  # fmt: skip
    order = {"categoryorder": "array", "categoryarray": names}
    return figure(traces, height=380, x="prefill / decode instances", y="tokens/s", xaxis=order)


def drift_figure(result: dict[str, Any]) -> Figure:
    """Draw the prefill instances of the best ratio in each window, and those of the fixed ratio."""
    rows = [row for row in result["over_time"] if row["prefill"]]
    moments = [row["start"].rstrip("Z") for row in rows]
    best = [result["best"]["prefill"]] * 2 if moments else []
    traces = [
        line(
            moments, [row["prefill"] for row in rows], "best in the window", BLUE,
            mode="lines+markers", line_shape="hv",
            customdata=[[row["decode"], row["isl"], row["osl"]] for row in rows],
            hover="%{y}P/%{customdata[0]}D at ISL %{customdata[1]:,.0f}, OSL "
            "%{customdata[2]:,.0f}<extra></extra>",
        ),
        line(
            [moments[0], moments[-1]] if moments else [], best, "best of all", GREY,
            width=1.5, dash="dash", hover="%{x}, %{y}",
        ),
    ]  # fmt: skip
    return figure(
        traces, height=300, x=axis_title(result.get("clock", "utc")), y="prefill instances",
        yaxis={"range": [0, result["instances"]]},
    )  # fmt: skip


def _heat(
    labels: list[float | None], cells: list[list[dict[str, Any]]]
) -> list[tuple[float | None, list[dict[str, Any]]]]:
    """Return the rows with a shade for each cell, by the share of prefill instances."""
    return [
        (label, [cell | {"shade": _shade(cell)} for cell in row])
        for label, row in zip(labels, cells, strict=True)
    ]


def _shade(cell: dict[str, Any]) -> int:
    """Return a shade from 1 to SHADES, or 0 if no ratio meets the limits."""
    total = cell["prefill"] + cell["decode"]
    return 0 if not total else 1 + min(SHADES - 1, int(SHADES * cell["prefill"] / total))


def _sides(rows: list[dict[str, Any]]) -> dict[str, str]:
    """Return which limits bind if prefill instances are too few, and if decode instances are."""
    sides = {}
    for side in ("prefill", "decode"):
        bounds = [row["bound_by"] for row in rows if row["side"] == side]
        names = sorted(set(bounds), key=lambda name: -bounds.count(name))
        sides[side] = ", ".join(n.upper() if n in ("ttft", "tbt", "e2e") else n for n in names)
    return sides
