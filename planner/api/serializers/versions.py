from typing import Any

from rest_framework import serializers

from planner.api.serializers.strict_fields import StrictSerializer
from planner.inputs.scenario.sections import PARTS
from planner.models import ScenarioVersion
from planner.services.scenarios import MAX_MESSAGE_CHARACTERS

MOST_NUMBER = 2**31 - 1


class ScenarioVersionItem(serializers.ModelSerializer[ScenarioVersion]):
    """A version as lists show it."""

    author = serializers.CharField(source="author.username", default=None, allow_null=True)
    origin = serializers.SerializerMethodField(
        help_text="Origin of a restored or branched version. Empty: none."
    )

    class Meta:
        model = ScenarioVersion
        fields = ["number", "name", "author", "message", "origin", "created_at"]

    def get_origin(self, version: ScenarioVersion) -> str:
        return str(version.origin) if version.origin else ""


class ScenarioVersionDetail(ScenarioVersionItem):
    class Meta(ScenarioVersionItem.Meta):
        fields = [*ScenarioVersionItem.Meta.fields, "document"]


class PartAsked(serializers.Serializer[Any]):
    part = serializers.ChoiceField(
        PARTS, required=False, default="", help_text="Section. Default: the whole document."
    )


class BetweenAsked(PartAsked):
    """The two versions to compare."""

    old = serializers.IntegerField(min_value=1, max_value=MOST_NUMBER)
    new = serializers.IntegerField(min_value=1, max_value=MOST_NUMBER)


class RestoreRequest(StrictSerializer):
    message = serializers.CharField(
        required=False, default="", allow_blank=True, max_length=MAX_MESSAGE_CHARACTERS
    )


class RestorePartRequest(RestoreRequest):
    part = serializers.ChoiceField(
        PARTS,
        required=False,
        default="",
        help_text="Section to restore. Default: the whole document.",
    )
    into = serializers.CharField(
        required=False,
        default="",
        allow_blank=True,
        max_length=120,
        help_text="Name or id of the scenario that receives the section.",
    )


class BranchRequest(RestoreRequest):
    name = serializers.CharField(
        required=False,
        default="",
        allow_blank=True,
        max_length=120,
        help_text="Name of the new scenario. Default: a free name.",
    )
