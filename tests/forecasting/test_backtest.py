import numpy as np
import pytest

from forecasting.backtest import (
    bias,
    coverage,
    mase,
    mean_absolute_error,
    peak_wape,
    rolling_forecasts,
    wape,
)
from forecasting.errors import SeriesTooShort
from forecasting.rule_forecaster import RuleForecaster
from forecasting.selection import Perfect
from tests.forecasting.rolling import backtest

NAN = np.nan
ACTUAL = np.array([[10.0, 20.0], [NAN, 30.0], [NAN, NAN]])
MEAN = np.array([[13.0, 15.0], [99.0, 36.0], [50.0, 50.0]])


def last_value():
    return RuleForecaster("last-value")


class TestErrors:
    def test_by_hand(self):
        assert mean_absolute_error(ACTUAL, MEAN) == pytest.approx((3 + 5 + 6) / 3)
        assert wape(ACTUAL, MEAN) == pytest.approx(14 / 60)
        # maxima 20 and 30 against 15 and 36: the 99 was forecast for a bin nobody saw
        assert peak_wape(ACTUAL, MEAN) == pytest.approx((5 + 6) / 50)
        # one-step changes of the history: 2 and 4, mean 3
        assert mase(ACTUAL, MEAN, np.array([1.0, 3.0, 7.0, NAN, 9.0])) == pytest.approx(14 / 9)
        assert coverage(ACTUAL, MEAN - 5, MEAN + 5) == pytest.approx(2 / 3)

    def test_no_divisor_is_no_number(self):
        zeros, gaps = np.zeros((2, 2)), np.full((2, 2), NAN)
        assert np.isnan(wape(zeros, MEAN[:2])) and np.isnan(peak_wape(zeros, MEAN[:2]))
        assert np.isnan(wape(gaps, MEAN[:2])) and np.isnan(peak_wape(gaps, MEAN[:2]))
        assert np.isnan(coverage(gaps, zeros, zeros))
        assert np.isnan(mase(ACTUAL, MEAN, np.ones(5)))


class TestBacktest:
    def test_last_value_by_hand(self, series):
        demand = series([1.0, 2.0, 4.0, 7.0, 11.0, 16.0])
        result = backtest(demand, last_value, horizon_bins=2, origins=2)
        np.testing.assert_array_equal(result.origins_s, [1800.0, 3600.0])
        np.testing.assert_array_equal(result.actual, [[4.0, 7.0], [11.0, 16.0]])
        np.testing.assert_array_equal(result.mean, [[2.0, 2.0], [7.0, 7.0]])
        assert result.wape == pytest.approx((2 + 5 + 4 + 9) / 38)
        assert result.mase == pytest.approx(5.0)  # mean error 5, history moved by 1
        assert [forecast.start_s for forecast in result.forecasts] == [1800.0, 3600.0]

    def test_stride_moves_the_origins(self, series):
        result = backtest(series(np.arange(20.0)), last_value, 4, origins=3, stride_bins=1)
        np.testing.assert_array_equal(result.actual[:, 0], [14.0, 15.0, 16.0])

    def test_the_truth_has_no_error(self, series, daily_demand):
        demand = series(daily_demand(2, noise=0.2))
        result = backtest(demand, lambda: Perfect(demand), 4, 20)
        assert (result.wape, result.peak_wape, result.mase) == (0.0, 0.0, 0.0)
        assert result.coverage80 == 1.0

    def test_too_many_origins(self, series):
        with pytest.raises(SeriesTooShort, match="need at least 21 bins and there are 10"):
            backtest(series(np.ones(10)), last_value, 4, 5)


class TestRollingForecasts:
    def test_covers_lead_and_window_from_each_origin(self, series):
        forecasts = rolling_forecasts(series(np.arange(9.0)), last_value(), [2700.0, 8100.0], 3)
        assert [f.start_s for f in forecasts] == [2700.0, 8100.0]  # the last: the very end
        np.testing.assert_array_equal([f.mean for f in forecasts], [[2.0] * 3, [8.0] * 3])

    def test_fits_once(self, series):
        class Counting(RuleForecaster):
            fits = 0

            def fit(self, series):
                Counting.fits += 1
                return super().fit(series)

        counting = Counting("last-value")
        rolling_forecasts(series(np.arange(9.0)), counting, [2700.0, 3600.0, 8100.0], 1)
        assert Counting.fits == 1


def test_bias_is_above_zero_where_more_was_forecast_than_came():
    assert bias(ACTUAL, MEAN) == pytest.approx((3 - 5 + 6) / 60)
