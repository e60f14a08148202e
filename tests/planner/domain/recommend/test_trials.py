"""Trials: the value that is found is the cheapest that passes, as trying every value shows."""

import itertools
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from planner.domain.outcome import Inputs
from planner.domain.preparation import study_of
from planner.domain.progress import silent
from planner.domain.recommend.rule import Candidate
from planner.domain.recommend.search import choices as choices_of
from planner.domain.recommend.test_days import TestDays
from planner.domain.recommend.trials import Trial, Trials, values, with_tuned_value
from planner.domain.replay.policy_context import SharedInputs
from planner.domain.replay.replay import BRIEF, ReplayOptions, run_policy
from planner.domain.replay.replica_loss import with_spare_replica
from planner.domain.replay.static_search import costs_more_than, smallest_flat
from planner.domain.run_parts import IN_PROCESS
from planner.domain.study import Study
from planner.domain.traffic.changes import busier, longer_outputs
from planner.inputs.scenario.schema import Scenario
from planner.policies.choice import policy_of
from simulation.arrays import FloatArray
from simulation.bisection import bisect_first
from tests.planner.domain import builders as make

DAYS = [
    {"kind": "past", "windows": 2},
    {"kind": "drawn", "paths": 3, "pass_share": 0.6},
    {"kind": "replica_lost"},
    {"kind": "more_demand"},
    {"kind": "crowd", "times": 2},
    {"kind": "longer_outputs"},
    {"kind": "region_lost"},
    {"kind": "slow_start"},
    {"kind": "slower_profile"},
]
HOURS = np.arange(4 * 96) / 4  # of four days
POLICIES = ["lt-i", "lt-g", "flat-before", "flat-g", "today"]


def study_of_counts(
    folder: Path, counts: FloatArray, test_days: list[object], **fleet: object
) -> tuple[Scenario, Study]:
    """Return a scenario and study of long answers, by requests per quarter of an hour."""
    stored = make.demand_file(folder, {"chat": np.rint(counts).tolist()}, bin_s=900.0)
    lengths = {
        "input_tokens": {"mean": 300, "cv": 0.5}, "output_tokens": {"mean": 3000, "cv": 0.5},
        "series": "chat",
    }  # fmt: skip
    scenario = make.scenario(
        traffic__sources=[make.source(**lengths)],
        horizon={"duration_s": 10_800, "period_s": 1800},
        policies=["lt-i"],
        test_days=test_days,
        fleet={"startup_s": 60, **fleet},
    )
    return scenario, study_of(Inputs(scenario, {"t": stored}), silent)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Scenario, Study]:
    """Four days of a daily cycle, of which the last three hours are planned."""
    counts = 1800 * (1 + 0.6 * np.sin(2 * np.pi * (HOURS - 15) / 24))
    today = [{"model": "m", "region": "east", "gpu": "G", "replicas": 3}]
    return study_of_counts(tmp_path_factory.mktemp("trials"), counts, DAYS, today=today)


def trials_of(scenario: Scenario, study: Study, policies: list[str]) -> Trials:
    test_days = TestDays(study, scenario.test_days, 1)
    return Trials(study, test_days, [policy_of(name) for name in policies], 1, IN_PROCESS)


@pytest.fixture(scope="module")
def trials(small: tuple[Scenario, Study]) -> Trials:
    scenario, study = small
    return trials_of(scenario, study, POLICIES)


@pytest.fixture(scope="module")
def choices(trials: Trials) -> dict[str, tuple[Candidate, list[Candidate]]]:
    made = dict(choices_of(trials))
    return {level: (choice.candidate, every) for level, (choice, every) in made.items()}


def passing(trials: Trials, policy: str, index: int, level: int) -> bool:
    """Simulate every required case to its end."""
    its = policy_of(policy)
    for day in trials.days:
        if not day.required_at(level):
            continue
        tuned = trials.tuned(its, index, level)
        every = [Trial(tuned, case) for case in day.cases if case.required]
        trials.simulate_all(every, silent, whole=True)
        if not all(trials.results[trial].passes for trial in every):
            return False
    return True


def same_schedules(trials: Trials, candidate: Candidate, index: int, level: int) -> bool:
    """Whether a value plans as the candidate does on every required day: the safest is taken."""
    its = policy_of(candidate.policy)
    chosen = values(its, level).index(candidate.value)
    cases = [case for day in trials.days if day.required_at(level) for case in day.cases]
    tuned = [trials.tuned(its, i, level) for i in (chosen, index)]
    return all(
        trials.have_same_schedule(*(Trial(value, case) for value in tuned)) for case in cases
    )


