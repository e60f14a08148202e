"""List every export format of a run, and write a run in one of them.

The command line, the API and the pages all use this list.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from planner.domain.report import Report
from planner.errors import PlannerError
from planner.models import Run
from planner.outputs import json_text, main_table, run_csv
from planner.outputs.cover import cover_of
from planner.outputs.manifests.kinds import MANIFESTS, manifest_yaml
from planner.outputs.manifests.modelclaims import model_claims
from planner.outputs.options import ExportOptions
from planner.outputs.plans import KINDS as PLANS
from planner.outputs.render.html import html_of
from planner.outputs.reports import REPORTED, compared_with_active, report_about

Write = Callable[[Run, ExportOptions, datetime], bytes]


@dataclass(frozen=True, slots=True)
class Format:
    """An export format of a run."""

    label: str  # entry of the menu
    group: str  # heading above the entry
    ending: str  # of the file's name
    media: str  # media type
    write: Write  # function that returns the content


@dataclass(frozen=True, slots=True)
class File:
    """A file to download."""

    name: str
    media: str
    content: bytes


def _report(run: Run, options: ExportOptions) -> Report:
    """Return the report of the policy to export, compared with the active plan."""
    return compared_with_active(report_about(run, options.policy), run, options.policy or "")


def _html(run: Run, options: ExportOptions, now: datetime) -> bytes:
    """Return the report of a run as HTML."""
    return html_of(_report(run, options), cover_of(run, now)).encode()


def _pdf(run: Run, options: ExportOptions, now: datetime) -> bytes:
    """Return the report of a run as PDF."""
    from planner.outputs.render.pdf import pdf_of  # slow to import and rarely used

    return pdf_of(_report(run, options), cover_of(run, now))


def _xlsx(run: Run, options: ExportOptions, now: datetime) -> bytes:
    """Return the report of a run as an Excel workbook."""
    from planner.outputs.render.xlsx import xlsx_of  # slow to import and rarely used

    return xlsx_of(_report(run, options), cover_of(run, now), now)


FIGURES, REPORT, TAKES_EFFECT = "Figures", "Report", "Where it takes effect"
SHARED_GPUS = "Shared GPUs"
SHEETS = "application/vnd.openxmlformats-officedocument.spreadsheetml.sheet"
FORMATS: dict[str, Format] = {
    "pdf": Format("PDF", REPORT, "pdf", "application/pdf", _pdf),
    "html": Format("HTML, one file", REPORT, "html", "text/html; charset=utf-8", _html),
    "xlsx": Format("Excel (XLSX)", REPORT, "xlsx", SHEETS, _xlsx),
    "csv": Format(
        "CSV", FIGURES, "csv", "text/csv; charset=utf-8",
        lambda run, options, _: run_csv(run, options.table or main_table(run)).encode(),
    ),
    "json": Format(
        "All figures (JSON)", FIGURES, "json", "application/json",
        lambda run, *_: json_text(run).encode(),
    ),
    **{
        kind: Format(
            manifest.label, TAKES_EFFECT, "yaml", "application/yaml", partial(manifest_yaml, kind)
        )
        for kind, manifest in MANIFESTS.items()
    },
    "modelclaim": Format(
        "AIBrix ModelClaim", SHARED_GPUS, "yaml", "application/yaml", model_claims
    ),
}  # fmt: skip


def formats_of(run: Run) -> dict[str, list[tuple[str, str]]]:
    """Return (name, label) of a run's formats, besides CSV and JSON, by group of the menu."""
    kinds_by_group = {REPORT: REPORTED, TAKES_EFFECT: PLANS, SHARED_GPUS: (Run.Kind.SHARE,)}
    names_by_group: dict[str, list[tuple[str, str]]] = {}
    for name, export_format in FORMATS.items():
        group = export_format.group
        if run.kind in kinds_by_group.get(group, ()):
            names_by_group.setdefault(group, []).append((name, export_format.label))
    return names_by_group


def export_file(*, run: Run, to: str, options: ExportOptions, now: datetime) -> File:
    """Return a run as a file in the format ``to``; raise PlannerError if there is none."""
    if to not in FORMATS:
        raise PlannerError(f"There is no export to {to!r}. Choose from {', '.join(FORMATS)}.")
    export_format = FORMATS[to]
    content = export_format.write(run, options, now)
    name = f"run-{run.pk}"
    if to == "csv":
        name += f"-{options.table or main_table(run)}"
    elif export_format.ending == "yaml":
        name += f"-{to}"
    return File(f"{name}.{export_format.ending}", export_format.media, content)
