"""Show scenarios: the list, the editor (form and YAML of the same document), and their runs."""

from __future__ import annotations

from itertools import count
from typing import Any

from django.contrib import messages
from django.core.files.uploadedfile import UploadedFile
from django.http import HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.text import slugify
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from planner.domain.kinds.registry import KINDS
from planner.errors import FieldsRefused, PlannerError, ScenarioError
from planner.files.documents import utf8_text
from planner.inputs import catalogue
from planner.inputs.scenario import document as yaml
from planner.models import Run, Scenario, Trace
from planner.outputs.reports import compared_with_active, run_report
from planner.policies.choice import policy_groups
from planner.selectors.active_plans import active_plans
from planner.selectors.analyses import analyses_of
from planner.selectors.lookup import id_of, version_of
from planner.selectors.review import undecided_proposals
from planner.selectors.runs import runs_with_answers
from planner.selectors.scenarios import latest_comparisons, scenario_get, scenarios_list
from planner.selectors.traces import trace_get, traces_list
from planner.services import scenarios
from planner.services.deployment_search import scenario_with_deployments
from planner.services.draft_assumptions import draft_assumptions
from planner.services.draft_profiles import built_in_profiles, choose_serving, model_labels
from planner.services.draft_windows import DAY_S, DEFAULT_WINDOW, HORIZONS, window_choices
from planner.services.drafts import LENGTH_OF_A_DAY_S, LENGTH_OF_A_WEEK_S, scenario_draft
from planner.services.launch_drafts import launch_assumptions, launch_draft
from planner.services.scenarios import scenario_warnings
from planner.web.errors import planners_only, require_planner
from planner.web.form_responses import attachment, attempt, render_form
from planner.web.forms.deployment_search import chosen_deployments
from planner.web.forms.editor import Editor
from planner.web.forms.launch import CurrentFleetForm, LaunchForm
from planner.web.forms.options import options_posted
from planner.web.hardware_names import choice_names
from planner.web.pages.trace import amounts_figure
from planner.web.paging import page_of
from planner.web.request import Request, TemplateContext

PAST = "past"
TRACE_CHART = "trace-chart"  # the part of the page that htmx replaces
OUTLOOKS = frozenset(horizon.outlook for horizon in HORIZONS.values() if horizon.outlook)
FORM, YAML, DISCARD, CHECK = "form", "yaml", "discard", "check"
MAX_BYTES = 4 * yaml.MAX_CHARACTERS  # of an uploaded file: a UTF-8 character has at most four bytes


@require_safe
def listing(request: Request) -> HttpResponse:
    """List the scenarios, each with its newest result, its active plan and its open proposal.

    The result is a comparison, or else a plan.
    """
    page = page_of(request, scenarios_list())
    scenarios = page.object_list
    results = latest_comparisons(scenarios, Run.Kind.PLAN) | latest_comparisons(scenarios)
    active = dict(
        active_plans().filter(run__scenario__in=scenarios).values_list("run__scenario", "pk")
    )
    proposals = undecided_proposals().filter(scenario__in=scenarios).order_by("pk")
    newest_proposal = dict(proposals.values_list("scenario", "pk"))
    rows = [
        (
            scenario,
            results.get(scenario.pk),
            active.get(scenario.pk),
            newest_proposal.get(scenario.pk),
        )
        for scenario in page
    ]
    return render(request, "web/scenarios.html", {"page": page, "rows": rows})


@require_http_methods(["GET", "POST"])
@planners_only
def new(request: Request) -> HttpResponse:
    """Start a scenario from a trace (``?trace=``), a launch, a file or found deployments.

    The user then edits it in the form. POST saves it.
    """
    if request.method == "POST":
        if "base" in request.POST:
            document = scenario_with_deployments(**chosen_deployments(request.POST))
            return _edit(request, None, document, FORM)
        file = request.FILES.get("file")
        if isinstance(file, UploadedFile):
            data: bytes = file.read(MAX_BYTES + 1)
            text = utf8_text(data, str(file.name), "Choose a scenario in YAML.", ScenarioError)
            return _edit(request, None, text, YAML)
        return _handle_post(request, None)
    trace_name = request.GET.get("trace")
    if trace_name:
        trace = trace_get(trace_name)
        if request.htmx and request.htmx.target == TRACE_CHART:
            return render(request, "web/_trace_over_time.html", _context_of_trace(trace))
        return _draft(request, trace)
    if "launch" in request.GET:
        return _launch(request)
    return _begin(request, LaunchForm())


