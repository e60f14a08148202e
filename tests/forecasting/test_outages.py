"""What is told from demand: zeros that the bins around them rule out."""

import numpy as np
import polars as pl
import pytest

from forecasting.demand import REQUESTS, DemandSeries, SeriesKey
from forecasting.outages import find_outages, without_outages
from forecasting.selection import forecaster
from tests.shared_folder import TRACES, shared

QUARTER_S = 900.0
DAY = 96


def poisson(mean: float, bins: int = 10 * DAY, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).poisson(mean, bins).astype(float)


def test_zeros_among_busy_bins_are_an_outage_and_what_came_after_is_said() -> None:
    values = poisson(200.0)
    values[300:304] = 0
    values[304] = 1000.0
    (outage,) = find_outages(values, QUARTER_S)
    assert (outage.first, outage.bins) == (300, 4)
    assert outage.expected == pytest.approx(
        200, rel=0.03
    )  # the bin that made up for it is not asked
    assert outage.after == pytest.approx(1000 / outage.expected)


def test_a_bin_counted_for_a_moment_only_belongs_to_the_outage_beside_it() -> None:
    values = poisson(2000.0)
    values[300:304], values[304] = 0, 14
    (outage,) = find_outages(values, QUARTER_S)
    assert (outage.first, outage.bins) == (300, 5)


def test_minutes_may_be_empty_by_chance_and_hours_may_not() -> None:
    values = poisson(3.0, 7 * 1440)
    values[4000:4120] = 0
    (outage,) = find_outages(values, 60.0)
    assert 3990 < outage.first <= 4000 and outage.first + outage.bins >= 4120
    assert outage.bins < 130


def test_chance_is_left_alone() -> None:
    assert not find_outages(poisson(3.0), QUARTER_S)  # a twentieth of its bins is empty
    assert not find_outages(np.zeros(500), QUARTER_S)
    assert not find_outages(np.full(500, np.nan), QUARTER_S)
    assert not find_outages(np.array([]), QUARTER_S)


def test_traffic_in_bursts_may_be_empty_between_them() -> None:
    rng = np.random.default_rng(2)
    values = rng.gamma(0.1, 5000.0, 10 * DAY).round()
    assert (values == 0).sum() > 100
    assert not find_outages(values, QUARTER_S)


def test_a_shop_that_closes_every_night_is_closed() -> None:
    values = poisson(500.0)
    closed = np.arange(len(values)) % DAY < 32  # eight hours
    values[closed] = 0
    assert not find_outages(values, QUARTER_S)
    values[5 * DAY + 60 : 5 * DAY + 63] = 0  # an afternoon of which nothing is known
    (outage,) = find_outages(values, QUARTER_S)
    assert (outage.first, outage.bins) == (5 * DAY + 60, 3)


def test_days_without_anything_are_left_as_they_are() -> None:
    values = poisson(500.0)
    values[3 * DAY : 4 * DAY] = 0
    assert not find_outages(values, QUARTER_S)


def test_the_beginning_and_the_end_have_nothing_to_compare_with() -> None:
    values = poisson(500.0)
    values[:5] = values[-5:] = 0
    assert not find_outages(values, QUARTER_S)


def test_outages_close_to_each_other_do_not_hide_one_another() -> None:
    values = poisson(5000.0)
    for first in (400, 408, 416):
        values[first : first + 2] = 0
    assert sum(outage.bins for outage in find_outages(values, QUARTER_S)) == 6


def test_a_series_without_its_outages_has_gaps_and_nothing_else_is_changed() -> None:
    values = poisson(500.0)
    values[40:44], values[90] = 0, np.nan
    key = SeriesKey("m", "r", "t")
    clean = without_outages(DemandSeries(key, 0.0, QUARTER_S, values, REQUESTS))
    gaps = np.flatnonzero(np.isnan(clean.values)).tolist()
    assert gaps == [40, 41, 42, 43, 90]
    kept = ~np.isnan(clean.values)
    assert (clean.values[kept] == values[kept]).all()
    assert find_outages(clean.values, QUARTER_S) == ()


def test_gaps_of_a_published_collection_are_found() -> None:
    """ServeGen's m-mid has 84 windows of nothing, which are gaps of its collection."""
    rates = pl.read_csv(shared(TRACES / "servegen_total_rates_10min.csv"))
    by_trace = {
        model: find_outages(rows["rate_rps"].to_numpy() * 600, 600.0)
        for (model,), rows in rates.partition_by("model", as_dict=True).items()
    }
    zero = rates.filter(pl.col("model") == "m-mid")["rate_rps"].to_numpy() == 0
    lost = np.zeros(len(zero), bool)
    for outage in by_trace.pop("m-mid"):
        lost[outage.first : outage.first + outage.bins] = True
    assert zero.sum() == 84 and (lost & zero).sum() == 84
    assert (lost & ~zero).sum() == 7  # counted for a moment only, as each outage ended
    assert not any(by_trace.values())


@pytest.mark.parametrize("method", ["last-value", "kalman", "exponential-smoothing", "arima"])
def test_an_outage_after_the_last_fit_is_a_gap_for_the_state(series, method):
    """Six bins of nothing and what is left of a seventh, four bins before now: they were zeros."""
    rng = np.random.default_rng(5)
    values = rng.poisson(200.0, 420).astype(float)
    broken, gone = values.copy(), values.copy()
    broken[408:414], broken[414] = 0.0, 12.0
    gone[408:415] = np.nan
    forecasts = []
    for history in (broken, gone):
        model = forecaster(method).fit(series(history[:400]))
        for bin_ in range(400, 420):
            model.update(series(history[bin_ : bin_ + 1], start_s=bin_ * 900.0))
        forecasts.append(model.predict(2).mean)
    np.testing.assert_allclose(forecasts[0], forecasts[1], rtol=1e-9)
