"""Cost of an action: seconds and memory to replicate or migrate modules.

An operation takes a fixed start time, plus its bytes over the bandwidth of the link. The start time
is that of the source's smallest operation (CoCoServe, section 6.5, table 2: one layer of LLaMA-13B
over PCIe 4.0). From 10 layers on, that table has fewer seconds than the bytes need over PCIe.
"""

from dataclasses import dataclass

from simulation.errors import SimulationError

MIB = 2.0**20
LAYER_BYTES = 605 * MIB  # of LLaMA-13B, table 1
PCIE_BYTES_S = 25e9  # what copies reach of the 31.5 GB/s of PCIe 4.0 x16
START_S = {
    "replicate": 0.2987 - LAYER_BYTES / PCIE_BYTES_S,
    "migrate": 0.2492 - LAYER_BYTES / PCIE_BYTES_S,
}
MORE_BYTES = 502 * MIB  # of an operation, besides its modules (table 2)
COORDINATE_S = 0.0391
"""Seconds of coordination between copies and originals after an operation (section 6.5)."""
LATENCY_DISTURBANCE = 0.05
"""Largest rise of the latency of instances on the same devices during an operation (section 8)."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of an operation on modules, and the memory that it uses."""

    seconds: float
    memory_bytes: float


def acting_cost(action: str, size_bytes: float, link_bytes_s: float) -> Cost:
    """Return the cost of a ``replicate`` or ``migrate`` of modules of ``size_bytes``.

    Raises ``SimulationError`` for a size or a bandwidth of 0 or less, or an unknown action.
    """
    if size_bytes <= 0 or link_bytes_s <= 0:
        raise SimulationError("The size of modules and the bandwidth must be positive.")
    if action not in START_S:
        raise SimulationError(f"Unknown action {action!r}. Use replicate or migrate.")
    return Cost(START_S[action] + size_bytes / link_bytes_s, MORE_BYTES + size_bytes)
