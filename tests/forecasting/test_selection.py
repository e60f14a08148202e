import pytest

from forecasting.errors import ForecastError
from forecasting.models.oracle import Perfect
from forecasting.models.rule_forecaster import RuleForecaster
from forecasting.selection import METHODS, forecaster


def test_by_name(series):
    assert isinstance(forecaster("arima"), RuleForecaster)
    assert isinstance(forecaster("perfect", truth=series([1.0])), Perfect)
    assert isinstance(forecaster("auto", horizon_bins=8), RuleForecaster)
    for method in METHODS:
        assert forecaster(method, truth=series([1.0])).method == method


def test_unknown_names_and_a_missing_truth_say_what_to_do():
    with pytest.raises(ForecastError, match="no method 'prophet'"):
        forecaster("prophet")
    with pytest.raises(ForecastError, match="Pass the series to come as truth"):
        forecaster("perfect")
