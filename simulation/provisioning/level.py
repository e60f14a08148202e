"""Describe the result of one granularity, and choose between finer and coarser ones.

A level is a granularity of scaling: whole replicas ("model"), runs of layers ("module") or single
operators ("operator"). ``Level`` is a plan made at one level.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from simulation.provisioning.blocks import merge_layers
from simulation.provisioning.placement import Placement
from simulation.provisioning.problem import OperatorPlan
from simulation.provisioning.replicas import EVEN, ReplicaPlan
from simulation.provisioning.sm_shares import confined_to_shares
from simulation.provisioning.workload import PhaseProblem, reserve_kv_cache, with_some_choices

FALLBACK_METHODS = {
    "model": "whole replicas need the fewest GPUs",
    "module": "groups of layers need the fewest GPUs",
}
ROUNDING = 1.0 + 1e-9  # relative difference of figures that count as equal


@dataclass(frozen=True, slots=True)
class LayerRuns:
    """Turns a problem of operators into one of runs of layers, with one batch and parallelism."""

    batch_index: int  # index of the batch size in the problem
    parallel_index: int  # index of the parallelism in the problem

    def __call__(self, phase: PhaseProblem) -> PhaseProblem:
        """Return ``phase`` by runs of layers, with this batch and parallelism only."""
        return with_uniform_choices(merge_layers(phase), self.batch_index, self.parallel_index)


@dataclass(frozen=True, slots=True)
class ReplayedLatency:
    """Latencies of replayed requests, and the share of them within the limit.

    The latency is TTFT for prompts, and the mean gap between output tokens for decoded sequences.
    """

    attainment: float
    mean_s: float
    p50_s: float
    p95_s: float
    p99_s: float
    requests: int
    visits: int  # of requests at stations


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """A plan of one phase (prefill or decode) at one granularity: replica, layers or operators.

    ``least_devices`` is a proven lower bound on plans that meet the latency limit on average.
    """

    level: str  # model, module or operator
    method: str
    devices: int
    power_w: float
    memory_bytes: float
    latency_s: float
    slo_s: float
    seconds: float  # planning time
    least_devices: int | None = None
    devices_by_means: int | None = (
        None  # fewest devices found for the limit on average; None: ``devices``
    )
    plan: OperatorPlan | None = None
    placement: Placement | None = None
    replicas: ReplicaPlan | None = None
    layer_runs: LayerRuns | None = None  # for runs of layers only
    replayed: ReplayedLatency | None = None  # replay of this level; None: not replayed
    # Largest slowdown of operators by their reserved share of the multiprocessors; None: no such
    # shares.
    max_sm_slowdown: float | None = None
    trade_off: Level | None = (
        None  # fewer devices, but worse than a coarser level in another figure
    )
    fcfs_devices: int | None = None  # devices without shortest-prompt-first order

    @property
    def is_fallback(self) -> bool:
        """Return whether this is the plan of a coarser level, since no finer one was better."""
        return self.method.startswith(tuple(FALLBACK_METHODS.values()))

    @property
    def placed(self) -> tuple[OperatorPlan, Placement]:
        """Return the plan by operators or runs of layers, and its placement; it must have both."""
        assert self.plan is not None
        assert self.placement is not None
        return self.plan, self.placement

    @property
    def mean_devices(self) -> int:
        """Return the fewest devices found that meet the limit on average, before any replay."""
        return (
            self.devices
            if self.devices_by_means is None
            else min(self.devices, self.devices_by_means)
        )

    def as_planned(self, phase: PhaseProblem) -> PhaseProblem:
        """Return ``phase`` in the form that this plan was made for.

        Its operators are merged into runs of layers if the plan uses these, and confined to
        their reserved shares if it has any. Its KV cache is that of requests in flight at the
        latency of the plan.
        """
        if self.plan is not None:
            phase = reserve_kv_cache(phase, self.latency_s)
        if self.max_sm_slowdown is not None:
            phase = confined_to_shares(phase, self.max_sm_slowdown)
        return phase if self.layer_runs is None else self.layer_runs(phase)


def with_uniform_choices(
    phase: PhaseProblem, batch_index: int, parallel_index: int
) -> PhaseProblem:
    """Return ``phase`` with only the batch and parallelism at these indices."""
    batches = slice(batch_index, batch_index + 1)
    return with_some_choices(phase, batches, slice(parallel_index, parallel_index + 1))


def level_order(level: Level) -> tuple[int, float]:
    """Return the key to sort levels, best first: devices, then power."""
    return level.devices, level.power_w


def no_worse(level: Level, other: Level) -> bool:
    """Return whether ``level`` is no worse than ``other`` in devices, power, memory and latency."""
    figures = ("devices", "power_w", "memory_bytes", "latency_s")
    return all(getattr(level, name) <= getattr(other, name) * ROUNDING for name in figures)


def fewest_devices(levels: Sequence[Level]) -> Level | None:
    """Return the level with the fewest devices; None without levels.

    Of several such levels, it is the one with the least memory among those whose power exceeds the
    least by at most the share ``EVEN``.
    """
    if not levels:
        return None
    fewest = min(level.devices for level in levels)
    candidates = [level for level in levels if level.devices == fewest]
    max_power_w = (1.0 + EVEN) * min(level.power_w for level in candidates)
    return min(
        (level for level in candidates if level.power_w <= max_power_w),
        key=lambda level: level.memory_bytes,
    )


def best_level(name: str, levels: Sequence[Level], coarser: Sequence[Level]) -> Level | None:
    """Return the best of ``levels`` that is no worse than any of ``coarser``, else a coarser one.

    ``name`` is the granularity of ``levels``. ``trade_off`` of the result is a level with fewer
    devices that is worse in another figure, if any. None without any level.
    """
    fewest = fewest_devices(levels)
    if not coarser:
        return fewest
    best_coarser = min(coarser, key=level_order)
    better = [
        level
        for level in levels
        if level_order(level) < level_order(best_coarser)
        and all(no_worse(level, other) for other in coarser)
    ]
    best = fewest_devices(better) or fallback_to(best_coarser, name)
    trade_off = fewest if fewest is not None and fewest.devices < best.devices else None
    return replace(best, trade_off=trade_off)


def fallback_to(coarser: Level, name: str) -> Level:
    """Return the plan ``coarser`` as that of the finer level ``name``."""
    method = FALLBACK_METHODS["module" if coarser.replicas is None else "model"]
    return replace(coarser, level=name, method=method)


@dataclass(frozen=True, slots=True)
class Savings:
    """Savings of a finer level as shares of the GPUs, energy and memory of whole replicas.

    A negative share is an extra cost. None if the figure of whole replicas is 0.
    """

    gpus: float | None
    energy: float | None
    memory: float | None


def saved_shares(coarse: Sequence[float], fine: Sequence[float]) -> Savings:
    """Return the shares of the figures ``coarse`` that the figures ``fine`` save.

    Both have three figures: GPUs, energy and memory, in equal units.
    """
    pairs = zip(coarse, fine, strict=True)
    return Savings(*(1.0 - finer / coarser if coarser else None for coarser, finer in pairs))


def savings(model: Level, fine: Level) -> Savings:
    """Return the savings of ``fine`` in devices, power and memory.

    ``model`` is the plan of whole replicas that it is compared with.
    """
    return saved_shares(
        (model.devices, model.power_w, model.memory_bytes),
        (fine.devices, fine.power_w, fine.memory_bytes),
    )
