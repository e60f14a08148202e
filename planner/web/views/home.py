"""Show the home page: the fleet now, and a search over all names."""

from django.http import HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_safe

from planner.domain.reports.schedule import schedule_of
from planner.inputs.demo import DEMO_NAME
from planner.models import Run
from planner.outputs.render.html import display_charts
from planner.outputs.reports import run_report, tables_of
from planner.selectors.lookup import matches
from planner.selectors.places import ACCOUNT, FOOTER, PLACES
from planner.selectors.runs import recent_runs, runs_list, stored_result
from planner.selectors.scenarios import scenarios_list
from planner.selectors.search import things_found
from planner.services.access import jobs_of
from planner.web.pages.fleet import NextStep, fleet_context, with_data_age
from planner.web.pages.fleet_services import services_planned
from planner.web.request import Request, TemplateContext

MOST_LETTERS = 80  # of a search
ACTIVE = Run.ACTIVE_STATES
FIRST_STEPS = (
    (
        "1. Upload a trace",
        "Requests, or counts per bin. Azure, BurstGPT and Mooncake files need no settings.",
        "web:trace-upload",
    ),
    (
        "2. Create a scenario",
        "Models, GPUs, regions, SLOs and the current fleet.",
        "web:scenario-new",
    ),
    ("3. Plan and compare", "Replicas over time, with cost, energy and SLO attainment.", ""),
)


@require_safe
def home(request: Request) -> HttpResponse:
    """Show the start page: active plans, recent runs, and the newest result."""
    study = (
        Run.objects.filter(kind=Run.Kind.COMPARE, state=Run.State.COMPLETED, sweep=None)
        .select_related("scenario")
        .first()
    )
    context = _activity() | fleet_context(timezone.now(), request.user)
    begun = study is not None or scenarios_list().exists()
    first_steps = [
        (label, words, reverse(page) if page and request.user.may_plan else "")
        for label, words, page in FIRST_STEPS
    ]
    context |= {"study": study, "begun": begun, "demo": _demo(), "choices": first_steps}
    if study is not None and not context["plans"]:
        report = with_data_age(run_report(study), study, timezone.now())
        schedule = schedule_of(tables_of(study), stored_result(study).recommended_policy)
        context |= {
            "report": report,
            "charts": display_charts(report, live=True)[:1],
            "services": services_planned(schedule),
        }
        if context["next_step"] is None and request.user.may_plan:
            reason = "No plan is active. Check the latest result, then propose it."
            context["next_step"] = NextStep(reason, "Open result", "run", study.pk)
    return render(request, "web/home.html", context)


def _demo() -> Run | None:
    """Return the demo's example run, or None.

    It is the first completed comparison of the demo. Until one is completed, it is the newest that
    may still complete. Later runs do not replace it.
    """
    runs = runs_list().filter(name=DEMO_NAME, kind=Run.Kind.COMPARE)
    done = runs.filter(state=Run.State.COMPLETED).order_by("pk").first()
    return done or runs.filter(state__in=ACTIVE).first()


@require_safe
def find(request: Request) -> HttpResponse:
    """List jobs (links to pages) and stored objects whose name contains the text."""
    text = request.GET.get("q", "").strip()[:MOST_LETTERS]
    all_jobs = [job for place in (*PLACES, ACCOUNT) for job in place.jobs]
    allowed = jobs_of(request.user, (*all_jobs, *FOOTER))
    jobs = [job for job in allowed if matches(text, job.label, job.words)]
    context = {"text": text, "jobs": jobs, "found": things_found(text)}
    return render(request, "web/_found.html" if request.htmx else "web/find.html", context)


@require_safe
def activity(request: Request) -> HttpResponse:
    """Show recent runs; the page requests them again while one is active."""
    context = _activity()
    response = render(request, "web/_activity.html", context)
    if not context["active"]:  # the last one ended: reload the page, which may have changed
        response["HX-Refresh"] = "true"
    return response


def _activity() -> TemplateContext:
    """Return the recent runs, and whether any run is active."""
    # Traces have their own list: otherwise uploads would push studies off the page.
    return {"runs": recent_runs(), "active": Run.objects.filter(state__in=ACTIVE).exists()}
