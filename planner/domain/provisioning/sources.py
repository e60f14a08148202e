"""State the sources of operator times and interference: measured, extrapolated or modelled."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from planner.domain.provisioning.speeds import TYPICAL, compare_with_profile
from planner.domain.provisioning.unit import Case, groups
from planner.domain.sources import BEYOND as EXTRAPOLATED
from planner.domain.sources import Fact, facts_of
from planner.inputs.catalogue.estimate_calibration import efficiencies
from planner.inputs.catalogue.power import power_model
from planner.inputs.scenario.power import power_facts
from simulation.arrays import FloatArray
from simulation.performance.graph import operator_graph
from simulation.performance.power import PowerAtLoad
from simulation.performance.specs import Arrangement
from simulation.provisioning.interference import modelled_over_table
from simulation.provisioning.level import Level
from simulation.provisioning.workload import PhaseProblem

MEASURED, BEYOND, MIXED, MODELLED = (
    "measured", "beyond what was measured", "measured in part", "modelled",
)  # fmt: skip
NAMED_PAIRS = 3  # of operators, in the fact on interference
ROUNDS_TO_ZERO = 0.005  # smaller shares are written as 0%
NEGLIGIBLE = 0.02  # distance of a factor from 1 that is not worth a sentence


@dataclass(frozen=True, slots=True)
class Timing:
    """Shares of an iteration's time by their source; the sum is 1.

    The time of an operator is measured, extrapolated ``beyond`` measurements, or modelled.
    """

    measured: float
    beyond: float
    modelled: float


def timing_word(shares: FloatArray) -> str:
    """Return where an iteration's time comes from, such as "measured" or "modelled".

    ``shares [2]`` are the measured and the extrapolated share of that time.
    """
    measured, extrapolated = shares.tolist()
    if measured + extrapolated < ROUNDS_TO_ZERO:
        return MODELLED
    if measured > 1 - ROUNDS_TO_ZERO:
        return MEASURED
    all_extrapolated = measured < ROUNDS_TO_ZERO and extrapolated > 1 - ROUNDS_TO_ZERO
    return BEYOND if all_extrapolated else MIXED


def measured_shares(phase: PhaseProblem, level: Level) -> FloatArray:
    """Return the measured and the extrapolated share of a plan's iteration time, ``[2]``."""
    plan, phase_as_planned = level.plan or level.replicas, level.as_planned(phase)
    assert plan is not None
    # Index arrays of each operator's batch and parallelism.
    chosen = phase_as_planned.problem.indices_of(plan.batch, plan.parallel)
    seconds = phase_as_planned.problem.latency_s[chosen]  # [operator]
    shares = phase_as_planned.measured[:, *chosen]  # [2, operator]
    return np.asarray((shares * seconds).sum(axis=1) / seconds.sum())


def profile_comparison_notes(cases: list[Case]) -> Iterator[str]:
    """Yield sentences that compare sums of operator times with the scenario's profiles.

    They also say which of the two this run uses, and the time before a prompt's first iteration
    (front end, tokenizing, launches).
    """
    sentences = set()  # cases on one profile would repeat the sentence
    for case in cases:
        factor = case.measured.times  # on operator times; 1: they are not scaled
        comparisons = list(compare_with_profile(case.problem, case.profiles))
        if case.service.start_s:
            yield (
                f"TTFT of {case.model} on {case.gpu} includes {case.service.start_s * 1e3:,.1f} ms "
                "of front end, tokenizing and launches."
            )
        if not comparisons:
            yield (
                f"No profile of {case.model} on {case.gpu} matches the GPUs of the operators. "
                f"In {case.phase}, speeds are sums of operators."
            )
        if 0 < abs(factor - 1.0) < NEGLIGIBLE:
            continue  # a factor of almost 1 changes nothing that a reader sees
        measured_load = f"{TYPICAL:.0f} sequences of {case.service.context:,.0f} tokens take"
        if case.phase == "prefill":
            measured_load = f"a prompt of {case.service.isl:,.0f} tokens takes"
        for comparison in comparisons:
            profile = (
                f"the {comparison.profile.kind} profile of {comparison.profile.model} on "
                f"{comparison.profile.tp} x {comparison.profile.gpu}"
            )
            example = (
                f"For example, {measured_load} {comparison.own_s * 1e3:,.1f} ms here and "
                f"{comparison.profile_s * 1e3:,.1f} ms in the profile."
            )
            if factor == 1.0:
                sentence = (
                    f"Speeds of {case.phase} are sums of operators. Plans and sizes use {profile}. "
                    f"{example} By default, the option speeds uses the profile."
                )
            else:
                sentence = (
                    f"Times of {case.phase} operators are multiplied by {factor:.2f}. Their sum is "
                    f"then that of {profile}, which plans use. {example}"
                )
            if sentence not in sentences:
                sentences.add(sentence)
                yield sentence


