"""Series forecast together: as each alone, finite on any history, chosen by what came."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from forecasting import conformal
from forecasting.cleaning import Reason, clean
from forecasting.demand import Panel
from forecasting.errors import ForecastError
from forecasting.lead_weights import LeadWeights, block_edges
from forecasting.method_choice import POWER, DiscountedMeans, choose_method, ensemble_weights
from forecasting.panel_forecaster import PanelForecaster, running_max
from forecasting.rules.registry import PANEL_METHODS
from forecasting.selection import forecaster

HOUR_S = 3600.0
NAN = np.nan
bins = st.one_of(st.just(NAN), st.just(0.0), st.floats(0, 1e9))


@given(
    st.sampled_from(PANEL_METHODS),
    arrays(float, st.tuples(st.just(2), st.integers(0, 30)), elements=bins),
    st.integers(1, 6),
)
def test_any_history_has_an_answer(method, values, steps):
    forecast = (
        PanelForecaster(method, horizon_bins=2).fit(Panel(0.0, HOUR_S, values)).predict(steps)
    )
    for figures in (forecast.mean, forecast.peak, forecast.quantiles, forecast.peak_quantiles):
        assert np.all(np.isfinite(figures)) and np.all(figures >= 0)
    assert np.all(np.diff(forecast.quantiles, axis=1) >= 0)
    assert np.all(np.diff(forecast.peak_quantiles, axis=1) >= 0)


@pytest.mark.parametrize("method", ["auto", "ensemble"])
def test_little_or_nothing_seen_is_the_last_value_or_none(method, series):
    assert forecaster(method).fit(series([])).predict(3).mean.tolist() == [0, 0, 0]
    assert forecaster(method).fit(series([NAN] * 50)).predict(2).mean.tolist() == [0, 0]
    assert forecaster(method).fit(series([7.0])).predict(2).mean.tolist() == [7, 7]
    np.testing.assert_allclose(forecaster(method).fit(series([5.0] * 60)).predict(2).mean, 5.0)


@pytest.mark.parametrize("method", PANEL_METHODS)
def test_together_as_alone(method, daily_demand):
    rng = np.random.default_rng(2)
    values = daily_demand(9, noise=0.1, bin_s=HOUR_S) * rng.lognormal(0, 1, (5, 1))
    values[rng.random(values.shape) < 0.05] = NAN
    values[2, -3:] = NAN
    panel = Panel(0.0, HOUR_S, values)

    def told(rows):
        batch = PanelForecaster(method).fit(Panel(0.0, HOUR_S, values[rows, :-6]))
        return batch.update(values[rows, -6:]).predict(4)

    together = told(slice(None))
    for row in range(len(panel.values)):
        alone = told(slice(row, row + 1))
        np.testing.assert_allclose(together.mean[row], alone.mean[0], rtol=1e-9)
        np.testing.assert_allclose(together.peak_quantiles[row], alone.peak_quantiles[0], rtol=1e-9)
        assert together.methods[row] == alone.methods[0]


def test_bins_taken_in_one_by_one_say_as_those_taken_in_at_once(daily_demand):
    rng = np.random.default_rng(4)
    values = daily_demand(9, noise=0.1, bin_s=HOUR_S) * rng.lognormal(0, 0.3, (3, 1))
    fitted, new = Panel(0.0, HOUR_S, values[:, :-30]), values[:, -30:]
    batch, once = PanelForecaster("auto").fit(fitted), PanelForecaster("auto").fit(fitted)
    for step in range(new.shape[1]):
        batch.update(new[:, step : step + 1])
        if step % 7 == 0:
            batch.predict(1)
            batch.predict(5)
    followed, restarted = batch.predict(4), once.update(new).predict(4)
    np.testing.assert_allclose(followed.mean, restarted.mean, rtol=1e-9)
    np.testing.assert_allclose(followed.errors, restarted.errors, rtol=1e-9)
    np.testing.assert_allclose(followed.peak_quantiles, restarted.peak_quantiles, rtol=1e-9)


def test_auto_finds_the_season_and_says_why(series, daily_demand):
    demand = series(daily_demand(8, noise=0.02, bin_s=HOUR_S), HOUR_S)
    forecast = forecaster("auto", horizon_bins=1).fit(demand).predict(1)
    naive = forecaster("last-value", horizon_bins=1).fit(demand).predict(1)
    truth = daily_demand(9, bin_s=HOUR_S)[8 * 24]
    assert abs(forecast.mean[0] - truth) < 0.3 * abs(naive.mean[0] - truth)
    assert forecast.reason.startswith(forecast.method) and "last-value" in forecast.reason


def test_the_peak_of_the_window_lies_above_its_bins(series, daily_demand):
    noisy = series(np.random.default_rng(1).gamma(2.0, 50.0, 600))
    forecast = forecaster("auto", horizon_bins=4, lead_bins=2).fit(noisy).predict(6)
    assert forecast.peak() > forecast.mean[2:].max()
    assert forecast.peak(0.5) < forecast.peak(0.9)
    with pytest.raises(ForecastError, match=r"0.99 is outside"):
        forecast.peak(0.99)


def test_bands_hold_the_share_they_say():
    rng = np.random.default_rng(3)
    walk = 1000 * np.exp(np.cumsum(rng.normal(0, 0.03, (20, 260)), axis=1) * 0.3)
    walk = walk * rng.lognormal(0, 0.1, walk.shape)
    batch = PanelForecaster("exponential-smoothing", horizon_bins=1).fit(
        Panel(0.0, HOUR_S, walk[:, :200])
    )
    inside = []
    for bin_ in range(200, 260):
        forecast = batch.predict(1)
        low, high = forecast.levels.index(0.1), forecast.levels.index(0.9)
        came = walk[:, bin_, None]
        inside.append(
            (forecast.peak_quantiles[:, [low]] <= came[:, None])
            & (came[:, None] <= forecast.peak_quantiles[:, [high]])
        )
        batch.update(came)
    assert 0.77 < np.mean(inside) < 0.83


class TestChoice:
    def test_errors_are_discounted_and_gaps_do_not_count(self):
        none = DiscountedMeans.empty((), 48.0, default=np.inf)
        mean = none.append(np.array([NAN, 4.0, NAN, 1.0]))
        # the 4 is two origins older than the 1: a quarter of its weight
        np.testing.assert_allclose(mean.means, [np.inf, 4, 4, (4 * 0.25 + 1) / 1.25])
        np.testing.assert_allclose(mean.at(np.array([-1, 1, 9])), [np.inf, 4, 1.6])

    def test_figures_taken_in_piece_by_piece_are_discounted_alike(self):
        figures = np.random.default_rng(0).random((2, 3, 40))
        all_at_once = DiscountedMeans.empty((2, 3), 4.0, default=0.0).append(figures)
        pieces = DiscountedMeans.empty((2, 3), 4.0, default=0.0)
        for first in range(0, 40, 8):
            pieces = pieces.append(figures[:, :, first : first + 8]).keep_last(5)
        late = np.arange(35, 41)
        np.testing.assert_allclose(pieces.at(late), all_at_once.at(late), rtol=1e-12)

    def test_weights_are_inverse_powers(self):
        weights = ensemble_weights(np.array([1.0, 2.0, np.inf]))
        np.testing.assert_allclose(weights, np.array([2.0**POWER, 1, 0]) / (2.0**POWER + 1))
        assert ensemble_weights(np.array([np.inf, np.inf])).sum() == 0

    def test_one_method_has_to_be_a_tenth_better(self):
        single = np.array([[1.0, 0.89, np.inf], [2.0, 2.0, np.inf]])
        assert choose_method(single, np.array([1.0, 1.0, np.inf])).tolist() == [2, 0, 0]


class TestCleaning:
    def test_an_outage_and_its_backlog(self):
        values = np.full(100, 10.0)
        values[40:43], values[43] = 0.0, 45.0
        cleaning = clean(values[None], 900.0)
        marked = [(marked_bin.bin, marked_bin.reason) for marked_bin in cleaning.bins(0, values)]
        assert marked == [(40, Reason.OUTAGE), (41, Reason.OUTAGE), (42, Reason.OUTAGE),
                          (43, Reason.BACKLOG)]  # fmt: skip
        assert (
            np.isnan(cleaning.values[0, 40:44]).all()
            and not np.isnan(cleaning.values[0, 44:]).any()
        )

    def test_zeros_without_a_backlog_are_demand(self):
        values = np.full(100, 10.0)
        values[40:43] = 0.0
        assert clean(values[None], 900.0).bins(0, values) == ()

    def test_an_outage_without_a_backlog_is_no_demand_either(self):
        """It was demand of zero where no spike followed; a bin counted in part belongs to it."""
        values = np.random.default_rng(0).poisson(200.0, 400).astype(float)
        values[200:206], values[206] = 0.0, 12.0
        marked = [
            (marked_bin.bin, marked_bin.reason)
            for marked_bin in clean(values[None], 900.0).bins(0, values)
        ]
        assert marked == [(t, Reason.OUTAGE) for t in range(200, 207)]
        values[207] = 900.0
        (*_, last) = clean(values[None], 900.0).bins(0, values)
        assert (last.bin, last.reason) == (207, Reason.BACKLOG)

    def test_many_outages_are_found_though_zeros_are_not_rare(self):
        values = np.random.default_rng(0).poisson(200.0, 1000).astype(float)
        for first in range(50, 1000, 100):
            values[first : first + 8] = 0.0
        assert (values == 0).mean() == 0.08
        assert (clean(values[None], 600.0).outage[0] == (values == 0)).all()

    def test_a_stray_once_others_have_come(self):
        values = np.random.default_rng(0).uniform(8, 12, 100)
        values[97] = 90.0
        assert clean(values[None], 900.0).bins(0, values) == ()  # a surge may be beginning
        later = np.concatenate([values, [10.0, 11.0]])
        (outlier,) = clean(later[None], 900.0).bins(0, later)
        assert (outlier.bin, outlier.amount, outlier.reason) == (97, 90.0, Reason.OUTLIER)

    def test_what_happens_twice_is_a_pattern(self):
        values = np.random.default_rng(0).uniform(8, 12, 100)
        values[[30, 60]] = 90.0
        assert clean(values[None], 900.0).bins(0, values) == ()


def test_quantiles_of_errors_by_hand():
    # 49 scores -0.24 .. 0.24: the share (n + 1) 0.5 lies at the 25th, which is 0
    past = np.linspace(-0.24, 0.24, 49)[None, :, None]
    few = conformal.quantiles(
        np.array([[100.0]]), past[:, :0], np.array([[50.0, 100.0, 150.0]]), np.ones((1, 1)), (0.5,)
    )
    assert few[0, 0, 0] == pytest.approx(100.0)  # the median of the history is its own
    amounts = conformal.quantiles(
        np.array([[100.0]]), past, np.empty((1, 0)), np.ones((1, 1)), (0.5, 0.9), adapt=False
    )
    offset = conformal.FAR_OFFSET
    ratios = np.log((amounts[0, :, 0] + offset) / (100.0 + offset))
    np.testing.assert_allclose(ratios, [0.0, 0.2], atol=1e-12)


def test_what_quiet_hours_missed_by_does_not_multiply_busy_ones():
    """Hours of a mean of 100: at night 0.2 are forecast and every third time 20 come, by day 200
    are forecast and come within a fifth. A quiet hour's 95% has room for what came, a busy one's is
    about three times its forecast, where plain ratios have it at a hundred times."""
    rng = np.random.default_rng(3)
    night = np.where(rng.random(84) < 0.3, 20.0, 0.2)
    came = np.stack([night, 200 * rng.uniform(0.8, 1.2, 84)], axis=1).ravel()
    foreseen = np.tile([0.2, 200.0], 84)
    scale = np.array([[100.0]])
    past = conformal.log_ratio_scores(came[None], foreseen[None], scale)[:, :, None].repeat(
        2, axis=2
    )
    (quiet, busy) = conformal.quantiles(np.array([[0.2, 200.0]]), past, came[None], scale, (0.95,))[
        0, 0
    ]
    assert quiet == pytest.approx(20.0)
    assert busy == pytest.approx(210 * 30 / 10.2 - 10)


def test_running_max():
    assert running_max(np.array([3.0, 1, 2, 5, 4]), 3).tolist() == [3, 3, 3, 5, 5]


class TestLead:
    def test_blocks_double_to_a_day_then_last_a_day_and_a_week(self):
        assert block_edges(1, 24, 30) == (1, 2, 4, 8, 16, 24, 48)
        assert block_edges(4, 24, 24) == (4, 8, 16, 24)
        assert block_edges(1, 24, 200)[-3:] == (144, 168, 336)
        assert block_edges(3, 0, 10) == (3, 6, 12)

    def test_a_step_gets_the_weights_of_its_own_lead(self):
        """Two methods, each right at one lead: after a day of errors each has its block."""
        hours = np.arange(48.0)
        values = (100 + hours)[None]
        leads = LeadWeights(2, 1, (1, 2, 4), stride=1, horizon=1)
        origins = np.arange(10, 48)
        actual = np.pad(values, ((0, 0), (0, 4)), mode="edge")[0, origins[:, None] + np.arange(4)]
        paths = np.stack([actual, actual])[:, None]
        paths[0, ..., 2:] *= 2  # right until the second step
        paths[1, ..., :2] *= 2  # right after it
        leads.add_origins(values, origins, paths)
        here = np.array([[10.0, 10, 10, 10], [20, 20, 20, 20]])[:, None, None]
        even = np.full((2, 1, 1), 0.5)
        mixed = leads.mix(np.array([0]), here, np.array([len(origins)]), even, age=0)[0][0, 0]
        assert np.isnan(mixed[0])
        np.testing.assert_allclose(mixed[1:], [10, 20, 20])
        late = leads.mix(np.array([0]), here, np.array([len(origins)]), even, age=1)[0][0, 0]
        np.testing.assert_allclose(late, [10, 20, 20, np.nan])

    def test_without_errors_at_a_lead_nearer_weights_stand_in(self):
        leads = LeadWeights(2, 1, (1, 2), stride=1, horizon=1)
        paths = np.array([[0.0, 10.0], [0.0, 20.0]])[:, None, None]
        near = np.array([0.25, 0.75])[:, None, None]
        mixed, at_end = leads.mix(np.array([0]), paths, np.array([0]), near, age=0)
        np.testing.assert_array_equal(at_end, near)
        assert mixed[0, 0, 1] == pytest.approx(17.5)

    def test_a_day_ahead_the_band_holds_its_share_on_days_not_seen(self):
        """Sixty days, each with its own level, from origins at all times of day."""
        rng = np.random.default_rng(6)
        hours = np.arange(60 * 24)
        level = np.exp(0.2 * rng.standard_normal((12, 60)).repeat(24, axis=1))
        shape = 100 + 60 * np.sin(2 * np.pi * hours / 24)
        values = shape * level * rng.lognormal(0, 0.05, (12, hours.size))
        batch = PanelForecaster("auto", horizon_bins=1).fit(Panel(0.0, HOUR_S, values[:, :720]))
        covered = []
        for origin in range(720, hours.size - 24, 23):
            forecast = batch.predict(24)
            came = values[:, None, origin : origin + 24]
            covered.append(came <= forecast.quantiles)
            batch.update(values[:, origin : origin + 23])
        share = np.mean(covered, axis=(0, 1, 3))
        np.testing.assert_allclose(share, forecast.levels, atol=0.05)


class TestShortHistory:
    @pytest.mark.parametrize("multiple", [1.0, 2.0])
    def test_nothing_exceeds_the_multiple_of_the_peak(self, multiple):
        values = 10.0 * 2.0 ** np.arange(12)[None]
        batch = PanelForecaster("auto", horizon_bins=2, peak_multiple=multiple)
        forecast = batch.fit(Panel(0.0, HOUR_S, values)).predict(48)
        for amounts in (forecast.mean, forecast.peak, forecast.quantiles, forecast.peak_quantiles):
            assert amounts.max() <= multiple * values.max()
        assert forecast.quantiles.max() == multiple * values.max()  # the limit is felt

    def test_from_a_week_on_there_is_no_limit(self):
        values = np.exp(np.arange(200) / 20.0)[None]
        forecast = PanelForecaster("auto", peak_multiple=1.0).fit(Panel(0.0, HOUR_S, values))
        assert forecast.predict(24).quantiles.max() > values.max()

    def test_the_prior_fades_over_a_week(self):
        usual = np.array([conformal.DAY_GROWTH])
        leads = np.array([0.1, 0.5])
        one, again = conformal.growth_prior(2.0, 80, usual, leads, 0.0)[0].T
        np.testing.assert_array_equal(one, again)
        assert (one.size, conformal.growth_prior(6.0, 240, usual, leads, 0.0).shape[1]) == (200, 40)
        assert conformal.growth_prior(7.0, 300, usual, leads, 0.0) is None
        assert one.mean() == pytest.approx(0.0, abs=1e-12)
        assert np.quantile(one, 0.95) == pytest.approx(1.645 * conformal.DAY_GROWTH, rel=0.02)

    def test_the_prior_has_the_variance_of_an_unknown_rhythm(self):
        usual, leads = np.array([conformal.DAY_GROWTH]), np.array([0.01, 0.25, 0.5, 1.0])
        prior = conformal.growth_prior(0.5, 10_000, usual, leads, conformal.DAY_SWING)
        deviation = prior[0].std(axis=0)
        phase = 2 * np.pi * (np.arange(1000) + 0.5) / 1000
        change = np.sin(phase + 2 * np.pi * leads[:, None]) - np.sin(phase)
        rhythm = conformal.DAY_SWING**2 * (change**2).mean(axis=1)
        assert deviation**2 == pytest.approx(rhythm + conformal.DAY_GROWTH**2, rel=0.02)

    def test_days_that_hardly_differ_narrow_the_prior(self):
        calm, wild = np.full(72, 10.0), 10.0 * np.repeat([1.0, 3.0, 1.0], 24)
        first, second, unknown = conformal.day_growth(np.stack([calm, wild, 0 * calm]), 24)
        ratios = conformal.PRIOR_RATIOS
        assert first == pytest.approx(conformal.DAY_GROWTH * np.sqrt(ratios / (ratios + 2)))
        squares = ratios * conformal.DAY_GROWTH**2 + 2 * np.log(3) ** 2
        assert second == pytest.approx(np.sqrt(squares / (ratios + 2)))
        assert unknown == pytest.approx(conformal.DAY_GROWTH)

    def test_two_exact_days_do_not_promise_a_third(self, daily_demand):
        values = daily_demand(3, bin_s=HOUR_S)[None]
        forecast = PanelForecaster("auto", horizon_bins=1).fit(Panel(0.0, HOUR_S, values))
        far = forecast.predict(24)
        low, high = far.quantiles[0, [0, -1], 12]
        assert high > 1.1 * far.mean[0, 12] > 1.2 * low
