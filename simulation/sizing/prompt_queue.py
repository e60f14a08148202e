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

CROWD = 64  # largest number of prompts for which every count is computed
NEVER = 1e-9  # share of requests that counts as zero
QUARTERS = (np.arange(4) + 0.5) / 4


def prefill_alone_s(
    profile: Profile, isl: FloatArray, decodes: npt.ArrayLike, context: float
) -> FloatArray:
    """Return the seconds to prefill each prompt length if no other prompt waits.

    ``isl`` are the lengths in tokens. ``decodes`` sequences of ``context`` tokens each run in the
    same iterations; their number broadcasts against ``isl``.
    """
    decodes = np.asarray(decodes, np.float64)
    room = np.maximum(profile.max_batch_tokens - decodes, 1.0)
    full_chunks = np.floor(isl / room)
    remainder = isl - full_chunks * room
    tokens_held = decodes * context
    full = iteration_s(
        profile, decodes, tokens_held, room, room * np.maximum(full_chunks, 1.0) * room / 2.0
    )
    last = iteration_s(
        profile, decodes, tokens_held, remainder, remainder * (full_chunks * room + remainder / 2.0)
    )
    return np.asarray(full_chunks * full + np.where(remainder > 0, last, 0.0), np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class PromptTimes:
    """Distributions in seconds of a prompt's ``wait`` for its first iteration, and of its TTFT.

    ``found`` are the seconds of other prompts' work when it arrives. What it leaves behind has the
    same distribution.
    """

    wait: Spread
    first: Spread
    found: Spread


@dataclass(frozen=True, slots=True, eq=False)
class PromptQueue:
    """The queue of prompts of a pool: ``servers`` instances, each with ``decodes`` sequences."""

    profile: Profile
    workload: Workload
    servers: int
    decodes: float
    law: Occupancy  # number of prompts in the pool
    one: Occupancy  # the same for one instance with its share of Poisson arrivals
    alone: Spread  # prefill time of a prompt alone
    largest: float  # largest throughput, requests/s

    def times(self, running_s: float = 0.0) -> PromptTimes:
        """Return the times of a prompt; an iteration without prompts takes ``running_s``.

        ``running_s`` is 0 if there are no such iterations. One instance with Poisson arrivals
        follows ``prompt_chain``. For pools and bursts, the probabilities and delays of the chain
        are scaled by the ratio of two birth-and-death processes, that of the pool and that of one
        instance (Lee and Longton 1959). More servers change these times as they do with exponential
        service.
        """
        rate = self.workload.rate / self.servers
        delayed = None
        if self.law.stable:
            delayed = prompt_delays(self.profile, self.workload.at(rate), self.decodes, running_s)
        if delayed is None:
            never = Spread(np.array([np.inf]), np.ones(1))
            return PromptTimes(never, never, never)
        # Share of prompts that find an iteration running, factor on their delays, and the delay of
        # the other prompts.
        share, stretch, behind_s = delayed.share, 1.0, delayed.behind_s
        if self.law is not self.one:
            pool_busy, one_busy = (
                self.law.probability_of_at_least(self.servers),
                max(self.one.probability_of_at_least(1), NEVER),
            )
            # Mean delays of the prompts that find every server busy
            one_delay_s = _mean_delay(self.one, rate, self.alone.mean) / one_busy
            if min(pool_busy, one_delay_s) > NEVER:
                pool_delay_s = _mean_delay(self.law, self.workload.rate, self.alone.mean)
                stretch = pool_delay_s / pool_busy / one_delay_s
            share = min(pool_busy if self.servers > 1 else share * pool_busy / one_busy, 1.0)
            if self.servers > 1:  # while a server is free, no later prompt joins an iteration
                behind_s *= pool_busy

        def over_all_prompts(late: Spread, otherwise_s: float) -> Spread:
            """Mix the delay of prompts that find an iteration running with that of the others."""
            return mix(
                [
                    (share, Spread(late.values * stretch, late.weights)),
                    (1.0 - share, Spread(np.array([otherwise_s]), np.ones(1))),
                ]
            )

        first = sum_of(over_all_prompts(delayed.late, behind_s), self.alone)
        wait, found = (over_all_prompts(part, 0.0) for part in (delayed.begin, delayed.found))
        return PromptTimes(wait, first, found)


def _mean_delay(law: Occupancy, rate: float, alone_s: float) -> float:
    """Return the mean seconds that prompts take beyond ``alone_s``, by Little's law; at least 0."""
    return max(law.mean / rate - alone_s, 0.0)


def prompt_queue(profile: Profile, workload: Workload, servers: int, decodes: float) -> PromptQueue:
    """Return the queue of prompts of ``servers`` instances, each with ``decodes`` sequences.

    One iteration computes several waiting prompts, up to the token budget. A server is therefore
    faster when more prompts wait.
    """
    context, isl = workload.facts.decode_context, workload.facts.mean_prefill
    alone = spread(prefill_alone_s(profile, workload.facts.prefill_points, decodes, context))
    room = max(profile.max_batch_tokens - decodes, 1.0)
    max_prompts = max(room / isl, 1.0)
    crowd = np.unique(np.append(np.arange(1.0, min(max_prompts, CROWD)), max_prompts))
    tokens = np.minimum(crowd * isl, room)
    seconds = iteration_s(profile, decodes, decodes * context, tokens, tokens * workload.facts.keys)
    # Prompts/s of one server by the number of its prompts: never slower with more of them.
    served_rps = np.maximum(np.maximum.accumulate(tokens / isl / seconds), 1.0 / alone.mean)
    served_rps[0] = 1.0 / alone.mean
    if max_prompts == 1.0:  # the next prompt uses the rest of an iteration's budget
        served_rps = np.append(served_rps, max(float(room / isl / seconds[-1]), served_rps[0]))
    all_busy_rps = np.repeat(served_rps, servers) * servers
    death = np.append(np.arange(1, servers) / alone.mean, all_busy_rps)
    scv = float(alone.weights @ (alone.values - alone.mean) ** 2) / alone.mean**2
    law = solve_occupancy(
        workload.rate, death, servers=servers, burstiness=workload.burstiness, service_scv=scv
    )
    law_of_one = law
    if servers > 1 or workload.burstiness != 1.0:
        law_of_one = solve_occupancy(
            workload.rate / servers, served_rps, servers=1, service_scv=scv
        )
    return PromptQueue(
        profile, workload, servers, decodes, law, law_of_one, alone, float(death[-1])
    )
