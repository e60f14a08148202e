"""Return the report of a run."""

from functools import cache

import polars as pl

from planner.domain.report import Report
from planner.domain.reports.registry import REPORTS
from planner.errors import NotReady, PlannerError
from planner.models import Run
from planner.selectors.runs import run_result, run_table, run_tables, stored_result

REPORTED = tuple(REPORTS)


def run_report(run: Run, alternative: str = "") -> Report:
    """Return the report of a completed run; raise NotReady if its kind has none.

    ``alternative`` names the plan that the report of a comparison describes. Default: the
    recommended one.
    """
    result, names = run_result(run), run_tables(run)
    if run.kind in REPORTS:
        read = cache(lambda name: run_table(run, name) if name in names else pl.DataFrame())
        return REPORTS[run.kind].of(result, read, alternative)
    raise NotReady(
        f"Run {run.pk} ({run.get_kind_display().lower()}) has no report. Export it to json or csv."
    )


def policy_report(run: Run, policy: str) -> Report | None:
    """Return the report of a run about ``policy``; None if there is none about it."""
    if run.state != Run.State.COMPLETED:
        return None
    result = stored_result(run)
    chosen = next((name for name, key in result.alternatives.items() if key == policy), "")
    if run.kind == Run.Kind.COMPARE and not chosen and result.recommended_policy != policy:
        return None  # the report would be about another policy
    try:
        return run_report(run, chosen)
    except PlannerError:  # its arrays were removed
        return None
