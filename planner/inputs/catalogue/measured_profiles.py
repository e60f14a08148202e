"""Load measured profiles of the catalogue as types of the core."""

import math
from functools import cache
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


def profiles() -> dict[ProfileKey, LinearProfile]:
    """Return linear profiles by model, GPU type and GPUs per instance, built once.

    Each includes the errors of its fit.
    """
    return dict(_profiles())


@cache
def _profiles() -> dict[ProfileKey, LinearProfile]:
    """Build the linear profiles of ``profiles.yaml``, in seconds, by model, GPU type and TP."""
    document, known_models, known_gpus = read("profiles"), models(), gpus()
    limits = document["limits"]
    return {
        _key(entry): LinearProfile(
            model=entry["model"],
            gpu=entry["gpu"],
            tp=entry["tp"],
            alpha_s=entry["alpha_ms"] / 1000,
            beta_s=entry["beta_ms"] / 1000,
            gamma_s=entry["gamma_ms"] / 1000,
            delta_s=entry["delta_ms"] / 1000,
            max_batch=limits["max_batch"],
            max_batch_tokens=limits["max_batch_tokens"],
            kv_capacity_tokens=kv_capacity_tokens(
                known_models[entry["model"]], known_gpus[entry["gpu"]], entry["tp"]
            ),
            provenance=_provenance(entry),
            checks=tuple(Check(**check) for check in entry["checks"]),
            fitted_decodes=entry["fitted_decodes"],
            fitted_prefill_tokens=entry["fitted_prefill_tokens"],
            fitted_context=entry.get("fitted_context", math.inf),
            spread=entry.get("spread", 0.0),
            phases=(Phase(_provenance(entry["prefill"])), Phase(_provenance(entry["decode"]))),
        )
        for entry in document["profiles"]
    }


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


def _key(entry: dict[str, Any]) -> ProfileKey:
    return entry["model"], entry["gpu"], entry["tp"]


def _provenance(entry: dict[str, Any]) -> Provenance:
    return Provenance(kind=entry["kind"], source=entry["source"])
