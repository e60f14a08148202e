"""Which policy to take, by what is wanted (methods.md D7, X1; HeteroScale, Algorithm 1).

Every candidate can be run and has been replayed on the same requests, those of the days before
where there are any; what is left is to choose by objective, the simplest of those that do about as
well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from planner.policies.registry import simplicity
from planner.studies.rehearsal.rehearsal import Part, Rehearsal, Tried
from planner.studies.rehearsal.tuning import TIE, below, slowest, targets_of
from planner.studies.replay.earlier import NEAR
from planner.studies.values import PolicyRun

DAYS_BEFORE, WINDOW = "days before", "the window itself"  # what a choice was made on


@dataclass(frozen=True, slots=True)
class Objective:
    """What may be wanted: the smaller its value the better, in a window and in a rehearsal."""

    name: str
    words: str
    unit: str
    value: Callable[[PolicyRun], float | None]
    rehearsed: Callable[[Tried], float | None]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A policy that can be run, as it did where the choice is made."""

    policy: str
    label: str
    values: dict[str, float | None]  # by objective
    meets: bool
    shortfall: float


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The policy to take for an objective, with what it attains in the window and why it."""

    objective: str
    policy: str
    label: str
    value: float | None
    unit: str
    reason: str


def _per_mtok(gpu_hours: float, tokens: int) -> float | None:
    return gpu_hours / tokens * 1e6 if tokens else None


OBJECTIVES = (
    Objective(
        "cost", "least cost", "USD", lambda run: run.summary.cost_usd, lambda its: its.cost_usd
    ),
    Objective(
        "energy", "least energy", "kWh",
        lambda run: run.summary.energy_kwh, lambda its: its.energy_kwh,
    ),
    Objective(
        "carbon", "least carbon", "kg CO2e",
        lambda run: run.summary.carbon_kg, lambda its: its.carbon_kg,
    ),
    Objective(
        "throughput", "most tokens in time per GPU-hour", "GPU-hours/Mtok",
        lambda run: _per_mtok(run.summary.gpu_hours, run.summary.tokens_in_time),
        lambda its: _per_mtok(its.gpu_hours, its.tokens_in_time),
    ),
    Objective(
        "ttft", "fastest first token at p95", "ms",
        lambda run: slowest(run, "ttft_ms"), lambda its: its.ttft_ms,
    ),
    Objective(
        "e2e", "fastest answers at p95", "ms",
        lambda run: slowest(run, "e2e_ms"), lambda its: its.e2e_ms,
    ),
)  # fmt: skip


def candidates(
    runs: Sequence[PolicyRun], rehearsal: Rehearsal | None
) -> tuple[tuple[Candidate, ...], str]:
    """The policies that can be run, by their rehearsal where there was one, else by the window, and
    which of the two. Neither what is sized in hindsight nor what is told what came is among
    them."""
    able = [run for run in runs if not run.traits.knows_what_came and run.summary.arrived]
    if rehearsal is not None:
        parts = [(run, its) for run in able if (its := rehearsal.of(run.name)) is not None]
        if parts:
            # Where none has room for growth, what met the tiers without is still the better.
            roomy = any(its.does for _, its in parts)
            return tuple(_rehearsed(run, its, roomy) for run, its in parts), DAYS_BEFORE
    return tuple(_replayed(run) for run in able), WINDOW


def _rehearsed(run: PolicyRun, its: Part, roomy: bool) -> Candidate:
    values = {one.name: one.rehearsed(its.chosen) for one in OBJECTIVES}
    meets = its.does if roomy else its.meets
    return Candidate(run.name, run.label, values, meets, its.shortfall)


def _replayed(run: PolicyRun) -> Candidate:
    values = {one.name: one.value(run) for one in OBJECTIVES}
    short = below(run.summary, targets_of(run))
    return Candidate(run.name, run.label, values, run.meets_slo, short)


def recommend(
    runs: Sequence[PolicyRun], able: Sequence[Candidate], on: str
) -> tuple[Recommendation, ...]:
    """One recommendation per objective, among the candidates that meet every tier; where none does,
    among those that come nearest to it."""
    if not able:
        return ()
    meeting = [one for one in able if one.meets]
    least = min(one.shortfall for one in able)
    field = meeting or [one for one in able if one.shortfall <= least + NEAR]
    best = []
    for objective in OBJECTIVES:
        valued = [
            (value, one) for one in field if (value := one.values[objective.name]) is not None
        ]
        if valued:
            chosen, why = _choose(objective, valued, bool(meeting), len(able))
            run = next(run for run in runs if run.name == chosen.policy)
            if on == DAYS_BEFORE:
                why += "; on the days before"
            value = objective.value(run)
            words = Recommendation(
                objective.name, run.name, run.label, value, objective.unit, f"{why}."
            )
            best.append(words)
    return tuple(best)


def _choose(
    objective: Objective, valued: list[tuple[float, Candidate]], meets: bool, tried: int
) -> tuple[Candidate, str]:
    best_value, best = min(valued, key=lambda pair: (pair[0], _complexity(pair[1])))
    near = [pair for pair in valued if pair[0] <= best_value * (1 + TIE)]
    value, one = min(near, key=lambda pair: (_complexity(pair[1]), pair[0]))
    among = (
        f"{len(valued)} of {tried} policies that can be run meet every tier"
        if meets
        else "no policy that can be run meets every tier; these fall short least"
    )
    why = f"{objective.words}, {among}"
    if one is not best:
        why += f"; {best.label} does no more than {TIE:.0%} better and is less simple"
    elif len(valued) > 1:
        second, other = min(((v, r) for v, r in valued if r is not one), key=lambda pair: pair[0])
        if value > 0 and second > value * (1 + TIE):
            why += f"; next is {other.label}, {second / value - 1:.0%} more"
    return one, why


def _complexity(one: Candidate) -> tuple[tuple[int, int], str]:
    return simplicity(one.policy), one.policy
