"""Return the report of a run."""

from __future__ import annotations

import polars as pl

from planner.domain.report import Report
from planner.domain.reports.registry import REPORTS
from planner.errors import NotReady
from planner.models import Run
from planner.outputs.plan_report import plan_report
from planner.selectors.runs import run_result, run_table, run_tables

PLANNED = (Run.Kind.PLAN, Run.Kind.COMPARE, Run.Kind.SIMULATE)
REPORTED = (*PLANNED, *REPORTS)


def run_report(run: Run) -> Report:
    """Return the report of a completed run; raise NotReady if its kind has none."""
    result, names = run_result(run), run_tables(run)
    if run.kind in REPORTS:
        return REPORTS[run.kind].of(
            result, lambda name: run_table(run, name) if name in names else pl.DataFrame()
        )
    if run.kind in PLANNED:
        return plan_report(run)
    raise NotReady(
        f"Run {run.pk} ({run.get_kind_display().lower()}) has no report. Export it to json or csv."
    )
