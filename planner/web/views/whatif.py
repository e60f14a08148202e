"""Show what-if on the page of a plan: sliders, their answer, and the run that simulates it."""

from __future__ import annotations

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_POST, require_safe

from planner.selectors.runs import run_get
from planner.services.whatif import kept_of, what_if_replay
from planner.web.errors import planners_only
from planner.web.pages.whatif import answer_context, changes_of, form_context
from planner.web.request import Request


@require_safe
def panel(request: Request, pk: int) -> HttpResponse:
    """Show the sliders and the plan; htmx requests the answer alone when a slider moves."""
    run = run_get(pk)
    context = answer_context(run, request.GET)
    if request.htmx and request.htmx.target == "what-if-answer":
        return render(request, "web/_what_if_answer.html", context | {"oob": True})
    page = "web/_what_if.html" if request.htmx else "web/what_if.html"
    return render(request, page, context | form_context(run, request.GET))


@require_POST
@planners_only
def replay(request: Request, pk: int) -> HttpResponse:
    """Start a run of the same kind on a new scenario with these settings."""
    run = run_get(pk)
    started = what_if_replay(
        run=run, user=request.user, changes=changes_of(kept_of(run), request.POST)
    )
    messages.success(request, f"{started.name} is a scenario of its own; this run replays it.")
    return redirect("web:run", started.pk)
