"""Who a request is from, by a token that is kept as a hash."""

from __future__ import annotations

from typing import Any

from rest_framework.authentication import TokenAuthentication as OfDrf
from rest_framework.exceptions import AuthenticationFailed, PermissionDenied
from rest_framework.permissions import SAFE_METHODS
from rest_framework.request import Request

from planner.models import ApiToken
from planner.models.workspace import enter
from planner.services.tokens import token_of


class TokenAuthentication(OfDrf):
    """``Authorization: Token KEY``: its person, in its workspace. One for reading alone changes
    nothing."""

    def authenticate(self, request: Request) -> tuple[Any, Any] | None:
        user_and_token = super().authenticate(request)
        if (
            user_and_token
            and user_and_token[1].scope == ApiToken.Scope.READ
            and request.method not in SAFE_METHODS
        ):
            raise PermissionDenied("This token is for reading alone; make one for all you may do.")
        return user_and_token

    def authenticate_credentials(self, key: str) -> tuple[Any, Any]:
        if (token := token_of(key)) is None:
            raise AuthenticationFailed(
                "This token is unknown, was taken back or has expired; make another under Account, "
                "API tokens."
            )
        enter(token.workspace)
        return token.user, token
