"""Estimates: one deployment from a form with a sweep over its load, or many from a file."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from django.http import HttpResponse
from django.shortcuts import render
from django.utils.text import slugify
from django.views.decorators.http import require_POST, require_safe

from planner.errors import EXPECTED, IngestError
from planner.exports import csv_text
from planner.exports.estimates import answer_table
from planner.selectors.hardware import gpus_list, models_list
from planner.services import estimates
from planner.web.forms.estimate import EstimateForm, RowsForm
from planner.web.pages.profile_figures import sweep_figure
from planner.web.request import Request

SWEEP = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
MAX_BYTES = 20_000_000


@require_safe
def page(request: Request) -> HttpResponse:
    """The form; with values in the address also the answer, which htmx swaps alone."""
    asked = "model" in request.GET
    form = EstimateForm(request.GET) if asked else EstimateForm()
    context: dict[str, Any] = {"form": form, "tab": "estimate", "asked": asked}
    if asked and form.is_valid():
        try:
            context |= answer(form.row())
        except EXPECTED as problem:
            context["problem"] = str(problem)
    if request.htmx and request.htmx.target == "answer":
        return render(request, "web/_estimate.html", context)
    context["rows_form"] = RowsForm()
    context["model_names"] = [one.name for one in models_list()]
    context["gpu_names"] = [one.name for one in gpus_list()]
    return render(request, "web/estimate.html", context)


@require_POST
def rows(request: Request) -> HttpResponse:
    """A file of deployments in, a CSV of answers out, in its order."""
    form = RowsForm(request.POST, request.FILES)
    if not form.is_valid():
        raise IngestError("; ".join(str(said[0]) for said in form.errors.values()))
    file = form.cleaned_data["file"]
    if file.size > MAX_BYTES:
        raise IngestError(f"{file.name} is larger than {MAX_BYTES / 1e6:g} MB; split it.")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / Path(file.name).name
        path.write_bytes(file.read())
        answers = estimates.estimate_file(path)
    stem = slugify(Path(file.name).stem) or "rows"
    disposition = {"Content-Disposition": f'attachment; filename="{stem}-estimates.csv"'}
    text = csv_text(answer_table(answers))
    return HttpResponse(text, content_type="text/csv; charset=utf-8", headers=disposition)


def answer(row: dict[str, Any]) -> dict[str, Any]:
    """The estimate and a sweep of its load; raises what the estimate refuses."""
    found = estimates.estimate_one(row)
    loads = sorted({*SWEEP, row["concurrency"]})
    given = estimates.estimate_sweep(row, loads)
    figure = sweep_figure(
        [float(x) for x, _ in given],
        [
            ("TTFT", "ms", [one["ttft_ms"] for _, one in given], "y"),
            ("Output", "tokens/s", [one["tokens_per_s"] for _, one in given], "y2"),
        ],
    )
    tbt = sweep_figure(
        [float(x) for x, _ in given],
        [
            ("TBT", "ms", [one["tbt_ms"] for _, one in given], "y"),
            ("Power", "W", [one["power_w"] for _, one in given], "y2"),
        ],
    )
    return {"found": found, "sweep": figure, "sweep_tbt": tbt}
