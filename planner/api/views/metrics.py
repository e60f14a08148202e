"""What Prometheus scrapes of Headroom, outside /api/ where scrapers look: the plans in force, and
how work goes."""

from __future__ import annotations

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from planner.errors import NotFound
from planner.exports.doors import exposition as doors_exposition
from planner.exports.in_force import exposition
from planner.exports.work import exposition as work_exposition
from planner.models import ApiToken
from planner.models.workspace import MAIN, within
from planner.selectors.doors import security_events
from planner.selectors.in_force import plans_in_force
from planner.selectors.work import work_now
from planner.services.tokens import token_of
from planner.services.unusual import refusals

TEXT = "text/plain; version=0.0.4; charset=utf-8"
LOOPBACK = ("127.0.0.1", "::1")
FORWARDED = ("HTTP_X_FORWARDED_FOR", "HTTP_FORWARDED", "HTTP_X_REAL_IP")  # a proxy's own address
REFUSAL = (
    "Scrape from this machine, or send a token of the API: authorization with type Bearer or Token."
)


@never_cache
@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """Of the token's workspace. Without one, for this machine alone, plans of ?workspace=SLUG and
    the work of all. How the doors are tried is for this machine and admins of the installation."""
    token = _token(request)
    if token is None and not _is_near(request):
        headers = {"WWW-Authenticate": "Bearer"}
        return HttpResponse(REFUSAL, status=401, content_type="text/plain", headers=headers)
    slug = request.GET.get("workspace", MAIN)
    try:
        with within(token.workspace if token else slug):
            now = timezone.now()
            work = work_now(now, everywhere=token is None)
            text = work_exposition(work)
            if token is None or token.user.is_superuser:
                text += doors_exposition(security_events(), refusals())
            text += exposition(plans_in_force(), now)
            return HttpResponse(text, content_type=TEXT)
    except NotFound as problem:
        return HttpResponse(str(problem), status=404, content_type="text/plain")


def _is_near(request: HttpRequest) -> bool:
    """From this machine, and not by a proxy on it."""
    near = request.META.get("REMOTE_ADDR") in LOOPBACK
    return near and not settings.HTTPS and not any(name in request.META for name in FORWARDED)


def _token(request: HttpRequest) -> ApiToken | None:
    kind, _, key = request.headers.get("Authorization", "").partition(" ")
    return token_of(key) if kind in ("Bearer", "Token") else None
