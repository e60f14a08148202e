import numpy as np
import pytest

from forecasting.errors import ForecastError, SeriesTooShort
from forecasting.forecast import QUANTILES
from forecasting.models.baselines import (
    MIN_ERRORS,
    LastValue,
    Perfect,
    SeasonalNaive,
    _lagged_errors,
    _longest_lag,
)

NAN = np.nan
MEDIAN = QUANTILES.index(0.5)


class TestLastValue:
    def test_repeats_the_last_observed_amount(self, series):
        forecast = LastValue().fit(series([3.0, 8.0, 5.0, NAN], start_s=900.0)).predict(3)
        np.testing.assert_array_equal(forecast.mean, [5.0, 5.0, 5.0])
        assert (forecast.start_s, forecast.steps) == (900.0 + 4 * 900, 3)

    def test_errors_of_a_ramp_are_its_slope_times_the_step(self, series):
        forecast = LastValue().fit(series(np.arange(60.0))).predict(40)
        expected = 59 + np.arange(1, 41)
        np.testing.assert_allclose(forecast.quantiles, np.tile(expected, (len(QUANTILES), 1)))

    def test_gaps_before_the_origin_lengthen_the_step(self, series):
        ramp = np.arange(60.0)
        ramp[-2:] = NAN
        forecast = LastValue().fit(series(ramp)).predict(1)
        np.testing.assert_allclose(forecast.quantiles[:, 0], 57 + 3)  # three bins after bin 57

    def test_too_few_errors_grow_as_a_random_walk(self, series):
        # one-step errors 2, -1, 2: median 2; four steps ahead sqrt(4) times that
        forecast = LastValue().fit(series([2.0, 4.0, 3.0, 5.0])).predict(4)
        np.testing.assert_allclose(forecast.quantiles[MEDIAN], 5 + 2 * np.sqrt([1, 2, 3, 4]))

    def test_level_shift_shifts_the_forecast(self, series):
        values = 500 + np.random.default_rng(1).normal(0, 5, 200)
        low, high = (LastValue().fit(series(values + shift)).predict(4) for shift in (0.0, 70.0))
        np.testing.assert_allclose(high.quantiles, low.quantiles + 70.0)

    def test_needs_two_observed_bins(self, series):
        with pytest.raises(SeriesTooShort, match="at least 2 observed bins and has 1"):
            LastValue().fit(series([NAN, 1.0, NAN]))


class TestSeasonalNaive:
    season = SeasonalNaive(season_s=4 * 900.0)

    def test_exact_on_a_periodic_series(self, series):
        cycle = np.array([3.0, 9.0, 4.0, 0.0])
        forecast = self.season.fit(series(np.tile(cycle, 8)[:30])).predict(11)
        expected = np.tile(cycle, 11)[30:41]
        np.testing.assert_array_equal(forecast.mean, expected)
        np.testing.assert_allclose(forecast.quantiles, np.tile(expected, (len(QUANTILES), 1)))

    def test_a_gap_falls_back_one_season_more(self, series):
        forecast = self.season.fit(series([1.0, 2, 3, 4, 5, NAN, 7, 8])).predict(4)
        np.testing.assert_array_equal(forecast.mean, [5.0, 2.0, 7.0, 8.0])

    def test_a_phase_never_seen_lies_between_its_neighbours(self, series):
        forecast = self.season.fit(series([NAN, 2.0, 3.0, 4.0])).predict(4)
        np.testing.assert_array_equal(forecast.mean, [3.0, 2.0, 3.0, 4.0])  # between 4 and 2

    def test_band_is_that_of_the_errors_and_grows_with_seasons(self, series):
        # every season is 10 above the one before: all errors are 10
        values = 10.0 * np.repeat(np.arange(10), 4)
        forecast = self.season.fit(series(values)).predict(8)
        np.testing.assert_allclose(forecast.quantiles[:, :4], 90 + 10)
        np.testing.assert_allclose(forecast.quantiles[:, 4:], 90 + 10 * np.sqrt(2))

    def test_one_season_alone_has_a_band_as_wide_as_itself(self, series):
        values = np.array([10.0, 20.0, 30.0, 40.0])
        forecast = self.season.fit(series(values)).predict(4)
        deviations = np.quantile(values - 25.0, QUANTILES)
        np.testing.assert_allclose(forecast.quantiles[:, 2], 30.0 + deviations)

    def test_update_moves_the_phase(self, series):
        first = self.season.fit(series([1.0, 2, 3, 4]))
        later = first.update(series([5.0, NAN], start_s=4 * 900.0)).predict(4)
        np.testing.assert_array_equal(later.mean, [3.0, 4.0, 5.0, 2.0])

    def test_needs_a_season(self, series):
        with pytest.raises(SeriesTooShort, match=r"one season, 96 bins.* it has 95 bins"):
            SeasonalNaive().fit(series(np.ones(95)))

    def test_refuses_bins_that_do_not_divide_the_season(self, series):
        with pytest.raises(ForecastError, match="not a whole number of bins"):
            SeasonalNaive().fit(series(np.ones(500), bin_s=700.0))


class TestPerfect:
    def test_tells_the_truth(self, series):
        truth = series([1.0, 2.0, 3.0, 4.0, NAN, 6.0])
        told = Perfect(truth).fit(truth.window(0.0, 1800.0))
        np.testing.assert_array_equal(told.predict(3).mean, [3.0, 4.0, 5.0])
        told.update(truth.window(1800.0, 2700.0))
        forecast = told.predict(3)
        np.testing.assert_array_equal(forecast.mean, [4.0, 5.0, 6.0])
        np.testing.assert_array_equal(forecast.quantiles, np.tile([4.0, 5.0, 6.0], (7, 1)))

    def test_knows_nothing_beyond_the_truth(self, series):
        truth = series([1.0, 2.0, 3.0])
        with pytest.raises(ForecastError, match="covers bins 0 to 2 and bins 2 to 3 are asked for"):
            Perfect(truth).fit(truth.window(0.0, 1800.0)).predict(2)

    def test_refuses_another_series(self, series):
        with pytest.raises(ForecastError, match="give the truth of the same series"):
            Perfect(series([1.0, 2.0])).fit(series([1.0], model="mixtral"))
        with pytest.raises(ForecastError, match="same bin edges"):
            Perfect(series([1.0, 2.0])).fit(series([1.0], start_s=450.0))


@pytest.mark.parametrize("gaps", [0, 3, 60, 80, 95])
def test_the_longest_lag_is_the_last_with_enough_pairs(gaps):
    values = np.ones(100)
    values[np.random.default_rng(gaps).choice(100, gaps, replace=False)] = NAN
    sizes = [_lagged_errors(values, lag).size for lag in range(1, 100)]
    enough = [lag for lag, size in enumerate(sizes, 1) if size >= MIN_ERRORS]
    assert _longest_lag(values) == (enough[-1] if enough else 1 + sizes.index(max(sizes)))


def test_a_quantile_beyond_those_held_is_refused_not_clipped(series):
    forecast = LastValue().fit(series([1.0, 2.0, 4.0])).predict(2)
    assert np.all(forecast.quantile(0.95) >= forecast.quantile(0.05))
    with pytest.raises(ForecastError, match=r"0.99 is outside 0.05 to 0.95"):
        forecast.quantile(0.99)
