"""Filter and forecast with a linear Gaussian state-space model of known parameters."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from forecasting.arrays import FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class StateSpace:
    """``y[t] = design @ x[t]``, ``x[t + 1] = transition @ x[t] + w``, ``w ~ N(0, shock_cov)``.

    ``mean`` and ``cov`` describe the state of the next bin, given all bins seen so far (Durbin and
    Koopman, Time Series Analysis by State Space Methods, 2nd ed., section 4.3.2, without
    measurement noise). Values have no unit; the caller scales them.
    """

    transition: FloatArray  # [m, m]
    design: FloatArray  # [m]
    shock_cov: FloatArray  # [m, m]
    mean: FloatArray  # [m]
    cov: FloatArray  # [m, m]

    def advance(self, observations: FloatArray) -> StateSpace:
        """Return the model after ``observations [bins]``; NaN adds no information."""
        mean, cov = self.mean, self.cov
        for value in observations:
            if not np.isnan(value):
                loading = cov @ self.design
                variance = self.design @ loading
                mean = mean + loading * ((value - self.design @ mean) / variance)
                cov = cov - np.outer(loading, loading) / variance
            mean, cov = self._step(mean, cov)
        return replace(self, mean=mean, cov=cov)

    def forecast(self, steps: int) -> tuple[FloatArray, FloatArray]:
        """Return mean and variance of the next ``steps`` observations, each ``[steps]``."""
        mean, cov = self.mean, self.cov
        means, variances = np.empty(steps), np.empty(steps)
        for step in range(steps):
            means[step] = self.design @ mean
            variances[step] = self.design @ cov @ self.design
            mean, cov = self._step(mean, cov)
        return means, np.maximum(variances, 0.0)  # rounding can make it negative

    def _step(self, mean: FloatArray, cov: FloatArray) -> tuple[FloatArray, FloatArray]:
        cov = self.transition @ cov @ self.transition.T + self.shock_cov
        return self.transition @ mean, (cov + cov.T) / 2
