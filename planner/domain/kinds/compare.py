"""Forecast, plan, and simulate every policy on the same requests."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import polars as pl
from pydantic import Field

from forecasting.errors import ForecastError
from planner.domain.formats import figure
from planner.domain.module_figures import ModuleFigures
from planner.domain.options import PolicyKeyOrAll, RunOptions, Seed
from planner.domain.outcome import Inputs, Outcome
from planner.domain.parallel import parallel_replays
from planner.domain.pd.plan_ratios import StatedRatio, stated_ratios
from planner.domain.planning.figures import PlanFigures, window_figures
from planner.domain.planning.inputs import Load, PlannedWindow
from planner.domain.planning.period_solver import Periods, with_planned_starts
from planner.domain.planning.planning import forecast_load, plan_load
from planner.domain.preparation import planned_of, study_of, with_seed
from planner.domain.progress import Progress, part, silent
from planner.domain.recommend.alternatives import alternatives_of, level_of
from planner.domain.recommend.rule import Candidate, Choice
from planner.domain.recommend.search import choices as choices_of
from planner.domain.recommend.test_days import TestDays
from planner.domain.recommend.trials import STATIC, Trials, with_tuned_value
from planner.domain.replay.equal_attainment import with_flat_costs
from planner.domain.replay.module_report import module_figures
from planner.domain.replay.policy_context import SharedInputs
from planner.domain.replay.policy_selection import missing_baselines, policies_chosen
from planner.domain.replay.rated_signals import PressureTests
from planner.domain.replay.replay import ConstantFleets, ReplayOptions, run_policy
from planner.domain.replay.replica_loss import with_spare_replica
from planner.domain.results import tables
from planner.domain.results.answer import answer_of, schedule_tables, schedules_table
from planner.domain.results.assurance import (
    AssuranceFigures,
    TestDayFigures,
    day_figures,
    figures_of_choice,
)
from planner.domain.results.basis import (
    Forecasts,
    Frame,
    busier_window_warning,
    frame_of,
    short_history_warning,
    unused_traffic_warning,
)
from planner.domain.results.first_answer import FirstAnswer, Preview, days_so_far, first_answer
from planner.domain.results.plan_versus_replay import plan_and_replay
from planner.domain.results.ranking import ChoiceOfPolicy, PolicyComparison, compare
from planner.domain.run_parts import IN_PROCESS, Part, Parts
from planner.domain.serialise import MERGED, OPTIONAL
from planner.domain.study import PolicyRun, Study
from planner.domain.verification.profile_error import ProfileError, profile_errors
from planner.domain.whatif.plan_inputs import Basis, basis_of
from planner.errors import EXPECTED, Infeasible, ScenarioError
from planner.inputs.scenario.schema.test_days import LEVELS, Assurance
from planner.policies.base import Policy
from planner.policies.choice import ALL
from planner.policies.registry import plan_policy, traits_of
from simulation.errors import SimulationError


class Options(RunOptions):
    policies: tuple[PolicyKeyOrAll, ...] = Field((), title="Policies", min_length=1, max_length=100)
    """Policies to simulate, or all. Baselines are always included. Default: the scenario's."""
    seed: Seed | None = Field(None, title="Seed")
    """Seed of the simulation. Default: the scenario's."""
    assurance: Assurance | None = Field(None, title="Assurance")
    """Which test days a policy must pass. Default: the scenario's, else balanced."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class CompareResult:
    """The result of ``compare``."""

    kind: str = "compare"
    frame: Frame = field(metadata={MERGED: True})
    forecast: Forecasts
    plan: PlanFigures
    pd_ratios: tuple[StatedRatio, ...]
    profile_error: tuple[ProfileError, ...]
    comparison: PolicyComparison = field(metadata={MERGED: True})
    test_days: tuple[TestDayFigures, ...]
    assurance: dict[str, AssuranceFigures]
    alternatives: dict[str, str]  # levels of assurance and the static fleet: keys of ``policies``
    modules: tuple[ModuleFigures, ...] | None = field(metadata={OPTIONAL: True})
    seconds: float


def run(inputs: Inputs, options: Options, progress: Progress, parts: Parts = IN_PROCESS) -> Outcome:
    """Forecast and plan the window, simulate policies, and recommend one.

    The recommendation comes from simulations of the test days. The window itself is simulated only
    for the figures of the result. Raises Infeasible if no policy can run.
    """
    begun = time.perf_counter()
    inputs = with_seed(inputs, options.seed)
    scenario = inputs.scenario
    study = study_of(inputs, part(progress, 0.0, 0.06))
    level = LEVELS.index(options.assurance or scenario.assurance)
    chosen, left_out = policies_chosen(scenario, study, options.policies)
    baselines, unable = missing_baselines(scenario, study, chosen)
    policies = (*chosen, *baselines)

    # Plans of the window keep a spare replica if the level of assurance requires one.
    test_days = TestDays(study, scenario.test_days, scenario.seed)
    window_study = with_spare_replica(study) if test_days.spare_at(level) else study
    planned = planned_of(window_study, part(progress, 0.06, 0.08))
    preview = _LivePreview(parts, Preview(first_answer(window_study, planned)))
    progress(0.08, _first_answer_words(preview.preview.answer))

    trials = Trials(
        study, test_days, policies, scenario.seed, parts, part(progress, 0.08, 0.8),
        lambda days, tried: preview.show(test_days=days_so_far(days, tried)),
    )  # fmt: skip
    window_runs = _WindowRuns(
        window_study, study, planned, trials, PressureTests(window_study), level=level,
        spare=test_days.spare_at(level), chosen=frozenset(policy.key for policy in chosen),
        strict=list(options.policies) != [ALL], early=_early_policies(policies),
    )  # fmt: skip
    # Search the recommendations on the test days, while early policies are simulated.
    with window_runs.simulating_early(parts) as wait_for_early:
        found = _recommendations(trials, level, preview)
        outcomes, errors = window_runs.simulate_all(
            policies, found, wait_for_early, parts, part(progress, 0.8, 0.94)
        )
    parts.close()

    runs = [outcome for outcome in outcomes if isinstance(outcome, PolicyRun)]
    left_out += unable + [outcome for outcome in outcomes if isinstance(outcome, str)]
    if not runs:
        raise Infeasible(" ".join(left_out))
    runs = with_flat_costs(
        window_study, runs, seed=scenario.seed, progress=part(progress, 0.94, 0.97)
    )
    progress(0.97, "Comparing policies")
    comparison = _comparison_of(
        window_study, runs, scenario.objective.baseline, left_out,
        None if found.choice is None else ChoiceOfPolicy(found.choice, trials.days, level),
    )  # fmt: skip
    shown = plan_to_show(planned, comparison)
    if shown is not planned:
        periods = Periods.of(window_study.plan_input, planned.load)
        shown = replace(shown, plan=with_planned_starts(periods, shown.plan))
    result = CompareResult(
        frame=frame_of(window_study),
        forecast=Forecasts(shown.forecasts, shown.quantiles),
        plan=window_figures(window_study.plan_input, shown),
        pd_ratios=stated_ratios(window_study, shown.plan.target),
        profile_error=errors,
        comparison=comparison,
        test_days=day_figures(trials.days, found.tested(trials), level),
        assurance=preview.preview.assurance,
        alternatives={
            name: key for name, key in found.alternatives.items() if key in comparison.baselines
        },
        modules=module_figures(runs),
        seconds=time.perf_counter() - begun,
    )
    return Outcome(
        result,
        tables.planned_tables(window_study, shown)
        | tables.replayed_tables(comparison)
        | _schedules(window_study, comparison),
        _whatif_basis(window_study, planned, comparison),
    )


@dataclass(eq=False)
class _LivePreview:
    """What a user sees of a comparison until it is finished; shown again after each change."""

    parts: Parts
    preview: Preview

    def __post_init__(self) -> None:
        self.parts.show(self.preview)

    def show(self, **new: Any) -> None:
        """Show the preview with ``new`` values of its fields."""
        self.preview = replace(self.preview, **new)
        self.parts.show(self.preview)


@dataclass(frozen=True, slots=True, eq=False)
class _Recommendations:
    """The recommendations of all levels of assurance.

    ``choice`` is that of the run's level, None without one, and ``candidates`` are those that it
    was chosen from. ``alternatives`` maps each level, and "static", to the key of the run that
    simulates its plan. ``others`` are the candidates of those runs that simulate the plan of
    another level.
    """

    choice: Choice | None
    candidates: Sequence[Candidate]
    alternatives: Mapping[str, str]
    others: Mapping[str, Candidate]

    def tested(self, trials: Trials) -> list[Candidate]:
        """Return all candidates with all their results.

        Days that only a higher level requires were simulated after the candidates were listed.
        """
        return [
            *(trials.with_results(row) for row in self.candidates),
            *(replace(trials.with_results(row), policy=key) for key, row in self.others.items()),
        ]


def _recommendations(trials: Trials, level: int, preview: _LivePreview) -> _Recommendations:
    """Search the recommendation of each level on the test days; show each once it is known.

    ``level`` is the level of the run, as an index of LEVELS.
    """
    choices: dict[str, tuple[Choice, list[Candidate]]] = {}
    for name, (choice_of_level, candidates_of_level) in choices_of(trials, level):
        choices[name] = choice_of_level, candidates_of_level
        figures = figures_of_choice(choice_of_level, trials.days)
        preview.show(assurance=preview.preview.assurance | {name: figures})
    choice, candidates = choices.get(LEVELS[level], (None, []))
    alternatives, others = alternatives_of(choices, LEVELS[level], trials.plan_key)
    return _Recommendations(choice, candidates, alternatives, others)


def _comparison_of(
    study: Study,
    runs: Sequence[PolicyRun],
    baseline: str | None,
    left_out: Sequence[str],
    recommended: ChoiceOfPolicy | None,
) -> PolicyComparison:
    """Return the comparison of ``runs``, with the answer for the recommended policy, if any.

    ``baseline`` is the key of the policy that savings refer to; None: the default. ``left_out`` are
    sentences on policies without a run.
    """
    notes = [
        *unused_traffic_warning(study.window, study.traffic),
        *short_history_warning(study.window, study.traffic),
        *busier_window_warning(study.window, study.traffic),
        *plan_and_replay(runs),
        *left_out,
    ]
    comparison = compare(runs, baseline, notes, recommended)
    if comparison.recommended is None:
        return comparison
    best = comparison.run(comparison.recommended.policy)
    return comparison.with_answer(answer_of(study, best, comparison.run(comparison.baseline)))


def _early_policies(policies: Sequence[Policy]) -> tuple[Policy, ...]:
    """Return the policies whose simulation of the window does not depend on the test days."""
    early = [
        policy
        for policy in policies
        if policy.traits.uses_future_data or (policy.traits.flat and policy.name != STATIC)
    ]
    # The search of an oracle takes longest, so it begins first.
    return tuple(sorted(early, key=lambda policy: not policy.traits.reads_future))


Outcomes = dict[str, PolicyRun | str]  # by key: the run, or a sentence on why it is left out


@dataclass(frozen=True, slots=True, eq=False)
class _WindowRuns:
    """Simulates policies on the window, with the inputs that they share.

    Early policies are those whose simulation does not depend on the test days. They run while the
    test days are simulated.
    """

    study: Study  # its plans keep a spare replica if ``spare``
    without_spare: Study
    planned: PlannedWindow
    trials: Trials
    tests: PressureTests
    level: int  # of assurance, index in LEVELS
    spare: bool
    chosen: frozenset[str]  # keys of the policies that the user chose; others are baselines
    strict: bool  # an error in a chosen policy ends the run; else the policy is left out
    early: tuple[Policy, ...]
    candidates: Mapping[str, Candidate] = field(default_factory=dict)  # tuned, by policy
    # Keys of recommended policies, for which the loss of a replica is simulated.
    alternatives: frozenset[str] = frozenset()
    constant: ConstantFleets = field(default_factory=ConstantFleets)

    @contextmanager
    def simulating_early(self, parts: Parts) -> Iterator[Callable[[Progress], Outcomes]]:
        """Begin to simulate the early policies; yield a function that waits for their outcomes.

        The function takes the progress to report to. Outcomes are by key of the policy.
        """
        steps = [
            Part(f"Simulate: {policy.title}", partial(self.simulate, policy))
            for policy in self.early
        ]
        with parts.ahead(steps, shared=self._shared_objects, at_once=self._at_once) as results:

            def outcomes(progress: Progress) -> Outcomes:
                """Wait for the outcomes of the early policies, and return them."""
                keys = [policy.key for policy in self.early]
                return dict(zip(keys, results(progress), strict=True))

            yield outcomes

    def simulate_all(
        self,
        policies: Sequence[Policy],
        found: _Recommendations,
        wait_for_early: Callable[[Progress], Outcomes],
        parts: Parts,
        progress: Progress,
    ) -> tuple[list[PolicyRun | str], tuple[ProfileError, ...]]:
        """Return (outcomes, profile errors) of the window.

        Outcomes are those of ``policies``, tuned as ``found``, and then of the policies that other
        levels of assurance recommend. ``wait_for_early`` returns those of the early policies, which
        are not simulated again. The profile errors come with their effect on a plan of the load
        that the recommended policy plans for.
        """
        tuned = replace(
            self,
            candidates={candidate.policy: candidate for candidate in found.candidates},
            alternatives=frozenset(found.alternatives.values()),
        )
        by_key = {policy.key: policy for policy in policies}
        steps: dict[str, Callable[[Progress], Any]] = {
            key: partial(tuned.simulate, policy)
            for key, policy in by_key.items()
            if policy not in self.early
        }
        steps |= {
            key: partial(self.simulate_other_level, key, by_key[candidate.policy], candidate)
            for key, candidate in found.others.items()
        }
        load = _planned_load(self.planned, found.choice)
        *runs, errors = parts.map(
            [
                *(Part(f"Simulate: {traits_of(key).label}", step) for key, step in steps.items()),
                Part("Plan with the profile error", partial(self._profile_errors, load)),
            ],
            part(progress, 0.0, 0.7),
            shared=self._shared_objects,
            at_once=self._at_once,
        )
        outcomes = dict(zip(steps, runs, strict=True)) | wait_for_early(part(progress, 0.7, 1.0))
        return [outcomes[key] for key in (*by_key, *found.others)], errors

    @property
    def _shared_objects(self) -> tuple[Any, ...]:
        """Return the large objects that every process has already, so they need not be sent."""
        hardware = self.study.hardware
        return *hardware.profiles.values(), *hardware.gpus

    @property
    def _at_once(self) -> int:
        """Return how many policies may be simulated at the same time."""
        return parallel_replays(len(self.study.trace))

    def _profile_errors(self, load: Load, progress: Progress) -> tuple[ProfileError, ...]:
        """Return the errors of the profiles, with their effect on a plan of ``load``."""
        try:
            plan = plan_load(self.study.plan_input, load, part(progress, 0.0, 0.3))
        except Infeasible:  # for this load; the recommended policy follows it as far as GPUs allow
            load, plan = self.planned.load, self.planned.plan
        return profile_errors(self.study, load, plan, part(progress, 0.3, 1.0))

    def simulate(self, policy: Policy, progress: Progress) -> PolicyRun | str:
        """Return the simulation of a policy, or a sentence on why it is left out.

        Raises the error of a policy that the user chose, if ``strict``, unless it is Infeasible.
        """
        is_chosen, tuned = policy.key in self.chosen, self.candidates.get(policy.key)
        fleet_level = self.level
        if policy.name == STATIC and tuned is not None and tuned.value is not None:
            # The tuned value of a static fleet is the level of assurance that it is sized for.
            fleet_level = int(tuned.value)
        static = partial(self.trials.static_fleet, fleet_level, self.spare)
        lose_replica = policy.key in self.alternatives or policy.traits.flat
        if tuned is not None:
            policy = with_tuned_value(policy, tuned.value)
        try:
            run = run_policy(
                self.study, policy, seed=self.study.settings.seed, progress=progress,
                shared=SharedInputs(self.planned, self.tests, static),
                options=ReplayOptions(spare=lose_replica, constant=self.constant),
            )  # fmt: skip
        except Infeasible as problem:  # of a baseline: the plan itself was made before
            return f"{policy.title} is left out: {problem}"
        except (ScenarioError, SimulationError, ForecastError) as problem:
            if is_chosen and self.strict:
                raise
            return f"{policy.title} is left out: {problem}"
        return replace(run, asked=is_chosen)

    def simulate_other_level(
        self, key: str, policy: Policy, candidate: Candidate, progress: Progress
    ) -> PolicyRun | str:
        """Return the simulation of a policy that another level of assurance recommends.

        ``candidate`` is the policy as tuned at that level, and ``key`` is the key of the run in the
        result. If it cannot be simulated, return a sentence on why it is left out.
        """
        study = with_spare_replica(self.without_spare) if candidate.spare else self.without_spare
        # The tuned value of a static fleet is the level of assurance that it is sized for.
        fleet_level = 0 if candidate.value is None else int(candidate.value)
        static = partial(self.trials.static_fleet, fleet_level, candidate.spare)
        try:
            run = run_policy(
                study, with_tuned_value(policy, candidate.value), seed=study.settings.seed,
                progress=progress, shared=SharedInputs(tests=self.tests, static=static),
                options=ReplayOptions(spare=True, constant=self.constant),
            )  # fmt: skip
        except EXPECTED as problem:
            return f"{key} is left out: {problem}"
        return replace(run, name=key, label=f"{run.label} ({level_of(key)} plan)", asked=False)


def _planned_load(planned_window: PlannedWindow, choice: Choice | None) -> Load:
    """Return the load that the recommended policy plans for: the forecast times its load factor.

    The factor is 1 without a recommendation, and for a policy without a plan or with its own
    forecast method.
    """
    if choice is None:
        return planned_window.load
    plan_traits = traits_of(choice.candidate.policy).plan
    if plan_traits is None or plan_traits.method is not None:
        return planned_window.load
    return planned_window.load.scaled(choice.candidate.parameters.get("load_factor", 1.0))


def _first_answer_words(answer: FirstAnswer) -> str:
    """Return the replicas and the cost of the plan before any simulation, in words."""
    fewest = sum(pool.fewest for pool in answer.pools)
    most = sum(pool.most for pool in answer.pools)
    replicas = f"{fewest:,} to {most:,}" if fewest != most else f"{most:,}"
    return f"First answer, not simulated: {replicas} replicas, {figure(answer.cost_usd, '$')}"


def _schedules(study: Study, comparison: PolicyComparison) -> dict[str, pl.DataFrame]:
    """Return the tables "timetable" (recommended, for people) and "timetables" (all, for export).

    A table without rows is left out.
    """
    recommended, all_schedules = comparison.recommended, schedules_table(study, comparison.runs)
    timetables = {} if all_schedules.is_empty() else {"timetables": all_schedules}
    return schedule_tables(None if recommended is None else recommended.timetable) | timetables


def plan_to_show(planned_window: PlannedWindow, comparison: PolicyComparison) -> PlannedWindow:
    """Return ``planned_window`` with the plan that a simulated policy followed, if one did."""
    run = _run_with_plan_to_show(comparison)
    if run is None or run.plan is None or run.traits.plan is None:
        return planned_window
    # A policy with its own forecast method plans for the mean, so it has no load factor.
    load_factor = _load_factor(run) if run.traits.plan.method is None else 1.0
    quantiles = tuple(replace(row, load_factor=load_factor) for row in planned_window.quantiles)
    return replace(planned_window, plan=run.plan, quantiles=quantiles)


def _run_with_plan_to_show(comparison: PolicyComparison) -> PolicyRun | None:
    """Return the run whose plan the result shows; None if there is none.

    It is that of the recommended policy, or else of ``plan_policy``. A plan is shown only if it
    solves periods as the scenario says, because the figures of others differ.
    """
    # Names with a level of assurance are further runs of the same policies.
    ranking = (name for name in comparison.ranking if not level_of(name))
    names = [plan_policy(ranking)]
    if comparison.recommended is not None:
        names.insert(0, comparison.recommended.policy)
    for name in filter(None, names):
        run = comparison.run(name)
        if run.plan is not None and run.traits.plan and run.traits.plan.periods is None:
            return run
    return None


def _load_factor(run: PolicyRun) -> float:
    """Return the factor on the forecast that the policy of ``run`` planned for; 1 without one."""
    factors = [float(setting.value) for setting in run.settings if setting.what == "load_factor"]
    return factors[0] if factors else 1.0


def _whatif_basis(
    study: Study, scenario_plan: PlannedWindow, comparison: PolicyComparison
) -> Basis:
    """Return the inputs from which what-ifs of the shown plan start.

    ``scenario_plan`` is the plan on the scenario's own forecast.
    """
    run, planned = _run_with_plan_to_show(comparison), scenario_plan
    load_factor = 1.0 if run is None else _load_factor(run)
    if run is not None and run.traits.plan is not None and run.traits.plan.method is not None:
        # The shown policy plans with its own forecast method.
        forecast = forecast_load(study.plan_input, silent, method=run.traits.plan.method)
        planned = PlannedWindow(planned.plan, forecast.forecasts, forecast.load)
    recommended = comparison.recommended
    static_fleet = None  # replicas [model, region, GPU column], if the recommended policy is static
    if recommended is not None:
        recommended_run = comparison.run(recommended.policy)
        if recommended_run.traits.flat:
            static_fleet = np.zeros(study.hardware.minimum.shape, np.int64)
            # The first pools of a fleet are those of the hardware, in the same order.
            pools = zip(study.hardware.model_region_gpu, recommended_run.fleet.pools, strict=False)
            for model_region_gpu, pool in pools:
                static_fleet[model_region_gpu] = pool.initial
    return basis_of(study, planned, load_factor, static_fleet)
