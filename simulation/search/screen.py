"""Screen thousands of instances at once, before queues and simulation rate the best.

In steady state with n sequences, a decode-only iteration takes T(n). A prompt makes iterations
longer by X(n) in total. At r requests/s:

    gap(n) = T(n) / (1 - r X(n)),    residence(n) = P(n) + (OSL - 1) gap(n),    r = n / residence(n)

P(n) are the seconds of the iterations of a prompt. This is the mean of
``batch_queue.instance_speeds``. Percentiles follow from the random numbers of sequences and
prompts. The number of sequences is assumed Poisson, averaged over the life of a request (variance
times 0.74). The number of prompts during a life is Poisson too. The wait of prompts is that of
M/D/1 with an exponential tail.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from simulation.arrays import BoolArray, FloatArray
from simulation.errors import SimulationError
from simulation.performance.profile import Profile, iteration_s
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
    """Rates and latencies of each instance at rising loads, ``[instance, POINTS]``."""

    rate: FloatArray  # requests/s of one instance
    ttft_s: FloatArray  # quantile at the tier's attainment
    tbt_s: FloatArray

    def meets_limits(self, requests: Requests) -> BoolArray:
        """Return the mask of loads at which every limit is met, ``[instance, POINTS]``."""
        tier = requests.tier
        within = np.isfinite(self.rate) & (self.rate > 0)
        if tier.ttft_s is not None:
            within &= self.ttft_s <= tier.ttft_s
        if tier.tbt_s is not None:
            within &= self.tbt_s <= tier.tbt_s
        if tier.e2e_s is not None:
            within &= self.ttft_s + (requests.osl - 1) * self.tbt_s <= tier.e2e_s
        return within

    def largest_rates(self, requests: Requests) -> FloatArray:
        """Return the largest rate within the limits, ``[instance]``; 0 if there is none."""
        return np.asarray(
            np.where(self.meets_limits(requests), self.rate, 0.0).max(axis=1, initial=0.0)
        )


@dataclass(frozen=True, slots=True, eq=False)
class Speeds:
    """Seconds of each instance with n sequences, ``[instance, POINTS]``."""

    n: FloatArray  # numbers of sequences
    limit: FloatArray  # [instance] largest n
    decode: FloatArray  # iteration that only decodes
    prompt: FloatArray  # all iterations of a prompt with n - 1 decodes
    extra: FloatArray  # time by which a prompt makes iterations longer, in all
    start: FloatArray  # [instance] fixed time before the first iteration of a request


def speeds_of(instances: Sequence[Instance], requests: Requests) -> Speeds:
    """Return the speeds of ``instances`` at ``POINTS`` numbers of sequences each.

    The numbers lie evenly, on a log scale, between 1 and the most sequences that an instance can
    decode at once. Speeds are computed at ``KNOTS`` of them per profile, and interpolated for the
    others.
    """
    # Instances may differ in their start time only, and then share their speeds. The list keeps
    # the curves, so that no two of them have the same id.
    curves = [instance.profile.curve for instance in instances]
    by_key: dict[tuple[int, int, int, int], tuple[FloatArray, ...]] = {}
    rows = []
    for instance, curve in zip(instances, curves, strict=True):
        p = instance.profile
        key = (id(curve), p.max_batch, p.max_batch_tokens, p.kv_capacity_tokens)
        if key not in by_key:
            by_key[key] = _speeds_at_knots(p, requests)
        rows.append(by_key[key])
    limit, decode_s, prompt_s, extra_s = (np.array(column) for column in zip(*rows, strict=True))
    points = np.linspace(0.0, 1.0, POINTS)
    n = np.where(limit >= 1.0, np.maximum(limit, 1.0) ** points, np.nan)
    # Linear interpolation from the knots to the points.
    distance = np.abs(points[None, :] - np.linspace(0.0, 1.0, KNOTS)[:, None])
    weights = np.maximum(1.0 - distance * (KNOTS - 1), 0.0)
    start_s = np.array([instance.profile.start_s for instance in instances])
    return Speeds(
        n, limit[:, 0], decode_s @ weights, prompt_s @ weights, extra_s @ weights, start_s
    )


def _speeds_at_knots(profile: Profile, requests: Requests) -> tuple[FloatArray, ...]:
    """Return the most sequences, ``[1]``, and three kinds of seconds, ``[KNOTS]`` each.

    They are ``decode``, ``prompt`` and ``extra`` of ``Speeds``.
    """
    try:
        sequences, _ = decode_places(profile, requests.workload)
    except SimulationError:  # not even one request fits, so no load is within the limits
        sequences = 0
    n = max(float(sequences), 1.0) ** np.linspace(0.0, 1.0, KNOTS)
    isl, context = float(requests.isl), requests.workload.facts.decode_context
    decode_s = iteration_s(profile, n, n * context, 0.0, 0.0)
    prompt_s = prefill_alone_s(profile, np.array([isl]), n[:, None] - 1.0, context)[:, 0]
    # The iterations over which the prompt is spread
    iterations = np.ceil(isl / np.maximum(profile.max_batch_tokens - n + 1.0, 1.0))
    extra_s = np.maximum(prompt_s - iterations * decode_s, 0.0)
    return np.array([float(sequences)]), decode_s, prompt_s, extra_s


def aggregated_loads(speeds: Speeds, requests: Requests) -> Loads:
    """Return rate, TTFT and TBT of aggregated instances at each number of sequences.

    The rate is 0 if the queue would be too long.
    """
    tail = _normal_quantile(requests)
    # The number of sequences exceeds its mean n by ``excess`` at the tier's attainment.
    n, excess = speeds.n, tail * np.sqrt(SMOOTHED * speeds.n)
    gaps = requests.osl - 1.0
    rate, gap = _rate_and_gap(speeds, gaps)
    busy = rate * speeds.extra
    full = (n + excess > speeds.limit[:, None]) & (n < speeds.limit[:, None])
    # Time that more prompts than the mean, which a sequence meets by chance, add to its mean gap.
    prompts = rate * gaps * gap
    noise = tail * np.sqrt(prompts) * speeds.extra / max(gaps, 1.0)
    busy_n = np.minimum(n + excess, speeds.limit[:, None])
    busy_decode_s = _interpolate_rows(speeds.n, speeds.decode, busy_n)
    slowdown = busy_decode_s / np.maximum(speeds.decode, NEVER)
    # Mean wait for earlier prompts, by the formula of M/D/1.
    waits = busy / np.maximum(1.0 - busy, 1.0 - BUSIEST) * speeds.extra / 2.0
    ttft = speeds.start[:, None] + speeds.prompt + gap + _exponential_quantile(requests) * waits
    # With requests waiting for a place, the queue is too long for a TTFT or E2E limit.
    limited = requests.tier.ttft_s is not None or requests.tier.e2e_s is not None
    waits_for_place = full | (n >= speeds.limit[:, None]) if limited else False
    overloaded = (busy >= BUSIEST) | waits_for_place
    return Loads(np.where(overloaded, 0.0, rate), ttft, gap * slowdown + noise)


def _rate_and_gap(speeds: Speeds, gaps: float) -> tuple[FloatArray, FloatArray]:
    """Return the requests/s that keep n sequences running, and the mean gap between their tokens.

    A request has ``gaps`` of them. Both results are ``[instance, POINTS]``.
    """
    gap, rate = speeds.decode, np.zeros_like(speeds.n)
    for _ in range(STEPS):
        rate_at_gap = speeds.n / np.maximum(speeds.prompt + gaps * gap, NEVER)
        # The mean with the last rate damps the iteration.
        rate = rate_at_gap if not rate.any() else (rate + rate_at_gap) / 2.0
        gap = speeds.decode / np.maximum(1.0 - rate * speeds.extra, 1.0 - BUSIEST)
    return rate, gap


def decode_loads(speeds: Speeds, instances: Sequence[Instance], requests: Requests) -> Loads:
    """Return rate and TBT of decode instances at each number of sequences; TTFT is 0."""
    mean_n, gaps = speeds.n, max(requests.osl - 1.0, NEVER)
    # The number of sequences that is not exceeded at the tier's attainment.
    excess = _normal_quantile(requests) * np.sqrt(SMOOTHED * mean_n)
    busy_n = np.minimum(mean_n + excess, speeds.limit[:, None])
    # Seconds to send the KV cache of a prompt.
    sending_s = np.zeros((len(instances), 1))
    for k, instance in enumerate(instances):
        link = instance.link
        if link is not None:
            sending_s[k] = link.kv_bytes_per_token * requests.isl / link.bytes_s
    rate = mean_n / (gaps * speeds.decode)
    tbt = _interpolate_rows(mean_n, speeds.decode, busy_n) + sending_s / gaps
    return Loads(rate, np.zeros_like(rate), tbt)


def prefill_loads(instances: Sequence[Instance], requests: Requests) -> Loads:
    """Return rate and TTFT of prefill instances at rising shares of busy time; TBT is 0."""
    isl, share = float(requests.isl), np.linspace(0.01, BUSIEST, POINTS)
    alone_s, queued_s = np.zeros((2, len(instances), 1))  # of a prompt alone, and among others
    for k, instance in enumerate(instances):
        profile, budget = instance.profile, float(instance.profile.max_batch_tokens)
        alone_s[k] = prefill_alone_s(profile, np.array([isl]), 0.0, isl)[0]
        # Waiting prompts fill an iteration, so each takes its part of a full one.
        prompts = max(budget / isl, 1.0)
        tokens = min(prompts * isl, budget)
        full = float(iteration_s(profile, 0.0, 0.0, tokens, tokens * isl / 2.0))
        queued_s[k] = min(full * isl / tokens, alone_s[k, 0])
    waits = share / (1.0 - share) * alone_s / 2.0
    start = np.array([[instance.profile.start_s] for instance in instances])
    ttft = start + alone_s + _exponential_quantile(requests) * waits
    return Loads(share / queued_s, ttft, np.zeros_like(ttft))


def _interpolate_rows(n: FloatArray, values: FloatArray, wanted_n: FloatArray) -> FloatArray:
    """Interpolate ``values``, which are at ``n`` sequences, to ``wanted_n`` sequences.

    All arrays are ``[instance, POINTS]``. The logarithms of ``n`` are evenly spaced.
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
    """Return the normal quantile at the tier's attainment, in standard deviations."""
    share = min(max(requests.tier.attainment, 0.5), 0.9999)
    return NormalDist().inv_cdf(share)


def _exponential_quantile(requests: Requests) -> float:
    """Return the exponential quantile at the tier's attainment, as a multiple of the mean."""
    return float(-np.log(max(1.0 - requests.tier.attainment, 1e-4)))
