"""Limits on guessing passwords, and on how much one person asks; who runs into one is told of."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from rest_framework.request import Request
from rest_framework.throttling import AnonRateThrottle, SimpleRateThrottle, UserRateThrottle
from rest_framework.views import APIView

from planner.services.unusual import refused_often
from planner.whence import address_of


class AddressThrottle(AnonRateThrottle):
    scope = "login-address"
    rate = "60/min"

    def allow_request(self, request: Request, view: APIView) -> bool:
        allowed = super().allow_request(request, view)
        if not allowed:
            address = address_of(request._request)
            refused_often(
                f"Log-ins of the API from {address} are refused for a while: over 60 a minute.",
                key=f"log-ins from {address}",
            )
        return allowed


class NameThrottle(SimpleRateThrottle):
    """By the name tried: an address can be forged behind some proxies, the name is the target."""

    scope = "login-name"
    rate = "10/min"

    def get_cache_key(self, request: Request, view: APIView) -> str | None:
        name = _name(request)
        if not name:
            return None
        return self.cache_format % {"scope": self.scope, "ident": name.casefold().encode().hex()}

    def allow_request(self, request: Request, view: APIView) -> bool:
        allowed = super().allow_request(request, view)
        if not allowed:
            name, address = _name(request)[:150], address_of(request._request)
            refused_often(
                f"Log-ins of the API as {name} are refused for a while: more than 10 a minute, the "
                f"last from {address}.",
                key=f"log-ins as {name}",
                name=name,
            )
        return allowed


class PersonThrottle(UserRateThrottle):
    """Of everybody who signed in, by all their tokens and sessions together."""

    scope = "person"

    def get_rate(self) -> str:
        return f"{settings.HEADROOM_API_REQUESTS}/min"

    def allow_request(self, request: Request, view: APIView) -> bool:
        allowed = super().allow_request(request, view)
        if not allowed:
            who = str(request.user)
            refused_often(
                f"Requests of {who} to the API are refused: more than "
                f"{settings.HEADROOM_API_REQUESTS:,} a minute.",
                key=f"requests of {who}",
                name=request.user.get_username(),
            )
        return allowed


def _name(request: Request) -> str:
    name: Any = request.data.get("username") if isinstance(request.data, dict) else None
    return name if isinstance(name, str) else ""
