"""The one parameter of a policy chosen on the days before: the cheapest value that does there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf

from planner.errors import Infeasible
from planner.policies.base import Policy
from planner.studies.replay.earlier import NEAR
from planner.studies.values import PolicyRun
from simulation.metrics import Summary

ROUNDING = 1e-9  # of shares of requests
Replay = Callable[[Policy], PolicyRun]  # on one window


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """A policy replayed on the days before, its knob at ``value``; None where it has none, or the
    scenario sets it. ``shortfall`` is how far the worst tier of any window stays below what is
    wanted there."""

    value: float | None
    summaries: tuple[Summary, ...]
    ttft_ms: tuple[float | None, ...]  # ``slowest`` of each window
    e2e_ms: tuple[float | None, ...]
    shortfall: float

    @property
    def meets(self) -> bool:
        return self.shortfall == 0.0

    @property
    def cost_usd(self) -> float:
        return sum(one.cost_usd for one in self.summaries)


def tuned(
    policy: Policy,
    windows: Sequence[Replay],
    goals: Mapping[str, float],
    strays: Sequence[Replay] = (),
) -> tuple[Policy, Trial, tuple[Trial, ...]]:
    """The policy with its knob at the cheapest value that attains ``goals`` of every tier on
    all windows, and the tiers themselves on ``strays``, days somewhat unlike them, which cost
    nothing here; its trial there, and all that were tried.

    Bisection over the knob's values: what meets at one is taken to meet at all that are safer, so
    of seven values three are tried, of fifteen four. Where none of them meets, of those that
    come nearest the cheapest counts.
    """
    knob = policy.free
    if knob is None:
        trial = _trial(None, policy, windows, goals, strays)
        return policy, trial, (trial,)
    tried: list[Trial] = []

    def first(low: int, also: Sequence[Replay]) -> int:
        """The first value from ``low`` on that does; as many as there are where none does."""
        high = len(knob.values)
        while low < high:
            middle = (low + high) // 2
            value = knob.values[middle]
            tried.append(_trial(value, policy.turned(value), windows, goals, also))
            low, high = (low, middle) if tried[-1].meets else (middle + 1, high)
        return low

    # Strays are tried at what does on the windows, and only where that fails at what is safer.
    at = first(0, ())
    if strays and at < len(knob.values):
        chosen = knob.values[at]
        alone = list(tried)
        tried.append(_trial(chosen, policy.turned(chosen), windows, goals, strays))
        if tried[-1].meets:
            tried = [one for one in alone if one.value != chosen] + tried[-1:]
        else:
            tried = [one for one in alone if not one.meets] + tried[-1:]
            first(at + 1, strays)
    if all(trial.shortfall == inf for trial in tried):
        raise Infeasible(f"{policy.title} has no plan on the days before.")
    least = min(trial.shortfall for trial in tried)
    near = [one for one in tried if one.meets or (least and one.shortfall <= least + NEAR)]
    best = min(near, key=lambda trial: trial.cost_usd)
    assert best.value is not None
    return policy.turned(best.value), best, tuple(tried)


def _trial(
    value: float | None,
    policy: Policy,
    windows: Sequence[Replay],
    goals: Mapping[str, float],
    strays: Sequence[Replay],
) -> Trial:
    """On one window after the other, up to the first that is missed; infinitely far off where no
    plan is feasible for so much."""
    runs: list[PolicyRun] = []
    shortfall = 0.0
    try:
        for replay in windows:
            runs.append(replay(policy))
            shortfall = max(shortfall, below(runs[-1].summary, goals))
            if shortfall > ROUNDING:
                break
        for replay in strays if shortfall <= ROUNDING else ():
            stray = replay(policy)
            bar = {name: min(goals[name], its) for name, its in targets_of(stray).items()}
            shortfall = max(shortfall, below(stray.summary, bar))
            if shortfall > ROUNDING:
                break
    except Infeasible:
        if value is None:
            raise
        return Trial(value, (), (), (), inf)
    return Trial(
        value,
        tuple(run.summary for run in runs),
        tuple(slowest(run, "ttft_ms") for run in runs),
        tuple(slowest(run, "e2e_ms") for run in runs),
        shortfall if shortfall > ROUNDING else 0.0,
    )


def targets_of(run: PolicyRun) -> dict[str, float]:
    return {tier.name: tier.attainment for tier in run.fleet.tiers}


def below(summary: Summary, targets: Mapping[str, float]) -> float:
    """How far the worst tier's attainment is below what is wanted, as a fraction; 0 where none
    is."""
    gaps = [
        targets[name] - attainment
        for name, attainment in summary.slo_attainment.items()
        if attainment is not None
    ]
    return max(0.0, max(gaps, default=0.0))


def slowest(run: PolicyRun, latency: str) -> float | None:
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
