"""What a finer level saves against whole replicas."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simulation.provisioning.level import Level


@dataclass(frozen=True, slots=True)
class Savings:
    """Shares saved against whole replicas; negative: it costs. None against nothing."""

    gpus: float | None
    energy: float | None
    memory: float | None


def saved(coarse: Sequence[float], fine: Sequence[float]) -> Savings:
    """``fine`` against ``coarse``, each GPUs, energy and memory in whatever unit."""
    return Savings(*(1.0 - f / w if w else None for w, f in zip(coarse, fine, strict=True)))


def savings(model: Level, fine: Level) -> Savings:
    """Devices, power and memory of ``fine`` against ``model``."""
    coarse, finer = ((level.devices, level.power_w, level.memory_bytes) for level in (model, fine))
    return saved(coarse, finer)
