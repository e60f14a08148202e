import warnings
from dataclasses import replace

import numpy as np
import pytest
from statsmodels.tsa.arima.model import ARIMA
from statsmodels.tsa.innovations.arma_innovations import arma_innovations
from statsmodels.tsa.stattools import kpss

from forecasting.demand import Panel
from forecasting.errors import SeriesTooShort
from forecasting.harmonics import Harmonics, candidate_harmonics, choose_harmonics, regress
from forecasting.rules.arima import Arima, Limits
from forecasting.rules.arima_fit import choose_differences, exact_shocks, fit_orders
from forecasting.selection import forecaster

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


def moving_average(theta, bins, seed):
    shocks = np.random.default_rng(seed).standard_normal(bins + 1)
    return (shocks[1:] + theta * shocks[:-1]) / np.sqrt(1 + theta**2)


def exact(values, order):
    """Return the maximum-likelihood fit of statsmodels."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ARIMA(values, order=order, trend="n", concentrate_scale=True).fit()


class TestOrders:
    @pytest.mark.parametrize("phi", [-0.5, 0.3, 0.8])
    def test_recovers_an_autoregression(self, phi):
        best = fit_orders(autoregression(phi, 3000, seed=1), 0, 1, 0)
        assert best.order == (1, 0, 0)
        assert best.parameters[0] == pytest.approx(phi, abs=3 * np.sqrt((1 - phi**2) / 3000))

    @pytest.mark.parametrize("theta", [-0.7, 0.4])
    def test_recovers_a_moving_average(self, theta):
        best = fit_orders(moving_average(theta, 3000, seed=2), 0, 0, 1)
        assert best.order == (0, 0, 1)
        assert best.parameters[0] == pytest.approx(theta, abs=3 * np.sqrt((1 - theta**2) / 3000))

    def test_gaps_hardly_move_it(self):
        values = autoregression(0.8, 3000, seed=2)
        values[np.random.default_rng(0).random(3000) < 0.05] = np.nan
        assert fit_orders(values, 0, 1, 0).parameters[0] == pytest.approx(0.8, abs=0.05)

    def test_white_noise_stays_white(self):
        values = np.random.default_rng(3).standard_normal(2000)
        values /= np.sqrt(np.mean(values**2))
        assert fit_orders(values, 0, 1, 1).order == (0, 0, 0)

    @pytest.mark.parametrize(("seed", "d"), [(0, 0), (1, 1)])
    def test_its_likelihood_is_near_the_maximum(self, seed, d):
        """statsmodels' optimiser finds hardly a better likelihood, of that order or any other."""
        rng = np.random.default_rng(seed)
        shocks = rng.standard_normal(602)
        w = shocks[2:] + 0.6 * shocks[1:-1] + 0.2 * shocks[:-2]
        for t in range(1, w.size):
            w[t] += 0.5 * w[t - 1]
        values = (np.cumsum(w) if d else w) / w.std()
        best = fit_orders(values, d, 2, 2)
        theirs = {
            (p, q): exact(np.diff(values, n=d), (p, 0, q)).aic
            for p in range(3)
            for q in range(3)
            if p + q
        }
        p, _, q = best.order
        assert best.aic == pytest.approx(theirs[p, q], abs=1.0)
        assert best.aic < min(theirs.values()) + 4.0

    @pytest.mark.parametrize("root", [0.3, 0.9, 0.998])
    @pytest.mark.parametrize(("p", "q"), [(0, 0), (1, 0), (0, 3), (2, 1), (1, 3), (3, 2)])
    def test_its_exact_shocks_are_those_of_statsmodels(self, p, q, root):
        ar, ma = np.r_[root, np.zeros(2)][:p], np.array([0.4, -0.1, 0.3])[:q]
        values = np.random.default_rng(p + 10 * q).normal(size=200)
        shocks, log_variances = exact_shocks(values, ar, ma)
        theirs, variances = arma_innovations(values, ar, ma)
        assert shocks == pytest.approx(theirs / np.sqrt(variances), abs=1e-9)
        assert log_variances == pytest.approx(np.log(variances).sum(), abs=1e-9)

    def test_one_difference_for_a_walk_and_none_for_noise(self):
        noise = np.random.default_rng(5).standard_normal((60, 500))
        constant = np.ones((500, 1))
        walks = [choose_differences(np.cumsum(row), constant) for row in noise]
        still = [choose_differences(row, constant) for row in noise]
        related = [
            choose_differences(autoregression(0.8, 500, seed), constant) for seed in range(60)
        ]
        assert np.mean(walks) > 0.8
        assert np.mean(related) < 0.25  # strong but stationary: most stay undifferenced
        assert np.mean(still) < 0.15  # a test at 5%

    def test_the_unit_root_test_is_that_of_statsmodels(self):
        for seed in range(40):
            values = autoregression(0.95, 300, seed)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                statistic, *_ = kpss(values, nlags="legacy", result_object=False)
            assert choose_differences(values, np.ones((300, 1))) == (statistic > 0.463)


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
        options = candidate_harmonics(HOUR_S, bins, 3, 3)
        order = choose_harmonics(values, d, options[-1].design(0.0, HOUR_S, bins), options)
        assert (order.daily, order.weekly) >= (truth.daily, truth.weekly)
        assert order.daily + order.weekly <= truth.daily + truth.weekly + 2  # AIC may take a few
        design = truth.design(0.0, HOUR_S, bins)
        estimate = regress(values, d, design)
        np.testing.assert_allclose(estimate[1:], weights[1:], atol=0.15)
        assert d == 0 or estimate[0] == 0.0

    def test_fewer_harmonics_are_columns_of_more(self):
        most = Harmonics(3, 2)
        for few in (Harmonics(), Harmonics(2), Harmonics(1, 2), most):
            np.testing.assert_array_equal(
                most.design(0.0, HOUR_S, 50)[:, few.columns(most)], few.design(0.0, HOUR_S, 50)
            )

    def test_reads_as_words(self):
        assert str(Harmonics()) == ""
        assert str(Harmonics(1, 2)) == "1 daily harmonic + 2 weekly harmonics"


