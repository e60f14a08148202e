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
from planner.errors import NotReady, PlannerError
from planner.models import Run
from planner.selectors.runs import run_result, run_table, run_tables, stored_result
from planner.storage.row_arrays import TablesState, tables_state

REPORTED = tuple(REPORTS)
KEPT = 8  # most reports that a process caches


@dataclass(frozen=True, slots=True)
class _Kept:
    """A cached report, and what it was built from: a result and the state of its tables."""

    result: object  # the document in the database
    tables: TablesState
    report: Report


# By run, alternative and time zone of the reader, in which reports have their times.
_kept: OrderedDict[tuple[int, str, str], _Kept] = OrderedDict()
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
    key, tables = (run.pk, alternative, zone_name()), tables_state(run.store)
    with _lock:
        cached = _kept.pop(key, None)
    if cached is None or (cached.tables, cached.result) != (tables, result):
        report = REPORTS[run.kind].of(result, tables_of(run), alternative)
        cached = _Kept(result, tables, report)
    with _lock:
        _kept[key] = cached
        while len(_kept) > KEPT:
            _kept.popitem(last=False)
    return cached.report


def tables_of(run: Run) -> Tables:
    """Return a function that reads a run's table by name once; empty if there is none."""
    names = run_tables(run)
    return cache(lambda name: run_table(run, name) if name in names else pl.DataFrame())


def policy_report(run: Run, policy: str) -> Report | None:
    """Return the report of a run about ``policy``; None if the run has no report about it."""
    if run.state != Run.State.COMPLETED:
        return None
    result = stored_result(run)
    names = (name for name, key in result.alternatives.items() if key == policy)
    alternative = next(names, "")
    if run.kind == Run.Kind.COMPARE and not alternative and result.recommended_policy != policy:
        return None  # the report would be about another policy
    try:
        return run_report(run, alternative)
    except PlannerError:  # its arrays were removed
        return None
