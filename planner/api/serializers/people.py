from __future__ import annotations

from rest_framework import serializers

from planner.api.serializers.strict_fields import StrictSerializer
from planner.models import User


class Person(serializers.ModelSerializer[User]):
    user = serializers.CharField(source="username")
    role = serializers.ChoiceField(choices=User.Role.choices, help_text="In this workspace.")
    active = serializers.BooleanField(source="is_active", help_text="May sign in.")

    second_factor = serializers.BooleanField(source="has_second_factor", read_only=True)

    class Meta:
        model = User
        fields = ["id", "user", "role", "active", "second_factor", "last_login"]


class InviteRequest(StrictSerializer):
    user = serializers.CharField(max_length=150)
    role = serializers.ChoiceField(choices=User.Role.choices)
    existing = serializers.BooleanField(
        default=False, help_text="They have an account, in another workspace."
    )


class PersonChange(StrictSerializer):
    role = serializers.ChoiceField(choices=User.Role.choices, required=False)
    active = serializers.BooleanField(required=False, help_text="May sign in.")
    second_factor = serializers.ChoiceField(
        choices=[False], required=False, help_text="False ends it, for who lost theirs."
    )


class Invitation(StrictSerializer):
    user = serializers.CharField()
    role = serializers.CharField()
    invitation = serializers.URLField(
        allow_blank=True, help_text='Where the password is chosen; "" for who has an account.'
    )


class PersonRemoval(StrictSerializer):
    confirm = serializers.CharField(max_length=150, help_text="The user name once more.")
    to = serializers.CharField(
        max_length=150, default="", help_text="New owner of the data; a member of this workspace."
    )


class AccountRemoved(StrictSerializer):
    user = serializers.CharField()
    passed = serializers.IntegerField(help_text="Things that are somebody else's now.")
