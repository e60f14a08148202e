"""Calibration: measurements uploaded, looked at, fitted, compared with a profile."""

from __future__ import annotations

import json
from typing import Any

import polars as pl
from django.contrib import messages
from django.http import HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from planner import catalogue
from planner.errors import EXPECTED, CatalogueError, PlannerError
from planner.models import Calibration
from planner.selectors.calibrations import calibration_get, calibration_table, calibrations_list
from planner.services import calibrations
from planner.services.fits import profile_compare, profile_fit
from planner.web.errors import planners_only, require_planner
from planner.web.forms.calibration import CompareForm, FitForm, MeasurementsForm, arrangement_key
from planner.web.listings import choice_names, kernel_choices, profile_choices
from planner.web.pages.profile_figures import residual_figures
from planner.web.paging import paged
from planner.web.request import Request
from planner.web.views.profiles import outliers

PREVIEW_ROWS = 12
UNITS = {"isl": "tokens", "osl": "tokens", "throughput": "tokens/s", "power_share": "of TDP"}
SECONDS = "_s"  # ends the names of times, which are shown in ms


@require_safe
def listing(request: Request) -> HttpResponse:
    context = {"page": paged(request, calibrations_list()), "tab": "calibrations"}
    return render(request, "web/calibrations.html", context)


@require_http_methods(["GET", "POST"])
@planners_only
def new(request: Request) -> HttpResponse:
    """The upload; scripts that ask for JSON get the next address or what is wrong."""
    scripted = request.headers.get("Accept") == "application/json"
    if request.method != "POST":
        return _upload(request, MeasurementsForm(), "")
    form = MeasurementsForm(request.POST, request.FILES)
    problem = ""
    if form.is_valid():
        file = form.cleaned_data["file"]
        try:
            kept = calibrations.calibration_upload(
                user=request.user,
                chunks=file.chunks(),
                file_name=file.name,
                reading=form.reading(),
                source=form.cleaned_data["source"],
            )
        except EXPECTED as error:
            problem = str(error)
        else:
            url = reverse("web:calibration", args=[kept.pk])
            return JsonResponse({"url": url}) if scripted else redirect(url)
    if scripted:
        faults = [
            f"{form[name].label}: {' '.join(map(str, said))}" for name, said in form.errors.items()
        ]
        return JsonResponse({"problem": "\n".join(faults) or problem}, status=400)
    return _upload(request, form, problem, status=400)


@require_http_methods(["GET", "POST"])
def detail(request: Request, pk: int) -> HttpResponse:
    """What was read, and what to do with it: fit a profile, or compare one with it."""
    calibration = calibration_get(pk)
    if request.method == "POST":
        require_planner(request)
        return _fit(request, calibration)
    if "profile" in request.GET:
        return _compare(request, calibration)
    return _show(request, calibration)


@require_POST
def delete(request: Request, pk: int) -> HttpResponse:
    calibration = calibration_get(pk)
    calibrations.calibration_delete(calibration=calibration, user=request.user)
    messages.success(request, f"{calibration.name} is removed; the profiles fitted to it stay.")
    return redirect("web:calibrations")


def _upload(
    request: Request, form: MeasurementsForm, problem: str, status: int = 200
) -> HttpResponse:
    context = {"form": form, "problem": problem, **choice_names()}
    return render(request, "web/calibration_new.html", context, status=status)


def _fit(request: Request, calibration: Calibration) -> HttpResponse:
    form = FitForm(request.POST, arrangements=_arrangements(calibration), kernels=kernel_choices())
    problem = ""
    if form.is_valid():
        try:
            version = profile_fit(user=request.user, calibration=calibration, spec=form.spec())
        except EXPECTED as error:
            problem = str(error)
        else:
            messages.success(
                request, f"{version.profile.name}, version {version.version}, is made."
            )
            return redirect("web:profile", version.profile.name)
    return _show(request, calibration, fit=form, problem=problem, status=400)


def _compare(request: Request, calibration: Calibration) -> HttpResponse:
    form = CompareForm(
        request.GET, arrangements=_arrangements(calibration), profiles=profile_choices()
    )
    if not form.is_valid():
        return _show(request, calibration, compare=form, status=400)
    name, _, version = form.cleaned_data["profile"].partition("|")
    model, gpu, _ = json.loads(form.cleaned_data["rows"])
    try:
        compared, table = profile_compare(
            profile_name=name,
            version=int(version) if version.isdecimal() else None,
            calibration=calibration,
            rows_model=model,
            rows_gpu=gpu,
        )
    except EXPECTED as error:
        return _show(request, calibration, compare=form, problem=str(error), status=400)
    return _show(
        request,
        calibration,
        compare=form,
        compared=f"{name}, version {version}" if version else name,
        checks=compared.checks,
        residual_figures=residual_figures(table),
        outliers=outliers(table),
    )


def _show(
    request: Request,
    calibration: Calibration,
    *,
    fit: FitForm | None = None,
    compare: CompareForm | None = None,
    problem: str = "",
    status: int = 200,
    **more: Any,
) -> HttpResponse:
    arrangements = _arrangements(calibration)
    table = calibration_table(calibration)
    filled = [name for name in table.columns if any(table[name].drop_nulls().to_list())]
    context = {
        "calibration": calibration,
        "report": calibration.report,
        "columns": [
            (name.removesuffix(SECONDS), "ms" if name.endswith(SECONDS) else UNITS.get(name, ""))
            for name in filled
        ],
        "rows": table.select(
            pl.col(name) * 1000 if name.endswith(SECONDS) else pl.col(name) for name in filled
        )
        .head(PREVIEW_ROWS)
        .rows(),
        "fit": fit
        or FitForm(
            initial=_first(arrangements), arrangements=arrangements, kernels=kernel_choices()
        ),
        "compare": compare or CompareForm(arrangements=arrangements, profiles=profile_choices()),
        "problem": problem,
        "benchmark": calibration.kind == Calibration.Kind.BENCHMARK,
        **choice_names(),
        **more,
    }
    return render(request, "web/calibration.html", context, status=status)


def _arrangements(calibration: Calibration) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = calibration.report.get("arrangements", [])
    return found


def _first(arrangements: list[dict[str, Any]]) -> dict[str, Any]:
    """The form filled in for the first arrangement, under the catalogue's names where it has it."""
    if not arrangements:
        return {}
    one = arrangements[0]
    model = _called(catalogue.model_name, one["model"])
    gpu = _called(catalogue.gpu_name, one["gpu"])
    tp = one["tp"] or 1
    name = " ".join(part for part in (model, gpu, f"tp{tp}") if part)
    return {
        "rows": arrangement_key(one),
        "model": model,
        "gpu": gpu,
        "tp": tp,
        "precision": one["precision"] or "bf16",
        "name": name.replace("/", "-").replace(":", "-")[:80],
    }


def _called(find: Any, name: str) -> str:
    try:
        return str(find(name)) if name else ""
    except (CatalogueError, PlannerError):
        return name
