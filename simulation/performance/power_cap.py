"""Speed and power of GPUs under a power cap, or at the clock that has the same power.

A cap slows a phase only if it is below the power that the phase draws without it. Measured speeds
of several models and batches then follow one curve of cap over uncapped power. Decodes read memory
and lose little. Prompts compute and lose more.
"""

from dataclasses import dataclass, replace

import numpy as np

from simulation.arrays import FloatArray
from simulation.errors import SimulationError
from simulation.performance.power import PowerModel
from simulation.performance.specs import Provenance


@dataclass(frozen=True, slots=True)
class PowerCap:
    """A power cap of GPUs, and the speed of prompts that remains under it."""

    share: float  # of TDP
    prefill_speed: float  # of the speed without a cap, (0, 1]
    clock_mhz: float | None = None  # locked GPU clock that draws this power, if it is known


@dataclass(frozen=True, slots=True, eq=False)
class CapCurve:
    """Remaining speed of a phase by the cap over its uncapped power, both ascending ``[n]``."""

    cap: FloatArray
    speed: FloatArray
    provenance: Provenance

    def __post_init__(self) -> None:
        ascends = (np.diff(self.cap) > 0).all() and (np.diff(self.speed) >= 0).all()
        if self.cap.shape != self.speed.shape or not self.cap.size or not ascends:
            raise SimulationError("Power caps and their speeds must ascend.")
        if not (self.cap[0] > 0 and self.speed[0] > 0 and self.speed[-1] <= 1):
            raise SimulationError("Power caps and speeds are shares above 0, speeds at most 1.")

    def speed_at(self, cap: float) -> float:
        """Return the speed at ``cap`` over uncapped power; raise SimulationError below the curve.

        From the last point on, the speed is 1 if that point has the full power.
        """
        if cap < self.cap[0] * (1 - 1e-9):
            raise SimulationError(
                f"A cap at {cap:.0%} of the power drawn is below the measured caps, which begin at "
                f"{self.cap[0]:.0%}. Choose a higher cap."
            )
        return float(np.interp(cap, np.append(self.cap, 1.0), np.append(self.speed, 1.0)))


def capped(model: PowerModel, cap: PowerCap) -> PowerModel:
    """Return the power of GPUs under a cap; prompts then take longer at the lower power."""
    return replace(
        model,
        cap=min(model.cap, cap.share),
        prefill=min(model.prefill, cap.share),
        prefill_efficiency=model.prefill_efficiency * cap.prefill_speed,
    )
