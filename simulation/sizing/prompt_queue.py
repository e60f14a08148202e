"""Model prompts that wait on decoding instances: the fast time scale of ``batch_queue``."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simulation.arrays import FloatArray
from simulation.performance.profile import Profile, iteration_s
from simulation.sizing.birth_death import Occupancy, solve_occupancy
from simulation.sizing.prompt_chain import prompt_delays
from simulation.sizing.spread import Spread, mix, spread, sum_of
from simulation.sizing.workload import Workload

MAX_COUNTS = 64  # largest number of prompts for which every count is computed
MIN_SHARE = 1e-9  # share of requests that counts as zero
ARRIVAL_SHARES = (np.arange(4) + 0.5) / 4  # arrival times within an iteration, as shares of it


def prefill_alone_s(
    profile: Profile, isl: FloatArray, decodes: npt.ArrayLike, context: float
) -> FloatArray:
    """Return the seconds to prefill each prompt length if no other prompt waits.

    ``isl`` are the lengths in tokens. ``decodes`` sequences of ``context`` tokens each run in the
    same iterations; their number broadcasts against ``isl``.
    """
    decodes = np.asarray(decodes, np.float64)
    chunk = np.maximum(profile.max_batch_tokens - decodes, 1.0)  # prompt tokens of an iteration
    full_chunks = np.floor(isl / chunk)
    remainder = isl - full_chunks * chunk
    decode_tokens = decodes * context
    # Each token attends to the tokens before it: on average to half of all full chunks.
    full_pairs = chunk * np.maximum(full_chunks, 1.0) * chunk / 2.0
    full = iteration_s(profile, decodes, decode_tokens, chunk, full_pairs)
    last_pairs = remainder * (full_chunks * chunk + remainder / 2.0)
    last = iteration_s(profile, decodes, decode_tokens, remainder, last_pairs)
    return np.asarray(full_chunks * full + np.where(remainder > 0, last, 0.0), np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class PromptTimes:
    """Distributions of the times of a prompt, in seconds."""

    wait: Spread  # for its first iteration
    first_token: Spread  # until its first token
    by_earlier: Spread  # delay due to earlier prompts; what it delays later ones is the same


@dataclass(frozen=True, slots=True, eq=False)
class PromptQueue:
    """The queue of prompts of a pool, and the distribution of its length."""

    profile: Profile
    workload: Workload
    servers: int  # instances
    decodes: float  # decoding sequences of each
    pool: Occupancy  # number of prompts in the pool
    one: Occupancy  # the same for one instance with its share of Poisson arrivals
    alone: Spread  # prefill time of a prompt alone
    largest: float  # largest throughput, requests/s

    def times(self, running_s: float = 0.0) -> PromptTimes:
        """Return the times of a prompt; an iteration without prompts takes ``running_s``.

        ``running_s`` is 0 if there are no such iterations. One instance with Poisson arrivals
        follows ``prompt_chain``. For pools and bursts, the probabilities and delays of the chain
        are scaled by the ratio of two birth-and-death processes, that of the pool and that of one
        instance (Lee and Longton 1959). More servers change these times as they do with exponential
        service. All times are infinite if the queue grows without end.
        """
        delays = None
        if self.pool.stable:
            one_server = self.workload.at(self.workload.rate / self.servers)
            delays = prompt_delays(self.profile, one_server, self.decodes, running_s)
        if delays is None:
            never = Spread(np.array([np.inf]), np.ones(1))
            return PromptTimes(never, never, never)
        share, factor, others_s = delays.share, 1.0, delays.others_s
        if self.pool is not self.one:
            share, factor = self._scaled_to_pool(share)
            if self.servers > 1:  # while a server is free, no later prompt joins an iteration
                others_s *= share

        def over_all_prompts(delay: Spread, otherwise_s: float) -> Spread:
            """Mix the delay of prompts that find an iteration running with that of the others."""
            scaled = Spread(delay.values * factor, delay.weights)
            otherwise = Spread(np.array([otherwise_s]), np.ones(1))
            return mix([(share, scaled), (1.0 - share, otherwise)])

        first_token = sum_of(over_all_prompts(delays.first_token, others_s), self.alone)
        wait = over_all_prompts(delays.start_wait, 0.0)
        return PromptTimes(wait, first_token, over_all_prompts(delays.by_earlier, 0.0))

    def _scaled_to_pool(self, share: float) -> tuple[float, float]:
        """Return the share of the pool's prompts that find all servers busy, and a factor.

        The factor is on the delays of these prompts. ``share`` is that share of one instance.
        """
        pool_busy = self.pool.probability_of_at_least(self.servers)
        one_busy = max(self.one.probability_of_at_least(1), MIN_SHARE)
        # Mean delays of the prompts that find every server busy
        rate = self.workload.rate
        one_delay_s = _mean_delay(self.one, rate / self.servers, self.alone.mean) / one_busy
        factor = 1.0
        if min(pool_busy, one_delay_s) > MIN_SHARE:
            factor = _mean_delay(self.pool, rate, self.alone.mean) / pool_busy / one_delay_s
        if self.servers > 1:
            return min(pool_busy, 1.0), factor
        return min(share * pool_busy / one_busy, 1.0), factor


def _mean_delay(prompts: Occupancy, rate: float, alone_s: float) -> float:
    """Return the mean seconds that prompts take beyond ``alone_s``, by Little's law; at least 0.

    ``prompts`` is the number of prompts in the system, ``rate`` their arrivals per second.
    """
    return max(prompts.mean / rate - alone_s, 0.0)


def prompt_queue(profile: Profile, workload: Workload, servers: int, decodes: float) -> PromptQueue:
    """Return the queue of prompts of ``servers`` instances, each with ``decodes`` sequences.

    One iteration computes several waiting prompts, up to the token budget. A server is therefore
    faster when more prompts wait.
    """
    alone = spread(
        prefill_alone_s(
            profile, workload.facts.prefill_points, decodes, workload.facts.decode_context
        )
    )
    served_rps = _served_rps(profile, workload, decodes, alone.mean)
    # Prompts/s of the pool with 1, 2, ... prompts: first one per server, then all are busy.
    all_busy_rps = np.repeat(served_rps, servers) * servers
    death = np.append(np.arange(1, servers) / alone.mean, all_busy_rps)
    scv = float(alone.weights @ (alone.values - alone.mean) ** 2) / alone.mean**2
    pool = solve_occupancy(
        workload.rate, death, servers=servers, burstiness=workload.burstiness, service_scv=scv
    )
    one = pool
    if servers > 1 or workload.burstiness != 1.0:
        one = solve_occupancy(workload.rate / servers, served_rps, servers=1, service_scv=scv)
    return PromptQueue(profile, workload, servers, decodes, pool, one, alone, float(death[-1]))


def _served_rps(profile: Profile, workload: Workload, decodes: float, alone_s: float) -> FloatArray:
    """Return the prompts/s of one server by the number of its prompts, 1, 2, ...

    It is never slower with more of them, nor than with one, which takes ``alone_s``.
    """
    context, isl = workload.facts.decode_context, workload.facts.mean_prefill
    budget = max(profile.max_batch_tokens - decodes, 1.0)
    max_prompts = max(budget / isl, 1.0)  # of one iteration
    prompts = np.unique(np.append(np.arange(1.0, min(max_prompts, MAX_COUNTS)), max_prompts))
    tokens = np.minimum(prompts * isl, budget)
    seconds = iteration_s(profile, decodes, decodes * context, tokens, tokens * workload.facts.keys)
    served_rps = np.maximum(np.maximum.accumulate(tokens / isl / seconds), 1.0 / alone_s)
    served_rps[0] = 1.0 / alone_s
    if max_prompts == 1.0:  # the next prompt uses the rest of an iteration's budget
        served_rps = np.append(served_rps, max(float(budget / isl / seconds[-1]), served_rps[0]))
    return served_rps
