from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from rest_framework import generics, status
from rest_framework.parsers import JSONParser
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from planner.api import schema
from planner.api.base import ApiView, idempotency_key, started, state_tag, version_held
from planner.api.filters import Pages, ScenarioFilter, StrictFilter, StrictOrdering
from planner.api.parsers import TextYamlParser, YamlParser
from planner.api.renderers import TextYamlRenderer, YamlRenderer
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


class ScenarioListView(ApiView, generics.ListAPIView[Scenario]):
    parser_classes = [JSONParser, YamlParser, TextYamlParser]
    serializer_class = ScenarioItem
    filter_backends = [StrictFilter, StrictOrdering]
    filterset_class = ScenarioFilter
    ordering_fields = ["updated_at", "created_at", "name"]
    pagination_class = Pages

    def get_queryset(self) -> QuerySet[Scenario]:
        return scenarios_list().defer("document")

    @schema.scenario_list
    def get(self, request: Request, *args: Any, **kwargs: Any) -> Response:
        return self.list(request, *args, **kwargs)

    @schema.scenario_post
    def post(self, request: Request) -> Response:
        given = DocumentRequest(data=request.data)
        given.is_valid(raise_exception=True)
        scenario = scenario_create(owner=self.user, **given.validated_data)
        response = _answer(scenario, request, status.HTTP_201_CREATED)
        response["Location"] = response.data["links"]["self"]
        return response


class ScenarioView(ApiView):
    parser_classes = [JSONParser, YamlParser, TextYamlParser]
    renderer_classes = [JSONRenderer, YamlRenderer, TextYamlRenderer]

    @schema.scenario_get
    def get(self, request: Request, scenario: str) -> Response:
        return _answer(scenario_get(scenario), request)

    @schema.scenario_put
    def put(self, request: Request, scenario: str) -> Response:
        given = DocumentRequest(data=request.data)
        given.is_valid(raise_exception=True)
        return self._save(request, scenario, given.validated_data)

    @schema.scenario_patch
    def patch(self, request: Request, scenario: str) -> Response:
        given = ChangeRequest(data=request.data)
        given.is_valid(raise_exception=True)
        return self._save(request, scenario, given.validated_data)

    @schema.scenario_delete
    def delete(self, request: Request, scenario: str) -> Response:
        scenario_delete(scenario=scenario_get(scenario), user=self.user)
        return Response(status=status.HTTP_204_NO_CONTENT)

    def _save(self, request: Request, name: str, given: dict[str, Any]) -> Response:
        scenario = scenario_get(name)
        save = scenario_update if "document" in given else scenario_edit
        version = version_held(request, scenario)
        saved = save(scenario=scenario, user=self.user, version=version, **given)
        return _answer(saved, request)


class ScenarioRunsView(ApiView):
    @schema.scenario_run
    def post(self, request: Request, scenario: str) -> Response:
        given = RunRequest(data=request.data)
        given.is_valid(raise_exception=True)
        run = scenario_run(
            scenario=scenario_get(scenario),
            owner=self.user,
            idempotency_key=idempotency_key(request),
            **given.validated_data,
        )
        return started(run, RunDetail(run, context={"request": request}).data, request)


def _answer(scenario: Scenario, request: Request, code: int = status.HTTP_200_OK) -> Response:
    body = ScenarioDetail(scenario, context={"request": request}).data
    return Response(body, code, headers={"ETag": state_tag(scenario, request)})
