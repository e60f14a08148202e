"""Compare a report with that of the active plan, and name what an active plan has replaced."""

from collections.abc import Collection
from dataclasses import replace

from planner.domain.report import Chart, Fact, Meaning, Report, Role
from planner.domain.reports.compare import CURRENT_REPLICAS, VS_CURRENT
from planner.domain.reports.over_time import CURRENT_CAPACITY
from planner.domain.reports.policies import saving_change

BEFORE = {  # what is said of the current fleet, once a plan has replaced it
    VS_CURRENT: "vs before the plan",
    CURRENT_REPLICAS: "before the plan:",
    CURRENT_CAPACITY: "Capacity before the plan",
}


def against_plan(report: Report, active: Report, active_names: Collection[str]) -> Report:
    """Return ``report`` compared with ``active``, the report of the active plan.

    Replicas, cost and energy are compared with those of that plan, and so is the capacity in the
    chart. Without it, they are compared with the fleet that the plan has replaced. Alternatives in
    ``active_names`` are marked as active.
    """
    active_facts = {fact.label: fact for fact in active.facts}
    facts = [_compared(fact, active_facts.get(fact.label)) for fact in report.facts]
    charts = list(report.charts)
    if charts and active.charts:
        charts[0] = _with_capacity(charts[0], active.charts[0])
    alternatives = []
    for each in report.alternatives:
        if each.name in active_names:
            note = " · ".join(filter(None, (each.price.note, "active")))
            each = replace(each, price=replace(each.price, note=note))
        alternatives.append(each)
    return replace(
        report, facts=tuple(facts), charts=tuple(charts), alternatives=tuple(alternatives)
    )


def _compared(fact: Fact, active: Fact | None) -> Fact:
    """Return replicas, cost or energy with its change from that of the active plan, if known."""
    value, base = fact.value, active.value if active else None
    if fact.label == "Replicas":
        return replace(fact, change="" if base is None else f"active plan: {base}")
    if fact.unit not in ("$", "kWh"):
        return fact
    saved = None
    if isinstance(value, float | int) and isinstance(base, float | int) and base:
        saved = 1 - value / base
    fact = replace(fact, **{"change": "", "meaning": Meaning.NEUTRAL, **saving_change(saved)})
    if fact.unit == "$" and fact.change:
        fact = replace(fact, change=f"{fact.change} vs active plan", note="")
    return fact


def _with_capacity(chart: Chart, active: Chart) -> Chart:
    """Return a chart with the capacity of the active plan as its baseline."""
    capacity = [
        replace(line, role=Role.BASELINE, label="Capacity, active plan")
        for line in active.series
        if line.role is Role.RECOMMENDED
    ]
    others = [line for line in chart.series if line.role is not Role.BASELINE]
    return replace(chart, series=(*others, *capacity))


def after_activation(report: Report) -> Report:
    """Return the report of an active or former plan, which replaced its scenario's current fleet.

    That fleet is then called the one before the plan.
    """
    facts = [replace(fact, change=_before(fact.change)) for fact in report.facts]
    charts = []
    for chart in report.charts:
        lines = [replace(line, label=_before(line.label)) for line in chart.series]
        charts.append(replace(chart, series=tuple(lines)))
    return replace(report, facts=tuple(facts), charts=tuple(charts))


def _before(text: str) -> str:
    """Return a text that calls the current fleet the one before the plan."""
    for current, before in BEFORE.items():
        text = text.replace(current, before)
    return text
