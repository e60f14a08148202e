"""Forecasters judged by what they lead to: the law of hindsight, brute force, small traffic."""

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from planner.domain.forecaster_backtest.equal_attainment import EqualAttainment, Figures
from planner.domain.forecaster_backtest.figures import (
    Baseline,
    Forecaster,
    ForecasterFacts,
    verdict,
)
from planner.domain.forecaster_backtest.oracle import (
    actual_tps,
    covered_share,
    oracle_cost,
    served_tps,
)
from planner.domain.forecaster_backtest.replay import LevelPlanner, planning_level_at
from planner.domain.kinds import backtest
from planner.domain.outcome import Inputs
from planner.domain.planning.period_solver import Periods
from planner.domain.progress import silent
from planner.domain.replay.replay import prepare
from planner.domain.study import Study
from planner.domain.traffic.sources import StoredTrace
from planner.errors import ScenarioError
from planner.inputs.scenario.settings import settings_of
from planner.optimizer.horizon import HorizonProblem
from planner.optimizer.horizon.figures import costs
from tests.planner.domain.builders import (
    WEST,
    daily_cycle,
    parts,
    scenario,
    sizes,
    source,
)
from tests.planner.domain.one_by_one import OneByOne

HOUR = 3600.0
HORIZON = {"duration_s": 4 * HOUR, "period_s": HOUR}
EAST = WEST | {"name": "east", "usd_per_gpu_hour": {"G": 2}}


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> StoredTrace:
    """Two days and a half of quarter hours with a daily cycle and noise; few requests."""
    noise = np.random.default_rng(5).lognormal(0.0, 0.25, 60 * 4)
    return daily_cycle(tmp_path_factory.mktemp("noisy"), noise, requests=40, osl=20)


def study_by_hand(stored: StoredTrace, theta_tps: float = 8.0, **changes: Any) -> Study:
    """Sized by hand, so that a handful of requests asks for several instances."""
    study_scenario = scenario(**{"horizon": HORIZON} | changes)
    hardware, traffic, window = parts(study_scenario, stored)
    requests = traffic.requests(window.start_s, window.end_s, 1)
    return prepare(
        settings_of(study_scenario), hardware, traffic, window, sizes(hardware, theta_tps), requests
    )


@pytest.mark.parametrize("method", ["last-value", "seasonal-naive", "perfect"])
@pytest.mark.parametrize("places", [("east",), ("east", "west")])
def test_the_least_in_hindsight_is_never_beaten(
    stored: StoredTrace, method: str, places: tuple[str, ...]
) -> None:
    """At as much served, by the program's own cost, whatever of a forecast is planned for."""
    regions = [EAST, WEST][: len(places)]
    share = {place: 1 / len(places) for place in places}
    study = study_by_hand(stored, regions=regions, traffic__sources=[source(regions=share)])
    level_planner = LevelPlanner.of(study, method, 1, silent)
    before = 0.0
    for knob in (0.05, 0.5, 0.9):
        planned = level_planner.plan_at(level_planner.planning_levels(knob), silent)
        in_hindsight = oracle_cost(level_planner, planned, silent)
        assert in_hindsight is not None
        assert in_hindsight.bound_usd <= in_hindsight.plan_usd + 1e-6
        assert (
            in_hindsight.bound_usd - 1e-6 <= in_hindsight.least_usd <= in_hindsight.plan_usd + 1e-6
        )
        assert in_hindsight.regret is not None and in_hindsight.regret >= -1e-9
        share_covered = covered_share(level_planner, planned)
        assert before <= share_covered <= in_hindsight.served + 1e-9 <= 1 + 1e-9
        before = share_covered


