"""Draw plans against actual demand: by plan over the weeks, and by hour within one plan."""

from collections.abc import Sequence

from planner.domain.report import Axis, Chart, Form, Role, Series, step_series
from planner.domain.retrospective.figures import PlanEvaluation
from planner.domain.serialise import from_json
from planner.models import Outcome
from planner.outputs.render.figure import Figure
from planner.outputs.render.plotly import figure_of


def weeks_figure(outcomes: Sequence[Outcome]) -> Figure | None:
    """Draw forecast error and excess replicas of each plan; None if fewer than two are known."""
    done = [outcome for outcome in reversed(outcomes) if outcome.figures]
    if len(done) < 2:
        return None
    when = tuple(outcome.begins for outcome in done)
    plans = [from_json(PlanEvaluation, outcome.figures) for outcome in done]
    series = (
        Series("Demand off by", when, tuple(plan.demand.wape for plan in plans)),
        Series("Replica-hours beyond need", when, tuple(map(_excess_share, plans))),
        Series("Late requests, worst tier", when, tuple(map(_late_share, plans)), Role.BASELINE),
    )
    return figure_of(Chart("", Axis(), Axis("share", form=Form.SHARE), series, small=True))


def hours_figure(plan: PlanEvaluation) -> Figure | None:
    """Draw active and needed replicas by hour; None if no hour is known."""
    lines = (
        ("plan_replicas", "Planned", Role.RECOMMENDED),
        ("needed_replicas", "Needed, known afterwards", Role.MEASURED),
    )
    return _by_hour(plan, "replicas", "replicas", lines)


def demand_figure(plan: PlanEvaluation) -> Figure | None:
    """Draw actual and forecast demand in input tokens/s by hour; None if no hour is known."""
    lines = (
        ("came_tps", "Actual", Role.MEASURED),
        ("forecast_tps", "Forecast", Role.OTHER),
        ("planned_tps", "Planned percentile", Role.BASELINE),
    )
    return _by_hour(plan, "input tokens/s", "tokens/s", lines)


def _by_hour(
    plan: PlanEvaluation,
    title: str,
    unit: str,
    lines: Sequence[tuple[str, str, Role]],
) -> Figure | None:
    """Draw figures of a plan by hour; None if there are no hours.

    ``lines`` are the attribute of an hour, the name and the role of each line.
    """
    if not plan.hours:
        return None
    when = tuple(hour.begins for hour in plan.hours)
    series = tuple(
        step_series(name, when, [getattr(hour, key) for hour in plan.hours], role)
        for key, name, role in lines
    )
    return figure_of(Chart("", Axis(), Axis(title, unit), series, small=True))


def _late_share(plan: PlanEvaluation) -> float | None:
    """Return the share of late requests of the worst tier; None if no tier's share is known."""
    shares = [share for share in plan.attainment.values() if share is not None]
    return 1 - min(shares) if shares else None


def _excess_share(plan: PlanEvaluation) -> float | None:
    """Return the replica-hours beyond those needed, as a share of these; None if none are."""
    needed = plan.needed_replica_hours
    return plan.replica_hours / needed - 1 if needed else None