def _begin(request: Request, launch: LaunchForm, problem: Exception | None = None) -> HttpResponse:
    """Show the ways to start a scenario: from a trace, without one, or from a file."""
    ready = list(traces_list().filter(state=Trace.State.READY))
    ready.sort(key=lambda trace: trace.length_s < LENGTH_OF_A_DAY_S)  # short traces last
    traces = []  # with the longest window that a draft over the trace can plan, in words
    for trace in ready:
        longest_window = "less than a day"
        if trace.length_s >= LENGTH_OF_A_WEEK_S:
            longest_window = "a day or a week"
        elif trace.length_s >= LENGTH_OF_A_DAY_S:
            longest_window = "a day"
        traces.append((trace, longest_window))
    context = {
        "traces": traces,
        **(_context_of_trace(ready[0]) if ready else {}),
        "launch": launch,
        "built_in_regions": list(catalogue.regions()),
        "horizons": HORIZONS.values(),
    } | choice_names()
    return render_form(request, "web/scenario_new.html", context, problem)


def _context_of_trace(trace: Trace) -> TemplateContext:
    """Return a trace with its chart over time; None if it has no stored table."""
    return {"trace": trace, "figure": amounts_figure(trace) if trace.store else None}


def _draft(request: Request, trace: Trace) -> HttpResponse:
    """Show a draft scenario in the form, with its possible windows and its assumptions.

    It plans the ``horizon`` in the query, after the trace, or a ``window`` of the past if the query
    asks for one. A short trace allows only a shorter time than requested.
    """
    query = request.GET
    serving = choose_serving(trace, query.get("model", ""), query.get("gpu", ""))
    fleet = CurrentFleetForm(query)
    today = fleet.cleaned_data["today"] if fleet.is_valid() else None
    is_past = query.get("door") == PAST or "window" in query
    if is_past:
        choices = window_choices(trace) if trace.state == Trace.State.READY else ()
        window_key = query.get("window", DEFAULT_WINDOW)
        matching = (choice for choice in choices if choice.key == window_key)
        window = next(matching, next(iter(choices), None))
        text = scenario_draft(trace, window, None, serving, today)
        requested_s = DAY_S
        time_context: TemplateContext = {
            "choices": choices,
            "chosen": window,
            "horizons": (),
            "horizon": None,
        }
    else:
        horizon = HORIZONS.get(query.get("horizon", ""), HORIZONS["day"])
        text = scenario_draft(trace, None, horizon, serving, today)
        requested_s = horizon.replayed_s
        time_context = {"choices": (), "horizons": HORIZONS.values(), "horizon": horizon}
    planned = yaml.parse(text).horizon  # what the draft plans, which may be shorter than requested
    model, gpu = serving.profile.model, serving.profile.gpu
    # The form offers every model, and the GPU types with a built-in profile of the chosen one.
    gpus_with_profile = {its_gpu for name, its_gpu in built_in_profiles() if name == model}
    is_shorter = (planned.duration_s or requested_s) < requested_s
    draft = time_context | {
        "title": f"Draft for {trace.name}",
        "trace": trace,
        "past": is_past,
        # The draft plans after the trace if that is too short for a window of the past.
        "short": is_past and planned.start == "end",
        "shorter_s": planned.duration_s if is_shorter else None,
        "serving": serving,
        "today": fleet["today"],
        "apart": model_labels(trace),
        "models": list(dict.fromkeys(model for model, _ in built_in_profiles())),
        "gpus": sorted(gpus_with_profile | {gpu}),
        "assumed": draft_assumptions(trace, text, serving),
    }
    problems = scenario_warnings(text)
    return _show(request, None, text, editor=Editor(text), draft=draft, problems=problems)


def _launch(request: Request) -> HttpResponse:
    """Show a draft scenario for traffic without a trace, made from the launch form."""
    form = LaunchForm(request.GET)
    text, problem = attempt(form, lambda: launch_draft(form.description()))
    if text is None:
        return _begin(request, form, problem)
    launch = form.description()
    draft = {
        "title": f"Draft for the launch of {launch.model}",
        "horizon": launch.horizon,
        "assumed": [*launch_assumptions(launch, text)],
    }
    problems = scenario_warnings(text)
    return _show(request, None, text, editor=Editor(text), draft=draft, problems=problems)


@require_http_methods(["GET", "POST"])
def detail(request: Request, pk: int) -> HttpResponse:
    """Show the editor of a saved scenario; read-only users see no buttons."""
    scenario = scenario_get(str(pk))
    if request.method == "POST":
        require_planner(request)
        return _handle_post(request, scenario)
    mode = YAML if request.GET.get("view") == YAML else FORM
    return _edit(request, scenario, scenario.document, mode)


