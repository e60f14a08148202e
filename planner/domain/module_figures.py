"""Define the result figures of elastic replicas: the modules of each pool and their moves."""

from dataclasses import dataclass

import polars as pl

from simulation.modules.parts import Module


@dataclass(frozen=True, slots=True)
class PoolModules:
    """What happened to the modules of one pool: counts per replica, GPUs of all."""

    model: str
    region: str
    arrangement: str
    instances: int
    layers: int
    layer_gb: float
    operations: int
    copied: int  # layers copied, over all operations
    moved_layers: int
    moved_projections: int
    moved_caches: int
    given_up: int  # copies given up
    offloaded_gb: float
    acting_s: float  # total time of its operations
    mean_copies: float  # copied layers, mean over the window
    most_copies: int
    mean_borrowed_gpus: float
    most_borrowed_gpus: int
    mean_speed: float  # speed relative to a replica without copies
    kv_tokens: int  # KV capacity of one replica with all modules on its own GPUs
    most_kv_tokens: int  # KV capacity with its caches moved
    preemptions: int  # sequences that lost their cache because memory was full
    unused_memory: float  # unused share of the memory of its GPUs: fragmentation
    speedup: float  # S of Algorithm 1 with all idle capacity, 32 sequences in the batch
    exact_speedup: float | None  # speedup of the integer program; None if devices differ
    gap: float | None  # difference of the two speedups


@dataclass(frozen=True, slots=True, eq=False)
class ModuleFigures:
    """The module figures of one policy.

    ``parts`` are the memory and FLOPs of the modules of each model's layers, for 256 tokens.
    """

    policy: str
    label: str
    out_of_memory: int  # requests that failed because memory was full
    pools: tuple[PoolModules, ...]
    parts: dict[str, tuple[Module, ...]]


@dataclass(frozen=True, slots=True, eq=False)
class ModuleRun:
    """The module figures and tables of a run.

    ``standings`` has a row per change, pool and device. ``operations`` has one per operation.
    """

    figures: ModuleFigures
    standings: pl.DataFrame
    operations: pl.DataFrame
