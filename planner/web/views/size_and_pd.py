"""Start runs of sizes, P:D ratios and operator levels, and list their results, on a page each.

A small form answers a question of size without a trace.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from django import forms
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_safe

from planner.domain.kinds.registry import KINDS
from planner.domain.options import options_in, options_of
from planner.domain.provisioning.figures import LEVEL_NAMES
from planner.domain.sizing.arrivals import MOST_BURSTY, POISSON, TRACE
from planner.errors import EXPECTED, NotAllowed, PlannerError, ScenarioError
from planner.inputs.scenario.document import parse
from planner.models import Run
from planner.selectors.analyses import usual_seconds
from planner.selectors.runs import runs_with_answers
from planner.selectors.scenarios import scenario_get, scenarios_list
from planner.services.quick_size import SizeQuestion, quick_size
from planner.services.scenarios import scenario_run
from planner.web.errors import require_planner
from planner.web.form_responses import render_form
from planner.web.forms.options import OptionsForm, make_select, options_posted
from planner.web.forms.widgets import dress
from planner.web.hardware_names import choice_names
from planner.web.pages.provision import USUAL
from planner.web.request import Request, TemplateContext

INITIAL = {"model": "llama-3.1-70b", "gpu": "H100-SXM", "users": 50}
# Values of fields that a link leaves out. Users have none: a link may give requests/s instead.
DEFAULTS = {
    name: default
    for name, option in options_in(SizeQuestion).items()
    if name != "users" and (default := INITIAL.get(name, option.default)) is not None
}
SHOWN = 20  # runs
SCENARIOS = 100
OWN_FIELDS = ("service",)  # chosen together with the scenario
# Options in the form of a kind, where not all. The page of a result offers all.
OFFERED = {Run.Kind.PROVISION: USUAL}
OUTLINES = {  # input, answer and next step of each kind, shown before its first result
    Run.Kind.SIZE: (
        ("1. Scenario", "Its models, GPUs, SLO and traffic.", ""),
        ("2. Capacity", "Requests/s of a replica, and replicas for the peak of each region.", ""),
        ("3. Plan", "Plans use these capacities.", ""),
    ),
    Run.Kind.PD_RATIO: (
        ("1. Service", "A model with its GPUs, SLO and traffic.", ""),
        ("2. Ratio", "The best split, its gain over aggregated serving, and its neighbours.", ""),
        ("3. Plan", "Keep the split of the scenario, or change it.", ""),
    ),
    Run.Kind.PROVISION: (
        ("1. Scenario", "A whole replica is sized for its slowest operator.", ""),
        ("2. Levels", "GPUs to meet the SLO if operators or modules scale separately.", ""),
        ("3. Decision", "Keep whole replicas, unless a level saves GPUs.", ""),
    ),
}
BURSTY = "bursty"  # arrivals whose variation is in the field of that name
ARRIVALS = {TRACE: "As in the traffic", POISSON: "Poisson", BURSTY: "Bursty"}


@require_safe
def page(request: Request) -> HttpResponse:
    """Show the form and, if the URL has values, the answer; htmx replaces only the answer."""
    asked = "model" in request.GET
    form = QuickSizeForm(DEFAULTS | request.GET.dict()) if asked else QuickSizeForm()
    context: TemplateContext = {"form": form, "asked": asked}
    if asked and form.is_valid():
        try:
            context["found"] = quick_size(form.question())
        except EXPECTED as problem:
            context["problem"] = str(problem)
    if request.htmx and request.htmx.target == "answer":
        return render(request, "web/_quick_size.html", context)
    return render(request, "web/quick_size.html", context | choice_names())


class QuickSizeForm(OptionsForm):
    def __init__(self, data: Mapping[str, Any] | None = None) -> None:
        """Add the fields of a size question; model and GPU type are required."""
        super().__init__(SizeQuestion, data=data, initial=INITIAL)
        for name in ("model", "gpu"):
            self.fields[name].widget.attrs["list"] = f"{name}-names"
            self.fields[name].required = True
        dress(self)

    def clean(self) -> dict[str, Any]:
        """Check that there is either a number of users or a rate."""
        values = super().clean() or {}
        given = [name for name in ("users", "rps") if values.get(name) is not None]
        if len(given) != 1 and not self.errors:
            self.add_error("users", "Users or requests/s: give one of them, and clear the other.")
        return values

    def question(self) -> SizeQuestion:
        """Return the question of a valid form."""
        given = {name: value for name, value in self.cleaned_data.items() if value is not None}
        return options_of(SizeQuestion, given)


@require_http_methods(["GET", "POST"])
def size(request: Request) -> HttpResponse:
    """Show the capacity of one replica of a scenario's models."""
    return _page(request, Run.Kind.SIZE, "web/runs/size_new.html")


