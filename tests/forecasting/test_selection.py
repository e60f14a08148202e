import pytest

from forecasting.errors import ForecastError
from forecasting.selection import forecaster


def test_unknown_names_and_a_missing_truth_say_what_to_do():
    with pytest.raises(ForecastError, match="no method 'prophet'"):
        forecaster("prophet")
    with pytest.raises(ForecastError, match="Pass the series to come as truth"):
        forecaster("perfect")
