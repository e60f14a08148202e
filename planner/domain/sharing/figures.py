"""Compute the figures of models that share GPUs, and of the same models on dedicated GPUs.

A part is what a GPU is assigned to: one of the replicas that a model needs alone, with an equal
share of its requests.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from planner.domain.serialise import gpu_words, milliseconds
from planner.domain.sharing.packing import ALONE, MEMORY, SharedGpuPlan
from planner.domain.sharing.pools import SharingPool
from simulation.arrays import FloatArray
from simulation.percentiles import quantile
from simulation.sharing.replay import ModelReplay, SharingModel

HOURS_A_DAY = 24.0
WAYS = {MEMORY: "by memory", "time": "by time", ALONE: "alone"}


@dataclass(frozen=True, slots=True)
class ServedFigures:
    """How the requests of a model were served in a replay."""

    attainment: float  # share within every limit, rejected ones included
    met: bool  # whether every tier reaches its attainment
    ttft_p95_ms: float | None
    tbt_p95_ms: float | None


@dataclass(frozen=True, slots=True)
class ModelFigures:
    """One model in one region, on dedicated GPUs (alone) and on shared ones."""

    model: str
    region: str
    gpu: str
    gpus_per_replica: int
    requests: int
    requests_per_s: float
    weights_gb: float
    replicas_alone: int
    shared_with: tuple[str, ...]
    ways: tuple[str, ...]  # way of sharing on each GPU
    loads: int  # number of loads of its weights
    load_s: float | None  # mean time of a load; None: no loads
    alone: ServedFigures
    shared: ServedFigures
    unseen_attainment: float  # lowest of its GPUs, in replays that the packing did not see
    why_alone: str  # empty if it shares a GPU
    longest_tokens: int | None = None  # prompt and answer; None: results of earlier releases
    kv_floor_gib: float | None = None  # KV cache of such a request on each GPU, in whole pages


@dataclass(frozen=True, slots=True)
class GpuFigures:
    """One GPU (or the GPUs of one replica), and the models on it."""

    name: str
    region: str
    gpu: str
    gpus: int
    way: str
    models: tuple[str, ...]
    weights_gb: float
    busy: float  # share of the time in iterations
    loading: float  # share of the time in loads
    loads_per_hour: float
    attainment: float  # lowest attainment of a model
    memory_gib: float | None = None  # of one GPU


@dataclass(frozen=True, slots=True)
class FleetFigures:
    """The GPUs and the cost of a fleet."""

    gpus: int
    usd_per_day: float


@dataclass(frozen=True, slots=True)
class Ledger:
    """Requests of the shared GPUs: arrived = completed + rejected + unfinished."""

    arrived: int
    completed: int
    rejected: int
    unfinished: int


def _served_figures(parts: Sequence[SharingModel], replays: Sequence[ModelReplay]) -> ServedFigures:
    """Return how the requests of the ``parts`` of a model were served, each in its replay."""
    ttft_s, tbt_s = [], []
    for part, replay in zip(parts, replays, strict=True):
        # A replay leaves out the seconds before the first iteration (``start_s``).
        ttft_s.append(replay.first_s - part.arrival_s + part.profile.start_s)
        gaps = np.where(part.output_tokens > 1, part.output_tokens - 1.0, np.nan)
        tbt_s.append((replay.end_s - replay.first_s) / gaps)
    late = np.concatenate([replay.late for replay in replays])
    return ServedFigures(
        attainment=float(1.0 - late.mean()),
        met=all(replay.met for replay in replays),
        ttft_p95_ms=_p95_ms(ttft_s),
        tbt_p95_ms=_p95_ms(tbt_s),
    )


def _p95_ms(values: Sequence[FloatArray]) -> float | None:
    """Return the 95th percentile of all seconds in ``values``; None if there are none."""
    return milliseconds(quantile(np.concatenate(values), 0.95))


def model_figures(
    pool: SharingPool, plans: Sequence[SharedGpuPlan], span_s: float, alone: Sequence[ModelReplay]
) -> Iterator[ModelFigures]:
    """Yield the figures of each model of a pool, on shared GPUs and alone.

    ``plans`` are the shared GPUs. ``alone`` has the replay of each part of the pool on dedicated
    GPUs. The requests span ``span_s`` seconds.
    """
    # By index of the part in the pool: its shared GPU, and its index on that GPU.
    gpu_of_part = {part: (plan, i) for plan in plans for i, part in enumerate(plan.parts)}
    for m, model in enumerate(pool.models):
        indices = [part for part, model_number in enumerate(pool.model) if model_number == m]
        parts = [pool.parts[part] for part in indices]
        plans_and_indices = [gpu_of_part[part] for part in indices]
        on_shared = [plan.replay.models[i] for plan, i in plans_and_indices]
        neighbours = {part for plan, _ in plans_and_indices for part in plan.parts} - set(indices)
        others = {pool.models[pool.model[part]].name for part in neighbours}
        loads = sum(replay.loads for replay in on_shared)
        yield ModelFigures(
            model=model.name,
            region=pool.region,
            gpu=pool.gpu,
            gpus_per_replica=pool.gpus,
            requests=len(model),
            requests_per_s=len(model) / span_s,
            weights_gb=model.weight_bytes / 1e9,
            replicas_alone=len(parts),
            shared_with=tuple(sorted(others)),
            ways=tuple(plan.way for plan, _ in plans_and_indices),
            loads=loads,
            load_s=sum(replay.load_s for replay in on_shared) / loads if loads else None,
            alone=_served_figures(parts, [alone[part] for part in indices]),
            shared=_served_figures(parts, on_shared),
            unseen_attainment=min(plan.unseen[i] for plan, i in plans_and_indices),
            why_alone="" if others else _why_alone(pool, m),
            longest_tokens=model.longest,
            kv_floor_gib=pool.kv_floor_bytes[m] / 2**30,
        )


def _why_alone(pool: SharingPool, m: int) -> str:
    """Return a sentence on why model number ``m`` shares no GPU."""
    model, host = pool.models[m], pool.host
    if not pool.feasible[m]:
        return "It misses its SLO without sharing too."
    if len(pool.models) == 1:
        return f"No other model runs on {pool.gpus} x {pool.gpu}."
    if pool.replicas(m) > 1:
        return f"Its load needs {pool.replicas(m)} replicas."
    load_s = host.switch_s + model.weight_bytes / host.host_bytes_s
    strictest = float(model.ttft_s.min())
    if load_s >= strictest:
        return f"Its weights load in {load_s:.2g} s, and its TTFT limit is {strictest:.2g} s."
    return "With any other model, a replay misses an SLO."


def gpu_figures(
    pool: SharingPool, plans: Sequence[SharedGpuPlan], span_s: float
) -> Iterator[GpuFigures]:
    """Yield the figures of each shared GPU of a pool.

    Shares of time are over the replay, but at least over ``span_s`` seconds.
    """
    for number, plan in enumerate(plans, 1):
        replays, end_s = plan.replay.models, max(plan.replay.end_s, span_s)
        parts = [pool.parts[i] for i in plan.parts]
        yield GpuFigures(
            name=f"{pool.region} {pool.gpus} x {pool.gpu}, {number}",
            region=pool.region,
            gpu=pool.gpu,
            gpus=pool.gpus,
            way=plan.way,
            models=tuple(part.name for part in parts),
            weights_gb=sum(part.weight_bytes for part in parts) / 1e9,
            busy=sum(replay.busy_s for replay in replays) / end_s,
            loading=sum(replay.load_s for replay in replays) / end_s,
            loads_per_hour=3600 * sum(replay.loads for replay in replays) / end_s,
            attainment=min(float(1.0 - replay.late.mean()) for replay in replays),
            memory_gib=pool.memory_gib,
        )


def fleet_figures(pools: Sequence[SharingPool], replicas: Sequence[int]) -> FleetFigures:
    """Return the GPUs and the cost of a fleet; ``replicas`` has one count per pool."""
    gpus = [pool.gpus * count for pool, count in zip(pools, replicas, strict=True)]
    usd_per_hour = sum(
        pool.usd_per_gpu_hour * count for pool, count in zip(pools, gpus, strict=True)
    )
    return FleetFigures(sum(gpus), HOURS_A_DAY * usd_per_hour)


def ledger(plans: Sequence[SharedGpuPlan]) -> Ledger:
    """Return the number of requests by outcome, over all shared GPUs."""
    replays = [replay for plan in plans for replay in plan.replay.models]
    return Ledger(
        arrived=sum(len(replay.end_s) for replay in replays),
        completed=sum(replay.completed for replay in replays),
        rejected=sum(replay.rejected for replay in replays),
        unfinished=sum(replay.unfinished for replay in replays),
    )


def headline(shared: FleetFigures, dedicated: FleetFigures) -> str:
    """Return in one or two sentences how many GPUs and dollars sharing saves."""
    if shared.gpus >= dedicated.gpus:
        need = f"{gpu_words(dedicated.gpus)} for the busiest time either way"
        return f"No savings from sharing GPUs: {need}, ${dedicated.usd_per_day:,.0f} a day."
    saved = 1 - shared.gpus / dedicated.gpus
    return (
        f"The models need {gpu_words(shared.gpus)} if they share, and {dedicated.gpus:,} "
        f"otherwise ({saved:.0%} fewer). ${shared.usd_per_day:,.0f} a day instead of "
        f"${dedicated.usd_per_day:,.0f}."
    )
