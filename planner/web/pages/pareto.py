"""Build the page of a Pareto front: its curve, the knee, and the figures of each plan."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.models import Run
from planner.outputs.render.figure import (
    BLUE,
    GREY,
    ORANGE,
    Figure,
    figure,
    line,
    points,
)
from planner.selectors.runs import run_result, run_tables

UNITS = {"cost": "$", "gpu-hours": "GPU-h", "energy": "kWh", "carbon": "kg CO₂e"}


def page_context(run: Run, params: Mapping[str, str]) -> dict[str, Any]:
    """Return the template context of a completed front."""
    result = run_result(run)
    window = result.get("window") or {}
    points = result.get("points") or []
    return {
        "run": run,
        "result": result,
        "tables": run_tables(run),
        "window": window,
        "clock": window.get("clock", "utc"),
        "first": result["of"][0],
        "second": result["of"][1],
        "rows": [
            {**point, "gpu_hours": point["gpu-hours"], "knee": i == result.get("knee")}
            for i, point in enumerate(points)
        ],
        "front_figure": front_figure(result) if len(points) > 1 else None,
    }


def front_figure(result: dict[str, Any]) -> Figure:
    """Draw the first objective over the second, its proven lower bound, and the knee."""
    first, second = result["of"]
    plans, bend = result["points"], result.get("knee")
    x = [plan["second"] for plan in plans]
    y = [plan["first"] for plan in plans]
    bounds = [plan["first_bound"] for plan in plans]
    hover = f"%{{x:,.4~g}} {UNITS[second]}, %{{y:,.4~g}} {UNITS[first]}"
    traces = [
        line(x, bounds, "No plan is below", GREY, width=1, dash="dot", hover=hover),
        line(x, y, "Plans", BLUE, mode="lines+markers", marker_size=8, hover=hover),
    ]
    if bend is not None:
        traces.append(
            points(
                [x[bend]], [y[bend]], "Where the curve bends", ORANGE,
                size=14, symbol="diamond", hover=hover,
            )
        )  # fmt: skip
    return figure(
        traces, height=380, yaxis={"rangemode": "normal"},
        x=f"{second}, {UNITS[second]} over the window",
        y=f"{first}, {UNITS[first]} over the window",
    )  # fmt: skip
