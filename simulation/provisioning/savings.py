"""Compare a finer level with whole replicas."""

from collections.abc import Sequence
from dataclasses import dataclass

from simulation.provisioning.level import Level


@dataclass(frozen=True, slots=True)
class Savings:
    """Shares saved compared with whole replicas. Negative: extra cost. None: no comparison."""

    gpus: float | None
    energy: float | None
    memory: float | None


def saved_shares(coarse: Sequence[float], fine: Sequence[float]) -> Savings:
    """Return the shares that ``fine`` saves of ``coarse``: of GPUs, energy and memory, any unit."""
    return Savings(
        *(
            1.0 - fine_figure / coarse_figure if coarse_figure else None
            for coarse_figure, fine_figure in zip(coarse, fine, strict=True)
        )
    )


def savings(model: Level, fine: Level) -> Savings:
    """Compare devices, power and memory of ``fine`` with those of ``model``."""
    coarse, finer = ((level.devices, level.power_w, level.memory_bytes) for level in (model, fine))
    return saved_shares(coarse, finer)
