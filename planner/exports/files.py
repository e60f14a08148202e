"""Every format that a run leaves the house in: one list and one function, which command line, API
and page call."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from planner.errors import PlannerError
from planner.exports import json_text, main_table, run_csv
from planner.exports.manifests.kinds import MANIFESTS, manifest_text
from planner.exports.options import ExportOptions
from planner.exports.plans import KINDS as PLANS
from planner.exports.report.content import KINDS as REPORTED
from planner.exports.report.content import report_of
from planner.exports.report.html import html_of
from planner.models import Run

Write = Callable[[Run, ExportOptions, datetime], bytes]


@dataclass(frozen=True, slots=True)
class Format:
    """``label`` is its entry in menus; ``group`` what of a plan it is."""

    label: str
    group: str
    ending: str
    media: str
    write: Write


@dataclass(frozen=True, slots=True)
class File:
    name: str
    media: str
    content: bytes


def _csv(run: Run, options: ExportOptions, now: datetime) -> bytes:
    return run_csv(run, options.table or main_table(run)).encode()


def _json(run: Run, options: ExportOptions, now: datetime) -> bytes:
    return json_text(run).encode()


def _manifest(kind: str, run: Run, options: ExportOptions, now: datetime) -> bytes:
    return manifest_text(run, kind, options, now).encode()


def _html(run: Run, options: ExportOptions, now: datetime) -> bytes:
    return html_of(report_of(run, now)).encode()


def _pdf(run: Run, options: ExportOptions, now: datetime) -> bytes:
    from planner.exports.report.pdf import pdf_of  # slow to import, and few ask for one

    return pdf_of(report_of(run, now))


def _xlsx(run: Run, options: ExportOptions, now: datetime) -> bytes:
    from planner.exports.report.xlsx import xlsx_of  # as above

    return xlsx_of(report_of(run, now))


FIGURES, REPORT, TAKES_EFFECT = "Figures", "Report", "Where it takes effect"
SHEETS = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"
FORMATS: dict[str, Format] = {
    "pdf": Format("PDF", REPORT, "pdf", "application/pdf", _pdf),
    "html": Format("HTML, one file", REPORT, "html", "text/html; charset=utf-8", _html),
    "xlsx": Format("Excel (XLSX)", REPORT, "xlsx", SHEETS, _xlsx),
    "csv": Format("CSV", FIGURES, "csv", "text/csv; charset=utf-8", _csv),
    "json": Format("All figures (JSON)", FIGURES, "json", "application/json", _json),
    **{
        kind: Format(
            manifest.label,
            TAKES_EFFECT,
            "yaml",
            "application/yaml",
            partial(_manifest, kind),
        )
        for kind, manifest in MANIFESTS.items()
    },
}


def formats_of(run: Run) -> dict[str, list[tuple[str, str]]]:
    """Name and label by group, of what this run can be besides its tables and figures."""
    groups: dict[str, list[tuple[str, str]]] = {}
    for name, form in FORMATS.items():
        if run.kind in {REPORT: REPORTED, TAKES_EFFECT: PLANS}.get(form.group, ()):
            groups.setdefault(form.group, []).append((name, form.label))
    return groups


def export_file(*, run: Run, to: str, options: ExportOptions, now: datetime) -> File:
    """Raises PlannerError in a sentence where ``to`` is no format, or not one of this run."""
    if to not in FORMATS:
        raise PlannerError(f"There is no export to {to!r}; choose from {', '.join(FORMATS)}.")
    form = FORMATS[to]
    content = form.write(run, options, now)
    what = f"-{options.table or main_table(run)}" if to == "csv" else ""
    what = f"-{to}" if form.group == TAKES_EFFECT else what
    return File(f"run-{run.pk}{what}.{form.ending}", form.media, content)
