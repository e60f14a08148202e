"""Who took what out, in the audit log: traces, results and what is of people."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from django.core.cache import cache
from django.http import HttpRequest, HttpResponse

from planner.models import ApiToken, User
from planner.services.audit import record

# Addresses that hand out what a workspace or a person would not have strangers read, as data. What
# pages show is not among them, and what has a record of its own neither: exports of runs and of the
# audit log itself.
TAKEN = {
    "web:profile-residuals",
    "web:run-parquet",
    "web:run-result",
    "web:run-table",
    "web:scenario-download",
    "api:people",
    "api:profile-residuals",
    "api:run-results",
    "api:run-sweep",
    "api:run-table",
    "api:source-readings",
    "api:source-series",
    "api:trace-character",
    "api:trace-demand",
    "api:trace-reading",
}
EVERY_S = 3600  # a script that asks each second is one line an hour


class TakenMiddleware:
    """A record for each thing that somebody takes, once an hour."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        answer = self.get_response(request)
        match, user = request.resolver_match, request.user
        if (
            match is not None
            and match.view_name in TAKEN
            and request.method == "GET"
            and answer.status_code == 200
            and isinstance(user, User)
            and cache.add(_key(user, request.path), 1, EVERY_S)
        ):
            token = getattr(request, "auth", None)
            by_token = {"token": token.name} if isinstance(token, ApiToken) else {}
            record("data.taken", request.path, by=user, **by_token)
        return answer


def _key(user: User, path: str) -> str:
    return f"taken-{user.pk}-{hashlib.sha256(path.encode()).hexdigest()}"
