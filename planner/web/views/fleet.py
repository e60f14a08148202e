"""Import the current deployment into a scenario from a file or pasted text."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from planner.models import Scenario
from planner.selectors.scenarios import scenario_get
from planner.services.fleet_imports import Given, Imported, fleet_import
from planner.web.errors import planners_only
from planner.web.form_responses import attempt, refused
from planner.web.forms.fleet import FleetForm
from planner.web.hardware_names import choice_names
from planner.web.request import Request

TEMPLATE = "web/fleet.html"


@require_http_methods(["GET", "POST"])
@planners_only
def of_scenario(request: Request, pk: int) -> HttpResponse:
    """Read a file or pasted text, and write it as the fleet of today of a scenario."""
    scenario = scenario_get(str(pk))
    context = {"scenario": scenario} | choice_names()
    if request.method != "POST":
        return render(request, TEMPLATE, context | {"form": FleetForm()})
    form = FleetForm(request.POST, request.FILES)
    imported, problem = attempt(form, lambda: _imported(request, scenario, form))
    if imported is None:
        return refused(request, TEMPLATE, form, problem, **context)
    replicas = sum(pool.replicas or 0 for pool in imported.pools)
    messages.success(
        request, f"Fleet of today: {len(imported.pools)} pools, {replicas:,} replicas stated."
    )
    for note in imported.notes:
        messages.info(request, note)
    return redirect("web:scenario", pk)


def _imported(request: Request, scenario: Scenario, form: FleetForm) -> Imported:
    values = form.cleaned_data
    given = Given(**{name: values[name] for name in Given.__slots__})
    text, name = form.described()
    return fleet_import(scenario=scenario, user=request.user, text=text, name=name, given=given)[1]
