"""What the OpenAPI document says of each endpoint, one decorator per operation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import (
    OpenApiExample,
    OpenApiParameter,
    OpenApiResponse,
    extend_schema,
    extend_schema_view,
)

from planner.api.base import KEY_HEADER
from planner.api.errors import MEDIA_TYPE, TITLES
from planner.api.serializers import accounts, options, runs, scenarios, traces
from planner.exports import PARQUET

F = TypeVar("F", bound=Callable[..., Any])

YAML = "application/yaml"
CSV = "text/csv"
REASONS = TITLES | {
    409: "Not possible at this stage, or no plan is feasible",
    412: "Somebody else changed it since it was read",
    422: "The file or scenario is not valid, or the idempotency key was used for another request",
}

KEY = OpenApiParameter(
    KEY_HEADER,
    str,
    OpenApiParameter.HEADER,
    description="A name of your choice for this request, at most 120 characters. Sent again with "
    "the same request it gives back the first run; with another request it is refused (422).",
)
IF_MATCH = OpenApiParameter(
    "If-Match",
    str,
    OpenApiParameter.HEADER,
    description="ETag of the state you changed; if it is no longer the state, nothing is saved "
    "(412). Left out, the last to save wins.",
)
IF_NONE_MATCH = OpenApiParameter(
    "If-None-Match",
    str,
    OpenApiParameter.HEADER,
    description="ETag of what you have; 304 without a body if it is still so.",
)
ETAG = OpenApiParameter(
    "ETag", str, OpenApiParameter.HEADER, response=[200], description="Names this state."
)
LOCATION = OpenApiParameter(
    "Location",
    OpenApiTypes.URI,
    OpenApiParameter.HEADER,
    response=[200, 201, 202],
    description="The run to poll, or what was made.",
)

DOCUMENT = """\
version: 1
name: Chat in one region
models: [llama-3.1-8b]
profiles:
  - {model: llama-3.1-8b, gpu: A100-80GB, tp: 2}
regions:
  - {name: us-east, like: us-east-1, capacity: {A100-80GB: 64}}
tiers:
  - {name: chat, ttft_ms: 1000, tbt_ms: 200}
traffic:
  sources:
    - {trace: azure2023_conv, model: llama-3.1-8b}
