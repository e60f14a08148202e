"""Record in the audit log who downloads traces, results and personal data."""

import hashlib
from collections.abc import Callable

from django.core.cache import cache
from django.http import HttpRequest, HttpResponse

from planner.models import ApiToken, User
from planner.services.audit import record

# Addresses that return confidential data of a workspace or a person as files. Pages are not listed.
# Exports of runs and of the audit log are not listed either, since they have their own records.
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
EVERY_S = 3600  # a script that polls each second leaves one line per hour


class TakenMiddleware:
    """Record each download by a person at most once an hour."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        answer = self.get_response(request)
        path_hash = hashlib.sha256(request.path.encode()).hexdigest()
        match, user = request.resolver_match, request.user
        if (
            match is not None
            and match.view_name in TAKEN
            and request.method == "GET"
            and answer.status_code == 200
            and isinstance(user, User)
            and cache.add(f"taken-{user.pk}-{path_hash}", 1, EVERY_S)
        ):
            token = getattr(request, "auth", None)
            by_token = {"token": token.name} if isinstance(token, ApiToken) else {}
            record("data.taken", request.path, by=user, **by_token)
        return answer
