"""Evaluate a state-dependent batch-service queue (methods.md C2): wait, TTFT, TBT and E2E.

The queue is one instance, or a pool of equal instances with evenly spread requests. It has one of
three roles (``fleet.ROLES``). Two time scales each have a birth-and-death process
(``birth_death``).

**Sequences** stay for many iterations. With n sequences, a decode-only iteration takes T(n), one
that also prefills T'(n). Prompts arrive at ``rate``, so a share q of iterations prefills. A
sequence needs k prefill iterations and OSL - 1 others:

    residence(n) = k T'(n) + (OSL - 1) ((1 - q) T(n) + q T'(n)),    q = 1 - exp(-rate k T).

Completions happen at n / residence(n), the death rate of the process of n. The batch, the token
budget and the KV memory (mean tokens per sequence) limit n. This limit is the number of *places* on
an instance. Further requests wait for a place.

A sequence sees a mean gap T(n) with probability in proportion to n P(n). During its life n changes.
For a process with a correlation time of one mean life, the mean over a life x times as long has the
share 2 (e^-x - 1 + x) / x^2 of the variance. Iterations that also prefill add the rest.

**Prompts** stay for a few iterations, modelled in ``prompt_chain``. A new prompt waits for the
running iteration and for the prompts before it. One iteration prefills several waiting prompts, up
to the token budget. A pool of prefill instances is the same without decodes, with one server per
instance.

A decode pool receives sequences after the transfer of their KV cache. The transfer counts to the
first gap. Not modelled: preemption, and uneven routing in a pool. Errors are in docs/sizing.md.
"""

from dataclasses import dataclass

import numpy as np
import scipy

from simulation.arrays import FloatArray
from simulation.errors import SimulationError
from simulation.fleet import KvLink, Tier
from simulation.performance.profile import Profile, iteration_s
from simulation.sizing.birth_death import Occupancy, solve_occupancy
from simulation.sizing.latencies import (
    AT_ONCE,
    NO_TIME,
    end_to_end_time,
    gaps_with_delay,
    queue_wait,
    transfer_time,
)
from simulation.sizing.prompt_queue import (
    ARRIVAL_SHARES,
    MIN_SHARE,
    PromptTimes,
    prefill_alone_s,
    prompt_queue,
)
from simulation.sizing.spread import Spread, mix, shift, spread, sum_of, thin
from simulation.sizing.workload import Workload

SPEED_KNOTS = 20  # numbers of sequences for which speeds are computed; others are interpolated
GAP_POINTS = 14  # points each for sequences and for answer lengths in the distribution of gaps
# Quantile levels at which a gamma distribution is evaluated, and their weights.
GAMMA_LEVELS = np.array([0.05, 0.2, 0.4, 0.6, 0.8, 0.92, 0.97, 0.99, 0.997])
GAMMA_WEIGHTS = np.array([0.125, 0.175, 0.2, 0.2, 0.16, 0.085, 0.035, 0.0135, 0.0065])
RESIDENCE_STEPS = 12  # fixed-point steps of the residence times


@dataclass(frozen=True, slots=True, eq=False)
class Evaluation:
    """Results of a pool at one rate; distributions of times in seconds.

    A role without prompts has no TTFT, one without decodes no TBT: their distributions are empty.
    """

    rate: float  # requests/s
    stable: bool  # False: the queue grows without end
    utilisation: float  # share of the pool's largest throughput
    batch: float  # mean sequences per instance
    queue: float  # mean requests that wait for a place in a batch, whole pool
    wait: Spread  # for a place and for earlier prompts
    ttft: Spread
    tbt: Spread
    e2e: Spread

    def attainment(self, tier: Tier) -> float:
        """Return the share of requests within every limit of the tier.

        TTFT and TBT are assumed independent.
        """
        if not self.stable:
            return 0.0
        ttft_and_tbt = self.ttft.share_within(tier.ttft_s) * self.tbt.share_within(tier.tbt_s)
        return min(ttft_and_tbt, self.e2e.share_within(tier.e2e_s))


@dataclass(frozen=True, slots=True, eq=False)
class Speeds:
    """Seconds of an instance with n running sequences, ``[n - 1]``, up to ``decode_places``."""

    decode_s: FloatArray  # iteration that only decodes
    gap_s: FloatArray  # mean iteration, including prompts of others
    noise: FloatArray  # variance that prompts of others add per second of decoding, seconds
    extra_s: FloatArray  # time by which a prompt makes iterations longer, in all
    residence_s: FloatArray  # time that a sequence spends on the instance

    @property
    def completions(self) -> FloatArray:
        """Return the completions per second with n running sequences, ``[n - 1]``."""
        return np.arange(1, len(self.gap_s) + 1) / self.residence_s


