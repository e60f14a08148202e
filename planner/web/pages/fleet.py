"""Build the home page: the active plans, what needs attention, and what waits for review."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from planner.domain.formats import figure, when
from planner.domain.report import Fact, Meaning
from planner.errors import PlannerError
from planner.models import ActivePlan, Firing, Outcome, Run, Source
from planner.outputs.active_plan_metrics import desired, next_change
from planner.outputs.render.html import ShownBlock, charts_shown
from planner.outputs.reports import run_report
from planner.selectors.active_plans import active_plans
from planner.selectors.review import UNDECIDED, proposals_list
from planner.selectors.runs import run_result
from planner.selectors.savings import savings

MOST = 3  # plans with a chart
ITEMS = 6  # lines of a list
HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class FleetPlan:
    """An active plan with its figures now, and demand and capacity as planned."""

    plan: ActivePlan
    facts: tuple[Fact, ...]
    charts: tuple[ShownBlock, ...]


@dataclass(frozen=True, slots=True)
class Alert:
    """Something that needs attention, with the page that shows it."""

    text: str
    page: str
    key: int | str


def fleet_context(now: datetime) -> dict[str, Any]:
    """Return the active plans, the alerts and the proposals that wait."""
    plans = list(active_plans()[:ITEMS])
    return {
        "plans": [
            FleetPlan(plan, tuple(_facts(plan, now)), _charts(plan) if i < MOST else ())
            for i, plan in enumerate(plans)
        ],
        "alerts": list(_alerts())[:ITEMS],
        "waiting": list(proposals_list().filter(state__in=UNDECIDED)[:ITEMS]),
    }


def _facts(plan: ActivePlan, now: datetime) -> Iterator[Fact]:
    """Yield replicas now, the next change, what came of it, and the savings so far."""
    counts = [pool.replicas for pool in desired(plan, now)]
    known = [count for count in counts if count is not None]
    yield Fact("Replicas now", sum(known) if known else None, note=plan.label or plan.policy)
    change = next_change(plan, now)
    if change is not None:
        moved = f"{change.before:,} to {change.after:,} replicas"
        yield Fact("Next change", when(change.at), note=moved)
    else:
        yield Fact("Next change", "none", note="within a week")
    if (saved := _saved(plan, now)) is not None:
        meaning = Meaning.SAVING if saved > 0 else Meaning.NEUTRAL
        note = f"as planned, since {when(plan.since)}"
        yield Fact("Saved so far", saved, "$", note=note, meaning=meaning)
    outcome = plan.outcomes.filter(state=Outcome.State.DONE).first()
    if outcome is None:
        yield Fact("Plan versus actual", None, note="once its window is over")
        return
    short = float(outcome.figures.get("short_hours") or 0.0)
    yield Fact(
        "Plan versus actual", "held" if not short else f"short for {figure(short)} h",
        note=f"since {when(outcome.begins)}", meaning=Meaning.MISSED if short else Meaning.MET,
    )  # fmt: skip


def _saved(plan: ActivePlan, now: datetime) -> float | None:
    """Return the planned saving over the baseline of its run since the plan is active, in $."""
    run = plan.run
    if run is None or run.state != Run.State.COMPLETED:
        return None
    result = run_result(run)
    policies, base = result.get("policies") or {}, str(result.get("baseline") or "")
    if plan.policy not in policies or base not in policies or base == plan.policy:
        return None
    saved = savings(result, base)[plan.policy]["cost_usd"]
    share = saved["equal"] if saved["equal"] is not None else saved["fraction"]
    window = result["window"]
    hours = (
        datetime.fromisoformat(window["end"]) - datetime.fromisoformat(window["start"])
    ).total_seconds() / HOUR_S
    active = (now - plan.since).total_seconds() / HOUR_S
    return float(share or 0.0) * float(policies[base]["cost_usd"]) / hours * active


def _charts(plan: ActivePlan) -> tuple[ShownBlock, ...]:
    """Return demand and capacity of the plan's run."""
    run = plan.run
    if run is None or run.state != Run.State.COMPLETED:
        return ()
    alternatives = (run.result or {}).get("alternatives") or {}
    chosen = next((name for name, key in alternatives.items() if key == plan.policy), "")
    try:
        report = run_report(run, chosen)
    except PlannerError:  # its arrays were removed
        return ()
    return charts_shown(report, live=True, prefix=f"plan-{plan.pk}")[:1]


def _alerts() -> Iterator[Alert]:
    """Yield what needs attention: sources that cannot be read, schedules and plans that failed."""
    for source in Source.objects.filter(state=Source.State.PROBLEM)[:ITEMS]:
        yield Alert(f"Live source {source.name} cannot be read", "source", source.name)
    failed = (Firing.State.FAILED, Firing.State.MISSED)
    seen = set()
    for firing in Firing.objects.select_related("schedule").order_by("-due_at")[:ITEMS]:
        if firing.schedule_id not in seen and firing.state in failed:
            what = firing.get_state_display().lower()
            yield Alert(f"Schedule {firing.schedule.name}: {what}", "schedule", firing.schedule_id)
        seen.add(firing.schedule_id)
    for outcome in Outcome.objects.filter(state=Outcome.State.DONE).select_related("plan")[:ITEMS]:
        drifts = [*(outcome.figures.get("lengths") or []), *(outcome.figures.get("speed") or [])]
        if any(drift.get("flagged") for drift in drifts):
            yield Alert(f"Drift in {outcome.plan.scenario}", "outcome", outcome.pk)
