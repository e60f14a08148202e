"""Search the cheapest deployments of a model."""

from typing import Any

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from planner.api.base import ApiView, valid
from planner.api.examples import CHOSEN, CONFIGURED
from planner.api.schema import operation
from planner.api.serializers.strict_fields import FiniteField, StrictSerializer
from planner.domain.deployment_search.query import (
    MOST_MS,
    MOST_RPS,
    MOST_TOKENS,
    MOST_TOP,
    PERCENTILE,
    TOP,
    DeploymentQuery,
)
from planner.domain.deployment_search.search import DeploymentSearchResult
from planner.domain.serialise import as_json
from planner.inputs.estimates.measured_corrections import MOST_ROWS
from planner.services.deployment_search import scenario_with_deployments, search_deployments
from planner.services.estimates import MeasurementSource
from simulation.performance.estimate.calibration import ENGINES
from simulation.performance.specs import BYTES


class ConfigureRequest(StrictSerializer):
    """The search for a deployment, as in `bin/manage configure`."""

    model = serializers.CharField(max_length=200, help_text="Model of the catalogue, or your own.")
    isl = serializers.IntegerField(min_value=1, max_value=MOST_TOKENS, help_text="Input tokens.")
    osl = serializers.IntegerField(min_value=1, max_value=MOST_TOKENS, help_text="Output tokens.")
    ttft_ms = FiniteField(max_value=MOST_MS, required=False, allow_null=True)
    tbt_ms = FiniteField(max_value=MOST_MS, required=False, allow_null=True)
    percentile = FiniteField(
        min_value=50,
        max_value=99.99,
        default=PERCENTILE,
        help_text="Share of requests within the limits, %.",
    )
    rps = FiniteField(
        max_value=MOST_RPS, required=False, allow_null=True,
        help_text="Requests/s of all replicas.",
    )  # fmt: skip
    gpus = serializers.ListField(
        child=serializers.CharField(max_length=80), required=False, max_length=100,
        help_text="GPU types. Default: all.",
    )  # fmt: skip
    engines = serializers.ListField(
        child=serializers.ChoiceField(ENGINES), required=False, help_text="Engines. Default: all."
    )
    precisions = serializers.ListField(
        child=serializers.ChoiceField(list(BYTES)), required=False,
        help_text="Precisions of weights. Default: all.",
    )  # fmt: skip
    prices = serializers.DictField(
        child=FiniteField(), required=False,
        help_text="USD per GPU-hour by GPU type. Default: median on-demand price.",
    )  # fmt: skip
    top = serializers.IntegerField(min_value=1, max_value=MOST_TOP, default=TOP)
    measured = serializers.ListField(
        child=serializers.DictField(), required=False, max_length=MOST_ROWS,
        help_text=(
                "Your measured rows, in the format of /estimates/. They correct speeds and "
                "errors."
            ),
    )  # fmt: skip
    kept = serializers.BooleanField(
        required=False, default=True, help_text="Also use uploaded measurements."
    )


class IntoScenario(StrictSerializer):
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
    ttft_ms = FiniteField(max_value=MOST_MS, required=False, allow_null=True)
    tbt_ms = FiniteField(max_value=MOST_MS, required=False, allow_null=True)


class ScenarioText(serializers.Serializer[Any]):
    document = serializers.CharField(
        help_text="Scenario as YAML. Not stored: POST it to /scenarios/."
    )


class ConfigureView(ApiView):
    @operation(
        {200: DeploymentSearchResult}, 400, 413, 415, 422,
        request=ConfigureRequest, examples={"One model on two GPU types": CONFIGURED},
    )  # fmt: skip
    def post(self, request: Request) -> Response:
        """Search the deployments of a model.

        The search covers GPU types, arrangements, precisions and engines, aggregated and
        disaggregated. It ranks by cost within the limits, and simulates the best. It takes seconds.
        """
        sent = valid(ConfigureRequest(data=request.data))
        for name in ("gpus", "engines", "precisions"):
            if name in sent:
                sent[name] = tuple(sent[name])
        # A measured row is of the searched model unless it names another.
        rows = [{"model": sent["model"], **row} for row in sent.pop("measured", ())]
        measured = MeasurementSource(rows, use_stored=sent.pop("kept"))
        return Response(as_json(search_deployments(DeploymentQuery(**sent), measured=measured)))


class ConfigureScenarioView(ApiView):
    @operation(
        {200: ScenarioText}, 400, 404, 409, 413, 415, 422,
        request=IntoScenario, examples={"Into a stored scenario": CHOSEN},
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
