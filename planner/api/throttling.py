"""How much one person may ask of the API; limits on log-ins are in ``services.signing_in``."""

from __future__ import annotations

from django.conf import settings
from rest_framework.request import Request
from rest_framework.throttling import UserRateThrottle
from rest_framework.views import APIView

from planner.client_address import client_network
from planner.services.refusals import limit_reached


class PersonThrottle(UserRateThrottle):
    """A limit on the requests of a person, over all their tokens and sessions."""

    scope = "person"

    def get_rate(self) -> str:
        return f"{settings.HEADROOM_API_REQUESTS}/min"

    def get_ident(self, request: Request) -> str:
        return client_network(request._request)

    def allow_request(self, request: Request, view: APIView) -> bool:
        allowed = super().allow_request(request, view)
        if not allowed:
            who = str(request.user)
            limit_reached(
                f"Requests of {who} to the API are refused: more than "
                f"{settings.HEADROOM_API_REQUESTS:,} a minute.",
                key=f"requests of {who}",
                name=request.user.get_username(),
            )
        return allowed
