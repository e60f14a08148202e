"""Export a run: show the options, write the file, or make its plan the active one."""

from itertools import takewhile

from django.contrib import messages
from django.http import HttpResponse, QueryDict
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from planner.domain.formats import zone_name
from planner.domain.options import options_of
from planner.domain.reports.policies import span_text
from planner.errors import NotReady, PlannerError
from planner.models import ActivePlan, Run
from planner.outputs.files import FIGURES, FORMATS, REPORT, export_file, formats_of
from planner.outputs.manifests.kinds import MANIFESTS, USUAL
from planner.outputs.metrics import desired_by_pool
from planner.outputs.options import ExportOptions
from planner.outputs.plans import Plan, plan_of
from planner.selectors.active_plans import active_plan_of_policy, active_plan_of_run, active_plans
from planner.selectors.runs import run_get, run_result, stored_result
from planner.services.active_plans import plan_activate
from planner.services.exports import deployment_names_save, run_export
from planner.web.errors import planners_only
from planner.web.form_responses import attachment, render_form
from planner.web.forms.options import OptionsForm, make_select, options_posted
from planner.web.request import Request, TemplateContext

CLAIMS = "modelclaim"  # of a run of share
FOOTPRINTS = "MODEL=GIB MODEL=GIB, measured"
REPEATS = {
    "auto": "Default",
    "once": "Once, on its dates",
    "daily": "Every day",
    "weekly": "Every week",
}
MORE = ("region", "model", "timezone", "repeat")  # fields that the page folds
MOST_OF_PEAK = 2  # offered limit of a pool under load, times the plan's largest pool
# Attributes of the select of the policy, with which the other cards show the plan of that policy.
FOLLOWED = {
    "hx-get": "", "hx-params": "policy", "hx-target": "#names", "hx-select": "#names",
    "hx-swap": "outerHTML", "hx-select-oob": "#in-force",
}  # fmt: skip
FORMS = {
    "hpa": "HPA with annotations",
    "scaledobject": "ScaledObject with annotations",
    "variantautoscaling": "VariantAutoscaling (before July 2026)",
}


@require_safe
def page(request: Request, pk: int) -> HttpResponse:
    """Show the export options, or return the file if ``to`` is given.

    An error appears on the page, next to the options.
    """
    run = run_get(pk)
    problem: PlannerError | None = None
    if request.GET.get("preview"):
        return _preview(request, run)
    if "to" in request.GET:
        try:
            file = run_export(
                run=run,
                to=request.GET["to"],
                options=_options(request.GET),
                now=timezone.now(),
                by=request.user,
            )
        except PlannerError as refused:
            problem = refused
        else:
            return attachment(file.content, file.media, file.name)
    return render_form(request, "web/runs/export.html", _context(request, run, problem), problem)


def _preview(request: Request, run: Run) -> HttpResponse:
    """Show the text of an export, or why there is none."""
    sent = request.GET.copy()
    sent.pop("preview", None)
    to = sent.get("to", "")
    try:
        # The preview beside a schedule has no field for the most replicas of a pool, so it gets the
        # default of the form.
        if "most" not in sent and _has_limit(to):
            sent.update(_usual_limit(plan_of(run, _options(sent), timezone.now())))
        options = _options(sent)
        file = export_file(run=run, to=to, options=options, now=timezone.now())
    except PlannerError as problem:
        return render(request, "web/_export_preview.html", {"problem": problem})
    lines = file.content.decode(errors="replace").splitlines(keepends=True)
    comments = list(takewhile(lambda line: line.startswith("#"), lines))
    differing_plan = None  # the active plan of this schedule, if the file repeats it at other times
    is_inactive = False
    if to in MANIFESTS:
        policy = options.policy or stored_result(run).recommended_policy
        active = active_plan_of_policy(run, policy)
        is_inactive = active is None
        if active and options.repeat not in ("auto", active.repeat):
            differing_plan = active
    limits = []  # replicas to which each pool may grow under load
    if _has_limit(to):
        plan = plan_of(run, options, timezone.now())
        limits = [pool.max_with_guard for pool in plan.pools if pool.guard]
    context = {
        "file": file,
        "comments": "".join(comments),
        "text": "".join(lines[len(comments) :]),
        "active": differing_plan,
        "is_inactive": is_inactive,
        "repeat": options.repeat,
        "most": span_text((min(limits), max(limits))) if limits else "",
    }
    return render(request, "web/_export_preview.html", context)


def _has_limit(to: str) -> bool:
    """Return whether files of a format may add replicas, up to the option ``most``."""
    manifest = MANIFESTS.get(to)
    return manifest is not None and "most" in manifest.own


@require_POST
def in_force(request: Request, pk: int) -> HttpResponse:
    """Activate the plan of a run."""
    plan = plan_activate(
        run=run_get(pk), options=_options(request.POST), user=request.user, now=timezone.now(),
        message=request.POST.get("message", ""),
    )  # fmt: skip
    messages.success(request, f"Run {plan.number} is active: /metrics shows its replicas.")
    return redirect("web:run-export", pk)


@require_POST
@planners_only
def names(request: Request, pk: int) -> HttpResponse:
    """Save the export names of a run's deployments for all later exports."""
    run = run_get(pk)
    sent = {default: str(name).strip() for default, name in request.POST.items()}
    sent.pop("csrfmiddlewaretoken", None)
    deployment_names_save(names=sent, user=request.user)
    messages.success(request, "The names are saved for later exports.")
    return redirect("web:run-export", run.pk)


