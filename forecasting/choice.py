"""Who was right lately: methods weighed and chosen by what their past forecasts missed by."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from forecasting.arrays import FloatArray, IntArray

HALF_LIFE = 48  # windows after which an error counts for half: two days by the hour
MARGIN = 0.1  # by which a method has to be better than the ensemble to stand by itself
POWER = 8  # of the inverse errors that weigh the ensemble: what is twice as wrong hardly counts


@dataclass(frozen=True, slots=True, eq=False)
class Running:
    """Discounted means of figures up to each origin, taken in as the windows are over."""

    none: float  # the mean before a figure is known
    keep: float  # of a figure's weight from one origin to the next
    first: int  # origin of the first mean that is kept
    means: FloatArray  # [..., o]
    total: FloatArray  # [...] sum that the last mean is of
    weight: FloatArray  # [...] and its weights

    @classmethod
    def of_none(cls, shape: tuple[int, ...], apart: float, none: float) -> Running:
        """``apart`` is how far apart origins are, in windows."""
        nothing = np.zeros(shape)
        keep = 0.5 ** (apart / HALF_LIFE)
        return cls(none, keep, 0, np.empty((*shape, 0)), nothing, nothing)

    @property
    def end(self) -> int:
        """Origins taken in."""
        return self.first + int(self.means.shape[-1])

    def then(self, figures: FloatArray) -> Running:
        """With the ``figures [..., o]`` of the origins that follow; NaN counts for nothing."""
        if not figures.shape[-1]:
            return self
        # Origins first: each step then runs along memory.
        each = np.ascontiguousarray(np.moveaxis(figures, -1, 0))
        known = ~np.isnan(each)
        total, weight = np.where(known, each, 0.0), known.astype(np.float64)
        total[0] += self.keep * self.total
        weight[0] += self.keep * self.weight
        for o in range(1, len(each)):
            total[o] += self.keep * total[o - 1]
            weight[o] += self.keep * weight[o - 1]
        mean = np.where(weight > 0, total / np.maximum(weight, np.finfo(float).tiny), self.none)
        means = np.concatenate([self.means, np.moveaxis(mean, 0, -1)], axis=-1)
        return replace(self, means=means, total=total[-1], weight=weight[-1])

    def upto(self, origins: IntArray) -> FloatArray:
        """The means up to each of ``origins``, the last one for those after it: [..., o]."""
        last = np.minimum(origins, self.end - 1)
        if not self.end:
            return np.full((*self.total.shape, len(last)), self.none)
        means = self.means[..., np.maximum(last - self.first, 0)]
        return np.where(last < 0, self.none, means)

    def latest(self, origins: int) -> Running:
        """With no more than the means of the last so many."""
        drop = max(0, self.means.shape[-1] - origins)
        return replace(self, first=self.first + drop, means=self.means[..., drop:].copy())


def ensemble_weights(error: FloatArray) -> FloatArray:
    """Of methods ``error [m, ...]``: inverse powers that sum to 1; inf is left out.

    Where no error is known yet all weights are 0.
    """
    known = np.isfinite(error)
    least = np.where(known, error, np.inf).min(axis=0)
    least = np.where(np.isfinite(least), least, 1.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        relative = np.where(error > 0, least / error, 1.0)
    weight = np.where(known, relative**POWER, 0.0)
    return np.asarray(weight / np.maximum(weight.sum(axis=0), np.finfo(float).tiny))


def choose(single: FloatArray, ensemble: FloatArray) -> IntArray:
    """Of the methods with errors ``single [m, ...]`` and their ensemble, number m.

    The ensemble, unless one method was better by MARGIN; the first method, the simplest, while
    nothing is known.
    """
    best = np.argmin(single, axis=0)
    error = np.min(single, axis=0)
    alone = ~np.isfinite(ensemble) | (error < (1 - MARGIN) * ensemble)
    return np.where(alone, best, len(single))