"""


def answers(success: dict[Any, Any], *problems: int) -> dict[Any, Any]:
    """Responses of an operation: its own, then the problems it may answer with."""
    known = {
        (code, MEDIA_TYPE): OpenApiResponse(runs.Problem, REASONS[code])
        for code in sorted({401, 500, *problems})
    }
    return {**success, **known}


def _run_started(tag: str, summary: str, **more: Any) -> Callable[[F], F]:
    return extend_schema(
        tags=[tag],
        summary=summary,
        parameters=[KEY, LOCATION],
        responses=answers(
            {
                202: OpenApiResponse(runs.RunDetail, "Asked for; poll the run in Location."),
                200: OpenApiResponse(
                    runs.RunDetail, "This key was used before, and that run is over."
                ),
            },
            400, 403, 404, 413, 415, 422,
        ),
        **more,
    )  # fmt: skip


def _verb(request: Any, summary: str, **values: Any) -> Any:
    """A class decorator for the views of /forecast/ to /compare/."""
    examples = [
        OpenApiExample(
            "A kept scenario", {"scenario": "Chat in one region", **values}, request_only=True
        ),
        OpenApiExample(
            "A scenario for this run only", {"document": DOCUMENT, **values}, request_only=True
        ),
    ]
    return extend_schema_view(
        post=_run_started("work", summary, request=request, examples=examples)
    )


login = extend_schema(
    tags=["account"],
    summary="Log in: a token for your name and password",
    request={
        "application/json": accounts.Login,
        "application/x-www-form-urlencoded": accounts.Login,
    },
    responses=answers({200: accounts.TokenGiven}, 400, 401, 429),
    auth=[],
    examples=[
        OpenApiExample(
            "Log in", {"username": "demo", "password": "your password"}, request_only=True
        )
    ],
)
token_delete = extend_schema(
    tags=["account"],
    summary="Take back your token",
    responses=answers({204: OpenApiResponse(description="It no longer works.")}),
)
me = extend_schema(
    tags=["account"],
    summary="Who you are and what you may do",
    responses=answers({200: accounts.Me}),
)

upload = extend_schema(
    tags=["traces"],
    summary="Upload a trace or demand file",
    description="The file is read in the background: poll the run in Location. A file that is "
    "there already, read in the same way, is recognised and answered with 200.",
    request={"multipart/form-data": options.UploadRequest},
    parameters=[KEY, LOCATION],
    responses=answers(
        {
            202: OpenApiResponse(traces.UploadDone, "Being read."),
            200: OpenApiResponse(traces.UploadDone, "Known and ready."),
        },
        400, 403, 413, 415, 422,
    ),
)  # fmt: skip
trace_list = extend_schema(
    tags=["traces"], summary="Traces", responses=answers({200: traces.TraceItem(many=True)}, 400)
)
trace_get = extend_schema(
    tags=["traces"],
    summary="One trace with the report of its reading",
    description="By name or id.",
    parameters=[IF_NONE_MATCH, ETAG],
    responses=answers({200: traces.TraceDetail, 304: None}, 404),
)
trace_delete = extend_schema(
    tags=["traces"],
    summary="Remove a trace",
    description="Refused while a scenario draws on it or it is being read.",
    responses=answers({204: None}, 403, 404, 409),
)
trace_demand = extend_schema(
    tags=["traces"],
    summary="Demand of a trace per bin, by model, region and tier",
    parameters=[traces.DemandAsked, IF_NONE_MATCH, ETAG],
    responses=answers({200: traces.Demand, 304: None}, 400, 404, 409),
)

scenario_list = extend_schema(
    tags=["scenarios"],
    summary="Scenarios",
    responses=answers({200: scenarios.ScenarioItem(many=True)}, 400),
)
_document = {"application/json": scenarios.DocumentRequest, YAML: str, "text/yaml": str}
_example = OpenApiExample("A scenario file", DOCUMENT, request_only=True, media_type=YAML)
scenario_post = extend_schema(
    tags=["scenarios"],
    summary="Keep a new scenario",
    request=_document,
    parameters=[LOCATION],
    responses=answers({201: scenarios.ScenarioDetail}, 400, 403, 413, 415, 422),
    examples=[_example],
)
_scenario = {(200, "application/json"): scenarios.ScenarioDetail, (200, YAML): str}
scenario_get = extend_schema(
    tags=["scenarios"],
    summary="One scenario, or its file",
    description="By id or name. `Accept: application/yaml` gives the file as it was written.",
    parameters=[IF_NONE_MATCH, ETAG],
    responses=answers({**_scenario, 304: None}, 404),
)
scenario_put = extend_schema(
    tags=["scenarios"],
    summary="Replace a scenario",
    request=_document,
    parameters=[IF_MATCH, ETAG],
    responses=answers(_scenario, 400, 403, 404, 412, 413, 415, 422),
    examples=[_example],
)
scenario_patch = extend_schema(
    tags=["scenarios"],
    summary="Change values of a scenario, its comments kept",
    request={"application/json": scenarios.ChangeRequest, YAML: str, "text/yaml": str},
    parameters=[IF_MATCH, ETAG],
    responses=answers(_scenario, 400, 403, 404, 412, 413, 415, 422),
    examples=[
        OpenApiExample(
            "Plan every quarter of an hour",
            {"changes": {"horizon.period_s": 900}},
            request_only=True,
            media_type="application/json",
        )
    ],
)
scenario_delete = extend_schema(
    tags=["scenarios"],
    summary="Remove a scenario",
    description="Its runs keep the scenario as they were given it.",
    responses=answers({204: None}, 403, 404, 409),
)
scenario_run = _run_started(
    "scenarios",
    "Start a run of a scenario as it is now",
    request=options.RunRequest,
    examples=[
        OpenApiExample("Compare", {"kind": "compare"}, request_only=True),
        OpenApiExample(
            "Simulate", {"kind": "simulate", "options": {"policy": "lt-i"}}, request_only=True
        ),
    ],
)

forecast = _verb(options.ForecastRequest, "Forecast demand", method="arima")
plan = _verb(options.PlanRequest, "Plan replicas", solver="highs", gap=0.001)
simulate = _verb(options.SimulateRequest, "Replay the traffic under one policy", policy="lt-i")
compare = _verb(options.CompareRequest, "Plan, replay and compare policies")
provision = _verb(
    options.ProvisionRequest, "Provision by operators, layers and whole replicas", level="all"
)
size = _verb(options.SizeRequest, "Size one replica of each model and GPU type", isl=3000, osl=350)
pd_ratio = _verb(
    options.PdRatioRequest,
    "Find the ratio of prefill to decode instances of a service",
    service="llama-3.1-70b",
    instances=16,
)
place = _verb(
    options.PlaceRequest, "Place instances in the network, with and without its topology", grow=0.5
)
pareto = _verb(options.ParetoRequest, "Plans between two objectives", of="cost,carbon", points=9)

run_list = extend_schema(
    tags=["runs"], summary="Runs", responses=answers({200: runs.RunItem(many=True)}, 400)
)
run_get = extend_schema(
    tags=["runs"],
    summary="One run: poll it until its state is completed, failed, errored or cancelled",
    parameters=[IF_NONE_MATCH, ETAG],
    responses=answers({200: runs.RunDetail, 304: None}, 404),
)
run_delete = extend_schema(
    tags=["runs"],
    summary="Remove a run that is over, and its results",
    responses=answers({204: None}, 403, 404, 409),
)
run_cancel = extend_schema(
    tags=["runs"],
    summary="Stop a run",
    description="At once if it waits, else at its next report of progress.",
    request=None,
    responses=answers({200: runs.RunDetail}, 403, 404, 409),
)
run_results = extend_schema(
    tags=["runs"],
    summary="Figures of a completed run",
    description="The same keys as the command of the run's kind prints with `--json`.",
    parameters=[IF_NONE_MATCH, ETAG],
    responses=answers({200: OpenApiTypes.OBJECT, 304: None}, 404, 409),
)
run_savings = extend_schema(
    tags=["runs"],
    summary="Savings of each policy against a baseline",
    description="By policy and measure (gpu_hours, cost_usd, energy_kwh, carbon_kg): `value`, "
    "`baseline`, `saved` and `fraction` of the baseline; a negative saving is a loss.",
    parameters=[runs.SavingsAsked, IF_NONE_MATCH, ETAG],
    responses=answers({200: OpenApiTypes.OBJECT, 304: None}, 400, 404, 409),
)
run_sensitivity = extend_schema(
    tags=["runs"],
    summary="How the operators of a provisioning run respond to length, batch, rate and GPU share",
    description="Of one pool and phase, batch 1 and one GPU where nothing else is said; arrays by "
    "operator. Worked out on the first request (seconds) and kept.",
    parameters=[runs.PoolAsked, IF_NONE_MATCH, ETAG],
    responses=answers({200: OpenApiTypes.OBJECT, 304: None}, 400, 404, 409),
)
run_sweep = extend_schema(
    tags=["runs"],
    summary="Savings of operators against whole replicas by length, rate or size of the model",
    description="`by` is length, rate or size. Rows with `model_gpus`, `operator_gpus` and the "
    "shares saved, `gpus`, `energy` and `memory`; without them where no plan keeps the limit.",
    parameters=[runs.PoolAsked, IF_NONE_MATCH, ETAG],
    responses=answers({200: OpenApiTypes.OBJECT, 304: None}, 400, 404, 409),
)
run_tables = extend_schema(
    tags=["runs"],
    summary="Names of the tables of a completed run",
    responses=answers({200: runs.TableNames}, 404, 409),
)
run_table = extend_schema(
    operation_id="runs_table_retrieve",
    tags=["runs"],
    summary="Rows of a table, as JSON, CSV or Parquet",
    description="`Accept: text/csv` or `?format=csv` gives CSV, `?format=parquet` the whole table "
    "as a Parquet file: the way for `requests`, which has a row per request of the replay.",
    parameters=[runs.RowsAsked, IF_NONE_MATCH, ETAG],
    responses=answers(
        {
            (200, "application/json"): runs.TableRows,
            (200, CSV): str,
            (200, PARQUET): OpenApiTypes.BINARY,
            304: None,
        },
        400,
        404,
        409,
    ),
)
