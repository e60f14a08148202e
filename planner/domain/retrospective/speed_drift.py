"""Compare the observed speed of replicas with their profiles.

Live measurements go through the Kalman filter of ``simulation.performance.fitting.kalman``.
"""

from __future__ import annotations

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
    """Return the speed drifts, and a note for each model and region that cannot be judged.

    ``held`` has the replicas of each pool, ``[steps, pools]``. A drift needs a region with
    exactly one kind of aggregated replica of the model: metrics do not tell kinds apart.
    """
    drifts, notes = [], []
    for observed in served:
        observations = [
            (m, g)
            for (m, r, g), counts in zip(hardware.pool_index, held.T, strict=True)
            if counts.any()
            and replica_of(hardware, m, g).model == observed.model
            and hardware.regions[r].name == observed.region
        ]
        if len(observations) != 1 or replica_of(hardware, *observations[0]).role != "mixed":
            notes.append(
                f"The speed of {observed.model} in {observed.region} is not known: the "
                f"observations do not separate its {len(observations)} kinds of replica."
                if len(observations) > 1
                else f"The speed of {observed.model or 'a model'} in "
                f"{observed.region or 'a region'} was "
                "observed, and the plan held no replicas of it that prefill and decode."
            )
        elif observed.at_s.size >= LEAST:
            drift = _drift(hardware.profiles[observations[0]], observed)
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
    """Return the drift of the observed service from ``profile``, of any kind."""
    observations = observations_of(profile, observed)
    if isinstance(profile, LinearProfile) and profile.beta_s > 0 and profile.delta_s > 0:
        return speed_drift(profile, observations)
    # The filter needs a linear profile. Replace another kind by a line, and scale the observations
    # by line over profile, so that only the drift remains.
    straight = _equivalent_linear_profile(profile, observed, observations)
    line = straight.alpha_s + straight.beta_s * observations.decodes
    line = line + straight.delta_s * observations.prefill_tokens
    modelled = _seconds(
        profile, observed, observations.decodes, observations.prefill_tokens, observations.share
    )
    seconds = observations.seconds * line / modelled
    return speed_drift(straight, replace(observations, seconds=seconds))


def observations_of(profile: Profile, observed: ServedSpeed) -> Observations:
    """Return the mean iteration that a token sees, for each observation.

    Under Poisson arrivals a token shares its batch with the mean number of running sequences.
    Sequences are assumed to be spread evenly over the replicas. Prompts that arrive during an
    iteration are prefilled by the next one, in chunks of the profile's size.
    """
    prompts = observed.requests_per_s * observed.tbt_s
    pieces = np.ceil(observed.input_tokens / profile.max_batch_tokens)
    return Observations(
        at_s=observed.at_s,
        decodes=np.minimum(1.0 + observed.running, float(profile.max_batch)),
        prefill_tokens=prompts * observed.input_tokens,
        seconds=observed.tbt_s,
        prefills=np.minimum(1.0, prompts * pieces),
    )


def _equivalent_linear_profile(
    profile: Profile, observed: ServedSpeed, observations: Observations
) -> LinearProfile:
    """Return a linear profile that equals ``profile`` at one sequence and at the mean load."""
    few = np.ones(1)
    b, p, share = (
        each.mean(keepdims=True)
        for each in (observations.decodes, observations.prefill_tokens, observations.share)
    )
    mean = replace(
        observed,
        **{
            name: getattr(observed, name).mean(keepdims=True)
            for name in ("input_tokens", "output_tokens")
        },
    )
    alone, many, both = (
        float(_seconds(profile, mean, *load)[0])
        for load in ((few, 0 * p, 0 * p), (b, 0 * p, 0 * p), (b, p, share))
    )
    beta = max((many - alone) / max(float(b[0]) - 1, 1.0), TINY_S)
    delta = max((both - many) / max(float(p[0]), TINY_S), TINY_S)
    alpha = max(alone - beta, TINY_S)
    return LinearProfile(
        profile.model, profile.gpu, profile.tp, alpha, beta, alpha, delta,
        profile.max_batch, profile.max_batch_tokens, profile.kv_capacity_tokens,
        profile.provenance,
    )  # fmt: skip


def _seconds(
    profile: Profile, observed: ServedSpeed, b: FloatArray, p: FloatArray, share: FloatArray
) -> FloatArray:
    """Return the profile's mean iteration time for ``b`` sequences, seconds.

    Sequences are halfway through their answers. A ``share`` of the iterations prefills. ``p`` is
    the mean of prefilled tokens over all iterations.
    """
    context = b * (observed.input_tokens + observed.output_tokens / 2)
    each = p / np.where(share > 0, share, 1.0)
    both = iteration_s(profile, b, context, each, each * observed.input_tokens / 2)
    return share * both + (1 - share) * iteration_s(profile, b, context, 0 * p, 0 * p)
