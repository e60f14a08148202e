"""Build the models of a scenario that may share GPUs, and their requests."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil
from typing import NamedTuple

import numpy as np

from planner.domain.provisioning.load import cached_tokens
from planner.inputs.scenario.build import Hardware
from planner.inputs.scenario.schema.fleet import Sharing
from planner.inputs.scenario.speeds import arrangement_of
from simulation.arrays import BoolArray, FloatArray
from simulation.fleet import Tier
from simulation.performance.memory import gpu_kv_bytes, weight_bytes
from simulation.performance.specs import GpuSpec, Provenance
from simulation.sharing.replay import SharedHost, SharingModel, replay_gpu
from simulation.trace import Trace

# PCI Express x16, GB/s one way: generation 3, 4 or 5. Other families: generation 4.
PCIE_GB_S = {
    "volta": 16.0, "turing": 16.0, "ampere": 32.0, "ada": 32.0, "hopper": 64.0, "blackwell": 64.0,
    "cdna3": 64.0, "cdna4": 64.0,
}  # fmt: skip
GRACE_GB_S = 450.0  # NVLink-C2C one way, of GH200, GB200 and GB300 (NVIDIA data sheets)
# Share of the link that a copy from pinned memory reaches: 55 of 64 GB/s on one H100 and one H200,
# at 16 MB to 2 GB. Assumed for other links. Copies from pageable memory reach 16 to 19 GB/s.
REACHED_SHARE = 0.86
PROCESS_BYTES = 1e9  # CUDA context of each further engine, as in simulation.performance.memory
MOST_REPLICAS = 256  # of one model and region that are tried
# kvcached maps memory in pages of 2 MiB, one each for keys and values of every layer
# (kvcached/kv_cache_manager.py).
PAGE_BYTES = 2 * 2**21


def host_of(
    sharing: Sharing, gpu: GpuSpec, gpus: int, facts: list[tuple[str, Provenance]]
) -> SharedHost:
    """Return memory and load rates of the host of a replica with ``gpus`` GPUs.

    The GPUs load in parallel, so each rate is that of one GPU times ``gpus``. Append the source of
    the host link's rate to ``facts``.
    """
    link_gb_s, link_name = PCIE_GB_S.get(gpu.family, 32.0), "PCI Express x16"
    if gpu.name in ("GH200", "GB200", "GB300"):
        link_gb_s, link_name = GRACE_GB_S, "NVLink-C2C"
    if sharing.host_gb_s is None:
        gpu_gb_s = REACHED_SHARE * link_gb_s
        source = (
            f"{link_gb_s:g} GB/s one way ({link_name}), of which copies reach "
            f"{REACHED_SHARE:.0%} on H100"
        )
    else:
        gpu_gb_s, source = sharing.host_gb_s, "fleet.sharing"
    facts.append((f"Loads from host to {gpu.name}", Provenance("assumed", source)))
    return SharedHost(
        host_bytes=gpus * sharing.host_memory_gb * 1e9,
        host_bytes_s=gpus * gpu_gb_s * 1e9,
        disk_bytes_s=gpus * sharing.disk_gb_s * 1e9,
        switch_s=sharing.switch_s,
        process_bytes=gpus * PROCESS_BYTES,
        overlap=sharing.overlap,
    )


@dataclass(frozen=True, slots=True, eq=False)
class SharingPool:
    """The models of one region that may share GPUs: replicas of as many GPUs of one type.

    ``parts`` are what GPUs are assigned to: each replica that a model needs alone has an equal
    share of its requests. ``model`` ``[part]`` is the index of the part's model.
    """

    region: str
    gpu: str
    gpus: int  # of one replica
    usd_per_gpu_hour: float
    models: tuple[SharingModel, ...]
    parts: tuple[SharingModel, ...]
    model: tuple[int, ...]
    busy_s: FloatArray  # [part] seconds of iterations, alone
    feasible: tuple[bool, ...]  # [model] whether some number of replicas meets its SLOs
    host: SharedHost
    memory_gib: float  # of one GPU
    kv_floor_bytes: tuple[float, ...]  # [model] of its longest request on each GPU, in pages

    def replicas(self, m: int) -> int:
        """Return the replicas that model ``m`` needs alone."""
        return self.model.count(m)


def sharing_pools(
    hardware: Hardware, sharing: Sharing, trace: Trace, facts: list[tuple[str, Provenance]]
) -> Iterator[SharingPool]:
    """Yield a pool for each region, GPU type and number of GPUs of a replica.

    A model runs on the arrangement with the cheapest replica on owned GPUs (``sharing_columns``).
    Append the source of each host link's rate to ``facts``.
    """
    for r, region in enumerate(hardware.regions):
        for (gpu, tp), members in _members_by_kind(hardware, r, trace).items():
            models = tuple(_model(hardware, m, g, r, trace) for m, g in members)
            g = members[0][1]  # owned columns of one GPU type have the same specs and price
            host = host_of(sharing, hardware.gpus[g], tp, facts)
            floors = tuple(
                _kv_floor_bytes(hardware, m, g, member.longest)
                for (m, g), member in zip(members, models, strict=True)
            )
            parts_alone = _parts_of(models, host)
            yield SharingPool(
                region=region.name,
                gpu=gpu,
                gpus=tp,
                usd_per_gpu_hour=float(hardware.usd_per_gpu_hour[r, g]),
                models=models,
                parts=parts_alone.parts,
                model=parts_alone.model,
                busy_s=parts_alone.busy_s,
                feasible=parts_alone.feasible,
                host=host,
                memory_gib=hardware.gpus[g].memory_bytes / 2**30,
                kv_floor_bytes=floors,
            )


def _members_by_kind(
    hardware: Hardware, r: int, trace: Trace
) -> dict[tuple[str, int], list[tuple[int, int]]]:
    """Return the (model, GPU column) that run in region ``r``, by GPU type and GPUs of a replica.

    Models without requests there are left out.
    """
    members: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for m, model in enumerate(hardware.models):
        columns = sharing_columns(hardware, m, r)
        if columns and requests_of(trace, model.name, hardware.regions[r].name).any():
            usd = {g: hardware.usd_per_gpu_hour[r, g] * hardware.profiles[m, g].tp for g in columns}
            g = min(columns, key=usd.__getitem__)
            kind = hardware.gpus[g].name, hardware.profiles[m, g].tp
            members.setdefault(kind, []).append((m, g))
    return members


def sharing_columns(hardware: Hardware, m: int, r: int) -> list[int]:
    """Return the columns on which a replica of model ``m`` may share GPUs in region ``r``.

    A model with only prefill and decode pools has those of decode. On a shared GPU, such a replica
    also computes the prompts, at the speed of its profile.
    """
    owned = [
        g
        for g, column in enumerate(hardware.columns)
        if (m, g) in hardware.profiles
        and not column.spot
        and hardware.capacity_gpus[r, column.gpu] > 0
    ]
    aggregated = [g for g in owned if hardware.columns[g].role == "both"]
    return aggregated or [g for g in owned if hardware.columns[g].role == "decode"]


def _model(hardware: Hardware, m: int, g: int, r: int, trace: Trace) -> SharingModel:
    """Return model ``m`` on column ``g`` with its requests in region ``r``."""
    spec, section = hardware.models[m], hardware.sections[m, g]
    weights = spec.weight_bytes
    if spec.shape is not None:
        weights = weight_bytes(spec.shape, section.precision)
    kv = spec.kv_bytes_per_token * (0.5 if section.kv_precision == "fp8" else 1.0)
    rows = requests_of(trace, spec.name, hardware.regions[r].name)
    by_name = {tier.name: tier for tier in hardware.tiers}
    tiers = [by_name[name] for name in trace.tiers]
    tier = trace.tier[rows].astype(np.int64)
    cached = cached_tokens(hardware, trace, spec.name)[rows]
    isl = trace.input_tokens[rows].astype(np.int64)
    return SharingModel(
        name=spec.name,
        profile=hardware.profiles[m, g],
        weight_bytes=weights,
        kv_bytes_per_token=kv,
        arrival_s=trace.arrival_s[rows],
        prompt_tokens=isl - cached,
        input_tokens=isl,
        output_tokens=trace.output_tokens[rows].astype(np.int64),
        ttft_s=_limits(tiers, "ttft_s")[tier],
        tbt_s=_limits(tiers, "tbt_s")[tier],
        e2e_s=_limits(tiers, "e2e_s")[tier],
        tier=tier,
        attainment=tuple(tier.attainment for tier in tiers),
    )


def _kv_floor_bytes(hardware: Hardware, m: int, g: int, tokens: int) -> float:
    """Return the KV cache of a request of ``tokens`` on each GPU of a replica, in whole pages.

    Without the model's shape, each GPU is assumed to hold all of it.
    """
    spec, arrangement = hardware.models[m], arrangement_of(hardware.sections[m, g])
    if spec.shape is None:
        used, page = tokens * spec.kv_bytes_per_token, PAGE_BYTES
    else:
        used = gpu_kv_bytes(spec.shape, tokens, arrangement)
        page = PAGE_BYTES * ceil(spec.shape.layers / arrangement.pp)
    return float(ceil(used / page) * page)


def requests_of(trace: Trace, model: str, region: str) -> BoolArray:
    """Return a mask of the requests of a model in a region; none if the trace has neither."""
    if model not in trace.models or region not in trace.regions:
        return np.zeros(len(trace), np.bool_)
    m, r = trace.models.index(model), trace.regions.index(region)
    return np.asarray((trace.model == m) & (trace.region == r))


def _limits(tiers: list[Tier], name: str) -> FloatArray:
    """Return a limit of each tier in seconds, inf if it has none."""
    values = [getattr(tier, name) for tier in tiers]
    return np.array([np.inf if value is None else value for value in values])


class _Parts(NamedTuple):
    """The fields of ``SharingPool`` on the parts of its models."""

    parts: tuple[SharingModel, ...]
    model: tuple[int, ...]
    busy_s: FloatArray
    feasible: tuple[bool, ...]


def _parts_of(models: tuple[SharingModel, ...], host: SharedHost) -> _Parts:
    """Divide each model into the parts, one per replica, that it needs alone on ``host``."""
    parts: list[SharingModel] = []
    model_of_part: list[int] = []
    busy_s: list[float] = []
    feasible: list[bool] = []
    for m, model in enumerate(models):
        own, seconds = _parts_alone(model, host)
        feasible.append(own is not None)
        parts += own or [model]
        model_of_part += [m] * len(own or [model])
        busy_s += seconds
    return _Parts(tuple(parts), tuple(model_of_part), np.array(busy_s), tuple(feasible))


def _parts_alone(
    model: SharingModel, host: SharedHost
) -> tuple[list[SharingModel] | None, list[float]]:
    """Return (parts, busy seconds): a model's requests in as few parts as meet the SLOs alone.

    Parts have equally many requests, one replica each. They are None if no number of replicas meets
    the SLOs; there is then one entry of seconds, for all requests on one replica.
    """
    alone = replace(host, by_memory=True)
    busy = replay_gpu([model], alone).models[0].busy_s
    span = float(model.arrival_s[-1] - model.arrival_s[0])
    # Begin below the count that keeps every replica busy all the time, and grow by an eighth.
    count = max(1, ceil(0.8 * busy / span)) if span > 0 and busy > span else 1
    while count <= min(MOST_REPLICAS, len(model)):
        parts = [model.part(slice(i, None, count)) for i in range(count)]
        replays = []
        for part in parts:
            replays.append(replay_gpu([part], alone, to_the_end=False))
            if not replays[-1].met:
                break
        else:
            return parts, [replay.models[0].busy_s for replay in replays]
        count += max(1, count // 8)
    return None, [busy]