def decode_places(profile: Profile, workload: Workload, role: str = "both") -> tuple[int, str]:
    """Return the most sequences that decode at once on an instance, and what limits them.

    The limit is "batch", "memory" or "prefill". "prefill" means that the token budget admits no
    more sequences. Raises SimulationError if a mean request does not fit in the KV memory.
    """
    batch = min(profile.max_batch, profile.max_batch_tokens)
    facts = workload.facts
    tokens_each = facts.decode_context if facts.mean_osl > 1 else facts.mean_isl + 1.0
    memory = int(profile.kv_capacity_tokens / tokens_each)
    if memory < 1:
        raise SimulationError(
            f"A request of the sample does not fit in {profile.model}'s KV memory on {profile.gpu} "
            f"({profile.kv_capacity_tokens} tokens). Use more GPUs per replica."
        )
    limits = [(batch, "batch"), (memory, "memory")]
    if role == "both":
        # Tokens that are decoded per prompt token in steady state.
        decodes_per_prefill = (facts.mean_osl - 1.0) / facts.mean_prefill
        decodes = profile.max_batch_tokens * decodes_per_prefill / (1.0 + decodes_per_prefill)
        limits.append((max(int(np.ceil(decodes)), 1), "prefill"))
    return min(limits)


def instance_speeds(profile: Profile, workload: Workload, role: str, limit: int) -> Speeds:
    """Return the times of one instance that receives ``workload.rate`` requests/s.

    Each array is for 1 to ``limit`` running sequences. A prompt delays decoding by X seconds in
    all. At r prompts/s, a second of decoding therefore takes 1 / (1 - r X) seconds. The rate of
    admitted prompts depends on that in turn.
    """
    context, gaps = workload.facts.decode_context, workload.facts.mean_osl - 1.0
    sequences = np.arange(1.0, limit + 1.0)
    if role == "decode":
        decode_s = iteration_s(profile, sequences, sequences * context, 0.0, 0.0)
        zeros = np.zeros(len(decode_s))  # no prompts are computed here
        return Speeds(decode_s, decode_s, zeros, zeros, np.maximum(gaps, 1e-9) * decode_s)
    # 1. Times for some numbers of sequences ``n``: an iteration that only decodes, one full of
    # prompt tokens, a prompt, and the delay that it causes to others.
    n = np.unique(np.rint(np.geomspace(1.0, limit, SPEED_KNOTS)))
    decode_s = iteration_s(profile, n, n * context, 0.0, 0.0)
    budget = np.maximum(profile.max_batch_tokens - n, 1.0)
    full_s = iteration_s(profile, n, n * context, budget, budget * workload.facts.keys)
    prompts_s, extras_s = _prefill_with_decodes(profile, workload, n, decode_s)
    prompt_s, extra_s = prompts_s.mean(axis=1), extras_s.mean(axis=1)

    # 2. Speed and admitted rate depend on each other: damped fixed-point iteration.
    others = (n[-1] - 1.0) / n[-1]  # no other prompts if there is a single place
    # Share of time that prompts take: no gap is longer than an iteration that they fill.
    largest_share = 1.0 - decode_s / np.maximum(full_s, decode_s * 1.0001)
    residence_s, gap_s = prompt_s + gaps * decode_s, decode_s
    for _ in range(RESIDENCE_STEPS):
        rate = others * np.minimum(workload.rate, n[-1] / residence_s[-1])
        gap_s = decode_s / (1.0 - np.minimum(rate * extra_s, largest_share))
        residence_s = (residence_s + prompt_s + gaps * gap_s) / 2.0
    admitted_rate = min(workload.rate, float(n[-1] / residence_s[-1]))
    noise = others * admitted_rate * (extras_s * extras_s).mean(axis=1)
    # 3. The fields of ``Speeds`` for every number of sequences, by interpolation.
    columns = (decode_s, gap_s, noise, extra_s, residence_s)
    return Speeds(*(np.interp(sequences, n, column) for column in columns))