def test_it_is_the_cheapest_of_all_plans_that_serve_as_much(stored: StoredTrace) -> None:
    study = study_by_hand(stored, 20.0, horizon={"duration_s": 3 * HOUR, "period_s": HOUR})
    level_planner = LevelPlanner.of(study, "last-value", 1, silent)
    planned = level_planner.plan_at(level_planner.planning_levels(0.6), silent)
    in_hindsight = oracle_cost(level_planner, planned, silent)
    assert in_hindsight is not None
    came, target = actual_tps(level_planner.inputs, level_planner), planned.plan.target
    problems = Periods.of(level_planner.inputs, planned.load).problems
    served = [
        served_tps(problem, target[p], came[p], elsewhere=False)
        for p, problem in enumerate(problems)
    ]
    horizon = HorizonProblem(
        tuple(replace(problem, demand_tps=served[p]) for p, problem in enumerate(problems)), HOUR
    )
    least = np.inf
    for counts in product(range(int(target.max()) + 1), repeat=len(problems)):
        plan = np.array(counts)[:, None, None, None]
        if any(plan[p].sum() * 20.0 < served[p].max() - 1e-9 for p in range(len(problems))):
            continue
        if (plan < problems[0].minimum).any():
            continue
        least = min(least, costs(horizon, plan, np.zeros_like(plan))[0])
    assert in_hindsight.least_usd == pytest.approx(least, rel=2e-4)


def test_what_a_plan_has_room_for_by_hand(stored: StoredTrace) -> None:
    """Room for 8 here and 16 there: what does not fit goes there where that is allowed, and a
    region still serves epsilon, 0.8, of its own."""
    study = study_by_hand(
        stored, regions=[EAST, WEST], traffic__sources=[source(regions={"east": 0.5, "west": 0.5})]
    )
    planned = LevelPlanner.of(study, "perfect", 1, silent)
    (problem, *_) = Periods.of(
        study.plan_input, planned.plan_at(planned.planning_levels(0.5), silent).load
    ).problems
    target = np.array([[[1], [2]]])
    came = np.array([[[9.0, 12.0, 9.0], [3.0, 3.0, 20.0]]])
    there = served_tps(problem, target, came, elsewhere=True)
    np.testing.assert_allclose(there, [[[9, 8, 8], [3, 3, 16]]])
    here = served_tps(problem, target, came, elsewhere=False)
    np.testing.assert_allclose(here, [[[8, 8, 8], [3, 3, 16]]])


def test_a_forecaster_of_the_truth_covers_all_that_it_plans_for(stored: StoredTrace) -> None:
    level_planner = LevelPlanner.of(study_by_hand(stored), "perfect", 1, silent)
    planned = level_planner.plan_at((planning_level_at(0.5, perfect=True),), silent)
    assert planning_level_at(0.5, perfect=True).factor == pytest.approx(1.0)
    assert covered_share(level_planner, planned) == 1.0


# The whole run


@pytest.fixture(scope="module")
def document(stored: StoredTrace) -> dict[str, Any]:
    options = backtest.Options(methods=("seasonal-naive",), by_coverage=True)
    study_scenario = scenario(horizon=HORIZON, traffic__sources=[source(scale=40)])
    return backtest.run(Inputs(study_scenario, {"t": stored}), options, silent).document


def test_it_says_which_forecaster_pays_at_equal_attainment(document: dict[str, Any]) -> None:
    rows = document["methods"]
    assert set(rows) == {"seasonal-naive", "last-value", "perfect"}  # now and the truth always
    assert document["verdict"] and document["matched_on"] == "coverage"
    assert document["how"]
    for name, row in rows.items():
        assert not row["equal"] or abs(row["spare"]) <= 0.001
        assert row["hindsight_bound_usd"] <= row["plan_usd"] + 1e-6
        assert (row["quantile"] == []) == (name == "perfect")
    assert rows["perfect"]["wape"] == 0.0


