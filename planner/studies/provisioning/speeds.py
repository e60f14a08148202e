"""Speeds of operators beside those that the scenario's own profiles give."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from simulation.performance.profile import Profile, iteration_s
from simulation.provisioning.workload import Phase, PhaseProblem

ENCODER = "encoder_"  # of operators that read images
TYPICAL = 32.0  # sequences that decode at once, where the two are compared


@dataclass(frozen=True, slots=True)
class Compared:
    """Seconds of one typical pass: a prompt alone, or ``TYPICAL`` sequences that decode."""

    profile: Profile
    own_s: float  # sum of the operators
    profile_s: float


def compared(phase: PhaseProblem, profiles: Sequence[Profile]) -> Iterator[Compared]:
    """Each profile on as many GPUs as operators may be spread over."""
    service, problem = phase.service, phase.problem
    read = [not name.startswith(ENCODER) for name in phase.names]  # what profiles time
    pass_s = problem.latency_s[read].sum(axis=0)  # [B, P]
    for profile in profiles:
        if profile.tp not in problem.parallel:
            continue
        j = list(problem.parallel).index(profile.tp)
        if service.phase == "prefill":
            summed = float(pass_s[0, j])
            other = iteration_s(profile, 0.0, 0.0, service.isl, 0.5 * service.isl**2)
        else:
            summed = float(np.interp(TYPICAL, problem.batches, pass_s[:, j]))
            other = iteration_s(profile, TYPICAL, TYPICAL * service.context, 0.0, 0.0)
        yield Compared(profile, summed, float(other))


def start_of(phase: Phase, profiles: Sequence[Profile]) -> float:
    """Seconds of TTFT before a prompt's first iteration (``Profile.start_s``), the longest of
    several; sequences that decode have begun."""
    return (
        max((profile.start_s for profile in profiles), default=0.0) if phase == "prefill" else 0.0
    )


def times_of(phase: PhaseProblem, profiles: Sequence[Profile]) -> float:
    """What profiles say of a pass over the sum of its operators, the geometric mean of several; 1
    where none is on as many GPUs."""
    ratios = [comparison.profile_s / comparison.own_s for comparison in compared(phase, profiles)]
    return float(np.exp(np.mean(np.log(ratios)))) if ratios else 1.0
