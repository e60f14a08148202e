"""Calibrate: upload measurements, inspect them, fit a profile or compare with one."""

import json
from typing import Any

import polars as pl
from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from planner.inputs.catalogue.hardware import gpu_known_as, model_known_as
from planner.models import Calibration
from planner.selectors.evidence import evidence_of
from planner.selectors.lookup import version_of
from planner.selectors.measured_corrections import (
    calibration_get,
    calibration_table,
    calibrations_list,
)
from planner.services import calibrations
from planner.services.profile_fits import profile_compare, profile_fit
from planner.web.errors import planners_only, require_planner
from planner.web.form_responses import attempt, form_with_errors, go, render_form
from planner.web.forms.calibration import (
    CompareForm,
    FitForm,
    MeasurementsForm,
    RowGroup,
    row_groups,
)
from planner.web.hardware_names import choice_names, kernel_choices, profile_choices
from planner.web.pages.profile import outliers
from planner.web.pages.profile_figures import residual_figures
from planner.web.paging import page_of
from planner.web.request import Request, TemplateContext

PREVIEW_ROWS = 12
COLUMNS = {"gpu": "GPU", "tp": "GPUs", "isl": "Input", "osl": "Output", "ttft": "TTFT",
           "tbt": "TPOT", "concurrency": "In flight"}  # fmt: skip
UNITS = {"isl": "tokens", "osl": "tokens", "throughput": "tokens/s", "power_share": "of TDP"}
SECONDS = "_s"  # ending of the names of times, which the page shows in ms
NEW = "web/calibration_new.html"
STEPS = (  # shown while the list is empty
    ("1. File", "A result of vLLM, SGLang, GuideLLM, AIPerf or llm-d, or a CSV of your own.", ""),
    ("2. Profile", "A profile of your GPUs is fitted to the file. Scenarios can use it.", ""),
    ("3. Gain", "Plans then use measured speed and error instead of modelled ones.", ""),
)


@require_safe
def listing(request: Request) -> HttpResponse:
    context = {"page": page_of(request, calibrations_list()), "choices": STEPS}
    return render(request, "web/calibrations.html", context)


@require_http_methods(["GET", "POST"])
@planners_only
def new(request: Request) -> HttpResponse:
    """Show and process the upload form.

    Scripts that ask for JSON get the next URL or the error.
    """
    if request.method != "POST":
        return render(request, NEW, {"form": MeasurementsForm(), **choice_names()})
    form = MeasurementsForm(request.POST, request.FILES)
    calibration, problem = attempt(form, lambda: _store_upload(request, form))
    if calibration is None:
        return form_with_errors(request, NEW, form, problem, **choice_names())
    return go(request, reverse("web:calibration", args=[calibration.pk]))


@require_http_methods(["GET", "POST"])
def detail(request: Request, pk: int) -> HttpResponse:
    """Show the measurements in a file, with forms to fit a profile or to compare with one."""
    calibration = calibration_get(pk)
    if request.method == "POST":
        require_planner(request)
        form = fit_form(calibration, request.POST)
        version, problem = attempt(
            form, lambda: profile_fit(user=request.user, calibration=calibration, spec=form.spec())
        )
        if version is None:
            return _show(request, calibration, fit=form, problem=problem)
        messages.success(request, f"{version.profile.name}, version {version.version}, is created.")
        return redirect("web:profile", version.profile.name)
    if "profile" in request.GET:
        return _compare(request, calibration)
    return _show(request, calibration)


@require_POST
def delete(request: Request, pk: int) -> HttpResponse:
    calibration = calibration_get(pk)
    calibrations.calibration_delete(calibration=calibration, user=request.user)
    messages.success(request, f"{calibration.name} is removed; the profiles fitted to it stay.")
    return redirect("web:calibrations")


def _store_upload(request: Request, form: MeasurementsForm) -> Calibration:
    """Store the uploaded file of a valid form, and return it."""
    file = form.cleaned_data["file"]
    return calibrations.calibration_upload(
        user=request.user,
        chunks=file.chunks(),
        file_name=file.name,
        options=form.reading_options(),
        source=form.cleaned_data["source"],
    )


