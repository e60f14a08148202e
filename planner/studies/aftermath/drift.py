"""Whether requests are as long as a plan took them to be, and replicas as fast."""

from __future__ import annotations

import numpy as np

from planner.studies.aftermath.values import LengthDrift, SpeedDrift
from planner.studies.random_streams import Stream, generator
from planner.studies.traffic.known import LEAST, differ, observed
from planner.studies.traffic.traffic import Traffic
from planner.studies.traffic.window import Window
from simulation.performance.fitting.kalman import Z95, Observations, tune
from simulation.performance.linear import LinearProfile

SLOWER = 0.05  # of an iteration's time: less is within what a profile is held to (assumed)


def length_drift(traffic: Traffic, window: Window, seed: int) -> tuple[LengthDrift, ...]:
    """Of every model with requests in the window; ``traffic.lengths`` are those known before it."""
    rng = generator(seed, Stream.KNOWN)
    found = []
    for m, model in enumerate(traffic.models):
        came, count = observed(traffic, m, window.start_s, window.end_s, rng)
        if not count:
            continue
        known = traffic.lengths[m]
        found.append(
            LengthDrift(
                model=model,
                input_known=float(known[0].mean()),
                input_came=float(came[0].mean()),
                output_known=float(known[1].mean()),
                output_came=float(came[1].mean()),
                flagged=count >= LEAST and differ(known, came, count),
            )
        )
    return tuple(found)


def speed_drift(profile: LinearProfile, seen: Observations) -> SpeedDrift:
    """``profile`` against what a running service showed, after the filter has taken it in."""
    tuned = tune(profile, seen)
    load = float(seen.decodes.mean()), float(seen.prefill_tokens.mean())
    before, after = (_seconds(one, *load) for one in (profile, tuned.profile))
    alpha, beta, gamma, delta = (
        getattr(tuned.profile, name) for name in ("alpha_s", "beta_s", "gamma_s", "delta_s")
    )
    by_gamma = load[1] > 0 and (load[0] <= 0 or gamma > alpha)
    slope = np.array([0.0 if by_gamma else alpha, beta * load[0], gamma if by_gamma else 0.0,
                      delta * load[1]]) / after  # fmt: skip
    spread = float(np.sqrt(slope @ tuned.covariance @ slope))  # of the logarithm
    times = after / before
    low, high = times * np.exp(-Z95 * spread), times * np.exp(Z95 * spread)
    off = abs(times - 1) > SLOWER and not low <= 1 <= high
    return SpeedDrift(
        profile.model, profile.gpu, int(seen.seconds.size), times, float(low), float(high), off
    )


def _seconds(profile: LinearProfile, decodes: float, prompt: float) -> float:
    """Of an iteration, as the filter has it."""
    by_gamma = prompt > 0 and (decodes <= 0 or profile.gamma_s > profile.alpha_s)
    base = profile.gamma_s if by_gamma else profile.alpha_s
    return base + profile.beta_s * decodes + profile.delta_s * prompt
