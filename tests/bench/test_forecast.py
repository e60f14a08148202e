"""The forecast bench: its loss is the pinball loss, and its baselines know the past only."""

import numpy as np
import pytest

from bench import day_ahead

HOUR_S = 3600.0
DAY = 24
BASELINES = {
    "last-week": lambda: day_ahead.last_week,
    "shape-times-level": lambda: day_ahead.shape_times_level,
    "holt-winters": day_ahead.HoltWinters,
}


def weeks(count, noise=0.0):
    hours = np.arange(count * 7 * DAY)
    level = 100 + 50 * np.sin(2 * np.pi * hours / DAY) + 30 * ((hours // DAY) % 7 < 5)
    return level * np.exp(noise * np.random.default_rng(0).standard_normal(hours.size))


def test_the_loss_by_hand():
    actual = np.array([[10.0, np.nan]])
    quantiles = np.array([[[8.0, 0.0], [12.0, 0.0], [10.0, 0.0], [20.0, 0.0]]])
    # 0.5 x 2 below, 0.25 x 2 above, none, 0.05 x 10 above
    assert day_ahead.pinball(actual, quantiles) == pytest.approx((1 + 0.5 + 0 + 0.5) / 4 / 10)


@pytest.mark.parametrize("name", BASELINES)
def test_nothing_after_an_origin_changes_a_baseline(name):
    values, origins = weeks(3, noise=0.1), np.array([14 * DAY, 14 * DAY + 6])
    changed = values.copy()
    changed[origins[-1] :] = 7777.0
    before, after = (
        day_ahead.baseline_quantiles(BASELINES[name](), each, HOUR_S, origins)
        for each in (values, changed)
    )
    np.testing.assert_array_equal(before, after)
    assert np.all(np.diff(before, axis=1) >= 0)


@pytest.mark.parametrize("name", ["last-week", "shape-times-level"])
def test_an_exact_week_is_repeated(name):
    values, origins = weeks(4), np.array([14 * DAY, 20 * DAY])
    quantiles = day_ahead.baseline_quantiles(BASELINES[name](), values, HOUR_S, origins)
    actual = values[origins[:, None] + np.arange(DAY)]
    np.testing.assert_allclose(quantiles, np.repeat(actual[:, None], 4, axis=1))


def test_a_series_of_a_day_is_not_judged():
    assert day_ahead.judge_day_ahead(np.arange(30.0), HOUR_S) is None
    judged = day_ahead.judge_day_ahead(weeks(1, noise=0.1), HOUR_S)
    assert judged.over_best == pytest.approx(judged.pinball / min(judged.baselines.values()))
