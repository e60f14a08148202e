"""The Planner's ARIMA against statsmodels, whose search it repeats."""

import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from statsmodels.tsa.statespace.sarimax import SARIMAX

from simulation.policies.parts.arima_predictor import MIN_VALUES, ArimaPredictor

# Requests per interval whose first five values lead to the named order, with an intercept.
SERIES = {
    (1, 0, 0): [559, 497, 425, 327, 312, 258, 205, 191, 215, 230, 277, 350, 412, 480, 520],
    (0, 0, 1): [310, 280, 330, 290, 305, 299, 312, 288, 301, 320, 295, 307, 290, 315, 300],
}


def predictions(values):
    predictor, found = ArimaPredictor(), []
    for value in values:
        predictor.add(float(value))
        found.append(predictor.predict())
    return found


def by_statsmodels(values, order, **search):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = SARIMAX(np.asarray(values, float), order=order, trend="c")
        return model.fit(disp=0, method="lbfgs", **search)


@pytest.mark.parametrize("order", SERIES)
def test_forecasts_are_those_of_statsmodels(order):
    values = SERIES[order]
    found = predictions(values)
    fit = by_statsmodels(values[:MIN_VALUES], order, maxiter=50)
    expected = [float(fit.forecast(1)[0])]
    for n in range(MIN_VALUES + 1, len(values) + 1):
        fit = by_statsmodels(values[:n], order, start_params=fit.params, maxiter=5)
        expected.append(float(fit.forecast(1)[0]))
    # A search that ends after five steps depends on rounding.
    assert found[MIN_VALUES - 1 :] == pytest.approx(expected, rel=0.05)


def test_the_first_requests_are_awaited_and_few_values_repeat_the_last():
    assert predictions([0, 0, 7, 3, 9]) == [0.0, 0.0, 7.0, 3.0, 9.0]
    assert predictions([4, 4, 4, 4, 4, 4])[-1] == 4.0


@given(st.lists(st.integers(0, 10_000), min_size=6, max_size=12))
@settings(max_examples=10)
def test_a_forecast_is_finite_and_not_negative(values):
    found = predictions(values)
    assert np.isfinite(found).all() and min(found) >= 0.0
