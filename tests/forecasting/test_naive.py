import numpy as np
import pytest

from forecasting.demand import Panel
from forecasting.errors import ForecastError, SeriesTooShort
from forecasting.rules.naive import LastValue, MovingMaximum, Seasonal, ShapeTimesLevel
from forecasting.selection import Perfect, forecaster

NAN = np.nan


def path(rule, values, origin, steps, bin_s=900.0):
    """Forecast ``steps`` bins from ``origin`` with a fit on the bins before it."""
    panel = Panel(0.0, bin_s, np.array([values], dtype=float))
    return rule.fit(Panel(0.0, bin_s, panel.values[:, :origin])).paths(
        panel, np.array([origin]), steps
    )[0, 0]


class TestLastValue:
    def test_repeats_the_last_observed_amount(self, series):
        forecast = forecaster("last-value").fit(series([3.0, 8, 5, NAN], start_s=900.0)).predict(3)
        np.testing.assert_array_equal(forecast.mean, [5.0, 5.0, 5.0])
        assert (forecast.start_s, forecast.steps) == (900.0 + 4 * 900, 3)

    def test_nothing_before_anything_was_observed(self):
        np.testing.assert_array_equal(path(LastValue(), [NAN, NAN, 4.0], 2, 2), [NAN, NAN])

    def test_needs_two_observed_bins(self, series):
        with pytest.raises(SeriesTooShort, match="at least 2 observed bins and has 1"):
            forecaster("last-value").fit(series([NAN, 1.0, NAN]))


class TestMovingMaximum:
    def test_is_the_largest_of_the_last_observed_bins(self):
        rule = MovingMaximum(3 * 900.0)
        assert path(rule, [9.0, 2.0, 7.0, 3.0], 4, 2).tolist() == [7.0, 7.0]
        assert path(rule, [9.0, 2.0, NAN, 3.0], 4, 1).tolist() == [9.0]

    def test_of_fewer_bins_than_it_looks_back_the_largest_there_is(self):
        assert path(MovingMaximum(3600.0), [5.0, 2.0], 2, 1).tolist() == [5.0]
        assert path(MovingMaximum(60.0), [5.0, 2.0], 2, 1).tolist() == [2.0]


class TestSeasonal:
    season = Seasonal(4 * 900.0)

    def test_exact_on_a_periodic_series(self):
        cycle = np.array([3.0, 9.0, 4.0, 0.0])
        course = path(self.season, np.tile(cycle, 8)[:30], 30, 11)
        np.testing.assert_array_equal(course, np.tile(cycle, 11)[30:41])

    def test_a_gap_falls_back_one_season_more(self):
        course = path(self.season, [1.0, 2, 3, 4, 5, NAN, 7, 8], 8, 4)
        np.testing.assert_array_equal(course, [5.0, 2.0, 7.0, 8.0])

    def test_a_phase_never_seen_is_as_the_bin_before_it(self):
        course = path(self.season, [1.0, NAN, 3.0, 4.0], 4, 4)
        np.testing.assert_array_equal(course, [1.0, 1.0, 3.0, 4.0])

    def test_beyond_a_season_it_repeats_what_was_seen_not_what_is_to_come(self):
        course = path(self.season, [1.0, 2, 3, 4, 70, 70, 70, 70, 70, 70], 4, 6)
        np.testing.assert_array_equal(course, [1.0, 2, 3, 4, 1, 2])

    def test_needs_a_season(self, series):
        with pytest.raises(SeriesTooShort, match=r"one season .96 bins.* has 95 bins"):
            forecaster("seasonal-naive").fit(series(np.ones(95)))

    def test_refuses_bins_that_do_not_divide_the_season(self, series):
        with pytest.raises(ForecastError, match="not a whole number of bins"):
            forecaster("seasonal-naive").fit(series(np.ones(500), bin_s=700.0))


class TestPerfect:
    def test_tells_the_truth(self, series):
        truth = series([1.0, 2.0, 3.0, 4.0, NAN, 6.0])
        fitted = Perfect(truth).fit(truth.window(0.0, 1800.0))
        np.testing.assert_array_equal(fitted.predict(3).mean, [3.0, 4.0, 5.0])
        fitted.update(truth.window(1800.0, 2700.0))
        forecast = fitted.predict(3)
        np.testing.assert_array_equal(forecast.mean, [4.0, 5.0, 6.0])
        np.testing.assert_array_equal(forecast.quantiles, np.tile([4.0, 5.0, 6.0], (7, 1)))

    def test_knows_nothing_beyond_the_truth(self, series):
        truth = series([1.0, 2.0, 3.0])
        with pytest.raises(ForecastError, match="covers bins 0 to 2, not bins 2 to 3"):
            Perfect(truth).fit(truth.window(0.0, 1800.0)).predict(2)


def test_a_quantile_beyond_those_held_is_refused_not_clipped(series):
    forecast = forecaster("last-value").fit(series([1.0, 2.0, 4.0])).predict(2)
    assert np.all(forecast.quantile(0.95) >= forecast.quantile(0.05))
    with pytest.raises(ForecastError, match=r"0.99 is outside 0.05 to 0.95"):
        forecast.quantile(0.99)


class TestShapeTimesLevel:
    def test_repeats_the_mean_season_at_the_level_of_the_last_day(self):
        half_day = 43_200.0  # a season of two days has four bins
        first, second = [1.0, 3, 2, 2], [3.0, 5, 4, 4]
        rule = ShapeTimesLevel(4 * half_day, seasons=2)
        values = [*first, *second, 4.0, 8.0, *[NAN] * 4]
        # The last day had 12 where the mean of the two seasons has 6: twice its 3, 3, 3.5 and 6.5.
        np.testing.assert_allclose(path(rule, values, 10, 4, half_day), [6, 6, 7, 13])

    def test_without_a_season_and_a_day_it_says_nothing(self):
        rule = ShapeTimesLevel(4 * 43_200.0, seasons=2)
        assert np.isnan(path(rule, np.arange(12.0), 5, 2, 43_200.0)).all()


class TestLastDay:
    """Until errors are known a day ahead, the last day is repeated."""

    @pytest.mark.parametrize("method", ["auto", "ensemble"])
    def test_one_short_last_bin_does_not_decide(self, series, method):
        # The hours not seen lie between the last hour and the first one.
        values = [300.0] * 4 + [400.0, NAN, 300.0, 100.0]
        forecast = forecaster(method, horizon_bins=88).fit(series(values)).predict(88)
        np.testing.assert_allclose(forecast.mean[[0, -1]], [800 / 3, 300.0], atol=0.5)
        assert (np.diff(forecast.mean) > 0).all()
        median = forecast.levels.index(0.5)
        np.testing.assert_allclose(forecast.peak_quantiles[median, -1], 400.0)

    def test_an_hour_without_data_repeats_the_last_observed_bin(self, series):
        forecast = forecaster("auto", horizon_bins=9).fit(series([7.0, 7.0] + [NAN] * 6)).predict(9)
        np.testing.assert_allclose(forecast.mean, 7.0)

    @pytest.mark.parametrize("hours", [24, 31, 47])
    def test_the_second_day_is_as_the_first(self, series, daily_demand, hours):
        demand = daily_demand(2, bin_s=3600.0)
        known = series(demand[:hours], 3600.0)
        forecast = forecaster("auto", horizon_bins=1).fit(known).predict(24)
        hour = hours + np.arange(1, 24)  # beyond the window of one hour
        np.testing.assert_allclose(forecast.mean[1:], demand[hour - 24])