@require_http_methods(["GET", "POST"])
def pd_ratio(request: Request) -> HttpResponse:
    """Show the ratio of prefill to decode for one model of a scenario."""
    return _page(request, Run.Kind.PD_RATIO, "web/runs/pd_ratio_new.html")


@require_http_methods(["GET", "POST"])
def provision(request: Request) -> HttpResponse:
    """Show whether replicas of operators or modules need fewer GPUs than whole replicas."""
    return _page(request, Run.Kind.PROVISION, "web/runs/provision_new.html")


def _page(request: Request, kind: Run.Kind, template: str) -> HttpResponse:
    """Show the page of an analysis with its form and last runs, or start the posted run.

    A started run is redirected to. If its options were refused, the page shows the form again with
    the reasons. A role without the right gets the usual error page.
    """
    problem: PlannerError | None = None
    if request.method == "POST":
        try:
            return _start(request, kind)
        except NotAllowed:
            raise
        except PlannerError as refused:
            problem = refused
    scenarios = list(scenarios_list()[:SCENARIOS])
    options = KINDS[kind].options
    offered = OFFERED.get(kind, options.model_fields)
    left_out = (*OWN_FIELDS, *(name for name in options.model_fields if name not in offered))
    form = OptionsForm(options, without=left_out, data=request.POST or None)
    if kind == Run.Kind.SIZE:
        _make_arrivals_select(form)
    elif kind == Run.Kind.PROVISION:
        make_select(form, "level", {"all": "All levels", **LEVEL_NAMES})
    runs = runs_with_answers().filter(kind=kind)[:SHOWN]
    completed = [run for run in runs if run.scenario_id and run.state == Run.State.COMPLETED]
    last_scenario = str(completed[0].scenario_id) if completed else ""
    context: TemplateContext = {
        "scenarios": scenarios,
        "chosen": request.POST.get("scenario") or request.GET.get("scenario", last_scenario),
        "chosen_service": request.POST.get("of", ""),
        "form": form,
        "title": "The request could not be carried out",
        "sentences": str(problem).splitlines() if problem else [],
        "runs": runs,
        "outline": OUTLINES[kind],
        "seconds": usual_seconds().get(kind),
    }
    if kind == Run.Kind.PD_RATIO:
        context["services"] = [(row, _models(row.document)) for row in scenarios]
    return render_form(request, template, context, problem)


def _start(request: Request, kind: Run.Kind) -> HttpResponse:
    """Start the run with the posted options, and redirect to it."""
    require_planner(request)
    scenario, extra_options = request.POST.get("scenario", ""), {}
    if kind == Run.Kind.PD_RATIO:  # one choice holds scenario and service
        scenario, _, service = request.POST.get("of", "").partition(":")
        extra_options["service"] = service
    elif request.POST.get("burstiness") == BURSTY:
        extra_options["burstiness"] = request.POST.get("variation", "")
    options = options_posted(KINDS[kind].options, request.POST, **extra_options)
    run = scenario_run(
        scenario=scenario_get(scenario), owner=request.user, kind=kind, options=options
    )
    return redirect("web:run", run.pk)


def _make_arrivals_select(form: OptionsForm) -> None:
    """Replace the field of burstiness by a select of arrivals and a field of their variation.

    The page shows the variation (CV²) only for bursty arrivals.
    """
    make_select(form, "burstiness", ARRIVALS)
    form.fields["burstiness"].widget.attrs["data-fits"] = ""
    form.fields["variation"] = forms.FloatField(
        label="CV² of interarrival times",
        min_value=0,
        max_value=MOST_BURSTY,
        initial=4,
        required=False,
        widget=forms.NumberInput(attrs={"class": "form-control", "data-for": BURSTY}),
    )
    form.order_fields(("isl", "osl", "burstiness", "variation", "rate"))


@lru_cache(maxsize=10 * SCENARIOS)
def _models(document: str) -> tuple[str, ...]:
    """Return the models of a scenario, those in prefill and decode pools first.

    The result is empty if the scenario is no longer valid. It is cached, because reading a hundred
    scenarios takes a second.
    """
    try:
        scenario = parse(document)
    except ScenarioError:
        return ()
    split = {profile.model for profile in scenario.profiles if profile.role != "mixed"}
    names = (model.name for model in scenario.models)
    return tuple(sorted(names, key=lambda name: name not in split))
