"""The one parameter of a policy chosen on the days before: the cheapest value that does there."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field, replace
from math import inf

from planner.errors import EXPECTED, Infeasible
from planner.policies.base import Policy
from planner.studies.replay.earlier import NEAR
from planner.studies.values import PolicyRun
from simulation.metrics import HOUR_S, Summary
from simulation.recovery import BeyondRecovery

ROUNDING = 1e-9  # of shares of requests
TIE = 0.01  # results within this share of the best are as good
SURELY = 1.0  # shortfall of what is sure to miss, before anybody asks by how much
Replay = Callable[..., PolicyRun]  # of a policy, on one window


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """A policy replayed on the days before, its knob at ``value``; None where it has none, or the
    scenario sets it. ``shortfall`` is how far the worst tier of any window stays below what is
    wanted there, or the share of the time in which the scenario's spare might be gone; ``whole``
    says that all that it has to do was tried, or as far as the first that it misses. ``lacks`` is
    how far it stays below the tiers on a day as busy as there has to be room for; None where that
    was not tried. ``cut``: it is sure to miss, but how far is not known."""

    value: float | None
    summaries: tuple[Summary, ...]  # by window
    ttft_ms: tuple[float | None, ...]  # ``slowest`` of each window
    e2e_ms: tuple[float | None, ...]
    shortfall: float
    whole: bool = True
    lacks: float | None = None
    cut: bool = False

    @property
    def meets(self) -> bool:
        return self.whole and self.shortfall == 0.0

    @property
    def does(self) -> bool:
        """With room for growth too."""
        return self.meets and self.lacks == 0.0

    @property
    def cost_usd(self) -> float:
        return sum(summary.cost_usd for summary in self.summaries)

    @property
    def costs_usd(self) -> tuple[float, ...]:
        return tuple(summary.cost_usd for summary in self.summaries)

    @property
    def instance_usd(self) -> float:
        """What one instance costs all the time on all windows, at the mean price of its own."""
        return sum(
            summary.cost_usd / summary.instance_hours * summary.duration_s / HOUR_S
            for summary in self.summaries
            if summary.instance_hours
        )

    @property
    def cost_per_s(self) -> float:
        """Comparable where not all windows were replayed."""
        seconds = sum(summary.duration_s for summary in self.summaries)
        return self.cost_usd / seconds if seconds else inf


@dataclass(frozen=True, slots=True, eq=False)
class TuningState:
    """What a tuning has found so far; ``best`` is the parameter value of its best trial."""

    known: dict[float | None, Trial]
    grown: dict[float | None, _Grown]
    best: float | None


@dataclass(eq=False)
class Tuning:
    """A policy with its knob at the cheapest value that attains ``goals`` of every tier on all
    windows, and the tiers themselves on ``strays``, days somewhat unlike them; with
    ``make_room`` on one that is ``busier`` too. Neither costs anything here. ``best`` is its trial
    there, ``tried`` are all of them; each window is replayed once with each value.

    Bisection over the knob's values on the first window: what meets at one is taken to meet at all
    that are safer, so of seven values three are tried, of fifteen four. The cheapest that does
    there has to do on the others and the strays; where it does not, what is safer is searched
    likewise on all of them. Where none of them meets, of those that come nearest the cheapest
    counts. Raises Infeasible where no value has a plan.

    How far a value stays below on a stray or the busier day is asked only where none does: their
    replays may raise BeyondRecovery where it is sure to, unless they are given no ``bars``.
    """

    policy: Policy
    windows: Sequence[Replay]
    goals: Mapping[str, float]
    strays: Sequence[Replay] = ()
    busier: Replay | None = None
    found: InitVar[TuningState | None] = None  # by another process: nothing is searched again
    best: Trial = field(init=False)
    _known: dict[float | None, Trial] = field(default_factory=dict, init=False)
    _grown: dict[float | None, _Grown] = field(default_factory=dict, init=False)

    def __post_init__(self, found: TuningState | None) -> None:
        if found is not None:
            self.resume(found)
            return
        knob = self.policy.free
        if knob is None:
            self.best = self._trial(None)
            return
        self._first(0, lambda value: self._trial(value, alone=True).shortfall == 0.0)
        did = [trial for trial in self.tried if trial.shortfall == 0.0]
        if did:  # a signal that overshoots can be cheaper at a value that is safer
            value = min(did, key=lambda trial: trial.cost_usd).value
            assert value is not None
            if not self._trial(value).meets:
                self._first(knob.values.index(value) + 1, lambda value: self._trial(value).meets)
        if all(trial.shortfall == inf for trial in self.tried):
            raise Infeasible(f"{self.policy.title} has no plan on the days before.")
        if not any(trial.meets for trial in self.tried):
            self._measure_strays()
        self.best = _best(self.tried)

    @property
    def state(self) -> TuningState:
        return TuningState(dict(self._known), dict(self._grown), self.best.value)

    def resume(self, state: TuningState) -> None:
        """Continue from what this tuning found in another process."""
        self._known, self._grown = dict(state.known), dict(state.grown)
        self.best = self._known[state.best]

    @property
    def turned(self) -> Policy:
        return self._turned_to(self.best.value)

    @property
    def tried(self) -> tuple[Trial, ...]:
        return tuple(self._known.values())

    @property
    def settled(self) -> bool:
        """Whether ``make_room`` would change nothing."""
        return self.busier is None or not self.best.meets or self.best.lacks is not None

    def make_room(self) -> None:
        """With room for growth: where the best value has none, what is safer is searched on the
        busier day alone, and what costs least there has to do on the others. Where no value has
        room, of those that lack least the cheapest counts."""
        if self.settled:
            return
        knob, value = self.policy.free, self.best.value
        if self._grow(value).lacks and knob is not None and value is not None:
            self._first(knob.values.index(value) + 1, lambda value: self._grow(value).lacks == 0.0)
            roomy = [
                (grown.cost_usd, knob.values.index(value), value)
                for value, grown in self._grown.items()
                if value is not None and grown.lacks == 0.0
            ]
            if roomy:
                _, _, value = min(roomy)
                if not self._trial(value).meets:
                    self._first(knob.values.index(value) + 1, self._does)
            if not any(trial.does for trial in self.tried):
                self._measure_growth()
                least = min(grown.lacks for grown in self._grown.values())
                for value, grown in self._grown.items():
                    if grown.lacks <= least + NEAR:
                        self._trial(value)
        self.best = _best([trial for trial in self.tried if trial.lacks is not None])

    def _first(self, low: int, does: Callable[[float], bool]) -> int:
        """The first place from ``low`` on whose value does; as many as there are where none
        does."""
        knob = self.policy.free
        assert knob is not None
        high = len(knob.values)
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if does(knob.values[middle]) else (middle + 1, high)
        return low

    def _does(self, value: float) -> bool:
        return self._grow(value).lacks == 0.0 and self._trial(value).meets

    def _turned_to(self, value: float | None) -> Policy:
        return self.policy if value is None else self.policy.turned(value)

    def _grow(self, value: float | None) -> _Grown:
        """On the busier day."""
        if value not in self._grown:
            try:
                self._keep(value, self._busy(value))
            except BeyondRecovery:
                self._keep(value, _Grown(SURELY, inf, cut=True))
        return self._grown[value]

    def _busy(self, value: float | None, **to_its_end: None) -> _Grown:
        assert self.busier is not None
        try:
            run = self.busier(self._turned_to(value), **to_its_end)
        except EXPECTED:  # no plan, say, for so much
            return _Grown(inf, inf)
        return _Grown(self._unlike(run), run.summary.cost_usd)

    def _keep(self, value: float | None, grown: _Grown) -> None:
        self._grown[value] = grown
        if value in self._known:
            self._known[value] = replace(self._known[value], lacks=grown.lacks)

    def _measure_growth(self) -> None:
        for value, grown in list(self._grown.items()):
            if grown.cut:
                self._keep(value, self._busy(value, bars=None))

    def _measure_strays(self) -> None:
        for value, trial in list(self._known.items()):
            if trial.cut:
                shortfall = self._strayed(self._turned_to(value), bars=None)
                self._known[value] = replace(trial, shortfall=shortfall, cut=False)

    def _trial(self, value: float | None, *, alone: bool = False) -> Trial:
        """On one window after the other, up to the first that is missed, or ``alone`` on the first;
        infinitely far off where no plan is feasible for so much."""
        known = self._known.get(value)
        if known is None or not (known.whole or alone):
            try:
                known = self._replayed(value, known, alone)
            except Infeasible:
                if value is None:
                    raise
                known = Trial(value, (), (), (), inf)
            grown = self._grown.get(value)
            self._known[value] = known if grown is None else replace(known, lacks=grown.lacks)
        return self._known[value]

    def _replayed(self, value: float | None, known: Trial | None, alone: bool) -> Trial:
        policy = self._turned_to(value)
        known = known or Trial(value, (), (), (), 0.0, whole=False)
        summaries, shortfall = list(known.summaries), 0.0
        ttft_ms, e2e_ms = list(known.ttft_ms), list(known.e2e_ms)
        for replay in self.windows[len(summaries) : 1 if alone else None]:
            run = replay(policy)
            summaries.append(run.summary)
            ttft_ms.append(slowest(run, "ttft_ms"))
            e2e_ms.append(slowest(run, "e2e_ms"))
            shortfall = _rounded(max(below(run.summary, self.goals), run.lacks_spare))
            if shortfall:
                break
        cut = not (shortfall or alone) and value is not None and self._misses(policy)
        if cut:
            shortfall = SURELY
        elif not (shortfall or alone) and value is None:
            shortfall = self._strayed(policy)
        complete = bool(shortfall) or not alone or len(self.windows) + len(self.strays) == 1
        figures = tuple(summaries), tuple(ttft_ms), tuple(e2e_ms)
        return Trial(value, *figures, shortfall, complete, cut=cut)

    def _misses(self, policy: Policy) -> bool:
        """Whether it does on any stray, the last first, which has the most requests."""
        try:
            return any(self._unlike(replay(policy)) for replay in reversed(self.strays))
        except BeyondRecovery:
            return True

    def _strayed(self, policy: Policy, **to_its_end: None) -> float:
        """How far it stays below on the first stray that it misses."""
        each = (self._unlike(replay(policy, **to_its_end)) for replay in self.strays)
        return next((shortfall for shortfall in each if shortfall), 0.0)

    def _unlike(self, run: PolicyRun) -> float:
        """How far a day unlike those before stays below the tiers themselves."""
        bar = {name: min(self.goals[name], its) for name, its in targets_of(run).items()}
        return _rounded(below(run.summary, bar))


@dataclass(frozen=True, slots=True)
class _Grown:
    """What came of a value on the busier day."""

    lacks: float
    cost_usd: float
    cut: bool = False  # as of a trial


def tuned(
    policy: Policy,
    windows: Sequence[Replay],
    goals: Mapping[str, float],
    strays: Sequence[Replay] = (),
    busier: Replay | None = None,
) -> tuple[Policy, Trial, tuple[Trial, ...]]:
    """The policy as its ``Tuning`` has it, with room; its trial there, and all that were tried."""
    tuning = Tuning(policy, windows, goals, strays, busier)
    tuning.make_room()
    return tuning.turned, tuning.best, tuning.tried


def _best(tried: Sequence[Trial]) -> Trial:
    meeting = [trial for trial in tried if trial.meets]
    if meeting:
        least = min(trial.lacks or 0.0 for trial in meeting)
        near = [
            trial for trial in meeting if (trial.lacks or 0.0) <= least + (NEAR if least else 0.0)
        ]
        return min(near, key=lambda trial: trial.cost_usd)
    missing = [trial for trial in tried if trial.shortfall > 0.0]
    least = min(trial.shortfall for trial in missing)
    near = [trial for trial in missing if trial.shortfall <= least + NEAR]
    return min(near, key=lambda trial: trial.cost_per_s)


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
    of_all: float | None = getattr(run.summary, latency).p95
    return max(known, default=None) if tails else of_all
