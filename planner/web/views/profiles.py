"""Profiles: the list, one of them with its errors, its removal."""

from __future__ import annotations

from typing import Any

import polars as pl
from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from planner.errors import EXPECTED, IngestError
from planner.exports import csv_text
from planner.models import ProfileVersion
from planner.profiles.tuning import MAX_FILE_BYTES, observations_of_file
from planner.selectors import profiles as known
from planner.services import profiles
from planner.services.fits import profile_compute
from planner.services.tuning import profile_tune
from planner.web.errors import planners_only
from planner.web.forms.calibration import ComputedForm
from planner.web.listings import choice_names, kernel_choices
from planner.web.pages.profile_figures import decode_figure, prefill_figure, residual_figures
from planner.web.request import Request
from simulation.performance.fitting.compare import stated_check
from simulation.performance.fitting.fit_linear import UNITS
from simulation.performance.profile import Check, Profile

SHOWN_OUTLIERS = 20


@require_safe
def listing(request: Request) -> HttpResponse:
    search = request.GET.get("search", "")
    context = {"profiles": known.profiles_list(search), "search": search, "tab": "profiles"}
    part = request.htmx and request.htmx.target == "rows"
    template = "web/_profiles_rows.html" if part else "web/profiles.html"
    return render(request, template, context)


@require_safe
def detail(request: Request, name: str) -> HttpResponse:
    """One profile in the version asked for, with what it was checked against."""
    one = known.profile_get(name, _number(request.GET.get("version", "")))
    residuals = known.profile_residuals(one)
    context = {
        "one": one,
        "versions": versions(name),
        "parameters": parameters(one),
        "limits": limits(one.profile),
        "decode_figure": decode_figure(one.profile),
        "prefill_figure": prefill_figure(one.profile),
        "residual_figures": residual_figures(residuals),
        "outliers": outliers(residuals),
        "residual_rows": residuals.height,
    }
    return render(request, "web/profile.html", context)


@require_http_methods(["GET", "POST"])
@planners_only
def new(request: Request) -> HttpResponse:
    """An operator or roofline profile, which no benchmark row is needed for."""
    choices = kernel_choices()
    problem = ""
    if request.method == "POST":
        form = ComputedForm(request.POST, kernels=choices)
        if form.is_valid():
            try:
                version = profile_compute(user=request.user, spec=form.spec())
            except EXPECTED as error:
                problem = str(error)
            else:
                name, number = version.profile.name, version.version
                messages.success(request, f"{name}, version {number}, is made.")
                return redirect("web:profile", name)
    else:
        chosen = request.GET.getlist("kernels")
        kind = "operator" if chosen else "roofline"
        form = ComputedForm(initial={"kind": kind, "kernels": chosen}, kernels=choices)
    context = {"form": form, "problem": problem, **choice_names()}
    status = 400 if request.method == "POST" else 200
    return render(request, "web/profile_new.html", context, status=status)


@require_safe
def residuals(request: Request, name: str) -> HttpResponse:
    one = known.profile_get(name, _number(request.GET.get("version", "")))
    disposition = {"Content-Disposition": f'attachment; filename="{one.name}-v{one.version}.csv"'}
    text = csv_text(known.profile_residuals(one))
    return HttpResponse(text, content_type="text/csv; charset=utf-8", headers=disposition)


@require_POST
@planners_only
def tune(request: Request, name: str) -> HttpResponse:
    """A file of observations in, the next version out; a built-in one under ``keep_as``."""
    file = request.FILES.get("file")
    if file is None:
        raise IngestError("Choose a file of observations first.")
    version = profile_tune(
        user=request.user,
        name=name,
        observations=observations_of_file(file.read(MAX_FILE_BYTES + 1), file.name or "the file"),
        keep_as=request.POST.get("keep_as", ""),
        source=file.name or "",
    )
    messages.success(request, f"{version.profile.name}, version {version.version}, is made.")
    return redirect("web:profile", version.profile.name)


@require_POST
def delete(request: Request, name: str) -> HttpResponse:
    one = known.profile_get(name)
    if one.row is None:
        messages.error(request, f"{name} is built in and stays.")
        return redirect("web:profile", name)
    profiles.profile_delete(profile=one.row.profile, user=request.user)
    messages.success(request, f"Profile {name} is removed.")
    return redirect("web:profiles")


def versions(name: str) -> list[ProfileVersion]:
    """Every version with the check that it is judged by as ``telling``."""
    rows = known.profile_versions(name)
    for row in rows:
        row.telling = stated_check(  # type: ignore[attr-defined]
            [Check(**check) for check in row.checks],
            float(row.report.get("spread") or 0.0),
            row.provenance == "modelled",
        )
    return rows


def parameters(one: known.KnownProfile) -> list[tuple[str, Any]]:
    """In the order of the formula: PostgreSQL keeps no order of keys."""
    order = {name: i for i, name in enumerate(UNITS)}
    return sorted(one.parameters.items(), key=lambda pair: (order.get(pair[0], 9), pair[0]))


def limits(profile: Profile) -> list[tuple[str, float, str]]:
    return [
        ("Sequences in a batch", profile.max_batch, ""),
        ("Tokens of an iteration", profile.max_batch_tokens, "tokens"),
        ("KV cache", profile.kv_capacity_tokens, "tokens"),
    ]


def outliers(residuals: pl.DataFrame) -> list[dict[str, Any]]:
    """The rows furthest off, worst first."""
    off = residuals.filter(pl.col("outlier")).sort(pl.col("error").abs(), descending=True)
    return off.head(SHOWN_OUTLIERS).to_dicts()


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() and len(text) < 10 and int(text) > 0 else None
