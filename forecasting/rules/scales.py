"""Scales on which errors are of like size: the logarithm and the root of demand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from forecasting.arrays import FloatArray

OFFSET = 0.01  # of a series' mean: what a logarithm is taken of beside the amount, as 0 has none
HIGHEST = 50.0  # logarithm of amounts over the mean: beyond it only overflow lies


class Scale(Protocol):
    """There and back again, series by series: the first axis is that of the series."""

    def forth(self, amounts: FloatArray) -> FloatArray: ...

    def back(self, scaled: FloatArray) -> FloatArray: ...


@dataclass(frozen=True, slots=True, eq=False)
class Logarithm:
    """``log(amount / mean + OFFSET)``."""

    mean: FloatArray  # [series, 1]

    def forth(self, amounts: FloatArray) -> FloatArray:
        return np.log(amounts / _beside(self.mean, amounts) + OFFSET)

    def back(self, scaled: FloatArray) -> FloatArray:
        amounts = np.exp(np.minimum(scaled, HIGHEST)) - OFFSET
        return np.maximum(0.0, amounts) * _beside(self.mean, scaled)


@dataclass(frozen=True, slots=True, eq=False)
class Root:
    """``sqrt(amount / mean)``: for counts, whose variance grows with them."""

    mean: FloatArray  # [series, 1]

    def forth(self, amounts: FloatArray) -> FloatArray:
        return np.sqrt(amounts / _beside(self.mean, amounts))

    def back(self, scaled: FloatArray) -> FloatArray:
        return np.maximum(0.0, scaled) ** 2 * _beside(self.mean, scaled)


def _beside(mean: FloatArray, amounts: FloatArray) -> FloatArray:
    return mean.reshape([-1] + [1] * (amounts.ndim - 1))
