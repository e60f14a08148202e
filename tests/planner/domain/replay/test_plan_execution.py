"""Plans carried out: planned again from the fleet there is, and reroutes that reach the router."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner.domain.planning.period_solver import Periods, with_planned_starts
from planner.domain.planning.planning import plan_window
from planner.domain.progress import silent
from planner.domain.replay.policy_context import policy_context_of
from planner.domain.replay.replay import run_policy
from planner.domain.study import Study
from planner.errors import Infeasible
from planner.policies.choice import policy_of
from planner.policies.context import Plan
from simulation.engine.run import simulate
from simulation.policies.static import Static
from tests.planner.domain import builders as make
from tests.planner.domain.replay.test_replay import LENGTHS, study
from tests.simulation.policies.observations import seen


@pytest.fixture(scope="module")
def dear_east(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """Model ``b`` asked for in the east, where a GPU costs four times as much and a fifth of what
    is asked for must be served."""
    return of_dear_east(tmp_path_factory.mktemp("dear"))


def of_dear_east(folder: Path, **objective: Any) -> Study:
    east = {**make.WEST, "name": "east", "usd_per_gpu_hour": {"G": 12}}
    sources = [
        make.source(series=n, model=n, regions={home: 1.0}, **LENGTHS)
        for n, home in (("b", "east"), ("a", "west"))
    ]
    return study(
        folder,
        regions=[{**east, "latency_ms": {"west": 20}}, make.WEST],
        traffic={"sources": sources},
        objective={"epsilon": 0.2, **objective},
        fleet={"startup_s": 60, "minimum": 0},
    )


@pytest.mark.parametrize("sees", ["queues", "memory"])
def test_what_a_plan_sends_away_is_served_there(dear_east: Study, sees: str) -> None:
    routing = replace(dear_east.hardware.routing, sees=sees)
    toy = replace(dear_east, hardware=replace(dear_east.hardware, routing=routing))
    run = run_policy(toy, policy_of("lt-i-perfect", load_factor=1.0), seed=1, progress=silent)
    assert run.plan is not None and run.plan.shares is not None
    shares = run.plan.shares[:, 1, 0]  # of b's tokens in the east
    assert (shares[:, 1] > 0.5).all()
    assert not run.plan.shares[:, 0].any()  # a is asked for where it is served
    if sees == "queues":  # what shares leave to chance is taken up by who has room
        assert all(share > 0.95 for share in run.summary.slo_attainment.values())
    where = [pool.region for pool in run.fleet.pools if pool.model == "b"]
    served = run.series.arrived_tokens[[pool.model == "b" for pool in run.fleet.pools]].sum(axis=1)
    west = served[where.index("west")] / served.sum()
    assert west == pytest.approx(shares[:, 1].mean(), abs=0.1)


@pytest.mark.parametrize(("way", "goes"), [({"east": {"west": 1.0}}, True), ({}, False)])
def test_nothing_goes_by_a_way_that_is_closed(tmp_path: Path, way: Any, goes: bool) -> None:
    """Planned, and where requests wait in the east beside idle instances in the west."""
    toy = of_dear_east(tmp_path, reroute=way)
    fleet = toy.fleet(np.array([region for _, region, _ in toy.hardware.model_region_gpu]) * 8 + 1)
    west = [p for p, pool in enumerate(fleet.pools) if (pool.model, pool.region) == ("b", "west")]
    flat = simulate(toy.trace, fleet, Static([pool.initial for pool in fleet.pools]))
    planned = run_policy(toy, policy_of("lt-i-perfect", load_factor=1.0), seed=1, progress=silent)
    for run in (flat, planned):
        assert (run.series.arrived_tokens[west].sum() > 0) == goes


def test_each_period_is_planned_from_what_is_up(dear_east: Study) -> None:
    """With half of what was planned lost, the next period's plan starts that again."""
    context = policy_context_of(dear_east, seed=1, progress=silent)
    plan = context.followed_plan(Plan())
    at_once = plan_window(dear_east.plan_input, silent).plan
    np.testing.assert_array_equal(plan.plan().target, at_once.target)
    window = dear_east.window
    there = np.maximum(plan.start // 2, 0)
    second = float(window.period_starts_s[1] - window.start_s)
    plan.schedule.reset(dear_east.fleet(plan.start))
    plan.schedule.observe(seen(second, there))
    followed = plan.plan()
    more = np.maximum(followed.target[1] - unpooled(dear_east, there), 0).sum()
    assert followed.windows[1].totals.starts == more > at_once.windows[1].totals.starts
    # As shown, a plan counts starts from its own targets, like a plan that is not simulated.
    loaded = plan_window(dear_east.plan_input, silent).load
    shown = with_planned_starts(Periods.of(dear_east.plan_input, loaded), followed)
    before = np.concatenate([shown.initial[None], shown.target[:-1]])
    starts = np.maximum(shown.target - before, 0).sum(axis=(1, 2, 3))
    assert [window.totals.starts for window in shown.windows] == starts.tolist()


def unpooled(toy: Study, counts: Any) -> Any:
    out = np.zeros_like(toy.today)
    out[tuple(np.array(toy.hardware.model_region_gpu).T)] = counts
    return out


def test_the_plan_shown_is_the_one_carried_out(dear_east: Study) -> None:
    """LT-I as nothing comes between is the plan made before; the replay followed its targets."""
    run = run_policy(dear_east, policy_of("lt-i"), seed=1, progress=silent)
    assert run.plan is not None
    before = plan_window(dear_east.plan_input, silent).plan
    np.testing.assert_array_equal(run.plan.target, before.target)
    last = dear_east.counts_by_pool(run.plan.target)[-1]
    np.testing.assert_allclose(run.series.ready[:, -1], last)


def test_a_period_that_cannot_be_served_is_told(dear_east: Study) -> None:
    context = policy_context_of(dear_east, seed=1, progress=silent)
    with pytest.raises(Infeasible, match="the period from"):
        context.followed_plan(Plan(load_factor=1000.0))
