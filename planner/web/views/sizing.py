"""Sizing and prefill to decode: a page each that starts them and lists what was found."""

from __future__ import annotations

from typing import Any

from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from planner.errors import NotAllowed, PlannerError, ScenarioError
from planner.models import Run
from planner.scenario.document import parse
from planner.selectors.runs import runs_list
from planner.selectors.scenarios import scenario_get, scenarios_list
from planner.services.scenarios import scenario_run
from planner.studies.commands.size import MOST_TOKENS
from planner.studies.pd.service import MOST_INSTANCES
from planner.web.errors import require_planner, status_of
from planner.web.request import Request

SHOWN = 20  # runs
SCENARIOS = 100
DIGITS = 12  # more than any number here has
NAME = 120  # characters


@require_http_methods(["GET", "POST"])
def size(request: Request) -> HttpResponse:
    """What one replica of a scenario's models carries."""
    if request.method == "GET":
        return _page(request, Run.Kind.SIZE, "web/runs/size_new.html")
    try:
        options: dict[str, Any] = {
            name: value
            for name, label in (("isl", "Input tokens"), ("osl", "Output tokens"))
            if (value := _whole(request, name, label, 1, MOST_TOKENS)) is not None
        }
        if given := request.POST.get("burstiness", "").strip():
            options["burstiness"] = given[:20]
        return _start(request, request.POST.get("scenario", ""), Run.Kind.SIZE, options)
    except PlannerError as problem:
        return _page(request, Run.Kind.SIZE, "web/runs/size_new.html", problem)


@require_http_methods(["GET", "POST"])
def pd_ratio(request: Request) -> HttpResponse:
    """Prefill to decode of one model of a scenario."""
    if request.method == "GET":
        return _page(request, Run.Kind.PD_RATIO, "web/runs/pd_ratio_new.html")
    scenario, _, service = request.POST.get("of", "").partition(":")
    options: dict[str, Any] = {"service": service[:NAME]}
    try:
        if instances := _whole(request, "instances", "Instances", 2, MOST_INSTANCES):
            options["instances"] = instances
        return _start(request, scenario, Run.Kind.PD_RATIO, options)
    except PlannerError as problem:
        return _page(request, Run.Kind.PD_RATIO, "web/runs/pd_ratio_new.html", problem)


def _page(
    request: Request, kind: str, template: str, problem: PlannerError | None = None
) -> HttpResponse:
    """The form, with what was typed where that is refused. A role's refusal has a page of its
    own."""
    if isinstance(problem, NotAllowed):
        raise problem
    scenarios = list(scenarios_list()[:SCENARIOS])
    context: dict[str, Any] = {
        "scenarios": scenarios,
        "chosen": request.POST.get("scenario") or request.GET.get("scenario", ""),
        "chosen_service": request.POST.get("of", ""),
        "given": request.POST,
        "title": "The request could not be carried out",
        "sentences": str(problem).splitlines() if problem else [],
        "runs": runs_list().filter(kind=kind)[:SHOWN],
        "most_instances": MOST_INSTANCES,
    }
    if kind == Run.Kind.PD_RATIO:
        context["services"] = [(one, _models(one.document)) for one in scenarios]
    return render(request, template, context, status=status_of(problem) if problem else 200)


def _start(request: Request, scenario: str, kind: str, options: dict[str, Any]) -> HttpResponse:
    require_planner(request)
    run = scenario_run(
        scenario=scenario_get(scenario), owner=request.user, kind=kind, options=options
    )
    return redirect("web:run", run.pk)


def _models(document: str) -> list[str]:
    """Of a scenario; none where it is no longer valid."""
    try:
        return [model.name for model in parse(document).models]
    except ScenarioError:
        return []


def _whole(request: Request, name: str, label: str, least: int, most: int) -> int | None:
    """A whole number of the form; None where it was left empty."""
    text = request.POST.get(name, "").strip()
    if not text:
        return None
    if not text.isdecimal() or len(text) > DIGITS or not least <= int(text) <= most:
        raise PlannerError(
            f"{label}: give a whole number from {least} to {most:,}, or leave it empty."
        )
    return int(text)
