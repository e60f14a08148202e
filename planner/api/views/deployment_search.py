"""Search the cheapest deployments of a model."""

from __future__ import annotations

from rest_framework.request import Request
from rest_framework.response import Response

from planner.api.base import ApiView, valid
from planner.api.examples import CHOSEN, CONFIGURED
from planner.api.schema import operation
from planner.api.serializers.deployment_search import (
    ConfigureAnswer,
    ConfigureRequest,
    IntoScenario,
    ScenarioText,
)
from planner.domain.deployment_search.query import DeploymentQuery
from planner.services.deployment_search import scenario_with_deployments, search_deployments
from planner.services.estimates import MeasurementSource


class ConfigureView(ApiView):
    @operation(
        {200: ConfigureAnswer}, 400, 413, 415, 422,
        request=ConfigureRequest, examples={"One model on two GPU types": CONFIGURED},
    )  # fmt: skip
    def post(self, request: Request) -> Response:
        """Search the deployments of a model.

        The search covers GPU types, arrangements, precisions and engines, aggregated and
        disaggregated. It ranks by cost within the limits, and simulates the best. It takes seconds.
        """
        sent = valid(ConfigureRequest(data=request.data))
        for name in ("gpus", "engines"):
            if name in sent:
                sent[name] = tuple(sent[name])
        # A measured row is of the searched model unless it names another.
        rows = [{"model": sent["model"], **row} for row in sent.pop("measured", ())]
        measured = MeasurementSource(rows, use_stored=sent.pop("kept"))
        return Response(search_deployments(DeploymentQuery(**sent), measured=measured))


class ConfigureScenarioView(ApiView):
    @operation(
        {200: ScenarioText}, 400, 404, 409, 413, 415, 422,
        request=IntoScenario, examples={"Into a kept scenario": CHOSEN},
    )  # fmt: skip
    def post(self, request: Request) -> Response:
        """Put chosen deployments into a scenario.

        The answer is the document of a stored scenario, or of a draft from a trace, with the
        deployments. Nothing is stored.
        """
        sent = valid(IntoScenario(data=request.data))
        limits = {name: sent.get(name) for name in ("ttft_ms", "tbt_ms")}
        document = scenario_with_deployments(
            model=sent["model"],
            profiles=sent["profiles"],
            limits=limits,
            scenario=sent.get("scenario", ""),
            trace=sent.get("trace", ""),
        )
        return Response({"document": document})
