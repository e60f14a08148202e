from __future__ import annotations

from typing import Any

from django.conf import settings
from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from planner.api.serializers.strict_fields import StrictSerializer
from planner.models import ApiToken, User, Workspace
from planner.services.quota import disk_usage
from planner.services.run_queue import waiting_count
from planner.services.tokens import DEFAULT_DAYS, LOGIN, MAX_DAYS


class Login(StrictSerializer):
    username = serializers.CharField(max_length=150)
    password = serializers.CharField(max_length=4096, trim_whitespace=False)
    code = serializers.CharField(
        max_length=64,
        default="",
        trim_whitespace=False,
        help_text="Of your second factor, if you have one.",
    )
    name = serializers.CharField(max_length=60, default=LOGIN, help_text="What will use it.")
    scope = serializers.ChoiceField(choices=ApiToken.Scope.choices, default=ApiToken.Scope.ALL)
    workspace = serializers.CharField(
        max_length=40, default="", help_text="Slug. Default: your first workspace."
    )
    days = serializers.IntegerField(
        min_value=1, max_value=MAX_DAYS, default=DEFAULT_DAYS, help_text="Lifetime in days."
    )


class TokenGiven(StrictSerializer):
    """A new token. Send it as ``Authorization: Token TOKEN``."""

    token = serializers.CharField(help_text="Shown once; only its hash is stored.")
    expires_at = serializers.DateTimeField()


class FactorState(StrictSerializer):
    on = serializers.BooleanField(help_text="Whether each sign-in needs a code.")
    needed = serializers.BooleanField(help_text="Whether the workspace requires it.")
    recovery_left = serializers.IntegerField(help_text="Recovery codes that were not used.")


class AgainGiven(StrictSerializer):
    password = serializers.CharField(
        max_length=4096,
        default="",
        trim_whitespace=False,
        help_text="Yours, once more; not asked of a session that began within 15 minutes.",
    )


class FactorBegun(StrictSerializer):
    key = serializers.CharField(help_text="To type into an authenticator, base32.")
    address = serializers.CharField(help_text="otpauth://, for a QR code.")


class CodeGiven(StrictSerializer):
    code = serializers.CharField(max_length=64, help_text="Of now; to end it, or a recovery code.")
    on = serializers.BooleanField(default=True, help_text="False ends it.")


class Recovery(StrictSerializer):
    recovery = serializers.ListField(
        child=serializers.CharField(), help_text="Each logs in once; shown once."
    )


class TokenItem(serializers.ModelSerializer[ApiToken]):
    workspace = serializers.SlugRelatedField[Workspace](slug_field="slug", read_only=True)

    class Meta:
        model = ApiToken
        fields = ["id", "name", "workspace", "scope", "created_at", "expires_at", "last_used_at"]


class MyLimits(serializers.Serializer[Any]):
    """Your usage and your limits, over all workspaces."""

    kept_bytes = serializers.IntegerField(help_text="Your traces, uploads and runs on the disk.")
    most_kept_bytes = serializers.IntegerField(help_text="An upload beyond it is refused.")
    waiting_runs = serializers.IntegerField(help_text="Your runs that have not started.")
    most_waiting_runs = serializers.IntegerField(help_text="Largest number of waiting runs.")


class Me(serializers.ModelSerializer[User]):
    limits = serializers.SerializerMethodField()
    role = serializers.ChoiceField(choices=User.Role.choices, help_text="In this workspace.")
    may_plan = serializers.BooleanField(help_text="May upload, edit, start and cancel.")

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
