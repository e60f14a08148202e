"""What of a forecast a plan stands on: laws, brute force, by hand, then on small traffic."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from forecasting.demand import DemandSeries, SeriesKey
from forecasting.selection import forecaster
from planner.domain.planning.inputs import PlanInput, quantiles_of, usd_per_tps
from planner.domain.planning.planning import forecast_load, plan_window
from planner.domain.progress import silent
from planner.domain.traffic.demand import Demand
from planner.domain.traffic.forecast_percentile import (
    ASSUMED,
    CHOSEN,
    PLANNING_LEVELS,
    QUANTILE_LEVELS,
    STATED,
    PastPeriods,
    PlannedQuantile,
    cost_by_level,
    coverage_needed,
    past_origins,
    quantiles_at_levels,
    share_covered,
)
from planner.domain.traffic.forecasts import MEAN, PlanningLevel
from planner.domain.traffic.sources import StoredTrace
from tests.planner.domain.builders import daily_cycle, plan_input, scenario

HOUR = 3600.0


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> StoredTrace:
    """Four days of quarter hours with a daily cycle and noise."""
    noise = np.random.default_rng(5).lognormal(0.0, 0.25, 4 * 96)
    return daily_cycle(tmp_path_factory.mktemp("noisy"), noise)


def asked(**changes: Any) -> Any:
    horizon = {"duration_s": 6 * HOUR, "period_s": HOUR}
    return scenario(**{"horizon": horizon, "fleet__startup_s": 600} | changes)


def quantile(inputs: PlanInput) -> PlannedQuantile:
    (planned,) = inputs.planned_quantiles(silent)
    return planned


def pasts(seed: int) -> list[PastPeriods]:
    rng = np.random.default_rng(seed)
    room = np.sort(rng.uniform(0, 10, (len(PLANNING_LEVELS), 12)), axis=0)
    came = rng.uniform(0, 9, (12, 3))
    came[rng.random(came.shape) < 0.1] = np.nan
    return [
        PastPeriods(room, came, usd_per_token=0.3, requests_per_token=2.0),
        PastPeriods(2 * room[:, :5], came[:5], usd_per_token=1.0),
    ]


@pytest.mark.parametrize("seed", range(5))
def test_what_is_covered_never_falls_with_the_level_and_is_what_a_loop_counts(seed: int) -> None:
    histories = pasts(seed)
    covered = share_covered(histories)
    assert (np.diff(covered) >= 0).all()
    for k in range(len(PLANNING_LEVELS)):
        late = came = usd = 0.0
        for past in histories:
            for p, bins in enumerate(past.actual):
                usd += past.usd_per_token * past.capacity[k, p]
                for amount in bins[~np.isnan(bins)]:
                    came += amount
                    if amount > past.capacity[k, p]:
                        late += amount
                        usd += 7.0 * past.requests_per_token * amount
        assert covered[k] == pytest.approx(1 - late / came)
        assert cost_by_level(histories, 7.0)[k] == pytest.approx(usd)


def test_dearer_late_requests_never_lower_the_level() -> None:
    histories = pasts(7)
    chosen = [int(np.argmin(cost_by_level(histories, usd))) for usd in (1e-6, 0.01, 0.1, 1.0, 1e6)]
    assert chosen == sorted(chosen) and chosen[0] == 0
    late = sum(past.late_tokens for past in histories)
    assert late[chosen[-1]] == late.min()


def test_levels_lie_between_those_that_the_forecast_holds() -> None:
    rng = np.random.default_rng(1)
    series = DemandSeries(SeriesKey("m", "r", "t"), 0.0, 900.0, rng.uniform(1, 9, 60), "requests")
    prediction = forecaster("last-value").fit(series).predict(4)
    for k, level in enumerate(QUANTILE_LEVELS):
        np.testing.assert_allclose(
            quantiles_at_levels(prediction)[k], prediction.quantile(float(level))
        )


def test_past_decisions_are_over_when_the_first_one_falls(stored: StoredTrace) -> None:
    inputs = plan_input(asked(), stored)
    window, begins = inputs.window, inputs.traffic.demand.start_s
    known = window.origins_s[0]
    for at_once in (False, True):
        origins = past_origins(window, begins, at_once=at_once)
        ends = origins + window.start_s - known + (window.duration_s if at_once else HOUR)
        assert (ends <= known + 1e-6).all() and ends[-1] == pytest.approx(known)
        assert origins[0] - begins >= (known - begins) / 2 - 1e-6
    assert not past_origins(replace(window, start_s=begins + 12 * HOUR), begins, at_once=False).size


def test_a_week_is_chosen_for_on_several_weeks_before_it(stored: StoredTrace) -> None:
    """One decision is too high or too low as a whole: four of them are looked back on."""
    inputs = plan_input(asked(), stored)
    week = 7 * 24 * HOUR
    start = inputs.traffic.demand.start_s + 12 * week
    window = replace(inputs.window, start_s=start, end_s=start + week, after_traffic=True)
    origins = past_origins(window, start - 12 * week, at_once=True)
    np.testing.assert_allclose(origins, start - week * np.arange(4, 0, -1))
    early = past_origins(window, start - 4 * week, at_once=True)
    np.testing.assert_allclose(early, start - week * np.arange(2, 0, -1))  # half of what is known


def test_few_decisions_leave_some_of_what_may_be_late() -> None:
    """By hand: of 5% that may be late half is left after one decision, a fifth after four."""
    assert coverage_needed(0.95, 1) == pytest.approx(0.975)
    assert coverage_needed(0.95, 4) == pytest.approx(0.96)
    shares = [coverage_needed(0.95, n) for n in range(1, 200)]
    assert shares == sorted(shares, reverse=True) and shares[-1] > 0.95


def test_nothing_after_the_first_decision_is_looked_at(stored: StoredTrace) -> None:
    inputs = plan_input(asked(), stored)
    known = inputs.window.origins_s[0]
    demand = inputs.traffic.demand
    after = demand.edges_s >= known - 1e-6

    def other(values: np.ndarray) -> np.ndarray:
        return np.where(after, 9 * values[:, ::-1], values)

    changed = Demand(
        demand.keys, demand.start_s, demand.bin_s, *map(other, (
            demand.requests, demand.input_tokens, demand.output_tokens)),
    )  # fmt: skip
    again = replace(inputs, traffic=replace(inputs.traffic, demand=changed))
    assert quantile(again) == quantile(inputs)
    assert quantile(inputs).basis == CHOSEN


def test_a_tier_that_asks_for_more_is_planned_for_no_lower(stored: StoredTrace) -> None:
    def at(percentile: float) -> PlannedQuantile:
        tier = {"name": "chat", "ttft_ms": 1000, "tbt_ms": 100, "percentile": percentile}
        return quantile(plan_input(asked(tiers=[tier], forecast__method="arima"), stored))

    loose, usual, strict = at(60), at(90), at(99.9)
    order = [PLANNING_LEVELS.index(planned.planning_level) for planned in (loose, usual, strict)]
    assert order == sorted(order)
    assert usual.covered is not None and usual.covered >= 0.9
    assert strict.quantile == 0.95 and order[2] > order[1]


def test_the_plan_stands_on_what_was_chosen(stored: StoredTrace) -> None:
    chosen = plan_window(plan_input(asked(), stored), silent)
    (planned,) = chosen.quantiles
    stated = plan_window(plan_input(asked(forecast__quantile=planned.quantile), stored), silent)
    assert stated.quantiles[0].basis == STATED
    np.testing.assert_allclose(chosen.load.tps, planned.times * stated.load.tps)
    mean = plan_window(plan_input(asked(forecast__quantile="mean"), stored), silent)
    assert mean.quantiles[0].quantile is None
    np.testing.assert_array_equal(mean.load.tps, mean.load.expected_tps)
    assert chosen.load.tps.sum() > mean.load.tps.sum()
    other = forecast_load(plan_input(asked(), stored), silent, method="seasonal-naive")
    assert other.quantiles == () and other.forecasts[0].planning_level == MEAN


def test_late_requests_at_a_price_move_it(stored: StoredTrace) -> None:
    def at(usd: float) -> PlanningLevel:
        arima = asked(forecast__late_usd=usd, forecast__method="arima")
        return quantile(plan_input(arima, stored)).planning_level

    assert at(1e-9) == PLANNING_LEVELS[0]
    assert PLANNING_LEVELS.index(at(1e3)) >= PLANNING_LEVELS.index(PlanningLevel(0.95))


def test_too_little_history_is_said_and_the_tiers_share_stands_in(stored: StoredTrace) -> None:
    inputs = plan_input(asked(), stored)
    early = inputs.traffic.demand.start_s + 18 * HOUR
    window = replace(inputs.window, start_s=early, end_s=early + 6 * HOUR)
    planned = quantile(replace(inputs, window=window))
    assert (planned.basis, planned.quantile) == (ASSUMED, 0.95)
    assert "Too little" in planned.why and planned.covered is None


def test_it_is_chosen_once_for_all_windows_of_a_study(stored: StoredTrace) -> None:
    inputs = plan_input(asked(), stored)
    inputs = replace(inputs, quantiles=quantiles_of(inputs))
    day = 24 * HOUR
    window = replace(
        inputs.window, start_s=inputs.window.start_s - day, end_s=inputs.window.end_s - day
    )
    earlier = replace(inputs, window=window)
    assert quantile(earlier) is quantile(inputs)
    assert [at_once for at_once, _ in inputs.quantiles.chosen_so_far] == [False]  # type: ignore[union-attr]


def test_room_is_priced_at_the_cheapest_column(stored: StoredTrace) -> None:
    inputs = plan_input(asked(), stored, theta_tps=500.0)
    np.testing.assert_allclose(usd_per_tps(inputs.hardware, inputs.sizes), [[2 / 500]])
