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

    sequences: FloatArray  # numbers of sequences
    max_sequences: FloatArray  # [instance] largest number
    decode_s: FloatArray  # iteration that only decodes
    prompt_s: FloatArray  # all iterations of a prompt with n - 1 decodes
    extra_s: FloatArray  # time by which a prompt makes iterations longer, in all
    start_s: FloatArray  # [instance] fixed time before the first iteration of a request


def speeds_of(instances: Sequence[Instance], requests: Requests) -> Speeds:
    """Return the speeds of ``instances`` at ``POINTS`` numbers of sequences each.

    The numbers lie evenly, on a log scale, between 1 and the most sequences that an instance can
    decode at once. Speeds are computed at ``KNOTS`` of them per profile, and interpolated for the
    others.
    """
    # Instances may differ in their start time only, and then share their speeds. The list keeps
    # the curves, so that no two of them have the same id.
    curves = [instance.profile.curve for instance in instances]
    speeds_by_key: dict[tuple[int, int, int, int], tuple[FloatArray, ...]] = {}
    speeds = []
    for instance, curve in zip(instances, curves, strict=True):
        profile = instance.profile
        key = (id(curve), profile.max_batch, profile.max_batch_tokens, profile.kv_capacity_tokens)
        if key not in speeds_by_key:
            speeds_by_key[key] = _speeds_at_knots(profile, requests)
        speeds.append(speeds_by_key[key])
    # [instance, 1], then three arrays [instance, knot]
    max_sequences, decode_s, prompt_s, extra_s = map(np.array, zip(*speeds, strict=True))
    points = np.linspace(0.0, 1.0, POINTS)  # exponents of the largest number
    sequences = np.where(max_sequences >= 1.0, np.maximum(max_sequences, 1.0) ** points, np.nan)
    # Linear interpolation as a matrix [knot, point]: a knot's weight falls to 0 at its neighbours.
    distance = np.abs(points[None, :] - np.linspace(0.0, 1.0, KNOTS)[:, None])
    weights = np.maximum(1.0 - distance * (KNOTS - 1), 0.0)
    start_s = np.array([instance.profile.start_s for instance in instances])
    return Speeds(
        sequences=sequences,
        max_sequences=max_sequences[:, 0],
        decode_s=decode_s @ weights,
        prompt_s=prompt_s @ weights,
        extra_s=extra_s @ weights,
        start_s=start_s,
    )


def _speeds_at_knots(profile: Profile, requests: Requests) -> tuple[FloatArray, ...]:
    """Return the most sequences, ``[1]``, and three kinds of seconds, ``[KNOTS]`` each.

    They are ``decode_s``, ``prompt_s`` and ``extra_s`` of ``Speeds``.
    """
    try:
        max_sequences, _ = decode_places(profile, requests.workload)
    except SimulationError:  # not even one request fits, so no load is within the limits
        max_sequences = 0
    knot_sequences = max(float(max_sequences), 1.0) ** np.linspace(0.0, 1.0, KNOTS)
    isl, context_tokens = float(requests.isl), requests.workload.facts.decode_context
    decode_s = iteration_s(profile, knot_sequences, knot_sequences * context_tokens, 0.0, 0.0)
    others = knot_sequences[:, None] - 1.0
    prompt_s = prefill_alone_s(profile, np.array([isl]), others, context_tokens)[:, 0]
    # The iterations over which the prompt is spread
    iterations = np.ceil(isl / np.maximum(profile.max_batch_tokens - knot_sequences + 1.0, 1.0))
    extra_s = np.maximum(prompt_s - iterations * decode_s, 0.0)
    return np.array([float(max_sequences)]), decode_s, prompt_s, extra_s


def aggregated_loads(speeds: Speeds, requests: Requests) -> Loads:
    """Return rate, TTFT and TBT of aggregated instances at each number of sequences.

    The rate is 0 if the queue would be too long.
    """
    deviations = _normal_quantile(requests)
    gap_count = requests.osl - 1.0
    rate, gap_s = _rate_and_gap(speeds, gap_count)  # of the mean number of sequences
    mean_n, max_n = speeds.sequences, speeds.max_sequences[:, None]
    # Number of sequences that is not exceeded at the tier's attainment
    tail_n = mean_n + deviations * np.sqrt(SMOOTHED * mean_n)

    # TBT: the mean gap, slower with ``tail_n`` sequences, and longer by the prompts that a sequence
    # meets by chance beyond their mean number.
    tail_decode_s = _interpolate_rows(mean_n, speeds.decode_s, np.minimum(tail_n, max_n))
    slowdown = tail_decode_s / np.maximum(speeds.decode_s, NEVER)
    prompts_met = rate * gap_count * gap_s
    prompts_noise_s = deviations * np.sqrt(prompts_met) * speeds.extra_s / max(gap_count, 1.0)
    tbt_s = gap_s * slowdown + prompts_noise_s

    # TTFT: the prompt after the running iteration and earlier prompts, which wait as in M/D/1.
    prompt_load = rate * speeds.extra_s
    wait_s = prompt_load / np.maximum(1.0 - prompt_load, 1.0 - BUSIEST) * speeds.extra_s / 2.0
    queued_s = _exponential_quantile(requests) * wait_s
    ttft_s = speeds.start_s[:, None] + speeds.prompt_s + gap_s + queued_s

    # With requests waiting for a place, the queue is too long for a TTFT or E2E limit.
    overloaded = prompt_load >= BUSIEST
    if requests.tier.ttft_s is not None or requests.tier.e2e_s is not None:
        overloaded |= ((tail_n > max_n) & (mean_n < max_n)) | (mean_n >= max_n)
    return Loads(np.where(overloaded, 0.0, rate), ttft_s, tbt_s)


