from __future__ import annotations

from rest_framework import serializers

from planner.api.serializers.strict import StrictSerializer
from planner.models import User


class Login(StrictSerializer):
    username = serializers.CharField(max_length=150)
    password = serializers.CharField(max_length=4096, trim_whitespace=False)


class TokenGiven(StrictSerializer):
    """Send it as ``Authorization: Token TOKEN``."""

    token = serializers.CharField()


class Me(serializers.ModelSerializer[User]):
    may_plan = serializers.BooleanField(help_text="May upload, edit, start and cancel.")

    class Meta:
        model = User
        fields = ["id", "username", "role", "may_plan"]
