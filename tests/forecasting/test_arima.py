import warnings

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from forecasting.backtest import backtest
from forecasting.errors import SeriesTooShort
from forecasting.forecast import QUANTILES
from forecasting.harmonics import Harmonics, candidate_harmonics, choose_harmonics, regress
from forecasting.models import arima_order
from forecasting.models.arima import Arima, Limits, _mean_square
from forecasting.models.arima_order import choose_differences, fit_orders

HOUR_S, DAY = 3600.0, 24


def autoregression(phi, bins, seed):
    """Stationary AR(1) of unit variance."""
    rng = np.random.default_rng(seed)
    shocks = rng.standard_normal(bins) * np.sqrt(1 - phi**2)
    values = np.empty(bins)
    values[0] = rng.standard_normal()
    for t in range(1, bins):
        values[t] = phi * values[t - 1] + shocks[t]
    return values


class TestOrders:
    @pytest.mark.parametrize("phi", [-0.5, 0.3, 0.8])
    def test_recovers_an_autoregression(self, phi):
        best = fit_orders(autoregression(phi, 3000, seed=1), 0, 1, 0)
        assert best.order == (1, 0, 0)
        assert best.parameters[0] == pytest.approx(phi, abs=3 * np.sqrt((1 - phi**2) / 3000))

    def test_recovers_it_through_gaps(self):
        values = autoregression(0.8, 3000, seed=2)
        values[np.random.default_rng(0).random(3000) < 0.3] = np.nan
        assert fit_orders(values, 0, 1, 0).parameters[0] == pytest.approx(0.8, abs=0.05)

    def test_white_noise_stays_white(self):
        values = np.random.default_rng(3).standard_normal(2000)
        values /= np.sqrt(np.mean(values**2))
        assert fit_orders(values, 0, 1, 1).order == (0, 0, 0)

    def test_an_order_that_does_not_converge_is_left_out(self, monkeypatch):
        values = autoregression(0.8, 300, seed=4)
        fit_of_all = arima_order._fit
        monkeypatch.setattr(
            arima_order, "_fit", lambda u, order: None if order[0] == 1 else fit_of_all(u, order)
        )
        assert fit_orders(values, 0, 2, 0).order == (2, 0, 0)

    def test_one_difference_for_a_walk_and_none_for_noise(self):
        noise = np.random.default_rng(5).standard_normal((60, 500))
        walks = [choose_differences(np.cumsum(row)) for row in noise]
        still = [choose_differences(row) for row in noise]
        related = [choose_differences(autoregression(0.8, 500, seed)) for seed in range(60)]
        assert np.mean(walks) > 0.8
        assert np.mean(related) < 0.25  # strong but stationary: most stay undifferenced
        assert np.mean(still) < 0.15  # a test at 5%


class TestHarmonics:
    def test_what_a_history_can_tell_apart(self):
        assert candidate_harmonics(HOUR_S, 2 * DAY - 1, 6, 3) == (Harmonics(),)
        assert max(h.daily for h in candidate_harmonics(HOUR_S, 2 * DAY, 6, 3)) == 6
        assert max(h.weekly for h in candidate_harmonics(HOUR_S, 14 * DAY - 1, 6, 3)) == 0
        assert max(h.weekly for h in candidate_harmonics(HOUR_S, 14 * DAY, 6, 3)) == 3
        assert candidate_harmonics(12 * HOUR_S, 100, 6, 3) == (Harmonics(),)
        assert (
            max(h.daily for h in candidate_harmonics(6 * HOUR_S, 100, 6, 3)) == 1
        )  # below Nyquist
        assert candidate_harmonics(HOUR_S, 20 * DAY, 6, 3)[0] == Harmonics()

    @pytest.mark.parametrize("d", [0, 1])
    @pytest.mark.parametrize("truth", [Harmonics(), Harmonics(2), Harmonics(1, 2)])
    def test_finds_the_cycles_that_are_there(self, d, truth):
        bins = 28 * DAY
        errors = 0.3 * autoregression(0.7, bins, seed=6)
        weights = np.ones(1 + 2 * (truth.daily + truth.weekly))
        values = truth.design(0.0, HOUR_S, bins) @ weights + errors
        values[200:215] = np.nan
        order = choose_harmonics(values, d, 0.0, HOUR_S, candidate_harmonics(HOUR_S, bins, 3, 3))
        assert (order.daily, order.weekly) >= (truth.daily, truth.weekly)
        assert order.daily + order.weekly <= truth.daily + truth.weekly + 2  # AIC may take a few
        design = truth.design(0.0, HOUR_S, bins)
        estimate = regress(values, d, design)
        np.testing.assert_allclose(estimate[1:], weights[1:], atol=0.15)
        assert d == 0 or estimate[0] == 0.0

    def test_reads_as_words(self):
        assert str(Harmonics()) == ""
        assert str(Harmonics(1, 2)) == "1 daily harmonic + 2 weekly harmonics"