def _rate_and_gap(speeds: Speeds, gap_count: float) -> tuple[FloatArray, FloatArray]:
    """Return the requests/s that keep n sequences running, and the mean gap between their tokens.

    A request has ``gap_count`` of them. Both results are ``[instance, POINTS]``.
    """
    gap_s, rate = speeds.decode_s, np.zeros_like(speeds.sequences)
    for _ in range(STEPS):
        residence_s = np.maximum(speeds.prompt_s + gap_count * gap_s, NEVER)
        rate_at_gap = speeds.sequences / residence_s
        # The mean with the last rate damps the iteration.
        rate = rate_at_gap if not rate.any() else (rate + rate_at_gap) / 2.0
        gap_s = speeds.decode_s / np.maximum(1.0 - rate * speeds.extra_s, 1.0 - BUSIEST)
    return rate, gap_s


def decode_loads(speeds: Speeds, instances: Sequence[Instance], requests: Requests) -> Loads:
    """Return rate and TBT of decode instances at each number of sequences; TTFT is 0."""
    mean_n, gap_count = speeds.sequences, max(requests.osl - 1.0, NEVER)
    # The number of sequences that is not exceeded at the tier's attainment.
    exceeding = _normal_quantile(requests) * np.sqrt(SMOOTHED * mean_n)
    sequences_at_tail = np.minimum(mean_n + exceeding, speeds.max_sequences[:, None])
    # Seconds to send the KV cache of a prompt.
    sending_s = np.zeros((len(instances), 1))
    for index, instance in enumerate(instances):
        link = instance.link
        if link is not None:
            sending_s[index] = link.kv_bytes_per_token * requests.isl / link.bytes_s
    rate = mean_n / (gap_count * speeds.decode_s)
    decode_s = _interpolate_rows(mean_n, speeds.decode_s, sequences_at_tail)
    tbt_s = decode_s + sending_s / gap_count
    return Loads(rate, np.zeros_like(rate), tbt_s)


def prefill_loads(instances: Sequence[Instance], requests: Requests) -> Loads:
    """Return rate and TTFT of prefill instances at rising shares of busy time; TBT is 0."""
    isl, utilization = float(requests.isl), np.linspace(0.01, BUSIEST, POINTS)
    alone_s, queued_s = np.zeros((2, len(instances), 1))  # of a prompt alone, and among others
    for index, instance in enumerate(instances):
        profile, budget = instance.profile, float(instance.profile.max_batch_tokens)
        alone_s[index] = prefill_alone_s(profile, np.array([isl]), 0.0, isl)[0]
        # Waiting prompts fill an iteration, so each takes its part of a full one.
        prompts_per_iteration = max(budget / isl, 1.0)
        iteration_tokens = min(prompts_per_iteration * isl, budget)
        pairs = iteration_tokens * isl / 2.0  # of tokens that attend to each other
        full_iteration_s = float(iteration_s(profile, 0.0, 0.0, iteration_tokens, pairs))
        queued_s[index] = min(full_iteration_s * isl / iteration_tokens, alone_s[index, 0])
    wait_s = utilization / (1.0 - utilization) * alone_s / 2.0
    start_s = np.array([[instance.profile.start_s] for instance in instances])
    ttft_s = start_s + alone_s + _exponential_quantile(requests) * wait_s
    return Loads(utilization / queued_s, ttft_s, np.zeros_like(ttft_s))


def _interpolate_rows(n: FloatArray, values: FloatArray, wanted_n: FloatArray) -> FloatArray:
    """Interpolate ``values``, which are at ``n`` sequences, to ``wanted_n`` sequences.

    All arrays are ``[instance, POINTS]``. The logarithms of ``n`` are evenly spaced.
    """
    log_max = np.log(np.maximum(n[:, -1:], 1.0 + NEVER))
    position = np.log(np.maximum(wanted_n, 1.0)) / log_max * (POINTS - 1)
    position = np.clip(np.nan_to_num(position), 0.0, POINTS - 1.0)
    lower_index = np.minimum(position.astype(np.int64), POINTS - 2)
    fraction = position - lower_index
    lower = np.take_along_axis(values, lower_index, axis=1)
    upper = np.take_along_axis(values, lower_index + 1, axis=1)
    return np.asarray(lower + fraction * (upper - lower))


def _normal_quantile(requests: Requests) -> float:
    """Return the normal quantile at the tier's attainment, in standard deviations."""
    share = min(max(requests.tier.attainment, 0.5), 0.9999)
    return NormalDist().inv_cdf(share)


def _exponential_quantile(requests: Requests) -> float:
    """Return the exponential quantile at the tier's attainment, as a multiple of the mean."""
    return float(-np.log(max(1.0 - requests.tier.attainment, 1e-4)))
