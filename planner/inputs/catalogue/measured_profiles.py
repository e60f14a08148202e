"""Load measured profiles of the catalogue as types of the core, and find contradictory ones.

Each profile was measured by someone on a particular engine and setup. A model with less capacity on
more GPUs of one type shows other engines and setups, not an effect of the GPUs. Such profiles stay
in the catalogue, with a warning wherever they are used.
"""

import math
from collections.abc import Mapping
from functools import cache
from itertools import combinations
from types import MappingProxyType
from typing import Any

from planner.inputs.catalogue.files import read
from planner.inputs.catalogue.hardware import gpus, models
from simulation.performance.linear import LinearProfile
from simulation.performance.memory import kv_capacity_tokens
from simulation.performance.profile import Check
from simulation.performance.specs import Phase, Provenance

ENGINES = {"TensorRT-LLM": "trtllm", "vLLM": "vllm", "SGLang": "sglang"}  # proper name to key
COEFFICIENTS = ("alpha", "beta", "gamma", "delta")
CONTRADICTED = "contradicted by a neighbour"
ISL, OSL = 1155.0, 211.0  # tokens: means of Azure's conversations of 2023
ProfileKey = tuple[str, str, int]  # model, GPU type, GPUs per instance


@cache
def profiles() -> Mapping[ProfileKey, LinearProfile]:
    """Return the linear profiles, with the errors of their fits, by key; built once."""
    limits, built = read("profiles")["limits"], {}
    for entry in read("profiles")["profiles"]:
        model, gpu, tp = key = _key(entry)
        built[key] = LinearProfile(
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
    return MappingProxyType(built)


def intervals() -> dict[ProfileKey, dict[str, tuple[float, float]]]:
    """Return the 95% confidence intervals of a profile's coefficients by name, in seconds.

    Coefficients that were taken from a source without a fit are absent.
    """
    return {
        _key(entry): {
            name.removesuffix("_ms"): (low / 1000, high / 1000)
            for name, (low, high) in entry["intervals"].items()
        }
        for entry in read("profiles")["profiles"]
    }


def limits_source() -> Provenance:
    """Return the source of max_batch and max_batch_tokens of the profiles."""
    return _provenance(read("profiles")["limits"])


def engine_of(source: Provenance) -> str:
    """Return the engine on which a profile was measured, or "" if its source does not name one."""
    return next((engine for title, engine in ENGINES.items() if title in source.source), "")


def engine_title(engine: str) -> str:
    """Return an engine's proper name."""
    return next(title for title, key in ENGINES.items() if key == engine)


def _key(entry: Mapping[str, Any]) -> ProfileKey:
    return entry["model"], entry["gpu"], entry["tp"]


def _provenance(entry: Mapping[str, Any]) -> Provenance:
    return Provenance(kind=entry["kind"], source=entry["source"])


def capacity_rps(profile: LinearProfile) -> float:
    """Return the requests/s of one instance that always decodes ``max_batch`` sequences."""
    prefill_s = ISL * profile.delta_s
    decode_s = OSL * (profile.alpha_s / profile.max_batch + profile.beta_s)
    return 1.0 / (decode_s + prefill_s)


def contradictions(known: Mapping[ProfileKey, LinearProfile]) -> dict[ProfileKey, str]:
    """Return a warning for each profile that contradicts another profile, by key.

    Two profiles contradict each other if a model has less capacity on more GPUs of the same type.
    """
    sentences: dict[ProfileKey, str] = {}
    for few, many in combinations(sorted(known), 2):  # the key with fewer GPUs is the first
        (model, gpu, few_gpus), (other_model, other_gpu, many_gpus) = few, many
        on_many, on_few = capacity_rps(known[many]), capacity_rps(known[few])
        if (model, gpu) != (other_model, other_gpu) or on_many >= on_few:
            continue
        words = (
            f"{CONTRADICTED}: {model} serves {on_many:.1f} requests/s on {many_gpus} x {gpu} by "
            f"{_source(known[many])} and {on_few:.1f} on {few_gpus} by {_source(known[few])} "
            f"({ISL:,.0f} input and {OSL:,.0f} output tokens), though more GPUs should serve "
            "more. Engines or set-ups differ: measure your own"
        )
        for key in (few, many):
            sentences.setdefault(key, words)
    return sentences


def _source(profile: LinearProfile) -> str:
    """Return who measured a profile, in a few words."""
    if profile.provenance.kind != "measured":
        return "what is modelled"
    return profile.provenance.source.removeprefix("Decode: ").split(" ")[0]
