"""Return the report of a run."""

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cache
from threading import Lock

import polars as pl

from planner.domain.formats import zone_name
from planner.domain.report import Meaning, Report, Role
from planner.domain.reports.policies import saving_change
from planner.domain.reports.registry import REPORTS
from planner.domain.reports.tables import Tables
from planner.errors import NotFound, NotReady, PlannerError
from planner.models import Run
from planner.selectors.active_plans import active_plan_of_run, plan_to_compare
from planner.selectors.runs import run_result, run_table, run_tables, stored_result
from planner.storage.row_arrays import TablesState, tables_state

REPORTED = tuple(REPORTS)
MAX_CACHED = 8  # reports in a process
VS_CURRENT = "vs current"  # ends a change against the current fleet of the scenario
STALE_FLEET = (
    "The saving is over the scenario's current fleet, not over the active plan. Propose this plan "
    "to compare both."
)


@dataclass(frozen=True, slots=True)
class _CachedReport:
    """A cached report, and what it was built from: a result and the state of its tables."""

    result: object  # the document in the database
    tables: TablesState
    report: Report


# By run, alternative and time zone of the reader, in which reports have their times.
_cache: OrderedDict[tuple[int, str, str], _CachedReport] = OrderedDict()
_lock = Lock()


def run_report(run: Run, alternative: str = "") -> Report:
    """Return the report of a completed run; raise NotReady if its kind has none.

    ``alternative`` names the plan that the report of a comparison describes, "" the recommended
    one. The reports that were used last are cached until their run changes.
    """
    result = run_result(run)
    if run.kind not in REPORTS:
        raise NotReady(
            f"Run {run.pk} ({run.get_kind_display().lower()}) has no report. "
            "Export it to json or csv."
        )
    tables = tables_state(run.store)
    key = run.pk, alternative, zone_name()
    with _lock:
        cached = _cache.pop(key, None)
    if cached is None or cached.tables != tables or cached.result != result:
        report = REPORTS[run.kind].of(result, tables_of(run), alternative)
        cached = _CachedReport(result, tables, report)
    with _lock:
        _cache[key] = cached  # the last one used, at the end
        while len(_cache) > MAX_CACHED:
            _cache.popitem(last=False)
    return cached.report


def tables_of(run: Run) -> Tables:
    """Return a function that reads a run's table by name once; empty if there is none."""
    names = run_tables(run)

    @cache
    def table(name: str) -> pl.DataFrame:
        return run_table(run, name) if name in names else pl.DataFrame()

    return table


def report_about(run: Run, policy: str | None) -> Report:
    """Return the report of a completed run about ``policy``; None: the recommended one.

    Only comparisons have policies to choose from. Raises NotFound if a comparison lacks the policy.
    """
    if policy is None or run.kind != Run.Kind.COMPARE:
        return run_report(run)
    result = stored_result(run)
    if policy not in result.labels:
        known = ", ".join(result.labels)
        raise NotFound(f"There is no policy {policy!r} in run {run.pk}. Known: {known}.")
    # Levels of assurance may share a policy. The lowest one, which comes first, names it.
    names = (name for name, key in result.alternatives.items() if key == policy)
    return run_report(run, next(names, policy))


def compared_with_active(report: Report, run: Run, policy: str = "") -> Report:
    """Return ``report``, that of ``policy`` in a run, compared with the scenario's active plan.

    Its replicas, cost and energy are then compared with those of that plan, and so is the capacity
    in its chart; the alternative that is active is marked. A plan of another window cannot be
    compared, so a warning says that the saving is not over it. ``policy`` "" is the recommended
    one, and may itself be the active one.
    """
    active_plan = active_plan_of_run(run)
    if active_plan is None:
        return report
    shown_policy = policy or stored_result(run).recommended_policy
    if (active_plan.run_id, active_plan.policy) == (run.pk, shown_policy):
        return after_activation(report)
    plan = plan_to_compare(run, policy)
    active = policy_report(plan.run, plan.policy) if plan and plan.run else None
    if active is not None:
        policies = stored_result(run).alternatives if active_plan.run_id == run.pk else {}
        names = [name for name, key in policies.items() if key == active_plan.policy]
        return _against(active, report, names)
    if any(VS_CURRENT in fact.change for fact in report.facts):
        return replace(report, warnings=(*report.warnings, STALE_FLEET))
    return report


def _against(active: Report, report: Report, active_names: Collection[str]) -> Report:
    """Return ``report`` with figures and capacity compared with those of the report ``active``.

    Alternatives in ``active_names`` are marked as active.
    """
    active_facts = {fact.label: fact for fact in active.facts}
    facts = []
    for fact in report.facts:
        value, base = fact.value, active_facts.get(fact.label, fact).value
        if fact.label == "Replicas":
            fact = replace(fact, change=f"active plan: {base}")
        elif fact.unit in ("$", "kWh") and isinstance(value, float) and isinstance(base, float):
            saving = saving_change(1 - value / base if base else None)
            fact = replace(fact, **{"change": "", "meaning": Meaning.NEUTRAL, **saving})
            if fact.unit == "$":
                fact = replace(fact, change=f"{fact.change} vs active plan", note="")
        facts.append(fact)
    charts = list(report.charts)
    if charts and active.charts:
        capacity = [
            replace(line, role=Role.BASELINE, label="Capacity, active plan")
            for line in active.charts[0].series
            if line.role is Role.RECOMMENDED
        ]
        others = [line for line in charts[0].series if line.role is not Role.BASELINE]
        charts[0] = replace(charts[0], series=(*others, *capacity))
    alternatives = []
    for each in report.alternatives:
        if each.name in active_names:
            note = " · ".join(filter(None, (each.price.note, "active")))
            each = replace(each, price=replace(each.price, note=note))
        alternatives.append(each)
    return replace(
        report, facts=tuple(facts), charts=tuple(charts), alternatives=tuple(alternatives)
    )


def after_activation(report: Report) -> Report:
    """Return the report of an active or former plan, which replaced its scenario's current fleet.

    That fleet is then called the one before the plan.
    """
    facts = []
    for fact in report.facts:
        change = fact.change.replace(VS_CURRENT, "vs before the plan")
        facts.append(replace(fact, change=change.replace("current:", "before the plan:")))
    charts = []
    for chart in report.charts:
        lines = [
            replace(line, label=line.label.replace("Current capacity", "Capacity before the plan"))
            for line in chart.series
        ]
        charts.append(replace(chart, series=tuple(lines)))
    return replace(report, facts=tuple(facts), charts=tuple(charts))


def policy_report(run: Run, policy: str) -> Report | None:
    """Return the report of a run about ``policy``.

    Returns None if the run is not completed, did not compare the policy, or has no report.
    """
    if run.state != Run.State.COMPLETED:
        return None
    try:
        return report_about(run, policy)
    except PlannerError:  # no such policy, or its arrays were removed
        return None
