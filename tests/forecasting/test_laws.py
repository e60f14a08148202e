"""What holds for every forecaster."""

from dataclasses import replace

import numpy as np
import pytest

from forecasting.backtest import rolling_forecasts
from forecasting.errors import ForecastError
from forecasting.forecast import QUANTILES
from forecasting.selection import METHODS as ALL
from forecasting.selection import forecaster

# Told the truth; as arima; two that need more than these histories.
LEFT_OUT = ("perfect", "arima-fourier", "seasonal-naive-week", "week-shape")
METHODS = tuple(method for method in ALL if method not in LEFT_OUT)
HOUR_S = 3600.0


def holed(values, share=0.1, seed=3):
    values = values.copy()
    values[np.random.default_rng(seed).random(values.size) < share] = np.nan
    return values


@pytest.mark.parametrize("method", METHODS)
def test_nothing_at_or_after_an_origin_changes_its_forecast(method, series, daily_demand):
    true = daily_demand(4, noise=0.1, bin_s=HOUR_S)
    origins = [60 * HOUR_S, 61 * HOUR_S, 70 * HOUR_S, 94 * HOUR_S]
    forecasts = rolling_forecasts(series(true, HOUR_S), forecaster(method), origins, 6)
    for index, origin in enumerate(origins):
        other = true.copy()
        other[round(origin / HOUR_S) :] = 7777.0
        changed = rolling_forecasts(series(other, HOUR_S), forecaster(method), origins, 6)
        for before, after in zip(forecasts[: index + 1], changed, strict=False):
            np.testing.assert_array_equal(before.mean, after.mean)
            np.testing.assert_array_equal(before.quantiles, after.quantiles)
        if index + 1 < len(origins):  # the change is felt, so that the test can fail
            assert not np.array_equal(forecasts[-1].mean, changed[-1].mean)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("level", [0.0, 0.3, 50.0])
def test_forecasts_are_ordered_finite_and_never_negative(method, level, series):
    counts = np.random.default_rng(5).poisson(level, 120)
    demand = series(holed(counts.astype(float)), HOUR_S)
    forecast = forecaster(method).fit(demand).predict(30)
    assert forecast.quantiles.shape == (len(QUANTILES), 30)
    assert np.all(np.isfinite(forecast.mean)) and np.all(np.isfinite(forecast.quantiles))
    assert np.all(forecast.mean >= 0) and np.all(forecast.quantiles >= 0)
    assert np.all(np.diff(forecast.quantiles, axis=0) >= 0)


