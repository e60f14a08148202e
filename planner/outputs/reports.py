"""Return the report of a run."""

from collections import OrderedDict
from dataclasses import dataclass, replace
from functools import cache
from threading import Lock

import polars as pl

from planner.domain.formats import zone_name
from planner.domain.report import Report
from planner.domain.reports.active_plan import after_activation, against_plan
from planner.domain.reports.registry import REPORTS
from planner.domain.reports.tables import Tables
from planner.errors import NotFound, NotReady, PlannerError
from planner.models import Run
from planner.policies.base import TODAY
from planner.selectors.active_plans import active_plan_of_run, compares_with
from planner.selectors.runs import run_result, run_table, run_tables, stored_result
from planner.storage.row_arrays import TablesState, tables_state

REPORTED = tuple(REPORTS)
MAX_CACHED = 8  # reports in a process
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

    A plan of another window cannot be compared, so a warning says that the saving is not over it.
    ``policy`` "" is the recommended one, and may itself be the active one.
    """
    plan, result = active_plan_of_run(run), stored_result(run)
    policy = policy or result.recommended_policy
    if plan is None:
        return report
    if (plan.run_id, plan.policy) == (run.pk, policy):
        return after_activation(report)
    active = None
    if plan.run and compares_with(plan, result, policy):
        active = policy_report(plan.run, plan.policy)
    if active is not None:
        policies = result.alternatives if plan.run_id == run.pk else {}
        names = [name for name, key in policies.items() if key == plan.policy]
        return against_plan(report, active, names)
    if result.baseline == TODAY:
        return replace(report, warnings=(*report.warnings, STALE_FLEET))
    return report


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
