"""Compare request lengths and replica speeds with those that a plan assumed."""

import numpy as np

from planner.domain.random_streams import Stream, generator
from planner.domain.retrospective.figures import LengthDrift, SpeedDrift
from planner.domain.serialise import moment
from planner.domain.traffic.known_lengths import (
    LEAST,
    known_sample,
    lengths_differ,
    observed_lengths,
)
from planner.domain.traffic.traffic import Traffic
from planner.domain.traffic.window import Window
from simulation.arrays import FloatArray
from simulation.performance.fitting.kalman import Z95, Observations, expected, tune
from simulation.performance.linear import LinearProfile

SLOWER = 0.05  # smallest drift of the iteration time to flag: a profile's own tolerance (assumed)


def length_drift(traffic: Traffic, window: Window, seed: int) -> tuple[LengthDrift, ...]:
    """Return the change of mean lengths for each model with requests in the window.

    ``traffic.lengths`` are the lengths known before the window. A change is flagged only if the
    window has at least ``LEAST`` requests of the model.
    """
    rng = generator(seed, Stream.KNOWN)
    drifts = []
    for m, model in enumerate(traffic.models):
        recent = observed_lengths(traffic, m, window.start_s, window.end_s, rng)
        if not recent.requests:
            continue
        known, observed = traffic.lengths[m], recent.lengths
        drifts.append(
            LengthDrift(
                model=model,
                input_known=float(known[0].mean()),
                input_came=float(observed[0].mean()),
                output_known=float(known[1].mean()),
                output_came=float(observed[1].mean()),
                flagged=recent.requests >= LEAST
                and lengths_differ(known_sample(traffic, m), recent),
            )
        )
    return tuple(drifts)


def speed_drift(profile: LinearProfile, observations: Observations) -> SpeedDrift:
    """Return how many times slower a service runs than ``profile``, at the mean observed load.

    A Kalman filter fits the profile's coefficients to the observations. The drift is flagged if it
    exceeds ``SLOWER`` and its 95% interval excludes 1.
    """
    tuned = tune(profile, observations)
    load = tuple(
        float(each.mean())
        for each in (observations.decodes, observations.prefill_tokens, observations.share)
    )
    coefficients = np.array([profile.alpha_s, profile.beta_s, profile.gamma_s, profile.delta_s])
    profile_s, _ = expected(coefficients, *load)
    fitted_s, gradient = expected(tuned.history[-1], *load)
    # Delta method: standard error of the logarithm of the iteration time.
    gradient = gradient / fitted_s
    error = float(np.sqrt(gradient @ tuned.covariance @ gradient))
    times = fitted_s / profile_s
    low, high = times * np.exp(-Z95 * error), times * np.exp(Z95 * error)
    has_drifted = abs(times - 1) > SLOWER and not low <= 1 <= high
    since = None
    if has_drifted:
        path = np.array([expected(fitted, *load)[0] for fitted in tuned.history]) / profile_s
        since = moment(float(observations.at_s[_drift_start(path)]))
    return SpeedDrift(
        profile.model,
        profile.gpu,
        profile.tp,
        observations=int(observations.seconds.size),
        times=times,
        low=float(low),
        high=float(high),
        flagged=has_drifted,
        since=since,
    )


def _drift_start(path: FloatArray) -> int:
    """Return the index of the first observation from which the drift stays beyond ``SLOWER``.

    ``path`` is the iteration time over the profile's, after each observation. All later values must
    be on the same side of 1.
    """
    sign = np.sign(path[-1] - 1)
    returns = np.flatnonzero((path - 1) * sign <= SLOWER)
    return int(returns[-1]) + 1 if len(returns) else 0
