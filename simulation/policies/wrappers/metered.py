"""A policy's signal metered, so that one that never moves can be told (methods.md X1)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulation.arrays import IntArray
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
        above = np.broadcast_to(gauge.out_above, gauge.values.shape)[read]
        below = np.broadcast_to(gauge.in_below, gauge.values.shape)[read]
        seen = Swing(
            gauge.words,
            gauge.share,
            low=float(values.min()),
            high=float(values.max()),
            out_above=float(above.min()),
            in_below=float(below.max()),
            asked_more=bool((values > above).any()),
            asked_fewer=bool((values < below).any()),
        )
        before = self.swing or seen
        self.swing = Swing(
            seen.words,
            seen.share,
            low=min(before.low, seen.low),
            high=max(before.high, seen.high),
            out_above=min(before.out_above, seen.out_above),
            in_below=max(before.in_below, seen.in_below),
            asked_more=before.asked_more or seen.asked_more,
            asked_fewer=before.asked_fewer or seen.asked_fewer,
        )
