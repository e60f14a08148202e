"""Choose the one parameter of a policy in backtests: the cheapest value that meets the SLOs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import InitVar, dataclass, field, replace
from math import inf

from planner.domain.replay.backtest_windows import NEAR
from planner.domain.study import PolicyRun
from planner.errors import EXPECTED, Infeasible
from planner.policies.base import Policy
from simulation.early_stop import TargetMissed
from simulation.metrics import HOUR_S, Summary

ROUNDING = 1e-9  # tolerance of shares of requests
TIE = 0.01  # results within this share of the best count as equal
SURELY = 1.0  # shortfall of a sure miss whose size is not measured yet
Replay = Callable[..., PolicyRun]  # replays a policy on one window


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """Backtest of a policy with its parameter at ``value``.

    ``value`` is None if the policy has no parameter or the scenario sets it. ``shortfall`` is how
    far the worst tier of any window stays below its goal. It also covers missing spare replicas
    (``lacks_spare``). ``whole`` is True if every window was tried, or all up to the first miss.
    ``lacks`` is the shortfall from the SLO targets on the busier day that tests headroom; None if
    that day was not tried. ``cut`` marks a sure miss of unknown size.
    """

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
        """Whether it meets every goal, with headroom for growth."""
        return self.meets and self.lacks == 0.0

    @property
    def cost_usd(self) -> float:
        return sum(summary.cost_usd for summary in self.summaries)

    @property
    def costs_usd(self) -> tuple[float, ...]:
        return tuple(summary.cost_usd for summary in self.summaries)

    @property
    def instance_usd(self) -> float:
        """Cost of one replica that runs throughout all windows, in dollars at the mean price."""
        return sum(
            summary.cost_usd / summary.instance_hours * summary.duration_s / HOUR_S
            for summary in self.summaries
            if summary.instance_hours
        )

    @property
    def cost_per_s(self) -> float:
        """Cost per second, comparable between trials that replayed different numbers of windows."""
        seconds = sum(summary.duration_s for summary in self.summaries)
        return self.cost_usd / seconds if seconds else inf


@dataclass(frozen=True, slots=True, eq=False)
class TuningState:
    """State of a tuning so far; ``best`` is the parameter value of its best trial."""

    known: dict[float | None, Trial]
    grown: dict[float | None, _Grown]
    best: float | None


@dataclass(eq=False)
class Tuning:
    """Search for the cheapest parameter value of a policy that meets its goals in backtests.

    A value has to attain ``goals`` of every tier on all windows, and the SLO targets on
    ``strays``, days that differ somewhat from them. After ``make_room`` it also has to meet the
    targets on the ``busier`` day. Strays and the busier day do not count toward the cost.
    ``best`` is the best trial, ``tried`` are all. Each window is replayed once per value.

    The search bisects the values on the first window. It assumes that every safer value meets
    the goals too, so it tries three of seven values, or four of fifteen. The cheapest value that
    passes is then tried on the other windows and the strays. If it misses, the search continues
    among the safer values on all of them. If no value passes, the cheapest of the nearest ones
    counts. Infeasible is raised if no value has a plan.

    The size of a miss on a stray or the busier day is measured only if no value passes. Their
    replays may raise BeyondRecovery at a sure miss, unless ``bars`` is None.
    """

    policy: Policy
    windows: Sequence[Replay]
    goals: Mapping[str, float]
    strays: Sequence[Replay] = ()
    busier: Replay | None = None
    found: InitVar[TuningState | None] = None  # state from another process: do not search again
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
        if did:  # the least safe value may cost more: its signal can overshoot
            value = min(did, key=lambda trial: trial.cost_usd).value
            assert value is not None
            if not self._trial(value).meets:
                self._first(knob.values.index(value) + 1, lambda value: self._trial(value).meets)
        # The shortfall is infinite where no plan is feasible.
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
        """Search for a value that also has headroom for growth.

        If the best value lacks headroom, safer values are searched on the busier day alone. The
        cheapest one there then has to pass on the other windows. If no value has headroom, the
        cheapest of those that lack least counts.
        """
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
        """Return the index of the first value from ``low`` on for which ``does`` holds.

        Return the number of values if it holds for none.
        """
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
        """Return the result of a value on the busier day, replayed at most once."""
        if value not in self._grown:
            try:
                self._keep(value, self._busy(value))
            except TargetMissed:
                self._keep(value, _Grown(SURELY, inf, cut=True))
        return self._grown[value]

    def _busy(self, value: float | None, **to_its_end: None) -> _Grown:
        assert self.busier is not None
        try:
            run = self.busier(self._turned_to(value), **to_its_end)
        except EXPECTED:  # for example, no feasible plan for this demand
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
        """Return the trial of a value, replayed on one window after another up to the first miss.

        ``alone`` replays only the first window. The shortfall is infinite if no plan is feasible.
        """
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
        """Return whether the policy misses on any stray.

        The last stray has the most requests, so it is tried first.
        """
        try:
            return any(self._unlike(replay(policy)) for replay in reversed(self.strays))
        except TargetMissed:
            return True

    def _strayed(self, policy: Policy, **to_its_end: None) -> float:
        """Return the shortfall on the first stray that the policy misses, or 0."""
        each = (self._unlike(replay(policy, **to_its_end)) for replay in self.strays)
        return next((shortfall for shortfall in each if shortfall), 0.0)

    def _unlike(self, run: PolicyRun) -> float:
        """Return the shortfall from the SLO targets, without the reserve of ``goals``."""
        bar = {name: min(self.goals[name], its) for name, its in targets_of(run).items()}
        return _rounded(below(run.summary, bar))


@dataclass(frozen=True, slots=True)
class _Grown:
    """Result of a parameter value on the busier day."""

    lacks: float
    cost_usd: float
    cut: bool = False  # as in Trial


def tuned(
    policy: Policy,
    windows: Sequence[Replay],
    goals: Mapping[str, float],
    strays: Sequence[Replay] = (),
    busier: Replay | None = None,
) -> tuple[Policy, Trial, tuple[Trial, ...]]:
    """Return the tuned policy with headroom for growth, its best trial and all trials."""
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
    """Return how far the worst tier's attainment is below its target, as a fraction.

    Return 0 if no tier is below its target.
    """
    gaps = [
        targets[name] - attainment
        for name, attainment in summary.slo_attainment.items()
        if attainment is not None
    ]
    return max(0.0, max(gaps, default=0.0))


def slowest(run: PolicyRun, latency: str) -> float | None:
    """Return the 95th percentile of ``latency`` of the slowest interactive tier.

    Deferrable tiers may wait for hours, so a percentile over all requests would mean nothing.
    """
    tails = [
        getattr(run.summary.tiers[tier.name], latency).p95
        for tier in run.fleet.tiers
        if not tier.deferrable and tier.name in run.summary.tiers
    ]
    known = [tail for tail in tails if tail is not None]
    of_all: float | None = getattr(run.summary, latency).p95
    return max(known, default=None) if tails else of_all
