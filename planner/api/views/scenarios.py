from typing import Any

from drf_spectacular.types import OpenApiTypes
from rest_framework import serializers, status
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from planner.api.base import (
    ApiView,
    idempotency_key,
    run_response,
    state_tag,
    valid,
    version_of_client,
)
from planner.api.filters import ListView, ScenarioFilter, StrictFilter, StrictOrdering, lists
from planner.api.parsers import BoundedJsonParser, TextYamlParser, YamlParser
from planner.api.renderers import TextYamlRenderer, YamlRenderer
from planner.api.schema import DOCUMENT, JSON, LOCATION, YAML, operation, removal, run_started
from planner.api.serializers.fields import (
    LinkField,
    OptionalText,
    RelatedText,
    StrictSerializer,
    Values,
)
from planner.api.serializers.options import RunRequest
from planner.errors import ScenarioError
from planner.inputs.scenario.document import parse
from planner.models import Scenario
from planner.selectors.scenarios import scenario_get, scenarios_list
from planner.services import scenarios as services


class ScenarioLinks(serializers.Serializer[Any]):
    self = LinkField("scenario", "scenario")
    runs = LinkField("scenario-runs", "scenario")


class ScenarioItem(serializers.ModelSerializer[Scenario]):
    owner = RelatedText("owner.username")
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

    def to_representation(self, scenario: Scenario) -> Values:
        """Return the fields of a scenario; parse its document once for ``spec`` and ``problem``."""
        row: Any = scenario
        row.spec, row.problem = None, ""
        try:
            row.spec = parse(scenario.document, scenario.name).model_dump(mode="json")
        except ScenarioError as error:
            row.problem = str(error)
        return super().to_representation(scenario)


class DocumentRequest(StrictSerializer):
    document = serializers.CharField(
        trim_whitespace=False, help_text="The scenario file as YAML, with comments."
    )
    message = OptionalText(
        max_length=services.MAX_MESSAGE_CHARACTERS, help_text="Change note of the version."
    )


class ChangeRequest(StrictSerializer):
    """A new document, or new values at some paths of the current one."""

    document = serializers.CharField(required=False, trim_whitespace=False)
    changes = serializers.DictField(
        required=False,
        allow_empty=False,
        help_text='By dotted path, such as {"horizon.period_s": 900}; null removes a key.',
    )
    message = OptionalText(
        max_length=services.MAX_MESSAGE_CHARACTERS, help_text="Change note of the version."
    )

    def validate(self, attrs: Values) -> Values:
        """Check that exactly one of ``document`` and ``changes`` is given."""
        if len(attrs.keys() - {"message"}) != 1:
            raise serializers.ValidationError("Give either document or changes.")
        return attrs


FILE = {JSON: DocumentRequest, YAML: str, "text/yaml": str}
AS_FILE = {(200, JSON): ScenarioDetail, (200, YAML): OpenApiTypes.OBJECT}
EXAMPLE = {"A scenario file": DOCUMENT}


@lists(ScenarioItem, rows=lambda: scenarios_list().defer("document"))
class ScenarioListView(ListView[Scenario]):
    """List scenarios."""

    parser_classes = [BoundedJsonParser, YamlParser, TextYamlParser]
    filter_backends = [StrictFilter, StrictOrdering]
    filterset_class = ScenarioFilter
    ordering_fields = ["updated_at", "created_at", "name"]

    @operation(
        {201: ScenarioDetail},
        request=FILE, parameters=[LOCATION], examples=EXAMPLE, example_type=YAML,
    )  # fmt: skip
    def post(self, request: Request) -> Response:
        """Store a new scenario."""
        sent = valid(DocumentRequest(data=request.data))
        scenario = services.scenario_create(owner=self.user, **sent)
        return _scenario_response(self, scenario, status.HTTP_201_CREATED)


class ScenarioView(ApiView):
    parser_classes = [BoundedJsonParser, YamlParser, TextYamlParser]
    renderer_classes = [JSONRenderer, YamlRenderer, TextYamlRenderer]

    @operation(AS_FILE)
    def get(self, request: Request, scenario: str) -> Response:
        """Get a scenario, or its file.

        `scenario` is an id or a name. `Accept: application/yaml` gives the file as it was written.
        """
        return _scenario_response(self, scenario_get(scenario))

    @operation(AS_FILE, request=FILE, examples=EXAMPLE, example_type=YAML)
    def put(self, request: Request, scenario: str) -> Response:
        """Replace a scenario."""
        sent = valid(DocumentRequest(data=request.data))
        return self._save(request, scenario, sent)

    @operation(
        AS_FILE, request=FILE | {JSON: ChangeRequest},
        examples={"Plan every quarter of an hour": {"changes": {"horizon.period_s": 900}}},
    )  # fmt: skip
    def patch(self, request: Request, scenario: str) -> Response:
        """Change values of a scenario and keep its comments."""
        sent = valid(ChangeRequest(data=request.data))
        return self._save(request, scenario, sent)

    @removal
    def delete(self, request: Request, scenario: str) -> None:
        """Remove a scenario.

        Its runs keep their copy of it.
        """
        services.scenario_delete(scenario=scenario_get(scenario), user=self.user)

    def _save(self, request: Request, name: str, sent: Values) -> Response:
        """Save the new document or the changes in ``sent``; raise VersionConflict by If-Match."""
        scenario = scenario_get(name)
        save = services.scenario_update if "document" in sent else services.scenario_edit
        version = version_of_client(request, scenario)
        saved = save(scenario=scenario, user=self.user, version=version, **sent)
        return _scenario_response(self, saved)


class ScenarioRunsView(ApiView):
    @run_started(
        request=RunRequest,
        examples={
            "Compare": {"kind": "compare"},
            "Simulate": {"kind": "simulate", "options": {"policy": "lt-i"}},
        },
    )
    def post(self, request: Request, scenario: str) -> Response:
        """Start a run of a scenario as it is now."""
        sent = valid(RunRequest(data=request.data))
        run = services.scenario_run(
            scenario=scenario_get(scenario),
            owner=self.user,
            idempotency_key=idempotency_key(request),
            **sent,
        )
        return run_response(run, request)


def _scenario_response(
    view: ApiView, scenario: Scenario, code: int = status.HTTP_200_OK
) -> Response:
    """Return the response with a scenario, its ETag and the status ``code``."""
    return view.row_response(
        ScenarioDetail, scenario, code, {"ETag": state_tag(scenario, view.request)}
    )
