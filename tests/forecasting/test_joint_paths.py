"""Joint paths: marginals of the forecast, errors together over hours and series."""

import numpy as np
import pytest

from forecasting.joint_paths import joint_paths, panel_forecast
from tests.forecasting.conftest import build

HOUR_S = 3600.0


@pytest.fixture(scope="module")
def made():
    """Three weeks of two services whose days share a level, and of one with its own."""
    rng = np.random.default_rng(1)
    hours = np.arange(21 * 24)
    shape = 100 + 50 * np.sin(2 * np.pi * hours / 24)
    own = np.exp(0.2 * rng.standard_normal((2, 21)).repeat(24, axis=1))
    level = np.stack([own[0], own[0], own[1]])
    return shape * level * rng.lognormal(0, 0.03, level.shape)


@pytest.fixture(scope="module")
def forecast(made):
    series = [build(row, HOUR_S, model=name) for row, name in zip(made, "abc", strict=True)]
    return panel_forecast(series, "auto", 1, 24)


def test_marginals_are_the_quantiles_of_the_forecast(forecast):
    paths = joint_paths(forecast, 4000, seed=0)
    assert paths.shape == (4000, 3, 24)
    for i, level in enumerate(forecast.levels):
        below = (paths <= forecast.quantiles[:, i]).mean(axis=0)
        np.testing.assert_allclose(below, level, atol=0.02)


def test_the_same_seed_gives_the_same_paths(forecast):
    first, again, other = (joint_paths(forecast, 50, seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    assert np.isfinite(first).all() and (first >= 0).all()


def test_errors_stay_together_over_hours_and_series(forecast):
    ratio = joint_paths(forecast, 2000, seed=0) / forecast.mean
    day = np.corrcoef(ratio[:, :, 6:].mean(axis=2).T)
    assert day[0, 1] > 0.8 > 0.5 > abs(day[0, 2])
    hours = np.corrcoef(ratio[:, 0].T)
    assert hours[14, 15] > 0.7


@pytest.mark.parametrize("days", [0.1, 0.5, 3])
def test_on_short_history_paths_are_within_the_limit(days, series, daily_demand):
    values = daily_demand(4, noise=0.1, bin_s=HOUR_S)[: round(days * 24)]
    short = panel_forecast([series(values, HOUR_S)], "auto", 1, 24)
    paths = joint_paths(short, 300, seed=0)
    assert np.isfinite(paths).all() and (paths >= 0).all()
    assert paths.max() <= 2 * values.max()


def test_without_past_errors_all_series_of_a_path_have_one_rank(series):
    short = panel_forecast([series([100.0, 110.0]), series([50.0, 60.0], model="b")], "auto", 1, 8)
    paths = joint_paths(short, 200, seed=0)
    first, second = paths.swapaxes(0, 1).argsort(axis=1)
    np.testing.assert_array_equal(first, second)


def test_an_unknown_daily_rhythm_swings_paths_but_keeps_their_marginals(series):
    values = np.random.default_rng(2).lognormal(4.0, 0.05, 12)
    short = panel_forecast([series(values, HOUR_S), series(2 * values, HOUR_S)], "auto", 1, 24)
    paths = joint_paths(short, 4000, seed=0)
    for i, level in enumerate(short.levels):
        below = (paths <= short.quantiles[:, i]).mean(axis=0)
        within = short.quantiles[:, i] < short.limit
        np.testing.assert_allclose(below[within], level, atol=0.02)
    ratio = np.log(paths / short.mean)
    hours = np.corrcoef(ratio[:, 0].T)
    # Half a day apart, a sinusoid has opposite signs. All series share its phase.
    assert hours[3, 15] < hours[3, 9] < hours[3, 4]
    assert np.corrcoef(ratio[:, 0, 11], ratio[:, 1, 11])[0, 1] > 0.9


def test_the_prior_knows_the_rhythm_from_the_second_day_on(series, daily_demand):
    hours = daily_demand(3, noise=0.1, bin_s=HOUR_S)
    first = {"auto": (23, 24), "kalman": (47, 48)}  # auto repeats the first day
    for method, (unknown, known) in first.items():
        assert panel_forecast([series(hours[:unknown], HOUR_S)], method, 1, 24).swing
        assert not panel_forecast([series(hours[:known], HOUR_S)], method, 1, 24).swing


def test_a_named_method_keeps_its_own_quantiles(series, daily_demand):
    demand = [series(daily_demand(9, noise=0.1, bin_s=HOUR_S, seed=k), HOUR_S) for k in (1, 2)]
    arima = panel_forecast(demand, "arima", 1, 12)
    below = (joint_paths(arima, 2000, seed=0) <= arima.quantiles[:, 5]).mean(axis=0)
    np.testing.assert_allclose(below, arima.levels[5], atol=0.03)
