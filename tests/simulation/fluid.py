"""The fluid model of continuous batching at any rate, for the simulation to be held against."""

from dataclasses import dataclass

import numpy as np
import pytest
import scipy

from simulation.engine.run import simulate
from simulation.performance.profile import Profile, iteration_s
from simulation.policies.static import Static
from tests.simulation.builders import fleet, pool, trace

SHORT_S, LONG_S = 1e-9, 1e9  # iteration times beyond any, to look for T between and beyond


@dataclass(frozen=True, slots=True)
class SteadyState:
    """One instance in the fluid model of ``steady_state``; inf where it is not stable."""

    iteration_s: float  # T, the mean gap between tokens while busy
    batch: float  # mean sequences decoding, over all time
    prefill_tokens: float  # mean per iteration
    kv_tokens: float  # mean in use
    load: float  # T per T, in the limit of long iterations; stable below 1
    e2e_s: float  # prefill of a lone prompt and OSL - 1 iterations


def steady_state(profile: Profile, rate: float, isl: float, osl: float) -> SteadyState:
    """Mean iteration time and batch of one instance at ``rate`` requests/s of mean lengths.

    Derivation. With mean iteration time T, an instance does 1/T iterations per second. A request
    is prefilled once (isl tokens, attending to half of them on average) and takes part in osl - 1
    decode iterations (its first token comes out of the prefill), half grown on average. Work flows
    in as fast as it flows out, so per iteration there are

        b = rate (osl - 1) T      sequences decoding, each with isl + osl / 2 tokens (Little's law)
        p = rate isl T            tokens prefilled

    A share q = 1 - exp(-rate T) of iterations prefill, those with an arrival in the one before
    (Poisson), so that T solves

        T = (1 - q) seconds(b, 0) + q seconds(b, p / q).

    For the linear profile that is T = base / (1 - rate (beta (osl - 1) + delta isl)) with base
    alpha, or max(alpha, gamma) in a share q. The fluid holds no randomness, so it gives no
    percentiles; below one sequence on average, T is that of one. Memory is b times a sequence half
    grown.
    """
    context = isl + osl / 2.0

    def seconds(b: float, p: float) -> float:
        return float(iteration_s(profile, b, b * context, p, p * isl / 2.0))

    def following(t: float) -> float:
        b, p, q = rate * (osl - 1.0) * t, rate * isl * t, float(-np.expm1(-rate * t))
        return (1.0 - q) * seconds(b, 0.0) + q * seconds(b, p / q)

    load = (following(2 * LONG_S) - following(LONG_S)) / LONG_S
    if load >= 1.0 - 1e-9:
        inf = float("inf")
        return SteadyState(inf, inf, inf, inf, load, inf)
    low = high = SHORT_S
    while following(high) > high:
        low, high = high, 2.0 * high
    iteration = (
        scipy.optimize.brentq(lambda t: following(t) - t, low, high, xtol=1e-15)
        if low < high
        else 0.0
    )
    batch = rate * (osl - 1.0) * iteration
    gap = max(iteration, seconds(1.0, 0.0))
    return SteadyState(
        iteration_s=gap,
        batch=batch,
        prefill_tokens=rate * isl * iteration,
        kv_tokens=batch * context,
        load=load,
        e2e_s=seconds(0.0, isl) + (osl - 1.0) * gap,
    )


def assert_simulation_agrees(profile: Profile, rate: float, isl: int, osl: int) -> None:
    """Assert that 4,000 simulated requests keep the iteration time and KV tokens of the model."""
    arrivals = np.cumsum(np.random.default_rng(0).exponential(1 / rate, 4000))
    result = simulate(trace(arrivals, isl, osl), fleet(pool(profile)), Static([1]))
    fluid = steady_state(profile, rate, isl, osl)
    assert result.requests.tbt_s[500:-500].mean() == pytest.approx(fluid.iteration_s, rel=0.04)
    used = result.series.utilisation[0, 10:-5].mean() * profile.kv_capacity_tokens
    assert used == pytest.approx(fluid.kv_tokens, rel=0.08)
