"""Turning a knob until attainment is what was asked for: laws on made-up curves, then by hand."""

import numpy as np
import pytest

from planner.domain.forecaster_backtest.equal_attainment import (
    MAX_TRIALS,
    TOLERANCE,
    Figures,
    match_attainment,
)
from planner.domain.forecaster_backtest.replay import (
    COVERAGE_LEVELS,
    HIGHEST_LEVEL,
    LOWEST_LEVEL,
    forecast_level_of,
    planning_level_at,
)
from planner.domain.traffic.forecast_percentile import PLANNING_LEVELS
from planner.domain.traffic.forecasts import PlanningLevel


def figures(spare: float, usd: float = 10.0) -> Figures:
    return Figures(usd, usd / 2, 3.0, 2.0, {"chat": 0.95 + spare, "idle": None}, spare)


@pytest.mark.parametrize("begin", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("bend", [0.5, 1.0, 3.0])
def test_a_smooth_curve_is_met_in_a_few_tries(begin: float, bend: float) -> None:
    seen: list[float] = []

    def run(knob: float) -> Figures:
        seen.append(knob)
        return figures(0.05 - 0.4 * (1 - knob) ** (1 + bend), usd=10 + knob)

    match = match_attainment(run, begin, LOWEST_LEVEL, HIGHEST_LEVEL)
    assert match is not None and match.equal and abs(match.figures.spare) <= TOLERANCE
    assert len(seen) == match.replays <= MAX_TRIALS and all(
        LOWEST_LEVEL <= tried <= HIGHEST_LEVEL for tried in seen
    )


@pytest.mark.parametrize("instances", [3, 7])
def test_where_instances_are_whole_two_plans_share_the_time(instances: int) -> None:
    """Attainment in steps that are never near: what stands in attains exactly what is asked for."""

    def run(knob: float) -> Figures:
        held = np.floor(instances * knob)
        return figures(-0.09 + 0.17 * held / instances, usd=100 * held)

    match = match_attainment(run, 0.5, LOWEST_LEVEL, HIGHEST_LEVEL)
    assert match is not None and match.equal
    assert match.figures.spare == pytest.approx(0.0, abs=1e-12)
    low, high = (run(knob) for knob in match.at)
    assert low.spare < 0 < high.spare
    assert low.cost_usd < match.figures.cost_usd < high.cost_usd
    share = (match.figures.cost_usd - low.cost_usd) / (high.cost_usd - low.cost_usd)
    assert match.figures.attainment["chat"] == pytest.approx(0.95)
    assert match.figures.gpu_hours == pytest.approx(
        (1 - share) * low.gpu_hours + share * high.gpu_hours
    )
    assert match.figures.attainment["idle"] is None


def test_what_always_attains_more_or_less_is_not_called_equal() -> None:
    for spare in (0.04, -0.3):
        match = match_attainment(
            lambda knob, spare=spare: figures(spare + knob / 100), 0.4, LOWEST_LEVEL, HIGHEST_LEVEL
        )
        assert match is not None and not match.equal


def test_what_falls_far_short_stands_in_for_nothing() -> None:
    """Two instances attain hardly anything, three all of it: three are the least that do."""
    match = match_attainment(
        lambda knob: figures(-0.6, 200.0) if knob < 0.4 else figures(0.04, 300.0),
        0.1,
        LOWEST_LEVEL,
        HIGHEST_LEVEL,
    )
    assert match is not None and not match.equal
    assert (match.figures.spare, match.figures.cost_usd) == (0.04, 300.0)


def test_what_has_no_plan_is_gone_round() -> None:
    """Beyond a knob of 0.6 there are not GPUs enough."""
    match = match_attainment(
        lambda knob: None if knob > 0.6 else figures(0.2 * (knob - 0.5)),
        0.95,
        LOWEST_LEVEL,
        HIGHEST_LEVEL,
        12,
    )
    assert match is not None and match.equal and match.at[0] == pytest.approx(0.5, abs=0.01)
    assert match_attainment(lambda knob: None, 0.5, LOWEST_LEVEL, HIGHEST_LEVEL) is None


def test_the_knob_rises_through_all_heights() -> None:
    planning_levels = [planning_level_at(float(knob)) for knob in COVERAGE_LEVELS]
    order = [
        (planning_level.quantile or 0.0) * planning_level.factor
        for planning_level in planning_levels
    ]
    assert (np.diff(order) > 0).all()
    assert planning_level_at(0.5) == PlanningLevel(0.5)
    for planning_level in PLANNING_LEVELS:
        again = planning_level_at(forecast_level_of(planning_level))
        assert (again.quantile, again.factor) == pytest.approx(
            (planning_level.quantile, planning_level.factor)
        )
    truth = [planning_level_at(float(knob), perfect=True) for knob in COVERAGE_LEVELS]
    assert {planning_level.quantile for planning_level in truth} == {None}
    assert truth[0].factor < 1 < truth[-1].factor
