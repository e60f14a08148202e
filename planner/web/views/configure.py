"""Which deployment? A search from a form."""

from __future__ import annotations

from typing import Any

from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from planner.errors import EXPECTED
from planner.models import Trace
from planner.selectors.hardware import gpus_list, models_list
from planner.selectors.scenarios import scenarios_list
from planner.selectors.traces import traces_list
from planner.services.configuring import configured
from planner.web.forms.configure import ConfigureForm
from planner.web.pages.configure import page_context
from planner.web.request import Request

MOST = 50  # scenarios and traces to choose from


@require_safe
def page(request: Request) -> HttpResponse:
    """The form; with values in the address also the answer, which htmx swaps alone."""
    asked = "model" in request.GET
    form = ConfigureForm(request.GET) if asked else ConfigureForm()
    context: dict[str, Any] = {"form": form, "tab": "configure", "asked": asked}
    if asked and form.is_valid():
        try:
            context |= page_context(configured(form.asked()))
            context |= {
                "scenarios": scenarios_list()[:MOST],
                "traces": traces_list().filter(state=Trace.State.READY)[:MOST],
            }
        except EXPECTED as problem:
            context["problem"] = str(problem)
    if request.htmx and request.htmx.target == "answer":
        return render(request, "web/_configure.html", context)
    context["model_names"] = [entry.name for entry in models_list()]
    context["gpu_names"] = [entry.name for entry in gpus_list()]
    return render(request, "web/configure.html", context)
