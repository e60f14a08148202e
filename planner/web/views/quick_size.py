"""Answer a question without a trace on one small form."""

from __future__ import annotations

from typing import Any

from django.http import HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from planner.errors import EXPECTED
from planner.services.quick_size import quick_size
from planner.web.forms.quick_size import QuickSizeForm
from planner.web.hardware_names import choice_names
from planner.web.request import Request


@require_safe
def page(request: Request) -> HttpResponse:
    """Show the form and, if the address has values, the answer; htmx swaps the answer alone."""
    asked = "model" in request.GET
    form = QuickSizeForm(request.GET) if asked else QuickSizeForm()
    context: dict[str, Any] = {"form": form, "tab": "quick-size"}
    if asked and form.is_valid():
        try:
            context["found"] = quick_size(form.question())
        except EXPECTED as problem:
            context["problem"] = str(problem)
    if request.htmx and request.htmx.target == "answer":
        return render(request, "web/_quick_size.html", context)
    return render(request, "web/quick_size.html", context | choice_names())
