"""Build the page of uploaded measurements: its first rows, and the initial values of its forms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import polars as pl

from planner.errors import CatalogueError, PlannerError
from planner.inputs import catalogue
from planner.models import Calibration
from planner.selectors.calibrations import calibration_table
from planner.selectors.evidence import evidence_of
from planner.web.forms.calibration import CompareForm, FitForm, arrangement_key
from planner.web.hardware_names import choice_names, kernel_choices, profile_choices

PREVIEW_ROWS = 12
UNITS = {"isl": "tokens", "osl": "tokens", "throughput": "tokens/s", "power_share": "of TDP"}
SECONDS = "_s"  # ending of the names of times, which the page shows in ms


def page_context(calibration: Calibration) -> dict[str, Any]:
    return {
        "calibration": calibration,
        "report": calibration.report,
        **preview(calibration_table(calibration)),
        "fit": fit_form(calibration),
        "compare": compare_form(calibration),
        "benchmark": calibration.kind == Calibration.Kind.BENCHMARK,
        "evidence": evidence_of(calibration)
        if calibration.kind == Calibration.Kind.BENCHMARK
        else None,
        **choice_names(),
    }


def preview(table: pl.DataFrame) -> dict[str, Any]:
    """Return the columns that have values, each with its unit, and their first rows."""
    filled = [name for name in table.columns if any(table[name].drop_nulls().to_list())]
    rows = table.head(PREVIEW_ROWS).select(
        pl.col(name) * (1000 if name.endswith(SECONDS) else 1)
        if table[name].dtype.is_numeric()
        else pl.col(name)
        for name in filled
    )
    columns = [
        (name.removesuffix(SECONDS), "ms" if name.endswith(SECONDS) else UNITS.get(name, ""))
        for name in filled
    ]
    return {"columns": columns, "rows": rows.rows()}


def fit_form(calibration: Calibration, posted: Any = None) -> FitForm:
    """Return the form as posted, or filled in for the first arrangement of the rows."""
    arrangements = calibration.report.get("arrangements", [])
    first = suggested(arrangements[0]) if arrangements else {}
    return FitForm(posted, initial=first, arrangements=arrangements, kernels=kernel_choices())


def compare_form(calibration: Calibration, data: Any = None) -> CompareForm:
    arrangements = calibration.report.get("arrangements", [])
    return CompareForm(data, arrangements=arrangements, profiles=profile_choices())


def suggested(arrangement: dict[str, Any]) -> dict[str, Any]:
    """Suggest a profile for an arrangement, with the catalogue's names where it has them."""
    model = _catalogued(catalogue.model_name, arrangement["model"])
    gpu = _catalogued(catalogue.gpu_name, arrangement["gpu"])
    tp = arrangement["tp"] or 1
    name = " ".join(part for part in (model, gpu, f"tp{tp}") if part)
    return {
        "rows": arrangement_key(arrangement),
        "model": model,
        "gpu": gpu,
        "tp": tp,
        "precision": arrangement["precision"] or "bf16",
        "name": name.replace("/", "-").replace(":", "-")[:80],
    }


def _catalogued(find: Callable[[str], str], name: str) -> str:
    try:
        return str(find(name)) if name else ""
    except (CatalogueError, PlannerError):
        return name