@pytest.mark.parametrize("method", METHODS)
def test_twice_the_demand_is_twice_the_forecast(method, series, daily_demand):
    values = holed(daily_demand(4, noise=0.1, bin_s=HOUR_S))
    once, twice = (
        forecaster(method).fit(series(factor * values, HOUR_S)).predict(12)
        for factor in (1.0, 1000.0)
    )
    np.testing.assert_allclose(twice.mean, 1000 * once.mean, rtol=1e-6)
    np.testing.assert_allclose(twice.quantiles, 1000 * once.quantiles, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("method", METHODS)
def test_a_week_later_is_the_same_forecast(method, series, daily_demand):
    values = daily_demand(4, noise=0.1, bin_s=HOUR_S)
    now, later = (
        forecaster(method).fit(series(values, HOUR_S, start_s=weeks * 604_800.0)).predict(12)
        for weeks in (0, 2800)
    )
    np.testing.assert_allclose(later.mean, now.mean, rtol=1e-6)
    assert later.start_s - now.start_s == 2800 * 604_800.0


@pytest.mark.parametrize("method", METHODS)
def test_gaps_are_not_zeros(method, series, daily_demand):
    gapped = daily_demand(6, noise=0.05, bin_s=HOUR_S)
    least = gapped.min()
    gapped[70:76] = np.nan
    gapped[-26:] = np.nan  # more than a season, so that each method must reach back across it
    with_gaps, with_zeros = (
        forecaster(method).fit(series(values, HOUR_S)).predict(4)
        for values in (gapped, np.nan_to_num(gapped, nan=0.0))
    )
    assert np.all(with_gaps.mean > 0.5 * least)
    assert np.all(with_gaps.mean > 1.5 * with_zeros.mean)


@pytest.mark.parametrize("method", METHODS)
def test_an_update_of_gaps_tells_nothing(method, series):
    walk = 1000 + 10 * np.cumsum(np.random.default_rng(8).standard_normal(120))
    model = forecaster(method).fit(series(walk, HOUR_S))
    before = model.predict(9)
    after = model.update(series(np.full(3, np.nan), HOUR_S, start_s=120 * HOUR_S)).predict(6)
    np.testing.assert_allclose(after.mean, before.mean[3:], rtol=1e-9)
    np.testing.assert_allclose(after.quantiles, before.quantiles[:, 3:], rtol=1e-9)


@pytest.mark.parametrize("method", METHODS)
def test_updates_may_come_in_any_pieces(method, series, daily_demand):
    demand = series(holed(daily_demand(5, noise=0.1, bin_s=HOUR_S)), HOUR_S)

    def after(*edges):
        model = forecaster(method).fit(demand.window(0.0, 96 * HOUR_S))
        for left, right in zip((96, *edges), (*edges, 120), strict=True):
            model.update(demand.window(left * HOUR_S, right * HOUR_S))
        return model.predict(5)

    at_once, in_pieces = after(), after(97, 97, 103, 119)
    np.testing.assert_allclose(in_pieces.mean, at_once.mean, rtol=1e-9)
    np.testing.assert_allclose(in_pieces.quantiles, at_once.quantiles, rtol=1e-9)
    assert in_pieces.start_s == 120 * HOUR_S


@pytest.mark.parametrize("amount", [-1.0, np.inf])
def test_impossible_amounts_are_refused(amount, series, daily_demand):
    spoilt = daily_demand(4, bin_s=HOUR_S)
    spoilt[5] = amount
    with pytest.raises(ForecastError):
        forecaster("last-value").fit(series(spoilt, HOUR_S))


def test_an_error_of_the_level_widens_every_quantile(series, daily_demand):
    plain = series(daily_demand(4, noise=0.1, bin_s=HOUR_S), HOUR_S)
    model = forecaster("ensemble")
    usual = model.fit(plain).predict(6)
    widths = []
    for error in (0.02, 0.2):
        wide = forecaster("ensemble").fit(replace(plain, level_error=error)).predict(6)
        np.testing.assert_array_equal(wide.mean, usual.mean)
        assert (np.diff(wide.quantiles, axis=0) >= -1e-9).all()
        low, high = wide.quantiles[0], wide.quantiles[-1]
        assert (low <= usual.quantiles[0]).all() and (high >= usual.quantiles[-1]).all()
        widths.append((high - low).sum())
    assert widths[0] < widths[1]


def drifting(noise):
    """Return the logarithm of a level that drifts, so that the latest bins tell the most."""
    level = np.zeros(noise.size)
    for i in range(1, noise.size):
        level[i] = 0.98 * level[i - 1] + 0.05 * noise[i]
    return level


@pytest.mark.parametrize("share_kept", [0.0, 0.03, 0.1])
def test_a_band_between_interruptions_does_not_fear_the_return_from_one(share_kept, series):
    """``share_kept`` of the demand remains in an interruption, as when one of two sources fails."""
    rng = np.random.default_rng(11)
    usual = 1000.0 * np.exp(drifting(rng.standard_normal(14 * 24 * 3)))
    interrupted = usual.copy()
    for first in (400, 550, 700, 820, 940, 961, 976):
        interrupted[first : first + 6] *= share_kept
    top = QUANTILES.index(0.95)
    peaks = []
    for values in (usual, interrupted):
        demand = series(values, 1200.0)
        model = forecaster("auto", horizon_bins=3, lead_bins=1).fit(
            demand.window(0.0, 955 * 1200.0)
        )
        for first in range(955, 988, 3):
            model.update(demand.window(first * 1200.0, (first + 3) * 1200.0))
        peaks.append(model.predict(4).peak_quantiles[top, -1])
    assert peaks[1] < 2 * peaks[0]
