"""Limit the requests of each person to the API; ``services.signing_in`` limits sign-ins."""

from __future__ import annotations

from django.conf import settings
from rest_framework.request import Request
from rest_framework.throttling import UserRateThrottle
from rest_framework.views import APIView

from planner.services.client_address import client_network
from planner.services.refused_requests import record_limit_reached


class PersonThrottle(UserRateThrottle):
    """A limit on the requests of a person over all tokens and sessions."""

    scope = "person"

    def get_rate(self) -> str:
        return f"{settings.HEADROOM_API_REQUESTS}/min"

    def get_ident(self, request: Request) -> str:
        return client_network(request._request)

    def allow_request(self, request: Request, view: APIView) -> bool:
        """Return whether the request is within the limit; a refusal is recorded."""
        allowed = super().allow_request(request, view)
        if not allowed:
            who = str(request.user)
            record_limit_reached(
                f"Requests of {who} to the API are refused: more than "
                f"{settings.HEADROOM_API_REQUESTS:,} a minute.",
                key=f"requests of {who}",
                name=request.user.get_username(),
            )
        return allowed
