"""Tune a linear profile online from the iteration times of a running service (methods.md C1).

The method is an extended Kalman filter, as in the WVA's tuner. Its state holds the logarithms of
alpha, beta, gamma and delta. So all parameters stay positive and errors are relative:

    state        x = (ln alpha, ln beta, ln gamma, ln delta)
    process      x(t + dt) = x(t) + w,  w ~ N(0, DRIFT^2 dt): a random walk
    observation  z = h(x) + v,  v ~ N(0, (NOISE h(x))^2)
                 h = max(alpha if b > 0, gamma if p > 0) + beta b + delta p

    or, for a mean over iterations with a share s of prefills,
                 h = (1 - s) alpha + s max(alpha, gamma) + beta b + delta p

An observation is the mean time of iterations that decoded ``b`` sequences and prefilled ``p``
tokens. TBT of pure decodes has p = 0, and a lone prefill has b = 0. Under steady load, b requests
in flight with lengths isl and osl have p = b isl / osl.

An observation is skipped if it is more than ``GATE`` standard deviations from the expected value.
At ``PATIENCE`` such observations in a row the service is assumed to have changed. The filter then
widens its covariance and uses the observation.
"""

from dataclasses import dataclass, replace

import numpy as np

from simulation.arrays import BoolArray, FloatArray
from simulation.errors import SimulationError
from simulation.performance.fitting.fit_linear import UNITS, Parameter
from simulation.performance.linear import LinearProfile

NAMES = ("alpha", "beta", "gamma", "delta")
UNKNOWN = 3.0  # largest standard deviation of a logarithm: a factor of 20 up or down
Z95 = 1.959964  # standard deviations of a two-sided 95% interval
# Assumptions of the filter; standard deviations are relative to what they describe.
PRIOR = 0.3  # standard deviation of the initial profile
DRIFT = 0.02  # standard deviation that a parameter gains in an hour
NOISE = 0.05  # standard deviation of an observation
GATE = 4.0  # standard deviations of an innovation
PATIENCE = 5  # consecutive observations beyond the gate that mean a change
OPENING = 4.0  # factor on the standard deviations after a change


