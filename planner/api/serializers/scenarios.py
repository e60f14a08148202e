from typing import Any, cast

from rest_framework import serializers

from planner.api.serializers.strict_fields import StrictSerializer
from planner.api.serializers.typed import LinkField
from planner.errors import ScenarioError
from planner.inputs.scenario.document import parse
from planner.models import Scenario
from planner.services.scenarios import MAX_MESSAGE_CHARACTERS


class ScenarioLinks(serializers.Serializer[Any]):
    self = LinkField("scenario", "scenario")
    runs = LinkField("scenario-runs", "scenario")


class ScenarioItem(serializers.ModelSerializer[Scenario]):
    owner = serializers.CharField(source="owner.username", default=None, allow_null=True)
    links = ScenarioLinks(source="*", read_only=True)

    class Meta:
        model = Scenario
        fields = ["id", "name", "version", "owner", "created_at", "updated_at", "links"]


class ScenarioDetail(ScenarioItem):
    spec = serializers.DictField(
        allow_null=True, help_text="Document with every default. null: no longer valid."
    )
    problem = serializers.CharField(help_text="Why it is not valid. Empty: valid.")

    class Meta(ScenarioItem.Meta):
        fields = [*ScenarioItem.Meta.fields, "document", "spec", "problem"]

    def to_representation(self, scenario: Scenario) -> dict[str, Any]:
        return super().to_representation(cast(Scenario, _Read(scenario)))


class _Read:
    """A scenario and its document, which is parsed once for both fields that need it."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self.spec: dict[str, Any] | None = None
        self.problem = ""
        try:
            self.spec = parse(scenario.document, scenario.name).model_dump(mode="json")
        except ScenarioError as error:
            self.problem = str(error)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scenario, name)


class DocumentRequest(StrictSerializer):
    document = serializers.CharField(
        trim_whitespace=False, help_text="The scenario file as YAML, with comments."
    )
    message = serializers.CharField(
        required=False,
        allow_blank=True,
        max_length=MAX_MESSAGE_CHARACTERS,
        help_text="Change note of the version.",
    )


class ChangeRequest(StrictSerializer):
    """A new document, or new values at some paths of the current one."""

    document = serializers.CharField(required=False, trim_whitespace=False)
    changes = serializers.DictField(
        required=False,
        allow_empty=False,
        help_text='By dotted path, such as {"horizon.period_s": 900}; null removes a key.',
    )
    message = serializers.CharField(
        required=False,
        allow_blank=True,
        max_length=MAX_MESSAGE_CHARACTERS,
        help_text="Change note of the version.",
    )

    def validate(self, attrs: dict[str, Any]) -> dict[str, Any]:
        if len(attrs.keys() - {"message"}) != 1:
            raise serializers.ValidationError("Give either document or changes.")
        return attrs
