"""A policy's signal metered, so that one that never moves can be told (methods.md X1)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulation.arrays import BoolArray, FloatArray, IntArray
from simulation.fleet import Fleet
from simulation.policies.wrappers.wrapper import Wrapper
from simulation.policy import Actions, Gauge, Observation, ScalingPolicy


@dataclass(frozen=True, slots=True)
class Swing:
    """How far a signal swung over a run: the least and the most that any of its decisions was
    shown, with the least threshold to ask for more, the largest to ask for fewer, and whether each
    was ever passed where it applies."""

    words: str
    share: bool
    low: float
    high: float
    out_above: float
    in_below: float
    asked_more: bool
    asked_fewer: bool


class Metered(Wrapper):
    """``policy``, unchanged; ``swing`` is that of its signal since the start, None where it goes by
    none, or none was ever read."""

    def __init__(self, policy: ScalingPolicy) -> None:
        super().__init__(policy)
        self.swing: Swing | None = None

    def reset(self, fleet: Fleet) -> IntArray:
        self.swing = None
        return super().reset(fleet)

    def decide(self, observation: Observation) -> IntArray | Actions:
        answer = self._policy.decide(observation)
        gauge = self.gauge(observation)
        if gauge is not None:
            self._note(gauge)
        return answer

    def _note(self, gauge: Gauge) -> None:
        read = np.isfinite(gauge.values)
        if not read.any():
            return
        values = gauge.values[read]
        above, below = _where(gauge.out_above, read), _where(gauge.in_below, read)
        low, high = float(values.min()), float(values.max())
        least, most = float(np.min(above)), float(np.max(below))
        more, fewer = bool((values > above).any()), bool((values < below).any())
        before = self.swing
        if before is not None:
            low, high = min(before.low, low), max(before.high, high)
            least, most = min(before.out_above, least), max(before.in_below, most)
            more, fewer = before.asked_more or more, before.asked_fewer or fewer
        self.swing = Swing(gauge.words, gauge.share, low, high, least, most, more, fewer)


def _where(limit: FloatArray | float, read: BoolArray) -> FloatArray | float:
    """One limit for all, or those of the values that were ``read``."""
    return limit if np.ndim(limit) == 0 else np.broadcast_to(limit, read.shape)[read]
