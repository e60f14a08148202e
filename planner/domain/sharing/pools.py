"""Build the models of a scenario that may share GPUs, and their requests.

A part is what a GPU is assigned to: one of the replicas that a model needs alone, with an equal
share of its requests. A GPU column is a GPU type with its number of GPUs and role.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil

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

# PCI Express x16 by GPU family, GB/s one way: generation 3, 4 or 5. Other families: generation 4.
PCIE_GB_S = {
    "volta": 16.0, "turing": 16.0, "ampere": 32.0, "ada": 32.0, "hopper": 64.0, "blackwell": 64.0,
    "cdna3": 64.0, "cdna4": 64.0,
}  # fmt: skip
GRACE_GB_S = 450.0  # NVLink-C2C one way, of GH200, GB200 and GB300 (NVIDIA data sheets)
# Share of the link that a copy from pinned memory reaches: 55 of 64 GB/s on one H100 and one H200,
# at 16 MB to 2 GB. Assumed for other links. Copies from pageable memory reach 16 to 19 GB/s.
REACHED_SHARE = 0.86
PROCESS_BYTES = 1e9  # CUDA context of each further engine, as in simulation.performance.memory
MOST_REPLICAS = 256  # largest number of replicas of a model that is tried
# kvcached maps memory in pages of 2 MiB, one each for keys and values of every layer
# (kvcached/kv_cache_manager.py).
PAGE_BYTES = 2 * 2**21


def host_of(
    sharing: Sharing, gpu: GpuSpec, gpus: int, facts: list[tuple[str, Provenance]]
) -> SharedHost:
    """Return the memory and the load rates of the host of a replica with ``gpus`` GPUs.

    The GPUs load in parallel, so each rate is that of one GPU times ``gpus``. The source of the
    rate of the host link is appended to ``facts``.
    """
    link_gb_s, link_name = PCIE_GB_S.get(gpu.family, 32.0), "PCI Express x16"
    if gpu.name in ("GH200", "GB200", "GB300"):
        link_gb_s, link_name = GRACE_GB_S, "NVLink-C2C"
    gpu_gb_s, source = sharing.host_gb_s, "fleet.sharing"
    if gpu_gb_s is None:
        gpu_gb_s = REACHED_SHARE * link_gb_s
        reached = f"Copies on H100 reach {REACHED_SHARE:.0%}"
        source = f"{link_gb_s:g} GB/s one way ({link_name}). {reached}"
    facts.append((f"Weight loads, host to {gpu.name}", Provenance("assumed", source)))
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
    """The models of one region that may share GPUs: with replicas of equally many GPUs of one type.

    ``parts`` are the replicas that each model needs alone, with equal shares of its requests.
    ``model[part]`` is the index of the part's model.
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
    kv_floor_bytes: tuple[float, ...]  # [model] KV cache of its longest request on each GPU

    def replicas(self, m: int) -> int:
        """Return the replicas that model ``m`` needs alone."""
        return self.model.count(m)


def sharing_pools(
    hardware: Hardware, sharing: Sharing, trace: Trace, facts: list[tuple[str, Provenance]]
) -> Iterator[SharingPool]:
    """Yield a pool for each region, GPU type and number of GPUs of a replica.

    A model is in the pool of its cheapest replica on owned GPUs. The sources of the rates of host
    links are appended to ``facts``.
    """
    for r, region in enumerate(hardware.regions):
        for (gpu, tp), members in _members_by_kind(hardware, r, trace).items():
            models = tuple(_model(hardware, m, g, r, trace) for m, g in members)
            _, g = members[0]  # owned columns of one GPU type have the same specs and price
            spec = hardware.gpus[g]
            host = host_of(sharing, spec, tp, facts)
            parts: list[SharingModel] = []
            model_of_part: list[int] = []
            busy_s: list[float] = []
            feasible: list[bool] = []
            # Divide each model into parts, the replicas that it would need alone.
            for number, model in enumerate(models):
                parts_of_model, busy_of_parts = _parts_alone(model, host)
                feasible.append(parts_of_model is not None)
                # A model that misses its SLOs with any number of replicas has one part.
                parts += parts_of_model or [model]
                model_of_part += [number] * len(busy_of_parts)
                busy_s += busy_of_parts
            kv_floors = [
                _kv_bytes_in_pages(hardware, m, column, model.longest)
                for (m, column), model in zip(members, models, strict=True)
            ]
            yield SharingPool(
                region=region.name,
                gpu=gpu,
                gpus=tp,
                usd_per_gpu_hour=float(hardware.usd_per_gpu_hour[r, g]),
                models=models,
                parts=tuple(parts),
                model=tuple(model_of_part),
                busy_s=np.array(busy_s),
                feasible=tuple(feasible),
                host=host,
                memory_gib=spec.memory_bytes / 2**30,
                kv_floor_bytes=tuple(kv_floors),
            )


