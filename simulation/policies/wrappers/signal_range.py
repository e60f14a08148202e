"""Record the range of a policy's signal, to show a signal that never changes (methods.md X1)."""

from dataclasses import dataclass, replace
from math import isfinite, isnan, nan

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
        out_above = _limit_per_value(gauge.out_above, values)
        in_below = _limit_per_value(gauge.in_below, values)
        for value, out, in_ in zip(values, out_above, in_below, strict=True):
            if not isfinite(value):
                continue
            if self.signal_range is None:
                self.signal_range = SignalRange(
                    gauge.words, gauge.share, low=value, high=value, out_above=out, in_below=in_,
                    asked_more=False, asked_fewer=False,
                )  # fmt: skip
            if not _is_covered(self.signal_range, value, out, in_):
                self.signal_range = _extended(self.signal_range, value, out, in_)


def _is_covered(present: SignalRange, value: float, out_above: float, in_below: float) -> bool:
    """Return whether a ``value`` and its thresholds change nothing, which is the usual case."""
    return (
        present.low <= value <= present.high
        and out_above >= present.out_above
        and in_below <= present.in_below
        and (present.asked_more or value <= out_above)
        and (present.asked_fewer or value >= in_below)
    )


def _extended(present: SignalRange, value: float, out_above: float, in_below: float) -> SignalRange:
    """Return the range with one ``value`` and its thresholds more."""
    return replace(
        present,
        low=min(present.low, value),
        high=max(present.high, value),
        out_above=_smaller(present.out_above, out_above),
        in_below=-_smaller(-present.in_below, -in_below),
        asked_more=present.asked_more or value > out_above,
        asked_fewer=present.asked_fewer or value < in_below,
    )


def _smaller(first: float, second: float) -> float:
    """Return the smaller of two limits; NaN if one of them is NaN: some pool has no limit."""
    return nan if isnan(first) or isnan(second) else min(first, second)


def _limit_per_value(limit: FloatArray | float, values: list[float]) -> list[float]:
    """Return one limit for each value."""
    if isinstance(limit, int | float):
        return [limit] * len(values)
    limits: list[float] = np.broadcast_to(limit, len(values)).tolist()
    return limits