def timing_facts(cases: list[Case]) -> Iterator[Fact]:
    """Yield the facts on each GPU type: power by load, source of times, interference."""
    by_gpu = groups(cases, lambda case: case.gpu)
    for gpu_cases in by_gpu:
        gpu, shape = gpu_cases[-1].service.gpu, gpu_cases[-1].service.shape
        if gpu.tdp_w:
            load = PowerAtLoad(power_model(gpu), gpu, (operator_graph(shape, Arrangement()),))
            # The power of servers does not depend on the GPU type.
            facts = facts_of(power_facts(gpu, load))
            yield from (fact for fact in facts if "Server" not in fact.what)
    yield from map(_timing_fact, by_gpu)
    yield from map(_interference_fact, by_gpu)


def _timing_fact(cases: list[Case]) -> Fact:
    """Return the fact on the source of operator times on the GPU type of ``cases``.

    Its kind is measured if almost all times were.
    """
    errors = "; ".join(
        f"error {check.mape:.0%} on {check.rows} rows ({check.against})"
        for check in efficiencies().checks
    )
    modelled = f"published peaks x efficiency of measured kernels; {errors}"
    factors = [
        f"by {case.measured.times:.2f} in {case.phase} of {case.model}"
        for case in cases
        if abs(case.measured.times - 1.0) >= NEGLIGIBLE
    ]
    if factors:
        modelled += f"; multiplied {', '.join(factors)} to match the scenario's profiles"
    kernels, what = cases[0].measured.kernels, f"Seconds of operators on {cases[0].gpu}"
    if kernels is None:
        return Fact(what, "modelled", modelled)
    shares = [
        measured_shares(case.problem, level) for case in cases for level in case.levels.values()
    ]
    # Means over cases and levels of plans.
    measured, extrapolated = np.mean(shares, axis=0)
    source = f"kernels from {kernels.source}: {measured:.0%} of the time of a pass"
    if extrapolated >= ROUNDS_TO_ZERO:
        source += f", {extrapolated:.0%} beyond the sizes that were measured"
    kind = "measured" if measured >= 1.0 - EXTRAPOLATED else "modelled"
    return Fact(what, kind, f"{source}. Other kernels: {modelled}")


def _interference_fact(cases: list[Case]) -> Fact:
    """Return the fact on the source of interference on the GPU type of ``cases``."""
    physical = (
        "running kernels share arithmetic and memory bandwidth (processor sharing, not measured)"
    )
    table, what = cases[0].measured.interference, f"Interference on a shared {cases[0].gpu}"
    if table is None:
        return Fact(what, "modelled", physical)
    by_slowdown = sorted(table.pairs.items(), key=lambda item: item[1], reverse=True)
    pairs = ", ".join(
        f"{slowed.replace('_', ' ')} beside {other.replace('_', ' ')} {slowdown:.2f} times"
        for (slowed, other), slowdown in by_slowdown[:NAMED_PAIRS]
    )
    if len(by_slowdown) > NAMED_PAIRS:  # the others are only counted
        pairs = f"{len(by_slowdown)} pairs, the slowest {pairs}"
    source = f"{table.source}: {pairs or 'shares of the SMs alone'}; other pairs: {physical}"
    if not table.published:
        return Fact(what, "measured", source)
    ratio = modelled_over_table(table)
    source += (
        f". For decode attention on a share of the SMs, the model gives {ratio.min():.2f} to "
        f"{ratio.max():.2f} times the published seconds"
    )
    return Fact(what, "published", source)
