"""Days that are a kind of their own: known ones are foreseen, and spoil nothing of the others."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forecasting.arrays import FloatArray
from forecasting.backtest import rolling_forecasts, wape
from forecasting.demand import REQUESTS, DemandSeries, SeriesKey
from forecasting.holidays import (
    DAY_S,
    NO_HOLIDAYS,
    HolidayRatio,
    Holidays,
    ratios_of,
    unusual_month_ends,
)
from forecasting.selection import forecaster

HOUR_S, DAY = 3600.0, 24
MONDAY = 4  # the 5th of January 1970, the first day of the series
OFF = (MONDAY + 9, MONDAY + 18)  # a Wednesday and a Friday
LEFT = 0.3  # of a usual day


def closed(values):
    """With both holidays at LEFT of what they would have been."""
    values = values.copy()
    for day in OFF:
        first = (day - MONDAY) * DAY
        values[first : first + DAY] *= LEFT
    return values


@pytest.mark.parametrize("method", ["auto", "seasonal-naive", "regression", "last-value", "arima"])
def test_a_known_holiday_is_foreseen_and_the_day_after_is_as_usual(method, series, daily_demand):
    """From the midnight before the second holiday, and from that after it."""
    values = closed(daily_demand(21, noise=0.05, bin_s=HOUR_S))
    demand = series(values, HOUR_S, start_s=MONDAY * 86_400.0)
    marked = replace(demand, holidays=Holidays(OFF))
    off = {}
    for days in (18, 19):
        start = days * DAY
        for name, series_ in (("plain", demand), ("marked", marked)):
            (forecast,) = rolling_forecasts(
                series_, forecaster(method), [series_.start_s + start * HOUR_S], DAY
            )
            off[name, days] = wape(values[None, start : start + DAY], forecast.mean[None])
    # the last value is flat: of its error the day's rhythm stays
    most = 0.7 if method == "last-value" else 0.25
    assert off["marked", 18] < most and off["marked", 18] < 0.6 * off["plain", 18]
    assert off["marked", 19] < off["plain", 19] + 0.02
    if method == "seasonal-naive":  # it repeated the holiday
        assert off["plain", 19] > 0.6 and off["marked", 19] < 0.2


def test_ratios_by_hand():
    """Half of what the working days before had, whatever the weekend did."""
    values = np.full((1, 8 * DAY), 100.0)
    values[:, 5 * DAY : 7 * DAY] = 10.0  # Saturday, Sunday
    values[:, 7 * DAY :] = 50.0
    kind = HolidayRatio.fit(Holidays((MONDAY + 7,)), values, MONDAY * 86_400.0, HOUR_S)
    assert kind is not None
    np.testing.assert_allclose(kind.ratio, 0.5)
    factor = kind.factor(MONDAY * 86_400.0, HOUR_S, 8 * DAY)[0]
    assert (factor[: 7 * DAY] == 1).all() and np.allclose(factor[7 * DAY :], 0.5)


@pytest.mark.parametrize("method", ["auto", "arima"])
def test_days_yet_to_come_and_other_days_change_nothing(method, series, daily_demand):
    demand = series(daily_demand(8, noise=0.1, bin_s=HOUR_S), HOUR_S)
    plain = forecaster(method).fit(demand).predict(12)
    for days in ((8,), (400,), ()):
        forecast = forecaster(method).fit(replace(demand, holidays=Holidays(days))).predict(12)
        np.testing.assert_array_equal(forecast.mean, plain.mean)
    assert not NO_HOLIDAYS.mask(0.0, HOUR_S, 5).any()


def test_bins_that_are_no_part_of_a_day_know_no_holidays():
    assert HolidayRatio.fit(Holidays((0,)), np.ones((1, 9)), 0.0, 86_400.0 / 2.5) is None
    daily = HolidayRatio.fit(Holidays((3,)), np.array([[4.0, 4, 4, 1, 4]]), 0.0, 86_400.0)
    assert daily is not None and 0.25 <= daily.ratio[0, 0] < 0.3


FIRST = 20_089  # 1 January 2025, a Wednesday


def billing_runs(last_days: int, ratio: float, days: int, seed: int = 0) -> FloatArray:
    """Return hourly demand that differs on the last days of each month, ``[1, bins]``."""
    day = np.arange(FIRST, FIRST + days)
    date = day.astype("datetime64[D]")
    left = (date.astype("datetime64[M]") + 1).astype("datetime64[D]") - date
    level = np.where((day + 3) % 7 >= 5, 0.5, 1.0) * np.where(
        left.astype(int) <= last_days, ratio, 1.0
    )
    level *= 1.005 ** np.arange(days) * np.exp(np.random.default_rng(seed).normal(0, 0.05, days))
    return np.asarray((level[:, None] * (2 + np.sin(np.arange(24) / 4))).reshape(1, -1) * 1000)


@pytest.mark.parametrize(("last_days", "ratio"), [(1, 1.6), (2, 0.5), (3, 1.8)])
def test_month_ends_are_found_once_two_are_known(last_days: int, ratio: float) -> None:
    values = billing_runs(last_days, ratio, 100)
    found = unusual_month_ends(values, FIRST * DAY_S, HOUR_S)
    assert found is not None and found.days == last_days
    assert found.ratio == pytest.approx(ratio, rel=0.1)
    assert unusual_month_ends(values[:, : 45 * 24], FIRST * DAY_S, HOUR_S) is None


@pytest.mark.parametrize("seed", range(20))
def test_months_without_unusual_ends_have_none(seed: int) -> None:
    assert unusual_month_ends(billing_runs(3, 1.0, 150, seed), FIRST * DAY_S, HOUR_S) is None


def test_a_month_end_is_forecast_only_with_a_calendar() -> None:
    values = billing_runs(3, 1.8, 119 + 30)  # up to the day before the last days of May
    known, actual = values[0, : 148 * 24], values[0, 148 * 24 : 149 * 24]
    series = DemandSeries(SeriesKey("m", "r", "t"), FIRST * DAY_S, HOUR_S, known, REQUESTS)
    errors = [
        np.abs(forecaster("auto").fit(marked).predict(24).mean - actual).sum() / actual.sum()
        for marked in (series, replace(series, holidays=Holidays(calendar=True)))
    ]
    assert errors[1] < 0.15 < errors[0]


@given(st.lists(st.floats(0, 1e4), min_size=24, max_size=24 * 40), st.integers(0, 30_000))
def test_any_history_gives_ratios_or_none(amounts: list[float], day: int) -> None:
    values = np.array([amounts])
    values[values > 9e3] = np.nan
    for ratio in ratios_of(Holidays(calendar=True), values, day * DAY_S, HOUR_S):
        assert np.isfinite(ratio.ratio).all() and (ratio.ratio > 0).all()
