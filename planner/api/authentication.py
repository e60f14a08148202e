"""Authenticate requests by a token; the database holds only a hash of it."""

from typing import Any

from rest_framework.authentication import TokenAuthentication as OfDrf
from rest_framework.exceptions import AuthenticationFailed, PermissionDenied
from rest_framework.permissions import SAFE_METHODS
from rest_framework.request import Request

from planner.models import ApiToken
from planner.models.workspace import enter
from planner.services.tokens import token_of


class TokenAuthentication(OfDrf):
    """Authentication by ``Authorization: Token KEY``, as the token's user in its workspace.

    A read-only token is refused for methods that change something.
    """

    def authenticate(self, request: Request) -> tuple[Any, Any] | None:
        """Return (user, token), or None without a token header.

        Raises PermissionDenied if a read-only token would change something.
        """
        user_and_token = super().authenticate(request)
        if user_and_token is None:
            return None
        _, token = user_and_token
        if token.scope == ApiToken.Scope.READ and request.method not in SAFE_METHODS:
            raise PermissionDenied("This token is read-only. Create one with full access.")
        return user_and_token

    def authenticate_credentials(self, key: str) -> tuple[Any, Any]:
        """Return (user, token) and enter the token's workspace.

        Raises AuthenticationFailed if the token is unknown, revoked or expired.
        """
        token = token_of(key)
        if token is None:
            raise AuthenticationFailed(
                "This token is unknown, was revoked or has expired. Make another under Account, "
                "API tokens."
            )
        # From here on, queries of this request see only this workspace.
        enter(token.workspace)
        return token.user, token
