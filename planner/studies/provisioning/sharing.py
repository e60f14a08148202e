"""What the chosen services need on common GPUs: both phases together, prefill in chunks among
decodes, and several models on the same devices."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from planner.studies.provisioning.problems import REPLICAS, problem_of
from simulation.performance.memory import MEMORY_SHARE
from simulation.provisioning.levels import Level
from simulation.provisioning.sharing import Chunked, chunked, chunked_service, placed_together

if TYPE_CHECKING:
    from planner.studies.commands.provision import Case

APART, TOGETHER, CHUNKED_MODEL, CHUNKED_OPERATOR = (
    "apart", "together", "chunked_model", "chunked_operator",
)  # fmt: skip


def document(cases: list[Case]) -> dict[str, Any]:
    """Per model and region both phases, then the models of a region that chose the same GPUs."""
    services = [_service(pair) for pair in _by(cases, "model", "region", "gpu")]
    models = [
        _models(group)
        for group in _by(cases, "region", "gpu")
        if len({case.model for case in group}) > 1
    ]
    return {"services": [one for one in services if one], "models": models}


def _by(cases: list[Case], *keys: str) -> list[list[Case]]:
    found: dict[tuple[str, ...], list[Case]] = {}
    for case in cases:
        found.setdefault(tuple(getattr(case, key) for key in keys), []).append(case)
    return list(found.values())


def _least(case: Case) -> Level:
    return min(case.levels.values(), key=lambda one: (one.devices, one.power_w))


def _service(pair: list[Case]) -> dict[str, Any] | None:
    """Both phases of one model in one region, four ways; ``best`` needs fewest GPUs, of as many
    the least power, the simplest first where both are even."""
    by_phase = {case.phase: case for case in pair}
    if set(by_phase) != {"prefill", "decode"}:
        return None
    prefill, decode = by_phase["prefill"], by_phase["decode"]
    room = MEMORY_SHARE * prefill.service.gpu.memory_bytes
    shared = placed_together(
        [prefill.problem, decode.problem], [_least(prefill), _least(decode)], room
    )
    both = _chunked(prefill, decode, room)
    ways: dict[str, Any] = {
        APART: {
            "gpus": shared.devices_apart,
            "energy_w": sum(level.power_w for level in shared.apart),
            "memory_gb": sum(level.memory_bytes for level in shared.apart) / 1e9,
        }
    }
    if shared.placement is not None:
        ways[TOGETHER] = {
            "gpus": shared.devices,
            "energy_w": shared.power_w,
            "memory_gb": shared.memory_bytes / 1e9,
        }
    for name, level in ((CHUNKED_MODEL, both.model), (CHUNKED_OPERATOR, both.operator)):
        if level is not None:
            ways[name] = {
                "gpus": level.devices,
                "energy_w": level.power_w,
                "memory_gb": level.memory_bytes / 1e9,
            }
    best = min(ways, key=lambda name: (ways[name]["gpus"], round(ways[name]["energy_w"], 6)))
    return {
        "model": prefill.model,
        "region": prefill.region,
        "gpu": prefill.gpu,
        "ways": ways,
        "best": best,
        "chunk_tokens": both.chunk_tokens,
        "chunk_batch": both.batch,
    }


def _chunked(prefill: Case, decode: Case, room: float) -> Chunked:
    service = chunked_service(prefill.service, decode.service)
    of = partial(problem_of, service, prefill.weights, measured=prefill.measured)
    for most in REPLICAS:
        found = chunked(of(max_replicas=most), room)
        if found.model is not None:
            break
    return found


def _models(group: list[Case]) -> dict[str, Any]:
    """All models of a region on one GPU type: the best of each apart, and together."""
    room = MEMORY_SHARE * group[0].service.gpu.memory_bytes
    apart = [_least(case) for case in group]
    shared = placed_together([case.problem for case in group], apart, room)
    return {
        "region": group[0].region,
        "gpu": group[0].gpu,
        "models": list(dict.fromkeys(case.model for case in group)),
        "gpus_apart": shared.devices_apart,
        "gpus": shared.devices,
        "energy_w_apart": sum(level.power_w for level in apart),
        "energy_w": shared.power_w,
        "memory_gb": shared.memory_bytes / 1e9,
    }


def words(found: dict[str, Any]) -> tuple[list[str], list[str]]:
    """What does not pay, to be said first, and what does."""
    lost: list[str] = []
    won: list[str] = []
    how = {
        TOGETHER: "prefill and decode by operators on common GPUs",
        CHUNKED_MODEL: "whole replicas that compute prompts in chunks among decodes",
        CHUNKED_OPERATOR: "operators that compute prompts in chunks among decodes",
    }
    for one in found["services"]:
        apart, best = one["ways"][APART], one["ways"][one["best"]]
        where = f"{one['model']} in {one['region']} on {one['gpu']}"
        if best["gpus"] < apart["gpus"]:
            won.append(
                f"{where}: {how[one['best']]} need {best['gpus']} GPUs, phases apart "
                f"{apart['gpus']}."
            )
            chunk = one["ways"].get(CHUNKED_MODEL)
            if one["best"] == CHUNKED_MODEL and chunk is not None:
                lost.append(
                    f"{where}: provisioning below the replica is beaten by whole replicas that "
                    f"compute prompts in chunks among decodes, on {chunk['gpus']} GPUs instead of "
                    f"{apart['gpus']}."
                )
    for one in found["models"]:
        names = " and ".join(one["models"])
        if one["gpus"] < one["gpus_apart"]:
            won.append(
                f"{names} in {one['region']} on common {one['gpu']} need {one['gpus']} GPUs, apart "
                f"{one['gpus_apart']}."
            )
    return lost, won
