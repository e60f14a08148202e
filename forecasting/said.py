"""What was said from past origins, and how right it was."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from forecasting.arrays import FloatArray, IntArray


@dataclass(frozen=True, slots=True, eq=False)
class PastForecasts:
    """What was forecast from past origins, each with what was known by then alone."""

    origins: IntArray  # [o] bins
    tops: FloatArray  # [methods, series, o] peak of the window on each method's path
    mixed_tops: FloatArray  # [series, o] the ensemble's peak
    paths: FloatArray  # [series, o, reach] of the method in force
    lifts: FloatArray  # [series, o] its peak over that of its path

    @classmethod
    def nothing(cls, methods: int, series: int, reach: int) -> PastForecasts:
        return cls(
            np.empty(0, np.int64),
            np.empty((methods, series, 0)),
            np.empty((series, 0)),
            np.empty((series, 0, reach)),
            np.empty((series, 0)),
        )

    @property
    def reach(self) -> int:
        return int(self.paths.shape[2])


@dataclass(frozen=True, slots=True, eq=False)
class RecentErrors:
    """Recent figures of peaks, up to each origin."""

    bias: FloatArray  # [methods, series, o] log ratio of what came to each path's peak
    errors: FloatArray  # [2 methods, series, o] of peaks as they are, then corrected by the bias
    mixed: FloatArray  # [series, o] of the ensemble


@dataclass(frozen=True, slots=True, eq=False)
class InForce:
    path: FloatArray  # [series, o, steps]
    lift: FloatArray  # [series, o]
    chosen: IntArray  # [series, o]


@dataclass(frozen=True, slots=True, eq=False)
class Past:
    """Peaks of past windows, of one series, each as it was forecast before and as it came."""

    starts_s: FloatArray  # [w] where each window begins, UTC epoch seconds, evenly apart
    came: FloatArray  # [w] NaN where it was not observed
    told: FloatArray  # [w]
    scale: float  # mean demand per bin
