"""Sign in through the identity provider: the request to it, and its answer."""

from dataclasses import asdict
from typing import Any

from django.conf import settings
from django.contrib.auth import login
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, resolve_url
from django.urls import reverse
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from planner.errors import NotAllowed, PlannerError
from planner.services import oidc
from planner.services.passwords import mark_verified
from planner.services.second_factor import factor_of, provider_checks_factor
from planner.web.errors import problem_response
from planner.web.views.second_factor import BACKEND, half_signed_in

PENDING = "at-the-provider"


@never_cache
@require_safe
def begin(request: HttpRequest) -> HttpResponse:
    """Redirect to the identity provider; the session keeps the values to check its response."""
    try:
        url, pending = oidc.sign_in_begin(
            return_url=_return_url(request), verify_again=request.user.is_authenticated
        )
    except PlannerError as problem:
        return problem_response(request, problem)
    request.session[PENDING] = {**asdict(pending), "goal": _next_page(request)}
    return redirect(url)


@never_cache
@require_safe
def finish(request: HttpRequest) -> HttpResponse:
    """Check the identity provider's response, which can be used once, and sign the user in."""
    pending: dict[str, Any] | None = request.session.pop(PENDING, None)
    try:
        if pending is None:
            raise NotAllowed(oidc.UNKNOWN_SIGN_IN)
        goal = pending.pop("goal")
        answered = {name: str(request.GET[name]) for name in request.GET}
        user, proved_at = oidc.sign_in_finish(
            pending=oidc.PendingSignIn(**pending),
            response=answered,
            return_url=_return_url(request),
        )
    except PlannerError as problem:
        return problem_response(request, problem)
    if factor_of(user) is not None and not provider_checks_factor(user):
        return half_signed_in(request, user, goal)
    login(request, user, backend=BACKEND)
    mark_verified(request, moment=proved_at)  # a provider may let in without asking who they are
    return redirect(goal)


def _return_url(request: HttpRequest) -> str:
    """Return the full address to which the identity provider sends the browser back."""
    return request.build_absolute_uri(reverse("web:provider-back"))


def _next_page(request: HttpRequest) -> str:
    """Return the page to continue with, only if it is on this site."""
    goal = request.GET.get("next", "")
    safe = url_has_allowed_host_and_scheme(
        goal, {request.get_host()}, require_https=request.is_secure()
    )
    return goal if safe else resolve_url(settings.LOGIN_REDIRECT_URL)
