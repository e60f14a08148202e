from __future__ import annotations

from rest_framework.request import Request
from rest_framework.response import Response

from planner.api.base import ApiView, valid, version_held
from planner.api.schema import operation
from planner.api.serializers.fleet import FleetAnswer, FleetRequest
from planner.api.serializers.scenarios import ScenarioDetail
from planner.selectors.scenarios import scenario_get
from planner.services.fleet_imports import Given, fleet_import


class ScenarioFleetView(ApiView):
    @operation(
        {200: FleetAnswer}, 400, 403, 404, 412, 413, 415, 422,
        request=FleetRequest,
        examples={"A launch line": {"text": "vllm serve Qwen/Qwen3-32B -tp 2", "gpu": "H100"}},
    )  # fmt: skip
    def post(self, request: Request, scenario: str) -> Response:
        """Import the current deployment as `fleet.today` of a scenario.

        Missing profiles, models and GPUs of regions are added. The scenario before stays as a
        version.
        """
        sent = valid(FleetRequest(data=request.data))
        stored = scenario_get(scenario)
        text = sent.pop("text")
        saved, imported = fleet_import(
            scenario=stored,
            user=self.user,
            text=text,
            given=Given(**sent),
            version=version_held(request, stored),
        )
        return Response(
            {
                "pools": [pool.as_dict() for pool in imported.pools],
                "notes": list(imported.notes),
                "scenario": ScenarioDetail(saved, context={"request": request}).data,
            }
        )
