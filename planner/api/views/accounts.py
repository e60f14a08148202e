from typing import Any

from django.conf import settings
from django.contrib.auth import authenticate
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiResponse, extend_schema_field
from rest_framework import exceptions, serializers, status
from rest_framework.parsers import FormParser
from rest_framework.request import Request
from rest_framework.response import Response

from planner.api.base import ApiView, valid
from planner.api.parsers import BoundedJsonParser
from planner.api.schema import JSON, operation
from planner.api.serializers.fields import StrictSerializer
from planner.domain.serialise import as_json
from planner.models import ApiToken, User, Workspace
from planner.models.workspace import use_workspace
from planner.selectors.people import workspace_for
from planner.services import second_factor, tokens
from planner.services.account_removal import account_data
from planner.services.login_limits import login_attempt
from planner.services.passwords import check_verified
from planner.services.quota import disk_usage
from planner.services.run_queue import waiting_count
from planner.services.tokens import DEFAULT_DAYS, LOGIN, MAX_DAYS


class Login(StrictSerializer):
    username = serializers.CharField(max_length=150)
    password = serializers.CharField(max_length=4096, trim_whitespace=False)
    code = serializers.CharField(
        max_length=64, default="", trim_whitespace=False, help_text="2FA code, if you use 2FA."
    )
    name = serializers.CharField(max_length=60, default=LOGIN, help_text="Purpose of the token.")
    scope = serializers.ChoiceField(choices=ApiToken.Scope.choices, default=ApiToken.Scope.ALL)
    workspace = serializers.CharField(
        max_length=40, default="", help_text="Slug. Default: your first workspace."
    )
    days = serializers.IntegerField(
        min_value=1, max_value=MAX_DAYS, default=DEFAULT_DAYS, help_text="Lifetime in days."
    )


class NewTokenDetail(StrictSerializer):
    """A new token. Send it as ``Authorization: Token TOKEN``."""

    token = serializers.CharField(help_text="Token. Shown once, because only its hash is stored.")
    expires_at = serializers.DateTimeField()


class FactorState(StrictSerializer):
    on = serializers.BooleanField(help_text="2FA is on.")
    needed = serializers.BooleanField(help_text="Workspace requires 2FA.")
    recovery_left = serializers.IntegerField(help_text="Unused recovery codes.")


class PasswordConfirmation(StrictSerializer):
    password = serializers.CharField(
        max_length=4096,
        default="",
        trim_whitespace=False,
        help_text="Your password. Not needed within 15 minutes of signing in.",
    )


class FactorCode(StrictSerializer):
    code = serializers.CharField(
        max_length=64, help_text="Current or recovery code, to turn off 2FA."
    )
    on = serializers.BooleanField(default=True, help_text="false: turn off 2FA.")


class RecoveryCodes(StrictSerializer):
    recovery = serializers.ListField(
        child=serializers.CharField(),
        help_text="Recovery codes. Each works once, and is shown once.",
    )


class TokenItem(serializers.ModelSerializer[ApiToken]):
    workspace = serializers.SlugRelatedField[Workspace](slug_field="slug", read_only=True)

    class Meta:
        model = ApiToken
        fields = ["id", "name", "workspace", "scope", "created_at", "expires_at", "last_used_at"]


class MyLimits(serializers.Serializer[Any]):
    """Your usage and your limits, over all workspaces."""

    kept_bytes = serializers.IntegerField(help_text="Size of your traces, uploads and runs.")
    most_kept_bytes = serializers.IntegerField(help_text="Limit of kept_bytes for uploads.")
    waiting_runs = serializers.IntegerField(help_text="Your runs that have not started.")
    most_waiting_runs = serializers.IntegerField(help_text="Limit of waiting_runs.")


class Me(serializers.ModelSerializer[User]):
    limits = serializers.SerializerMethodField()
    role = serializers.ChoiceField(choices=User.Role.choices, help_text="Role in this workspace.")
    may_plan = serializers.BooleanField(help_text="true: may upload, edit, start and cancel runs.")

    class Meta:
        model = User
        fields = ["id", "username", "role", "may_plan", "limits"]

    @extend_schema_field(MyLimits)
    def get_limits(self, user: User) -> dict[str, int]:
        share = disk_usage(user)
        return {
            "kept_bytes": share.used,
            "most_kept_bytes": share.limit,
            "waiting_runs": waiting_count(user),
            "most_waiting_runs": settings.HEADROOM_MAX_WAITING_RUNS,
        }


class LoginView(ApiView):
    authentication_classes = []
    permission_classes = []
    parser_classes = [BoundedJsonParser, FormParser]
    throttle_classes = []  # see services.login_limits

    def get_authenticate_header(self, request: Request) -> str:
        return "Token"  # a wrong password is 401 even without authentication classes

    @operation(
        {200: NewTokenDetail},
        request={JSON: Login, "application/x-www-form-urlencoded": Login}, auth=[],
        examples={"Log in": {"username": "demo", "password": "your password"}},
    )  # fmt: skip
    def post(self, request: Request) -> Response:
        """Log in: exchange your name and password for a token."""
        sent = valid(Login(data=request.data))
        username, password, code = sent.pop("username"), sent.pop("password"), sent.pop("code")
        with login_attempt(request._request, username):
            user = authenticate(request, username=username, password=password)
            if not isinstance(user, User):
                raise exceptions.AuthenticationFailed("The user name or the password is wrong.")
        if second_factor.factor_of(user) is not None:
            if not code:
                raise exceptions.AuthenticationFailed("Send code, from your second factor.")
            second_factor.factor_check(user=user, code=code)
        workspace = workspace_for(user, sent.pop("workspace"))
        with use_workspace(workspace):
            new = tokens.token_create(user=user, **sent)
        answer = {"token": new.key, "expires_at": new.token.expires_at}
        return Response(NewTokenDetail(answer).data)


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

    @operation({201: second_factor.Enrolment}, request=PasswordConfirmation)
    def post(self, request: Request) -> Response:
        """Begin a second factor; it is active after you PUT a first code.

        With a token, or with an older session, the password is required again.
        """
        sent = valid(PasswordConfirmation(data=request.data))
        check_verified(request._request, self.user, sent["password"])
        begun = second_factor.factor_begin(user=self.user)
        return Response(as_json(begun), status.HTTP_201_CREATED)

    @operation({200: RecoveryCodes}, request=FactorCode)
    def put(self, request: Request) -> Response:
        """Confirm the second factor with a first code, or end it with another.

        The answer to a confirmation holds the recovery codes, which are shown once.
        """
        sent = valid(FactorCode(data=request.data))
        recovery_codes: list[str] = []
        if sent["on"]:
            recovery_codes = second_factor.factor_confirm(user=self.user, code=sent["code"])
        else:
            second_factor.factor_end(user=self.user, code=sent["code"])
        return Response(RecoveryCodes({"recovery": recovery_codes}).data)


class MyTokenView(ApiView):
    @operation({204: OpenApiResponse(description="Revoked.")})
    def delete(self, request: Request) -> None:
        """Revoke all your tokens."""
        tokens.tokens_end(user=self.user)


class MyTokensView(ApiView):
    @operation({200: TokenItem(many=True)})
    def get(self, request: Request) -> Response:
        """List your tokens; only hashes of the keys are stored."""
        return Response(TokenItem(tokens.tokens_of(self.user), many=True).data)


class MyTokenNumberView(ApiView):
    @operation({204: OpenApiResponse(description="Revoked.")})
    def delete(self, request: Request, number: int) -> None:
        """Revoke one of your tokens."""
        tokens.token_end(user=self.user, number=number)
