"""Return the report of a run."""

from collections import OrderedDict
from dataclasses import dataclass
from functools import cache
from threading import Lock

import polars as pl

from planner.domain.formats import zone_name
from planner.domain.report import Report
from planner.domain.reports.registry import REPORTS
from planner.domain.reports.tables import Tables
from planner.errors import NotFound, NotReady, PlannerError
from planner.models import Run
from planner.selectors.runs import run_result, run_table, run_tables, stored_result
from planner.storage.row_arrays import TablesState, tables_state

REPORTED = tuple(REPORTS)
MAX_CACHED = 8  # reports in a process


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
