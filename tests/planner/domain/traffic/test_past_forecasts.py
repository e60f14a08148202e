"""What a forecast would have been at past moments, and what it is held against."""

from dataclasses import replace

import numpy as np
import pytest

from planner.domain.progress import silent
from planner.domain.results.tables import looking_back_tables
from planner.domain.traffic.forecasts import MEAN, forecast_window
from planner.domain.traffic.groups import groups_of
from planner.domain.traffic.past_forecasts import (
    MAX_ORIGINS,
    NaiveComparison,
    largest_past_forecasts,
    naive_comparison,
    naive_sentence,
    origins,
    wape,
)
from planner.domain.traffic.sources import StoredTrace
from tests.planner.domain.builders import daily_cycle, parts, scenario

HORIZON = {"duration_s": 6 * 3600, "period_s": 3600}


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> StoredTrace:
    """Three days of quarter hours, each day as the one before it but for a little noise."""
    noise = np.random.default_rng(2).normal(1.0, 0.02, 3 * 96)
    return daily_cycle(tmp_path_factory.mktemp("daily"), noise)


def test_each_moment_knows_what_came_before_it_and_nothing_else(stored: StoredTrace) -> None:
    hardware, traffic, window = parts(scenario(horizon=HORIZON), stored)
    groups = groups_of(hardware, one_per_tier=False)
    (look,) = largest_past_forecasts(groups, traffic, window, "last-value", silent)
    np.testing.assert_array_equal(look.origins_s, window.origins_s)
    seen = dict(zip(look.history_s + 900 * np.arange(len(look.history)), look.history,
                    strict=True))  # fmt: skip
    for o, origin in enumerate(look.origins_s):
        np.testing.assert_allclose(look.mean[o], seen[origin - 900.0])
    assert look.mean.shape[1] == 96 and (look.low <= look.high).all()
    tables = looking_back_tables([look])
    assert tables["moments"].height == 6 * 96
    assert tables["moments"]["origin"].n_unique() == 6
    assert looking_back_tables([]) == {}


def test_a_window_that_is_yet_to_come_is_looked_back_on_from_before_it(stored: StoredTrace) -> None:
    ahead = scenario(horizon={"start": "end", **HORIZON})
    _, _, window = parts(ahead, stored)
    moments = origins(window)
    assert moments[-1] == window.start_s and len(moments) == 6
    long = replace(window, end_s=window.start_s + 100 * 3600)
    assert len(origins(long)) <= MAX_ORIGINS


def test_a_forecast_worse_than_naive_says_so_first(stored: StoredTrace) -> None:
    hardware, traffic, window = parts(scenario(horizon=HORIZON), stored)
    groups = groups_of(hardware, one_per_tier=False)

    def compared(method: str) -> NaiveComparison:
        made = forecast_window(
            [(group, MEAN) for group in groups], traffic, window, method=method, progress=silent
        )
        found = naive_comparison(groups, traffic, window, made)
        assert found is not None
        return found

    worse, best = compared("last-value"), compared("seasonal-naive")
    assert worse.is_worse and not best.is_worse
    assert worse.naive == best.naive == best.methods == "seasonal-naive"
    assert worse.naive_error == best.error < worse.error
    assert naive_sentence(worse, "last-value", 6).startswith("Worse")
    assert "seasonal-naive" in naive_sentence(worse, "last-value", 6)
    assert "seasonal-naive" not in naive_sentence(worse, "auto", 6)
    assert naive_sentence(None, "auto", 6) == ""


def test_errors_by_hand() -> None:
    nan = np.nan
    actual, mean = np.array([4.0, nan, 6.0]), np.array([5.0, 9.0, 3.0])
    assert wape([(actual, mean)]) == pytest.approx(0.4)
    assert wape([(np.array([nan]), np.array([1.0]))]) is None
