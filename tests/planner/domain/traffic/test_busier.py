"""How much busier a day may be than those it is rehearsed on, and a day that is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from forecasting.demand import DemandSeries, SeriesKey
from planner.domain.traffic.day_growth import (
    MOST,
    Growth,
    grown,
    risen,
    rises,
    times,
    times_by_model,
    unseen,
)
from planner.domain.traffic.demand import Demand
from planner.domain.traffic.window import (
    DAY_S,
    Window,
)
from planner.domain.traffic.window_rank import ALL
from planner.inputs.catalogue.shapes import shapes
from tests.planner.domain.replay.test_earlier import days

WEEKDAYS = [10.0, 9.0, 8.0, 9.0, 8.0, 3.0, 3.0]


def windows(day: int, *back: int) -> list[Window]:
    """That of a day, and those so many days before it."""
    return [
        Window((day - ago) * DAY_S, (day - ago + 1) * DAY_S, 3600.0, 600.0, 3600.0, ahead=False)
        for ago in (0, *back)
    ]


def demand(levels: list[float]) -> DemandSeries:
    return DemandSeries(ALL, 0.0, 3600.0, np.repeat(levels, 24), "requests")


def test_a_day_may_have_over_those_it_is_rehearsed_on_what_days_before_had() -> None:
    """Every day is 10% above the last, one doubles: of ten such one in ten is beyond the most."""
    levels = list(np.cumprod([1.0, *9 * [1.1], 1.5, 1.1]))
    window, *before = windows(11, 1)
    rise = risen(demand(levels), window, before)
    assert rise is not None and rise.days == 10
    # Of eleven in any order, the one to come is the largest with a chance of one in eleven.
    expected = float(np.quantile([*9 * [1.1], 1.5], 0.9, method="weibull"))
    assert 1.1 < expected < 1.5 and rise.times == pytest.approx(expected, rel=0.01)
    window, *before = windows(6, 1)
    few = risen(demand(levels), window, before)  # what comes after is not known
    assert few is not None and few.times == pytest.approx(1.1, rel=0.01) and few.days == 5
    window, *before = windows(10, 1, 2)
    two = risen(demand([*10 * [1.0], 1.0, 9.0]), window, before)
    assert two is None  # level, and the leap is yet to come


def test_a_monday_is_no_growth_where_mondays_are_rehearsed_on() -> None:
    levels = 4 * WEEKDAYS
    window, *before = windows(21, 1, 7, 2)
    assert risen(demand(levels), window, before) is None
    window, *before = windows(21, 1)  # after a Sunday alone it is
    rise = risen(demand(levels), window, before)
    assert rise is not None and rise.times == MOST


def test_few_days_or_windows_that_are_none_tell_nothing() -> None:
    levels = list(np.cumprod(9 * [1.2]))
    window, *before = windows(3, 1)
    assert risen(demand(levels), window, before) is None  # two pairs
    window, *before = windows(8, 1, 7)
    assert risen(demand(levels), window, before) is None  # one day has a week before it
    assert risen(demand(levels), window, []) is None


def test_where_no_day_lies_before_hours_may_have_what_office_hours_have() -> None:
    """Eight hours of night stood for the eight of the day after them: a flat fleet of theirs
    served 27%."""

    def stretch(begins: float, ends: float) -> Window:
        return Window(3600 * begins, 3600 * ends, 600.0, 600.0, 600.0, ahead=False)

    levels = demand([1.0])
    rise = risen(levels, stretch(8, 16), [stretch(0, 8)], "m")
    assert rise == Growth("m", MOST, 0)  # office hours have more, beyond which nothing is told
    assert risen(levels, stretch(1, 2), [stretch(0, 1)]) is None  # of an hour they say nothing
    # A whole day has what the day before had, whenever it begins, and longer has no more.
    assert unseen(stretch(24, 48), stretch(0, 24)) == pytest.approx(1.0)
    # By hand: of an office day in two halves that begins at any of 288 times, one in ten has more.
    rate = np.interp(
        np.arange(288) / 12, np.arange(24) + 0.5, shapes()["office"].by_hour, period=24
    )
    halves = [np.roll(rate, -shift).reshape(2, 144).mean(axis=1) for shift in range(288)]
    expected = np.quantile([two[1] / two[0] for two in halves], 0.9)
    assert unseen(stretch(12, 24), stretch(0, 12)) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize("share", [0.8, 1.25, 3.5])
def test_so_many_times_the_requests_at_about_their_times(tmp_path: Path, share: float) -> None:
    trace = days(tmp_path).trace
    stray = times(trace, share, 60.0, np.random.default_rng(0))
    assert len(stray) == pytest.approx(share * len(trace), rel=0.05)
    assert (np.diff(stray.arrival_s) >= 0).all()
    assert stray.arrival_s[0] >= 0 and stray.arrival_s[-1] <= trace.arrival_s[-1]
    counts = [np.histogram(requests.arrival_s, bins=4)[0] for requests in (trace, stray)]
    np.testing.assert_allclose(counts[1], share * counts[0], rtol=0.2)


def test_a_model_that_grows_is_not_hidden_by_one_that_shrinks() -> None:
    """One gains a tenth of the requests a day, the other loses as many: together nothing grows."""
    grows = np.repeat(50.0 + 10.0 * np.arange(8), 24)
    values = np.array([grows, 200.0 - grows])
    keys = (SeriesKey("up", "east", "chat"), SeriesKey("down", "east", "chat"))
    both = Demand(keys, 0.0, 3600.0, values, values, values)
    window, *before = windows(8, 1)
    assert risen(both.total(ALL, "requests", lambda key: True), window, before) is None
    rise = rises(both, ("up", "down"), window, before)
    assert rise is not None and [growth.model for growth in rise.models] == ["up", "down"]
    assert rise.times == rise.models[0].times > 1.1 and rise.models[1].times == 1.0


def test_each_model_grows_by_its_own_share(tmp_path: Path) -> None:
    trace = days(tmp_path).trace
    half = np.arange(len(trace)) % 2
    two = replace(trace, model=half.astype(trace.model.dtype), models=("a", "b"))
    more = times_by_model(two, np.array([2.0, 0.5]), 60.0, np.random.default_rng(0))
    there, then = np.bincount(two.model), np.bincount(more.model)
    assert then[0] == 2 * there[0] and then[1] == pytest.approx(there[1] / 2, rel=0.05)
    assert (np.diff(more.arrival_s) >= 0).all()


def test_demand_grows_in_the_stretch_alone(tmp_path: Path) -> None:
    study = days(tmp_path)
    before, window = study.traffic.demand, study.window
    more = grown(before, {before.keys[0].model: 1.5}, window.start_s, window.end_s)
    inside = before.inside(window.start_s, window.end_s)
    assert inside.any() and not inside.all()
    np.testing.assert_allclose(more.requests[:, inside], 1.5 * before.requests[:, inside])
    np.testing.assert_array_equal(more.input_tokens[:, ~inside], before.input_tokens[:, ~inside])
