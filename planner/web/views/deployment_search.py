"""Search for deployments from a form."""

from __future__ import annotations

from typing import Any

from django.core.cache import cache
from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from planner.domain.progress import Progress
from planner.errors import EXPECTED
from planner.models import Trace
from planner.selectors.hardware import gpus_list, models_list
from planner.selectors.scenarios import scenarios_list
from planner.selectors.traces import traces_list
from planner.services.deployment_search import search_deployments
from planner.web.forms.deployment_search import ConfigureForm
from planner.web.pages.deployment_search import page_context
from planner.web.request import Request

MOST = 50  # scenarios and traces to choose from
KEPT_S = 60  # how far a search is; it takes seconds
STEP = 0.02  # of a search, not to write more often


@require_safe
def page(request: Request) -> HttpResponse:
    """Show the form and, if the address has values, the answer; htmx swaps the answer alone."""
    asked = "model" in request.GET
    form = ConfigureForm(request.GET) if asked else ConfigureForm()
    context: dict[str, Any] = {"form": form, "tab": "configure", "asked": asked}
    if asked and form.is_valid():
        try:
            context |= page_context(search_deployments(form.asked(), _kept_progress(request)))
            context |= {
                "scenarios": scenarios_list()[:MOST],
                "traces": traces_list().filter(state=Trace.State.READY)[:MOST],
            }
        except EXPECTED as problem:
            context["problem"] = str(problem)
        finally:
            cache.delete(_key(request))
    if request.htmx and request.htmx.target == "answer":
        return render(request, "web/_configure.html", context)
    context["model_names"] = [entry.name for entry in models_list()]
    context["gpu_names"] = [entry.name for entry in gpus_list()]
    return render(request, "web/configure.html", context)


@require_safe
def progress(request: Request) -> HttpResponse:
    """Show the progress of this person's search; the answer is empty if none is running."""
    how_far = cache.get(_key(request))
    if how_far is None:
        return HttpResponse(status=204)
    return render(request, "web/_searching.html", {"done": how_far[0], "what": how_far[1]})


def _kept_progress(request: Request) -> Progress:
    """Store the progress of a search, so that any web process can show it."""
    key, last = _key(request), -1.0

    def tell(done: float, what: str) -> None:
        nonlocal last
        if done - last >= STEP:
            last = done
            cache.set(key, (done, what), KEPT_S)

    return tell


def _key(request: Request) -> str:
    return f"configure-{request.user.pk}"
