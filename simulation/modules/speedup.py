"""Speed-up of an instance with replicas of some of its layers.

The formulas are missing from the text of the source. They are rebuilt from its description (section
4.1, equations 1 to 4). p_i is the number of copies of layer i, which split the batch evenly. delta
is the number of maximal runs of consecutive layers replicated on a device, summed over devices.
gamma is the time of one scatter and gather over that of one layer.

    homogeneous:    S = n / (sum_i 1 / p_i + gamma delta)
    heterogeneous:  S = sum_i 1 / v_home(i) / (sum_i max over copies of 1 / (p_i v_d) + gamma delta)

This is the speed-up of one pass. Throughput and latency under load come from the simulator. The
source measured 4.3 times the throughput at an S of 1.6, because the unreplicated instance queued.
"""

from dataclasses import dataclass

import numpy as np

from simulation.arrays import BoolArray, FloatArray, IntArray
from simulation.errors import SimulationError


@dataclass(frozen=True, slots=True, eq=False)
class ModuleProblem:
    """One instance and the devices that its layers may be copied to."""

    home: IntArray  # [n] device of each layer's original
    layer_bytes: float
    free_bytes: FloatArray  # [D] memory for replicas, after a safety margin
    vacancy: FloatArray  # [D] idle share of the device, 0 to 1
    speed: FloatArray  # [D] relative speed; all equal in a homogeneous cluster
    gamma: float  # seconds of one scatter and gather over seconds of one layer at speed 1

    def __post_init__(self) -> None:
        devices = self.free_bytes.size
        if self.vacancy.size != devices or self.speed.size != devices:
            raise SimulationError("Free memory, vacancy and speed must be given for every device.")
        if self.home.size == 0 or self.home.min() < 0 or self.home.max() >= devices:
            raise SimulationError("Every layer needs a home among the devices.")
        if self.layer_bytes <= 0 or self.gamma < 0 or (self.speed <= 0).any():
            raise SimulationError("Layer size and speeds must be positive, gamma not negative.")

    @property
    def room(self) -> IntArray:
        """Return the number of replicas that fit on each device."""
        return np.floor(np.maximum(self.free_bytes, 0.0) / self.layer_bytes).astype(np.int64)


def runs(replicated: BoolArray) -> int:
    """Return delta: the maximal runs of layers in ``replicated [n, D]``, summed over devices."""
    before = np.zeros_like(replicated)
    before[1:] = replicated[:-1]
    return int((replicated & ~before).sum())


def speedup(problem: ModuleProblem, replicated: BoolArray) -> float:
    """Return the speed-up S; ``replicated[i, d]`` is True if device d has a copy of layer i."""
    n = problem.home.size
    copies = replicated.copy()
    copies[np.arange(n), problem.home] = True
    parallel = copies.sum(axis=1)
    slowest = np.where(copies, problem.speed[None, :], np.inf).min(axis=1)
    compute = (1.0 / (parallel * slowest)).sum()
    return float(
        (1.0 / problem.speed[problem.home]).sum() / (compute + problem.gamma * runs(replicated))
    )
