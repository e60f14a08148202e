"""Draw plans against actual demand: by plan over the weeks, and by hour within one plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from planner.models import Outcome
from planner.outputs.render.figure import BLUE, GREY, ORANGE, UTC, Figure, figure, line

PERCENT = "%{y:.1%}"


def weeks_figure(outcomes: Sequence[Outcome]) -> Figure | None:
    """Draw forecast error and excess replicas of each plan; None if fewer than two are known."""
    done = [outcome for outcome in reversed(outcomes) if outcome.figures]
    if len(done) < 2:
        return None
    when = [judged.begins.isoformat() for judged in done]
    off = [judged.figures["demand"]["wape"] for judged in done]
    late = [_worst(judged.figures) for judged in done]
    more = [_beyond(judged.figures) for judged in done]
    lines = (
        (off, "Demand off by", BLUE, "solid"),
        (more, "Replica-hours beyond need", ORANGE, "dash"),
        (late, "Late, of the worst tier", GREY, "dot"),
    )
    return figure(
        [
            line(when, values, name, colour, dash=dash, mode="lines+markers", hover=PERCENT)
            for values, name, colour, dash in lines
        ],
        height=300,
        x=UTC,
        y="share",
        together=True,
        yaxis={"tickformat": ".0%"},
    )


def hours_figure(figures: dict[str, Any]) -> Figure | None:
    """Draw held and needed replicas by hour; None if no hour is known."""
    rows = figures.get("hours") or []
    if not rows:
        return None
    when = [row["begins"] for row in rows]
    lines = (
        ("held", "Held, as planned", BLUE, "solid"),
        ("needed", "Would have done", ORANGE, "dash"),
    )
    drawn = [
        line(
            when,
            [row[key] for row in rows],
            name,
            colour,
            dash=dash,
            line_shape="hv",
            hover="%{y:,.4~g} replicas",
        )
        for key, name, colour, dash in lines
    ]
    return figure(drawn, height=300, x=UTC, y="replicas", together=True)


def demand_figure(figures: dict[str, Any]) -> Figure | None:
    """Draw actual and forecast demand in input tokens/s."""
    rows = figures.get("hours") or []
    if not rows:
        return None
    lines = (
        ("came_tps", "Came", ORANGE, "solid"),
        ("forecast_tps", "Forecast", BLUE, "dash"),
        ("planned_tps", "Planned for", GREY, "dot"),
    )
    when = [row["begins"] for row in rows]
    drawn = [
        line(when, [row[key] for row in rows], name, colour, dash=dash, hover="%{y:,.4~g} tokens/s")
        for key, name, colour, dash in lines
    ]
    return figure(drawn, height=300, x=UTC, y="input tokens/s", together=True)


def _worst(figures: dict[str, Any]) -> float | None:
    shares = [share for share in figures["attainment"].values() if share is not None]
    return 1 - min(shares) if shares else None


def _beyond(figures: dict[str, Any]) -> float | None:
    needed = figures["needed_replica_hours"]
    return figures["replica_hours"] / needed - 1 if needed else None
