"""Describe the views for the OpenAPI document.

The first line of a method's docstring is the summary of the operation, the rest its description.
The module of the view is the tag. ``operation`` adds parameters and responses.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any, TypeVar, get_origin

from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import (
    OpenApiExample,
    OpenApiParameter,
    OpenApiResponse,
    extend_schema,
    extend_schema_view,
)

from planner.api.base import KEY_HEADER, WORKSPACE_HEADER
from planner.api.errors import MEDIA_TYPE, TITLES
from planner.api.results import schema_of
from planner.api.serializers import options, runs
from planner.api.serializers.fields import Values
from planner.models import Workspace
from planner.models.workspace import use_workspace

F = TypeVar("F", bound=Callable[..., Any])

JSON, YAML, CSV = "application/json", "application/yaml", "text/csv"
# Tags of modules that are not named like their tag.
TAGS = {"accounts": "account", "actions": "work", "whatif": "runs"}
REASONS = TITLES | {
    409: "Not possible at this stage, or no plan is feasible",
    412: "Another person changed it since it was read",
    422: "The file or scenario is not valid, or the idempotency key was used for another request",
    507: "The disk is full",
}

REFUSALS = (400, 401, 403, 404, 406, 409, 429, 500, 503)  # statuses of any operation
CHANGE_REFUSALS = (*REFUSALS, 412, 413, 415, 422, 507)


def _header(name: str, description: str, kind: Any = str, **more: Any) -> OpenApiParameter:
    """Return the description of a header; with ``response``, of the responses with these codes."""
    return OpenApiParameter(name, kind, OpenApiParameter.HEADER, description=description, **more)


KEY = _header(
    KEY_HEADER,
    "A name of your choice for this request, at most 120 characters. The same key and request "
    "return the first run. Another request with this key is refused (422).",
)
WORKSPACE = _header(
    WORKSPACE_HEADER,
    "Slug of the workspace (404 if you are not a member). Default: the token's, or the last that "
    "the session entered. A token works only in its own workspace.",
)
IF_MATCH = _header(
    "If-Match",
    "ETag of the state you changed; if the state is newer, nothing is saved (412). Without it, the "
    "last save wins.",
)
IF_NONE_MATCH = _header("If-None-Match", "ETag of your copy; 304 without a body if it is current.")
ETAG = _header("ETag", "Names this state.", response=[200])
LOCATION = _header(
    "Location", "The run to poll, or the new object.", OpenApiTypes.URI, response=[200, 201, 202]
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
# By kind of run: summary of the operation that starts one, and options of an example.
RUN_STARTS: dict[str, tuple[str, Values]] = {
    "forecast": ("Forecast demand", {"method": "arima"}),
    "plan": ("Plan replicas", {"solver": "highs", "gap": 0.001}),
    "simulate": ("Replay the traffic under one policy", {"policy": "lt-i"}),
    "compare": ("Plan, replay and compare policies", {}),
    "provision": ("Provision by operators, layers and whole replicas", {"level": "all"}),
    "size": ("Size one replica of each model and GPU type", {"isl": 3000, "osl": 350}),
    "pd-ratio": (
        "Find the ratio of prefill to decode replicas of a service",
        {"service": "llama-3.1-70b", "instances": 16},
    ),
    "place": ("Place replicas in the network, with and without its topology", {"grow": 0.5}),
    "share": ("Let models share GPUs, by memory or by time", {"by": "best"}),
    "backtest": (
        "Compare forecasters by the cost of their plans, at equal attainment",
        {"methods": ["arima", "last-value"], "days": 2},
    ),
    "outlook": ("Cost by month to a year ahead, and commitments", {"horizon": "year"}),
    "pareto": ("Trade-off of two objectives", {"of": "cost,carbon", "points": 9}),
}
GPU = {
    "name": "X100", "memory_gb": 96, "idle_w": 70, "prefill_w": 700, "decode_w": 450,
    "bandwidth_gb_s": 3350, "bf16_tflops": 990, "kind": "published", "source": "its data sheet",
}  # fmt: skip
MODEL = {
    "name": "my-model", "weight_gb": 16.1, "kv_bytes_per_token": 131072, "max_context": 32768,
    "source": "own count",
}  # fmt: skip
CONFIG = {
    "name": "my-llama", "kind": "published", "source": "its config.json", "config": {
        "model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "vocab_size": 128256,
        "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336,
        "max_position_embeddings": 131072,
    },
}  # fmt: skip
FIT = {
    "name": "chat on our H100", "kind": "linear", "model": "llama-3.1-8b", "gpu": "H100-SXM",
    "tp": 1, "rows_model": "meta-llama/Llama-3.1-8B-Instruct", "rows_gpu": "H100",
}  # fmt: skip
COMPUTED = {
    "name": "8b on H200 by its peaks", "kind": "roofline", "model": "llama-3.1-8b", "gpu": "H200",
    "tp": 1,
}  # fmt: skip
OBSERVED = {
    "profile": "chat on our H100",
    "observations": [
        {"at_s": 0, "decodes": 32, "prefill_tokens": 0, "seconds": 0.021},
        {"at_s": 60, "decodes": 48, "prefill_tokens": 0, "seconds": 0.024},
    ],
}
DEPLOYMENT = {
    "model": "meta-llama/Llama-3.1-8B-Instruct", "gpu": "H100-SXM", "tp": 1, "engine": "vllm",
    "isl": 1024, "osl": 256, "concurrency": 32,
}  # fmt: skip
COMPARED = {"profile": "chat on our H100", "rows_gpu": "H100", "rows_model": "llama"}
CONFIGURED = {
    "model": "llama-3.1-8b", "isl": 1024, "osl": 128, "ttft_ms": 1000, "tbt_ms": 50,
    "gpus": ["A100-80GB"], "top": 2,
}  # fmt: skip
CHOSEN = {
    "model": "llama-3.1-8b", "scenario": "Chat in one region",
    "profiles": [{"model": "llama-3.1-8b", "gpu": "H100-SXM", "kind": "roofline", "tp": 2}],
}  # fmt: skip


class Generator(SchemaGenerator):
    """Describe the views inside an empty workspace, because views need one to list their rows."""

    def get_schema(self, *args: Any, **kwargs: Any) -> Any:
        with use_workspace(Workspace(pk=0)):
            return super().get_schema(*args, **kwargs)  # type: ignore[no-untyped-call]


class ViewSchema(AutoSchema):
    """The summary, the description and the tag of an operation, taken from its view."""

    def _summary_and_description(self) -> tuple[str, str]:
        """Return the first line and the rest of the docstring of the method, else of its view."""
        method = getattr(self.view, self.method.lower())
        docstring = inspect.getdoc(method) or inspect.getdoc(self.view) or ""
        summary, _, description = docstring.partition("\n\n")
        return summary.rstrip("."), " ".join(description.split())

    def get_summary(self) -> str:
        summary, _ = self._summary_and_description()
        return summary

    def get_description(self) -> str:  # type: ignore[override]  # spectacular gives both itself
        _, description = self._summary_and_description()
        return description

    def _get_response_for_code(self, serializer: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the schema of a response; also for a dataclass, or a list or union of them."""
        is_class_of_dataclass = isinstance(serializer, type) and is_dataclass(serializer)
        if is_class_of_dataclass or get_origin(serializer):
            serializer = schema_of(serializer)
        return super()._get_response_for_code(serializer, *args, **kwargs)  # type: ignore[no-untyped-call]

    def get_tags(self) -> list[str]:
        """Return the group of an operation: that of the module of its view."""
        _, _, module = type(self.view).__module__.rpartition(".")
        return [TAGS.get(module, module)]


