"""The one parameter of a policy chosen on the days before: the cheapest value that does there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from planner.errors import Infeasible
from planner.policies.base import Policy
from planner.studies.replay.earlier import NEAR
from planner.studies.values import PolicyRun
from simulation.metrics import Summary

ROUNDING = 1e-9  # of shares of requests
TIE = 0.01  # results within this share of the best are as good
Replay = Callable[[Policy], PolicyRun]  # on one window


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """A policy replayed on the days before, its knob at ``value``; None where it has none, or the
    scenario sets it. ``shortfall`` is how far the worst tier of any window stays below what is
    wanted there; ``whole`` says that all that it has to do was tried, or as far as the first that
    it misses. ``lacks`` is how far it stays below the tiers on a day as busy as there has to be
    room for; 0 where none was tried."""

    value: float | None
    summaries: tuple[Summary, ...]  # by window
    ttft_ms: tuple[float | None, ...]  # ``slowest`` of each window
    e2e_ms: tuple[float | None, ...]
    shortfall: float
    whole: bool = True
    lacks: float = 0.0

    @property
    def meets(self) -> bool:
        return self.whole and self.shortfall == 0.0

    @property
    def does(self) -> bool:
        """With room for growth too."""
        return self.meets and self.lacks == 0.0

    @property
    def cost_usd(self) -> float:
        return sum(one.cost_usd for one in self.summaries)

    @property
    def cost_per_s(self) -> float:
        """Comparable where not all windows were replayed."""
        seconds = sum(one.duration_s for one in self.summaries)
        return self.cost_usd / seconds if seconds else inf


def tuned(
    policy: Policy,
    windows: Sequence[Replay],
    goals: Mapping[str, float],
    strays: Sequence[Replay] = (),
    busier: Replay | None = None,
) -> tuple[Policy, Trial, tuple[Trial, ...]]:
    """The policy with its knob at the cheapest value that attains ``goals`` of every tier on
    all windows, and the tiers themselves on ``strays``, days somewhat unlike them, and on one that
    is ``busier``, which cost nothing here; its trial there, and all that were tried.

    Bisection over the knob's values on the first window: what meets at one is taken to meet at all
    that are safer, so of seven values three are tried, of fifteen four. The cheapest that does
    there has to do on the others and the strays; where it does not, what is safer is searched
    likewise on all of them. Where none of them meets, of those that come nearest the cheapest
    counts: first among those that lack only room for growth.
    """
    search = _Search(policy, windows, goals, strays, busier)
    knob = policy.free
    if knob is None:
        trial = search.trial(None)
        return policy, trial, (trial,)

    def first(low: int, *, alone: bool) -> int:
        """The first value from ``low`` on that does; as many as there are where none does."""
        high = len(knob.values)
        while low < high:
            middle = (low + high) // 2
            trial = search.trial(knob.values[middle], alone=alone)
            does = trial.shortfall == trial.lacks == 0.0
            low, high = (low, middle) if does else (middle + 1, high)
        return low

    first(0, alone=True)
    did = [trial for trial in search.known.values() if trial.shortfall == 0.0]
    if did:  # a signal that overshoots can be cheaper at a value that is safer
        value = min(did, key=lambda trial: trial.cost_usd).value
        assert value is not None
        if not search.trial(value).does:
            first(knob.values.index(value) + 1, alone=False)
    tried = tuple(search.known.values())
    if all(trial.shortfall == inf for trial in tried):
        raise Infeasible(f"{policy.title} has no plan on the days before.")
    best = _best(tried)
    assert best.value is not None
    return policy.turned(best.value), best, tried


def _best(tried: Sequence[Trial]) -> Trial:
    does = [trial for trial in tried if trial.does]
    if does:
        return min(does, key=lambda trial: trial.cost_usd)
    meeting = [trial for trial in tried if trial.meets]
    if meeting:
        least = min(trial.lacks for trial in meeting)
        near = [trial for trial in meeting if trial.lacks <= least + NEAR]
        return min(near, key=lambda trial: trial.cost_usd)
    missing = [trial for trial in tried if trial.shortfall > 0.0]
    least = min(trial.shortfall for trial in missing)
    near = [trial for trial in missing if trial.shortfall <= least + NEAR]
    return min(near, key=lambda trial: trial.cost_per_s)


@dataclass(eq=False)
class _Search:
    """A policy's trials by value, each window replayed once."""

    policy: Policy
    windows: Sequence[Replay]
    goals: Mapping[str, float]
    strays: Sequence[Replay]
    busier: Replay | None
    known: dict[float | None, Trial] = field(default_factory=dict, init=False)

    def trial(self, value: float | None, *, alone: bool = False) -> Trial:
        """On one window after the other, up to the first that is missed, or ``alone`` on the first;
        infinitely far off where no plan is feasible for so much."""
        known = self.known.get(value)
        if known is None or not (known.whole or alone):
            try:
                known = self._trial(value, known, alone)
            except Infeasible:
                if value is None:
                    raise
                known = Trial(value, (), (), (), inf)
            self.known[value] = known
        return known

    def _trial(self, value: float | None, known: Trial | None, alone: bool) -> Trial:
        policy = self.policy if value is None else self.policy.turned(value)
        known = known or Trial(value, (), (), (), 0.0, whole=False)
        summaries, shortfall = list(known.summaries), 0.0
        ttft_ms, e2e_ms = list(known.ttft_ms), list(known.e2e_ms)
        for replay in self.windows[len(summaries) : 1 if alone else None]:
            run = replay(policy)
            summaries.append(run.summary)
            ttft_ms.append(slowest(run, "ttft_ms"))
            e2e_ms.append(slowest(run, "e2e_ms"))
            shortfall = _rounded(below(run.summary, self.goals))
            if shortfall:
                break
        for replay in () if shortfall or alone else self.strays:
            shortfall = self._unlike(replay(policy))
            if shortfall:
                break
        others = len(self.windows) + len(self.strays) + (self.busier is not None)
        whole = bool(shortfall) or not alone or others == 1
        lacks = 0.0
        if self.busier is not None and whole and not shortfall:
            lacks = self._unlike(self.busier(policy))
        return Trial(
            value, tuple(summaries), tuple(ttft_ms), tuple(e2e_ms), shortfall, whole, lacks
        )

    def _unlike(self, run: PolicyRun) -> float:
        """How far a day unlike those before stays below the tiers themselves."""
        bar = {name: min(self.goals[name], its) for name, its in targets_of(run).items()}
        return _rounded(below(run.summary, bar))


def _rounded(shortfall: float) -> float:
    return shortfall if shortfall > ROUNDING else 0.0


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
