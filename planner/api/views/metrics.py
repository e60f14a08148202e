"""Serve the metrics for Prometheus: active plans, runs and refused sign-ins."""

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from planner.errors import NotFound
from planner.models.workspace import MAIN, use_workspace
from planner.outputs.metrics import exposition, plan_lines, queue_lines, security_lines
from planner.selectors.active_plans import active_plans
from planner.selectors.audit import security_events
from planner.selectors.queue_statistics import work_statistics
from planner.services.refused_requests import refusal_counts
from planner.services.tokens import token_of

TEXT = "text/plain; version=0.0.4; charset=utf-8"
REFUSAL = (
    "Send a token of the API (Authorization: Bearer TOKEN), or have the operator set "
    "HEADROOM_METRICS_OPEN=1."
)


@never_cache
@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """Return the metrics of the token's workspace.

    A token of an installation admin also gets the runs of all workspaces and the refused sign-ins.
    With HEADROOM_METRICS_OPEN no token is needed. Everybody then gets what such an admin gets, and
    the plans of ?workspace=SLUG.
    """
    kind, _, key = request.headers.get("Authorization", "").partition(" ")
    token = token_of(key) if kind in ("Bearer", "Token") else None
    if token is None and not settings.HEADROOM_METRICS_OPEN:
        headers = {"WWW-Authenticate": "Bearer"}
        return HttpResponse(REFUSAL, status=401, content_type="text/plain", headers=headers)
    # Without a token the metrics are open, so everybody sees what an installation admin sees.
    sees_all = token is None or token.user.is_superuser
    slug = request.GET.get("workspace", MAIN)
    try:
        with use_workspace(token.workspace if token else slug):
            now = timezone.now()
            text = exposition(
                queue_lines(work_statistics(now, everywhere=sees_all)),
                security_lines(security_events(), refusal_counts()) if sees_all else (),
                plan_lines(list(active_plans()), now),
            )
            return HttpResponse(text, content_type=TEXT)
    except NotFound as problem:
        return HttpResponse(str(problem), status=404, content_type="text/plain")
