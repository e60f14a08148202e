import numpy as np
from statsmodels.tsa.arima.model import ARIMA

from forecasting.models.arima_order import fit_orders
from forecasting.models.state_space import StateSpace


def test_local_level_by_hand():
    # a random walk seen without noise: after a value it is known, then spreads by 1 per bin
    walk = StateSpace(np.eye(1), np.ones(1), np.eye(1), np.zeros(1), 5 * np.eye(1))
    mean, variance = walk.forecast(2)
    np.testing.assert_allclose((mean, variance), ([0, 0], [5, 6]))
    mean, variance = walk.advance(np.array([3.0])).forecast(3)
    np.testing.assert_allclose((mean, variance), ([3, 3, 3], [1, 2, 3]))
    mean, variance = walk.advance(np.array([3.0, np.nan])).forecast(2)
    np.testing.assert_allclose((mean, variance), ([3, 3], [2, 3]))


def test_agrees_with_statsmodels_after_new_bins_and_gaps():
    rng = np.random.default_rng(2)
    for d in (0, 1):
        values = np.convolve(rng.standard_normal(300), [1.0, 0.8, 0.5], "same")
        values = np.cumsum(values) if d else values
        values[[0, 40, 41, 150]] = [0.0, np.nan, np.nan, np.nan]
        new = np.array([0.5, np.nan, -0.2, 1.0])
        best = fit_orders(values, d, 2, 1)
        mean, variance = best.model.advance(new).forecast(8)
        shock = best.model.shock_cov[d, d]
        model = ARIMA(values, order=best.order, trend="n")
        other = model.smooth([*best.parameters, shock]).append(new).get_forecast(8)
        assert best.order != (0, d, 0)
        np.testing.assert_allclose(mean, other.predicted_mean, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(variance, other.var_pred_mean, rtol=1e-4)
