"""Turn exceptions into pages: the only place that words errors for the browser."""

import logging
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.template.loader import get_template
from django.views.defaults import server_error as default_error

from planner.errors import (
    EXPECTED,
    Away,
    input_error_of,
    server_error_of,
    status_of,
)
from planner.models import User
from planner.models.workspace import current_workspace
from planner.services.access import check_may_plan
from planner.services.second_factor import NotEnrolled, check_enrolled
from planner.web.request import Request

logger = logging.getLogger(__name__)

View = Callable[..., HttpResponseBase]


def problem_response(request: HttpRequest, problem: Exception) -> HttpResponse:
    """Show the error as a page or, for htmx, as a message at the top of the current page."""
    title = getattr(problem, "title", "The request could not be carried out")
    status = status_of(problem)
    context = {"title": title, "sentences": str(problem).splitlines(), "status": status}
    if request.headers.get("HX-Request"):
        response = render(request, "web/_problem.html", context, status=status)
        response["HX-Retarget"] = "#messages"
        response["HX-Reswap"] = "innerHTML show:window:top"
        return response
    return render(request, "web/problem.html", context, status=status)


def page(view: View, *, everywhere: bool = False) -> View:
    """Wrap a view as a page for signed-in users, and show expected errors as messages.

    The page needs a current workspace. With ``everywhere`` it needs none, as it is about the user.
    Without a signed-in user, it redirects to the login form.
    """
    signed_in = login_required(view)

    @wraps(view)
    def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """Answer the request, or show why it is refused."""
        if not request.user.is_authenticated:
            if request.headers.get("HX-Request"):  # htmx reloads the whole page
                return HttpResponse(status=204, headers={"HX-Refresh": "true"})
            # Redirected to the login form, a script of ours would show it inside the page.
            if request.headers.get("Accept") == "application/json":
                return HttpResponse(status=403)
        try:
            if isinstance(request.user, User) and not everywhere:
                current_workspace()
                check_enrolled(request.user)
            return signed_in(request, *args, **kwargs)
        except NotEnrolled as problem:
            messages.warning(request, str(problem))
            return redirect("web:second-factor")
        except EXPECTED as problem:
            return problem_response(request, problem)
        except Exception as error:
            input_error = input_error_of(error)
            if input_error is None:  # a bug
                raise
            logger.warning("%s %s: %s", request.method, request.path, error, exc_info=error)
            return problem_response(request, input_error)

    @wraps(view)
    def uncached(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """Answer the request, and forbid caches to store the response."""
        response = guarded(request, *args, **kwargs)
        # Caches must not show a workspace's data to the next person who uses the browser.
        response.headers.setdefault("Cache-Control", "private, no-store")
        return response

    return uncached


def server_error(request: HttpRequest) -> HttpResponse:
    """Handle error 500: explain a full disk or a server that does not respond.

    Such failures also occur in middleware, before the view runs.
    """
    _, error, _ = sys.exc_info()
    problem = None
    if error is not None:
        problem = input_error_of(error) or server_error_of(error)
    if problem is None:
        return default_error(request)
    if request.path.startswith("/api/"):
        status = status_of(problem)
        body = {"type": "about:blank", "title": problem.title, "detail": str(problem)}
        return JsonResponse(
            {**body, "status": status}, status=status, content_type="application/problem+json"
        )
    if isinstance(problem, Away):  # the usual page would query the database, which may be away
        page = get_template("503.html").render({"sentence": str(problem)})
        return HttpResponse(page, status=503, headers={"Retry-After": "30"})
    return problem_response(request, problem)


def require_planner(request: Request) -> None:
    """Raise NotAllowed for users with a read-only role."""
    check_may_plan(request.user)


def planners_only(view: View) -> View:
    """Wrap a view so that the role is checked before it uses any part of the request."""

    @wraps(view)
    def answer(request: Request, *args: Any, **kwargs: Any) -> HttpResponseBase:
        require_planner(request)
        return view(request, *args, **kwargs)

    return answer
