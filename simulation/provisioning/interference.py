"""Model the slowdown of operators that share a GPU, or read it from a measured table.

An operator alone uses a share ``compute`` of the arithmetic that kernels reach on the GPU. It uses
a share ``bandwidth`` of the reachable memory bandwidth. Both are divided among the operators that
run at an instant (processor sharing). Operators that run longer meet more of the others. With L the
sum of the others' rho * compute (or * bandwidth):

    I = 1 + max over both of own share * L / (1 - L)

This is 1 / (1 - L), the law of processor sharing, for an operator that takes the whole device. For
smaller operators it is an upper estimate ((c + Y - 1)+ <= c Y for Y <= 1). It never exceeds the
slowdown with everything on the device running at once.

rho is the share of time that an operator runs. A device is stable only while the sums of
rho * compute and rho * bandwidth are at most 1, and the power limit of its board allows it.
Provenance: modelled; nothing was fitted to the source's figures.

If slowdowns were measured, an ``InterferenceTable`` replaces the model. It holds S, the time of one
kind of operator next to another kind, over its time alone:

    I = 1 + sum of others' rho * (S(kind, their kind) - 1) / (1 - L)

Pairs without a measurement add the physical model's value for the two. A published table is of
matrix products that are bound by computing, so the slower of table and model counts.

Matrix products that wait for memory (few rows) are a separate kind here. Next to one of them, a
product bound by computing takes about twice its time on an H100, although arithmetic is free.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from simulation.arrays import FloatArray, IntArray
from simulation.errors import SimulationError
from simulation.performance.efficiency import KINDS

GEMM_MEMORY_BOUND = "gemm_memory_bound"
SHARED_KINDS = (*KINDS, GEMM_MEMORY_BOUND)
"""Kinds of operators that differ in how they slow each other on one GPU."""
BANDWIDTH_SATURATES_AT = 0.4
"""Share of the SMs that can draw the full memory bandwidth. Assumed: a copy kernel on 108 SMs of an
A100 needs about 40 of them (little's law on 2 TB/s, 500 ns and 24 KB in flight per SM). Measured on
H100 and H200: 0.2 to 0.3 for products of few rows, about 0.5 and 0.8 for decode attention."""


@dataclass(frozen=True, slots=True, eq=False)
class InterferenceTable:
    """Measured slowdowns of kernels that share a GPU of one type, by kind (``SHARED_KINDS``)."""

    gpu: str
    source: str
    # (slowed kind, other kind): seconds together over seconds alone
    pairs: Mapping[tuple[str, str], float]
    # By kind: shares of the SMs, ascending, and seconds with each over seconds with all SMs.
    alone: Mapping[str, tuple[tuple[float, ...], tuple[float, ...]]] = field(default_factory=dict)
    # As ``pairs``, if each operator has its own share of the SMs: seconds next to the other over
    # seconds alone on that share.
    reserved: Mapping[tuple[str, str], float] = field(default_factory=dict)
    published: bool = False  # measured by others, on sizes of their own

    def __post_init__(self) -> None:
        if any(not slowdown > 0 for slowdown in self.pairs.values()):
            raise SimulationError("A measured slowdown must be above 0.")

    @property
    def matrix(self) -> FloatArray:
        """Return the slowdown of each kind (row) by each other kind (column), ``[K, K]``.

        It is at least 1, and NaN if it was not measured. If no memory-bound matrix product was
        measured, they get the slowdowns of the others.
        """
        slowdowns = np.full((len(SHARED_KINDS), len(SHARED_KINDS)), np.nan)
        for (slowed, running), slowdown in self.pairs.items():
            if slowed in SHARED_KINDS and running in SHARED_KINDS:
                pair = SHARED_KINDS.index(slowed), SHARED_KINDS.index(running)
                slowdowns[pair] = max(slowdown, 1.0)
        gemm, memory_bound = (SHARED_KINDS.index(kind) for kind in ("gemm", GEMM_MEMORY_BOUND))
        if not any(GEMM_MEMORY_BOUND in pair for pair in self.pairs):
            slowdowns[memory_bound] = slowdowns[gemm]
            slowdowns[:, memory_bound] = slowdowns[:, gemm]
        return slowdowns

    def on_reserved_shares(self) -> "InterferenceTable | None":
        """Return the table for operators with reserved shares of the SMs; None if not measured."""
        return replace(self, pairs=self.reserved, alone={}) if self.reserved else None


@dataclass(frozen=True, slots=True, eq=False)
class Demand:
    """Use of a GPU by one replica of each operator, ``[V, B, P]`` unless stated otherwise."""

    memory_bytes: FloatArray  # weights and transient memory
    compute: FloatArray  # share of the GPU's arithmetic while it runs, 0 to 1
    bandwidth: FloatArray  # share of its memory bandwidth while it runs, 0 to 1
    # [V, P] KV cache in flight, of all replicas together; default: 0
    kv_bytes: FloatArray = field(default_factory=lambda: np.zeros(0))
    # [V, K] share of its time by ``SHARED_KINDS``; required with a table
    kinds: FloatArray | None = None
    table: InterferenceTable | None = None
    # Share of the board power above its floor while it runs, 0 to 1; default: 0
    board: FloatArray = field(default_factory=lambda: np.zeros(0))
    compute_reserved: bool = False  # ``compute`` is reserved for the operator, running or not
    share_slowdown: FloatArray | None = None  # slowdown factor by this reserved share

    def __post_init__(self) -> None:
        operators, _, parallel = self.compute.shape
        for name, shape in (("kv_bytes", (operators, parallel)), ("board", self.compute.shape)):
            if not getattr(self, name).size:
                object.__setattr__(self, name, np.zeros(shape))

    def shard_bytes(
        self, v: IntArray, b: IntArray, p: IntArray, replicas: IntArray | int
    ) -> FloatArray:
        """Return the bytes of a shard (one GPU's part of a replica) of operators ``v``.

        ``b`` are the indices of their batches, ``p`` those of their parallelisms. The KV cache is
        divided among ``replicas``.
        """
        return np.asarray(self.memory_bytes[v, b, p] + self.kv_bytes[v, p] / replicas)


def interference_matrix(
    table: InterferenceTable | None,
    kinds: FloatArray | None,
    compute: FloatArray,
    bandwidth: FloatArray,
) -> FloatArray:
    """Return the extra time of each operator (row) if another (column) always runs next to it.

    The matrix ``[V, V]`` is relative to the time alone, and empty without a table. ``kinds [V, K]``
    are the operators' shares of time by kind. ``compute [V]`` and ``bandwidth [V]`` are shares of
    the GPU. Pairs of kinds without a measurement use the physical model.
    """
    if table is None or kinds is None:
        return np.empty((0, 0))
    # Physical model: two operators need more than the GPU has if their shares exceed 1 together.
    arithmetic_excess = np.maximum(compute[:, None] + compute[None, :] - 1.0, 0.0)
    bandwidth_excess = np.maximum(bandwidth[:, None] + bandwidth[None, :] - 1.0, 0.0)
    modelled = np.maximum(arithmetic_excess, bandwidth_excess)  # [V, V]
    # Measurements of kinds [K, K], weighted by the operators' shares of time by kind.
    slowdowns = table.matrix
    known = np.isfinite(slowdowns)
    measured_share = kinds @ known @ kinds.T  # share of the pair's time with a measurement
    measured_extra = kinds @ np.where(known, slowdowns - 1.0, 0.0) @ kinds.T
    unmeasured_share = np.clip(1.0 - measured_share, 0.0, 1.0)
    extra = measured_extra + unmeasured_share * modelled
    return np.asarray(np.maximum(extra, modelled) if table.published else extra, np.float64)


def joint_interference(
    demands: Sequence[Demand], compute: FloatArray, bandwidth: FloatArray
) -> FloatArray:
    """Return ``interference_matrix`` of the operators of several services on one GPU type.

    ``demands`` has one entry per service. ``compute`` and ``bandwidth`` are the shares of all
    operators, service by service. The matrix is empty unless a table was measured and the kinds of
    all operators are known.
    """
    tables = [demand.table for demand in demands if demand.table is not None]
    kinds = [demand.kinds for demand in demands if demand.kinds is not None]
    if not tables or len(kinds) < len(demands):
        return np.empty((0, 0))
    return interference_matrix(tables[0], np.concatenate(kinds), compute, bandwidth)


def latency_at_share(
    latency_s: npt.ArrayLike,
    compute: npt.ArrayLike,
    bandwidth: npt.ArrayLike,
    sm_share: npt.ArrayLike,
) -> FloatArray:
    """Return the seconds of an operator limited to a share of the SMs (figure 8 of the source).

    ``latency_s`` are its seconds with all SMs. ``compute`` and ``bandwidth`` are the shares of the
    whole GPU that it then uses, 0 to 1. Only arithmetic and memory traffic get slower, not
    launches. Raises SimulationError for shares outside (0, 1].
    """
    whole_s, share = np.asarray(latency_s, np.float64), np.asarray(sm_share, np.float64)
    if ((share <= 0) | (share > 1)).any():
        raise SimulationError("A share of the SMs must be above 0 and at most 1.")
    bandwidth_share = np.minimum(1.0, share / BANDWIDTH_SATURATES_AT)
    arithmetic_s = whole_s * np.asarray(compute) / share
    traffic_s = whole_s * np.asarray(bandwidth) / bandwidth_share
    return np.asarray(np.maximum(whole_s, np.maximum(arithmetic_s, traffic_s)))


def measured_at_share(table: InterferenceTable, kind: str, sm_share: npt.ArrayLike) -> FloatArray:
    """Return the measured slowdown of ``kind`` with a share of the SMs; NaN if not measured."""
    share = np.asarray(sm_share, np.float64)
    if kind not in table.alone:
        return np.full(share.shape, np.nan)
    measured_shares, measured_slowdowns = table.alone[kind]
    # With all SMs, the slowdown is 1.
    slowdown = np.interp(share, [*measured_shares, 1.0], [*measured_slowdowns, 1.0])
    smallest = measured_shares[0] if measured_shares else 1.0
    return np.asarray(np.where(share >= smallest, slowdown, np.nan), np.float64)


def modelled_over_table(table: InterferenceTable) -> FloatArray:
    """Return the modelled over the measured slowdown of decode attention, by share of the SMs.

    It is empty without measurements.
    """
    shares, slowdowns = table.alone.get("attention_decode", ((), ()))
    modelled = latency_at_share(1.0, 0.0, 1.0, shares)  # decode attention is bound by bandwidth
    return np.asarray(modelled / slowdowns, np.float64)
