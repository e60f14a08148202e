"""Build the page of an outlook: cost by month, and recommended commitments."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go

from planner.models import Run
from planner.outputs.render.figure import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    SKY,
    Figure,
    figure,
    line,
)
from planner.selectors.runs import run_result, run_tables
from planner.services.outlook_simulation import month_to_replay

TERMS = {"one_year": "1 year", "three_years": "3 years"}
SHADES = (BLUE, ORANGE, GREEN, SKY)


def page_context(run: Run, params: Mapping[str, str]) -> dict[str, Any]:
    """Return the template context of a completed outlook."""
    result = run_result(run)
    window = result.get("window") or {}
    take = {(row["region"], row["gpu"], row["term"]) for row in result["recommended_commitments"]}
    return {
        "run": run,
        "to_replay": month_to_replay(run),
        "result": result,
        "tables": run_tables(run),
        "window": window,
        "clock": window.get("clock", "utc"),
        "commitments": [
            {
                **row,
                "term_words": TERMS[row["term"]],
                "taken": (row["region"], row["gpu"], row["term"]) in take,
            }
            for row in result["commitments"]
        ],
        "cost_figure": cost_figure(result),
        "use_figure": use_figure(result) if result["use"] else None,
    }


def cost_figure(result: Mapping[str, Any]) -> Figure:
    """Draw the dollars of each month by price class, and a line of the cost with commitments."""
    months = result["months"]
    names = [row["month"] for row in months]
    classes = (("on_demand_usd", "On demand", BLUE), ("spot_usd", "Spot", SKY),
               ("starts_usd", "Starts", GREY))  # fmt: skip
    traces = [
        go.Bar(
            x=names,
            y=[row[key] for row in months],
            name=name,
            marker={"color": colour},
            hovertemplate="%{x}: $%{y:,.0f}",
        )
        for key, name, colour in classes
        if any((row[key] or 0.0) > 0 for row in months)
    ]
    if result["recommended_commitments"]:
        committed = [row["cost_committed_usd"] for row in months]
        traces.append(line(names, committed, "With commitments", ORANGE, mode="lines+markers"))
    return figure(
        traces, height=340, barmode="stack", xaxis={"type": "category"}, y="$ of the month"
    )


def use_figure(result: Mapping[str, Any]) -> Figure:
    """Draw the share of time in which the k-th GPU of a type and region is in use."""
    steps: dict[str, list[Mapping[str, Any]]] = {}
    for row in result["use"]:
        steps.setdefault(f"{row['gpu']} in {row['region']}", []).append(row)
    traces = []
    for (name, rows), colour in zip(steps.items(), SHADES * len(steps), strict=False):
        x = [0, *(row["gpus"] for row in rows)]
        y = [rows[0]["in_use"], *(row["in_use"] for row in rows)]
        traces.append(
            line(x, y, name, colour, line_shape="vh", hover="%{x} GPUs: %{y:.0%} of the time")
        )
    return figure(
        traces, height=300, x="GPUs", y="share of the time in use", yaxis={"tickformat": ".0%"}
    )
