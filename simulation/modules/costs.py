"""Cost of an action: seconds and memory to replicate or migrate layers (B4)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulation.errors import SimulationError

MIB = 2.0**20
# CoCoServe, section 6.5, table 2: LLaMA-13B on A100-40GB PCIe, used as given.
LAYERS = np.array([1.0, 10.0, 20.0, 30.0, 40.0])
REPLICATE_S = np.array([0.2987, 0.3581, 0.3826, 0.4947, 0.8938])
MIGRATE_S = np.array([0.2492, 0.3181, 0.3426, 0.3947, 0.8138])
MEMORY_MIB = np.array([1107.0, 6579.0, 12659.0, 18739.0, 24819.0])
LAYER_MIB = 605.0  # of LLaMA-13B, table 1

COORDINATE_S = 0.0391
"""Seconds of coordination between copies and originals after an operation (section 6.5)."""
THROUGHPUT_DISTURBANCE, LATENCY_DISTURBANCE = 0.03, 0.05
"""Largest loss of instances on the same devices during an operation (section 8)."""


@dataclass(frozen=True, slots=True)
class Cost:
    seconds: float
    memory_bytes: float


def acting_cost(action: str, layers: float, layer_bytes: float) -> Cost:
    """Return the cost of acting on ``layers`` layers at once; ``replicate`` or ``migrate``.

    Values between the rows of table 2 are interpolated. Beyond them its last slope applies. Layers
    of another size count by bytes: k layers of twice the size cost as much as 2 k layers of the
    table (modelled). Raises ``SimulationError`` for sizes of 0 or less, or an unknown action.
    """
    if layers <= 0 or layer_bytes <= 0:
        raise SimulationError("Layers to act on and their size must be positive.")
    seconds = {"replicate": REPLICATE_S, "migrate": MIGRATE_S}.get(action)
    if seconds is None:
        raise SimulationError(f"Unknown action {action!r}. Use replicate or migrate.")
    k = layers * layer_bytes / (LAYER_MIB * MIB)
    return Cost(_interpolate(k, seconds), _interpolate(k, MEMORY_MIB) * MIB)


def _interpolate(k: float, values: np.typing.NDArray[np.float64]) -> float:
    if k <= LAYERS[-1]:
        return float(np.interp(k, LAYERS, values))
    slope = (values[-1] - values[-2]) / (LAYERS[-1] - LAYERS[-2])
    return float(values[-1] + slope * (k - LAYERS[-1]))