@pytest.mark.parametrize("level", [0, 1])
def test_the_value_found_passes_and_the_cheaper_one_fails(
    trials: Trials, choices: dict[str, tuple[Candidate, list[Candidate]]], level: int
) -> None:
    _, candidates = choices[["economy", "balanced"][level]]
    tried = [
        c for c in candidates if c.policy in ("lt-i", "lt-g") and c.qualifies(trials.days, level)
    ]
    assert tried or any(c.qualifies(trials.days, level) for c in candidates)
    for candidate in tried:
        index = values(policy_of(candidate.policy), level).index(candidate.value)
        assert passing(trials, candidate.policy, index, level)
        cheaper = [i for i in range(index) if not same_schedules(trials, candidate, i, level)]
        if cheaper:
            assert not passing(trials, candidate.policy, cheaper[-1], level)


def test_a_safer_level_costs_no_less(
    trials: Trials, choices: dict[str, tuple[Candidate, list[Candidate]]]
) -> None:
    costs = [
        choices[level][0].expected_cost_usd(trials.days)
        for i, level in enumerate(("economy", "balanced", "safe"))
        if choices[level][0].qualifies(trials.days, i)
    ]
    assert len(costs) >= 2 and all(a <= b * 1.01 for a, b in itertools.pairwise(costs))


def test_at_balanced_any_one_replica_may_be_lost(
    trials: Trials, choices: dict[str, tuple[Candidate, list[Candidate]]]
) -> None:
    """The candidate meets its SLO on the forecast day with one replica fewer in the only pool."""
    candidate, _ = choices["balanced"]
    lost = next(i for i, day in enumerate(trials.days) if day.kind == "replica_lost")
    (result,) = candidate.results[lost]
    policy = with_tuned_value(policy_of(candidate.policy), candidate.value)
    run = run_policy(
        with_spare_replica(trials.forecast_day.study()), policy, seed=1, progress=silent,
        shared=SharedInputs(static=lambda: trials.static_fleet(1, True)),
        options=ReplayOptions(detailed=False, spare=True),
    )  # fmt: skip
    assert candidate.spare and result.passes and run.n_plus_1
    assert result.attainment == pytest.approx(run.survival.attainment)


def test_a_plan_without_its_spare_replica_is_the_plan_that_keeps_none(trials: Trials) -> None:
    """A schedule with one replica fewer has the figures of the same plan without N+1."""
    (case,) = next(day.cases for day in trials.days if day.kind == "replica_lost")
    for index in (3, 6, 9):
        spare, plain = (trials.tuned(policy_of("lt-i"), index, level) for level in (1, 0))
        lost = trials.simulate(Trial(spare, case), silent, whole=True)
        whole = trials.simulate(Trial(plain, trials.forecast_day), silent, whole=True)
        assert (spare.spare, plain.spare) == (True, False)
        assert lost.attainment == whole.attainment
        assert lost.cost_usd == pytest.approx(whole.cost_usd)


def test_the_smallest_static_fleet_keeps_no_spare_and_one_more_replica_does(
    trials: Trials,
) -> None:
    (case,) = next(day.cases for day in trials.days if day.kind == "replica_lost")
    study = case.study()
    smallest = smallest_flat(study, seed=1)
    survived = [
        run_policy(
            study, policy_of("flat-before"), seed=1, progress=silent,
            shared=SharedInputs(static=lambda more=more: smallest + more),
            options=ReplayOptions(detailed=False, spare=True),
        ).n_plus_1
        for more in range(4)
    ]  # fmt: skip
    assert survived == [False, True, True, True]


def test_the_static_fleet_is_the_smallest_that_passes(
    trials: Trials,
    choices: dict[str, tuple[Candidate, list[Candidate]]],
    small: tuple[Scenario, Study],
) -> None:
    """One replica fewer in the only pool misses a required day."""
    fleet = trials.static_fleet(0, False)
    assert fleet.sum() > 1
    runs = [
        run_policy(
            case.study(), policy_of("flat-before"), seed=1, progress=silent,
            shared=SharedInputs(static=lambda: fleet - 1), options=BRIEF,
        )
        for day in trials.days
        if day.required_at(0)
        for case in day.cases
        if case.required
    ]  # fmt: skip
    assert not all(run.meets_slo for run in runs)