def test_too_many_requests_are_replayed_for_what_the_verdict_names(
    stored: StoredTrace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two at a time, to the same figures as one after the other."""
    monkeypatch.setattr(backtest, "MOST_REPLAYED", 0)
    options = backtest.Options(methods=("seasonal-naive", "moving-maximum"))
    study_scenario = scenario(horizon=HORIZON, traffic__sources=[source(scale=40)])
    done: list[float] = []
    ran = [
        backtest.run(
            Inputs(study_scenario, {"t": stored}), options, lambda far, _: done.append(far)
        ).document
    ]
    # What goes on side by side tells how far all of it is: time left is reckoned from that.
    assert len(set(done)) > 5 and done == sorted(done)
    ran.append(
        backtest.run(
            Inputs(study_scenario, {"t": stored}), options, silent, parts=OneByOne()
        ).document
    )
    for document in ran:
        assert document["matched_on"] == "coverage" and document["how"]
        replayed = {name for name, row in document["methods"].items() if row["confirmed"]}
        assert replayed == {document["best"], "last-value"}
        assert set(document["beside"]) == {"flat-before", "hpa-concurrency"}
        assert document["beside"]["hpa-concurrency"]["word"] == "not tuned"
    assert ran[0]["beside"] == ran[1]["beside"]
    confirmed = [{n: row["confirmed"] for n, row in result["methods"].items()} for result in ran]
    assert confirmed[0] == confirmed[1]


def test_a_window_that_is_yet_to_come_is_replaced_by_the_last_of_the_traffic(
    stored: StoredTrace,
) -> None:
    options = backtest.Options(methods=("last-value",), by_coverage=True)
    ahead = scenario(horizon={"start": "end", **HORIZON})
    result = backtest.run(Inputs(ahead, {"t": stored}), options, silent).document
    assert result["window"]["end"] == "2024-05-15T12:00:00Z"


def test_traffic_that_may_all_wait_has_nothing_to_judge(stored: StoredTrace) -> None:
    tiers = [
        {"name": "chat", "ttft_ms": 1000},
        {"name": "batch", "e2e_ms": 3_600_000, "deferrable": True},
    ]
    sources = [source(tiers={"batch": 1})]
    waiting = scenario(horizon=HORIZON, tiers=tiers, traffic__sources=sources)
    with pytest.raises(ScenarioError, match="nothing is forecast"):
        backtest.run(Inputs(waiting, {"t": stored}), backtest.Options(by_coverage=True), silent)


# The verdict in a sentence


def row(method: str, usd: float, *, equal: bool = True, spare: float = 0.0) -> Forecaster:
    figures = Figures(usd, usd, 1.0, 1.0, {"chat": 0.95}, spare)
    facts = ForecasterFacts(method, "", 0.1, 0.1, 0.0, 0.8, (), None, None, 0.1)
    return Forecaster(facts, EqualAttainment((0.5,), figures, equal, 3), None)


def flat(usd: float, *, meets: bool = True) -> Baseline:
    figures = Figures(usd, usd, 0.0, 0.0, {"chat": 0.96}, 0.01)
    return Baseline("flat-min", "Flat", "sized in hindsight", figures, meets, instances=6)


def test_the_verdict_leads_with_what_pays() -> None:
    rows = [row("arima", 96.0), row("last-value", 100.0), row("perfect", 90.0)]
    with_cheaper = verdict(rows, [flat(80.0)])
    alone = verdict(rows, [])
    assert with_cheaper.startswith(alone) and "arima" in alone and "4%" in alone
    assert "17%" in with_cheaper.removeprefix(alone)
    assert verdict(rows, [flat(110.4)]) == alone  # dearer
    assert verdict(rows, [flat(80.0, meets=False)]) == alone


def test_a_verdict_that_no_forecaster_pays_for_itself() -> None:
    rows = [row("arima", 99.8), row("last-value", 100.0)]
    assert "%" not in verdict(rows, []) and "arima" not in verdict(rows, [])
    unequal = [row("arima", 50.0, equal=False, spare=0.03), row("last-value", 60.0)]
    assert "arima" in verdict(unequal, []) and "17%" in verdict(unequal, [])
    short = [row("arima", 50.0, equal=False, spare=-0.3)]
    assert "SLO target" in verdict(short, [])
