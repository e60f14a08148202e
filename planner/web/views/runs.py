"""Runs: the list, one run from waiting to results, its cancel, its downloads."""

from __future__ import annotations

from django.contrib import messages
from django.http import FileResponse, HttpResponse
from django.shortcuts import redirect, render
from django.utils.text import slugify
from django.views.decorators.http import require_POST, require_safe

from planner.exports import PARQUET, json_text, run_csv
from planner.models import Run
from planner.selectors.runs import run_get, run_table_path, runs_list
from planner.services import runs
from planner.services.provisioning import results_pool
from planner.web.errors import planners_only
from planner.web.pages import pareto
from planner.web.pages import place as placement
from planner.web.pages.groups import groups_context
from planner.web.pages.minutes import minutes_context
from planner.web.pages.pd_ratio import ratio_context
from planner.web.pages.provision import page_context, sensitivity_context, sweep_context
from planner.web.pages.size import size_context
from planner.web.paging import paged
from planner.web.request import Request
from planner.web.results import results_context

# What htmx asks for by name: a template and what it shows, by the user's choices.
PARTS = {
    "minutes": ("web/_minutes.html", minutes_context),
    "groups": ("web/_groups.html", groups_context),
}


@require_safe
def listing(request: Request) -> HttpResponse:
    rows = runs_list()
    if (kind := request.GET.get("kind", "")) in Run.Kind.values:
        rows = rows.filter(kind=kind)
    context = {"page": paged(request, rows), "kinds": Run.Kind.choices, "kind": kind}
    return render(request, "web/runs.html", context)


@require_safe
def detail(request: Request, pk: int) -> HttpResponse:
    """One run under one address: progress while it goes, results once they are there.

    htmx asks each second for the part that changes, and for the whole page at the end.
    """
    run = run_get(pk)
    if request.htmx and request.htmx.target == "progress":
        if run.finished:
            return HttpResponse(headers={"HX-Refresh": "true"})
        return render(request, "web/_run_progress.html", {"run": run})
    if run.state != Run.State.COMPLETED or run.kind == Run.Kind.INGEST:
        return render(request, "web/run.html", {"run": run})
    if run.kind == Run.Kind.PROVISION:
        return _provision(request, run)
    if run.kind == Run.Kind.PLACE:
        return _place(request, run)
    if run.kind == Run.Kind.SIZE:
        return render(request, "web/runs/size.html", size_context(run))
    if run.kind == Run.Kind.PD_RATIO:
        return render(request, "web/runs/pd_ratio.html", ratio_context(run))
    if run.kind == Run.Kind.PARETO:
        return render(request, "web/runs/pareto.html", pareto.page_context(run))
    if request.htmx and (found := PARTS.get(request.GET.get("part", ""))):
        template, part_context = found
        return render(request, template, part_context(run, request.GET))
    context = results_context(run, request.GET) | groups_context(run, {})
    if request.htmx and request.htmx.target == "savings":
        return render(request, "web/_savings.html", context)
    if request.htmx and request.htmx.target == "charts":
        return render(request, "web/_charts.html", context)
    return render(request, "web/runs/results.html", context)


def _provision(request: Request, run: Run) -> HttpResponse:
    """The page of a provisioning run, or the part that htmx asks for; what takes seconds comes by
    itself (``part``)."""
    part = request.GET.get("part", "")
    if part:
        pool = results_pool(run, request.GET.get("pool", ""), request.GET.get("phase", ""))
        if part == "sensitivity":
            return render(request, "web/_sensitivity.html", sensitivity_context(run, pool))
        return render(request, "web/_sweep.html", sweep_context(run, pool, part))
    context = page_context(run, request.GET)
    if request.htmx and request.htmx.target == "pool":
        return render(request, "web/_provision_pool.html", context)
    return render(request, "web/runs/provision.html", context)


def _place(request: Request, run: Run) -> HttpResponse:
    """The page of a placement, or its tree by another method or at another moment."""
    context = placement.page_context(run, request.GET)
    if request.htmx and request.htmx.target == "tree":
        return render(request, "web/_place_tree.html", context)
    return render(request, "web/runs/place.html", context)


@require_POST
@planners_only
def cancel(request: Request, pk: int) -> HttpResponse:
    run = runs.run_cancel(run=run_get(pk), user=request.user)
    if not run.finished:
        messages.info(request, "The run stops at its next step.")
    return redirect("web:run", pk)


@require_POST
def delete(request: Request, pk: int) -> HttpResponse:
    run = run_get(pk)
    runs.run_delete(run=run, user=request.user)
    messages.success(request, f"Run {pk} is removed.")
    return redirect("web:runs")


@require_safe
def table(request: Request, pk: int, name: str) -> HttpResponse:
    """One table of a run as a CSV file."""
    run = run_get(pk)
    return _attachment(run_csv(run, name), "text/csv; charset=utf-8", f"{_stem(run)}-{name}.csv")


@require_safe
def parquet(request: Request, pk: int, name: str) -> FileResponse:
    """One table of a run as the Parquet file it is kept in."""
    run = run_get(pk)
    return FileResponse(
        run_table_path(run, name).open("rb"),
        as_attachment=True,
        filename=f"{_stem(run)}-{name}.parquet",
        content_type=PARQUET,
    )


@require_safe
def result(request: Request, pk: int) -> HttpResponse:
    """The result document of a run, as on the command line."""
    run = run_get(pk)
    return _attachment(json_text(run), "application/json", f"{_stem(run)}.json")


def _stem(run: Run) -> str:
    return f"run-{run.pk}-{slugify(run.name) or run.kind}"


def _attachment(text: str, kind: str, name: str) -> HttpResponse:
    disposition = {"Content-Disposition": f'attachment; filename="{name}"'}
    return HttpResponse(text, content_type=kind, headers=disposition)