def _prefill_with_decodes(
    profile: Profile, workload: Workload, n: FloatArray, decode_s: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return the seconds to prefill a prompt among decodes, and the delay that it causes them.

    Both are ``[number of sequences, prompt length]``. ``n`` are the numbers of sequences, the
    prompt included; the lengths are those of the workload. ``decode_s [number of sequences]`` are
    the seconds of an iteration without the prompt.
    """
    context, isl = workload.facts.decode_context, workload.facts.prefill_points
    prefill_s = prefill_alone_s(profile, isl, n[:, None] - 1.0, context)
    chunk = np.maximum(profile.max_batch_tokens - n + 1.0, 1.0)[:, None]
    iterations = np.ceil(isl / chunk)
    return prefill_s, np.maximum(prefill_s - iterations * decode_s[:, None], 0.0)


@dataclass(frozen=True, slots=True)
class PoolShape:
    """The role and the number of a pool's replicas.

    A decode pool receives KV caches over ``link`` from ``senders`` prefill replicas. Other roles
    ignore both.
    """

    role: str = "both"
    instances: int = 1
    link: KvLink | None = None
    senders: int = 1


ONE_REPLICA = PoolShape()


def evaluate_pool(
    profile: Profile, workload: Workload, pool: PoolShape = ONE_REPLICA
) -> Evaluation:
    """Return the latencies and queue of ``pool`` at ``workload.rate``, by closed forms.

    Raises SimulationError if a request does not fit in memory.
    """
    role, instances = pool.role, pool.instances
    if role == "prefill":
        return _evaluate_prefill(profile, workload, instances)
    rate = workload.rate
    limit, limited_by = decode_places(profile, workload, role)
    share_of_load = workload.at(rate / instances)
    speed = instance_speeds(profile, share_of_load, role, limit)
    utilisation = min(1.0, rate / (instances * float(speed.completions[-1])))

    # Number of sequences: in the pool, on an instance (mean: ``batch``), and waiting (``queue``).
    in_pool = _pool_occupancy(speed, workload, instances)
    if not in_pool.stable:
        return _unstable_evaluation(rate, utilisation, float(limit))
    occupied = _instance_occupancy(in_pool, instances, limit)
    batch, queue = float(occupied @ np.arange(limit + 1)), in_pool.mean_queue
    # If prefill is the constraint, ``_prompt_times`` already counts the wait for earlier prompts.
    place_wait = AT_ONCE if limited_by == "prefill" and limit > 1 else queue_wait(in_pool, rate)

    # Latencies: of decode instances, else of those that prefill too.
    tbt = _gap_spread(speed, occupied, workload)
    if role == "decode":
        # A sequence arrives at any moment of a running iteration, and waits for the rest of it.
        running_s = speed.gap_s[max(round(batch) - 1, 0)]
        wait = sum_of(place_wait, spread(running_s * ARRIVAL_SHARES))
        delay = sum_of(wait, transfer_time(pool.link, workload, pool.senders))
        if not np.isfinite(delay.values[-1]):  # the link cannot keep up
            return _unstable_evaluation(rate, utilisation, batch)
        tbt = gaps_with_delay(tbt, delay, workload)
        e2e = end_to_end_time(AT_ONCE, tbt, workload)
        return Evaluation(
            rate, stable=True, utilisation=utilisation, batch=batch, queue=queue, wait=place_wait,
            ttft=NO_TIME, tbt=tbt, e2e=e2e,
        )  # fmt: skip

    prompts = _prompt_times(profile, share_of_load, occupied, speed)
    if np.isfinite(prompts.by_earlier.values[-1]):
        # The longest iteration: with ``batch`` decodes, filled by tokens of the longest prompt
        chunk = max(profile.max_batch_tokens - batch, 1.0)
        pairs = chunk * float(workload.facts.isl_points[-1])
        context = batch * workload.facts.decode_context
        longest_s = float(iteration_s(profile, batch, context, chunk, pairs))
        # Earlier prompts still slow the first decodes of a sequence.
        tbt = gaps_with_delay(tbt, prompts.by_earlier, workload)
        tbt = Spread(np.minimum(tbt.values, longest_s), tbt.weights)
    wait = sum_of(place_wait, prompts.wait)
    ttft = shift(sum_of(place_wait, prompts.first_token), profile.start_s)
    if not np.isfinite(ttft.values[-1]):  # prompts arrive faster than they are prefilled
        return _unstable_evaluation(rate, utilisation, batch)
    e2e = end_to_end_time(ttft, tbt, workload)
    return Evaluation(
        rate, stable=True, utilisation=utilisation, batch=batch, queue=queue, wait=wait, ttft=ttft,
        tbt=tbt, e2e=e2e,
    )  # fmt: skip


def saturated_rps(profile: Profile, workload: Workload, pool: PoolShape = ONE_REPLICA) -> float:
    """Return the largest requests/s of ``pool``, beyond which its queue grows without end."""
    role, instances, link = pool.role, pool.instances, pool.link
    if role == "prefill":
        return prompt_queue(profile, workload, instances, 0.0).largest
    limit, _ = decode_places(profile, workload, role)
    speed = instance_speeds(profile, workload.at(np.inf), role, limit)
    decode_rps = instances * float(speed.completions[-1])
    if role == "both":
        prompts = prompt_queue(profile, workload.at(0.0), 1, limit)
        return min(decode_rps, instances * prompts.largest)
    if link is None:
        return decode_rps
    cache_bytes = link.kv_bytes_per_token * workload.facts.mean_isl
    senders_rps = pool.senders * link.bytes_s / cache_bytes
    return min(decode_rps, senders_rps, link.shared_bytes_s / cache_bytes)


# --- sequences -----------------------------------------------------------------------------------


def _pool_occupancy(speed: Speeds, workload: Workload, instances: int) -> Occupancy:
    """Return the distribution of the number of sequences in a pool, by a birth-and-death process.

    Sequences are assumed to be spread evenly over the instances.
    """
    completions = speed.completions  # per second, with 1, 2, ... sequences
    if instances > 1:
        places = len(completions)
        per_instance = np.arange(1, instances * places + 1) / instances  # sequences
        of_instance = np.interp(per_instance, np.arange(places + 1), np.append(0.0, completions))
        completions = instances * of_instance
    decode_s = (workload.facts.mean_osl - 1.0) * float(speed.gap_s[-1])
    decode_share = decode_s / float(speed.residence_s[-1])
    return solve_occupancy(
        workload.rate,
        completions,
        burstiness=workload.burstiness,
        # Only the decoding part of the residence varies with the output length.
        service_scv=workload.facts.osl_scv * decode_share**2,
        overlap=workload.facts.osl_overlap,
    )


def _instance_occupancy(in_pool: Occupancy, instances: int, limit: int) -> FloatArray:
    """Return the probability of 0 to ``limit`` sequences on one instance, ``[limit + 1]``.

    ``in_pool`` is the distribution of their number in the pool. The last probability includes
    waiting requests.
    """
    if instances == 1:
        return in_pool.occupancy_probabilities
    probability = in_pool.occupancy_probabilities
    total = np.arange(len(probability))  # sequences in the pool
    # They are spread evenly: ``share_with_more`` of the instances have one more than ``fewest``.
    fewest, share_with_more = total // instances, total % instances / instances
    on_instance = np.zeros(limit + 1)
    np.add.at(on_instance, fewest, probability * (1.0 - share_with_more))
    np.add.at(on_instance, np.minimum(fewest + 1, limit), probability * share_with_more)
    return on_instance


def _gap_spread(speed: Speeds, occupied: FloatArray, workload: Workload) -> Spread:
    """Return the distribution of a sequence's mean gap between output tokens, in seconds.

    ``occupied`` is the probability of 0, 1, 2, ... running sequences on an instance. A sequence
    meets different numbers of other sequences during its life. Their prompts delay it too.
    """
    answers = workload.facts.osl_points[workload.facts.osl_points > 1.0]
    if not len(answers):
        return NO_TIME
    # Probability of n sequences as a sequence meets them: in proportion to n P(n).
    met = occupied[1:] * np.arange(1, len(occupied))
    met = met / met.sum() if met.sum() > 0 else np.eye(len(met))[0]  # if none: one runs alone

    # Mean decode-only gap by answer length and by the sequences met, ``[length, met, 1]``. A longer
    # answer meets more different numbers of sequences, so its mean gap varies less. ``smoothing``
    # is the relative deviation of a mean over a life, if numbers are correlated over a mean life.
    decode_s = thin(spread(speed.decode_s, met), GAP_POINTS)
    lengths = thin(spread(answers), GAP_POINTS)
    mean_lives = lengths.values / max(workload.facts.mean_osl, 1.0)
    smoothing = np.sqrt(2.0 * (np.expm1(-mean_lives) + mean_lives) / mean_lives**2)
    base_s = decode_s.mean + smoothing[:, None] * (decode_s.values - decode_s.mean)
    base_s = np.maximum(base_s, float(speed.decode_s[0]))[:, :, None]
    # The last axis has quantile levels of the time that prompts of others add.
    weights = lengths.weights[:, None, None] * decode_s.weights[:, None] * GAMMA_WEIGHTS
    factor = float(met @ (speed.gap_s / speed.decode_s))
    noise = float(met @ speed.noise)
    if factor <= 1.0 + MIN_SHARE or noise <= 0.0:
        return spread(np.broadcast_to(base_s, weights.shape), weights)
    gaps = (lengths.values - 1.0)[:, None, None]
    extra_s = _time_of_other_prompts(gaps * base_s, factor, noise)
    return spread(base_s + extra_s / gaps, weights)


def _time_of_other_prompts(own_s: FloatArray, factor: float, noise: float) -> FloatArray:
    """Return quantiles of the seconds that prompts of others add to ``own_s [..., 1]`` of decodes.

    A life is then a busy period that begins with its own decodes of w seconds. Its mean is
    w / (1 - rho), its variance w noise / (1 - rho)^3 (Takacs), where ``factor`` is 1 / (1 - rho).
    The time beyond w is taken as gamma-distributed. The last axis of the result is GAMMA_LEVELS.
    """
    mean_extra_s = own_s * (factor - 1.0)
    shape = mean_extra_s * mean_extra_s / (own_s * noise * factor**3)
    scale = mean_extra_s / shape
    return np.asarray(scipy.special.gammaincinv(shape, GAMMA_LEVELS) * scale)


# --- prompts -------------------------------------------------------------------------------------


def _prompt_times(
    profile: Profile, workload: Workload, occupied: FloatArray, speed: Speeds
) -> PromptTimes:
    """Return the times of prompts on one instance, averaged over its number of decodes.

    ``occupied`` is the distribution of that number. In the result, ``by_earlier`` is the time by
    which other prompts delay a sequence that has just begun to decode.
    """
    waits, first_token, by_earlier = [], [], []  # each with the weight of the case
    for decodes, weight in _decode_cases(occupied):
        queue = prompt_queue(profile, workload, 1, decodes)
        index = max(round(decodes) - 1, 0)  # in the arrays of ``speed``
        running_s = float(speed.decode_s[index]) if decodes > 0 else 0.0
        extra_s = float(speed.extra_s[index])
        times = queue.times(running_s)
        waits.append((weight, times.wait))
        first_token.append((weight, times.first_token))
        # Only the time beyond plain decodes counts, plus the prompts that arrive meanwhile.
        factor = extra_s / queue.alone.mean / max(1.0 - workload.rate * extra_s, MIN_SHARE)
        delay = Spread(times.by_earlier.values * factor, times.by_earlier.weights)
        by_earlier.append((weight, delay))
    return PromptTimes(mix(waits), mix(first_token), mix(by_earlier))


def _decode_cases(occupied: FloatArray) -> list[tuple[float, float]]:
    """Return (decodes, probability) of two cases that stand for the distribution of decodes.

    They are no decodes, and their mean number if there are any. A case without probability is left
    out.
    """
    with_decodes = 1.0 - float(occupied[0])
    mean = float(occupied @ np.arange(len(occupied)))
    cases = [(0.0, 1.0 - with_decodes), (mean / max(with_decodes, MIN_SHARE), with_decodes)]
    return [(decodes, probability) for decodes, probability in cases if probability > MIN_SHARE]


def _evaluate_prefill(profile: Profile, workload: Workload, instances: int) -> Evaluation:
    """Return the evaluation of a pool of prefill instances at the workload's rate."""
    queue = prompt_queue(profile, workload, instances, 0.0)
    utilisation = min(1.0, workload.rate / queue.largest)
    prompts = queue.pool
    if not prompts.stable:
        return _unstable_evaluation(workload.rate, utilisation, 1.0)
    times = queue.times()
    ttft = shift(times.first_token, profile.start_s)
    busy = np.minimum(np.arange(len(prompts.inside)), instances)
    mean_busy = float(busy @ prompts.inside) + instances * prompts.waiting_share
    return Evaluation(
        rate=workload.rate, stable=True, utilisation=utilisation, batch=prompts.mean / instances,
        queue=max(0.0, prompts.mean - mean_busy), wait=times.wait, ttft=ttft, tbt=NO_TIME,
        e2e=ttft,
    )  # fmt: skip


def _unstable_evaluation(rate: float, utilisation: float, batch: float) -> Evaluation:
    """Return the evaluation of an unstable pool: every time is infinite."""
    never = Spread(np.array([np.inf]), np.ones(1))
    return Evaluation(rate, False, utilisation, batch, float("inf"), never, never, never, never)
