"""Which policy to take, by what is wanted (methods.md D7; HeteroScale, Algorithm 1).

Every candidate has been replayed on the same requests, with targets from the same pressure test;
what is left is to choose by objective, the simplest of those that do about as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from planner.policies.registry import simplicity
from planner.studies.values import PolicyRun

TIE = 0.01  # results within this share of the best are as good


@dataclass(frozen=True, slots=True)
class Objective:
    """What may be wanted: the smaller ``value`` the better."""

    name: str
    words: str
    unit: str
    value: Callable[[PolicyRun], float | None]


@dataclass(frozen=True, slots=True)
class Recommendation:
    """The policy to take for an objective, with what it attains and why it."""

    objective: str
    policy: str
    label: str
    value: float
    unit: str
    reason: str


def _slowest(run: PolicyRun, latency: str) -> float | None:
    """95th percentile of the interactive tier that is served slowest: with tiers that wait hours
    among them, all requests together have none that means anything."""
    tails = [
        getattr(run.summary.tiers[tier.name], latency).p95
        for tier in run.fleet.tiers
        if not tier.deferrable and tier.name in run.summary.tiers
    ]
    known = [tail for tail in tails if tail is not None]
    whole: float | None = getattr(run.summary, latency).p95
    return max(known, default=None) if tails else whole


OBJECTIVES = (
    Objective("cost", "least cost", "USD", lambda run: run.summary.cost_usd),
    Objective("energy", "least energy", "kWh", lambda run: run.summary.energy_kwh),
    Objective("carbon", "least carbon", "kg CO2e", lambda run: run.summary.carbon_kg),
    Objective("ttft", "fastest first token at p95", "ms", lambda run: _slowest(run, "ttft_ms")),
    Objective("e2e", "fastest answers at p95", "ms", lambda run: _slowest(run, "e2e_ms")),
)


def recommend(
    runs: Sequence[PolicyRun], shortfall: Callable[[PolicyRun], float]
) -> tuple[Recommendation, ...]:
    """One recommendation per objective, among the policies that meet every tier; where none does,
    among those whose worst tier falls short least. What nobody can run is none."""
    able = [run for run in runs if not run.traits.clairvoyant]
    if not able or not any(run.summary.arrived for run in able):
        return ()
    meeting = [run for run in able if run.meets_slo]
    least = min(shortfall(run) for run in able)
    field = meeting or [run for run in able if shortfall(run) <= least]
    best = []
    for objective in OBJECTIVES:
        valued = [(value, run) for run in field if (value := objective.value(run)) is not None]
        if valued:
            best.append(_choose(objective, valued, bool(meeting), len(able)))
    return tuple(best)


def _choose(
    objective: Objective, valued: list[tuple[float, PolicyRun]], meets: bool, tried: int
) -> Recommendation:
    best_value, best = min(valued, key=lambda pair: (pair[0], _complexity(pair[1])))
    near = [pair for pair in valued if pair[0] <= best_value * (1 + TIE)]
    value, run = min(near, key=lambda pair: (_complexity(pair[1]), pair[0]))
    among = (
        f"{len(valued)} of {tried} policies meet every tier"
        if meets
        else "no policy meets every tier; these fall short least"
    )
    why = f"{objective.words}, {among}"
    if run is not best:
        why += f"; {best.label} does no more than {TIE:.0%} better and is less simple"
    elif len(valued) > 1:
        second, other = min(((v, r) for v, r in valued if r is not run), key=lambda pair: pair[0])
        if value > 0 and second > value * (1 + TIE):
            why += f"; next is {other.label}, {second / value - 1:.0%} more"
    if run.traits.hindsight:
        why += "; sized in hindsight"
    return Recommendation(objective.name, run.name, run.label, value, objective.unit, f"{why}.")


def _complexity(run: PolicyRun) -> tuple[tuple[int, int], str]:
    return simplicity(run.name), run.name