def _handle_post(request: Request, scenario: Scenario | None) -> HttpResponse:
    """Change the view, add a row, or save and perhaps run, as the pressed button says.

    ``scenario`` is None for a new one. The button sends ``action``. ``mode`` is the view that was
    edited: FORM, with a field for each value, or YAML.
    """
    mode, action = request.POST.get("mode", YAML), request.POST.get("action", "save")
    text = request.POST.get("document", "").replace("\r\n", "\n")
    if action == CHECK:  # the page sends it while the user types
        return _faults_as_json(text, request.POST if mode == FORM else None)
    if mode == FORM and action == DISCARD:  # leaves a form that cannot be saved
        return _edit(request, scenario, text, YAML)
    if mode == FORM:
        posted = _with_row(request.POST, action)
        editor = Editor(text, posted)
        if action.startswith("add-"):  # show a new row
            return _show(request, scenario, text, editor=editor)
        if not editor.is_valid():
            return _show(request, scenario, text, editor=editor, problem=FieldsRefused())
        text = editor.document()
    else:
        editor = None
    if action in (FORM, YAML):  # change the view
        return _edit(request, scenario, text, action)
    try:  # all other actions save
        saved = _save(request, scenario, text)
    except PlannerError as problem:
        problems = editor.attach(problem) if editor else str(problem).splitlines()
        # The form keeps its own base text: its fields already hold the changes.
        base = request.POST["document"] if editor else text
        return _show(request, scenario, base, editor=editor, problems=problems, problem=problem)
    obstacles = scenario_warnings(saved.document)  # to a run
    if action == "run" and not obstacles:
        return _start_plan(request, saved)
    if obstacles:
        words = f"{saved.name} is saved, but cannot run yet: {' '.join(obstacles)}"
        messages.warning(request, words)
    else:
        messages.success(request, f"{saved.name} is saved.")
    url = reverse("web:scenario", args=[saved.pk])
    return redirect(f"{url}?view={YAML}" if mode == YAML else url)


def _start_plan(request: Request, saved: Scenario) -> HttpResponse:
    """Start the outlook that the form asks for, else the comparison of policies."""
    horizon = request.POST.get("outlook", "")
    if horizon in OUTLOOKS:
        return _start(request, saved, Run.Kind.OUTLOOK, {"horizon": horizon})
    return _start(request, saved, Run.Kind.COMPARE, {})


def _faults_as_json(text: str, posted: Any) -> HttpResponse:
    """Return the errors that saving would report, by field and in general, as JSON.

    The page requests it while the user types.
    """
    editor, rest = None, []
    try:
        editor = Editor(text, posted) if posted else None
        if editor is None or editor.is_valid():
            yaml.parse(editor.document() if editor else text)
    except ScenarioError as problem:
        rest = editor.attach(problem) if editor else str(problem).splitlines()
    faults = [fault._asdict() for fault in editor.faults()] if editor else []
    return JsonResponse({"faults": faults, "rest": rest})


def _save(request: Request, scenario: Scenario | None, text: str) -> Scenario:
    """Create the scenario, or save a new version of it."""
    if scenario is None:
        return scenarios.scenario_create(owner=request.user, document=text)
    version = request.POST.get("version", "")
    return scenarios.scenario_update(
        scenario=scenario,
        user=request.user,
        document=text,
        version=version_of(version),
        message=request.POST.get("message", ""),
    )


@require_POST
@planners_only
def run(request: Request, pk: int) -> HttpResponse:
    """Start a run of the scenario, of the kind and with the options that were posted."""
    kind = request.POST.get("kind", Run.Kind.COMPARE)
    if kind not in KINDS:
        raise PlannerError(f"There is no kind of run {kind!r}. Choose from {', '.join(KINDS)}.")
    posted = request.POST.copy()
    posted.update(request.GET)  # buttons of one form differ by the query of their address
    options = options_posted(KINDS[kind].options, posted)
    return _start(request, scenario_get(str(pk)), kind, options)


@require_POST
@planners_only
def duplicate(request: Request, pk: int) -> HttpResponse:
    """Copy a scenario under a free name."""
    scenario = scenario_get(str(pk))
    names = set(Scenario.objects.values_list("name", flat=True))
    copy_names = (f"{scenario.name[:105]} copy {number}" for number in count(1))
    name = next(name for name in copy_names if name not in names)
    document = yaml.edit(scenario.document, {"name": name})
    copy = scenarios.scenario_create(owner=request.user, document=document)
    messages.success(request, f"{copy.name} is created.")
    return redirect("web:scenario", copy.pk)


