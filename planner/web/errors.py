"""From an exception to a page: the one place where the browser's errors are worded."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from planner.errors import EXPECTED, NotAllowed, NotFound, NotReady

View = Callable[..., HttpResponse]


def status_of(problem: Exception) -> int:
    """HTTP status of an expected outcome."""
    for kind, status in ((NotAllowed, 403), (NotFound, 404), (NotReady, 409)):
        if isinstance(problem, kind):
            return status
    return 400


def problem_response(request: HttpRequest, problem: Exception, status: int) -> HttpResponse:
    """The sentence as a page, or, for htmx, as a message at the top of the page it came from."""
    title = getattr(problem, "title", "The request could not be carried out")
    context = {"title": title, "sentences": str(problem).splitlines(), "status": status}
    if request.headers.get("HX-Request"):
        response = render(request, "web/_problem.html", context, status=status)
        response["HX-Retarget"] = "#messages"
        response["HX-Reswap"] = "innerHTML show:window:top"
        return response
    return render(request, "web/problem.html", context, status=status)


def page(view: View) -> View:
    """A page of the product: signed-in people only, expected outcomes as sentences."""

    @wraps(view)
    def answer(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        try:
            return view(request, *args, **kwargs)
        except EXPECTED as problem:
            return problem_response(request, problem, status_of(problem))

    return login_required(answer)


def planners_only(view: View) -> View:
    """Refuse people whose role only reads, before anything of their request is used."""

    @wraps(view)
    def answer(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        if not request.user.may_plan:
            raise NotAllowed("Your role may only read; ask an admin for the planner role.")
        return view(request, *args, **kwargs)

    return answer
