"""Try the candidates of a recommendation on its test days.

A trial simulates one tuned policy on one day. A simulation is saved if its result is known from
another trial or from the search of static fleets, or if it cannot matter: it ends once a tier is
sure to miss its target, or once the policy costs too much.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from threading import RLock
from typing import NamedTuple, TypeVar

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
from planner.domain.replay.static_replay import KnownResults, recorded_signals, served_by
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
STATIC = "flat-before"  # the static fleet that is sized on the required days
SIZED = (STATIC, "flat-g")  # policies whose replicas are a static fleet, or begin with one


@dataclass(frozen=True, slots=True)
class TunedPolicy:
    """A policy with a value of its tuned parameter; None if it has no such parameter.

    The value of the static fleet is the level of assurance that it is sized for. With ``spare``,
    a plan or a static fleet has spare replicas (N+1).
    """

    policy: Policy = field(hash=False)  # may have lists of parameters
    value: float | None
    spare: bool

    @property
    def static_level(self) -> int:
        """Return the level of assurance that the static fleet given to the policy is sized for.

        All policies but the static fleet itself get the fleet of the lowest level.
        """
        return int(self.value) if self.policy.name == STATIC and self.value is not None else 0


class Trial(NamedTuple):
    """The test of a tuned policy on one simulated day."""

    tuned: TunedPolicy
    case: Case


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

    A level of assurance is named by its index in ``LEVELS``.

    Each worker that takes part in a run makes the same trials, and computes only some of them. So
    ``results``, which all workers have, decide what follows. Simulations that one worker alone
    knows (``_simulated``) only save time.
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
    days: Sequence[TestDay] = field(init=False)
    forecast_day: Case = field(init=False)
    _simulated: dict[Trial, CaseResult] = field(default_factory=dict, init=False)  # to the end
    _tried_last: dict[str, Candidate] = field(default_factory=dict, init=False)  # by policy
    # Static fleets by level, without and with spare replicas.
    _static: dict[tuple[int, bool], IntArray] = field(default_factory=dict, init=False)
    _known: KnownResults = field(default_factory=dict, init=False)  # replays of static fleets
    # What policies keep, and the loads that they plan for, by the function that makes their day.
    _kept: dict[tuple[TunedPolicy, Callable[[], Study]], Kept] = field(
        default_factory=dict, init=False
    )
    _loads: dict[Callable[[], Study], Loads] = field(default_factory=dict, init=False)
    _lock: RLock = field(default_factory=RLock, init=False)  # of static fleets, days and loads

    def __post_init__(self) -> None:
        self.days = self.test_days.all_days
        self.forecast_day = self.test_days.forecast_day
        self._tests = PressureTests(self.study, self._lock)
        self.progress = rising(self.progress)

    @property
    def cases(self) -> list[Case]:
        """Return all simulated days, the forecast day first."""
        cases = [self.forecast_day, *(case for day in self.days for case in day.cases)]
        return [*dict.fromkeys(cases)]

    @property
    def weighted_days(self) -> list[TestDay]:
        """Return the test days on which the cost counts."""
        return [day for day in self.days if day.weight]

    def tuned(self, policy: Policy, index: int, level: int) -> TunedPolicy:
        """Return the policy with parameter value number ``index`` of ``values(policy, level)``."""
        return TunedPolicy(policy, values(policy, level)[index], self.keeps_spare(policy, level))

    def keeps_spare(self, policy: Policy, level: int) -> bool:
        """Return whether ``policy`` has to plan a spare replica at ``level``.

        Only policies with a plan or a static fleet can have one.
        """
        can_have_spare = policy.traits.plan is not None or policy.name in SIZED
        return can_have_spare and self.test_days.spare_at(level)

    # Static fleets.

    def static_fleet(self, level: int, spare: bool) -> IntArray:
        """Return the smallest static fleet that passes the days required at ``level``, ``[pools]``.

        It is sized on every required day on which a static fleet can be sized. With ``spare``, it
        has spare replicas (N+1) too.
        """
        with self._lock:
            if (level, spare) not in self._static:
                if spare:
                    counts = self.static_fleet(level, False)
                    study = self.forecast_day.study()
                    self._static[level, True] = with_spare([study], counts, self.seed, self._known)
                else:
                    self._static[level, False] = self._smallest(level)
            return self._static[level, spare]

    def size_static_fleet(self, level: int, progress: Progress) -> None:
        """Size the static fleet of a level of assurance before workers of the run need it."""
        part = Part(f"Static fleet: {LEVELS[level]}", partial(self._smallest, level))
        (self._static[level, False],) = self.map([part], progress)

    def _smallest(self, level: int, progress: Progress = silent) -> IntArray:
        """Return the smallest static fleet for ``level`` without spare replicas, ``[pools]``."""
        studies = self._sizing_studies(level)
        return smallest_flat(
            *studies, seed=self.seed, progress=progress, known=self._known, at_once=self.at_once
        )

    def static_fails(self, level: int, usd: float) -> bool:
        """Return whether all static fleets that pass at ``level`` surely cost over ``usd``."""
        return costs_more_than(usd, self._sizing_studies(level), self.seed, self._known)

    def _sizing_studies(self, level: int) -> list[Study]:
        """Return the studies on which the static fleet of ``level`` is sized."""
        makers = [
            case.sizing
            for day in self.days
            if day.required_at(level)
            for case in day.cases
            if case.required and case.sizing is not None and not case.lost
        ]
        distinct = [*dict.fromkeys(makers)] or [self.forecast_day.study]
        return [make() for make in distinct]

    # Results of trials.

    def simulate_days(
        self, tuned: TunedPolicy, days: Sequence[TestDay], progress: Progress
    ) -> None:
        """Simulate every case of ``days`` to its end, as far as the result is not known."""
        trials = [Trial(tuned, case) for day in days for case in day.cases]
        self.simulate_all(trials, progress, whole=True)

    def simulate_all(
        self, trials: Sequence[Trial], progress: Progress, *, whole: bool = False
    ) -> None:
        """Simulate those of the trials that have no usable result, and keep the results.

        With ``whole``, trials that ended early are simulated again, to the end of the day.
        """
        open_trials = self.without_result(trials, whole=whole)
        steps = [
            Part(
                f"Test day {i + 1}: {trial.tuned.policy.title}",
                partial(self.simulate, trial, whole=whole),
            )
            for i, trial in enumerate(open_trials)
        ]
        self.record(dict(zip(open_trials, self.map(steps, progress), strict=True)))

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
        """Keep results, and show those of the tuned policy tried last."""
        self.results.update(results)
        if results and self.show is not None:
            last = [*results][-1].tuned
            self._tried_last[last.policy.key] = self.candidate(last)
            self.show(self.days, [*self._tried_last.values()])

    def map(self, parts: Sequence[Part[T]], progress: Progress) -> list[T]:
        """Compute independent parts, and return their results in order."""
        return self.parts.map(parts, progress, at_once=self.at_once) if parts else []

    @property
    def at_once(self) -> int:
        """Return how many simulations run at the same time."""
        return parallel_replays(len(self.forecast_day.study().trace))

    def candidate(self, tuned: TunedPolicy) -> Candidate:
        """Return the candidate for a tuned policy, with all its results so far."""
        policy, parameter = tuned.policy, tuned.policy.parameter_to_tune
        parameters: dict[str, float] = {}
        if policy.name == STATIC:
            fleet = self.static_fleet(tuned.static_level, tuned.spare)
            parameters["replicas"] = float(fleet.sum())
        elif parameter is not None and tuned.value is not None:
            parameters[parameter.field] = tuned.value
        row = Candidate(policy.key, policy.title, tuned.value, tuned.spare, parameters)
        return self.with_results(row)

    def with_results(self, candidate: Candidate) -> Candidate:
        """Return the candidate with all its results so far.

        A result that ended at a cost limit counts as not simulated.
        """
        tuned = self._tuned_of(candidate)
        results = {}
        for i, day in enumerate(self.days):
            known = [self.results.get(Trial(tuned, case)) for case in day.cases]
            known = [None if row is None or row.stopped_at_usd else row for row in known]
            if any(known):
                results[i] = tuple(known)
        return replace(candidate, results=results)

    def on_forecast_day(self, candidate: Candidate) -> float:
        """Return the cost of a candidate on the forecast day in dollars; infinite if unknown."""
        result = self.results.get(Trial(self._tuned_of(candidate), self.forecast_day))
        return inf if result is None else result.cost_usd

    def plan_key(self, candidate: Candidate) -> Hashable:
        """Return a key of the plan of a candidate: candidates with equal keys decide equally.

        A policy without a forecast plan is known by the replicas that it always keeps.
        """
        trial = Trial(self._tuned_of(candidate), self.forecast_day)
        floor = self._permanent_replicas(trial).floor
        if floor is not None:
            return candidate.policy, floor.tobytes()
        return candidate.policy, candidate.value, candidate.spare

    def _tuned_of(self, candidate: Candidate) -> TunedPolicy:
        """Return the tuned policy of a candidate."""
        policy = next(policy for policy in self.policies if policy.key == candidate.policy)
        return TunedPolicy(policy, candidate.value, candidate.spare)

    # One trial.

    def simulate(
        self, trial: Trial, report: Progress, *, whole: bool = False, limit: float = inf
    ) -> CaseResult:
        """Return the result of one trial; simulate it unless a trial with equal decisions exists.

        Unless ``whole``, the simulation ends when a tier is sure to miss its target. It also ends
        once the policy costs more than ``limit`` dollars. The result has the cause of an early end.
        A policy that cannot be built or planned on the day fails it, with the reason in the result.
        """
        tuned, case = trial
        try:
            known = self._known_result(trial, whole, limit)
            if known is not None:
                return known
            study = self._study(trial)
            targets = _targets(study, case)
            run = run_policy(
                study,
                with_tuned_value(tuned.policy, tuned.value),
                seed=self.seed,
                progress=report,
                shared=self._shared_inputs(trial),
                options=ReplayOptions(
                    detailed=False,
                    lost=self._loss(trial, report) if case.lost else None,
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

    def _known_result(self, trial: Trial, whole: bool, limit: float) -> CaseResult | None:
        """Return the result of a trial as far as it is known without its simulation, else None.

        ``whole`` and ``limit`` are those of ``simulate``.
        """
        counts = self._constant_fleet(trial, limit)
        if counts is not None:
            static = self._static_result(trial.case, counts)
            if static is not None and not (whole and static.missed_early):
                return static
        equal = self.result_of_same_decisions(trial, self.results | self._simulated)
        if equal is None or (whole and equal.missed_early) or equal.cost_usd > limit:
            return None
        return equal

    def _loss(self, trial: Trial, report: Progress) -> Loss:
        """Return the loss of replicas to simulate: the worst one on the forecast day.

        That day is simulated first, unless all losses are alike or its result is known.
        """
        losses = losses_of(self.study)
        if len(losses) == 1:
            return losses[0]
        day = self.simulate(Trial(trial.tuned, self.forecast_day), report, whole=True)
        return losses[day.worst_loss or 0]

    def _scale(self, study: Study) -> float:
        """Return the length of the planned window divided by that of the window of ``study``.

        Costs on a test day are multiplied by it, so that days of different lengths compare.
        """
        return self.study.window.duration_s / study.window.duration_s

    def _study(self, trial: Trial) -> Study:
        """Return the study of a trial's day. It plans a spare replica if the trial does."""
        with self._lock:  # the day is made once
            study = trial.case.study()
        return with_spare_replica(study) if trial.tuned.spare else study

    def _shared_inputs(self, trial: Trial) -> SharedInputs:
        """Return the inputs that the policy of a trial shares with others on the same day."""
        tuned, make_study = trial.tuned, trial.case.study
        with self._lock:
            if make_study not in self._loads:
                self._loads[make_study] = Loads(make_study(), self._lock)
        static = partial(self.static_fleet, tuned.static_level, tuned.spare)
        return SharedInputs(tests=self._tests, static=static, loads=self._loads[make_study])

    # What is known of a trial before its simulation.

    def min_cost_usd(self, trial: Trial) -> float:
        """Return a lower bound on the policy's cost in a trial, in dollars; 0 if unknown.

        It is the cost of the replicas that the policy always keeps, scaled to the length of the
        planned window, like every cost of a trial. Losses and changes of the fleet may remove them.
        """
        if trial.case.lost or trial.case.unexpected is not None:
            return 0.0
        return self._permanent_replicas(trial).usd

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

    def _permanent_replicas(self, trial: Trial) -> Kept:
        """Return the replicas that the policy always keeps in a trial, with their cost."""
        key = trial.tuned, trial.case.study
        if key not in self._kept:
            try:
                self._kept[key] = self._kept_by_plan(trial)
            except EXPECTED:  # the policy cannot be built or planned on this day
                self._kept[key] = Kept()
        return self._kept[key]

    def _kept_by_plan(self, trial: Trial) -> Kept:
        """Return the replicas that a policy always keeps, and their cost.

        With a plan, they are its schedule, without one the first fleet of the policy. They are not
        known, only their cost, if the policy may go below, or has a plan and may exceed it.
        """
        study = self._study(trial)
        policy = with_tuned_value(trial.tuned.policy, trial.tuned.value)
        built: BuiltPolicy = build_policy(
            study, policy, seed=self.seed, shared=self._shared_inputs(trial)
        )
        usd = self._scale(study) * min_cost_usd(study, built, BRIEF)
        if not built.keeps_floor:
            return Kept(usd)
        if built.plan is None:
            floor = np.array([pool.initial for pool in built.fleet.pools], np.int64)
            return Kept(usd, floor, built.guard)
        if policy.traits.may_exceed_plan:
            return Kept(usd)
        return Kept(usd, schedule=study.counts_by_pool(built.plan().target))

    def result_of_same_decisions(
        self, trial: Trial, results: Mapping[Trial, CaseResult]
    ) -> CaseResult | None:
        """Return the result in ``results`` of a trial that makes the same decisions on that day.

        It saves a simulation of ``trial``. None if no trial of its policy is sure to decide so.
        """
        policy = trial.tuned.policy
        for other, result in [*results.items()]:
            if other.case != trial.case or other.tuned.policy != policy or result.stopped_at_usd:
                continue
            if other == trial or self._decide_equally(trial, other):
                return result
        return None

    def _decide_equally(self, trial: Trial, other: Trial) -> bool:
        """Return whether two trials of a policy on one day surely make the same decisions.

        They do so with the same schedule and the same setting of the spare replica, which affects
        where requests are served. Without a plan, they do so with the same first fleet, to which
        the same guard adds the same replicas.
        """
        if trial.tuned.policy.traits.plan is not None:
            same_spare = other.tuned.spare == trial.tuned.spare
            return same_spare and self.have_same_schedule(trial, other)
        first = self._permanent_replicas(trial).floor
        second = self._permanent_replicas(other).floor
        return first is not None and second is not None and np.array_equal(first, second)

    def _constant_fleet(self, trial: Trial, limit: float) -> IntArray | None:
        """Return the replicas ``[pools]`` of a policy that never changes them in a trial.

        Its replay then equals that of a static fleet. Such policies are static fleets, static
        fleets whose guard adds nothing on this day, and plans with constant counts in a single
        region. The last two only count up to a cost of ``limit`` dollars. None for all others.
        """
        tuned, objective = trial.tuned, self.study.settings.plan.objective
        if trial.case.sizing is None:
            return None
        if tuned.policy.name == STATIC:
            return self.static_fleet(tuned.static_level, tuned.spare)
        # Plans that reserve GPUs or lend have other costs than a static fleet.
        if objective.reserve or objective.lend_share is not None:
            return None
        kept = self._permanent_replicas(trial)
        if kept.usd > limit:
            return None
        if kept.guard is not None and self._guard_adds_nothing(trial.case, kept):
            return kept.floor
        # In several regions, a plan may route requests otherwise than a static fleet.
        if len(self.study.hardware.regions) > 1 or kept.schedule is None:
            return None
        first_counts: IntArray = kept.schedule[0]
        is_constant = (kept.schedule == first_counts).all()
        return first_counts if is_constant else None

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
        is_below_minimum = floor < [pool.minimum for pool in fleet.pools]
        # Slower or failed starts (``case.unexpected``) matter only to pools that start replicas.
        has_starts = floor > study.counts_by_pool(study.today)
        if is_below_minimum.any() or (case.unexpected is not None and has_starts.any()):
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
        cannot_apply = study.hardware.faults or study.network or study.settings.scale_in.lend
        targets = _targets(study, case)
        counts_by_place = by_place(study, counts[None])
        worst = worst_loss(study, counts_by_place)
        if case.lost:
            loss = losses_of(study)[worst]
            counts = study.counts_by_pool(loss.replicas_after_loss(counts_by_place))[0]
            cannot_apply = cannot_apply or loss.region is not None
        served = None if cannot_apply else served_by(study, counts, self.seed, self._known, targets)
        if served is None:
            return None
        if served.stopped_early:
            return CaseResult(missed_early=True)
        attainment = {
            tier.name: None if not due else (due - late) / due
            for tier, due, late in zip(
                study.hardware.tiers, served.due.tolist(), served.late.tolist(), strict=True
            )
        }
        usd = served.cost_usd * self._scale(study)
        return CaseResult(usd, attainment, shortfall(attainment, targets), worst)


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