def test_static_fleets_cost_more_than_all_below_the_smallest(trials: Trials) -> None:
    study = trials.study
    (pool,) = study.fleet(study.counts_by_pool(study.peak)).pools
    usd = pool.usd_per_gpu_hour * pool.gpus_per_instance * study.window.duration_s / 3600
    least = int(smallest_flat(study, seed=1).sum())
    assert least > 1
    for count in range(1, least + 2):
        assert costs_more_than((count + 0.5) * usd, [study], 1, {}) == (count < least)


@pytest.mark.parametrize("shown", [0, 1, 2])
def test_omitted_static_fleets_change_no_choice(
    trials: Trials, choices: dict[str, tuple[Candidate, list[Candidate]]], shown: int
) -> None:
    made = dict(choices_of(trials, shown))
    assert {level: choice.candidate.policy for level, (choice, _) in made.items()} == {
        level: candidate.policy for level, (candidate, _) in choices.items()
    }


@pytest.mark.parametrize("name", ["lt-i", "flat-g"])
@pytest.mark.parametrize("seed", [0, 3])
def test_no_plan_that_passes_is_cheaper_than_the_recommended_policy(
    tmp_path: Path, seed: int, name: str
) -> None:
    """Quiet days before busy ones: a plan is cheaper over the days, if not on the forecast day."""
    noise = 1 + 0.3 * np.random.default_rng(seed).uniform(-1, 1, len(HOURS))
    days: list[object] = [
        {"kind": "past", "windows": 3, "weight": 1},
        {"kind": "drawn", "paths": 5, "pass_share": 0.6, "weight": 3},
    ]
    scenario, study = study_of_counts(tmp_path, np.where(HOURS < 48, 500, 2000) * noise, days)
    trials, plan = trials_of(scenario, study, ["flat-before", name]), policy_of(name)
    choice, _ = dict(choices_of(trials, 0))["economy"]
    assert choice.qualifies
    for index in range(len(values(plan, 0))):
        tuned = trials.tuned(plan, index, 0)
        trials.simulate_days(tuned, trials.days, silent)
        candidate = trials.candidate(tuned)
        if candidate.qualifies(trials.days, 0):
            cheapest = candidate.expected_cost_usd(trials.days)
            assert choice.candidate.expected_cost_usd(trials.days) <= cheapest * 1.01 + 0.01
            return
    raise AssertionError("no plan passes")


def test_the_replay_that_sized_a_static_fleet_gives_its_figures(
    trials: Trials, choices: dict[str, tuple[Candidate, list[Candidate]]]
) -> None:
    """Cost, attainment and N+1 equal those of a replay of the policy."""
    fleet, policy = trials.static_fleet(1, True), policy_of("flat-before")
    for case in trials.cases:
        if case.sizing is None or case.unexpected is not None:
            continue
        result = trials.simulate(Trial(trials.tuned(policy, 0, 1), case), silent)
        run = run_policy(
            case.study(), policy, seed=1, progress=silent,
            shared=SharedInputs(static=lambda: fleet),
            options=ReplayOptions(detailed=False, spare=True),
        )  # fmt: skip
        times = trials.study.window.duration_s / case.study().window.duration_s
        if case.lost:
            assert result.passes == run.n_plus_1
            assert result.missed_early or result.attainment == pytest.approx(
                run.survival.attainment
            )
            continue
        assert result.passes == run.meets_slo
        if result.missed_early:
            continue
        assert result.cost_usd == pytest.approx(run.summary.cost_usd * times)
        assert result.attainment == pytest.approx(run.summary.slo_attainment)


@pytest.mark.parametrize("name", ["lt-i", "flat-g"])
def test_results_that_trials_share_equal_their_own_replays(trials: Trials, name: str) -> None:
    """A constant plan has the figures of the static fleet, and equal floors those of each other."""
    policy, constant, floors = policy_of(name), 0, set()
    for case, index, level in itertools.product(trials.cases[:3], (0, 1, 19), (0, 1)):
        tuned = trials.tuned(policy, index, level)
        trial = Trial(tuned, case)
        result = trials.simulate(trial, silent, whole=True)
        trials.results[trial] = result
        study = with_spare_replica(case.study()) if tuned.spare else case.study()
        run = run_policy(
            study, with_tuned_value(policy, tuned.value), seed=1, progress=silent, options=BRIEF,
            shared=SharedInputs(static=partial(trials.static_fleet, 0, tuned.spare)),
        )  # fmt: skip
        times = trials.study.window.duration_s / study.window.duration_s
        assert result.cost_usd == pytest.approx(run.summary.cost_usd * times)
        assert result.attainment == pytest.approx(run.summary.slo_attainment)
        constant += np.ptp(run.series.ready, axis=1).max() == 0
        floors.add((case, run.fleet.pools[0].initial))
    assert constant if name == "lt-i" else len(floors) < 18


