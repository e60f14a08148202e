"""Prompts that wait on instances that decode beside them: the fast half of ``batch_queue``."""

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

CROWD = 64  # prompts together that are looked at one by one
NEVER = 1e-9  # a share of requests
QUARTERS = (np.arange(4) + 0.5) / 4


def prompt_s(
    profile: Profile, isl: FloatArray, beside: npt.ArrayLike, context: float
) -> FloatArray:
    """Seconds of the iterations that prefill prompts of these lengths, each by itself; ``beside``
    decodes broadcast against the lengths."""
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
    """Of a prompt: until its iteration, until its first token, and the work of earlier prompts that
    it found, which is also the law of what it leaves behind."""

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
    law: Occupancy  # of how many prompts there are
    one: Occupancy  # the same of one instance that has its part of them, Poisson's
    alone: Spread  # what one takes by itself
    largest: float  # the most there can be

    def times(self, running_s: float = 0.0) -> PromptTimes:
        """Until the iteration that begins a prompt and until its first token; an iteration without
        prompts takes ``running_s`` (0: there is none).

        One instance that Poisson's prompts come to follows ``prompt_chain``. In a pool, or where
        they come in bursts, as many more or fewer wait, and those as much longer or shorter, as by
        the laws of birth and death (Lee and Longton 1959): what is known of one server in full,
        times what several make of it where service is taken as exponential.
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
            if self.servers > 1:  # while one is free nobody comes behind a prompt
                behind_s *= many

        def of(late: Spread, otherwise_s: float) -> Spread:
            """Of those that find an iteration running, and of the others."""
            return mixture(
                [
                    (share, Spread(late.values * stretch, late.weights)),
                    (1.0 - share, Spread(np.array([otherwise_s]), np.ones(1))),
                ]
            )

        first = added(of(delayed.late, behind_s), self.alone)
        return PromptTimes(of(delayed.begin, 0.0), first, of(delayed.found, 0.0))


def _late(law: Occupancy, rate: float, alone_s: float) -> float:
    """Mean seconds that prompts take longer than by themselves, by Little's law."""
    return max(law.mean / rate - alone_s, 0.0)


def prompt_queue(profile: Profile, workload: Workload, servers: int, beside: float) -> PromptQueue:
    """On instances with ``beside`` decodes each; several prompts that wait go into one iteration,
    up to the budget, so that a server is the faster the more are waiting."""
    context, isl = workload.facts.decode_context, workload.facts.mean_isl
    alone = spread(prompt_s(profile, workload.facts.isl_points, beside, context))
    room = max(profile.max_batch_tokens - beside, 1.0)
    most = max(room / isl, 1.0)
    crowd = np.unique(np.append(np.arange(1.0, min(most, CROWD)), most))
    tokens = np.minimum(crowd * isl, room)
    seconds = iteration_s(profile, beside, beside * context, tokens, tokens * workload.facts.keys)
    served = np.maximum(np.maximum.accumulate(tokens / isl / seconds), 1.0 / alone.mean)
    served[0] = 1.0 / alone.mean
    if most == 1.0:  # a rest of a budget's iteration goes to the next prompt
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
