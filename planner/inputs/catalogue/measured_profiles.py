"""Load measured profiles of the catalogue as types of the core."""

import math
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

from planner.inputs.catalogue.fact_types import ProfileFit, ProfileKey
from planner.inputs.catalogue.files import read
from planner.inputs.catalogue.hardware import gpus, models
from simulation.performance.linear import LinearProfile
from simulation.performance.memory import kv_capacity_tokens
from simulation.performance.profile import Check
from simulation.performance.specs import Phase, Provenance

# name in sources, identifier
ENGINES = (("TensorRT-LLM", "trtllm"), ("vLLM", "vllm"), ("SGLang", "sglang"))
COEFFICIENTS = ("alpha", "beta", "gamma", "delta")


@cache
def profiles() -> Mapping[ProfileKey, LinearProfile]:
    """Return linear profiles by model, GPU type and GPUs per instance, built once.

    Each includes the errors of its fit.
    """
    entries = read("profiles")["profiles"]
    return MappingProxyType({_key(entry): _profile(entry) for entry in entries})


def _profile(entry: Mapping[str, Any]) -> LinearProfile:
    """Return the linear profile of an entry of ``profiles.yaml``, in seconds."""
    model, gpu, tp = _key(entry)
    limits = read("profiles")["limits"]
    return LinearProfile(
        model=model,
        gpu=gpu,
        tp=tp,
        **{f"{name}_s": entry[f"{name}_ms"] / 1000 for name in COEFFICIENTS},
        max_batch=limits["max_batch"],
        max_batch_tokens=limits["max_batch_tokens"],
        kv_capacity_tokens=kv_capacity_tokens(models()[model], gpus()[gpu], tp),
        provenance=_provenance(entry),
        checks=tuple(Check(**check) for check in entry["checks"]),
        fitted_decodes=entry["fitted_decodes"],
        fitted_prefill_tokens=entry["fitted_prefill_tokens"],
        fitted_context=entry.get("fitted_context", math.inf),
        spread=entry.get("spread", 0.0),
        phases=(Phase(_provenance(entry["prefill"])), Phase(_provenance(entry["decode"]))),
    )


def fits() -> dict[ProfileKey, ProfileFit]:
    """Return the source of each number of a built-in profile, by the keys of ``profiles``."""
    document = read("profiles")
    limits = _provenance(document["limits"])
    return {
        _key(entry): ProfileFit(
            decode=_provenance(entry["decode"]),
            prefill=_provenance(entry["prefill"]),
            limits=limits,
            intervals={
                name.removesuffix("_ms"): (low / 1000, high / 1000)
                for name, (low, high) in entry["intervals"].items()
            },
        )
        for entry in document["profiles"]
    }


def engine_of(source: Provenance) -> str:
    """Return the engine on which a profile was measured, or "" if its source does not name one."""
    return next((name for words, name in ENGINES if words in source.source), "")


def engine_title(engine: str) -> str:
    """Return an engine's proper name."""
    return next(words for words, name in ENGINES if name == engine)


def _key(entry: Mapping[str, Any]) -> ProfileKey:
    return entry["model"], entry["gpu"], entry["tp"]


def _provenance(entry: Mapping[str, Any]) -> Provenance:
    return Provenance(kind=entry["kind"], source=entry["source"])
