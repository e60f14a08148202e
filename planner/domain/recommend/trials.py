"""Try the candidates of a recommendation on its test days.

A trial simulates one policy with one parameter value on one day. Values go from the cheapest to
the safest. A policy that meets the SLOs at one value is assumed to meet them at all later values,
so the cheapest value is found by bisection. A policy that costs clearly more than the static fleet
is left out early.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from threading import RLock
from typing import TypeVar

import numpy as np

from planner.domain.parallel import parallel_replays
from planner.domain.progress import Progress, rising, silent
from planner.domain.recommend.rule import ROUNDING, Candidate, CaseResult
from planner.domain.recommend.test_days import Case, TestDay, TestDays
from planner.domain.replay.policy_context import Loads, SharedInputs
from planner.domain.replay.rated_signals import PressureTests
from planner.domain.replay.replay import (
    BRIEF,
    ReplayOptions,
    build_policy,
    min_cost_usd,
    run_policy,
)
from planner.domain.replay.replica_loss import (
    Loss,
    by_place,
    interactive_targets,
    losses_of,
    with_spare_replica,
    worst_loss,
)
from planner.domain.replay.static_replay import Known, recorded_signals, served_by
from planner.domain.replay.static_search import costs_more_than, smallest_flat, with_spare
from planner.domain.run_parts import Part, Parts
from planner.domain.study import Study
from planner.errors import EXPECTED
from planner.inputs.scenario.schema.test_days import LEVELS
from planner.policies.base import Policy
from planner.policies.context import BuiltPolicy
from simulation.arrays import IntArray
from simulation.early_stop import TargetMissed
from simulation.policies.guarded_plan import GuardedPlan
from simulation.policies.wrappers.cost_limit import CostLimitExceeded

T = TypeVar("T")
# What a plan depends on: the policy's key, its parameter value, whether it keeps a spare replica,
# and the function that makes the study of the day.
Planned = tuple[str, float | None, bool, Callable[[], Study]]
MOST_HELD = 12_000_000  # requests of drawn days that are kept in memory
STATIC = "flat-before"  # the static fleet that is sized on the required days
SIZED = (STATIC, "flat-g")  # policies whose replicas are a static fleet, or begin with one


@dataclass(frozen=True, slots=True)
class Trial:
    """The test of a policy with a parameter value on one simulated day (``case``).

    With ``spare``, its plan has a spare replica.
    """

    policy: Policy = field(hash=False)  # may have lists of parameters
    value: float | None
    spare: bool
    case: Case

    @property
    def tuned_policy(self) -> Policy:
        """Return the policy with its parameter set to the value."""
        return with_tuned_value(self.policy, self.value)

    @property
    def static_level(self) -> int:
        """Return the level of assurance that the static fleet given to the policy is sized for.

        It is the value of the static policy. Other policies get the fleet of the lowest level.
        """
        return int(self.value) if self.policy.name == STATIC and self.value is not None else 0

    @property
    def plan_key(self) -> Planned:
        """Return what a plan of this trial depends on."""
        return self.policy.key, self.value, self.spare, self.case.study


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """The replicas that a policy always keeps on a day, as far as known, and their cost.

    ``usd`` is their cost in dollars; 0 if unknown. A policy without a plan keeps its first fleet,
    ``floor [pools]``, and only its reactive ``guard`` may add replicas to it. For a plan without a
    guard, ``schedule [periods, pools]`` are all its replicas. Fields that do not apply are None.
    """

    usd: float = 0.0
    floor: IntArray | None = None
    guard: GuardedPlan | None = None
    schedule: IntArray | None = None


@dataclass(eq=False)
class Trials:
    """The trials of a study: the results of ``policies`` on its test days, each simulated once.

    A parameter value is named by its index among ``values(policy, level)``, and a level by its
    index among ``LEVELS``.
    """

    study: Study
    test_days: TestDays
    policies: Sequence[Policy]
    seed: int
    parts: Parts
    progress: Progress = silent
    # Called with the test days and the candidates tried last, after new results.
    show: Callable[[Sequence[TestDay], Sequence[Candidate]], None] | None = None
    results: dict[Trial, CaseResult] = field(default_factory=dict, init=False)
    # Simulations to the end of a day in this process. Other processes have others, so they must
    # not affect which trials follow.
    _simulated: dict[Trial, CaseResult] = field(default_factory=dict, init=False)
    _tried_last: dict[str, Candidate] = field(default_factory=dict, init=False)
    _static: dict[tuple[int, bool], IntArray] = field(default_factory=dict, init=False)
    _kept: dict[Planned, Kept] = field(default_factory=dict, init=False)
    # Lower bounds of costs, in dollars, that are known before plans are solved.
    _least_usd: dict[Planned, float] = field(default_factory=dict, init=False)
    _known: Known = field(default_factory=dict, init=False)
    _lock: RLock = field(default_factory=RLock, init=False)
    # The study of a day, and the loads that its plans are made for.
    _shared: OrderedDict[Callable[[], Study], tuple[Study, Loads]] = field(
        default_factory=OrderedDict, init=False
    )

    def __post_init__(self) -> None:
        self.days = self.test_days.all_days
        cases = [self.test_days.forecast_day, *(case for day in self.days for case in day.cases)]
        self.cases = [*dict.fromkeys(cases)]  # the first is the forecast day
        self._tests = PressureTests(self.study, self._lock)
        self.progress = rising(self.progress)

    def static_fleet(self, level: int, spare: bool) -> IntArray:
        """Return the smallest static fleet that passes the days required at ``level``, ``[pools]``.

        It is sized on every required day on which a static fleet can be sized. With ``spare``, it
        has spare replicas (N+1) too.
        """
        key = level, spare
        with self._lock:
            if key not in self._static:
                counts = self._static.get((level, False))
                if counts is None:
                    counts = self._static[level, False] = self._smallest(level)
                if spare:
                    forecast_day = self.test_days.forecast_day.study()
                    counts = with_spare([forecast_day], counts, self.seed, self._known)
                self._static[key] = counts
            return self._static[key]

    def _sizing_studies(self, level: int) -> list[Study]:
        """Return the studies on which the static fleet of ``level`` is sized."""
        makers = [
            case.sizing
            for day in self.days
            if day.required_at(level)
            for case in day.cases
            if case.required and case.sizing is not None and not case.lost
        ]
        distinct = [*dict.fromkeys(makers)] or [self.test_days.forecast_day.study]
        return [make() for make in distinct]

    def _smallest(self, level: int, progress: Progress = silent) -> IntArray:
        """Return the smallest static fleet for ``level`` without spare replicas, ``[pools]``."""
        studies = self._sizing_studies(level)
        return smallest_flat(
            *studies, seed=self.seed, progress=progress, known=self._known, at_once=self.at_once
        )

    def static_fails(self, level: int, usd: float) -> bool:
        """Return whether all static fleets that pass at ``level`` surely cost over ``usd``."""
        return costs_more_than(usd, self._sizing_studies(level), self.seed, self._known)

    def size_static_fleet(self, level: int, progress: Progress) -> None:
        """Size the static fleet of a level of assurance before workers of the run need it."""
        part = Part(f"Static fleet: {LEVELS[level]}", partial(self._smallest, level))
        (self._static[level, False],) = self.map([part], progress)

    def trial(self, policy: Policy, index: int, level: int, case: Case) -> Trial:
        """Return the trial of a case: the policy with its parameter value number ``index``."""
        value = values(policy, level)[index]
        return Trial(policy, value, self.keeps_spare(policy, level), case)

    def measure(
        self, policy: Policy, index: int, level: int, days: Sequence[int], progress: Progress
    ) -> None:
        """Simulate parameter value number ``index`` on every case of ``days``, to their ends.

        ``days`` are indices of test days.
        """
        trials = [
            self.trial(policy, index, level, case) for day in days for case in self.days[day].cases
        ]
        self.simulate_all(trials, progress, whole=True)

    def simulate_all(
        self, trials: Sequence[Trial], progress: Progress, *, whole: bool = False
    ) -> None:
        """Simulate those of the trials that have no usable result, and keep the results.

        With ``whole``, trials that ended early are simulated again, to the end of the day.
        """
        open_trials = self.without_result(trials, whole=whole)
        done = self.map(
            [
                Part(
                    f"Test day {i + 1}: {trial.policy.title}",
                    partial(self.simulate, trial, whole=whole),
                )
                for i, trial in enumerate(open_trials)
            ],
            progress,
        )
        self.record(dict(zip(open_trials, done, strict=True)))

    def without_result(self, trials: Sequence[Trial], *, whole: bool = False) -> list[Trial]:
        """Return those of the trials that have no usable result.

        A result is not usable if the simulation ended at a cost limit. With ``whole``, it is not
        usable either if the simulation ended because a tier missed its target.
        """
        return [
            trial
            for trial in dict.fromkeys(trials)
            if (known := self.results.get(trial)) is None
            or (whole and known.missed_early)
            or known.stopped_at_usd
        ]

    def record(self, results: Mapping[Trial, CaseResult]) -> None:
        """Keep results of one policy, and show those of the parameter value tried last."""
        self.results.update(results)
        if results and self.show is not None:
            last = [*results][-1]
            self._tried_last[last.policy.key] = self._candidate(last)
            self.show(self.days, [*self._tried_last.values()])

    def keeps_spare(self, policy: Policy, level: int) -> bool:
        """Return whether ``policy`` has to plan a spare replica at ``level``.

        Only policies with a plan or a static fleet can have one.
        """
        can_have_spare = policy.traits.plan is not None or policy.name in SIZED
        return can_have_spare and self.test_days.spare_at(level)

    def map(self, parts: Sequence[Part[T]], progress: Progress) -> list[T]:
        """Compute independent parts, and return their results in order."""
        return self.parts.map(parts, progress, at_once=self.at_once) if parts else []

    @property
    def at_once(self) -> int:
        """Return how many simulations run at the same time."""
        return parallel_replays(len(self.test_days.forecast_day.study().trace))

    def simulate(
        self, trial: Trial, report: Progress, *, whole: bool = False,
        limit: float = inf, known: CaseResult | None = None,
    ) -> CaseResult:  # fmt: skip
        """Return the result of one trial; simulate it unless a trial with equal decisions exists.

        Unless ``whole``, the simulation ends when a tier is sure to miss its target. It also ends
        once the policy costs more than ``limit`` dollars. A policy that cannot be built or planned
        on the day fails it. ``known`` is the result on the forecast day, if the caller has it. It
        tells which loss of replicas is the worst.
        """
        case = trial.case
        try:
            counts = self._constant_fleet(trial, limit)
            if counts is not None:
                stored = self._static_result(case, counts)
                if stored is not None and not (whole and stored.missed_early):
                    return stored
            stored = self.result_of_same_decisions(trial, self.results | self._simulated)
            if (
                stored is not None
                and not (whole and stored.missed_early)
                and stored.cost_usd <= limit
            ):
                return stored
            loss = self._loss(trial, report, known) if case.lost else None
            study, shared = self._inputs(trial)
            targets = _targets(study, case)
            run = run_policy(
                study,
                trial.tuned_policy,
                seed=self.seed,
                progress=report,
                shared=shared,
                options=ReplayOptions(
                    detailed=False,
                    lost=loss,
                    changed=case.unexpected,
                    bars=None if whole else targets,
                    cost_limit=limit / self._scale(study),
                ),
            )
        except CostLimitExceeded:
            return CaseResult(stopped_at_usd=limit)
        except TargetMissed:
            return CaseResult(missed_early=True)
        except EXPECTED as problem:
            return CaseResult(reason=str(problem))
        attainment = dict(run.summary.slo_attainment)
        usd = run.summary.cost_usd * self._scale(study)
        result = CaseResult(usd, attainment, shortfall(attainment, targets), run.worst_loss)
        self._simulated[trial] = result
        return result

    def _scale(self, study: Study) -> float:
        """Return the length of the planned window divided by that of the window of ``study``.

        Costs on a test day are multiplied by it, so that days of different lengths compare.
        """
        return self.study.window.duration_s / study.window.duration_s

    def _loss(self, trial: Trial, report: Progress, known: CaseResult | None) -> Loss:
        """Return the loss of replicas to simulate: the worst one on the forecast day.

        ``known`` is the result on the forecast day, if the caller has it. Otherwise that day is
        simulated first, unless all losses are alike.
        """
        losses = losses_of(self.study)
        if len(losses) == 1:
            return losses[0]
        day = replace(trial, case=self.test_days.forecast_day)
        known = known or self.results.get(day)
        if known is None or known.worst_loss is None:
            known = self.simulate(day, report, whole=True)
        return losses[known.worst_loss or 0]

    def min_cost_usd(self, trial: Trial, *, solve: bool = True) -> float:
        """Return a lower bound on the policy's cost in a trial, in dollars; 0 if unknown.

        It is the cost of the replicas that the policy always keeps, scaled to the length of the
        planned window, like every cost of a trial. Without ``solve``, no plan is solved for it, and
        the bound may be lower.
        """
        if trial.case.lost or trial.case.unexpected is not None:
            return 0.0
        if solve or trial.plan_key in self._kept:
            return self._permanent_replicas(trial).usd
        if trial.plan_key not in self._least_usd:
            try:
                study, ready = self._built(trial)
                usd = self._scale(study) * min_cost_usd(study, ready, BRIEF, solve=False)
            except EXPECTED:
                usd = 0.0
            self._least_usd[trial.plan_key] = usd
        return self._least_usd[trial.plan_key]

    def _inputs(self, trial: Trial) -> tuple[Study, SharedInputs]:
        """Return the study of a trial's day, and the shared inputs of its policy."""
        study, loads = self._study(trial)
        static = partial(self.static_fleet, trial.static_level, trial.spare)
        return study, SharedInputs(tests=self._tests, static=static, loads=loads)

    def _built(self, trial: Trial) -> tuple[Study, BuiltPolicy]:
        """Return the study of a trial, and its policy as built there."""
        study, shared = self._inputs(trial)
        return study, build_policy(study, trial.tuned_policy, seed=self.seed, shared=shared)

    def _permanent_replicas(self, trial: Trial) -> Kept:
        """Return the replicas that the policy always keeps in a trial, with their cost."""
        if trial.plan_key not in self._kept:
            try:
                study, ready = self._built(trial)
                kept = Kept(self._scale(study) * min_cost_usd(study, ready, BRIEF))
                if ready.keeps_floor and ready.plan is None:
                    floor = np.array([pool.initial for pool in ready.fleet.pools], np.int64)
                    kept = Kept(kept.usd, floor, ready.guard)
                elif (
                    ready.keeps_floor
                    and ready.plan is not None
                    and not trial.policy.traits.may_exceed_plan
                ):
                    kept = Kept(kept.usd, schedule=study.pools(ready.plan().target))
            except EXPECTED:
                kept = Kept()
            self._kept[trial.plan_key] = kept
        return self._kept[trial.plan_key]

    def has_floor(self, trial: Trial) -> bool:
        """Return whether the policy always keeps replicas in a trial, at a known cost."""
        kept = self._permanent_replicas(trial)
        return kept.usd > 0 or kept.schedule is not None

    def have_same_schedule(self, trial: Trial, other: Trial) -> bool:
        """Return whether two trials of a policy have the same schedule, and no other replicas.

        False if the schedule of either is unknown.
        """
        first = self._permanent_replicas(trial).schedule
        second = self._permanent_replicas(other).schedule
        return first is not None and second is not None and np.array_equal(first, second)

    def _decide_equally(self, trial: Trial, other: Trial) -> bool:
        """Return whether two trials of a policy on one day surely make the same decisions.

        They do so with the same schedule and the same setting of the spare replica, which affects
        where requests are served. Without a plan, they do so with the same first fleet, to which
        the same guard adds the same replicas.
        """
        if trial.policy.traits.plan is not None:
            return other.spare == trial.spare and self.have_same_schedule(trial, other)
        first = self._permanent_replicas(trial).floor
        second = self._permanent_replicas(other).floor
        return first is not None and second is not None and np.array_equal(first, second)

    def result_of_same_decisions(
        self, trial: Trial, results: Mapping[Trial, CaseResult]
    ) -> CaseResult | None:
        """Return the result in ``results`` of a trial that makes the same decisions on that day.

        It saves a simulation of ``trial``. None if no trial of its policy is sure to decide so.
        """
        for other, result in [*results.items()]:
            if other.case != trial.case or other.policy != trial.policy or result.stopped_at_usd:
                continue
            if other == trial or self._decide_equally(trial, other):
                return result
        return None

    def _constant_fleet(self, trial: Trial, limit: float) -> IntArray | None:
        """Return the replicas ``[pools]`` of a policy that never changes them in a trial.

        Its replay then equals that of a static fleet. Such policies are static fleets, static
        fleets whose guard adds nothing on this day, and plans with constant counts in a single
        region. The last two only count up to a cost of ``limit`` dollars. None for all others.
        """
        if trial.case.sizing is None:
            return None
        if trial.policy.name == STATIC:
            return self.static_fleet(trial.static_level, trial.spare)
        plan = self.study.settings.plan
        if plan.objective.reserve or plan.objective.lend_share is not None:
            return None
        kept = self._permanent_replicas(trial)
        if (
            kept.usd <= limit
            and kept.guard is not None
            and self._guard_adds_nothing(trial.case, kept)
        ):
            return kept.floor
        if len(self.study.hardware.regions) > 1 or kept.schedule is None or kept.usd > limit:
            return None
        first: IntArray = kept.schedule[0]
        return first if (kept.schedule == first).all() else None

    def _guard_adds_nothing(self, case: Case, kept: Kept) -> bool:
        """Return whether an earlier replay shows that a guard adds nothing to its static fleet.

        The earlier replay of the static fleet must be valid for the day of ``case``. It is not
        after a loss of replicas, nor if replicas have to start while starts are slower. False if
        there is no such replay.
        """
        assert case.sizing is not None
        study, floor = case.sizing(), kept.floor
        if kept.guard is None or floor is None or case.lost:
            return False
        # Replays record what a guard observes at its default interval.
        if kept.guard.interval_s != GuardedPlan.interval_s:
            return False
        fleet = study.fleet(floor)
        below_minimum = floor < [pool.minimum for pool in fleet.pools]
        starts = (floor > study.pools(study.today)) & (case.unexpected is not None)
        if below_minimum.any() or starts.any():
            return False
        signals = recorded_signals(study, floor, self.seed, self._known)
        return signals is not None and kept.guard.never_acts(fleet, signals)

    def _static_result(self, case: Case, counts: IntArray) -> CaseResult | None:
        """Return a static fleet's result on a case, from replays of each model alone.

        These replays are made once, also for the search of static fleets. ``counts [pools]`` are
        the fleet's replicas, before any loss that the case simulates. None if such replays do not
        apply to the case.
        """
        assert case.sizing is not None
        study = case.sizing()
        # Replays of single models have no faults, network or lending.
        not_replayed = study.hardware.faults or study.network or study.settings.scale_in.lend
        targets = _targets(study, case)
        if case.lost:
            fleet = by_place(study, counts[None])
            loss = losses_of(study)[worst_loss(study, fleet)]
            counts = study.pools(loss.replicas_after_loss(fleet))[0]
            not_replayed = not_replayed or loss.region is not None
        served = None if not_replayed else served_by(study, counts, self.seed, self._known, targets)
        if served is None:
            return None
        if served.stopped_early:
            return CaseResult(missed_early=True)
        tiers = study.hardware.tiers
        attainment = {
            tier.name: None if not due else (due - late) / due
            for tier, due, late in zip(
                tiers, served.due.tolist(), served.late.tolist(), strict=True
            )
        }
        worst = None
        if case == self.test_days.forecast_day:
            worst = worst_loss(study, by_place(study, counts[None]))
        return CaseResult(
            served.cost_usd * self._scale(study), attainment, shortfall(attainment, targets), worst
        )

    def _study(self, trial: Trial) -> tuple[Study, Loads]:
        """Return the study of a trial's day, and the loads that its plans are made for.

        The study plans a spare replica if the trial does. Recently used studies are kept, up to
        MOST_HELD requests in total.
        """
        key = trial.case.study
        with self._lock:
            if key not in self._shared:
                study = trial.case.study()
                self._shared[key] = study, Loads(study, self._lock)
            self._shared.move_to_end(key)
            while sum(len(study.trace) for study, _ in self._shared.values()) > MOST_HELD:
                oldest = next(iter(self._shared))
                if oldest == key:
                    break
                del self._shared[oldest]
            study, loads = self._shared[key]
        return (with_spare_replica(study) if trial.spare else study), loads

    def candidate(self, policy: Policy, index: int, level: int) -> Candidate:
        """Return the policy with parameter value number ``index``, and all its results so far."""
        trial = self.trial(policy, index, level, self.cases[0])
        candidate = self._candidate(trial)
        if policy.name == STATIC:
            replicas = float(self.static_fleet(level, trial.spare).sum())
            return replace(candidate, parameters={"replicas": replicas})
        return candidate

    def _candidate(self, trial: Trial) -> Candidate:
        """Return the candidate that a trial tests, with all its results so far."""
        policy, value = trial.policy, trial.value
        parameter = policy.parameter_to_tune
        parameters = {} if parameter is None or value is None else {parameter.field: value}
        candidate = Candidate(policy.key, policy.title, value, trial.spare, parameters)
        return self.with_results(candidate)

    def with_results(self, candidate: Candidate) -> Candidate:
        """Return the candidate with all its results so far."""

        def known(case: Case) -> CaseResult | None:
            """Return the result on a case; None if missing, or if its cost ended the simulation."""
            result = self.results.get(self._trial_of(candidate, case))
            return None if result is None or result.stopped_at_usd else result

        results = {i: tuple(known(case) for case in day.cases) for i, day in enumerate(self.days)}
        return replace(candidate, results={i: its for i, its in results.items() if any(its)})

    def plan_key(self, candidate: Candidate) -> Hashable:
        """Return a key of the plan of a candidate: candidates with equal keys decide equally.

        A policy without a forecast plan is known by the replicas that it always keeps.
        """
        floor = self._permanent_replicas(self._trial_of(candidate, self.cases[0])).floor
        if floor is not None:
            return candidate.policy, floor.tobytes()
        return candidate.policy, candidate.value, candidate.spare

    def on_forecast_day(self, candidate: Candidate) -> float:
        """Return the cost of a candidate on the forecast day in dollars; infinite if unknown."""
        result = self.results.get(self._trial_of(candidate, self.cases[0]))
        return inf if result is None else result.cost_usd

    def _trial_of(self, candidate: Candidate, case: Case) -> Trial:
        """Return the trial of a candidate on a case."""
        policy = next(policy for policy in self.policies if policy.key == candidate.policy)
        return Trial(policy, candidate.value, candidate.spare, case)


def values(policy: Policy, level: int) -> tuple[float | None, ...]:
    """Return the values of a policy's tuned parameter, cheapest first; (None,) without one.

    The static fleet has one value at each level of assurance: the fleet sized on that level's days.
    """
    if policy.name == STATIC:
        return (float(level),)
    return (None,) if policy.parameter_to_tune is None else policy.parameter_to_tune.values


def with_tuned_value(policy: Policy, value: float | None) -> Policy:
    """Return ``policy`` with its tuned parameter set to ``value``, if both exist."""
    if value is None or policy.parameter_to_tune is None:
        return policy
    return policy.with_value(value)


def _targets(study: Study, case: Case) -> dict[str, float]:
    """Return the SLO attainment targets of a case, by tier; after a loss, of interactive tiers."""
    if case.lost:
        return interactive_targets(study)
    return {tier.name: tier.attainment for tier in study.hardware.tiers}


def shortfall(attainment: Mapping[str, float | None], targets: Mapping[str, float]) -> float:
    """Return how far the worst tier's attainment is below its target, as a fraction; 0 if none."""
    gaps = [targets[name] - share for name, share in attainment.items() if share is not None]
    short = max(0.0, max(gaps, default=0.0))
    return short if short > ROUNDING else 0.0