@require_POST
def delete(request: Request, pk: int) -> HttpResponse:
    scenario = scenario_get(str(pk))
    scenarios.scenario_delete(scenario=scenario, user=request.user)
    messages.success(request, f"{scenario.name} is removed.")
    return redirect("web:scenarios")


@require_safe
def download(request: Request, pk: int) -> HttpResponse:
    scenario = scenario_get(str(pk))
    name = f"{slugify(scenario.name) or 'scenario'}.yaml"
    return attachment(scenario.document, "application/yaml", name)


def _start(
    request: Request, scenario: Scenario, kind: str, options: dict[str, Any]
) -> HttpResponse:
    """Start a run of a scenario, and lead the browser to it."""
    started = scenarios.scenario_run(
        scenario=scenario, owner=request.user, kind=kind, options=options
    )
    return redirect("web:run", started.pk)


def _uploaded_text(file: UploadedFile[Any]) -> str:
    """Return the text of an uploaded scenario; raise ScenarioError if it is not UTF-8."""
    data: bytes = file.read(MAX_BYTES + 1)
    return utf8_text(data, str(file.name), "Choose a scenario in YAML.", ScenarioError)


def _with_row(posted: Any, action: str) -> Any:
    """Return the posted data, with one more empty row if ``action`` is "add-SECTION"."""
    section = action.removeprefix("add-")
    rows_field = f"{section}-TOTAL_FORMS"  # Django's field for the number of rows
    number = posted.get(rows_field, "")
    is_number = number == "0" or bool(id_of(number))
    if not action.startswith("add-") or not is_number:
        return posted
    changed = posted.copy()
    changed[rows_field] = str(int(number) + 1)
    return changed


def _edit(request: Request, scenario: Scenario | None, text: str, mode: str) -> HttpResponse:
    """Show ``text`` as form or YAML; if the form cannot show it, as YAML with the reason."""
    if mode == FORM:
        try:
            editor = Editor(text)
        except ScenarioError as problem:
            problems = str(problem).splitlines()
            refused = None if request.method == "GET" else problem
            return _show(request, scenario, text, problems=problems, problem=refused)
        return _show(request, scenario, text, editor=editor)
    return _show(request, scenario, text)


def _show(
    request: Request,
    scenario: Scenario | None,
    text: str,
    *,
    editor: Editor | None = None,
    problems: list[str] | None = None,
    problem: Exception | None = None,
    draft: TemplateContext | None = None,
) -> HttpResponse:
    """Show the page of a new or saved scenario: as form with an ``editor``, else as YAML.

    ``problems`` are the faults of ``text``, and ``problem`` is the error for which a change was
    refused. htmx, which shows the editor again, gets it with the status of success. ``draft``
    describes the assumptions of a new scenario.
    """
    outlook = request.POST.get("outlook", "")  # as sent again, or of the draft's horizon
    if draft and draft.get("horizon") is not None:
        outlook = draft["horizon"].outlook
    context: TemplateContext = {
        "scenario": scenario,
        "draft": draft,
        "outlook": outlook if outlook in OUTLOOKS else "",
        "version": request.POST.get("version") or (scenario.version if scenario else ""),
        "text": text,
        "mode": YAML if editor is None else FORM,
        "editor": editor,
        "problems": problems or [],
    }
    if request.htmx and request.htmx.target == "editor":
        return render(request, "web/_editor.html", context)
    if scenario:
        context |= _analyses(scenario)
    return render_form(request, "web/scenario.html", context, problem)


def _analyses(scenario: Scenario) -> TemplateContext:
    """Return the analyses of a saved scenario: its newest plan, all others, and its last runs."""
    states = analyses_of(scenario)
    plan = next(state for state in states if state.analysis.kind == Run.Kind.COMPARE)
    try:
        result = plan.result
        report = compared_with_active(run_report(result), result) if result else None
    except PlannerError:  # its arrays were removed
        report = None
    # The page's head has the figures of the newest plan, so the list leaves out a completed one.
    if report and plan.run == plan.result:
        states = [state for state in states if state is not plan]
    return {
        "analyses": states,
        "plan_seconds": plan.seconds,
        "newest": plan.result if report else None,
        "report": report,
        "policies": [(name, label) for _, rows in policy_groups() for name, label, _ in rows],
        "last_runs": runs_with_answers().filter(scenario=scenario, sweep=None)[:5],
    }
