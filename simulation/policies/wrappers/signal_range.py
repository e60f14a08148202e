"""Record the range of a policy's signal, to show a signal that never changes (methods.md X1)."""

from dataclasses import dataclass
from math import isfinite

import numpy as np

from simulation.arrays import FloatArray, IntArray
from simulation.fleet import Fleet
from simulation.policies.wrappers.wrapper import Wrapper
from simulation.policy import Actions, Gauge, Hold, Observation, ScalingPolicy


@dataclass(frozen=True, slots=True)
class SignalRange:
    """Range of a policy's signal over all decisions of a run."""

    words: str  # name of the signal
    share: bool  # values are shares of 1
    low: float
    high: float
    out_above: float  # smallest threshold to grow; NaN: some pool has none
    in_below: float  # largest threshold to shrink; NaN: some pool has none
    asked_more: bool  # a value was above its threshold to grow
    asked_fewer: bool  # a value was below its threshold to shrink


class SignalRecorder(Wrapper):
    """Run ``policy`` unchanged and record its signal in ``signal_range``.

    ``signal_range`` is None for a policy without a signal, or if the signal was never read.
    """

    def __init__(self, policy: ScalingPolicy) -> None:
        super().__init__(policy)
        self.signal_range: SignalRange | None = None

    def reset(self, fleet: Fleet) -> IntArray:
        self.signal_range = None
        return super().reset(fleet)

    def decide(self, observation: Observation) -> IntArray | Actions:
        answer = self._policy.decide(observation)
        gauge = self.gauge(observation)
        if gauge is not None:
            self._extend_range(gauge)
        return answer

    def hold(self, time_s: float) -> Hold | None:
        return super().hold(time_s) if self._gauged is None else None

    def _extend_range(self, gauge: Gauge) -> None:
        """Extend ``signal_range`` by the values of ``gauge`` at a decision."""
        values = gauge.values.tolist()  # Python numbers are faster than arrays of a few pools
        above = _limit_per_value(gauge.out_above, values)
        below = _limit_per_value(gauge.in_below, values)
        readings = [row for row in zip(values, above, below, strict=True) if isfinite(row[0])]
        if not readings or (
            self.signal_range is not None
            and _leaves_unchanged(self.signal_range, gauge.words, readings)
        ):
            return
        measured = [value for value, _, _ in readings]
        signal_range = SignalRange(
            gauge.words, gauge.share, float(min(measured)), float(max(measured)),
            -_largest_limit([-limit for _, limit, _ in readings]),  # the smallest of them
            _largest_limit([limit for _, _, limit in readings]),
            any(value > limit for value, limit, _ in readings),
            any(value < limit for value, _, limit in readings),
        )  # fmt: skip
        self.signal_range = (
            signal_range if self.signal_range is None else _union(self.signal_range, signal_range)
        )


def _leaves_unchanged(
    signal_range: SignalRange, words: str, readings: list[tuple[float, float, float]]
) -> bool:
    """Return whether ``readings`` of signal ``words`` are in ``signal_range``, the usual case.

    A reading is a pool's value, and the thresholds above and below which its policy acts.
    """
    return words == signal_range.words and all(
        signal_range.low <= value <= signal_range.high
        and above >= signal_range.out_above
        and below <= signal_range.in_below
        and (signal_range.asked_more or not value > above)
        and (signal_range.asked_fewer or not value < below)
        for value, above, below in readings
    )


def _largest_limit(limits: list[float]) -> float:
    """Return the largest limit; NaN if a pool has none."""
    return float("nan") if any(limit != limit for limit in limits) else float(max(limits))


def _limit_per_value(limit: FloatArray | float, values: list[float]) -> list[float]:
    """Return one limit for each value."""
    if isinstance(limit, int | float):
        return [limit] * len(values)
    limits: list[float] = np.broadcast_to(limit, len(values)).tolist()
    return limits


def _union(before: SignalRange, now: SignalRange) -> SignalRange:
    """Return a range that covers both; ``now`` names it."""
    return SignalRange(
        now.words,
        now.share,
        min(before.low, now.low),
        max(before.high, now.high),
        min(before.out_above, now.out_above),
        max(before.in_below, now.in_below),
        before.asked_more or now.asked_more,
        before.asked_fewer or now.asked_fewer,
    )
