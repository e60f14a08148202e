"""Compute M/M/c queues by Erlang's recursion, and limits of continuous batching by mean lengths."""

import numpy as np
import numpy.typing as npt

from simulation.fleet import Tier
from simulation.performance.profile import Profile, iteration_s


def erlang_b(servers: int, load: float) -> float:
    """Return the share of arrivals blocked by ``servers`` without a queue at ``load`` erlangs.

    B(0) = 1, B(c) = a B(c-1) / (c + a B(c-1)). The recursion needs no factorials, so it works for
    hundreds of servers.
    """
    blocked = 1.0
    for c in range(1, servers + 1):
        blocked = load * blocked / (c + load * blocked)
    return blocked


def erlang_c(servers: int, load: float) -> float:
    """Return the share of arrivals that wait in M/M/c at ``load`` erlangs; 1 if unstable."""
    if load >= servers:
        return 1.0
    blocked = erlang_b(servers, load)
    return servers * blocked / (servers - load * (1.0 - blocked))


def mmc_mean_wait(servers: int, rate: float, service_s: float) -> float:
    """Return the mean seconds that an arrival waits in M/M/c before service; inf if unstable."""
    load = rate * service_s
    if load >= servers:
        return float("inf")
    return erlang_c(servers, load) * service_s / (servers - load)


def largest_rate(profile: Profile, isl: float, osl: float) -> tuple[float, str]:
    """Return the largest requests/s of the fluid model (means only), and its binding constraint.

    The constraint is ``throughput`` (batch or token budget) or ``memory``. Let n requests begin in
    each iteration of T seconds. An iteration then has n prompts and n (osl - 1) decodes. Three
    limits bound n: the batch, n (osl - 1); the KV memory, n (osl - 1) (isl + osl / 2); and the
    token budget, n (isl + osl - 1). The rate is n / T at the largest n.
    """
    context, gaps = isl + osl / 2.0, osl - 1.0
    memory_limit = profile.kv_capacity_tokens / (gaps * context) if osl > 1 else float("inf")
    batch_limit = profile.max_batch / gaps if osl > 1 else float("inf")
    throughput_limit = min(batch_limit, profile.max_batch_tokens / (isl + osl - 1.0))
    n = min(memory_limit, throughput_limit)
    decodes = n * gaps
    prompt_tokens = n * isl
    seconds = float(
        iteration_s(profile, decodes, decodes * context, prompt_tokens, prompt_tokens * isl / 2.0)
    )
    rate = n / seconds if seconds > 0 else float("inf")
    return rate, "memory" if memory_limit < throughput_limit else "throughput"


def decode_bound(
    bound: str, profile: Profile, tier: Tier, isl: npt.ArrayLike, osl: npt.ArrayLike
) -> str:
    """Return the binding constraint of a decode pool: ``bound``, or "throughput" instead of "tbt".

    If even a full batch keeps the TBT limit, late requests waited for a place in the batch, so
    throughput binds. ``isl`` and ``osl`` are the tokens of a sample of requests.
    """
    context = np.asarray(isl, np.float64).mean() + np.asarray(osl, np.float64).mean() / 2.0
    batch = float(profile.max_batch)
    full_batch_s = float(iteration_s(profile, batch, batch * context, 0.0, 0.0))
    full_batch_meets_tbt = full_batch_s <= (tier.tbt_s or 0.0)
    return "throughput" if bound == "tbt" and full_batch_meets_tbt else bound
