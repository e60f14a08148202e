"""Policies on the same requests: what each fleet is, and what none may do."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from planner.domain.planning.figures import plan_figures
from planner.domain.planning.inputs import ForecastLoad, PlanInput
from planner.domain.planning.planning import forecast_load, plan_window
from planner.domain.progress import Progress, silent
from planner.domain.replay import policy_context
from planner.domain.replay.policy_context import SharedInputs
from planner.domain.replay.replay import (
    BRIEF,
    ReplayOptions,
    build_policy,
    min_cost_usd,
    run_policy,
)
from planner.domain.replay.static_search import meets_goals, smallest_flat
from planner.domain.study import PolicyRun, Study
from planner.errors import ScenarioError
from planner.policies.choice import policy_of
from planner.policies.context import Plan
from simulation.early_stop import TargetMissed
from simulation.engine.run import simulate
from simulation.fleet import Fleet
from simulation.metrics import summarise
from simulation.policies.parts.schedule import FixedSchedule
from simulation.policies.schedule_follower import ScheduleFollower
from simulation.policies.static import Static
from simulation.policies.wrappers.capacity_limit import CapacityLimit
from simulation.policies.wrappers.cost_limit import CostLimitExceeded
from tests.planner.domain import builders as make

MODELS = [
    {"name": n, "weight_gb": 16, "kv_bytes_per_token": 131072, "max_context": 8192}
    for n in ("a", "b")
]
SPEED = {"gpu": "G", "alpha_ms": 12, "beta_ms": 0.3, "gamma_ms": 12, "delta_ms": 0.06}
PROFILES = [{"model": n, **SPEED} for n in ("a", "b")]
LENGTHS = {"input_tokens": {"mean": 800}, "output_tokens": {"mean": 40}}


def study(folder: Path, **changes: Any) -> Study:
    """Two models, two regions, twenty minutes replayed; ``b`` grows as ``a`` shrinks."""
    up = np.linspace(300, 2700, 40).round()
    series = {"a": up[::-1].tolist(), "b": up.tolist()}
    sources = [
        make.source(series=n, model=n, regions={"east": 0.6, "west": 0.4}, **LENGTHS)
        for n in ("a", "b")
    ]
    east = {**make.WEST, "name": "east"}
    fields: dict[str, Any] = {
        "models": MODELS, "profiles": PROFILES, "regions": [east, make.WEST],
        "traffic": {"sources": sources}, "horizon": {"period_s": 300, "lead_s": 120},
    }  # fmt: skip
    scenario = make.scenario(**(fields | changes))
    stored = make.demand_file(folder, series)
    return make.study(scenario, stored)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return study(tmp_path_factory.mktemp("study"))


@pytest.mark.parametrize("name", ["flat-peak", "flat-min"])
def test_a_flat_fleet_is_as_large_as_what_it_is_charged_for(shared: Study, name: str) -> None:
    """All the time; before it for the starts of what does not run today, and after it for what has
    work left."""
    run = run_policy(shared, policy_of(name), seed=1, progress=silent)
    pools = run.fleet.pools
    hours = sum(pool.initial for pool in pools) * shared.window.duration_s / 3600
    started = sum(max(0, pool.initial - pool.today) for pool in pools)
    summary = run.summary
    assert sum(summary.starts.values()) == started
    assert summary.before_gpu_hours == pytest.approx(started * pools[0].startup_s / 3600)
    hours += summary.before_gpu_hours + summary.after_gpu_hours
    assert summary.instance_hours == pytest.approx(hours, rel=1e-6)
    assert 0 < summary.after_gpu_hours < 0.01 * summary.gpu_hours


def test_a_limit_that_no_fleet_meets_does_not_take_every_gpu(tmp_path: Path) -> None:
    """An idle replica keeps the limit for hardly 95% of prompts, and every wait costs some more."""
    up = np.linspace(300, 2700, 40).round().tolist()
    lengths = {"input_tokens": {"mean": 800, "cv": 1.0}, "output_tokens": {"mean": 40}}
    scenario = make.scenario(
        models=MODELS[:1], profiles=PROFILES[:1],
        regions=[{**make.WEST, "name": "east", "capacity": {"G": 100}}],
        horizon={"period_s": 300, "lead_s": 120},
        traffic={"sources": [make.source(series="a", model="a", **lengths)]},
        tiers=[{"name": "chat", "ttft_ms": 156.2, "percentile": 95}],
    )  # fmt: skip
    limited = make.study(scenario, make.demand_file(tmp_path, {"a": up}))
    counts = smallest_flat(limited, seed=1)
    most = np.array([pool.maximum for pool in limited.fleet(counts).pools])
    assert not meets_goals(limited, most, {"chat": 0.95}, seed=1)
    assert meets_goals(limited, counts, {"chat": 0.9}, seed=1)
    assert counts.sum() < most.sum() / 2


def test_smallest_flat_meets_every_tier_and_can_spare_no_instance(shared: Study) -> None:
    counts = smallest_flat(shared, seed=1)
    fleet = shared.hardware.fleet(shared.peak)

    def meets(counts_tried: Any) -> bool:
        result = simulate(
            shared.trace, fleet, Static(counts_tried), seed=1, duration_s=shared.window.duration_s
        )
        return all(summarise(result).slo_met.values())

    assert meets(counts)
    low = np.array([pool.minimum for pool in fleet.pools])
    spare = np.flatnonzero(counts > low)
    assert len(spare)
    for p in spare:
        fewer = counts.copy()
        fewer[p] -= 1
        assert not meets(fewer)
    assert counts.sum() <= shared.peak.sum()


def held(run: Any) -> Any:
    """GPUs in use per interval: [intervals]."""
    series = run.series
    each = np.array([pool.gpus_per_instance for pool in run.fleet.pools])
    return each @ (series.ready + series.starting + series.draining)


@pytest.mark.parametrize("name", ["reactive", "lt-i-perfect", "lt-i-last-value"])
def test_models_that_share_gpus_never_hold_more_than_there_are(tmp_path: Path, name: str) -> None:
    """One grows into what the other gives back; with a lead both would want the same GPUs."""
    east = {**make.WEST, "name": "east", "capacity": {"G": 7}}
    sources = [make.source(series=n, model=n, **LENGTHS) for n in ("a", "b")]
    tight = study(tmp_path, regions=[east], traffic={"sources": sources})
    most = int(tight.hardware.capacity_gpus[0, 0])
    run = run_policy(tight, policy_of(name), seed=1, progress=silent)
    assert held(run).max() <= most + 1e-6
    assert held(run).max() > most - 3  # it was tight


def test_growth_waits_until_the_other_has_drained(shared: Study) -> None:
    fleet = shared.hardware.fleet(np.full(shared.peak.shape, 1) * [[[4], [0]], [[1], [0]]])
    east = [p for p, pool in enumerate(fleet.pools) if pool.region == "east"]
    swap = ScheduleFollower(FixedSchedule([0.0, 300.0], [[4, 0, 1, 0], [1, 0, 4, 0]]))
    result = simulate(
        shared.trace,
        fleet,
        CapacityLimit(swap, [(east, 5), ([p for p in range(4) if p not in east], 2)]),
        duration_s=shared.window.duration_s,
        interval_s=1.0,
    )
    series = result.series
    used = (series.ready + series.starting + series.draining)[east].sum(axis=0)
    assert used.max() <= 5 + 1e-9
    assert series.ready[east, -1].tolist() == [1, 4]  # it does get there


def test_todays_fleet_is_replayed_as_it_is(tmp_path: Path) -> None:
    today = [
        {"model": n, "region": "east", "gpu": "G", "replicas": 6 + i}
        for i, n in enumerate(("a", "b"))
    ]
    toy = study(tmp_path, fleet={"startup_s": 60, "today": today})
    run = run_policy(toy, policy_of("today"), seed=1, progress=silent)
    hours = toy.window.duration_s / 3600
    summary = run.summary
    assert summary.gpu_hours == pytest.approx(13 * hours + summary.after_gpu_hours)
    assert summary.before_gpu_hours == 0.0
    np.testing.assert_array_equal(toy.today.sum(axis=(0, 2)), [13, 0])


def test_what_a_plan_says_of_its_first_fleet_is_what_its_replay_pays(tmp_path: Path) -> None:
    """From one replica each: starts, hours and dollars of the plan are those of its replay, which
    had the first fleet for nothing before."""
    today = [
        {"model": n, "region": r, "gpu": "G", "replicas": 1}
        for n in ("a", "b")
        for r in ("east", "west")
    ]
    toy = study(tmp_path, fleet={"startup_s": 120, "today": today})
    planned = plan_window(toy.plan_input, silent)
    run = run_policy(toy, policy_of("lt-i"), seed=1, progress=silent, shared=SharedInputs(planned))
    summary, says = run.summary, plan_figures(toy.plan_input, planned.plan).totals
    assert says.starts == sum(summary.starts.values()) >= 2
    assert summary.before_gpu_hours > 0
    assert summary.gpu_hours - summary.after_gpu_hours == pytest.approx(says.gpu_hours, rel=0.01)
    assert summary.cost_usd - summary.after_cost_usd == pytest.approx(says.usd, rel=0.01)


@pytest.mark.parametrize("lend", [False, True])
def test_what_a_plan_leaves_of_todays_fleet_is_lent(tmp_path: Path, lend: bool) -> None:
    today = [
        {"model": n, "region": "east", "gpu": "G", "replicas": count}
        for n, count in (("a", 20), ("b", 12))
    ]
    toy = study(tmp_path, fleet={"startup_s": 120, "today": today, "scale_in": {"lend": lend}})
    run = run_policy(toy, policy_of("lt-i"), seed=1, progress=silent)
    left = np.maximum([p.today for p in run.fleet.pools] - _first(toy, run), 0).sum()
    assert left > 0
    if lend:  # those that are not taken back serve somebody else all the time
        assert run.summary.donated_gpu_hours > 0.5 * left * toy.window.duration_s / 3600
    else:
        assert run.summary.donated_gpu_hours == 0.0


def _first(toy: Study, run: PolicyRun) -> npt.NDArray[np.int64]:
    assert run.plan is not None
    return toy.counts_by_pool(run.plan.target[0])


def test_a_forecast_is_made_once_for_all_that_is_tried_of_it(
    shared: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str | None] = []

    def counted(
        inputs: PlanInput, progress: Progress, *, method: str | None = None
    ) -> ForecastLoad:
        made.append(method)
        return forecast_load(inputs, progress, method=method)

    monkeypatch.setattr(policy_context, "forecast_load", counted)
    loads = policy_context.Loads(shared)
    once = loads.planned_for(Plan("last-value", load_factor=1.5), silent)
    twice = loads.planned_for(Plan("last-value", load_factor=3.0), silent)
    assert made == ["last-value"]
    np.testing.assert_allclose(twice.tps, 2 * once.tps)
    loads.planned_for(Plan("last-value", periods="all"), silent)
    loads.planned_for(Plan("perfect"), silent)
    assert made == ["last-value", "last-value", "perfect"]


def test_policies_without_what_they_need_are_refused(shared: Study) -> None:
    with pytest.raises(ScenarioError, match=r"fleet\.today"):
        run_policy(shared, policy_of("today"), seed=1, progress=silent)


def test_models_replayed_by_themselves_are_judged_as_all_of_them_together(shared: Study) -> None:
    """Whatever is asked first and however much of it: what is known stays true."""
    rng = np.random.default_rng(5)
    fleet, known, verdicts = shared.hardware.fleet(shared.peak), {}, []
    enough = smallest_flat(shared, seed=1)
    for _ in range(25):
        minimum = [pool.minimum for pool in fleet.pools]
        counts = np.maximum(enough + rng.integers(-2, 2, len(enough)), minimum)
        result = simulate(
            shared.trace, fleet, Static(counts), seed=1, duration_s=shared.window.duration_s
        )
        attained = summarise(result).slo_attainment
        slack = rng.choice([-0.2, -1e-7, 0.0, 1e-7])  # of what it attains: on the edge too
        goals = {name: min(1.0, (share or 1.0) + slack) for name, share in attained.items()}
        met = all(share is None or share >= goals[name] for name, share in attained.items())
        assert meets_goals(shared, counts, goals, 1, known) == met
        verdicts.append(met)
    assert {True, False} == set(verdicts)


def test_a_replay_ends_early_only_where_a_bar_is_sure_to_be_missed(
    shared: Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("simulation.early_stop.SLACK_S", 0.0)  # of a window this short

    def played(bars: dict[str, float] | None, **how: Any) -> PolicyRun:
        policy = policy_of("flat-peak")
        options = ReplayOptions(detailed=False, bars=bars, **how)
        return run_policy(shared, policy, seed=1, progress=silent, options=options)

    def late(fleet: Fleet) -> Fleet:
        return replace(fleet, tiers=tuple(replace(its, ttft_s=1e-9) for its in fleet.tiers))

    attained = played(None).summary.slo_attainment
    on_the_edge = {name: share or 0.0 for name, share in attained.items()}
    assert played(on_the_edge).summary.slo_attainment == attained
    assert min(played(None, changed=late).summary.slo_attainment.values(), default=1.0) == 0.0
    with pytest.raises(TargetMissed):
        played(on_the_edge, changed=late)
    played(dict.fromkeys(attained, 0.0), changed=late)


@pytest.mark.parametrize("name", ["flat-peak", "lt-i", "lt-h", "lt-g"])
def test_what_a_policy_always_keeps_is_a_lower_bound_of_its_cost(shared: Study, name: str) -> None:
    policy = policy_of(name)
    ready = build_policy(shared, policy, seed=5)
    least = min_cost_usd(shared, ready, BRIEF)
    cost = run_policy(shared, policy, seed=5, progress=silent, options=BRIEF).summary.cost_usd
    assert 0.5 * cost < least <= cost * (1 + 1e-9)
    below = ReplayOptions(detailed=False, cost_limit=0.99 * least)
    with pytest.raises(CostLimitExceeded):
        run_policy(shared, policy, seed=5, progress=silent, options=below)


def test_a_policy_that_may_go_below_its_plan_has_no_known_cost(shared: Study) -> None:
    for name in ("reactive", "lt-u"):
        ready = build_policy(shared, policy_of(name), seed=5)
        assert min_cost_usd(shared, ready, BRIEF) == 0.0
