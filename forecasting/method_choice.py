"""Weight and choose forecast methods by the recent errors of their past forecasts.

An origin is the bin at which a past forecast began.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from forecasting.arrays import FloatArray, IntArray

HALF_LIFE = 48  # windows after which an error counts half: two days of hours
MARGIN = 0.1  # share by which a method must be better than the ensemble to be chosen alone
POWER = 12  # exponent of inverse errors: a method with twice the error hardly counts


@dataclass(frozen=True, slots=True, eq=False)
class DiscountedMeans:
    """Discounted means of a figure, such as an error, over all origins up to each one.

    Older figures weigh less. Origins are counted from 0.
    """

    default: float  # the mean as long as no figure is known
    decay: float  # factor of a figure's weight from one origin to the next
    first: int  # index of the origin of the first mean that is kept
    means: FloatArray  # [..., origin]
    total: FloatArray  # [...] weighted sum of the figures at the last origin
    weight: FloatArray  # [...] sum of their weights

    @classmethod
    def empty(cls, shape: tuple[int, ...], windows_apart: float, default: float) -> DiscountedMeans:
        """Return means of ``shape`` without any figure yet.

        Origins are ``windows_apart`` windows apart. A figure counts half after HALF_LIFE windows.
        """
        zeros = np.zeros(shape)
        decay = 0.5 ** (windows_apart / HALF_LIFE)
        return cls(default, decay, 0, np.empty((*shape, 0)), zeros, zeros)

    @property
    def end(self) -> int:
        """Return the number of origins whose figures are included."""
        return self.first + int(self.means.shape[-1])

    def append(self, figures: FloatArray) -> DiscountedMeans:
        """Return the means extended by the ``figures [..., origin]`` of the next origins.

        A NaN figure has no weight.
        """
        if not figures.shape[-1]:
            return self
        # Origins first, so that each step reads contiguous memory.
        by_origin = np.ascontiguousarray(np.moveaxis(figures, -1, 0))
        has_value = ~np.isnan(by_origin)
        total = self._accumulate(np.where(has_value, by_origin, 0.0), self.total)
        weight = self._accumulate(has_value.astype(np.float64), self.weight)
        mean = np.where(weight > 0, total / np.maximum(weight, np.finfo(float).tiny), self.default)
        means = np.concatenate([self.means, np.moveaxis(mean, 0, -1)], axis=-1)
        return replace(self, means=means, total=total[-1], weight=weight[-1])

    def _accumulate(self, amounts: FloatArray, before: FloatArray) -> FloatArray:
        """Add to each of ``amounts [origin, ...]`` the discounted sum up to it, in place."""
        for origin in range(len(amounts)):
            amounts[origin] += self.decay * before
            before = amounts[origin]
        return amounts

    def at(self, origins: IntArray) -> FloatArray:
        """Return the means at ``origins`` (indices), ``[..., origin]``.

        Origins after the last one have its mean, and negative ones the default.
        """
        if not self.end:
            return np.full((*self.total.shape, len(origins)), self.default)
        known_origins = np.minimum(origins, self.end - 1)
        means = self.means[..., np.maximum(known_origins - self.first, 0)]
        return np.where(origins < 0, self.default, means)

    def keep_last(self, origins: int) -> DiscountedMeans:
        """Return only the means of the last ``origins`` origins."""
        drop = max(0, self.means.shape[-1] - origins)
        return replace(self, first=self.first + drop, means=self.means[..., drop:].copy())


def ensemble_weights(error: FloatArray) -> FloatArray:
    """Return the weights of methods from their errors ``[methods, ...]``.

    Weights are proportional to an inverse power of the error and sum to 1. An infinite error has
    the weight 0. All weights are 0 if no error is finite.
    """
    known = np.isfinite(error)
    smallest = np.where(known, error, np.inf).min(axis=0)
    smallest = np.where(np.isfinite(smallest), smallest, 1.0)
    # Divide by the smallest error first, so that the power cannot overflow.
    with np.errstate(invalid="ignore", divide="ignore"):
        smallest_over_error = np.where(error > 0, smallest / error, 1.0)
    weight = np.where(known, smallest_over_error**POWER, 0.0)
    return np.asarray(weight / np.maximum(weight.sum(axis=0), np.finfo(float).tiny))


def choose_method(single: FloatArray, ensemble: FloatArray) -> IntArray:
    """Return the index of the method to use, ``[...]``; that of the ensemble is ``methods``.

    ``single [methods, ...]`` are the errors of single methods, and ``ensemble [...]`` that of the
    ensemble. The ensemble is used unless a method's error is smaller by MARGIN. As long as no error
    is known, the first method is used, which is the simplest.
    """
    best_method, best_error = np.argmin(single, axis=0), np.min(single, axis=0)
    single_wins = ~np.isfinite(ensemble) | (best_error < (1 - MARGIN) * ensemble)
    return np.where(single_wins, best_method, len(single))
