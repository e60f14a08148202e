"""Closed forms: M/M/c by Erlang's recursion, and the fluid model of continuous batching."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulation.errors import SimulationError
from simulation.performance.linear import LinearProfile


def erlang_b(servers: int, load: float) -> float:
    """Share of arrivals blocked by ``servers`` without a queue at ``load`` erlangs.

    B(0) = 1, B(c) = a B(c-1) / (c + a B(c-1)): no factorials, so hundreds of servers are no
    problem.
    """
    if servers < 0 or load < 0:
        raise SimulationError("Erlang B needs servers >= 0 and load >= 0.")
    blocked = 1.0
    for c in range(1, servers + 1):
        blocked = load * blocked / (c + load * blocked)
    return blocked


def erlang_c(servers: int, load: float) -> float:
    """Share of arrivals that wait in M/M/c at ``load`` erlangs; 1 when it is not stable."""
    if load >= servers:
        return 1.0
    blocked = erlang_b(servers, load)
    return servers * blocked / (servers - load * (1.0 - blocked))


def mmc_mean_wait(servers: int, rate: float, service_s: float) -> float:
    """Mean seconds an arrival waits in M/M/c before service; inf when it is not stable."""
    load = rate * service_s
    if load >= servers:
        return float("inf")
    return erlang_c(servers, load) * service_s / (servers - load)


def mmc_wait_quantile(servers: int, rate: float, service_s: float, p: float) -> float:
    """The wait in seconds that a share ``p`` of arrivals does not exceed in M/M/c.

    P(W > t) = C exp(-(c - a) t / service_s).
    """
    if not 0 <= p < 1:
        raise SimulationError("A quantile of the wait needs 0 <= p < 1.")
    load = rate * service_s
    if load >= servers:
        return float("inf")
    waits = erlang_c(servers, load)
    if waits <= 1.0 - p:
        return 0.0
    return float(np.log(waits / (1.0 - p)) * service_s / (servers - load))


def smallest_stable_servers(rate: float, service_s: float) -> int:
    """Fewest servers whose queue does not grow without end: the first integer above the load."""
    return int(np.floor(rate * service_s)) + 1


@dataclass(frozen=True, slots=True)
class SteadyState:
    """One instance in the fluid model of ``steady_state``; inf where it is not stable."""

    iteration_s: float  # T, the mean gap between tokens while busy
    batch: float  # mean sequences decoding, over all time
    prefill_tokens: float  # mean per iteration
    kv_tokens: float  # mean in use
    load: float  # rate (beta (OSL - 1) + delta ISL); stable below 1
    e2e_s: float  # prefill of a lone prompt and OSL - 1 iterations


def steady_state(profile: LinearProfile, rate: float, isl: float, osl: float) -> SteadyState:
    """Mean iteration time and batch of one instance at ``rate`` requests/s of mean lengths.

    Derivation. With mean iteration time T, an instance does 1/T iterations per second. A request
    is prefilled once (isl tokens) and takes part in osl - 1 decode iterations (its first token
    comes out of the prefill). Work flows in as fast as it flows out, so per iteration there are

        b = rate (osl - 1) T   sequences decoding          (Little's law on the decode phase)
        p = rate isl T         tokens prefilled

    and T = base + beta b + delta p gives

        T = base / (1 - rate (beta (osl - 1) + delta isl)).

    base is alpha, or max(alpha, gamma) in the share of iterations that prefill: those with an
    arrival in the iteration before (1 - exp(-rate T), Poisson), a fixed point in T. The fluid holds
    no randomness, so it gives no percentiles; below one sequence on average, T is that of one.
    Memory is b times a sequence half grown, isl + osl / 2. ``capacity`` brackets with this and then
    simulates.
    """
    load = rate * (profile.beta_s * (osl - 1.0) + profile.delta_s * isl)
    if load >= 1.0:
        inf = float("inf")
        return SteadyState(inf, inf, inf, inf, load, inf)
    low, high = profile.alpha_s, max(profile.alpha_s, profile.gamma_s)
    iteration = low / (1.0 - load)
    for _ in range(100):
        base = low + (high - low) * -np.expm1(-rate * iteration)
        following = float(base / (1.0 - load))
        if abs(following - iteration) <= 1e-12 * following:
            break
        iteration = following
    batch, prefill = rate * (osl - 1.0) * iteration, rate * isl * iteration
    gap = max(iteration, profile.alpha_s + profile.beta_s)
    alone = high if osl > 1 else profile.gamma_s
    return SteadyState(
        iteration_s=gap,
        batch=batch,
        prefill_tokens=prefill,
        kv_tokens=batch * (isl + osl / 2.0),
        load=load,
        e2e_s=alone + profile.delta_s * isl + (osl - 1.0) * gap,
    )


def largest_rate(profile: LinearProfile, isl: float, osl: float) -> tuple[float, str]:
    """Requests/s at which the fluid model meets its first hard limit, and which: ``throughput``
    (load, batch or token budget) or ``memory``.

    With T = base / (1 - rate c), a limit ``rate x T <= limit`` (x per request and second) is
    ``rate <= limit / (base x + limit c)``.
    """
    c = profile.beta_s * (osl - 1.0) + profile.delta_s * isl
    base = max(profile.alpha_s, profile.gamma_s)

    def bound(limit: float, x: float) -> float:
        denominator = base * x + limit * c
        return limit / denominator if denominator > 0 else float("inf")

    memory = bound(profile.kv_capacity_tokens, (osl - 1.0) * (isl + osl / 2.0))
    throughput = min(
        1.0 / c if c > 0 else float("inf"),
        bound(profile.max_batch, osl - 1.0),
        bound(profile.max_batch_tokens, isl + osl - 1.0),
    )
    return (memory, "memory") if memory < throughput else (throughput, "throughput")
