import numpy as np
import pytest

from forecasting.errors import ForecastError, SeriesTooShort
from forecasting.models.arima import Arima
from forecasting.models.baselines import LastValue, Perfect, SeasonalNaive
from forecasting.selection import Auto, forecaster, select

HOUR_S = 3600.0
NAIVE = ("seasonal-naive", "last-value")


def test_by_name(series):
    assert isinstance(forecaster("arima"), Arima)
    assert isinstance(forecaster("last-value"), LastValue)
    assert forecaster("seasonal-naive", season_s=7200.0).season_s == 7200.0
    assert isinstance(forecaster("perfect", truth=series([1.0])), Perfect)
    assert isinstance(forecaster("auto", horizon_bins=8), Auto)
    assert isinstance(forecaster("seasonal-naive"), SeasonalNaive)


def test_unknown_names_and_a_missing_truth_say_what_to_do():
    with pytest.raises(ForecastError, match="no method 'prophet'; choose one of auto, arima"):
        forecaster("prophet")
    with pytest.raises(ForecastError, match="pass the series to come as truth"):
        forecaster("perfect")


def test_a_periodic_series_chooses_the_season_and_a_walk_the_last_value(series, daily_demand):
    periodic = select(series(daily_demand(5)), 8, NAIVE)
    assert periodic.method == "seasonal-naive"
    walk = 1000 + np.cumsum(np.random.default_rng(1).standard_normal(480))
    selection = select(series(walk), 1, NAIVE)
    assert selection.method == "last-value"
    errors = {method: tested.mae for method, tested in selection.backtests.items()}
    assert errors["last-value"] == min(errors.values())


def test_candidates_that_refuse_are_kept_with_their_reason(series):
    selection = select(series(np.arange(20.0) + 1, bin_s=HOUR_S), 2)
    assert selection.method == "last-value"
    assert "24 observed bins" in selection.refused["arima"]
    assert "one season, 24 bins" in selection.refused["seasonal-naive"]


def test_a_series_without_demand_still_chooses(series):
    assert select(series(np.zeros(200)), 4, NAIVE).method in NAIVE


def test_nothing_to_try_is_a_sentence(series):
    with pytest.raises(SeriesTooShort, match="no method can be tried on 2 bins"):
        select(series([1.0, 2.0]), 4)


def test_auto_fits_the_choice_on_all_of_the_history(series, daily_demand):
    demand = series(daily_demand(4, noise=0.1))
    auto = Auto(8, NAIVE)
    assert auto.method == "auto"
    forecast = auto.fit(demand).predict(8)
    assert auto.method == forecast.method == "seasonal-naive"
    np.testing.assert_array_equal(forecast.mean, demand.values[-96:-88])