def test_without_a_floor_only_values_that_can_win_are_tried_on_other_days(
    small: tuple[Scenario, Study],
) -> None:
    """LT-U may run fewer replicas than its plan, so the forecast day alone tells its cost."""
    scenario, study = small
    trials = trials_of(scenario, study, ["flat-g", "lt-u"])
    made = dict(choices_of(trials))
    most = max(trials.on_forecast_day(choice.candidate) for choice, _ in made.values())
    others = [trial for trial in trials.results if trial.tuned.policy.key == "lt-u"]
    others = [trial for trial in others if trial.case is not trials.forecast_day]
    forecast_days = [Trial(trial.tuned, trials.forecast_day) for trial in others]
    costs = [trials.results[day].cost_usd for day in forecast_days if day in trials.results]
    assert costs and max(costs) <= 1.02 * most


def test_a_replay_ends_when_the_policy_costs_too_much(trials: Trials) -> None:
    """The limit is a cost of the planned window, on days of any length."""
    policy = policy_of("lt-i")
    cases = {case.study().window.duration_s: case for case in trials.cases}
    for case in (trials.forecast_day, *cases.values()):
        trial = Trial(trials.tuned(policy, 5, 0), case)
        whole = trials.simulate(trial, silent, whole=True)
        for share, stops in ((0.5, True), (1.1, False)):
            result = trials.simulate(trial, silent, whole=True, limit=share * whole.cost_usd)
            assert bool(result.stopped_at_usd) == stops and (stops or result == whole)


def test_days_that_cannot_apply_say_why(trials: Trials) -> None:
    reasons = {day.kind: day.reason for day in trials.days}
    assert reasons["region_lost"] and not reasons["crowd"]
    assert all(bool(day.reason) != bool(day.cases) for day in trials.days)


def test_nothing_of_the_window_is_in_a_test_day(
    trials: Trials, small: tuple[Scenario, Study]
) -> None:
    """Past days end before the first decision, and drawn days differ from the traffic to come."""
    _, study = small
    for past in trials.test_days.past:
        assert past.window.end_s <= study.window.origins_s[0]
    actual = study.trace.arrival_s
    for day in trials.days:
        for case in day.cases:
            made = case.study()
            if made.window == study.window:
                assert not np.array_equal(made.trace.arrival_s, actual)


@pytest.mark.parametrize(
    ("change", "times"),
    [
        (lambda study: busier(study.trace, 2.5, study.window.start_s, study.window.end_s,
                              study.window, 1), 2.5),
        (lambda study: busier(study.trace, 3.0, study.window.start_s + 3600,
                              study.window.start_s + 7200, study.window, 1), None),
    ],
)  # fmt: skip
def test_more_demand_multiplies_the_requests(
    small: tuple[Scenario, Study], change: Callable[[Study], object], times: float | None
) -> None:
    _, study = small
    more = change(study)
    if times is not None:
        assert len(more) == pytest.approx(times * len(study.trace), rel=0.02)
        return
    inside = lambda trace: ((trace.arrival_s >= 3600) & (trace.arrival_s < 7200)).sum()  # noqa: E731
    outside = len(study.trace) - inside(study.trace)
    assert inside(more) == pytest.approx(3 * inside(study.trace), rel=0.02)
    assert len(more) - inside(more) == pytest.approx(outside, rel=0.02)


def test_longer_outputs_change_the_second_half_alone(small: tuple[Scenario, Study]) -> None:
    _, study = small
    half = study.window.duration_s / 2
    longer = longer_outputs(study.trace, 2.0, half)
    late = study.trace.arrival_s >= half
    assert np.array_equal(longer.output_tokens[~late], study.trace.output_tokens[~late])
    assert np.array_equal(longer.output_tokens[late], 2 * study.trace.output_tokens[late])


def test_a_spare_of_the_scenario_is_kept(small: tuple[Scenario, Study]) -> None:
    _, study = small
    once = with_spare_replica(study)
    assert once.settings.plan.spare.instances == 1 and with_spare_replica(once) is once


@pytest.mark.parametrize("first", range(8))
@pytest.mark.parametrize("start", [None, *range(7)])
def test_bisection_finds_the_first_that_passes(first: int, start: int | None) -> None:
    assert bisect_first(lambda index: index >= first, 0, 7, start) == min(first, 7)
