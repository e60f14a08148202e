"""The page of a front: its curve, the knee and what each plan takes."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

from planner.models import Run
from planner.selectors.runs import run_result, run_tables
from planner.web import charts

UNITS = {"cost": "$", "gpu-hours": "GPU-h", "energy": "kWh", "carbon": "kg CO₂e"}


def page_context(run: Run) -> dict[str, Any]:
    """Everything the page of a completed front shows."""
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


def front_figure(result: dict[str, Any]) -> charts.Figure:
    """The first objective over the second, what is proven below it, and the knee."""
    first, second = result["of"]
    points, bend = result["points"], result.get("knee")
    x = [point["second"] for point in points]
    hover = f"%{{x:,.4~g}} {UNITS[second]}, %{{y:,.4~g}} {UNITS[first]}"
    drawn = [
        go.Scatter(
            x=x,
            y=[point["first_bound"] for point in points],
            name="No plan is below",
            line={"color": charts.GREY, "width": 1, "dash": "dot"},
            hovertemplate=hover,
        ),
        go.Scatter(
            x=x,
            y=[point["first"] for point in points],
            name="Plans",
            line={"color": charts.BLUE, "width": 2},
            marker={"size": 8},
            hovertemplate=hover,
        ),
    ]
    if bend is not None:
        drawn.append(
            go.Scatter(
                x=[x[bend]],
                y=[points[bend]["first"]],
                name="Where the curve bends",
                marker={"size": 14, "color": charts.ORANGE, "symbol": "diamond"},
                hovertemplate=hover,
            )
        )
    chart = charts.figure(
        drawn,
        height=380,
        x=f"{second}, {UNITS[second]} over the window",
        y=f"{first}, {UNITS[first]} over the window",
    )
    for trace in chart["data"][1:]:
        trace["mode"] = "lines+markers"
    chart["layout"]["yaxis"]["rangemode"] = "normal"
    chart["layout"]["hovermode"] = "closest"
    return chart
