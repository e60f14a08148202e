"""Model prompts that wait on decoding instances: the fast time scale of ``batch_queue``."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simulation.arrays import FloatArray
from simulation.performance.profile import Profile, iteration_s
from simulation.sizing.birth_death import Occupancy, occupancy
from simulation.sizing.prompt_chain import delays
from simulation.sizing.spread import Spread, added, mixture, spread
from simulation.sizing.workload import Workload

CROWD = 64  # largest number of prompts for which every count is computed
NEVER = 1e-9  # share of requests that counts as zero
QUARTERS = (np.arange(4) + 0.5) / 4


def prompt_s(
    profile: Profile, isl: FloatArray, beside: npt.ArrayLike, context: float
) -> FloatArray:
    """Return the seconds to prefill each prompt length alone.

    ``beside`` decodes broadcast against the lengths ``isl``.
    """
    beside = np.asarray(beside, np.float64)
    room = np.maximum(profile.max_batch_tokens - beside, 1.0)
    full_chunks = np.floor(isl / room)
    rest = isl - full_chunks * room
    tokens_held = beside * context
    full = iteration_s(
        profile, beside, tokens_held, room, room * np.maximum(full_chunks, 1.0) * room / 2.0
    )
    last = iteration_s(profile, beside, tokens_held, rest, rest * (full_chunks * room + rest / 2.0))
    return np.asarray(full_chunks * full + np.where(rest > 0, last, 0.0), np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class PromptTimes:
    """Wait for its first iteration, time to first token, and earlier work found by a prompt.

    ``found`` is also the law of the work that a prompt leaves behind.
    """

    wait: Spread
    first: Spread
    found: Spread


@dataclass(frozen=True, slots=True, eq=False)
class PromptQueue:
    """Prompts on ``servers`` instances with ``beside`` decodes each."""

    profile: Profile
    workload: Workload
    servers: int
    beside: float
    law: Occupancy  # number of prompts in the pool
    one: Occupancy  # the same for one instance with its share of Poisson arrivals
    alone: Spread  # prefill time of a prompt alone
    largest: float  # largest throughput, requests/s

    def times(self, running_s: float = 0.0) -> PromptTimes:
        """Return the times of a prompt; an iteration without prompts takes ``running_s`` (0: none).

        One instance with Poisson arrivals follows ``prompt_chain``. For pools or bursts, the
        chain's probabilities and delays are scaled by the ratio of the birth-and-death laws (Lee
        and Longton 1959). The full law of one server is known; the effect of several servers is
        taken from exponential service.
        """
        rate = self.workload.rate / self.servers
        delayed = None
        if self.law.stable:
            delayed = delays(self.profile, self.workload.at(rate), self.beside, running_s)
        if delayed is None:
            never = Spread(np.array([np.inf]), np.ones(1))
            return PromptTimes(never, never, never)
        share, stretch, behind_s = delayed.share, 1.0, delayed.behind_s
        if self.law is not self.one:
            many, few = self.law.at_least(self.servers), max(self.one.at_least(1), NEVER)
            late = _late(self.one, rate, self.alone.mean) / few
            if min(many, late) > NEVER:
                stretch = _late(self.law, self.workload.rate, self.alone.mean) / many / late
            share = min(many if self.servers > 1 else share * many / few, 1.0)
            if self.servers > 1:  # while a server is free, no later prompt joins an iteration
                behind_s *= many

        def of(late: Spread, otherwise_s: float) -> Spread:
            """Mix the delay of prompts that find an iteration running with that of the others."""
            return mixture(
                [
                    (share, Spread(late.values * stretch, late.weights)),
                    (1.0 - share, Spread(np.array([otherwise_s]), np.ones(1))),
                ]
            )

        first = added(of(delayed.late, behind_s), self.alone)
        return PromptTimes(of(delayed.begin, 0.0), first, of(delayed.found, 0.0))


def _late(law: Occupancy, rate: float, alone_s: float) -> float:
    """Return the mean delay of prompts over their time alone, by Little's law."""
    return max(law.mean / rate - alone_s, 0.0)


def prompt_queue(profile: Profile, workload: Workload, servers: int, beside: float) -> PromptQueue:
    """Build the queue of prompts on ``servers`` instances with ``beside`` decodes each.

    One iteration takes several waiting prompts, up to the token budget. A server is therefore
    faster when more prompts wait.
    """
    context, isl = workload.facts.decode_context, workload.facts.mean_isl
    alone = spread(prompt_s(profile, workload.facts.isl_points, beside, context))
    room = max(profile.max_batch_tokens - beside, 1.0)
    most = max(room / isl, 1.0)
    crowd = np.unique(np.append(np.arange(1.0, min(most, CROWD)), most))
    tokens = np.minimum(crowd * isl, room)
    seconds = iteration_s(profile, beside, beside * context, tokens, tokens * workload.facts.keys)
    served = np.maximum(np.maximum.accumulate(tokens / isl / seconds), 1.0 / alone.mean)
    served[0] = 1.0 / alone.mean
    if most == 1.0:  # the next prompt uses the rest of an iteration's budget
        served = np.append(served, max(float(room / isl / seconds[-1]), served[0]))
    death = np.append(np.arange(1, servers) / alone.mean, np.repeat(served, servers) * servers)
    scv = float(alone.weights @ (alone.values - alone.mean) ** 2) / alone.mean**2
    law = occupancy(
        workload.rate, death, servers=servers, burstiness=workload.burstiness, service_scv=scv
    )
    queue = law
    if servers > 1 or workload.burstiness != 1.0:
        queue = occupancy(workload.rate / servers, served, servers=1, service_scv=scv)
    return PromptQueue(profile, workload, servers, beside, law, queue, alone, float(death[-1]))
