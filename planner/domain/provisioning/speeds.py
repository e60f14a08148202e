"""Compare sums of operator times with the scenario's own profiles."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from simulation.performance.profile import Profile, iteration_s
from simulation.provisioning.workload import Phase, PhaseProblem

ENCODER = "encoder_"  # name prefix of operators that read images
TYPICAL = 32.0  # decoding sequences of the compared pass


@dataclass(frozen=True, slots=True)
class ProfileComparison:
    """Seconds of one typical iteration, by the sum of operators and by a profile.

    The iteration computes one prompt alone, or decodes ``TYPICAL`` sequences.
    """

    profile: Profile
    own_s: float  # by the sum of operators
    profile_s: float


def compare_with_profile(
    phase: PhaseProblem, profiles: Sequence[Profile]
) -> Iterator[ProfileComparison]:
    """Yield the comparison with each profile whose tensor parallelism the operators allow.

    Encoder operators are not counted, because profiles do not time them.
    """
    service, problem = phase.service, phase.problem
    is_timed = [not name.startswith(ENCODER) for name in phase.names]
    pass_s = problem.latency_s[is_timed].sum(axis=0)  # [batch, parallel]
    for profile in profiles:
        if profile.tp not in problem.parallel:
            continue
        pass_s_by_batch = pass_s[:, list(problem.parallel).index(profile.tp)]
        if service.phase == "prefill":
            operators_s = float(pass_s_by_batch[0])  # the smallest batch is one prompt
            # Causal attention: each token attends to the cached ones and to those before it.
            attention_pairs = service.isl * (0.5 * service.isl + service.cached)
            profile_s = iteration_s(profile, 0.0, 0.0, service.isl, attention_pairs)
        else:
            operators_s = float(np.interp(TYPICAL, problem.batches, pass_s_by_batch))
            context_tokens = TYPICAL * service.context
            profile_s = iteration_s(profile, TYPICAL, context_tokens, 0.0, 0.0)
        yield ProfileComparison(profile, operators_s, float(profile_s))


def longest_start_s(phase: Phase, profiles: Sequence[Profile]) -> float:
    """Return the seconds of TTFT before a prompt's first iteration (``Profile.start_s``).

    It is the longest of the profiles, or 0 for decode.
    """
    if phase != "prefill":
        return 0.0
    return max((profile.start_s for profile in profiles), default=0.0)


def profile_ratio(phase: PhaseProblem, profiles: Sequence[Profile]) -> float:
    """Return the profiles' iteration time divided by the sum of operator times.

    It is the geometric mean over the profiles, or 1 if none can be compared.
    """
    ratios = [
        comparison.profile_s / comparison.own_s
        for comparison in compare_with_profile(phase, profiles)
    ]
    return float(np.exp(np.mean(np.log(ratios)))) if ratios else 1.0