@dataclass(frozen=True, slots=True, eq=False)
class Observations:
    """Mean iteration times in order of time; arrays of shape ``[observations]``."""

    at_s: FloatArray  # time in seconds, non-decreasing
    decodes: FloatArray
    prefill_tokens: FloatArray
    seconds: FloatArray
    # Share of the iterations with a prefill, if an observation is the mean of many. Default: 1 for
    # observations with prefill_tokens, else 0.
    prefills: FloatArray | None = None

    def __post_init__(self) -> None:
        """Raise ``SimulationError`` for arrays of different lengths or impossible values."""
        arrays = [getattr(self, name) for name in self.__slots__]
        arrays = [array for array in arrays if array is not None]
        if len({array.shape for array in arrays}) != 1 or arrays[0].ndim != 1:
            raise SimulationError("Observations: the arrays must have one length.")
        if not all(np.isfinite(array).all() for array in arrays):
            raise SimulationError("Observations: every value must be a finite number.")
        if (np.diff(self.at_s) < 0).any():
            raise SimulationError("Observations: times must not go back. Sort them.")
        if (self.seconds <= 0).any() or (self.decodes + self.prefill_tokens <= 0).any():
            raise SimulationError(
                "Observations: seconds, and decodes or prefill_tokens, must be above 0."
            )

    @property
    def share(self) -> FloatArray:
        """Return the share of iterations with a prefill, ``[observations]``."""
        if self.prefills is not None:
            return self.prefills
        return (self.prefill_tokens > 0).astype(np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class TunedProfile:
    """The profile after the last observation, and its parameters after each."""

    profile: LinearProfile
    parameters: tuple[Parameter, ...]
    covariance: FloatArray  # [4, 4], of the logarithms of alpha, beta, gamma, delta
    history: FloatArray  # [observations, 4], parameters after each observation
    innovation: FloatArray  # [observations], measured / expected - 1 before the update
    used: BoolArray  # [observations], False if skipped by the gate


def tune(
    profile: LinearProfile, observations: Observations, covariance: FloatArray | None = None
) -> TunedProfile:
    """Return ``profile`` updated by observed iteration times, with a Kalman filter.

    It estimates the logs of the parameters. The profile's limits, provenance and checks stay.
    Outliers are skipped, until PATIENCE of them in a row show that the parameters have changed.
    ``covariance`` of an earlier ``TunedProfile`` continues that run. By default, every parameter
    has the standard deviation PRIOR. Raises SimulationError if a parameter of the profile is 0.
    """
    start = np.array([profile.alpha_s, profile.beta_s, profile.gamma_s, profile.delta_s])
    if (start <= 0).any():
        zero = ", ".join(name for name, value in zip(NAMES, start, strict=True) if value <= 0)
        raise SimulationError(
            f"The profile of {profile.model} on {profile.gpu} cannot be tuned from {zero} = 0. "
            "Start from a small positive value."
        )
    prior = np.eye(4) * PRIOR**2 if covariance is None else covariance.copy()
    state = _Filter(np.log(start), prior)
    count = observations.seconds.size
    history, innovation = np.empty((count, 4)), np.empty(count)
    used = np.zeros(count, np.bool_)
    waited_h = np.diff(observations.at_s, prepend=observations.at_s[:1]) / 3600
    shares = observations.share
    for i in range(count):
        decodes, prefill_tokens = observations.decodes[i], observations.prefill_tokens[i]
        mean, slope = mean_iteration_seconds(np.exp(state.logs), decodes, prefill_tokens, shares[i])
        error = observations.seconds[i] - mean
        innovation[i] = error / mean
        used[i] = state.update(error, mean, slope, waited_h[i])
        history[i] = np.exp(state.logs)
    alpha, beta, gamma, delta = np.exp(state.logs).tolist()
    return TunedProfile(
        replace(profile, alpha_s=alpha, beta_s=beta, gamma_s=gamma, delta_s=delta),
        state.parameters(),
        state.covariance,
        history,
        innovation,
        used,
    )


@dataclass(slots=True)
class _Filter:
    """The state of the Kalman filter: logs of the parameters, and their covariance."""

    logs: FloatArray  # [4] of alpha, beta, gamma and delta
    covariance: FloatArray  # [4, 4]
    missed: int = 0  # outliers in a row

    def parameters(self) -> tuple[Parameter, ...]:
        """Return the parameters with their 95% intervals."""
        values, factors = np.exp(self.logs), np.exp(Z95 * np.sqrt(np.diag(self.covariance)))
        low, high = values / factors, values * factors
        return tuple(
            Parameter(name, float(values[i]), float(low[i]), float(high[i]), UNITS[name])
            for i, name in enumerate(NAMES)
        )

    def update(self, error: float, mean: float, slope: FloatArray, waited_h: float) -> bool:
        """Update by an observation that differs by ``error`` from ``mean`` seconds.

        ``slope [4]`` is the gradient of ``mean``. ``waited_h`` are the hours since the last
        observation. Returns False if the observation is skipped as an outlier.
        """
        noise = (NOISE * mean) ** 2
        self.covariance = _limit_deviations(self.covariance + np.eye(4) * DRIFT**2 * waited_h)
        variance = slope @ self.covariance @ slope + noise
        if error**2 > GATE**2 * variance:
            self.missed += 1
            if self.missed < PATIENCE:
                return False
            self.covariance = _limit_deviations(self.covariance * OPENING**2)
            variance = slope @ self.covariance @ slope + noise
        self.missed = 0
        # Decodes alone tell nothing about prefill, however the parameters are correlated.
        gain = np.where(slope == 0, 0.0, self.covariance @ slope / variance)
        # Limit a step to a factor of e: the slope is only valid near the current state.
        self.logs = self.logs + np.clip(gain * error, -1.0, 1.0)
        retained = np.eye(4) - np.outer(gain, slope)
        # In Joseph's form the covariance stays symmetric.
        self.covariance = retained @ self.covariance @ retained.T + np.outer(gain, gain) * noise
        return True


def _limit_deviations(covariance: FloatArray) -> FloatArray:
    """Return ``covariance`` scaled so that standard deviations are at most ``UNKNOWN``.

    Without this limit, drift would raise them forever while nothing is observed.
    """
    shrink = np.minimum(1.0, UNKNOWN / np.sqrt(np.diag(covariance)))
    return np.asarray(covariance * np.outer(shrink, shrink), np.float64)


def mean_iteration_seconds(
    parameters: FloatArray, b: float, p: float, share: float
) -> tuple[float, FloatArray]:
    """Return the mean seconds of iterations, and the gradient in the logs of the parameters.

    ``parameters [4]`` are alpha, beta, gamma and delta. The iterations have ``b`` decodes and ``p``
    prefill tokens, and a ``share`` of them has a prefill.
    """
    alpha, beta, gamma, delta = parameters
    # The constant is the larger of alpha (decodes) and gamma (prefill) if an iteration has both.
    # Share of the iterations whose constant is gamma:
    gamma_share = 0.0
    if p > 0 and (b <= 0 or gamma > alpha):
        gamma_share = share if b > 0 else 1.0
    # The time is a sum of one term per parameter, so its gradient in the logs is these terms.
    slope = np.array([(1 - gamma_share) * alpha, beta * b, gamma_share * gamma, delta * p])
    return float(slope.sum()), slope
