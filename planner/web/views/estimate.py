"""Estimate one deployment from a form, with a sweep over its load, or many from a file."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import polars as pl
from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.utils.text import slugify
from django.views.decorators.http import require_POST, require_safe

from planner.errors import EXPECTED, IngestError
from planner.inputs.ingest.source import short_name
from planner.outputs import csv_text
from planner.outputs.estimates import answer_table
from planner.selectors.hardware import gpus_list, models_list
from planner.services import calibrations, estimates
from planner.web.errors import planners_only
from planner.web.forms.estimate import EstimateForm, RowsForm
from planner.web.pages.profile_figures import sweep_figure
from planner.web.request import Request

SWEEP = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
MAX_BYTES = 20_000_000


@require_safe
def page(request: Request) -> HttpResponse:
    """Show the form and, if the address has values, the answer; htmx swaps the answer alone."""
    asked = "model" in request.GET
    form = EstimateForm(request.GET) if asked else EstimateForm()
    context: dict[str, Any] = {"form": form, "tab": "estimate", "asked": asked}
    if asked and form.is_valid():
        try:
            context |= answer(form.row(), form.measurements())
            context["typed"] = form.cleaned_data["measured"]
        except EXPECTED as problem:
            context["problem"] = str(problem)
    if request.htmx and request.htmx.target == "answer":
        return render(request, "web/_estimate.html", context)
    context["rows_form"] = RowsForm()
    context["model_names"] = [entry.name for entry in models_list()]
    context["gpu_names"] = [entry.name for entry in gpus_list()]
    return render(request, "web/estimate.html", context)


@require_POST
def rows(request: Request) -> HttpResponse:
    """Return a CSV file of answers to a file of deployments, in the order of the file."""
    form = RowsForm(request.POST, request.FILES)
    if not form.is_valid():
        raise IngestError("; ".join(str(errors[0]) for errors in form.errors.values()))
    file = form.cleaned_data["file"]
    if file.size > MAX_BYTES:
        raise IngestError(f"{file.name} is larger than {MAX_BYTES / 1e6:g} MB. Split it.")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / short_name(file.name)
        path.write_bytes(file.read())
        answers = estimates.estimate_file(path)
    stem = slugify(Path(file.name).stem) or "rows"
    disposition = {"Content-Disposition": f'attachment; filename="{stem}-estimates.csv"'}
    text = csv_text(answer_table(answers))
    return HttpResponse(text, content_type="text/csv; charset=utf-8", headers=disposition)


@require_POST
@planners_only
def keep(request: Request) -> HttpResponse:
    """Save typed rows as a file of measurements, which then corrects similar estimates."""
    form = EstimateForm(request.POST)
    if not form.is_valid() or not form.cleaned_data["measured"]:
        faults = [str(errors[0]) for errors in form.errors.values()]
        raise IngestError("; ".join(faults) or "There are no rows. Type at least one.")
    rows = form.measurements()
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = csv_text(pl.DataFrame([{n: row.get(n) for n in names} for row in rows]))
    row = form.row()
    calibration = calibrations.calibration_upload(
        user=request.user,
        chunks=[text.encode()],
        file_name=f"{slugify(row['model'])}-{slugify(row['gpu'])}-typed.csv",
        options=calibrations.CalibrationOptions(format="csv", precision=row.get("precision")),
        source="typed in on the page of estimates",
    )
    messages.success(request, f"{len(rows)} rows are saved. Similar estimates use them.")
    return redirect("web:calibration", calibration.pk)


def answer(row: dict[str, Any], typed: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the estimate and a sweep of its load; raise the errors of the estimate."""
    measured = estimates.MeasurementSource(typed, "your measured rows")
    estimate = estimates.estimate_one(row, measured)
    loaded = {name: value for name, value in row.items() if name != "rate"}
    after = {name: estimate[name] for name in ("ttft_ms", "tbt_ms")}
    if (at_rate := estimate.get("at_rate")) is not None:
        loaded["concurrency"] = max(at_rate["in_flight"], 1.0)
        # Measured rows correct the closed loop, so the page shows that for comparison.
        after = {name: at_rate[f"closed_loop_{name}"] for name in after}
    sweep = estimates.estimate_sweep(loaded, sorted({*SWEEP, loaded["concurrency"]}), measured)
    loads = [float(load) for load, _ in sweep]

    def line(name: str, unit: str, key: str, axis: str) -> Any:
        return name, unit, [at_load[key] for _, at_load in sweep], axis

    output = line("Output", "tokens/s", "tokens_per_s", "y2")
    return {
        "found": estimate,
        "after": after,
        "sweep": sweep_figure(loads, [line("TTFT", "ms", "ttft_ms", "y"), output]),
        "sweep_tbt": sweep_figure(
            loads, [line("TBT", "ms", "tbt_ms", "y"), line("Power", "W", "power_w", "y2")]
        ),
    }
