"""Means of values by UTC hour."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulation.fleet import HOUR_S, HOURS, mean_over


@pytest.mark.parametrize(("start_h", "length_h", "mean"), [
    (22.5, 1.0, (22 + 23) / 2),
    (21.5, 1.5, (0.5 * 21 + 22) / 1.5),
    (23.0, 2.0, (23 + 0) / 2),
    (5.25, 0.5, 5.0),
    (0.0, 240.0, 11.5),
])  # fmt: skip
def test_each_hour_counts_by_its_share(start_h: float, length_h: float, mean: float) -> None:
    by_hour = np.arange(float(HOURS))
    found = mean_over(by_hour, 3 * HOURS * HOUR_S + start_h * HOUR_S, length_h * HOUR_S)
    assert float(found) == pytest.approx(mean)


@given(st.floats(0, 2e9), st.floats(1, 1e7), st.floats(0, 1000))
def test_equal_values_give_exactly_that_value(start_s: float, period_s: float, usd: float) -> None:
    by_hour = np.full((HOURS, 2, 3), usd)
    assert (mean_over(by_hour, start_s, period_s) == usd).all()


@given(st.floats(0, 2e9), st.floats(60, 1e6), st.floats(60, 1e6))
def test_the_mean_of_two_periods_is_that_of_both(start_s: float, one: float, other: float) -> None:
    by_hour = np.random.default_rng(1).uniform(0, 10, HOURS)
    parts = (
        mean_over(by_hour, start_s, one) * one + mean_over(by_hour, start_s + one, other) * other
    )
    whole = mean_over(by_hour, start_s, one + other)
    assert float(whole) == pytest.approx(float(parts / (one + other)), rel=1e-6)
