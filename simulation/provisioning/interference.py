"""How operators that share a GPU slow each other down: a stated model, to be replaced by a table.

An operator that runs alone keeps a share ``compute`` of the arithmetic that kernels reach on the
GPU and a share ``bandwidth`` of the memory bandwidth that they reach busy. Both are one for all on
a device and are divided among what runs there at an instant (processor sharing). What runs longer
meets more of the others, so with L the sum of the others' rho * compute (or * bandwidth)

    I = 1 + max over both of own share * L / (1 - L)

which is 1 / (1 - L), the law of processor sharing, for an operator that takes the whole device, and
an upper estimate for one that leaves a part free ((c + Y - 1)+ <= c Y for Y <= 1); never more than
with everything on the device running at once. A device keeps up only while the sums of rho *
compute and of rho * bandwidth are at most 1, and its board's power allows it. Provenance: modelled;
nothing here was fitted to the source's figures.

Where slowdowns were measured, an ``InterferenceTable`` takes its place: kind by kind how many times
as long a call takes beside another one,

    I = 1 + sum of others' rho * (S(kind, their kind) - 1) / (1 - L)

and pairs that nobody measured add what the physical model says of the two alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from simulation.arrays import FloatArray, IntArray
from simulation.errors import SimulationError
from simulation.performance.efficiency import KINDS

BANDWIDTH_SATURATES_AT = 0.4
"""Share of the SMs that can draw the full memory bandwidth. Assumed: a copy kernel on 108 SMs of an
A100 needs about 40 of them (little's law on 2 TB/s, 500 ns and 24 KB in flight per SM)."""


@dataclass(frozen=True, slots=True, eq=False)
class InterferenceTable:
    """Measured slowdowns on one GPU type, by kinds of operators (``efficiency.KINDS``)."""

    gpu: str
    source: str
    pairs: Mapping[tuple[str, str], float]  # (who, beside whom): seconds over seconds alone
    # By kind: shares of the SMs, ascending, and seconds with each over seconds with all.
    alone: Mapping[str, tuple[tuple[float, ...], tuple[float, ...]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if any(not times > 0 for times in self.pairs.values()):
            raise SimulationError("A measured slowdown must be above 0.")

    @property
    def matrix(self) -> FloatArray:
        """S of every pair of kinds, ``[K, K]``; NaN where nobody measured, never below 1."""
        slowdowns = np.full((len(KINDS), len(KINDS)), np.nan)
        for (slowed, other), times in self.pairs.items():
            if slowed in KINDS and other in KINDS:
                slowdowns[KINDS.index(slowed), KINDS.index(other)] = max(times, 1.0)
        return slowdowns


@dataclass(frozen=True, slots=True, eq=False)
class Demand:
    """What one replica of each operator needs of one GPU, each ``[V, B, P]`` unless said."""

    memory_bytes: FloatArray  # weights and transient memory
    compute: FloatArray  # share of the GPU's arithmetic while it runs, 0 to 1
    bandwidth: FloatArray  # share of its memory bandwidth while it runs, 0 to 1
    kept_bytes: FloatArray | None = None  # [V, P] KV cache in flight, divided among the replicas
    kinds: FloatArray | None = None  # [V, K] share of its time by ``KINDS``; needed with a table
    table: InterferenceTable | None = None
    board: FloatArray | None = None  # share of what its board may draw above its floor, 0 to 1
    apart: bool = False  # ``compute`` is what an operator keeps to itself, running or not ...
    slower: FloatArray | None = None  # ... and how many times as long that makes it

    def __post_init__(self) -> None:
        for name in ("compute", "bandwidth"):
            share = getattr(self, name)
            if ((share < 0) | (share > 1)).any():
                raise SimulationError(f"The share of {name} of an operator must be 0 to 1.")

    def shard_bytes(
        self, v: IntArray, b: IntArray, p: IntArray, replicas: IntArray | int
    ) -> FloatArray:
        """Memory of one shard of operators ``v`` at batch and parallelism indices ``b``, ``p``."""
        weights = self.memory_bytes[v, b, p]
        return weights if self.kept_bytes is None else weights + self.kept_bytes[v, p] / replicas

    def beside(self, compute: FloatArray, bandwidth: FloatArray) -> FloatArray:
        """What all of u's time adds to v's, ``[V, V]``, by the table; empty without one.

        ``compute`` and ``bandwidth`` are the shares of the chosen configurations, ``[V]``.
        """
        return beside(self.table, self.kinds, compute, bandwidth)


def beside(
    table: InterferenceTable | None,
    kinds: FloatArray | None,
    compute: FloatArray,
    bandwidth: FloatArray,
) -> FloatArray:
    """See ``Demand.beside``; ``kinds`` are of operators of any models."""
    if table is None or kinds is None:
        return np.empty((0, 0))
    physical = np.maximum(compute[:, None] + compute[None, :] - 1.0, 0.0)
    traffic = np.maximum(bandwidth[:, None] + bandwidth[None, :] - 1.0, 0.0)
    matrix = table.matrix
    known = np.isfinite(matrix)
    measured = kinds @ known @ kinds.T  # share of the pair's time that was measured
    added = kinds @ np.where(known, matrix - 1.0, 0.0) @ kinds.T
    lacking = np.clip(1.0 - measured, 0.0, 1.0)
    return np.asarray(added + lacking * np.maximum(physical, traffic), np.float64)


def latency_at_share(
    latency_s: npt.ArrayLike,
    compute: npt.ArrayLike,
    bandwidth: npt.ArrayLike,
    sm_share: npt.ArrayLike,
) -> FloatArray:
    """Seconds of an operator that may use a share of the SMs (figure 8): what is left of its
    latency after arithmetic and memory traffic, launches, does not change."""
    t, share = np.asarray(latency_s, np.float64), np.asarray(sm_share, np.float64)
    if ((share <= 0) | (share > 1)).any():
        raise SimulationError("A share of the SMs must be above 0 and at most 1.")
    arithmetic = t * np.asarray(compute) / share
    traffic = t * np.asarray(bandwidth) / np.minimum(1.0, share / BANDWIDTH_SATURATES_AT)
    return np.asarray(np.maximum(t, np.maximum(arithmetic, traffic)))


def measured_at_share(table: InterferenceTable, kind: str, sm_share: npt.ArrayLike) -> FloatArray:
    """Measured slowdown of ``kind`` with a share of the SMs; NaN where it was not measured."""
    share = np.asarray(sm_share, np.float64)
    if kind not in table.alone:
        return np.full(share.shape, np.nan)
    shares, times = (np.array([*values, 1.0]) for values in table.alone[kind])
    read = np.interp(share, shares, times)
    return np.asarray(np.where(share >= shares[0], read, np.nan), np.float64)