class TestArima:
    def test_one_step_ahead_of_an_autoregression_is_phi_times_the_deviation(self, series):
        root = 20 + autoregression(0.8, 2000, seed=9)
        values = np.append(root, 23.0) ** 2
        forecast = Arima(limits=Limits(p=1, q=0)).fit(series(values, bin_s=43_200.0)).predict(3)
        assert forecast.order == "(1, 0, 0)"
        median = np.sqrt(forecast.quantiles[QUANTILES.index(0.5)])
        np.testing.assert_allclose(median, 20 + 3 * 0.8 ** np.arange(1, 4), atol=0.2)

    def test_bands_hold_their_share(self, series):
        values = (20 + autoregression(0.8, 3000, seed=8)) ** 2
        result = backtest(
            series(values, bin_s=43_200.0), lambda: Arima(limits=Limits(p=1, q=0)), 4, 400
        )
        assert result.coverage80 == pytest.approx(0.8, abs=0.04)

    def test_a_noisy_day_is_forecast_to_within_its_noise(self, series, daily_demand):
        history = series(daily_demand(4, noise=0.05))
        forecast = Arima().fit(history).predict(96)
        truth = daily_demand(5)[-96:]
        assert "daily harmonics" in forecast.order
        assert np.abs(forecast.mean - truth).sum() < 0.05 * truth.sum()

    @pytest.mark.parametrize("level", [0.0, 250.0])
    def test_a_constant_stays_and_follows(self, series, level):
        model = Arima().fit(series(np.full(200, level)))
        forecast = model.predict(4)
        np.testing.assert_allclose(forecast.mean, level, atol=1e-6)
        np.testing.assert_allclose(forecast.quantiles, level, atol=1e-5)
        moved = model.update(series([9.0], start_s=200 * 900.0)).predict(2)
        np.testing.assert_allclose(moved.mean, 9.0, atol=1e-6)

    def test_an_exact_cycle_is_continued(self, series):
        bins = np.arange(96 * 5)
        cycle = (10 + 3 * np.sin(2 * np.pi * bins / 96)) ** 2
        forecast = Arima().fit(series(cycle[:384])).predict(96)
        np.testing.assert_allclose(forecast.mean, cycle[384:], rtol=1e-4)

    def test_too_short_says_what_it_needs(self, series):
        values = np.ones(30)
        values[:10] = np.nan
        with pytest.raises(SeriesTooShort, match="at least 24 observed bins and has 20"):
            Arima().fit(series(values))

    def test_a_long_history_is_cut_and_says_so(self, series, daily_demand):
        values = daily_demand(6, noise=0.05, bin_s=HOUR_S)
        short = Arima(limits=Limits(bins=96)).fit(series(values, bin_s=HOUR_S)).predict(5)
        last = Arima().fit(series(values[-96:], bin_s=HOUR_S, start_s=48 * HOUR_S)).predict(5)
        np.testing.assert_allclose(short.mean, last.mean, rtol=1e-9)
        assert short.order == f"{last.order}, on the last 96 bins"

    def test_every_other_bin_missing(self, series, daily_demand):
        values = daily_demand(6, noise=0.05)
        values[::2] = np.nan
        forecast = Arima().fit(series(values)).predict(8)
        truth = daily_demand(7)[values.size : values.size + 8]
        assert np.abs(forecast.mean - truth).sum() < 0.2 * truth.sum()

    @pytest.mark.parametrize("seed", range(3))
    def test_says_nothing_on_stderr(self, series, seed, capfd):
        spiky = np.random.default_rng(seed).pareto(1.1, 80)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            Arima().fit(series(spiky, bin_s=HOUR_S)).predict(4)
        assert capfd.readouterr().err == ""

    @pytest.mark.parametrize(("mean", "deviation"), [(2.0, 0.5), (0.1, 1.0), (-1.0, 0.7)])
    def test_mean_of_the_squared_root(self, mean, deviation):
        expected, _ = quad(lambda z: z**2 * norm.pdf(z, mean, deviation), 0, 10)
        means_ = _mean_square(np.array([mean]), np.array([deviation]))
        np.testing.assert_allclose(means_, expected, rtol=1e-7)

    def test_mean_of_a_certain_root(self):
        means_ = _mean_square(np.array([3.0, 0.0, -3.0]), np.zeros(3))
        np.testing.assert_allclose(means_, [9.0, 0.0, 0.0])
