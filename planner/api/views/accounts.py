from __future__ import annotations

from django.contrib.auth import authenticate
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiResponse
from rest_framework import exceptions, status
from rest_framework.parsers import FormParser
from rest_framework.request import Request
from rest_framework.response import Response

from planner.api.base import ApiView, valid
from planner.api.parsers import BoundedJsonParser
from planner.api.schema import JSON, operation
from planner.api.serializers.accounts import (
    AgainGiven,
    CodeGiven,
    FactorBegun,
    FactorState,
    Login,
    Me,
    Recovery,
    TokenGiven,
    TokenItem,
)
from planner.models import User
from planner.models.workspace import within
from planner.selectors.workspaces import workspace_for
from planner.services import second_factor, tokens
from planner.services.account_removal import account_data
from planner.services.login_limits import login_attempt
from planner.services.password_confirmation import check_verified


class LoginView(ApiView):
    authentication_classes = []
    permission_classes = []
    parser_classes = [BoundedJsonParser, FormParser]
    throttle_classes = []  # see services.signing_in

    def get_authenticate_header(self, request: Request) -> str:
        return "Token"  # a wrong password is 401 even without authentication classes

    @operation(
        {200: TokenGiven}, 400, 401, 403, 404, 429,
        request={JSON: Login, "application/x-www-form-urlencoded": Login}, auth=[],
        examples={"Log in": {"username": "demo", "password": "your password"}},
    )  # fmt: skip
    def post(self, request: Request) -> Response:
        """Log in: exchange your name and password for a token."""
        sent = valid(Login(data=request.data))
        who = {key: sent.pop(key) for key in ("username", "password")}
        with login_attempt(request._request, who["username"]):
            user = authenticate(request, **who)
            if not isinstance(user, User):
                raise exceptions.AuthenticationFailed("The user name or the password is wrong.")
        code = sent.pop("code")
        if second_factor.factor_of(user) is not None:
            if not code:
                raise exceptions.AuthenticationFailed("Send a code of your second factor: code.")
            second_factor.factor_check(user=user, code=code)
        with within(workspace_for(user, sent.pop("workspace"))):
            new = tokens.token_create(user=user, **sent)
        answer = {"token": new.key, "expires_at": new.token.expires_at}
        return Response(TokenGiven(answer).data)


class MeView(ApiView):
    @operation({200: Me})
    def get(self, request: Request) -> Response:
        """Get your account and your permissions."""
        return Response(Me(self.user).data)


class MyDataView(ApiView):
    @operation({200: OpenApiTypes.OBJECT})
    def get(self, request: Request) -> Response:
        """Get all data about you: your account, what you created, your lines of the audit log."""
        return Response(account_data(self.user, by=self.user))


class MyFactorView(ApiView):
    needs_factor = False  # this view sets it up

    @operation({200: FactorState})
    def get(self, request: Request) -> Response:
        """Get the state of your second factor."""
        factor = second_factor.factor_of(self.user)
        state = {
            "on": factor is not None,
            "needed": second_factor.is_required(self.user),
            "recovery_left": len(factor.recovery) if factor else 0,
        }
        return Response(FactorState(state).data)

    @operation({201: FactorBegun}, 400, 403, 409, 413, 415, request=AgainGiven)
    def post(self, request: Request) -> Response:
        """Begin a second factor; it is active after you PUT a first code.

        With a token, or with an older session, the password is required again.
        """
        sent = valid(AgainGiven(data=request.data))
        check_verified(request._request, self.user, sent["password"])
        begun = second_factor.factor_begin(user=self.user)
        answer = {"key": begun.key, "address": begun.address}
        return Response(FactorBegun(answer).data, status.HTTP_201_CREATED)

    @operation({200: Recovery}, 400, 403, 409, 413, 415, request=CodeGiven)
    def put(self, request: Request) -> Response:
        """Confirm the second factor with a first code, or end it with another.

        The answer to a confirmation holds the recovery codes, which are shown once.
        """
        sent = valid(CodeGiven(data=request.data))
        codes: list[str] = []
        if sent["on"]:
            codes = second_factor.factor_confirm(user=self.user, code=sent["code"])
        else:
            second_factor.factor_end(user=self.user, code=sent["code"])
        return Response(Recovery({"recovery": codes}).data)


class MyTokenView(ApiView):
    @operation({204: OpenApiResponse(description="It no longer works.")})
    def delete(self, request: Request) -> Response:
        """Revoke all your tokens."""
        tokens.tokens_end(user=self.user)
        return Response(status=status.HTTP_204_NO_CONTENT)


class MyTokensView(ApiView):
    @operation({200: TokenItem(many=True)})
    def get(self, request: Request) -> Response:
        """List your tokens; only hashes of the keys are stored."""
        return Response(TokenItem(tokens.tokens_of(self.user), many=True).data)


class MyTokenNumberView(ApiView):
    @operation({204: OpenApiResponse(description="It no longer works.")}, 404)
    def delete(self, request: Request, number: int) -> Response:
        """Revoke one of your tokens."""
        tokens.token_end(user=self.user, number=number)
        return Response(status=status.HTTP_204_NO_CONTENT)
