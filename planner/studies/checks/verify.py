"""A plan verified by simulation: replayed, and where a model misses its tier in a region, sized
again by what it fell short and planned again, until both agree."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from planner.errors import Infeasible
from planner.policies.choice import policy_of
from planner.studies.planning.inputs import Planned
from planner.studies.planning.planning import plan_window
from planner.studies.progress import Progress, part
from planner.studies.replay.detail import ALL
from planner.studies.replay.replay import run_policy
from planner.studies.values import PolicyRun, Study
from simulation.arrays import FloatArray

ROUNDS = 4  # of replay and plan, at most
EQUAL = 0.002  # points of attainment that count as met (methods.md X4: 0.2)
LEAST_STEP, MOST_STEP = 0.03, 0.25  # of a size, taken off in one round
FEW = 100  # requests of a tier and model in a region: fewer say little about attainment
AGREED, GAVE_UP, NO_PLAN = "agreed", "gave up", "no plan"


@dataclass(frozen=True, slots=True)
class Miss:
    """A model and home region that fall short of a tier."""

    model: str
    region: str
    tier: str
    attainment: float
    target: float
    short: float
    arrived: int


@dataclass(frozen=True, slots=True)
class Round:
    """A replay: with which sizes, what it attained, where it fell short."""

    round: int
    sizes: dict[str, float]  # of each model, as a share of what was sized at first
    attainment: dict[str, float | None]
    gpu_hours: float
    cost_usd: float
    missed: tuple[Miss, ...]
    note: str = ""


@dataclass(frozen=True, slots=True)
class Verification:
    outcome: str
    rounds: tuple[Round, ...]
    sentence: str


@dataclass(frozen=True, slots=True, eq=False)
class Verified:
    """The last plan with its replay, the study with its corrected sizes, and each round in words
    and figures; ``outcome`` is agreed, gave up (after ROUNDS) or no plan."""

    study: Study
    planned: Planned
    run: PolicyRun
    rounds: tuple[Round, ...]
    outcome: str

    @property
    def told(self) -> Verification:
        return Verification(self.outcome, self.rounds, _sentence(self))


def verify(
    study: Study,
    planned: Planned,
    *,
    seed: int,
    progress: Progress,
    rounds: int = ROUNDS,
) -> Verified:
    """Replay the plan; where a (model, region) misses a tier, lower what one instance of the model
    counts for there and plan again, at most ``rounds`` times.

    A size is one number per model and column, so a miss anywhere lowers it everywhere: by the
    excess of requests missed, at least LEAST_STEP and at most MOST_STEP. Where no plan is feasible
    with the corrected sizes the last feasible one stands, and ``outcome`` says so.
    """
    factor = np.ones(len(study.hardware.models))
    told: list[Round] = []
    for i in range(max(1, rounds)):
        step = part(progress, i / rounds, (i + 1) / rounds)
        run = run_policy(
            study, policy_of("lt-i"), seed=seed, progress=part(step, 0.0, 0.7), planned=planned
        )
        missed = misses(study, run)
        told.append(_round(i + 1, factor, missed, run, study))
        if not missed:
            return Verified(study, planned, run, tuple(told), AGREED)
        if i + 1 == max(1, rounds):
            break
        before = factor.copy()
        for miss in missed:
            m = [model.name for model in study.hardware.models].index(miss.model)
            less = float(np.clip(2.0 * miss.short, LEAST_STEP, MOST_STEP))
            factor[m] = min(factor[m], before[m] * (1.0 - less))
        corrected = _corrected(study, factor / before)
        try:
            again = plan_window(corrected.plan_input, part(step, 0.7, 1.0))
        except Infeasible as problem:
            note = f"With the sizes that this asks for there is no plan: {problem}"
            told[-1] = replace(told[-1], note=note)
            return Verified(study, planned, run, tuple(told), NO_PLAN)
        study, planned = corrected, again
    return Verified(study, planned, run, tuple(told), GAVE_UP)


def misses(study: Study, run: PolicyRun) -> tuple[Miss, ...]:
    """Where an interactive tier that is missed falls short, by model and home region, most first;
    of several tiers the one that is shortest there. Empty only where every tier is met: places with
    few requests count where no others fall short."""
    limits = {
        tier.name: tier.attainment
        for tier in study.hardware.tiers
        if not tier.deferrable
        and (share := run.summary.slo_attainment.get(tier.name)) is not None
        and share < tier.attainment - EQUAL
    }
    rows = (row for row in run.detail.groups.iter_rows(named=True) if row["tier"] in limits)
    short = [
        Miss(
            row["model"],
            row["region"],
            row["tier"],
            row["attainment"],
            target=limits[row["tier"]],
            short=limits[row["tier"]] - row["attainment"],
            arrived=row["arrived"],
        )
        for row in rows
        if ALL not in (row["model"], row["region"])
    ]
    short = sorted((m for m in short if m.short > EQUAL), key=lambda miss: -miss.short)
    many = [miss for miss in short if miss.arrived >= FEW] or short
    first = {(miss.model, miss.region): miss for miss in reversed(many)}
    return tuple(miss for miss in many if first[miss.model, miss.region] is miss)


def _corrected(study: Study, factor: FloatArray) -> Study:
    return replace(study, sizes=study.sizes.times(factor))


def _round(
    number: int, factor: FloatArray, missed: tuple[Miss, ...], run: PolicyRun, study: Study
) -> Round:
    models = [model.name for model in study.hardware.models]
    return Round(
        number,
        sizes=dict(zip(models, factor.tolist(), strict=True)),
        attainment=run.summary.slo_attainment,
        gpu_hours=run.summary.gpu_hours,
        cost_usd=run.summary.cost_usd,
        missed=missed,
    )


def _sentence(found: Verified) -> str:
    first, last = found.rounds[0], found.rounds[-1]
    count = len(found.rounds)
    if found.outcome == AGREED and count == 1:
        return "Replayed request by request, the plan meets every tier as it is."
    if found.outcome == AGREED:
        more = last.gpu_hours / first.gpu_hours - 1.0 if first.gpu_hours else 0.0
        return (
            f"The first plan missed a tier in the replay; with sizes corrected in {count - 1} "
            f"round{'s' if count > 2 else ''} the plan meets every tier, at {more:+.1%} GPU-hours."
        )
    worst = last.missed[0]
    missed = (
        f"{worst.model} in {worst.region} meets the limits of {worst.tier} for "
        f"{worst.attainment:.1%} of requests against {worst.target:.1%}"
    )
    if found.outcome == NO_PLAN:
        return f"In the replay {missed}, and no plan is feasible with the sizes that asks for."
    return (
        f"After {count} rounds {missed}: what is missed is not a matter of sizes alone (start-up "
        "times, or demand above the forecast); see the replay."
    )