def operation(
    success: dict[Any, Any],
    parameters: Sequence[Any] = (),
    examples: Mapping[str, Any] | None = None,
    example_type: str = JSON,
    **schema_options: Any,
) -> Callable[[F], F]:
    """Return a decorator that describes a method of a view in the OpenAPI document.

    ``success`` holds the serializers of successful responses, by status or (status, media type).
    ``examples`` are request bodies by name, of media type ``example_type``. Every GET accepts
    If-None-Match; every PUT and PATCH accepts If-Match. ``schema_options`` go to ``extend_schema``.
    """

    def describe(method: F) -> F:
        """Add the parameters and responses that all operations with this HTTP method have."""
        all_parameters, responses = [*parameters], dict(success)
        needs_login = schema_options.get("auth") != []
        if needs_login:
            all_parameters.append(WORKSPACE)
        is_get = method.__name__ == "get"
        if is_get:
            all_parameters += [IF_NONE_MATCH, ETAG]
            responses[304] = None
        if method.__name__ in ("put", "patch"):
            all_parameters += [IF_MATCH, ETAG]
        for code in REFUSALS if is_get else CHANGE_REFUSALS:
            responses[code, MEDIA_TYPE] = OpenApiResponse(runs.Problem, REASONS[code])
        bodies = [
            OpenApiExample(name, body, request_only=True, media_type=example_type)
            for name, body in (examples or {}).items()
        ]
        decorate: Callable[[F], F] = extend_schema(
            parameters=all_parameters, responses=responses, examples=bodies, **schema_options
        )
        return decorate(method)

    return describe


removal = operation({204: None})


def run_started(**more: Any) -> Callable[[F], F]:
    """Return a decorator for an operation that starts a run and accepts an idempotency key."""
    return operation(
        {
            202: OpenApiResponse(runs.RunDetail, "Queued. Poll the address in Location."),
            200: OpenApiResponse(runs.RunDetail, "This key was used before, and that run is over."),
        },
        parameters=[KEY, LOCATION],
        **more,
    )


def run_start(kind: str) -> Any:
    """Return the class decorator for the view that starts runs of a kind, such as /forecast/."""
    summary, values = RUN_STARTS[kind]
    examples = {
        "A kept scenario": {"scenario": "Chat in one region", **values},
        "A scenario for this run only": {"document": DOCUMENT, **values},
    }
    request = options.REQUESTS[kind]
    return extend_schema_view(post=run_started(summary=summary, request=request, examples=examples))
