"""Start sweeps, show them as heat maps, cancel and remove them."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from planner.errors import PlannerError
from planner.inputs.scenario.address import flat
from planner.inputs.scenario.document import (
    parse,
    values_of,
)
from planner.models import Run, Scenario
from planner.selectors.scenarios import scenario_get
from planner.selectors.sweeps import DEFAULT, sweep_get, sweeps_list
from planner.services import sweeps
from planner.services.sweeps import MOST_CELLS, Axis
from planner.web.errors import planners_only
from planner.web.pages.sweep import page_context
from planner.web.paging import paged
from planner.web.request import Request

KINDS = (Run.Kind.PLAN, Run.Kind.COMPARE)  # offered on the page; the API accepts any


@require_safe
def listing(request: Request) -> HttpResponse:
    return render(request, "web/sweeps.html", {"page": paged(request, sweeps_list())})


@require_http_methods(["GET", "POST"])
@planners_only
def new(request: Request) -> HttpResponse:
    """Choose which settings of a scenario take which values."""
    scenario = scenario_get(request.GET.get("scenario", ""))
    if request.method == "POST":
        try:
            sweep = sweeps.sweep_create(
                owner=request.user,
                scenario=scenario,
                document=scenario.document,
                axes=_axes(request),
                kind=request.POST.get("kind", Run.Kind.PLAN),
            )
        except PlannerError as problem:
            return render(
                request, "web/sweep_new.html", _form(request, scenario, problem), status=400
            )
        return redirect("web:sweep", sweep.pk)
    return render(request, "web/sweep_new.html", _form(request, scenario, None))


def _axes(request: Request) -> list[Axis]:
    pairs = zip(request.POST.getlist("key"), request.POST.getlist("values"), strict=False)
    return [
        Axis(key.strip(), tuple(values_of(values, key.strip())))
        for key, values in pairs
        if key.strip()
    ]


def _form(request: Request, scenario: Scenario, problem: PlannerError | None) -> dict[str, Any]:
    keys, values = request.POST.getlist("key"), request.POST.getlist("values")
    took = {kind: _took(scenario, kind) for kind in KINDS}
    return {
        "scenario": scenario,
        "axes": [
            (keys[i] if i < len(keys) else "", values[i] if i < len(values) else "")
            for i in range(sweeps.MOST_AXES)
        ],
        "addresses": flat(parse(scenario.document, scenario.name)).items(),
        "kinds": [(kind.value, kind.label, took[kind]) for kind in KINDS],
        "kind": request.POST.get("kind", Run.Kind.PLAN),
        "most": MOST_CELLS,
        "problems": str(problem).splitlines() if problem else [],
    }


def _took(scenario: Scenario, kind: Run.Kind) -> float | None:
    """Return how many seconds the last run of this kind took."""
    last = scenario.runs.filter(kind=kind, state=Run.State.COMPLETED).first()
    if last is None or last.started_at is None or last.finished_at is None:
        return None
    return float((last.finished_at - last.started_at).total_seconds())


@require_safe
def detail(request: Request, pk: int) -> HttpResponse:
    """Show the heat map of one figure; htmx requests it again while runs are active."""
    context = page_context(sweep_get(pk), request.GET.get("figure", DEFAULT.name))
    part = request.htmx and request.htmx.target == "grid"
    return render(request, "web/_sweep_grid.html" if part else "web/sweep.html", context)


@require_POST
@planners_only
def cancel(request: Request, pk: int) -> HttpResponse:
    stopped = sweeps.sweep_cancel(sweep=sweep_get(pk), user=request.user)
    messages.info(request, f"{stopped} runs stop at their next step.")
    return redirect("web:sweep", pk)


@require_POST
def delete(request: Request, pk: int) -> HttpResponse:
    sweeps.sweep_delete(sweep=sweep_get(pk), user=request.user)
    messages.success(request, f"Sweep {pk} and its runs are removed.")
    return redirect("web:sweeps")
