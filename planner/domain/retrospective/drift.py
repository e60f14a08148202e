"""Compare observed request lengths and replica speeds with those that a plan assumed.

Live measurements go through the Kalman filter of ``simulation.performance.fitting.kalman``.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from planner.domain.random_streams import Stream, generator
from planner.domain.replicas import replica_of
from planner.domain.retrospective.figures import LengthDrift, RequestedPool, SpeedDrift
from planner.domain.serialise import moment
from planner.domain.traffic.known_lengths import (
    MIN_REQUESTS,
    lengths_differ,
    observed_lengths,
    sample_of_model,
)
from planner.domain.traffic.traffic import Traffic
from planner.domain.traffic.window import Window
from planner.errors import ScenarioError
from planner.inputs.live.replica_speed import ServedSpeed
from planner.inputs.scenario.build import Hardware, build_hardware
from planner.inputs.scenario.schema import Scenario
from planner.inputs.scenario.user_facts import UserFacts
from simulation.arrays import FloatArray, IntArray
from simulation.performance.fitting.kalman import Z95, Observations, mean_iteration_seconds, tune
from simulation.performance.linear import LinearProfile
from simulation.performance.profile import Profile, iteration_s

LEAST_OBSERVATIONS = 12  # fewest observations for a drift (assumed)
TINY_S = 1e-9  # smallest coefficient: the filter uses logarithms
LEAST_DRIFT = 0.05  # of the iteration time, to be flagged: a profile's own tolerance (assumed)


def speed_drifts(
    hardware: Hardware, requested: IntArray, served: Sequence[ServedSpeed]
) -> tuple[tuple[SpeedDrift, ...], tuple[str, ...]]:
    """Return (drifts, notes): the speed drift of each observed service, and why some have none.

    ``requested [times, pools]`` are the replicas that the plan requested, and ``served`` the
    observed speeds by model and region. A drift needs exactly one pool of the model in the region,
    an aggregated one, because metrics do not distinguish pools.
    """
    drifts, notes = [], []
    # By model and region: indices of the model and the GPU column of each pool with replicas.
    used_profiles: dict[tuple[str, str], list[tuple[int, int]]] = {}
    for (m, r, g), counts in zip(hardware.model_region_gpu, requested.T, strict=True):
        if counts.any():
            model_region = hardware.models[m].name, hardware.regions[r].name
            used_profiles.setdefault(model_region, []).append((m, g))
    for observed in served:
        profiles = used_profiles.get((observed.model, observed.region), [])
        if len(profiles) > 1:
            notes.append(
                f"The speed of {observed.model} in {observed.region} is not known: the "
                f"observations do not separate its {len(profiles)} kinds of replica."
            )
        elif not profiles or replica_of(hardware, *profiles[0]).role != "mixed":
            notes.append(
                f"The speed of {observed.model or 'a model'} in {observed.region or 'a region'} "
                "was observed, but the plan has no aggregated replicas."
            )
        elif observed.at_s.size >= LEAST_OBSERVATIONS:
            drift = drift_from_profile(hardware.profiles[profiles[0]], observed)
            drifts.append(replace(drift, region=observed.region))
    return tuple(drifts), tuple(notes)


def speeds_now(
    scenario: Scenario,
    user_facts: UserFacts,
    requested: Sequence[RequestedPool],
    served: Sequence[ServedSpeed],
    start_s: float,
    end_s: float,
) -> tuple[SpeedDrift, ...]:
    """Return the speed drifts of a plan that is still active, between two times (epoch seconds).

    ``requested`` are the replicas that it requested, ``served`` the observed speeds. Raises
    ScenarioError if the scenario lacks a pool of the plan.
    """
    hardware = build_hardware(scenario, user_facts, spot=True)
    _, counts = requested_counts(hardware, requested, start_s, end_s)
    drifts, _notes = speed_drifts(hardware, counts, served)
    return drifts


def drift_from_profile(profile: Profile, observed: ServedSpeed) -> SpeedDrift:
    """Return the drift of the observed speed from ``profile``, which may be of any kind."""
    observations = observations_of(profile, observed)
    if isinstance(profile, LinearProfile) and profile.beta_s > 0 and profile.delta_s > 0:
        return speed_drift(profile, observations)
    # ``speed_drift`` needs a linear profile. Replace another kind by a linear one, and scale the
    # observed seconds by the ratio of both profiles' seconds, so that only the drift remains.
    linear = _equivalent_linear_profile(profile, observed, observations)
    linear_s = linear.alpha_s + linear.beta_s * observations.decodes
    linear_s = linear_s + linear.delta_s * observations.prefill_tokens
    profile_s = _mean_iteration_s(
        profile, observed, observations.decodes, observations.prefill_tokens, observations.share
    )
    seconds = observations.seconds * linear_s / profile_s
    return speed_drift(linear, replace(observations, seconds=seconds))


def observations_of(profile: Profile, observed: ServedSpeed) -> Observations:
    """Return the mean batch and time of an iteration in each observation of a service.

    Its sequences are assumed to be spread evenly over the replicas.
    """
    # Prompts that arrive during an iteration are prefilled by the next one, in chunks.
    prompts = observed.requests_per_s * observed.tbt_s
    chunks = np.ceil(observed.input_tokens / profile.max_batch_tokens)
    return Observations(
        at_s=observed.at_s,
        # Under Poisson arrivals, a token shares its batch with the mean of running sequences.
        decodes=np.minimum(1.0 + observed.running, float(profile.max_batch)),
        prefill_tokens=prompts * observed.input_tokens,
        seconds=observed.tbt_s,
        prefills=np.minimum(1.0, prompts * chunks),
    )


def _equivalent_linear_profile(
    profile: Profile, observed: ServedSpeed, observations: Observations
) -> LinearProfile:
    """Return a linear profile with the times of ``profile`` at one sequence and at the mean load.

    At the mean load, both the times with and without prefill are equal.
    """
    sequences = observations.decodes.mean(keepdims=True)
    prefill_tokens = observations.prefill_tokens.mean(keepdims=True)
    share = observations.share.mean(keepdims=True)
    one, zero = np.ones(1), np.zeros(1)
    # Three iteration times: one sequence alone, the mean batch, and the mean batch with prefill.
    mean_isl = observed.input_tokens.mean(keepdims=True)
    mean_osl = observed.output_tokens.mean(keepdims=True)
    mean_lengths = replace(observed, input_tokens=mean_isl, output_tokens=mean_osl)
    (alone_s,) = _mean_iteration_s(profile, mean_lengths, one, zero, zero)
    (decoding_s,) = _mean_iteration_s(profile, mean_lengths, sequences, zero, zero)
    (with_prefill_s,) = _mean_iteration_s(profile, mean_lengths, sequences, prefill_tokens, share)
    per_sequence_s = (decoding_s - alone_s) / max(sequences[0] - 1, 1.0)
    per_token_s = (with_prefill_s - decoding_s) / max(prefill_tokens[0], TINY_S)
    beta_s = max(float(per_sequence_s), TINY_S)
    alpha_s = max(float(alone_s) - beta_s, TINY_S)
    return LinearProfile(
        profile.model,
        profile.gpu,
        profile.tp,
        alpha_s=alpha_s,
        beta_s=beta_s,
        gamma_s=alpha_s,  # prefill has the same constant part
        delta_s=max(float(per_token_s), TINY_S),
        max_batch=profile.max_batch,
        max_batch_tokens=profile.max_batch_tokens,
        kv_capacity_tokens=profile.kv_capacity_tokens,
        provenance=profile.provenance,
    )


def _mean_iteration_s(
    profile: Profile,
    observed: ServedSpeed,
    sequences: FloatArray,
    prefill_tokens: FloatArray,
    share: FloatArray,
) -> FloatArray:
    """Return the profile's mean iteration time in seconds with ``sequences`` in decode.

    They are assumed to be halfway through their answers, with the lengths in ``observed``. A
    ``share`` of the iterations also prefills, ``prefill_tokens`` on average over all iterations.
    """
    context = sequences * (observed.input_tokens + observed.output_tokens / 2)
    tokens_per_prefill = prefill_tokens / np.where(share > 0, share, 1.0)
    # A prompt token sees half of the prompt on average.
    pairs = tokens_per_prefill * observed.input_tokens / 2
    with_prefill = iteration_s(profile, sequences, context, tokens_per_prefill, pairs)
    without_prefill = iteration_s(profile, sequences, context, 0.0, 0.0)
    return share * with_prefill + (1 - share) * without_prefill


def length_drift(traffic: Traffic, window: Window, seed: int) -> tuple[LengthDrift, ...]:
    """Return the change of mean lengths for each model with requests in the window.

    It is the change from ``traffic.lengths``, which are known before the window. It is flagged only
    if the window has at least ``MIN_REQUESTS`` requests of the model.
    """
    rng = generator(seed, Stream.KNOWN)
    drifts = []
    for m, model in enumerate(traffic.models):
        recent = observed_lengths(traffic, m, window.start_s, window.end_s, rng)
        if not recent.requests:
            continue
        known_isl, known_osl = traffic.lengths[m]
        isl, osl = recent.lengths
        is_enough = recent.requests >= MIN_REQUESTS
        drifts.append(
            LengthDrift(
                model=model,
                input_known=float(known_isl.mean()),
                input_came=float(isl.mean()),
                output_known=float(known_osl.mean()),
                output_came=float(osl.mean()),
                flagged=is_enough and lengths_differ(sample_of_model(traffic, m), recent),
            )
        )
    return tuple(drifts)


def speed_drift(profile: LinearProfile, observations: Observations) -> SpeedDrift:
    """Return how many times slower a service runs than ``profile``, at the mean observed load.

    A Kalman filter fits the profile's coefficients to the observations. The drift is flagged if it
    exceeds ``LEAST_DRIFT`` and its 95% interval excludes 1.
    """
    tuned = tune(profile, observations)  # coefficients after each observation
    loads = observations.decodes, observations.prefill_tokens, observations.share
    mean_load = [float(values.mean()) for values in loads]
    coefficients = np.array([profile.alpha_s, profile.beta_s, profile.gamma_s, profile.delta_s])
    profile_s, _ = mean_iteration_seconds(coefficients, *mean_load)
    fitted_s, gradient = mean_iteration_seconds(tuned.history[-1], *mean_load)
    # Delta method: standard error of the logarithm of the iteration time.
    log_gradient = gradient / fitted_s
    log_error = float(np.sqrt(log_gradient @ tuned.covariance @ log_gradient))
    slowdown = fitted_s / profile_s
    low, high = slowdown * np.exp(-Z95 * log_error), slowdown * np.exp(Z95 * log_error)
    excludes_1 = low > 1 or high < 1
    has_drifted = abs(slowdown - 1) > LEAST_DRIFT and excludes_1
    since = None
    if has_drifted:
        path_s = [mean_iteration_seconds(fitted, *mean_load)[0] for fitted in tuned.history]
        first = _drift_start(np.array(path_s) / profile_s)
        since = moment(float(observations.at_s[first]))
    return SpeedDrift(
        profile.model,
        profile.gpu,
        profile.tp,
        observations=int(observations.seconds.size),
        times=slowdown,
        low=float(low),
        high=float(high),
        flagged=has_drifted,
        since=since,
    )


def _drift_start(path: FloatArray) -> int:
    """Return the index of the first observation from which the drift stays above ``LEAST_DRIFT``.

    ``path`` is the fitted iteration time over the profile's, after each observation. The drift is
    in the direction of its last value.
    """
    direction = np.sign(path[-1] - 1)  # 1: slower than the profile, -1: faster
    drift = (path - 1) * direction
    small = np.flatnonzero(drift <= LEAST_DRIFT)
    return int(small[-1]) + 1 if len(small) else 0


def requested_counts(
    hardware: Hardware, pools: Sequence[RequestedPool], start_s: float, end_s: float
) -> tuple[FloatArray, IntArray]:
    """Return (times, counts): when requested replicas change, and how many there are from then on.

    Counts are ``[times, pools]``, with the pools of ``hardware``. The returned times are seconds
    from ``start_s``. Raises ScenarioError if the scenario lacks a pool of the plan.
    """
    edges = np.unique(np.concatenate([pool.times_s for pool in pools] or [np.zeros(0)]))
    inside = edges[(edges > start_s) & (edges < end_s)]
    times = np.concatenate([[start_s], inside])
    counts = np.zeros((len(times), len(hardware.model_region_gpu)), np.int64)
    for pool in pools:
        # At each time, the last count from then or before; before its first time, the first count.
        index = np.clip(np.searchsorted(pool.times_s, times, side="right") - 1, 0, None)
        counts[:, _pool_index_of(hardware, pool)] += pool.replicas[index]
    return times - start_s, counts


def _pool_index_of(hardware: Hardware, pool: RequestedPool) -> int:
    """Return the index of a plan's pool among the scenario's; raise ScenarioError if missing."""
    names = pool.model, pool.region, pool.gpu, pool.role
    for index, (m, r, g) in enumerate(hardware.model_region_gpu):
        replica = replica_of(hardware, m, g)
        # Plans of older releases do not have these fields; None matches any.
        matches = all(
            getattr(pool, name) in (None, getattr(replica, name))
            for name in ("tp", "market", "arrangement")
        )
        region = hardware.regions[r].name
        if matches and names == (replica.model, region, replica.gpu, replica.role):
            return index
    raise ScenarioError(
        f"The plan has {pool.model} on {pool.gpu} in {pool.region}, but the scenario no longer has "
        "this pool. The result cannot be replayed."
    )