def _members_by_kind(
    hardware: Hardware, r: int, trace: Trace
) -> dict[tuple[str, int], list[tuple[int, int]]]:
    """Return the models of region ``r`` by (GPU type, GPUs of a replica), as (model, GPU column).

    Each model has its cheapest column. Models without requests there are left out.
    """
    members: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for m, model in enumerate(hardware.models):
        columns = sharing_columns(hardware, m, r)
        if not columns or not requests_of(trace, model.name, hardware.regions[r].name).any():
            continue
        gpus = {g: hardware.profiles[m, g].tp for g in columns}
        usd_per_hour = {g: hardware.usd_per_gpu_hour[r, g] * gpus[g] for g in columns}
        g = min(columns, key=usd_per_hour.__getitem__)
        members.setdefault((hardware.gpus[g].name, gpus[g]), []).append((m, g))
    return members


def sharing_columns(hardware: Hardware, m: int, r: int) -> list[int]:
    """Return the GPU columns on which replicas of model ``m`` may share GPUs in region ``r``.

    They are owned and aggregated. A model without aggregated ones has those of decode, with
    replicas that also compute the prompts.
    """
    by_role: dict[str, list[int]] = {"both": [], "prefill": [], "decode": []}
    for g, column in enumerate(hardware.columns):
        is_owned = not column.spot and hardware.capacity_gpus[r, column.gpu] > 0
        if is_owned and (m, g) in hardware.profiles:
            by_role[column.role].append(g)
    return by_role["both"] or by_role["decode"]


def _model(hardware: Hardware, m: int, g: int, r: int, trace: Trace) -> SharingModel:
    """Return model number ``m`` on GPU column ``g``, with its requests in region number ``r``."""
    spec, section = hardware.models[m], hardware.sections[m, g]
    weights = spec.weight_bytes
    if spec.shape is not None:
        weights = weight_bytes(spec.shape, section.precision)
    rows = requests_of(trace, spec.name, hardware.regions[r].name)
    tier_by_name = {tier.name: tier for tier in hardware.tiers}
    tiers = [tier_by_name[name] for name in trace.tiers]
    tier_of_request = trace.tier[rows].astype(np.int64)  # index in ``tiers``
    isl = trace.input_tokens[rows].astype(np.int64)
    return SharingModel(
        name=spec.name,
        profile=hardware.profiles[m, g],
        weight_bytes=weights,
        kv_bytes_per_token=spec.kv_bytes_per_token * (0.5 if section.kv_precision == "fp8" else 1),
        arrival_s=trace.arrival_s[rows],
        prompt_tokens=isl - cached_tokens(hardware, trace, spec.name)[rows],
        input_tokens=isl,
        output_tokens=trace.output_tokens[rows].astype(np.int64),
        ttft_s=_limits(tiers, "ttft_s")[tier_of_request],
        tbt_s=_limits(tiers, "tbt_s")[tier_of_request],
        e2e_s=_limits(tiers, "e2e_s")[tier_of_request],
        tier=tier_of_request,
        attainment=tuple(tier.attainment for tier in tiers),
    )


def _kv_bytes_in_pages(hardware: Hardware, m: int, g: int, tokens: int) -> float:
    """Return the bytes of the KV cache of ``tokens`` tokens on each GPU of a replica.

    They are a whole number of pages. If the model's shape is not known, each GPU is assumed to hold
    all of the cache.
    """
    spec, arrangement = hardware.models[m], arrangement_of(hardware.sections[m, g])
    if spec.shape is None:
        used_bytes, page_bytes = tokens * spec.kv_bytes_per_token, PAGE_BYTES
    else:
        used_bytes = gpu_kv_bytes(spec.shape, tokens, arrangement)
        page_bytes = PAGE_BYTES * ceil(spec.shape.layers / arrangement.pp)  # a page per layer
    return float(ceil(used_bytes / page_bytes) * page_bytes)


def requests_of(trace: Trace, model: str, region: str) -> BoolArray:
    """Return a mask of the requests of a model in a region; all False if the trace lacks either."""
    if model not in trace.models or region not in trace.regions:
        return np.zeros(len(trace), np.bool_)
    m, r = trace.models.index(model), trace.regions.index(region)
    return np.asarray((trace.model == m) & (trace.region == r))


def _limits(tiers: list[Tier], name: str) -> FloatArray:
    """Return the limit ``name`` of each tier in seconds; inf: no limit."""
    values = [getattr(tier, name) for tier in tiers]
    return np.array([np.inf if value is None else value for value in values])


def _parts_alone(
    model: SharingModel, host: SharedHost
) -> tuple[list[SharingModel] | None, list[float]]:
    """Return (parts, busy seconds of each): as few parts as meet the SLOs of a model alone.

    Each part is a replica with an equal number of requests. If no number of replicas meets the
    SLOs, return None and the busy seconds of all requests on one replica.
    """
    alone = replace(host, by_memory=True)
    busy_s = replay_gpu([model], alone).models[0].busy_s
    span_s = float(model.arrival_s[-1] - model.arrival_s[0])
    # Begin below the count that keeps every replica busy all the time, and grow by an eighth.
    count = max(1, ceil(0.8 * busy_s / span_s)) if busy_s > span_s > 0 else 1
    while count <= min(MOST_REPLICAS, len(model)):
        parts = [model.part(slice(i, None, count)) for i in range(count)]
        part_busy_s = []
        for part in parts:
            replay = replay_gpu([part], alone, to_the_end=False)
            if not replay.met:
                break
            part_busy_s.append(replay.models[0].busy_s)
        else:  # every part meets its SLOs
            return parts, part_busy_s
        count += max(1, count // 8)
    return None, [busy_s]
