"""Describe the result of one granularity, and choose between finer and coarser ones."""

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
ROUNDING = 1.0 + 1e-9


@dataclass(frozen=True, slots=True)
class LayerRuns:
    """Turns a phase of operators into one of runs of layers, with one batch and parallelism.

    ``b`` and ``p`` are the indices of these in the phase's problem.
    """

    b: int
    p: int

    def __call__(self, phase: PhaseProblem) -> PhaseProblem:
        """Return ``phase`` by runs of layers, with this batch and parallelism only."""
        return with_uniform_choices(merge_layers(phase), self.b, self.p)


@dataclass(frozen=True, slots=True)
class ReplayedLatency:
    """Latencies of replayed requests, and the share of them within the limit.

    It is the latency that the limit is on: TTFT of prompts, mean gap between tokens of sequences.
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
    """A plan of a phase at one granularity ("level"): replica, layers or operators.

    ``least_devices`` is a proven lower bound on plans that meet the limit on average.
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
    by_means: int | None = None  # fewest devices found for the limit on average; None: ``devices``
    plan: OperatorPlan | None = None
    placement: Placement | None = None
    replicas: ReplicaPlan | None = None
    cut: LayerRuns | None = None  # for runs of layers only
    replayed: ReplayedLatency | None = None  # replay of this level; None: not replayed
    # Largest slowdown of operators by their reserved share of the multiprocessors; None: no such
    # shares.
    confined: float | None = None
    trade: Level | None = None  # fewer devices, but worse than a coarser level in another figure
    in_turn: int | None = None  # devices without shortest-prompt-first order

    @property
    def mean_devices(self) -> int:
        """Return the fewest devices found that meet the limit on average, before any replay."""
        return self.devices if self.by_means is None else min(self.devices, self.by_means)

    def as_planned(self, phase: PhaseProblem) -> PhaseProblem:
        """Return ``phase`` in the form that this plan was made for.

        Its operators are merged into runs of layers if the plan uses these, and confined to their
        reserved shares if it has any. Its KV cache is that of requests in flight at the plan's
        latency.
        """
        if self.plan is not None:
            phase = reserve_kv_cache(phase, self.latency_s)
        if self.confined is not None:
            phase = confined_to_shares(phase, self.confined)
        return phase if self.cut is None else self.cut(phase)


def with_uniform_choices(phase: PhaseProblem, b: int, p: int) -> PhaseProblem:
    """Return ``phase`` with only the batch and parallelism at these indices."""
    return with_some_choices(phase, slice(b, b + 1), slice(p, p + 1))


def level_order(level: Level) -> tuple[int, float]:
    """Return the sort key of a level: devices, then power."""
    return level.devices, level.power_w


def no_worse(level: Level, other: Level) -> bool:
    """Return whether ``level`` is not worse than ``other`` in any compared figure."""
    return all(
        ours <= theirs * ROUNDING
        for ours, theirs in zip(_figures(level), _figures(other), strict=True)
    )


def _figures(level: Level) -> tuple[float, ...]:
    """Return the compared figures: devices, power, memory and latency."""
    return level.devices, level.power_w, level.memory_bytes, level.latency_s


def fewest_devices(levels: Sequence[Level]) -> Level | None:
    """Return the level with the fewest devices; None without levels.

    Among equals, those within ``EVEN`` of the least power count, and the one with the least memory
    wins.
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

    ``trade`` of the result is a level with fewer devices that is worse in another figure, if any.
    """
    best_coarser = min(coarser, key=level_order, default=None)
    if best_coarser is None:
        return fewest_devices(levels)
    candidates = [level for level in levels if all(no_worse(level, other) for other in coarser)]
    best = fewest_devices(
        [level for level in candidates if level_order(level) < level_order(best_coarser)]
    )
    if best is None:
        fallback = "module" if best_coarser.replicas is None else "model"
        best = replace(best_coarser, level=name, method=FALLBACK_METHODS[fallback])
    fewest = fewest_devices(levels)
    trade = fewest if fewest is not None and fewest.devices < best.devices else None
    return replace(best, trade=trade)


@dataclass(frozen=True, slots=True)
class Savings:
    """Shares that a finer level saves of whole replicas.

    Negative: extra cost. None: no comparison.
    """

    gpus: float | None
    energy: float | None
    memory: float | None


def saved_shares(coarse: Sequence[float], fine: Sequence[float]) -> Savings:
    """Return the shares that ``fine`` saves of ``coarse``.

    Both have three figures: GPUs, energy and memory. Their units cancel.
    """
    return Savings(
        *(
            1.0 - fine_figure / coarse_figure if coarse_figure else None
            for coarse_figure, fine_figure in zip(coarse, fine, strict=True)
        )
    )


def savings(model: Level, fine: Level) -> Savings:
    """Return what shares ``fine`` saves of the devices, power and memory of ``model``.

    ``model`` is a level of whole replicas.
    """
    coarse, finer = ((level.devices, level.power_w, level.memory_bytes) for level in (model, fine))
    return saved_shares(coarse, finer)