def _compare(request: Request, calibration: Calibration) -> HttpResponse:
    """Show how well the profile in the query fits the chosen rows of a file."""
    form = compare_form(calibration, request.GET)
    compared, problem = attempt(form, lambda: _comparison_context(form, calibration))
    if compared is None:
        return _show(request, calibration, compare=form, problem=problem)
    return _show(request, calibration, compare=form, **compared)


def _comparison_context(form: CompareForm, calibration: Calibration) -> TemplateContext:
    """Return the comparison of the chosen profile with the chosen rows, for the page."""
    name, _, version = form.cleaned_data["profile"].partition("|")
    model, gpu, _ = json.loads(form.cleaned_data["rows"])
    checks, table = profile_compare(
        profile_name=name,
        version=version_of(version),
        calibration=calibration,
        rows_model=model,
        rows_gpu=gpu,
    )
    return {
        "compared": f"{name}, version {version}" if version else name,
        "checks": checks,
        "residual_figures": residual_figures(table),
        "outliers": outliers(table),
    }


def _show(
    request: Request, calibration: Calibration, problem: Exception | None = None, **more: Any
) -> HttpResponse:
    """Show the page of a measurement file; ``more`` replaces values of its context."""
    return render_form(request, "web/calibration.html", page_context(calibration) | more, problem)


def page_context(calibration: Calibration) -> TemplateContext:
    """Return the context of a measurement file's page."""
    is_benchmark = calibration.kind == Calibration.Kind.BENCHMARK
    return {
        "calibration": calibration,
        "report": calibration.report,
        **preview(calibration_table(calibration)),
        "fit": fit_form(calibration),
        "compare": compare_form(calibration),
        "benchmark": is_benchmark,
        "evidence": evidence_of(calibration) if is_benchmark else None,
        **choice_names(),
    }


def preview(table: pl.DataFrame) -> TemplateContext:
    """Return the heads of the filled columns, and their first rows with a class; times in ms."""
    filled = [name for name in table.columns if any(table[name].drop_nulls().to_list())]
    times = [name for name in filled if name.endswith(SECONDS) and table[name].dtype.is_numeric()]
    first_rows = table.head(PREVIEW_ROWS).select(filled).with_columns(pl.col(times) * 1000)
    rows = []
    for row in first_rows.rows():
        rows.append([(value, "num" if isinstance(value, int | float) else "") for value in row])
    return {"columns": [_head(table, name) for name in filled], "rows": rows}


def _head(table: pl.DataFrame, name: str) -> str:
    """Return the head of a column, such as "num:TTFT, ms"."""
    quantity = name.removesuffix(SECONDS)
    unit = "ms" if name.endswith(SECONDS) else UNITS.get(name, "")
    head = COLUMNS.get(quantity) or quantity.replace("_", " ").capitalize()
    if unit:
        head += f", {unit}"
    return f"num:{head}" if table[name].dtype.is_numeric() else head


def fit_form(calibration: Calibration, posted: Any = None) -> FitForm:
    """Return the form to fit a profile: as ``posted``, else filled in for the first row group."""
    groups = row_groups(calibration)
    initial = suggested_profile(groups[0]) if groups else {}
    return FitForm(posted, initial=initial, groups=groups, kernels=kernel_choices())


def compare_form(calibration: Calibration, data: Any = None) -> CompareForm:
    """Return the form to compare a profile with rows of a file, with the values ``data``."""
    return CompareForm(data, groups=row_groups(calibration), profiles=profile_choices())


def suggested_profile(group: RowGroup) -> dict[str, Any]:
    """Return initial values of a FitForm for a group of rows, with the catalogue's names."""
    model = model_known_as(group.model)
    gpu = gpu_known_as(group.gpu)
    tp = group.tp or 1
    name = " ".join(part for part in (model, gpu, f"tp{tp}") if part)
    return {
        "rows": group.key,
        "model": model,
        "gpu": gpu,
        "tp": tp,
        "precision": group.precision or "bf16",
        "name": name.replace("/", "-").replace(":", "-")[:80],
    }
