"""Build the page of a run from its report."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.models import Run
from planner.outputs.manifests.kinds import MANIFESTS
from planner.outputs.render.html import charts_shown, sections_shown
from planner.outputs.reports import run_report
from planner.selectors.runs import run_result, run_tables


def page_context(run: Run, params: Mapping[str, str]) -> dict[str, Any]:
    """Return the report of a run, with what the frame of its page shows."""
    result, alternative = run_result(run), params.get("alternative", "")
    report = run_report(run, alternative)
    recommended = (result.get("recommended") or {}).get("policy", "")
    return {
        "run": run,
        "result": result,
        "tables": run_tables(run),
        "report": report,
        "charts": charts_shown(report, live=True),
        "sections": sections_shown(report, live=True),
        "clock": report.clock,
        "alternative": alternative,
        "policy": (result.get("alternatives") or {}).get(alternative, recommended),
        "manifests": [(name, manifest.label) for name, manifest in MANIFESTS.items()],
    }
