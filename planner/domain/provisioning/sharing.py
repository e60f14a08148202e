"""Compute the GPUs that services need if they share devices.

The ways are both phases on common GPUs, chunked prefill, and several models on common GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from planner.domain.provisioning.levels import problem_of, with_ample_replicas
from planner.domain.provisioning.unit import Case, Sentences, groups
from planner.domain.serialise import gpu_words
from simulation.performance.memory import MEMORY_SHARE
from simulation.provisioning.device_sharing import (
    best_chunked,
    chunked_service,
    place_on_common_devices,
)
from simulation.provisioning.level import Level

APART, TOGETHER, CHUNKED_MODEL, CHUNKED_OPERATOR = (
    "apart", "together", "chunked_model", "chunked_operator",
)  # fmt: skip
HOW = {
    TOGETHER: "prefill and decode by operators on common GPUs",
    CHUNKED_MODEL: "whole replicas that compute prompts in chunks among decodes",
    CHUNKED_OPERATOR: "operators that compute prompts in chunks among decodes",
}


@dataclass(frozen=True, slots=True)
class SharingWay:
    """GPUs, power and memory of both phases, in one way of sharing."""

    gpus: int
    energy_w: float
    memory_gb: float


@dataclass(frozen=True, slots=True)
class SharedService:
    """Both phases of one model in one region, in up to four ways.

    ``best`` is the way with the fewest GPUs, then with the lowest power, then the simplest.
    """

    model: str
    region: str
    gpu: str
    ways: dict[str, SharingWay]
    best: str
    chunk_tokens: float | None
    chunk_batch: int | None

    @property
    def where(self) -> str:
        return f"{self.model} in {self.region} on {self.gpu}"


@dataclass(frozen=True, slots=True)
class SharedModels:
    """All models of a region on one GPU type: their needs on separate and on common GPUs."""

    region: str
    gpu: str
    models: tuple[str, ...]
    gpus_apart: int
    gpus: int
    energy_w_apart: float
    energy_w: float
    memory_gb: float


@dataclass(frozen=True, slots=True)
class SharedGpus:
    """Results of sharing: per model and region, and per region for models on the same GPU type."""

    services: tuple[SharedService, ...]
    models: tuple[SharedModels, ...]


def shared_gpus(cases: list[Case]) -> SharedGpus:
    """Return what the chosen cases need if phases or models share GPUs."""
    both = groups(cases, lambda case: (case.model, case.region, case.gpu))
    cases_by_gpu = groups(cases, lambda case: (case.region, case.gpu))
    return SharedGpus(
        services=tuple(_service(*pair) for pair in both if len(pair) == 2),
        models=tuple(
            _models(group) for group in cases_by_gpu if len({case.model for case in group}) > 1
        ),
    )


def _service(prefill: Case, decode: Case) -> SharedService:
    """Return the ways in which prefill and decode of one service can share GPUs."""
    room = MEMORY_SHARE * prefill.service.gpu.memory_bytes
    shared = place_on_common_devices(
        [prefill.problem, decode.problem], [prefill.least, decode.least], room
    )
    service = chunked_service(prefill.service, decode.service)
    of = partial(problem_of, service, prefill.weights, measured=prefill.measured)
    chunks = best_chunked(with_ample_replicas(of()), room)
    ways = {
        APART: SharingWay(
            shared.devices_apart,
            sum(level.power_w for level in shared.apart),
            sum(level.memory_bytes for level in shared.apart) / 1e9,
        )
    }
    if shared.placement is not None:
        ways[TOGETHER] = SharingWay(shared.devices, shared.power_w, shared.memory_bytes / 1e9)
    if chunks.model is not None:
        ways[CHUNKED_MODEL] = _way_of_level(chunks.model)
    if chunks.operator is not None:
        ways[CHUNKED_OPERATOR] = _way_of_level(chunks.operator)
    # Rounding makes equal powers tie. Then ``min`` takes the first way, which is the simplest.
    return SharedService(
        model=prefill.model,
        region=prefill.region,
        gpu=prefill.gpu,
        ways=ways,
        best=min(ways, key=lambda name: (ways[name].gpus, round(ways[name].energy_w, 6))),
        chunk_tokens=chunks.chunk_tokens,
        chunk_batch=chunks.batch,
    )


def _way_of_level(level: Level) -> SharingWay:
    return SharingWay(level.devices, level.power_w, level.memory_bytes / 1e9)


def _models(group: list[Case]) -> SharedModels:
    """Return the GPUs of several models, each on separate GPUs and all on common ones."""
    room = MEMORY_SHARE * group[0].service.gpu.memory_bytes
    apart = [case.least for case in group]
    shared = place_on_common_devices([case.problem for case in group], apart, room)
    return SharedModels(
        region=group[0].region,
        gpu=group[0].gpu,
        models=tuple(dict.fromkeys(case.model for case in group)),
        gpus_apart=shared.devices_apart,
        gpus=shared.devices,
        energy_w_apart=sum(level.power_w for level in apart),
        energy_w=shared.power_w,
        memory_gb=shared.memory_bytes / 1e9,
    )


def sentences(shared: SharedGpus) -> Sentences:
    """Return sentences on services for which sharing beats finer levels, and on savings."""
    return Sentences(tuple(_is_beaten(shared)), tuple(_better_words(shared)))


def _is_beaten(shared: SharedGpus) -> Iterator[str]:
    """Yield a sentence for each service where chunked prefill on whole replicas is better."""
    for service in shared.services:
        apart, best = service.ways[APART], service.ways[service.best]
        if service.best == CHUNKED_MODEL and best.gpus < apart.gpus:
            yield (
                f"{service.where}: provisioning below the replica is beaten by whole replicas that "
                f"compute prompts in chunks among decodes, on {gpu_words(best.gpus)} instead of "
                f"{apart.gpus}."
            )


def _better_words(shared: SharedGpus) -> Iterator[str]:
    """Yield a sentence for each service or group that needs fewer GPUs when sharing."""
    for service in shared.services:
        apart, best = service.ways[APART], service.ways[service.best]
        if best.gpus < apart.gpus:
            unit = "GPU" if best.gpus == 1 else "GPUs"
            yield (
                f"{service.where}: {HOW[service.best]} need {best.gpus} {unit}, phases apart "
                f"{apart.gpus}; by means of queueing, which no replay has confirmed."
            )
    for group in shared.models:
        if group.gpus < group.gpus_apart:
            yield (
                f"{' and '.join(group.models)} in {group.region} on common {group.gpu} need "
                f"{gpu_words(group.gpus)}, apart {group.gpus_apart}; by means of queueing, "
                "which no replay has confirmed."
            )
