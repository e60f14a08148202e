"""Compare a finer level with whole replicas."""

from collections.abc import Sequence
from dataclasses import dataclass

from simulation.provisioning.level import Level


@dataclass(frozen=True, slots=True)
class Savings:
    """Shares that a finer level saves of whole replicas.

    Negative: extra cost. None: no comparison.
    """

    gpus: float | None
    energy: float | None
    memory: float | None


def saved_shares(coarse: Sequence[float], fine: Sequence[float]) -> Savings:
    """Return the shares that ``fine`` saves of ``coarse``.

    Both have three figures: GPUs, energy and memory. Their units cancel.
    """
    return Savings(
        *(
            1.0 - fine_figure / coarse_figure if coarse_figure else None
            for coarse_figure, fine_figure in zip(coarse, fine, strict=True)
        )
    )


def savings(model: Level, fine: Level) -> Savings:
    """Return what shares ``fine`` saves of the devices, power and memory of ``model``.

    ``model`` is a level of whole replicas.
    """
    coarse, finer = ((level.devices, level.power_w, level.memory_bytes) for level in (model, fine))
    return saved_shares(coarse, finer)
