"""Record in the audit log who downloads traces, results and personal data."""

import hashlib
from collections.abc import Callable

from django.core.cache import cache
from django.http import HttpRequest, HttpResponse

from planner.models import ApiToken, User
from planner.services.audit import record

# Addresses that return confidential data of a workspace or a person as files. Pages are not listed.
# Exports of runs and of the audit log are not listed either, since they have their own records.
AUDITED = {
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


class DownloadAuditMiddleware:
    """Record who downloads from an audited address, per address at most once an hour."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        """Answer the request, and record a download that has succeeded."""
        response = self.get_response(request)
        match, user = request.resolver_match, request.user
        is_audited = match is not None and match.view_name in AUDITED and request.method == "GET"
        if not is_audited or response.status_code != 200 or not isinstance(user, User):
            return response
        path_hash = hashlib.sha256(request.path.encode()).hexdigest()
        # ``add`` is False if the key is still there from a download within the hour.
        if cache.add(f"taken-{user.pk}-{path_hash}", 1, EVERY_S):
            token = getattr(request, "auth", None)
            by_token = {"token": token.name} if isinstance(token, ApiToken) else {}
            record("data.taken", request.path, by=user, **by_token)
        return response
