"""Whether forecasts of late were worse than before."""

import numpy as np
import pytest

from forecasting.demand import Panel
from forecasting.drift import FALSE_ALARM_SHARE, detect_drift
from forecasting.panel_forecaster import PanelForecaster
from forecasting.past_forecasts import PastPeaks
from forecasting.selection import forecaster

RNG = np.random.default_rng(7)
HOUR_S = 3600.0


def flags(values: np.ndarray, method: str = "auto", window: int = 1) -> list[bool]:
    batch = PanelForecaster(method, window).fit(Panel(0.0, HOUR_S, values))
    return [detect_drift(past).flagged for past in batch.predict(window).past]


@pytest.mark.parametrize("method", ["ensemble", "auto", "exponential-smoothing"])
def test_stationary_series_are_flagged_about_as_rarely_as_is_stated(method: str) -> None:
    series = 40
    gaussian = RNG.normal(100.0, 10.0, (series, 336))
    poisson = RNG.poisson(30.0, (series, 336)).astype(float)
    flagged = [sum(flags(values, method)) for values in (gaussian, poisson)]
    most = FALSE_ALARM_SHARE * series + 3 * np.sqrt(
        FALSE_ALARM_SHARE * series
    )  # three deviations above the share
    assert max(flagged) <= most, flagged


@pytest.mark.parametrize("method", ["exponential-smoothing", "seasonal-naive", "auto"])
def test_a_doubled_level_is_flagged(method: str) -> None:
    values = RNG.poisson(100.0, (20, 336)).astype(float)
    values[:, 312:] *= 2
    assert sum(flags(values, method)) >= 18


def test_errors_that_grow_are_told_since_when_and_by_how_much() -> None:
    level = np.full(240, 100.0)
    came = level + np.where(np.arange(240) < 216, 5.0, 40.0) * RNG.choice([-1, 1], 240)
    report = detect_drift(PastPeaks(HOUR_S * np.arange(240), came, level, 100.0))
    assert report.flagged and report.since_s is not None
    assert abs(report.since_s - 216 * HOUR_S) <= 6 * HOUR_S
    assert "48" in report.sentence  # windows: two whole days
    better = detect_drift(PastPeaks(HOUR_S * np.arange(240), came[::-1], level, 100.0))
    assert not better.flagged and better.since_s is None


def test_what_follows_a_step_at_once_has_not_drifted() -> None:
    """Last value: off once, then as good as it was."""
    values = RNG.poisson(100.0, (20, 336)).astype(float)
    values[:, 312:] *= 2
    assert sum(flags(values, "last-value")) <= 5


@pytest.mark.parametrize("windows", [116, 336])
def test_the_share_of_false_alarms_is_that_stated(windows: int) -> None:
    """Exchangeable errors by themselves, 2,000 times."""
    starts, forecast = HOUR_S * np.arange(windows), np.full(windows, 100.0)
    actual = forecast + RNG.exponential(5.0, (2000, windows))
    alarms = [detect_drift(PastPeaks(starts, row, forecast, 100.0)).flagged for row in actual]
    assert 0.004 < np.mean(alarms) < 0.016


def test_too_little_says_so_and_gaps_count_for_nothing() -> None:
    few = np.arange(20.0)
    assert "too few" in detect_drift(PastPeaks(few, few, few, 1.0)).sentence
    nothing = np.array([])
    assert not detect_drift(PastPeaks(nothing, nothing, nothing, 1.0)).flagged
    came = np.full(240, np.nan)
    assert "0 past windows" in detect_drift(PastPeaks(few, came[:20], few, 1.0)).sentence


def test_arima_tells_of_its_past_windows_too(series) -> None:
    """Errors that grow ninefold a day and a half before the end, of which it is told bin by bin."""
    noise = np.random.default_rng(3).normal(0, 1, 240)
    values = 100.0 + np.where(np.arange(240) < 204, 2.0, 18.0) * noise
    model = forecaster("arima", horizon_bins=1).fit(series(values[:200], bin_s=HOUR_S))
    for bin_ in range(200, 240):
        model.update(series(values[bin_ : bin_ + 1], bin_s=HOUR_S, start_s=bin_ * HOUR_S))
    past = model.predict(1).past
    assert past is not None and past.starts_s[-1] == 239 * HOUR_S
    np.testing.assert_array_equal(past.actual[-40:], values[-40:])
    report = detect_drift(past)
    assert report.flagged and report.since_s is not None
    assert abs(report.since_s - 204 * HOUR_S) <= 12 * HOUR_S
    steady = (
        forecaster("arima", horizon_bins=1).fit(series(100.0 + 2 * noise, bin_s=HOUR_S)).predict(1)
    )
    assert steady.past is not None and not detect_drift(steady.past).flagged


@pytest.mark.parametrize("horizon", [1, 4])
def test_arima_says_of_a_past_window_what_it_said_then(series, horizon: int) -> None:
    values = np.random.default_rng(4).poisson(80.0, 120).astype(float)
    model = forecaster("arima", horizon_bins=horizon).fit(series(values[:100]))
    highest = model.predict(horizon).mean.max()
    model.update(series(values[100:], start_s=100 * 900.0))
    past = model.predict(horizon).past
    assert past is not None
    np.testing.assert_allclose(past.forecast[past.starts_s == 100 * 900.0], highest, rtol=1e-9)


@pytest.mark.parametrize("idle", [slice(0, 192), slice(192, 240)])
def test_errors_without_demand_are_no_share_and_no_drift(idle: slice) -> None:
    actual = RNG.poisson(100.0, 240).astype(float)
    actual[idle] = 0.0
    drift = detect_drift(PastPeaks(np.arange(240) * HOUR_S, actual, np.full(240, 100.0), 1.0))
    assert not drift.flagged and "nan" not in drift.sentence
