"""Months add up to the plan they stand for, and commitments are the cheapest there are."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner.domain.kinds import outlook
from planner.domain.outcome import Inputs
from planner.domain.outlook.calendar import WEEK_S, Month, months_of, occurrences_of_periods
from planner.domain.outlook.commitments import GpuUse, choose_commitment, usage_steps
from planner.domain.outlook.figures import gpu_uses, month_figures
from planner.domain.planning.planning import forecast_load, plan_load
from planner.domain.progress import silent
from planner.errors import ScenarioError
from tests.planner.domain import builders as make

HOUR, DAY = 3600.0, 86400.0
LENGTHS = {"input_tokens": {"mean": 100}, "output_tokens": {"mean": 10}}
PERIOD_S = 6 * HOUR


def described(days: float, **changes: Any) -> Any:
    """A scenario without a trace, planned for what is described exactly."""
    launch = {"rps": 40.0, "day": "office", "variation": 0, "begins": "2024-05-13"}
    horizon = {"start": "end", "duration_s": days * DAY, "period_s": PERIOD_S}
    return make.scenario(
        traffic__sources=[make.source(trace=None, launch=launch, **LENGTHS)],
        traffic__bin_s=HOUR,
        forecast={"quantile": "mean", "method": "seasonal-naive-week"},
        horizon=horizon,
        **changes,
    )


def nowhere(folder: Path) -> make.StoredTrace:
    return make.StoredTrace("t", "demand", "utc", folder)


def test_months_are_calendar_months_cut_at_both_ends() -> None:
    start = datetime(2027, 1, 31, tzinfo=UTC).timestamp()
    year = months_of(start, "year", "utc")
    assert [year[0].label, year[-1].label, len(year)] == ["2027-01", "2028-01", 13]
    assert sum(month.hours for month in year) == 365 * 24
    month_parts = months_of(start, "month", "utc")  # February has no 31st
    assert [month.label for month in month_parts] == ["2027-01", "2027-02"]
    assert month_parts[-1].end_s == datetime(2027, 2, 28, tzinfo=UTC).timestamp()
    assert months_of(start, "week", "utc")[0].hours == 24
    assert [m.label for m in months_of(0.0, "quarter", "relative")][-1] == "month 3"


def test_every_hour_of_a_month_is_one_of_the_week() -> None:
    start = datetime(2027, 1, 4, tzinfo=UTC).timestamp()
    for month in months_of(start, "year", "utc"):
        share = occurrences_of_periods(month, start, 5400.0)
        assert share.sum() * 1.5 == pytest.approx(month.hours)
    month = Month("", start + 3 * WEEK_S, start + 5 * WEEK_S)
    two_weeks = occurrences_of_periods(month, start, HOUR)
    np.testing.assert_array_equal(two_weeks, 2.0)


def test_weeks_times_their_cost_are_the_whole_plan(tmp_path: Path) -> None:
    week = make.plan_input(described(7), nowhere(tmp_path))
    long = make.plan_input(described(21), nowhere(tmp_path))
    load = forecast_load(week, silent).load
    span = Month("three weeks", week.window.start_s, week.window.start_s + 3 * WEEK_S)
    planned = outlook.plan_months(week, load, [(span, 1.0)], silent)[0]
    assert planned.plan is not None
    figures = month_figures(planned, week.hardware, ())
    steady = planned.plan.target[-1]
    plan = plan_load(replace(long, current=steady), forecast_load(long, silent).load, silent)
    hours = plan.period_s / HOUR
    assert figures.cost_usd == pytest.approx(sum(w.totals.usd for w in plan.windows) * hours)
    assert figures.carbon_kg == pytest.approx(sum(w.totals.kg for w in plan.windows) * hours)
    assert figures.cost_usd == pytest.approx(
        (figures.on_demand_usd or 0) + (figures.spot_usd or 0) + (figures.starts_usd or 0)
    )
    assert len(set(plan.target.sum(axis=(1, 2, 3)))) > 1  # it is not flat


@pytest.mark.parametrize("seed", range(5))
def test_what_is_committed_is_least_cost_of_all_numbers(seed: int) -> None:
    rng = np.random.default_rng(seed)
    use = GpuUse("east", "G", rng.integers(0, 12, 40).astype(float), rng.uniform(0.5, 9, 40), 3.0)
    for price in (0.0, 0.7, 1.9, 2.9, 3.0, 3.4):
        costs = [use.cost(k, price) for k in range(14)]
        commitment = choose_commitment(use, "one_year", price)
        assert commitment.cost_usd == pytest.approx(min(costs))
        assert commitment.gpus == int(np.argmin(np.round(costs, 9)))
        assert commitment.saving_usd == pytest.approx(costs[0] - min(costs))
    curve = usage_steps([use])
    assert curve[-1].gpus == use.gpus.max()
    assert [step.in_use for step in curve] == sorted((step.in_use for step in curve), reverse=True)


def test_an_outlook_grows_by_month_and_says_what_to_commit_to() -> None:
    east = {
        "name": "east", "capacity": {"G": 4000}, "usd_per_gpu_hour": {"G": 2},
        "carbon_g_per_kwh": 400, "pue": 1.2, "committed": {"G": {"one_year": 1.2}},
    }  # fmt: skip
    scenario = described(1, regions=[east], traffic__growth={"per_month": 0.4}, seed=1)
    answer = outlook.run(Inputs(scenario), outlook.Options(horizon="quarter"), silent).document
    costs = [row["cost_usd"] / row["days"] for row in answer["months"]]
    june, july = costs[1:3]  # whole ones: parts of a month have their own share of weekends
    assert july > 1.05 * june
    (take,) = answer["recommended_commitments"]
    assert take["pays_from"] == pytest.approx(0.6) and take["least_use"] > 0.6
    saved = answer["totals"]["cost_usd"] - answer["totals"]["cost_committed_usd"]
    assert saved == pytest.approx(take["saving_usd"])
    assert f"{take['gpus']} G in east" in answer["headline"]


def test_months_that_do_not_fit_are_said_and_the_others_told(tmp_path: Path) -> None:
    inputs = make.plan_input(described(7), nowhere(tmp_path))
    load = forecast_load(inputs, silent).load
    months = months_of(inputs.window.start_s, "quarter", "utc")
    times = [(month, factor) for month, factor in zip(months, (1.0, 1.0, 9.0, 9.0), strict=True)]
    planned = outlook.plan_months(inputs, load, times, silent)
    assert [month.plan is None for month in planned] == [False, False, True, True]
    assert planned[0].plan is planned[1].plan and "east" in planned[3].conflict
    rows = [month_figures(month, inputs.hardware, ()) for month in planned]
    assert rows[2].status == "infeasible" and rows[2].cost_usd is None
    assert gpu_uses(planned, inputs.hardware)[0].total_hours == pytest.approx(
        months[0].hours + months[1].hours
    )


def test_a_committed_price_needs_a_term_and_a_known_gpu() -> None:
    region = {**make.WEST, "committed": {"G": {}}}
    with pytest.raises(ScenarioError, match="one_year, three_years or both"):
        make.scenario(regions=[region])
    region = {**make.WEST, "committed": {"H9": {"one_year": 1}}}
    with pytest.raises(ScenarioError, match="GPU 'H9' is not in this scenario"):
        make.scenario(regions=[region])
