"""Define the figures of policies that scale parts of a replica, its modules, such as layers."""

from dataclasses import dataclass

import polars as pl

from simulation.modules.parts import Module


@dataclass(frozen=True, slots=True)
class PoolModules:
    """Copies and moves of modules (layers, projections, KV caches) in the replicas of one pool."""

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
    given_up: int  # copies that were removed
    offloaded_gb: float
    acting_s: float  # total time of its operations
    mean_copies: float  # copied layers of a replica, mean over the window
    most_copies: int
    mean_borrowed_gpus: float  # of all replicas together
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

    ``parts`` are the modules of a layer by model, with their memory and their FLOPs for 256 tokens.
    """

    policy: str
    label: str
    out_of_memory: int  # requests that failed because memory was full
    pools: tuple[PoolModules, ...]
    parts: dict[str, tuple[Module, ...]]


@dataclass(frozen=True, slots=True, eq=False)
class ModuleRun:
    """The module figures and tables of a policy's replay.

    ``standings`` has the placement of modules, with a row per change, pool and device.
    ``operations`` has a row per operation.
    """

    figures: ModuleFigures
    standings: pl.DataFrame
    operations: pl.DataFrame
