"""Growth of what comes after the traffic: in forecasts, in requests drawn, and nowhere else."""

from pathlib import Path

import numpy as np
import pytest

from planner.domain.planning.planning import plan_window
from planner.domain.progress import silent
from planner.domain.results.basis import growth_note
from planner.domain.traffic.drawn_days import demand_paths
from planner.domain.traffic.forecast_requests import requests_ahead
from planner.domain.traffic.forecasts import roll_forecast
from planner.inputs.scenario.schema.traffic import MONTH_S, Growth
from tests.planner.domain import builders as make

DAY = 86400.0
LENGTHS = {"input_tokens": {"mean": 100}, "output_tokens": {"mean": 10}}
AHEAD = {
    "traffic__sources": [make.source(**LENGTHS)],
    "forecast": {"method": "last-value", "quantile": "mean"},
    "horizon": {"start": "end", "duration_s": 7200},
}
DOUBLED = {"traffic__growth": {"factor": 2.0}}


def test_growth_is_a_factor_at_once_and_compounds_by_the_month() -> None:
    growth = Growth(factor=1.5, per_month=0.1)
    assert growth.at(0.0) == pytest.approx(1.5)
    assert growth.at(2 * MONTH_S) == pytest.approx(1.5 * 1.1**2)
    assert growth.words == "1.5 times, and 10.0% more each month"
    assert not Growth() and Growth().words == ""


def test_what_is_planned_for_and_drawn_ahead_is_as_many_times_as_much(tmp_path: Path) -> None:
    stored = make.demand_file(tmp_path, {"m": [600.0] * 240})
    plain, grown = make.scenario(**AHEAD), make.scenario(**AHEAD | DOUBLED)
    _, traffic, window = make.parts(plain, stored)
    _, _, wider = make.parts(grown, stored)
    series = traffic.demand.series(0)
    once = roll_forecast(series, window, "last-value").quantile_or_mean(None)
    twice = roll_forecast(series, wider, "last-value").quantile_or_mean(None)
    np.testing.assert_allclose(twice, 2 * once)
    drawn = [len(requests_ahead(traffic, span, "last-value", 1)[0]) for span in (window, wider)]
    assert drawn[1] / drawn[0] == pytest.approx(2.0, rel=0.02)
    load = [
        plan_window(make.plan_input(scenario, stored), silent).load.tps
        for scenario in (plain, grown)
    ]
    np.testing.assert_allclose(load[1], 2 * load[0])


def test_paths_have_the_growth_and_are_the_same_for_the_same_seed(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    stored = make.demand_file(tmp_path, {"m": rng.uniform(400, 800, 240).round().tolist()})
    _, traffic, window = make.parts(make.scenario(**AHEAD), stored)
    _, _, wider = make.parts(make.scenario(**AHEAD | DOUBLED), stored)
    paths = demand_paths(traffic, window, "auto", 20, seed=1)
    bins = round(window.duration_s / window.bin_s)
    assert paths.shape == (20, len(traffic.demand.keys), bins) and (paths >= 0).all()
    assert paths.std(axis=0).min() > 0
    np.testing.assert_array_equal(paths, demand_paths(traffic, window, "auto", 20, seed=1))
    np.testing.assert_allclose(demand_paths(traffic, wider, "auto", 20, seed=1), 2 * paths)


def test_a_window_in_the_past_is_planned_as_it_was_and_says_so(tmp_path: Path) -> None:
    stored = make.demand_file(tmp_path, {"m": [600.0] * 240})
    past = {"horizon": {"duration_s": 7200}}
    load = []
    for growth in ({}, DOUBLED):
        inputs = make.plan_input(make.scenario(**AHEAD | past | growth), stored)
        load.append(plan_window(inputs, silent).load.tps)
    np.testing.assert_array_equal(load[0], load[1])
    assert "is before it" in growth_note(inputs.window)[0]


def test_work_that_may_wait_grows_too(tmp_path: Path) -> None:
    tiers = [
        {"name": "chat", "ttft_ms": 1000},
        {"name": "batch", "e2e_ms": 10 * 3_600_000, "deferrable": True},
    ]
    stored = make.demand_file(tmp_path, {"m": [600.0] * 240})
    waiting = AHEAD | {
        "tiers": tiers, "traffic__sources": [make.source(tiers={"batch": 1}, **LENGTHS)],
    }  # fmt: skip
    load = [
        plan_window(make.plan_input(make.scenario(**waiting | growth), stored), silent).load.tps
        for growth in ({}, DOUBLED)
    ]
    np.testing.assert_allclose(load[1], 2 * load[0])
    assert load[0].sum() > 0
