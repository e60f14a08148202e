from typing import Any

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from planner.api.base import ApiView, valid, version_of_client
from planner.api.schema import operation
from planner.api.serializers.options import OptionsSerializer
from planner.api.views.scenarios import ScenarioDetail
from planner.domain.options import options_in
from planner.inputs.fleet.reading import MAX_CHARACTERS
from planner.selectors.scenarios import scenario_get
from planner.services.fleet_imports import PoolFacts, fleet_import


class FleetRequest(OptionsSerializer):
    """A description of the current deployment, and facts that it does not state."""

    declared = options_in(PoolFacts)
    text = serializers.CharField(
        max_length=MAX_CHARACTERS,
        trim_whitespace=False,
        help_text="Kubernetes YAML or JSON, Helm values, or a launch line of an engine.",
    )


class FleetAnswer(serializers.Serializer[Any]):
    pools = serializers.ListField(
        child=serializers.DictField(), help_text="Pools as read. `needs` names missing fields."
    )
    notes = serializers.ListField(child=serializers.CharField(), help_text="Assumptions.")
    scenario = ScenarioDetail()


class ScenarioFleetView(ApiView):
    @operation(
        {200: FleetAnswer}, request=FleetRequest,
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
            facts=PoolFacts(**sent),
            version=version_of_client(request, stored),
        )
        return Response(
            {
                "pools": [pool.as_dict() for pool in imported.pools],
                "notes": list(imported.notes),
                "scenario": ScenarioDetail(saved, context={"request": request}).data,
            }
        )
