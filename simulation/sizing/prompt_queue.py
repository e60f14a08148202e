"""Prompts that wait on instances that decode beside them: the fast half of ``batch_queue``."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from simulation.arrays import FloatArray
from simulation.performance.profile import Profile, iteration_s
from simulation.sizing.birth_death import Occupancy, occupancy
from simulation.sizing.spread import Spread, added, spread, unit_gamma
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
    whole = np.floor(isl / room)
    rest = isl - whole * room
    held = beside * context
    full = iteration_s(profile, beside, held, room, room * np.maximum(whole, 1.0) * room / 2.0)
    last = iteration_s(profile, beside, held, rest, rest * (whole * room + rest / 2.0))
    return np.asarray(whole * full + np.where(rest > 0, last, 0.0), np.float64)


@dataclass(frozen=True, slots=True, eq=False)
class PromptTimes:
    """Of a prompt: until its iteration, until its first token, and the work of earlier prompts that
    it found, which is also the law of what it leaves behind."""

    wait: Spread
    first: Spread
    found: Spread


@dataclass(frozen=True, slots=True, eq=False)
class PromptQueue:
    """Prompts on ``servers`` instances: how many, what one takes alone, the most there can be."""

    law: Occupancy
    servers: int
    rate: float
    alone: Spread
    largest: float
    gate: float  # room beside a prompt, as a share of an iteration's
    slack_s: float  # by which prompts behind it lengthen the iteration that a prompt ends in

    @property
    def late_scv(self) -> float:
        """Of the wait of those that wait, in M/G/1 (Takacs): at little load it is the rest of one
        prompt, whose lengths make it uneven, at full load exponential."""
        if self.servers > 1:
            return 1.0
        v, w = self.alone.values, self.alone.weights
        first, second, third = float(w @ v), float(w @ v**2), float(w @ v**3)
        rest, rest2 = second / (2 * first), third / (3 * first)
        rho = min(self.rate * first, 1.0)
        return 2.0 * rho + (1.0 - rho) * rest2 / rest**2 - 1.0

    def times(self, running_s: float, extra_s: float = 0.0, extra_s2: float = 0.0) -> PromptTimes:
        """Until the iteration that begins a prompt (the rest of the running one, and earlier
        prompts) and until its first token.

        Of prompts that fill iterations the wait is that of M/G/1 with vacations, the decodes of
        ``running_s`` (Fuhrmann and Cooper 1985): the sojourn less the service by Little's law, and
        a residual vacation. Short ones are let in together and end together, as behind a gate:
        iterations have mean C = running_s / (1 - rho) and variance rate extra_s2 C / (1 - rho^2),
        rho = rate extra_s, of which a prompt sees (1/2 + rho) E[C^2] / E[C]. What there is between
        the two is in proportion to the room an iteration leaves beside a prompt.

        A prompt is done when the iteration ends that computes its last tokens, and so do those of
        prompts behind it that have room there, whose work it waits for as well: of those that it
        leaves behind, as many as it found (a queue looks the same to who comes and who goes), as
        much as there is room for. Behind a gate that is in C.
        """
        if not self.law.stable:
            never = Spread(np.array([np.inf]), np.ones(1))
            return PromptTimes(never, never, never)
        ends, line = spread(QUARTERS * running_s), self._line(running_s, extra_s, extra_s2)
        beside = (1.0 - self.gate) * np.minimum(line.values, self.slack_s)
        first = added(added(ends, Spread(line.values + beside, line.weights)), self.alone)
        return PromptTimes(added(ends, line), first, line)

    def _line(self, running_s: float, extra_s: float, extra_s2: float) -> Spread:
        """Of the work of earlier prompts."""
        waits = min(self.law.at_least(self.servers), 1.0)  # a sum, and rounded
        if waits <= NEVER or self.rate <= 0:
            return Spread(np.zeros(1), np.ones(1))
        late = max(self.law.mean / self.rate - self.alone.mean, 0.0)
        rho = self.rate * extra_s
        if 0.0 < rho < 1.0 and running_s > 0:
            cycle = running_s / (1.0 - rho)
            seen = cycle + self.rate * extra_s2 / (1.0 - rho * rho)
            gated = max((0.5 + rho) * seen - running_s / 2.0, 0.0)
            late = self.gate * max(gated, late) + (1.0 - self.gate) * late
            waits = max(waits, rho)
        x, share = unit_gamma(self.late_scv)
        return spread(np.append(0.0, late / waits * x), np.append(1.0 - waits, waits * share))


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
    points = workload.facts.isl_points
    rest = points - (np.ceil(points / room) - 1.0) * room  # tokens of a prompt's last iteration
    held, keys = beside * context, workload.facts.keys
    ends = iteration_s(profile, beside, held, rest, rest * keys)
    slack = float(
        np.maximum(iteration_s(profile, beside, held, room, room * keys) - ends, 0).mean()
    )
    scv = float(alone.weights @ (alone.values - alone.mean) ** 2) / alone.mean**2
    law = occupancy(
        workload.rate, death, servers=servers, burstiness=workload.burstiness, service_scv=scv
    )
    gate = 1.0 - 1.0 / most
    return PromptQueue(law, servers, workload.rate, alone, float(death[-1]), gate, slack)
