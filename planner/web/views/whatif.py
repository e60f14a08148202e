"""Show what-ifs: of a stored plan at once, and of a grid of runs as they finish."""

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_POST, require_safe

from planner.models import Run
from planner.outputs.files import formats_of
from planner.selectors.runs import run_get
from planner.selectors.scenarios import scenario_get, scenarios_list
from planner.selectors.sweeps import sweep_get, sweep_summaries, sweeps_list
from planner.services import whatif
from planner.web.errors import planners_only
from planner.web.pages.whatif import (
    answers_context,
    page_context,
    question_of,
    selected_values,
    sweep_context,
)
from planner.web.paging import page_of
from planner.web.request import Request

ANSWERS = "what-if-answers"  # the part of the page that htmx replaces
SCENARIOS = 100  # to choose from
STEPS = (  # shown before the first grid
    ("1. Setting", "Demand, SLO, price, GPUs or spare replicas.", ""),
    ("2. Plan", "The optimizer plans again in seconds.", ""),
    ("3. Simulate", "Simulate a change, or every combination of two ranges.", ""),
)


@require_safe
def of_run(request: Request, pk: int) -> HttpResponse:
    """Show the settings and the answers; after a change, htmx requests only the answers."""
    run = run_get(pk)
    if request.htmx and request.htmx.target == ANSWERS:
        return render(request, "web/_what_if_answers.html", answers_context(run, request.GET))
    template = "web/_what_if.html" if request.htmx else "web/runs/what_if.html"
    context = page_context(run, request.GET)
    return render(request, template, context | {"exports": formats_of(run)})


@require_POST
@planners_only
def start(request: Request, pk: int) -> HttpResponse:
    """Start the requested run: a simulation, a grid, a scenario or a trade-off."""
    run, user, action = run_get(pk), request.user, request.POST.get("action", "simulate")
    if action == "trade-off":
        started = whatif.what_if_trade_off(run=run, user=user, pair=request.POST.get("of", ""))
        return redirect("web:run", started.pk)
    if action == "grid":
        question = question_of(whatif.base_of(run).settings, request.POST)
        sweep = whatif.what_if_grid(run=run, user=user, chosen=question.fixed, axes=question.axes)
        return redirect("web:what-if", sweep.pk)
    chosen = selected_values(run, request.POST)
    if action == "scenario":
        scenario = whatif.what_if_scenario(run=run, user=user, chosen=chosen)
        messages.success(request, f"Stored as a new scenario: {scenario.name}.")
        return redirect("web:scenario", scenario.pk)
    started = whatif.what_if_simulate(run=run, user=user, chosen=chosen)
    return redirect("web:run", started.pk)


@require_safe
def of_scenario(request: Request, pk: int) -> HttpResponse:
    """Redirect to the what-ifs of the scenario's plan; if there is none, offer to plan.

    The plan is the newest recommendation, else the newest plan without a simulation.
    """
    scenario = scenario_get(str(pk))
    kinds = (Run.Kind.COMPARE, Run.Kind.PLAN)  # a Pareto front has several plans
    planned = scenario.runs.filter(state=Run.State.COMPLETED, kind__in=kinds, sweep=None)
    latest = planned.order_by("kind", "-pk").first()  # compare comes before plan
    if latest is not None:
        return redirect(_with_query(request, "web:run-what-if", latest.pk))
    return render(request, "web/what_if.html", {"scenario": scenario})


def _with_query(request: Request, name: str, pk: int) -> str:
    """Return the URL ``name`` of a row, with the changed settings in the query of the request."""
    params = request.GET.copy()
    params.pop("scenario", None)
    url = reverse(name, args=[pk])
    return f"{url}?{params.urlencode()}" if params else url


@require_safe
def listing(request: Request) -> HttpResponse:
    """List the grids of runs, with a choice of the scenario of a new one."""
    page = page_of(request, sweeps_list())
    context = {
        "page": page,
        "sweeps": [(summary, summary.sweep) for summary in sweep_summaries(list(page))],
        "scenarios": scenarios_list()[:SCENARIOS],
        "choices": STEPS,
    }
    return render(request, "web/what_ifs.html", context)


@require_safe
def of_sweep(request: Request, pk: int) -> HttpResponse:
    """Show a grid of runs; htmx requests it again while runs are active."""
    context = sweep_context(sweep_get(pk), request.GET)
    part = request.htmx and request.htmx.target == ANSWERS
    return render(request, "web/_what_if_answers.html" if part else "web/what_if.html", context)


@require_POST
@planners_only
def cancel(request: Request, pk: int) -> HttpResponse:
    """Cancel the unfinished runs of a grid."""
    stopped = whatif.sweep_cancel(sweep=sweep_get(pk), user=request.user)
    messages.info(request, f"{stopped} runs stop at their next step.")
    return redirect("web:what-if", pk)


@require_POST
def delete(request: Request, pk: int) -> HttpResponse:
    """Remove a grid with its runs."""
    whatif.sweep_delete(sweep=sweep_get(pk), user=request.user)
    messages.success(request, f"Grid {pk} and its runs are removed.")
    return redirect("web:what-ifs")


@require_safe
def old_address(request: Request, pk: int | None = None) -> HttpResponse:
    """Redirect from the former URL of a grid.

    ``pk`` is its number; None: a new grid of the scenario in the query.
    """
    if pk is not None:
        return redirect("web:what-if", sweep_get(pk).pk, permanent=True)
    scenario = request.GET.get("scenario")
    if scenario:
        return redirect(_with_query(request, "web:scenario-what-if", scenario_get(scenario).pk))
    return redirect("web:what-ifs", permanent=True)
