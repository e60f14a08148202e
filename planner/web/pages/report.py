"""Build the page of a run from its report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.models import Run
from planner.outputs.render.html import sections_shown
from planner.outputs.reports import run_report
from planner.selectors.runs import run_result, run_tables


def page_context(run: Run, _: Mapping[str, str]) -> dict[str, Any]:
    """Return the report of a run, with what the frame of its page shows."""
    report = run_report(run)
    return {
        "run": run,
        "result": run_result(run),
        "tables": run_tables(run),
        "report": report,
        "sections": sections_shown(report, live=True),
    }
