"""What the OpenAPI document says of hardware, profiles, calibration and estimates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from drf_spectacular.utils import OpenApiExample, OpenApiResponse, extend_schema

from planner.api.schema import CSV, ETAG, IF_MATCH, IF_NONE_MATCH, KEY, LOCATION, answers
from planner.api.serializers import estimates, hardware, profiles

F = TypeVar("F", bound=Callable[..., Any])

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


def _list(tag: str, summary: str, item: Any, asked: Any = hardware.Search) -> Callable[[F], F]:
    return extend_schema(
        tags=[tag],
        summary=summary,
        operation_id=f"{tag}_{summary.split()[0].lower()}_list",
        parameters=[asked, IF_NONE_MATCH, ETAG],
        responses=answers({200: item(many=True), 304: None}, 400, 404),
    )


def _get(tag: str, summary: str, item: Any, *parameters: Any, **more: Any) -> Callable[[F], F]:
    return extend_schema(
        tags=[tag],
        summary=summary,
        parameters=[*parameters, IF_NONE_MATCH, ETAG],
        responses=answers({200: item, 304: None}, 400, 404),
        **more,
    )


def _delete(tag: str, summary: str, description: str) -> Callable[[F], F]:
    return extend_schema(
        tags=[tag],
        summary=summary,
        description=description,
        responses=answers({204: None}, 403, 404, 409),
    )


def _save(
    tag: str, summary: str, request: Any, item: Any, example: Any, *, new: bool
) -> Callable[[F], F]:
    examples = [OpenApiExample(name, body, request_only=True) for name, body in example.items()]
    return extend_schema(
        tags=[tag],
        summary=summary,
        request=request,
        parameters=[LOCATION] if new else [IF_MATCH, ETAG],
        responses=answers({201 if new else 200: item}, 400, 403, 404, 409, 412, 413, 415, 422),
        examples=examples,
    )


def _make(summary: str, request: Any, item: Any, example: Any, **more: Any) -> Callable[[F], F]:
    """What makes a version of a profile at once; safe to repeat with a key."""
    return extend_schema(
        tags=["profiles"],
        summary=summary,
        request=request,
        parameters=[KEY, LOCATION],
        responses=answers({201: item}, 400, 403, 404, 409, 413, 415, 422),
        examples=[OpenApiExample("For instance", example, request_only=True)] if example else [],
        **more,
    )


gpu_list = _list("hardware", "GPUs: built-in types and your own", hardware.GpuItem)
gpu_post = _save("hardware", "Describe a GPU of your own", hardware.GpuRequest, hardware.GpuItem,
                 {"A GPU": GPU}, new=True)  # fmt: skip
gpu_get = _get("hardware", "One GPU type with the source of each figure", hardware.GpuItem)
gpu_put = _save("hardware", "Replace a GPU of your own", hardware.GpuRequest, hardware.GpuItem,
                {"A GPU": GPU}, new=False)  # fmt: skip
gpu_delete = _delete("hardware", "Remove a GPU of your own", "Refused while something names it.")
_models = {"By its memory": MODEL, "By its config.json": CONFIG}
model_list = _list("hardware", "Models and what they take of a GPU's memory", hardware.ModelItem,
                   hardware.ModelSearch)  # fmt: skip
model_post = _save("hardware", "Describe a model of your own", hardware.ModelRequest,
                   hardware.ModelDetail, _models, new=True)  # fmt: skip
model_get = _get("hardware", "One model, its shape and where it fits", hardware.ModelDetail)
model_put = _save("hardware", "Replace a model of your own", hardware.ModelRequest,
                  hardware.ModelDetail, _models, new=False)  # fmt: skip
model_delete = _delete("hardware", "Remove a model of your own",
                       "Refused while something names it.")  # fmt: skip
hardware_file = extend_schema(
    tags=["hardware"],
    summary="GPUs and models from a file",
    description="YAML with `gpus` and `models`, or one `config.json`; all is kept or nothing.",
    request={"multipart/form-data": hardware.FileRequest},
    responses=answers({201: hardware.HardwareAdded}, 400, 403, 412, 413, 415, 422),
)
price_list = _list("hardware", "Prices by provider, region and GPU", hardware.PriceItem)
carbon_list = _list("hardware", "Carbon of the grid and PUE by region", hardware.CarbonItem)

profile_list = _list("profiles", "Profiles: built-in ones and those fitted here",
                     profiles.ProfileItem)  # fmt: skip
profile_post = _make("Make an operator or roofline profile", profiles.ComputeRequest,
                     profiles.ProfileDetail, COMPUTED)  # fmt: skip
profile_get = _get("profiles", "One profile, the newest version or the one asked for",
                   profiles.ProfileDetail, profiles.VersionAsked)  # fmt: skip
profile_delete = _delete("profiles", "Remove a profile with all its versions",
                         "Refused while a scenario or a going run rests on it.")  # fmt: skip
profile_versions = _get("profiles", "Versions of a profile, newest first",
                        profiles.VersionItem(many=True),
                        operation_id="profiles_versions_list")  # fmt: skip
profile_checks = _get("profiles", "What a profile was checked against, and its errors",
                      profiles.Checks, profiles.VersionAsked)  # fmt: skip
profile_residuals = extend_schema(
    tags=["profiles"],
    summary="Measured beside predicted, row by row",
    description="`Accept: text/csv` or `?format=csv` gives CSV. Empty for built-in profiles.",
    parameters=[profiles.ResidualsAsked, IF_NONE_MATCH, ETAG],
    responses=answers(
        {(200, "application/json"): profiles.Residuals, (200, CSV): str, 304: None}, 400, 404
    ),
)
calibration_list = extend_schema(
    tags=["profiles"],
    summary="Uploaded measurements",
    responses=answers({200: profiles.CalibrationItem(many=True)}, 400),
)
calibration_post = extend_schema(
    tags=["profiles"],
    summary="Upload measurements",
    description="JSON of vLLM's benchmark or of GuideLLM, a CSV of rows, or measured kernels.",
    request={"multipart/form-data": profiles.MeasurementsRequest},
    parameters=[KEY, LOCATION],
    responses=answers({201: profiles.CalibrationDetail}, 400, 403, 413, 415, 422),
)
calibration_get = _get("profiles", "Uploaded measurements with their first rows",
                       profiles.CalibrationDetail)  # fmt: skip
calibration_delete = _delete("profiles", "Remove uploaded measurements",
                             "Profiles that were fitted to them stay.")  # fmt: skip
calibration_fit = _make("Fit a profile to uploaded measurements", profiles.FitRequest,
                        profiles.ProfileDetail, FIT)  # fmt: skip
calibration_compare = extend_schema(
    tags=["profiles"],
    summary="Compare a profile with uploaded measurements",
    description="Nothing is changed.",
    request=profiles.CompareAsked,
    responses=answers({200: profiles.Compared}, 400, 404, 413, 415, 422),
    examples=[
        OpenApiExample("For instance", {"profile": "chat on our H100", "rows_gpu": "H100",
                       "rows_model": "llama"}, request_only=True)
    ],
)  # fmt: skip
observations = _make(
    "Tune a profile by observations of a running service",
    profiles.ObservationsRequest,
    profiles.ProfileDetail,
    OBSERVED,
    description="An extended Kalman filter moves the parameters of a linear profile; the outcome "
    "is its next version.",
)

estimate = extend_schema(
    tags=["estimates"],
    summary="Estimate one deployment",
    description="TTFT, TBT, throughput, power, memory in steady state, and the error to expect.",
    request=estimates.EstimateRequest,
    responses=answers({200: estimates.EstimateAnswer}, 400, 413, 415, 422),
    examples=[OpenApiExample("One instance", DEPLOYMENT, request_only=True)],
)
estimate_rows = extend_schema(
    tags=["estimates"],
    summary="Estimate many deployments",
    description="JSON or CSV in, JSON or (`Accept: text/csv`) CSV out, in the same order.",
    request={"application/json": estimates.RowsRequest, CSV: str},
    responses=answers(
        {
            (200, "application/json"): OpenApiResponse(estimates.EstimateRows, "The answers."),
            (200, CSV): str,
        },
        400, 413, 415, 422,
    ),
    examples=[
        OpenApiExample("Two", {"rows": [DEPLOYMENT, DEPLOYMENT | {"concurrency": 64}]},
                       request_only=True, media_type="application/json")
    ],
)  # fmt: skip
