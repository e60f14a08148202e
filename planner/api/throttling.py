"""Limits on guessing passwords, and on how much one person asks."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from rest_framework.request import Request
from rest_framework.throttling import AnonRateThrottle, SimpleRateThrottle, UserRateThrottle
from rest_framework.views import APIView


class AddressThrottle(AnonRateThrottle):
    scope = "login-address"
    rate = "60/min"


class NameThrottle(SimpleRateThrottle):
    """By the name tried: an address can be forged behind some proxies, the name is the target."""

    scope = "login-name"
    rate = "10/min"

    def get_cache_key(self, request: Request, view: APIView) -> str | None:
        name: Any = request.data.get("username") if isinstance(request.data, dict) else None
        if not isinstance(name, str) or not name:
            return None
        return self.cache_format % {"scope": self.scope, "ident": name.casefold().encode().hex()}


class PersonThrottle(UserRateThrottle):
    """Of everybody who signed in, by all their tokens and sessions together."""

    scope = "person"

    def get_rate(self) -> str:
        return f"{settings.HEADROOM_API_REQUESTS}/min"
