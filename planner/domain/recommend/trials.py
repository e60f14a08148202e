"""Try the candidates of a recommendation on its test days.

A trial simulates one policy with one parameter value on one day. Values go from the cheapest to
the safest. A policy that meets the SLOs at one value is assumed to meet them at all later values,
so the cheapest value is found by bisection. Dearer policies are left out early.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from threading import RLock
from typing import TypeVar

from planner.domain.parallel import DEFAULT_THREADS, parallel_replays
from planner.domain.planning.inputs import PlannedWindow
from planner.domain.planning.planning import plan_window
from planner.domain.progress import Progress, part, silent
from planner.domain.recommend.rule import ROUNDING, Candidate, CaseResult, Choice, recommend
from planner.domain.recommend.test_days import Case, TestDay, TestDays, spared
from planner.domain.replay.policy_context import Loads
from planner.domain.replay.rated_signals import PressureTests
from planner.domain.replay.replay import run_policy
from planner.domain.replay.replica_loss import with_spare
from planner.domain.replay.static_replay import Known
from planner.domain.replay.static_search import smallest_flat
from planner.domain.run_parts import Part, Parts
from planner.domain.study import PolicyRun, Study
from planner.errors import EXPECTED
from planner.inputs.scenario.schema.test_days import LEVELS
from planner.policies.base import Policy
from planner.policies.context import Plan
from planner.policies.registry import MOST_COMPLEX
from simulation.arrays import IntArray
from simulation.early_stop import TargetMissed
from simulation.metrics import Summary

T = TypeVar("T")
FORECAST_DAY = -1  # index of the day on which all policies are compared first
MOST_HELD = 12_000_000  # requests of drawn days that are kept in memory
PRUNED = 0.05  # a policy this much dearer on the forecast day than the best is not tried further
CENT = 0.005  # dollars, of rounding
STEPS = 3  # values tried one by one above the first that passes the forecast day
STATIC = "flat-before"  # the static fleet that is sized on the required days


@dataclass(frozen=True, slots=True)
class Trial:
    """Number of a trial: policy, parameter value, whether a replica is spare, day and case."""

    policy: str
    value: float | None
    spare: bool
    day: int
    case: int


Screened = tuple[int | None, dict[Trial, CaseResult]]


@dataclass(eq=False)
class _Shared:
    """What all policies on one study share; computed when first used."""

    study: Study
    lock: RLock
    loads: Loads = field(init=False)
    _planned: PlannedWindow | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.loads = Loads(self.study, self.lock)

    @property
    def planned(self) -> PlannedWindow:
        with self.lock:
            if self._planned is None:
                self._planned = plan_window(self.study.plan_input, silent)
            return self._planned


@dataclass(eq=False)
class Trials:
    """Results of candidates on the test days of a study, each simulated at most once."""

    study: Study
    test_days: TestDays
    seed: int
    parts: Parts
    progress: Progress = silent
    results: dict[Trial, CaseResult] = field(default_factory=dict, init=False)
    _static: dict[tuple[int, bool], IntArray] = field(default_factory=dict, init=False)
    _known: Known = field(default_factory=dict, init=False)
    _lock: RLock = field(default_factory=RLock, init=False)
    _shared: OrderedDict[tuple[int, int, bool], _Shared] = field(
        default_factory=OrderedDict, init=False
    )

    def __post_init__(self) -> None:
        self.days = self.test_days.every
        self._tests = PressureTests(self.study, self._lock)
        self.progress = rising(self.progress)
        forecast_day = self.test_days.forecast_day
        # The day on which all policies are compared first: a listed one if it is listed as it is.
        self._screen_day = next(
            (
                i
                for i, day in enumerate(self.days)
                if day.cases == (forecast_day,) and not day.by_capacity
            ),
            FORECAST_DAY,
        )

    def spare_at(self, level: int) -> bool:
        """Return whether candidates keep a spare replica at ``level`` of assurance."""
        return any(day.by_capacity and day.required_at(level) for day in self.days)

    def choices(self, policies: Sequence[Policy]) -> dict[str, tuple[Choice, list[Candidate]]]:
        """Return the choice of each level of assurance, and the candidates it was made among."""
        able = [policy for policy in policies if not policy.traits.uses_future_data]
        out: dict[str, tuple[Choice, list[Candidate]]] = {}
        first: dict[tuple[str, bool], int] = {}
        candidates: list[Candidate] = []
        before: list[TestDay] | None = None
        for level, name in enumerate(LEVELS):
            report = part(self.progress, level / len(LEVELS), (level + 1) / len(LEVELS))
            required = [day for day in self.days if day.required_at(level)]
            if required != before:  # else the level below asks for the same
                candidates = self._search(able, level, first, report)
            before = required
            choice = recommend(candidates, self.days, level)
            if choice is not None:
                out[name] = choice, candidates
        return out

    def turned(self, policy: Policy, candidate: Candidate) -> Policy:
        """Return the policy with the parameter value of a candidate."""
        return _turned(policy, candidate.value)

    def static_fleet(self, level: int, spare: bool) -> IntArray:
        """Return the smallest static fleet that passes the days of ``level``, ``[pools]``.

        It is searched on every required day that a static fleet can be sized on. Of drawn days,
        the largest that may fail are left out.
        """
        key = level, spare
        with self._lock:
            if key not in self._static:
                studies = [make() for make in self._sizing(level)]
                counts = smallest_flat(*studies, seed=self.seed, known=self._known)
                if spare:
                    forecast_day = spared(self.test_days.forecast_day.study())
                    target = spare_target(forecast_day)
                    counts = with_spare([forecast_day], counts, target)
                self._static[key] = counts
            return self._static[key]

    def _sizing(self, level: int) -> list[Callable[[], Study]]:
        """Return the days of ``level`` on which a static fleet is sized."""
        makers = [
            case.sizing
            for day in self.days
            if day.required_at(level) and not day.by_capacity
            for case in day.cases[day.may_fail :]
            if case.sizing is not None
        ]
        return makers or [self.test_days.forecast_day.study]

    def _search(
        self,
        policies: Sequence[Policy],
        level: int,
        first: dict[tuple[str, bool], int],
        progress: Progress,
    ) -> list[Candidate]:
        """Return a candidate of each policy that can win at ``level``.

        All policies are tried on the forecast day first. Then each is tried on every required day,
        the cheapest first. A policy is left out if it is over PRUNED dearer on the forecast day
        than the best candidate so far, or could only tie with a simpler one.
        """
        spare = self.spare_at(level)

        def screened(policy: Policy, report: Progress) -> Screened:
            return self._screen(policy, spare, level, first.get((policy.key, spare), 0), report)

        found = self._map(
            [Part(f"Screen: {policy.title}", partial(screened, policy)) for policy in policies],
            part(progress, 0.0, 0.3),
        )
        starts: list[tuple[float, Policy, int]] = []
        candidates: list[Candidate] = []
        for policy, (index, results) in zip(policies, found, strict=True):
            self.results.update(results)
            if index is None:
                candidates.append(self._candidate(policy, self._last(policy), spare, level))
            else:
                cost = self._known_cost(policy, index, spare, level)
                starts.append((cost, policy, index))
        starts.sort(key=lambda its: (its[0], its[1].traits.complexity, its[1].key))
        best: Candidate | None = None
        simplest = MOST_COMPLEX  # complexity of the best candidate
        for i, (cost, policy, index) in enumerate(starts):
            report = part(progress, 0.3 + 0.7 * i / len(starts), 0.3 + 0.7 * (i + 1) / len(starts))
            if best is not None:
                of_best = self._on_forecast_day(best)
                # A policy of equal cost could only tie, and the simpler of two wins a tie.
                tied = abs(cost - of_best) <= CENT and policy.traits.complexity >= simplest
                if tied or cost > (1 + PRUNED) * of_best:
                    continue
            at = self._first_passing(policy, index, spare, level, report)
            candidate = self._candidate(policy, self._last(policy) if at is None else at, spare,
                                        level)  # fmt: skip
            candidates.append(candidate)
            if at is None:
                continue
            first[policy.key, spare] = at
            if best is None or candidate.expected(self.days) < best.expected(self.days):
                best, simplest = candidate, policy.traits.complexity
        if best is None:
            return [self._safest(policy, spare, level, progress) for policy in policies]
        return [c for c in candidates if c.results]

    def _safest(self, policy: Policy, spare: bool, level: int, progress: Progress) -> Candidate:
        """Return the candidate with the safest value, simulated on every required day."""
        required = [i for i, day in enumerate(self.days) if day.required_at(level)]
        weighted = [i for i, day in enumerate(self.days) if day.weight]
        days = [*dict.fromkeys([*required, *weighted])]
        self._measure(policy, self._last(policy), spare, level, days, progress)
        return self._candidate(policy, self._last(policy), spare, level)

    def _screen(
        self, policy: Policy, spare: bool, level: int, low: int, report: Progress
    ) -> Screened:
        """Return the index of the first value that passes the forecast day, and the results.

        None: no value passes.
        """
        results: dict[Trial, CaseResult] = {}

        def passes(index: int) -> bool:
            trial = Trial(policy.key, _values(policy, level)[index], spare, self._screen_day, 0)
            result = self.results.get(trial) or self._simulate(policy, trial, report)
            results[trial] = result
            return result.passes and (not spare or _by_capacity(result, self.study).passes)

        count = len(_values(policy, level))
        index = bisect_first(passes, min(low, count - 1), count)
        return (index if index < count else None), results

    def _first_passing(
        self, policy: Policy, low: int, spare: bool, level: int, progress: Progress
    ) -> int | None:
        """Return the index of the first value from ``low`` on that passes every required day."""
        required = [i for i, day in enumerate(self.days) if day.required_at(level)]
        hardest: list[int] = []  # days that were failed, tried first

        def passes(index: int) -> bool:
            order = [*dict.fromkeys([*hardest, *required])]
            for day in order:
                if not self._passes_day(policy, index, spare, level, day, progress):
                    hardest.insert(0, day)
                    return False
            return True

        count = len(_values(policy, level))
        index = low
        # A value that fails is found out early, so go up in small steps before bisecting.
        while index < min(low + STEPS, count) and not passes(index):
            index += 1
        if index == low + STEPS:
            index = bisect_first(passes, index, count)
        if index >= count:
            return None
        weighted = [i for i, day in enumerate(self.days) if day.weight]
        self._measure(policy, index, spare, level, weighted, progress)
        return index

    def _measure(
        self, policy: Policy, index: int, spare: bool, level: int, days: Sequence[int],
        progress: Progress,
    ) -> None:  # fmt: skip
        """Simulate a candidate on every case of ``days`` to its end."""
        value = _values(policy, level)[index]
        trials = [
            Trial(policy.key, value, spare, day, case)
            for day in days
            for case in range(len(self.days[day].cases))
        ]
        self._simulate_all(policy, trials, progress, whole=True)

    def _passes_day(
        self, policy: Policy, index: int, spare: bool, level: int, day: int, progress: Progress
    ) -> bool:
        """Simulate a candidate on a test day, two cases at a time, until the day is failed."""
        value = _values(policy, level)[index]
        test_day = self.days[day]
        failed = 0
        cases = range(len(test_day.cases))
        for begin in range(0, len(cases), DEFAULT_THREADS):
            trials = [
                Trial(policy.key, value, spare, day, case)
                for case in cases[begin : begin + DEFAULT_THREADS]
            ]
            self._simulate_all(policy, trials, progress)
            failed += sum(not self.results[trial].passes for trial in trials)
            if failed > test_day.may_fail:
                return False
        return failed <= test_day.may_fail

    def _simulate_all(
        self, policy: Policy, trials: Sequence[Trial], progress: Progress, *, whole: bool = False
    ) -> None:
        trials = [trial for trial in trials if not self._judge_spare(trial)]
        open_trials = [
            trial
            for trial in trials
            if (known := self.results.get(trial)) is None or (whole and known.cut)
        ]
        names = [f"{self.days[trial.day].name}: {policy.title}" for trial in open_trials]
        done = self._map(
            [
                Part(name, partial(self._simulate, policy, trial, whole=whole))
                for name, trial in zip(names, open_trials, strict=True)
            ],
            progress,
        )
        for trial, result in zip(open_trials, done, strict=True):
            lost = self.days[trial.day].by_capacity
            self.results[trial] = _by_capacity(result, self.study) if lost else result

    def _judge_spare(self, trial: Trial) -> bool:
        """Set the result of a lost replica from the simulation of the forecast day.

        Return False if the trial needs a simulation of its own.
        """
        if not self.days[trial.day].by_capacity:
            return False
        known = self.results.get(replace(trial, day=self._screen_day))
        if known is None or known.cut:
            return False
        self.results[trial] = _by_capacity(known, self.study)
        return True

    def _map(self, parts: Sequence[Part[T]], progress: Progress) -> list[T]:
        if not parts:
            return []
        most = len(self.test_days.forecast_day.study().trace)
        return self.parts.map(parts, progress, at_once=parallel_replays(most))

    def _simulate(
        self, policy: Policy, trial: Trial, report: Progress, *, whole: bool = False
    ) -> CaseResult:
        """Simulate one trial, to its end if ``whole``, else until a tier is sure to miss.

        A policy that cannot be built or planned on the day fails it.
        """
        case = self._case(trial)
        try:
            shared = self._study(trial)
            study = shared.study
            turned = _turned(policy, trial.value)
            level = int(trial.value) if policy.name == STATIC and trial.value is not None else 0
            run = run_policy(
                study,
                turned,
                seed=self.seed,
                progress=report,
                planned=shared.planned if turned.traits.plan == Plan() else None,
                tests=self._tests,
                static=partial(self.static_fleet, level, trial.spare),
                loads=shared.loads,
                detailed=False,
                spare=case is self.test_days.forecast_day,
                changed=case.unexpected,
                bars=None if whole else _targets(study),
            )
        except TargetMissed:
            return CaseResult(float("inf"), {}, 1.0, cut=True)
        except EXPECTED as problem:
            return CaseResult(float("inf"), {}, 1.0, reason=str(problem))
        return _result(run, self.study, study)

    def _case(self, trial: Trial) -> Case:
        if trial.day == FORECAST_DAY:
            return self.test_days.forecast_day
        return self.days[trial.day].cases[trial.case]

    def _study(self, trial: Trial) -> _Shared:
        """Return the study of a trial; the least recently used are dropped beyond MOST_HELD."""
        case = self._case(trial)
        day = trial.day
        if case.study is self.test_days.forecast_day.study:
            day = FORECAST_DAY
        key = day, 0 if day == FORECAST_DAY else trial.case, trial.spare
        with self._lock:
            if key not in self._shared:
                self._shared[key] = _Shared(self._variant(case.study(), trial.spare), self._lock)
            self._shared.move_to_end(key)
            while sum(len(its.study.trace) for its in self._shared.values()) > MOST_HELD:
                oldest = next(iter(self._shared))
                if oldest == key:
                    break
                del self._shared[oldest]
            return self._shared[key]

    def _variant(self, study: Study, spare: bool) -> Study:
        return spared(study) if spare else study

    def _candidate(self, policy: Policy, index: int, spare: bool, level: int) -> Candidate:
        """Return the candidate with its results on the days that it was simulated on."""
        value = _values(policy, level)[index]
        results: dict[int, tuple[CaseResult, ...]] = {}
        for i, day in enumerate(self.days):
            known = [
                self.results.get(Trial(policy.key, value, spare, i, case))
                for case in range(len(day.cases))
            ]
            results[i] = tuple(result for result in known if result is not None)
        parameters = _parameters(policy, value)
        if policy.name == STATIC:
            parameters = {"replicas": float(self.static_fleet(level, spare).sum())}
        return Candidate(
            policy.key, policy.title, value, spare, parameters,
            {i: cases for i, cases in results.items() if cases},
        )  # fmt: skip

    def _last(self, policy: Policy) -> int:
        return len(_values(policy, len(LEVELS) - 1)) - 1

    def _known_cost(self, policy: Policy, index: int, spare: bool, level: int) -> float:
        value = _values(policy, level)[index]
        return self.results[Trial(policy.key, value, spare, self._screen_day, 0)].cost_usd

    def _on_forecast_day(self, candidate: Candidate) -> float:
        trial = Trial(candidate.policy, candidate.value, candidate.spare, self._screen_day, 0)
        result = self.results.get(trial)
        return float("inf") if result is None else result.cost_usd


def _values(policy: Policy, level: int) -> tuple[float | None, ...]:
    """Return the parameter values of a policy, the cheapest first; (None,) without a parameter.

    The static fleet has one value at each level: the fleet that was sized on its days.
    """
    if policy.name == STATIC:
        return (float(level),)
    return (None,) if policy.parameter_to_tune is None else policy.parameter_to_tune.values


def _turned(policy: Policy, value: float | None) -> Policy:
    if value is None or policy.parameter_to_tune is None:
        return policy
    return policy.with_value(value)


def _parameters(policy: Policy, value: float | None) -> dict[str, float]:
    if policy.parameter_to_tune is None or value is None:
        return {}
    return {policy.parameter_to_tune.field: value}


def bisect_first(passes: Callable[[int], bool], low: int, high: int) -> int:
    """Return the first index in ``[low, high)`` that passes, by bisection; ``high`` if none."""
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if passes(middle) else (middle + 1, high)
    return low


def _targets(study: Study) -> dict[str, float]:
    return {tier.name: tier.attainment for tier in study.hardware.tiers}


def spare_target(study: Study) -> float:
    """Return the share of time in which any one replica may be lost: the highest SLO target."""
    tiers = [tier for tier in study.hardware.tiers if not tier.deferrable]
    return max((tier.attainment for tier in tiers), default=0.0)


def rising(progress: Progress) -> Progress:
    """Return ``progress`` without steps back, since the number of trials is not known before."""
    most = 0.0

    def report(done: float, what: str) -> None:
        nonlocal most
        most = max(most, done)
        progress(most, what)

    return report


def shortfall(summary: Summary, targets: dict[str, float]) -> float:
    """Return how far the worst tier's attainment is below its target, as a fraction."""
    gaps = [
        targets[name] - attainment
        for name, attainment in summary.slo_attainment.items()
        if attainment is not None
    ]
    short = max(0.0, max(gaps, default=0.0))
    return short if short > ROUNDING else 0.0


def _result(run: PolicyRun, whole: Study, study: Study) -> CaseResult:
    """Return the figures of a run; amounts are scaled to the length of the planned window."""
    summary = run.summary
    times = whole.window.duration_s / study.window.duration_s
    return CaseResult(
        cost_usd=summary.cost_usd * times,
        attainment=dict(summary.slo_attainment),
        shortfall=shortfall(summary, _targets(study)),
        survives=run.survives,
    )


def _by_capacity(result: CaseResult, study: Study) -> CaseResult:
    """Return the result of the loss of a replica: the share of time with enough capacity left."""
    share = result.survives
    tiers = [tier for tier in study.hardware.tiers if not tier.deferrable]
    short = 0.0 if share is None else max(0.0, spare_target(study) - share)
    return replace(result, attainment={tier.name: share for tier in tiers}, shortfall=short)
