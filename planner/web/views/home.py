"""Show the first page with the state of everything."""

from __future__ import annotations

from typing import Any

from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from planner.inputs.demo.scenario import DEMO_NAME
from planner.models import Run, Trace
from planner.outputs.render.html import charts_shown
from planner.outputs.reports import run_report
from planner.selectors.active_plans import active_plans
from planner.selectors.runs import runs_list
from planner.selectors.scenarios import scenarios_list
from planner.selectors.traces import traces_list
from planner.web.request import Request

RECENT = 6
ACTIVE = (Run.State.PENDING, Run.State.RUNNING)


@require_safe
def home(request: Request) -> HttpResponse:
    study = (
        Run.objects.filter(kind=Run.Kind.COMPARE, state=Run.State.COMPLETED, sweep=None)
        .select_related("scenario")
        .first()
    )
    context = _activity() | {
        "study": study,
        "traces": traces_list().exclude(state=Trace.State.REFUSED)[:RECENT],
        "scenarios": scenarios_list()[:RECENT],
        "demo": _demo(),
        "plans_in_force": active_plans(),
    }
    if study is not None:
        report = run_report(study)
        context |= {"report": report, "charts": charts_shown(report, live=True)[:1]}
    return render(request, "web/home.html", context)


def _demo() -> Run | None:
    """Return the study that shows what a result looks like.

    It is the first completed comparison of the demo. Until one is completed, it is the newest that
    may still complete. Later runs do not replace it.
    """
    runs = runs_list().filter(name=DEMO_NAME, kind=Run.Kind.COMPARE)
    done = runs.filter(state=Run.State.COMPLETED).order_by("pk").first()
    return done or runs.filter(state__in=ACTIVE).first()


@require_safe
def activity(request: Request) -> HttpResponse:
    """Show recent runs; the page requests them again while one is active."""
    context = _activity()
    response = render(request, "web/_activity.html", context)
    if not context["active"]:  # the last one ended: reload the page, which may have changed
        response["HX-Refresh"] = "true"
    return response


def _activity() -> dict[str, Any]:
    # Traces have their own list: otherwise uploads would push studies off the page.
    recent = list(runs_list().filter(sweep=None).exclude(kind=Run.Kind.INGEST)[:RECENT])
    return {"runs": recent, "active": Run.objects.filter(state__in=ACTIVE).exists()}
