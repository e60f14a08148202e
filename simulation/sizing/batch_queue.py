"""A state-dependent batch-service queue (methods.md C2): load to wait, TTFT, TBT and E2E.

One instance, or a pool of equal ones among which requests are spread evenly, in one of three roles
(``fleet.ROLES``). It has two time scales, and a law of birth and death (``birth_death``) for each.

**Sequences** stay for many iterations. With n of them an iteration that only decodes takes
T(n), one that also prefills T'(n); prompts arrive at ``rate``, so a share q of iterations prefills,
and a sequence needs k prefill iterations and OSL - 1 others:

    residence(n) = k T'(n) + (OSL - 1) ((1 - q) T(n) + q T'(n)),    q = 1 - exp(-rate k T).

Completions happen at n / residence(n), which is what the law of n needs; the batch, the token
budget and the KV memory (mean tokens held per sequence) limit n, and beyond the limit requests
wait in line. Sequences of a mean gap T(n) are seen in proportion to n P(n). Over its life a
sequence sees n move: of a process whose correlation time is a life, the mean over x lives has the
share 2 (e^-x - 1 + x) / x^2 of the variance. Iterations that happen to prefill add the rest.

**Prompts** stay for a few iterations, by which they are looked at (``prompt_chain``): a new one
waits for the end of the running iteration and for those before it, several that wait are prefilled
in one, up to the token budget. A pool of prefill instances is the same without decodes, with as
many servers as instances.

A decode pool takes sequences whose KV cache had to travel first: the way counts to the first gap.
What this leaves out: preemption, and that requests are not spread perfectly over a pool. How far it
is off: docs/sizing.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy

from simulation.arrays import FloatArray
from simulation.errors import SimulationError
from simulation.fleet import ROLES, KvLink, Tier
from simulation.performance.profile import Profile, iteration_s
from simulation.sizing.birth_death import Occupancy, occupancy
from simulation.sizing.latencies import (
    AT_ONCE,
    NOTHING,
    end_to_end,
    line_wait,
    transfer,
    with_first,
)
from simulation.sizing.prompt_queue import NEVER, QUARTERS, PromptTimes, prompt_queue, prompt_s
from simulation.sizing.spread import (
    Spread,
    added,
    later,
    mixture,
    spread,
    thinned,
)
from simulation.sizing.workload import Workload

KNOTS = 20  # numbers of sequences at which speeds are looked up
NUMBERS = 14  # of sequences, and lengths of answers, that stand for all in the law of gaps
SHARES = np.array([0.05, 0.2, 0.4, 0.6, 0.8, 0.92, 0.97, 0.99, 0.997])  # shares, of a gamma law
SHARE_WEIGHTS = np.array([0.125, 0.175, 0.2, 0.2, 0.16, 0.085, 0.035, 0.0135, 0.0065])
STEPS = 12  # towards the rate at which all places are taken


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation:
    """What a pool does at a rate; seconds. A role without prompts has no TTFT, one without decodes
    no TBT: empty spreads, means NaN."""

    rate: float
    stable: bool
    utilisation: float  # of what the pool could serve
    batch: float  # mean sequences per instance
    queue: float  # mean requests waiting for a place, in the whole pool
    wait: Spread  # for a place and for earlier prompts
    ttft: Spread
    tbt: Spread
    e2e: Spread

    def attained(self, tier: Tier) -> float:
        """Share of requests within every limit of the tier, TTFT and TBT taken as independent."""
        if not self.stable:
            return 0.0
        both = self.ttft.within(tier.ttft_s) * self.tbt.within(tier.tbt_s)
        return min(both, self.e2e.within(tier.e2e_s))


@dataclass(frozen=True, slots=True, eq=False)
class Speeds:
    """Seconds with 1 .. places sequences on one instance, shape ``[places]``."""

    decode_s: FloatArray  # an iteration that only decodes
    gap_s: FloatArray  # the mean iteration, prompts of others included
    noise: FloatArray  # variance that prompts of others add to a second of decoding, seconds
    extra_s: FloatArray  # by which a prompt makes iterations longer
    residence_s: FloatArray  # of a sequence

    @property
    def completions(self) -> FloatArray:
        return np.arange(1, len(self.gap_s) + 1) / self.residence_s


def places(profile: Profile, workload: Workload, role: str = "both") -> tuple[int, str]:
    """Most sequences that decode at once on an instance, and what limits them: batch, memory or
    prefill, where the token budget lets in no more than so many."""
    batch = min(profile.max_batch, profile.max_batch_tokens)
    tokens_each = (
        workload.facts.decode_context
        if workload.facts.mean_osl > 1
        else workload.facts.mean_isl + 1.0
    )
    memory = int(profile.kv_capacity_tokens / tokens_each)
    if memory < 1:
        raise SimulationError(
            f"A request of the sample does not fit in {profile.model}'s KV memory on {profile.gpu} "
            f"({profile.kv_capacity_tokens} tokens); use more GPUs per instance."
        )
    limits = [(batch, "batch"), (memory, "memory")]
    if role == "both":
        per_iteration = (workload.facts.mean_osl - 1.0) / workload.facts.mean_isl
        budget = profile.max_batch_tokens * per_iteration / (1.0 + per_iteration)
        limits.append((max(int(np.ceil(budget)), 1), "prefill"))
    return min(limits)


def speeds(profile: Profile, workload: Workload, role: str, limit: int) -> Speeds:
    """Of one instance that ``workload.rate`` requests/s come to.

    A prompt makes the iterations it is prefilled in ``extra`` seconds longer, all together, so that
    a second of decoding beside ``rate`` of them takes 1 / (1 - rate extra) seconds.
    """
    context, gaps = workload.facts.decode_context, workload.facts.mean_osl - 1.0
    every = np.arange(1.0, limit + 1.0)
    if role == "decode":
        decode = iteration_s(profile, every, every * context, 0.0, 0.0)
        nothing = np.zeros(limit)
        return Speeds(decode, decode, nothing, nothing, np.maximum(gaps, 1e-9) * decode)
    n = np.unique(np.rint(np.geomspace(1.0, limit, KNOTS)))
    decode = iteration_s(profile, n, n * context, 0.0, 0.0)
    alone, extra = _beside(profile, workload, n, decode)
    prompt, longer = alone.mean(axis=1), extra.mean(axis=1)
    spread_s2 = (extra * extra).mean(axis=1)
    room = np.maximum(profile.max_batch_tokens - n, 1.0)
    full = iteration_s(profile, n, n * context, room, room * workload.facts.keys)
    others = (n[-1] - 1.0) / n[-1]  # with one place nobody prefills beside
    residence = prompt + gaps * decode
    gap = decode
    for _ in range(STEPS):
        rate = others * np.minimum(workload.rate, n[-1] / residence[-1])
        busy = np.minimum(rate * longer, 1.0 - decode / np.maximum(full, decode * 1.0001))
        gap = decode / (1.0 - busy)
        residence = (residence + prompt + gaps * gap) / 2.0
    noise = others * min(workload.rate, float(n[-1] / residence[-1])) * spread_s2
    return Speeds(
        *(np.interp(every, n, column) for column in (decode, gap, noise, longer, residence))
    )


def _beside(
    profile: Profile, workload: Workload, n: FloatArray, decode_s: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """What prompts take beside n decodes, and by how much they make iterations longer: ``[n,
    lengths]``."""
    context, isl = workload.facts.decode_context, workload.facts.isl_points
    alone = prompt_s(profile, isl, n[:, None] - 1.0, context)
    room = np.maximum(profile.max_batch_tokens - n + 1.0, 1.0)[:, None]
    iterations = np.ceil(isl / room)
    return alone, np.maximum(alone - iterations * decode_s[:, None], 0.0)


def evaluate(
    profile: Profile,
    workload: Workload,
    *,
    role: str = "both",
    instances: int = 1,
    link: KvLink | None = None,
    senders: int = 1,
) -> Evaluation:
    """What ``instances`` do together at ``workload.rate``; ``link`` and the number of its
    ``senders`` are for a decode pool. Raises SimulationError where nothing fits."""
    if role not in ROLES or instances < 1 or senders < 1:
        raise SimulationError("A pool needs a role of both, prefill or decode, and an instance.")
    if role == "prefill":
        return _prefill(profile, workload, instances)
    limit, limited_by = places(profile, workload, role)
    share_of_load = workload.at(workload.rate / instances)
    speed = speeds(profile, share_of_load, role, limit)
    law = _law(speed, workload, instances)
    used = min(1.0, workload.rate / (instances * float(speed.completions[-1])))
    if not law.stable:
        return _unstable(workload.rate, used, float(limit))
    occupied = _per_instance(law, instances, limit)
    batch = float(occupied @ np.arange(limit + 1))
    tbt = _gaps(speed, occupied, workload)
    # Where prompts limit, those that wait do so for the prompts before them: counted there.
    line = AT_ONCE if limited_by == "prefill" and limit > 1 else line_wait(law, workload.rate)
    if role == "decode":
        running = spread(speed.gap_s[round(batch) - 1 if batch >= 1 else 0] * QUARTERS)
        first = added(added(line, running), transfer(link, workload, senders))
        if not np.isfinite(first.values[-1]):  # the link cannot keep up
            return _unstable(workload.rate, used, batch)
        tbt = with_first(tbt, first, workload)
        e2e = end_to_end(AT_ONCE, tbt, workload)
        return Evaluation(workload.rate, True, used, batch, law.mean_queue, line, NOTHING, tbt, e2e)
    prompts = _prompts(profile, share_of_load, occupied, speed)
    if np.isfinite(prompts.found.values[-1]):  # a sequence begins amid prompts that it left behind
        full = _longest_s(profile, workload, batch)
        tbt = with_first(tbt, prompts.found, workload)
        tbt = Spread(np.minimum(tbt.values, full), tbt.weights)
    wait, ttft = prompts.wait, prompts.first
    wait, ttft = added(line, wait), later(added(line, ttft), profile.start_s)
    if not np.isfinite(ttft.values[-1]):  # prompts come faster than they can be prefilled
        return _unstable(workload.rate, used, batch)
    e2e = end_to_end(ttft, tbt, workload)
    return Evaluation(workload.rate, True, used, batch, law.mean_queue, wait, ttft, tbt, e2e)


def saturated(
    profile: Profile,
    workload: Workload,
    *,
    role: str = "both",
    instances: int = 1,
    link: KvLink | None = None,
    senders: int = 1,
) -> float:
    """Requests/s from which on the queue of ``evaluate`` grows without end."""
    if role == "prefill":
        return prompt_queue(profile, workload, instances, 0.0).largest
    limit, _ = places(profile, workload, role)
    speed = speeds(profile, workload.at(np.inf), role, limit)
    limit_rps = instances * float(speed.completions[-1])
    if role == "both":
        limit_rps = min(
            limit_rps, instances * prompt_queue(profile, workload.at(0.0), 1, limit).largest
        )
    elif link is not None:
        size = link.kv_bytes_per_token * workload.facts.mean_isl
        limit_rps = min(limit_rps, senders * link.bytes_s / size, link.shared_bytes_s / size)
    return limit_rps


# --- sequences -----------------------------------------------------------------------------------


def _law(speed: Speeds, workload: Workload, instances: int) -> Occupancy:
    """Of the number of sequences in the whole pool, evenly spread."""
    death = speed.completions
    if instances > 1:
        total = np.arange(1, instances * len(death) + 1) / instances
        rates = np.interp(total, np.arange(len(death) + 1), np.append(0.0, death))
        low = total < 1.0  # fewer sequences than instances: each alone
        rates[low] = total[low] * death[0]
        death = instances * rates
    return occupancy(
        workload.rate,
        death,
        burstiness=workload.burstiness,
        service_scv=workload.facts.osl_scv * _decodes(speed, workload),
        overlap=workload.facts.osl_overlap,
    )


def _decodes(speed: Speeds, workload: Workload) -> float:
    """Square of the share of a residence that grows with the answer."""
    gaps = (workload.facts.mean_osl - 1.0) * float(speed.gap_s[-1])
    return (gaps / float(speed.residence_s[-1])) ** 2


def _per_instance(law: Occupancy, instances: int, limit: int) -> FloatArray:
    """P(n) of one instance, those waiting counted with the last; shape ``[limit + 1]``."""
    if instances == 1:
        return law.occupied
    out = np.zeros(limit + 1)
    total = np.arange(len(law.occupied))
    low, part = total // instances, total % instances / instances
    np.add.at(out, low, law.occupied * (1.0 - part))
    np.add.at(out, np.minimum(low + 1, limit), law.occupied * part)
    return out


def _gaps(speed: Speeds, occupied: FloatArray, workload: Workload) -> Spread:
    """Of the mean gap of sequences."""
    answers = workload.facts.osl_points[workload.facts.osl_points > 1.0]
    if not len(answers):
        return NOTHING
    met = occupied[1:] * np.arange(1, len(occupied))
    met = met / met.sum() if met.sum() > 0 else np.eye(len(met))[0]
    centre = thinned(spread(speed.decode_s, met), NUMBERS)
    lengths = thinned(spread(answers), NUMBERS)
    x = lengths.values / max(workload.facts.mean_osl, 1.0)
    smoothing = np.sqrt(2.0 * (np.expm1(-x) + x) / x**2)
    base = centre.mean + smoothing[:, None] * (centre.values - centre.mean)
    base = np.maximum(base, float(speed.decode_s[0]))[:, :, None]
    weights = lengths.weights[:, None, None] * centre.weights[:, None] * SHARE_WEIGHTS
    factor = float(met @ (speed.gap_s / speed.decode_s))
    noise = float(met @ speed.noise)
    if factor <= 1.0 + NEVER or noise <= 0.0:
        return spread(np.broadcast_to(base, weights.shape), weights)
    # With what prompts of others add, a life is a busy period that begins with its own decodes:
    # w / (1 - rho) on average, of variance w noise / (1 - rho)^3 (Takacs); taken as gamma.
    unstretched = (lengths.values - 1.0)[:, None] * base[:, :, 0]
    mean = unstretched * (factor - 1.0)
    shape = mean * mean / (unstretched * noise * factor**3)
    drawn = scipy.special.gammaincinv(shape[:, :, None], SHARES) * (mean / shape)[:, :, None]
    return spread(base + drawn / (lengths.values - 1.0)[:, None, None], weights)


# --- prompts -------------------------------------------------------------------------------------


def _prompts(
    profile: Profile, workload: Workload, occupied: FloatArray, speed: Speeds
) -> PromptTimes:
    """Of one instance whose decodes follow ``occupied``; ``found`` in seconds by which who has just
    begun to decode waits longer for his tokens."""
    waits, first_token, behind = [], [], []
    for beside, weight in zip(*_groups(occupied), strict=True):
        queue = prompt_queue(profile, workload, 1, beside)
        decodes = max(round(beside) - 1, 0)
        running = float(speed.decode_s[decodes]) if beside > 0 else 0.0
        extra = float(speed.extra_s[decodes])
        times = queue.times(running)
        waits.append((weight, times.wait))
        first_token.append((weight, times.first))
        # What of the work takes longer than decodes would, and those who come meanwhile.
        slower = extra / queue.alone.mean / max(1.0 - workload.rate * extra, NEVER)
        behind.append((weight, Spread(times.found.values * slower, times.found.weights)))
    return PromptTimes(mixture(waits), mixture(first_token), mixture(behind))


def _longest_s(profile: Profile, workload: Workload, beside: float) -> float:
    """An iteration full of the longest prompt, beside so many decodes."""
    room = max(profile.max_batch_tokens - beside, 1.0)
    keys = float(workload.facts.isl_points[-1])
    return float(
        iteration_s(profile, beside, beside * workload.facts.decode_context, room, room * keys)
    )


def _groups(occupied: FloatArray) -> tuple[FloatArray, FloatArray]:
    """No decodes, and as many as there are on average where there are any; with their weights."""
    some = 1.0 - float(occupied[0])
    numbers = np.array([0.0, float(occupied @ np.arange(len(occupied))) / max(some, NEVER)])
    weights = np.array([1.0 - some, some])
    return numbers[weights > NEVER], weights[weights > NEVER]


def _prefill(profile: Profile, workload: Workload, instances: int) -> Evaluation:
    queue = prompt_queue(profile, workload, instances, 0.0)
    used = min(1.0, workload.rate / queue.largest)
    if not queue.law.stable:
        return _unstable(workload.rate, used, 1.0)
    times = queue.times()
    wait, ttft = times.wait, later(times.first, profile.start_s)
    law = queue.law
    line = max(0.0, law.mean - float(np.minimum(np.arange(len(law.inside)), instances) @ law.inside)
               - instances * law.beyond)  # fmt: skip
    return Evaluation(
        workload.rate, True, used, law.mean / instances, line, wait, ttft, NOTHING, ttft
    )


def _unstable(rate: float, used: float, batch: float) -> Evaluation:
    never = Spread(np.array([np.inf]), np.ones(1))
    return Evaluation(rate, False, used, batch, float("inf"), never, never, never, never)
