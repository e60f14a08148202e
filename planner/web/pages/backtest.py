"""Build the page of a decision backtest: the verdict and a row for each forecaster."""

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
    points,
)
from planner.selectors.runs import run_result, run_tables


def page_context(run: Run, params: Mapping[str, str]) -> dict[str, Any]:
    """Return the template context of a completed backtest, the cheapest method first."""
    result = run_result(run)
    window = result.get("window") or {}
    methods = [{"name": name, **row} for name, row in result["methods"].items()]
    methods.sort(key=lambda row: (not row["equal"], row["cost_usd"] or float("inf")))
    return {
        "run": run,
        "result": result,
        "tables": run_tables(run),
        "window": window,
        "clock": window.get("clock", "utc"),
        "methods": methods,
        "beside": list(result["beside"].values()),
        "figure": decisions_figure(methods, list(result["beside"].values())),
    }


def decisions_figure(methods: list[dict[str, Any]], beside: list[dict[str, Any]]) -> Figure:
    """Draw cost over SLO attainment beyond the target.

    Each forecaster has two points: at equal attainment, and with the forecast percentile that
    earlier days chose. At equal attainment all lie on one vertical line. ``beside`` holds the rows
    of the policies without a forecast.
    """
    hover = "%{text}: $%{y:,.2f}, %{x:+.2%} beyond what is asked for"

    def placed(rows: list[dict[str, Any]], spare: str, usd: str) -> list[list[Any]]:
        known = [row for row in rows if row[spare] is not None and row[usd] is not None]
        return [
            [row[spare] for row in known],
            [row[usd] for row in known],
            [row.get("label") or row["name"] for row in known],
        ]

    traces = []
    for rows, spare, usd, name, colour, symbol in (
        (methods, "spare", "cost_usd", "At equal attainment", BLUE, "circle"),
        (methods, "as_run_spare", "as_run_cost_usd", "As the days before chose", ORANGE,
         "diamond"),
        (beside, "spare", "cost_usd", "Without a forecast", GREY, "square"),
    ):  # fmt: skip
        x, y, names = placed(rows, spare, usd)
        if x:
            traces.append(
                points(x, y, name, colour, size=11, symbol=symbol, hover=hover, text=names)
            )
    return figure(
        traces, height=340, xaxis={"tickformat": "+.1%", "rangemode": "normal"},
        yaxis={"rangemode": "normal"},
        x="attained beyond what is asked for", y="cost over the window, $",
    )  # fmt: skip
