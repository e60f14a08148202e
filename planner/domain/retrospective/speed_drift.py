"""Compare the observed speed of replicas with their profiles.

Live measurements go through the Kalman filter of ``simulation.performance.fitting.kalman``.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from planner.domain.replicas import replica_of
from planner.domain.retrospective.demand_drift import speed_drift
from planner.domain.retrospective.figures import HeldPool, SpeedDrift
from planner.domain.retrospective.requested_replicas import requested_counts
from planner.inputs.live.replica_speed import ServedSpeed
from planner.inputs.scenario.build import Hardware, build_hardware
from planner.inputs.scenario.schema import Scenario
from planner.inputs.scenario.user_facts import UserFacts
from simulation.arrays import FloatArray, IntArray
from simulation.performance.fitting.kalman import Observations
from simulation.performance.linear import LinearProfile
from simulation.performance.profile import Profile, iteration_s

LEAST = 12  # fewest observations for a drift (assumed)
TINY_S = 1e-9  # smallest coefficient: the filter uses logarithms


def speed_drifts(
    hardware: Hardware, held: IntArray, served: Sequence[ServedSpeed]
) -> tuple[tuple[SpeedDrift, ...], tuple[str, ...]]:
    """Return (drifts, notes): the speed drift of each observed service, and why some have none.

    ``held [steps, pools]`` are the requested replicas. A drift needs exactly one kind of replica of
    the model in the region, an aggregated one, because metrics do not distinguish kinds.
    """
    drifts, notes = [], []
    for observed in served:
        kinds = [
            (m, g)
            for (m, r, g), counts in zip(hardware.pool_index, held.T, strict=True)
            if counts.any()
            and replica_of(hardware, m, g).model == observed.model
            and hardware.regions[r].name == observed.region
        ]
        if len(kinds) > 1:
            notes.append(
                f"The speed of {observed.model} in {observed.region} is not known: the "
                f"observations do not separate its {len(kinds)} kinds of replica."
            )
        elif not kinds or replica_of(hardware, *kinds[0]).role != "mixed":
            notes.append(
                f"The speed of {observed.model or 'a model'} in {observed.region or 'a region'} "
                "was observed, but the plan has no replicas that do both prefill and decode."
            )
        elif observed.at_s.size >= LEAST:
            drift = _drift(hardware.profiles[kinds[0]], observed)
            drifts.append(replace(drift, region=observed.region))
    return tuple(drifts), tuple(notes)


def speeds_now(
    scenario: Scenario,
    known: UserFacts,
    held: Sequence[HeldPool],
    served: Sequence[ServedSpeed],
    start_s: float,
    end_s: float,
) -> tuple[SpeedDrift, ...]:
    """Return the speed drifts of a plan that is still active, from its start until now.

    Times are epoch seconds. Raises ScenarioError if the scenario lacks a pool of the plan.
    """
    hardware = build_hardware(scenario, known, spot=True)
    _, counts = requested_counts(hardware, held, start_s, end_s)
    return speed_drifts(hardware, counts, served)[0]


def _drift(profile: Profile, observed: ServedSpeed) -> SpeedDrift:
    """Return the drift of the observed service from ``profile``; the profile may be of any kind."""
    observations = observations_of(profile, observed)
    if isinstance(profile, LinearProfile) and profile.beta_s > 0 and profile.delta_s > 0:
        return speed_drift(profile, observations)
    # The filter needs a linear profile. Replace another kind by a line, and scale the observations
    # by line over profile, so that only the drift remains.
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

    Sequences are assumed to be spread evenly over the replicas.
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
    """Return a linear profile equal to ``profile`` at one sequence and at the mean load.

    At the mean load, it is equal with and without prefill.
    """
    sequences = observations.decodes.mean(keepdims=True)
    prefill_tokens = observations.prefill_tokens.mean(keepdims=True)
    share = observations.share.mean(keepdims=True)
    one, zero = np.ones(1), 0 * prefill_tokens
    mean = replace(
        observed,
        input_tokens=observed.input_tokens.mean(keepdims=True),
        output_tokens=observed.output_tokens.mean(keepdims=True),
    )
    alone = float(_mean_iteration_s(profile, mean, one, zero, zero)[0])
    decoding = float(_mean_iteration_s(profile, mean, sequences, zero, zero)[0])
    with_prefill = float(_mean_iteration_s(profile, mean, sequences, prefill_tokens, share)[0])
    beta = max((decoding - alone) / max(float(sequences[0]) - 1, 1.0), TINY_S)
    delta = max((with_prefill - decoding) / max(float(prefill_tokens[0]), TINY_S), TINY_S)
    alpha = max(alone - beta, TINY_S)
    return LinearProfile(
        profile.model,
        profile.gpu,
        profile.tp,
        alpha_s=alpha,
        beta_s=beta,
        gamma_s=alpha,  # prefill has the same constant part
        delta_s=delta,
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
    """Return the profile's mean iteration time in seconds with ``sequences`` decoding.

    They are assumed halfway through their answers. A ``share`` of the iterations prefills, with
    ``prefill_tokens`` on average over all iterations.
    """
    context = sequences * (observed.input_tokens + observed.output_tokens / 2)
    tokens_per_prefill = prefill_tokens / np.where(share > 0, share, 1.0)
    # A prompt token sees half of the prompt on average.
    pairs = tokens_per_prefill * observed.input_tokens / 2
    with_prefill = iteration_s(profile, sequences, context, tokens_per_prefill, pairs)
    without_prefill = iteration_s(profile, sequences, context, 0.0, 0.0)
    return share * with_prefill + (1 - share) * without_prefill
