"""Draw plans against actual demand: by plan over the weeks, and by hour within one plan."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from planner.domain.report import Axis, Chart, Form, Role, Series, Shape
from planner.models import Outcome
from planner.outputs.render.figure import Figure
from planner.outputs.render.plotly import figure_of


def weeks_figure(outcomes: Sequence[Outcome]) -> Figure | None:
    """Draw forecast error and excess replicas of each plan; None if fewer than two are known."""
    done = [outcome for outcome in reversed(outcomes) if outcome.figures]
    if len(done) < 2:
        return None
    when = tuple(outcome.begins for outcome in done)
    figures = [outcome.figures for outcome in done]
    off = tuple(judged["demand"]["wape"] for judged in figures)
    series = (
        Series("Demand off by", when, off),
        Series("Replica-hours beyond need", when, tuple(map(_beyond, figures))),
        Series("Late, of the worst tier", when, tuple(map(_largest_miss, figures)), Role.BASELINE),
    )
    return figure_of(Chart("", Axis(), Axis("share", form=Form.SHARE), series, small=True))


def hours_figure(figures: dict[str, Any]) -> Figure | None:
    """Draw active and needed replicas by hour; None if no hour is known."""
    lines = (
        ("held", "Held, as planned", Role.RECOMMENDED),
        ("needed", "Would have done", Role.MEASURED),
    )
    return _by_hour(figures, "replicas", "replicas", Shape.STEP, lines)


def demand_figure(figures: dict[str, Any]) -> Figure | None:
    """Draw actual and forecast demand in input tokens/s."""
    lines = (
        ("came_tps", "Came", Role.MEASURED),
        ("forecast_tps", "Forecast", Role.OTHER),
        ("planned_tps", "Planned for", Role.BASELINE),
    )
    return _by_hour(figures, "input tokens/s", "tokens/s", Shape.LINE, lines)


def _by_hour(
    figures: dict[str, Any],
    title: str,
    unit: str,
    shape: Shape,
    lines: Sequence[tuple[str, str, Role]],
) -> Figure | None:
    """Draw several keys of the hours as lines, each with a name."""
    rows = figures.get("hours") or []
    if not rows:
        return None
    when = tuple(datetime.fromisoformat(row["begins"]) for row in rows)
    series = tuple(
        Series(name, when, tuple(row[key] for row in rows), role, shape)
        for key, name, role in lines
    )
    return figure_of(Chart("", Axis(), Axis(title, unit), series, small=True))


def _largest_miss(figures: dict[str, Any]) -> float | None:
    shares = [share for share in figures["attainment"].values() if share is not None]
    return 1 - min(shares) if shares else None


def _beyond(figures: dict[str, Any]) -> float | None:
    needed = figures["needed_replica_hours"]
    return figures["replica_hours"] / needed - 1 if needed else None
