"""How operators that share a GPU slow each other down: a stated model, to be replaced by a table.

An operator that runs alone keeps a share ``compute`` of the GPU's arithmetic and a share
``bandwidth`` of its memory bandwidth busy (roofline times over its latency). Arithmetic is divided
with the SMs; bandwidth is one for all and is saturated well below all SMs, so two memory-bound
operators on one device always slow each other (methods.md A6). What else runs on the device is
expected by its utilisation, so

    I = max(1, compute + sum of others' rho * compute, bandwidth + sum of others' rho * bandwidth)

and a device keeps up only while the sums of rho * compute and of rho * bandwidth are at most 1.
Provenance: modelled; nothing here was fitted to the source's figures.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simulation.errors import SimulationError

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

BANDWIDTH_SATURATES_AT = 0.4
"""Share of the SMs that can draw the full memory bandwidth. Assumed: a copy kernel on 108 SMs of an
A100 needs about 40 of them (little's law on 2 TB/s, 500 ns and 24 KB in flight per SM)."""


@dataclass(frozen=True, slots=True, eq=False)
class Demand:
    """What one replica of each operator needs of one GPU, each ``[V, B, P]`` but the last."""

    memory_bytes: FloatArray  # weights and transient memory
    compute: FloatArray  # share of the GPU's arithmetic while it runs, 0 to 1
    bandwidth: FloatArray  # share of its memory bandwidth while it runs, 0 to 1
    kept_bytes: FloatArray | None = None  # [V, P] KV cache in flight, divided among the replicas

    def __post_init__(self) -> None:
        for name in ("compute", "bandwidth"):
            share = getattr(self, name)
            if ((share < 0) | (share > 1)).any():
                raise SimulationError(f"The share of {name} of an operator must be 0 to 1.")

    def shard_bytes(self, v: IntArray, b: IntArray, p: IntArray, replicas: IntArray) -> FloatArray:
        """Memory of one shard of operators ``v`` at batch and parallelism indices ``b``, ``p``."""
        own = self.memory_bytes[v, b, p]
        return own if self.kept_bytes is None else own + self.kept_bytes[v, p] / replicas


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