class TestForecasts:
    @pytest.mark.parametrize("d", [0, 1])
    def test_as_statsmodels_from_any_origin(self, d):
        """With the orders and parameters of the fit, the exact filter forecasts the same."""
        w = moving_average(0.5, 400, seed=7) + 0.5 * autoregression(0.8, 400, seed=8)
        root = 600 + (np.cumsum(w) if d else w)
        panel = Panel(0.0, 43_200.0, root[None] ** 2)
        fitted = Arima(limits=Limits(p=2, q=2)).fit(panel)
        origins = np.array([300, 390, 400])
        paths = np.sqrt(fitted.paths(panel, origins, 5)[0])
        scale = np.sqrt(fitted.scale.mean[0, 0])
        rest = root / scale - fitted.cycles[0, 0]
        p = 3 if d else 2
        ar, ma = fitted.ar[0, :p], fitted.ma[0]
        phi = np.array([ar[0] - 1, ar[0] + ar[1] - 1]) if d else ar
        for origin, path in zip(origins, paths, strict=True):
            model = ARIMA(rest[:origin], order=(2, d, 2), trend="n", enforce_stationarity=False)
            expected = model.smooth([*phi, *ma, 1.0]).forecast(5) + fitted.cycles[0, 0]
            np.testing.assert_allclose(path / scale, expected, rtol=1e-4)

    def test_one_step_ahead_of_an_autoregression_is_phi_times_the_deviation(self):
        root = 20 + autoregression(0.8, 2000, seed=9)
        panel = Panel(0.0, 43_200.0, np.append(root, 23.0)[None] ** 2)
        fitted = Arima(limits=Limits(p=1, q=0)).fit(panel)
        assert fitted.labels == ("(1, 0, 0)",)
        path = fitted.paths(panel, np.array([panel.bins]), 3)[0, 0]
        np.testing.assert_allclose(np.sqrt(path), 20 + 3 * 0.8 ** np.arange(1, 4), atol=0.2)

    def test_a_noisy_day_is_forecast_to_within_its_noise(self, series, daily_demand):
        history = series(daily_demand(4, noise=0.05))
        forecast = forecaster("arima").fit(history).predict(96)
        truth = daily_demand(5)[-96:]
        assert "daily harmonics" in forecast.order
        assert np.abs(forecast.mean - truth).sum() < 0.05 * truth.sum()

    @pytest.mark.parametrize("level", [0.0, 250.0])
    def test_a_constant_stays_and_follows(self, series, level):
        model = forecaster("arima").fit(series(np.full(200, level)))
        forecast = model.predict(4)
        np.testing.assert_allclose(forecast.mean, level, atol=1e-6)
        moved = model.update(series([9.0], start_s=200 * 900.0)).predict(2)
        np.testing.assert_allclose(moved.mean, 9.0, atol=1e-6)

    def test_an_exact_cycle_is_continued(self, series):
        bins = np.arange(96 * 5)
        cycle = (10 + 3 * np.sin(2 * np.pi * bins / 96)) ** 2
        forecast = forecaster("arima").fit(series(cycle[:384])).predict(96)
        np.testing.assert_allclose(forecast.mean, cycle[384:], rtol=1e-4)

    def test_too_short_says_what_it_needs(self, series):
        values = np.ones(30)
        values[:10] = np.nan
        with pytest.raises(SeriesTooShort, match="at least 24 observed bins and has 20"):
            forecaster("arima").fit(series(values))

    def test_a_long_history_is_cut_and_says_so(self, daily_demand):
        values = daily_demand(6, noise=0.05, bin_s=HOUR_S)
        whole = Panel(0.0, HOUR_S, values[None])
        short = Arima(limits=Limits(bins=96)).fit(whole)
        last = Arima().fit(replace(whole, start_s=48 * HOUR_S, values=values[None, -96:]))
        np.testing.assert_allclose(short.cycles, last.cycles, rtol=1e-9)
        np.testing.assert_allclose(short.ar, last.ar, rtol=1e-9)
        assert short.labels == (f"{last.labels[0]}, on the last 96 bins",)

    def test_every_other_bin_missing(self, series, daily_demand):
        values = daily_demand(6, noise=0.05)
        values[::2] = np.nan
        forecast = forecaster("arima").fit(series(values)).predict(8)
        truth = daily_demand(7)[values.size : values.size + 8]
        assert np.abs(forecast.mean - truth).sum() < 0.2 * truth.sum()

    @pytest.mark.parametrize("seed", range(3))
    def test_says_nothing_on_stderr(self, series, seed, capfd):
        spiky = np.random.default_rng(seed).pareto(1.1, 80)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            forecaster("arima").fit(series(spiky, bin_s=HOUR_S)).predict(4)
        assert capfd.readouterr().err == ""


def test_auto_compares_it_and_says_by_how_much(series, daily_demand):
    demand = series(daily_demand(10, noise=0.05, bin_s=HOUR_S), HOUR_S)
    forecast = forecaster("auto", horizon_bins=1).fit(demand).predict(24)
    by_name = {score.method: score for score in forecast.compared}
    assert {"arima", "regression", "last-value", "ensemble"} <= set(by_name)
    errors = [score.error for score in forecast.compared]
    assert errors == sorted(errors) and by_name["arima"].error < by_name["last-value"].error
    assert [score.method for score in forecast.compared if score.chosen] == [forecast.method]
    single = [score for score in forecast.compared if score.method != "ensemble"]
    assert sum(score.share for score in single) == pytest.approx(1.0)
    assert sum(score.end_share for score in single) == pytest.approx(1.0)
    assert any(score.share != pytest.approx(score.end_share, abs=0.01) for score in single)
    assert forecaster("last-value").fit(demand).predict(1).compared == ()
