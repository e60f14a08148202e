"""Transformations that make errors of large and small amounts comparable."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from forecasting.arrays import FloatArray

OFFSET = 0.01  # share of the series' mean that is added before the logarithm, since 0 has none
LARGEST_LOG = 50.0  # largest logarithm of an amount over the mean: more would overflow


class Scale(Protocol):
    """A transformation of amounts and its inverse, never negative; series are the first axis."""

    def transform(self, amounts: FloatArray) -> FloatArray: ...

    def inverse(self, scaled: FloatArray) -> FloatArray: ...


@dataclass(frozen=True, slots=True, eq=False)
class Logarithm:
    """``log(amount / mean + OFFSET)``."""

    mean: FloatArray  # [series, 1]

    def transform(self, amounts: FloatArray) -> FloatArray:
        return np.log(amounts / _broadcast(self.mean, amounts) + OFFSET)

    def inverse(self, scaled: FloatArray) -> FloatArray:
        """Return the amounts at or above 0 whose transform is ``scaled``."""
        amounts = np.exp(np.minimum(scaled, LARGEST_LOG)) - OFFSET
        return np.maximum(0.0, amounts) * _broadcast(self.mean, scaled)


@dataclass(frozen=True, slots=True, eq=False)
class Root:
    """``sqrt(amount / mean)``, since the variance of counts grows with their mean."""

    mean: FloatArray  # [series, 1]

    def transform(self, amounts: FloatArray) -> FloatArray:
        return np.sqrt(amounts / _broadcast(self.mean, amounts))

    def inverse(self, scaled: FloatArray) -> FloatArray:
        """Return the amounts at or above 0 whose transform is ``scaled``."""
        return np.maximum(0.0, scaled) ** 2 * _broadcast(self.mean, scaled)


def _broadcast(mean: FloatArray, amounts: FloatArray) -> FloatArray:
    """Return ``mean [series, 1]`` in a shape that broadcasts against ``amounts [series, ...]``."""
    return mean.reshape([-1] + [1] * (amounts.ndim - 1))
