from typing import Any

from django.db.models import QuerySet
from drf_spectacular.types import OpenApiTypes
from rest_framework import status
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from planner.api.base import ApiView, idempotency_key, started, state_tag, valid, version_held
from planner.api.filters import ListView, ScenarioFilter, StrictFilter, StrictOrdering, lists
from planner.api.parsers import BoundedJsonParser, TextYamlParser, YamlParser
from planner.api.renderers import TextYamlRenderer, YamlRenderer
from planner.api.schema import DOCUMENT, JSON, LOCATION, YAML, operation, removal, run_started
from planner.api.serializers.options import RunRequest
from planner.api.serializers.runs import RunDetail
from planner.api.serializers.scenarios import (
    ChangeRequest,
    DocumentRequest,
    ScenarioDetail,
    ScenarioItem,
)
from planner.models import Scenario
from planner.selectors.scenarios import scenario_get, scenarios_list
from planner.services.scenarios import (
    scenario_create,
    scenario_delete,
    scenario_edit,
    scenario_run,
    scenario_update,
)

FILE = {JSON: DocumentRequest, YAML: str, "text/yaml": str}
AS_FILE = {(200, JSON): ScenarioDetail, (200, YAML): OpenApiTypes.OBJECT}
EXAMPLE = {"A scenario file": DOCUMENT}


@lists(ScenarioItem)
class ScenarioListView(ListView[Scenario]):
    """List scenarios."""

    parser_classes = [BoundedJsonParser, YamlParser, TextYamlParser]
    filter_backends = [StrictFilter, StrictOrdering]
    filterset_class = ScenarioFilter
    ordering_fields = ["updated_at", "created_at", "name"]

    def get_queryset(self) -> QuerySet[Scenario]:
        return scenarios_list().defer("document")

    @operation(
        {201: ScenarioDetail}, 400, 403, 413, 415, 422,
        request=FILE, parameters=[LOCATION], examples=EXAMPLE, example_type=YAML,
    )  # fmt: skip
    def post(self, request: Request) -> Response:
        """Store a new scenario."""
        sent = valid(DocumentRequest(data=request.data))
        scenario = scenario_create(owner=self.user, **sent)
        response = _scenario_response(scenario, request, status.HTTP_201_CREATED)
        response["Location"] = response.data["links"]["self"]
        return response


class ScenarioView(ApiView):
    parser_classes = [BoundedJsonParser, YamlParser, TextYamlParser]
    renderer_classes = [JSONRenderer, YamlRenderer, TextYamlRenderer]

    @operation(AS_FILE, 404)
    def get(self, request: Request, scenario: str) -> Response:
        """Get a scenario, or its file.

        `scenario` is an id or a name. `Accept: application/yaml` gives the file as it was written.
        """
        return _scenario_response(scenario_get(scenario), request)

    @operation(
        AS_FILE, 400, 403, 404, 412, 413, 415, 422,
        request=FILE, examples=EXAMPLE, example_type=YAML,
    )  # fmt: skip
    def put(self, request: Request, scenario: str) -> Response:
        """Replace a scenario."""
        sent = valid(DocumentRequest(data=request.data))
        return self._save(request, scenario, sent)

    @operation(
        AS_FILE, 400, 403, 404, 412, 413, 415, 422, request=FILE | {JSON: ChangeRequest},
        examples={"Plan every quarter of an hour": {"changes": {"horizon.period_s": 900}}},
    )  # fmt: skip
    def patch(self, request: Request, scenario: str) -> Response:
        """Change values of a scenario and keep its comments."""
        sent = valid(ChangeRequest(data=request.data))
        return self._save(request, scenario, sent)

    @removal
    def delete(self, request: Request, scenario: str) -> Response:
        """Remove a scenario.

        Its runs keep their copy of it.
        """
        scenario_delete(scenario=scenario_get(scenario), user=self.user)
        return Response(status=status.HTTP_204_NO_CONTENT)

    def _save(self, request: Request, name: str, sent: dict[str, Any]) -> Response:
        """Save the document or the changes; the service checks If-Match."""
        scenario = scenario_get(name)
        save = scenario_update if "document" in sent else scenario_edit
        version = version_held(request, scenario)
        saved = save(scenario=scenario, user=self.user, version=version, **sent)
        return _scenario_response(saved, request)


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
        run = scenario_run(
            scenario=scenario_get(scenario),
            owner=self.user,
            idempotency_key=idempotency_key(request),
            **sent,
        )
        return started(run, RunDetail(run, context={"request": request}).data, request)


def _scenario_response(
    scenario: Scenario, request: Request, code: int = status.HTTP_200_OK
) -> Response:
    """Return a scenario with its ETag."""
    body = ScenarioDetail(scenario, context={"request": request}).data
    return Response(body, code, headers={"ETag": state_tag(scenario, request)})
