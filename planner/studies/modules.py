"""What a run says of elastic instances: of each pool's modules, and what was where from when on."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from simulation.modules.parts import Module


@dataclass(frozen=True, slots=True)
class PoolModules:
    """One pool's elastic instances; counts are of each instance, GPUs of all of them."""

    model: str
    region: str
    arrangement: str
    instances: int
    layers: int
    layer_gb: float
    operations: int
    copied: int  # layers, over all operations
    moved_layers: int
    moved_projections: int
    moved_caches: int
    given_up: int  # copies
    offloaded_gb: float
    acting_s: float  # that its operations took together
    mean_copies: float  # layers copied, over the window
    most_copies: int
    mean_borrowed_gpus: float
    most_borrowed_gpus: int
    mean_speed: float  # times as fast as without copies
    kv_tokens: int  # of one instance with everything at home
    most_kv_tokens: int  # with its caches moved
    preemptions: int  # sequences that lost their cache for want of memory
    unused_memory: float  # share of the memory of the GPUs held that nothing used: fragmentation
    speedup: float  # S that Algorithm 1 plans with all idle room, 32 sequences in the batch
    exact_speedup: float | None  # of the integer program; None where devices differ
    gap: float | None  # between the two


@dataclass(frozen=True, slots=True, eq=False)
class ModuleFigures:
    """``parts``: memory and FLOPs of the modules of each model's layers, for 256 tokens."""

    policy: str
    label: str
    out_of_memory: int  # requests given up for it
    pools: tuple[PoolModules, ...]
    parts: dict[str, tuple[Module, ...]]


@dataclass(frozen=True, slots=True, eq=False)
class ModuleRun:
    """``standings`` has a row per change, pool and device, ``operations`` one per operation."""

    figures: ModuleFigures
    standings: pl.DataFrame
    operations: pl.DataFrame