def _options(sent: QueryDict) -> ExportOptions:
    """Return the sent options; footprints of several models are words of one field."""
    options = sent.copy()
    options.setlist("footprints", sent.get("footprints", "").replace(",", " ").split())
    return options_of(ExportOptions, options_posted(ExportOptions, options))


def _context(request: Request, run: Run, problem: PlannerError | None) -> TemplateContext:
    """Return the context of the export page; raise NotReady if there is nothing to export.

    ``problem`` is why the last export was refused, if it was.
    """
    run_result(run)  # raises the reason if there is nothing to export
    is_share = run.kind == Run.Kind.SHARE
    plan, why_no_plan = _plan(run, request.GET.get("policy", ""))
    usual_format = USUAL if plan else ""
    if is_share:  # it has resource claims to export, but no plan
        usual_format = CLAIMS
    recommended = stored_result(run).recommended
    assurance = ""  # level of the plan, if the run recommends it
    if plan and recommended and plan.policy == recommended.policy:
        assurance = recommended.assurance or ""
    # The active plan of this run, if there is one, and the replicas that it schedules now.
    current = active_plan_of_run(run)
    other_plans = active_plans().exclude(pk=current.pk) if current else active_plans()
    replicas = desired_by_pool(current, timezone.now()) if current else []
    form = _form(request.GET, run, plan, current)
    groups = formats_of(run) | {FIGURES: [(name, FORMATS[name].label) for name in ("csv", "json")]}
    return {
        "run": run,
        "groups": groups,
        "to": request.GET.get("to", usual_format),
        "plan": plan,
        "assurance": assurance,
        "why_none": "" if is_share else why_no_plan,
        "form": [field for field in form if field.name not in MORE],
        "more": [field for field in form if field.name in MORE],
        "manifests": " ".join(MANIFESTS),
        "texts": " ".join((*MANIFESTS, CLAIMS, "csv", "json")),
        "title": "The file was not written",
        "sentences": str(problem).splitlines() if problem else [],
        "in_force": current,
        "others": other_plans,
        "desired": replicas,
        "active_now": any(pool.replicas is not None for pool in replicas),
        "may_approve": request.user.may_approve,
    }


def _plan(run: Run, policy: str) -> tuple[Plan | None, str]:
    """Return the plan of ``policy`` ("": the recommended one); else None and the reason."""
    try:
        return plan_of(run, ExportOptions(policy=policy or None), timezone.now()), ""
    except NotReady as problem:
        return None, str(problem)


def _form(sent: QueryDict, run: Run, plan: Plan | None, current: ActivePlan | None) -> OptionsForm:
    """Return the form of export options; choices come from the run's policies and plan.

    Defaults are those of the active plan ``current`` if it is of this run. A run of shared GPUs has
    only the options of resource claims: the namespace, and the footprints of models.
    """
    if run.kind == Run.Kind.SHARE:  # options of resource claims
        others = tuple(ExportOptions.model_fields.keys() - {"namespace", "footprints"})
        form = OptionsForm(ExportOptions, without=others, initial={"footprints": ""} | sent.dict())
        form.fields["footprints"].widget.attrs["placeholder"] = FOOTPRINTS
        for field in form.fields.values():
            field.widget.attrs["data-for"] = CLAIMS
        return form
    defaults = {"timezone": zone_name()} | _usual_limit(plan)
    if current and current.run_id == run.pk:  # an export repeats as the active plan does
        defaults["repeat"] = current.repeat
    # Names are edited in the table of deployments, for every export.
    without = ("table", "names", "footprints")
    form = OptionsForm(ExportOptions, without=without, initial=defaults | sent.dict())
    # Give text fields the choices that the run has.
    make_select(form, "policy", {"": "Recommended"} | stored_result(run).deployable_labels)
    form.fields["policy"].widget.attrs |= FOLLOWED
    pools = plan.pools if plan else ()
    make_select(form, "region", {"": "All"} | {pool.region: pool.region for pool in pools})
    make_select(form, "model", {"": "All"} | {pool.model: pool.model for pool in pools})
    make_select(form, "repeat", REPEATS)
    make_select(form, "form", FORMS)
    form.fields["form"].label = "Form"
    form.fields["at"].widget.attrs["placeholder"] = "default: start of the plan"
    # The page shows a field only for the formats in its data-for (static/js/page.js).
    for name, field in form.fields.items():
        formats = [to for to, manifest in MANIFESTS.items() if name in manifest.own]
        formats = formats or list(MANIFESTS)
        if name == "policy":
            formats += [to for to, report in FORMATS.items() if report.group == REPORT]
        field.widget.attrs["data-for"] = " ".join(formats)
    return form


def _usual_limit(plan: Plan | None) -> dict[str, str]:
    """Return the option ``most`` if a guard of the plan may add very many replicas, else {}."""
    if plan is None:
        return {}
    limit = MOST_OF_PEAK * max((pool.max_replicas for pool in plan.pools), default=0)
    if all(pool.max_with_guard <= limit for pool in plan.pools):
        return {}
    return {"most": str(max(limit, 1))}
