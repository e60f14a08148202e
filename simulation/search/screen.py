"""Screen thousands of instances at once, before queues and simulation rate the best.

In steady state with n sequences, a decode-only iteration takes T(n). A prompt makes iterations
longer by X(n) in total. At r requests/s:

    gap(n) = T(n) / (1 - r X(n)),    residence(n) = P(n) + (OSL - 1) gap(n),    r = n / residence(n)

This is the mean of ``batch_queue.instance_speeds``. Percentiles come from random numbers of
sequences and prompts. Sequences are assumed Poisson, smoothed over a life (variance times 0.74).
The prompts during a life are Poisson too. Waiting prompts follow M/D/1 with an exponential tail.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from simulation.arrays import BoolArray, FloatArray
from simulation.errors import SimulationError
from simulation.fleet import KvLink
from simulation.performance.profile import iteration_s
from simulation.search.values import Instance, Requests
from simulation.sizing.batch_queue import decode_places
from simulation.sizing.prompt_queue import prefill_alone_s

KNOTS = 12  # numbers of sequences with computed speeds, as powers of the largest
POINTS = 96  # loads per instance
STEPS = 10  # fixed-point steps for gap and residence
# Factor on the variance of a number, averaged over one life (batch_queue).
SMOOTHED = 2.0 * np.exp(-1.0)
BUSIEST = 0.97  # largest utilization of a prompt queue; beyond it, the queue is too long
NEVER = 1e-12


@dataclass(frozen=True, slots=True, eq=False)
class Loads:
    """Rates and latencies of each instance at rising loads, ``[instances, POINTS]``.

    The rate is in requests/s of one instance.
    """

    rate: FloatArray
    ttft_s: FloatArray  # quantile at the tier's attainment
    tbt_s: FloatArray

    def meets_limits(self, requests: Requests) -> BoolArray:
        """Return the mask of loads at which every limit is met, ``[instances, POINTS]``."""
        tier = requests.tier
        within = np.isfinite(self.rate) & (self.rate > 0)
        e2e_s = self.ttft_s + (requests.osl - 1) * self.tbt_s
        for limit, seconds in (
            (tier.ttft_s, self.ttft_s), (tier.tbt_s, self.tbt_s), (tier.e2e_s, e2e_s),
        ):  # fmt: skip
            within &= True if limit is None else seconds <= limit
        return within

    def best(self, requests: Requests) -> FloatArray:
        """Return the largest rate within the limits, ``[instances]``; 0 if there is none."""
        return np.asarray(
            np.where(self.meets_limits(requests), self.rate, 0.0).max(axis=1, initial=0.0)
        )


@dataclass(frozen=True, slots=True, eq=False)
class Speeds:
    """Seconds of each instance with n sequences, ``[instances, POINTS]``."""

    n: FloatArray
    limit: FloatArray  # [k] largest n
    decode: FloatArray  # iteration that only decodes
    prompt: FloatArray  # all iterations of a prompt with n - 1 decodes
    longer: FloatArray  # extra iteration time per prompt
    start: FloatArray  # [k] before the first iteration of a request


def speeds_of(instances: Sequence[Instance], requests: Requests) -> Speeds:
    """Return the speeds of ``instances`` at ``POINTS`` numbers of sequences each.

    The numbers lie evenly, on a log scale, between 1 and the most sequences that an instance can
    decode at once. Speeds are computed at ``KNOTS`` of them per profile, and interpolated for the
    others.
    """
    knots = np.linspace(0.0, 1.0, KNOTS)  # log of a number of sequences over that of the most
    shape = (len(instances), KNOTS)
    decode_s, prompt_s, longer_s, limit = (np.zeros(shape) for _ in range(4))
    context = requests.workload.facts.decode_context
    isl, work = np.array([float(requests.isl)]), requests.workload
    # Engines may differ in their start only.
    index_of_speeds: dict[tuple[int, int, int, int], int] = {}
    for k, instance in enumerate(instances):
        p = instance.profile
        speed_key = (id(p.curve), p.max_batch, p.max_batch_tokens, p.kv_capacity_tokens)
        first = index_of_speeds.setdefault(speed_key, k)
        if first < k:
            for part in (decode_s, prompt_s, longer_s, limit):
                part[k] = part[first]
            continue
        try:
            sequences, _ = decode_places(instance.profile, work)
        except SimulationError:  # not even one request fits, so no load is within the limits
            sequences = 0
        limit[k] = sequences
        n = max(float(sequences), 1.0) ** knots
        budget = np.maximum(instance.profile.max_batch_tokens - n + 1.0, 1.0)
        decode_s[k] = iteration_s(instance.profile, n, n * context, 0.0, 0.0)
        prompt_s[k] = prefill_alone_s(instance.profile, isl, n[:, None] - 1.0, context)[:, 0]
        iterations = np.ceil(isl[0] / budget)  # over which the prompt is spread
        # By how much the prompt's iterations are longer than those that only decode.
        longer_s[k] = np.maximum(prompt_s[k] - iterations * decode_s[k], 0.0)
    points = np.linspace(0.0, 1.0, POINTS)
    # Linear interpolation from the knots to the points.
    weights = np.maximum(1.0 - np.abs(points[None, :] - knots[:, None]) * (KNOTS - 1), 0.0)
    max_sequences = limit[:, :1]
    n = np.where(max_sequences >= 1.0, np.maximum(max_sequences, 1.0) ** points, np.nan)
    start_s = np.array([instance.profile.start_s for instance in instances])
    return Speeds(
        n, limit[:, 0], decode_s @ weights, prompt_s @ weights, longer_s @ weights, start_s
    )


def aggregated_loads(speeds: Speeds, requests: Requests) -> Loads:
    """Return rate, TTFT and TBT of aggregated instances at each number of sequences.

    The rate is 0 if the queue would be too long.
    """
    tail = _normal_quantile(requests)
    # The number of sequences exceeds its mean n by ``excess`` at the tier's attainment.
    n, excess = speeds.n, tail * np.sqrt(SMOOTHED * speeds.n)
    gaps = requests.osl - 1.0
    gap, rate = speeds.decode, np.zeros_like(n)
    for _ in range(STEPS):
        rate_at_gap = n / np.maximum(speeds.prompt + gaps * gap, NEVER)
        # The mean with the last rate damps the iteration.
        rate = rate_at_gap if not rate.any() else (rate + rate_at_gap) / 2.0
        gap = speeds.decode / np.maximum(1.0 - rate * speeds.longer, 1.0 - BUSIEST)
    busy = rate * speeds.longer
    full = (n + excess > speeds.limit[:, None]) & (n < speeds.limit[:, None])
    # Extra prompts that a sequence meets by chance, over the mean.
    prompts = rate * gaps * gap
    noise = tail * np.sqrt(prompts) * speeds.longer / max(gaps, 1.0)
    busy_n = np.minimum(n + excess, speeds.limit[:, None])
    busy_decode_s = _interpolate_rows(speeds.n, speeds.decode, busy_n)
    slowdown = busy_decode_s / np.maximum(speeds.decode, NEVER)
    # Mean wait for earlier prompts, by the formula of M/D/1.
    waits = busy / np.maximum(1.0 - busy, 1.0 - BUSIEST) * speeds.longer / 2.0
    ttft = speeds.start[:, None] + speeds.prompt + gap + _exponential_quantile(requests) * waits
    # With requests waiting for a place, the queue is too long for a TTFT or E2E limit.
    limited = requests.tier.ttft_s is not None or requests.tier.e2e_s is not None
    waits_for_place = full | (n >= speeds.limit[:, None]) if limited else False
    overloaded = (busy >= BUSIEST) | waits_for_place
    return Loads(np.where(overloaded, 0.0, rate), ttft, gap * slowdown + noise)


def decode_loads(speeds: Speeds, instances: Sequence[Instance], requests: Requests) -> Loads:
    """Return rate and TBT of decode instances at each number of sequences; TTFT is 0."""
    n, gaps = speeds.n, max(requests.osl - 1.0, NEVER)
    # The number of sequences exceeds its mean n by ``excess`` at the tier's attainment.
    excess = _normal_quantile(requests) * np.sqrt(SMOOTHED * n)
    busy_n = np.minimum(n + excess, speeds.limit[:, None])
    sending_s = np.array([[_sending_s(instance.link, requests)] for instance in instances])
    rate = n / (gaps * speeds.decode)
    tbt = _interpolate_rows(speeds.n, speeds.decode, busy_n) + sending_s / gaps
    return Loads(rate, np.zeros_like(rate), tbt)


def prefill_loads(instances: Sequence[Instance], requests: Requests) -> Loads:
    """Return rate and TTFT of prefill instances at rising shares of busy time; TBT is 0."""
    isl, share = float(requests.isl), np.linspace(0.01, BUSIEST, POINTS)
    alone, crowd_prompt_s = np.zeros((len(instances), 1)), np.zeros((len(instances), 1))
    for k, instance in enumerate(instances):
        profile, budget = instance.profile, float(instance.profile.max_batch_tokens)
        alone[k] = prefill_alone_s(profile, np.array([isl]), 0.0, isl)[0]
        # Waiting prompts fill an iteration, so each takes its part of a full one.
        crowd = max(budget / isl, 1.0) * isl
        tokens = min(crowd, budget)
        full = float(iteration_s(profile, 0.0, 0.0, tokens, tokens * isl / 2.0))
        crowd_prompt_s[k] = min(full * isl / tokens, alone[k, 0])
    waits = share / (1.0 - share) * alone / 2.0
    start = np.array([[instance.profile.start_s] for instance in instances])
    ttft = start + alone + _exponential_quantile(requests) * waits
    return Loads(share / crowd_prompt_s, ttft, np.zeros_like(ttft))


def _interpolate_rows(n: FloatArray, values: FloatArray, wanted_n: FloatArray) -> FloatArray:
    """Interpolate ``values [instances, POINTS]`` at ``n`` sequences to ``wanted_n`` sequences.

    ``n [instances, POINTS]`` has even steps of its logarithm.
    """
    log_max = np.log(np.maximum(n[:, -1:], 1.0 + NEVER))
    position = np.log(np.maximum(wanted_n, 1.0)) / log_max * (POINTS - 1)
    position = np.clip(np.nan_to_num(position), 0.0, POINTS - 1.0)
    low = np.minimum(position.astype(np.int64), POINTS - 2)
    part = position - low
    lower = np.take_along_axis(values, low, axis=1)
    upper = np.take_along_axis(values, low + 1, axis=1)
    return np.asarray(lower + part * (upper - lower))


def _normal_quantile(requests: Requests) -> float:
    """Return the quantile of a normal law at the tier's attainment, in standard deviations."""
    share = min(max(requests.tier.attainment, 0.5), 0.9999)
    return NormalDist().inv_cdf(share)


def _exponential_quantile(requests: Requests) -> float:
    """Return the quantile of an exponential law at the tier's attainment, over its mean."""
    return float(-np.log(max(1.0 - requests.tier.attainment, 1e-4)))


def _sending_s(link: KvLink | None, requests: Requests) -> float:
    """Return the seconds to send the KV cache of a prompt over the instance's link."""
    return 0.0 if link is None else link.kv_bytes_per_token * requests.isl / link.bytes_s
