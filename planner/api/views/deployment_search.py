"""Search the cheapest deployments of a model."""

from typing import Any

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from planner.api.base import ApiView, valid
from planner.api.schema import CHOSEN, CONFIGURED, operation
from planner.api.serializers import fields
from planner.api.views.estimates import WithMeasurements
from planner.domain.deployment_search.query import ASKED, DeploymentQuery
from planner.domain.deployment_search.search import DeploymentSearchResult
from planner.domain.options import options_of
from planner.domain.serialise import as_json
from planner.services.deployment_search import scenario_with_deployments, search_deployments
from planner.services.estimates import MeasurementSource

LATENCY_LIMITS = ("ttft_ms", "tbt_ms")


class ConfigureRequest(WithMeasurements):
    """The search for a deployment, as in `bin/manage configure`."""

    declared = ASKED
    prices = serializers.DictField(
        child=fields.FiniteField(), required=False,
        help_text="USD per GPU-hour by GPU type. Default: median on-demand price.",
    )  # fmt: skip

    def get_fields(self) -> fields.FieldsByName:
        """Return the fields; latency limits and the request rate may be null, which means none."""
        declared = super().get_fields()
        for name in (*LATENCY_LIMITS, "rps"):
            declared[name].allow_null = True
        return declared


class DeploymentsRequest(fields.StrictSerializer):
    """Chosen deployments and their destination: a stored scenario, or a draft from a trace."""

    model = serializers.CharField(max_length=200)
    profiles = serializers.ListField(
        child=serializers.DictField(), min_length=1, max_length=20,
        help_text="`profiles` rows of the chosen candidates.",
    )  # fmt: skip
    scenario = serializers.CharField(
        max_length=120, required=False, help_text="Name or id of the scenario."
    )
    trace = serializers.CharField(max_length=200, required=False, help_text="Name of the trace.")
    ttft_ms = fields.FiniteField(max_value=1e8, required=False, allow_null=True)
    tbt_ms = fields.FiniteField(max_value=1e8, required=False, allow_null=True)


class ScenarioText(serializers.Serializer[Any]):
    document = serializers.CharField(
        help_text="Scenario as YAML. Not stored: POST it to /scenarios/."
    )


class ConfigureView(ApiView):
    @operation(
        {200: DeploymentSearchResult},
        request=ConfigureRequest, examples={"One model on two GPU types": CONFIGURED},
    )  # fmt: skip
    def post(self, request: Request) -> Response:
        """Search the deployments of a model.

        The search covers GPU types, arrangements, precisions and engines, aggregated and
        disaggregated. It ranks by cost within the limits, and simulates the best. It takes seconds.
        """
        sent = valid(ConfigureRequest(data=request.data))
        # A measured row is of the searched model unless it names another.
        rows = [{"model": sent["model"], **row} for row in sent.pop("measured", ())]
        measured = MeasurementSource(rows, use_stored=sent.pop("kept"))
        query = options_of(DeploymentQuery, sent)
        return Response(as_json(search_deployments(query, measured=measured)))


class ConfigureScenarioView(ApiView):
    @operation(
        {200: ScenarioText}, request=DeploymentsRequest, examples={"Into a stored scenario": CHOSEN}
    )
    def post(self, request: Request) -> Response:
        """Put chosen deployments into a scenario.

        The answer is the document of a stored scenario, or of a draft from a trace, with the
        deployments. Nothing is stored.
        """
        sent = valid(DeploymentsRequest(data=request.data))
        limits = {name: sent.get(name) for name in LATENCY_LIMITS}
        document = scenario_with_deployments(
            model=sent["model"],
            profiles=sent["profiles"],
            limits=limits,
            scenario=sent.get("scenario", ""),
            trace=sent.get("trace", ""),
        )
        return Response({"document": document})
