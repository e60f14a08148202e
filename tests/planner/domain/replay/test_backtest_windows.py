"""Past windows: nothing of them is later than the first decision, and they are like the window."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forecasting.demand import SeriesKey
from planner.domain.progress import silent
from planner.domain.replay.backtest_windows import (
    MAX_GAP_SHARE,
    past_studies,
    past_windows,
    study_at,
)
from planner.domain.replay.replay import run_policy
from planner.domain.study import Study
from planner.domain.traffic.demand import Demand
from planner.domain.traffic.window import DAY_S, Window
from planner.errors import ScenarioError
from planner.policies.choice import policy_of
from simulation.engine.run import simulate
from simulation.metrics import summarise
from simulation.policies.static import Static
from tests.planner.domain import builders as make
from tests.planner.domain.replay.test_policies import LENGTHS, TIERS, study

BIN_S = 900.0


def demand_of(bins: int, gaps: tuple[int, ...] = ()) -> Demand:
    values = np.ones((1, bins))
    values[:, list(gaps)] = np.nan
    key = SeriesKey("m", "east", "chat")
    return Demand((key,), 0.0, BIN_S, values, values, values)


def window_at(start: int, bins: int, lead_s: float = 600.0, ahead: bool = False) -> Window:
    return Window(start * BIN_S, (start + bins) * BIN_S, BIN_S * 4, lead_s, BIN_S, ahead)


@given(
    days=st.integers(1, 20), hours=st.integers(1, 60), start=st.integers(8, 96), ahead=st.booleans()
)
def test_all_of_it_is_known_at_the_first_decision(
    days: int, hours: int, start: int, ahead: bool
) -> None:
    window = window_at(start + 96 * days, 4 * hours, ahead=ahead)
    demand = demand_of(start + 96 * days + (0 if ahead else 4 * hours))
    windows = past_windows(window, demand)
    assert len(windows) <= 3
    for past in windows:
        assert past.end_s <= window.origins_s[0]
        assert past.origins_s[0] >= demand.start_s + 2 * BIN_S
        assert not past.after_traffic and past.period_s == window.period_s
        assert past.duration_s <= window.duration_s
    away = [(window.start_s - before.start_s) / DAY_S for before in windows]
    if len(windows) > 1 and min(away) >= 1:
        assert all(day == int(day) for day in away)
        assert min(away) == away[0] and len(set(away)) == len(away)


def test_without_a_day_before_they_are_the_time_before_the_decision_and_the_busiest_before() -> (
    None
):
    demand = demand_of(80)
    requests = demand.requests.copy()
    requests[:, 12:20] *= 5
    window = window_at(60, 16)
    before, busiest = past_windows(window, replace(demand, requests=requests))
    assert (before.end_s, before.duration_s) == (59 * BIN_S, 16 * BIN_S)
    assert busiest.end_s <= before.start_s
    assert busiest.start_s <= 12 * BIN_S and busiest.end_s >= 20 * BIN_S
    assert 12 * BIN_S <= busiest.duration_s <= 16 * BIN_S
    # No room for most of another window.
    (short,) = past_windows(window_at(16, 16), demand_of(32))
    assert (short.end_s, short.duration_s) == (15 * BIN_S, 12 * BIN_S)
    assert past_windows(window_at(6, 16), demand_of(32)) == ()


def test_days_that_were_hardly_seen_are_left_out() -> None:
    blind = tuple(range(96 * 2 + 32, 96 * 2 + 32 + int(16 * MAX_GAP_SHARE) + 1))
    morning = past_windows(window_at(96 * 3 + 32, 16), demand_of(96 * 4, blind), 0.0)
    assert [(before.start_s / BIN_S - 32) / 96 for before in morning] == [1, 0]


def days(folder: Path, after: float = 1.0, **sections: Any) -> Study:
    """Two days by the minute, busy from 8 to 12, of which the second is planned from 8 to 12;
    ``after`` is what comes then in times of the day before, ``sections`` more of the scenario."""
    minute = np.arange(2 * 1440)
    load = np.where((minute // 60) % 24 // 4 == 2, 600.0, 60.0)
    load[1440 + 480 :] *= after
    folder.mkdir(exist_ok=True)
    return study(
        folder,
        series=load.tolist(),
        tiers=TIERS[:1],
        traffic={"sources": [make.source(**LENGTHS)], "bin_s": 900},
        horizon={"period_s": 3600, "duration_s": 4 * 3600, "start": "2024-05-14T08:00:00Z"},
        **sections,
    )


def days_before(window: Window, windows: tuple[Window, ...]) -> list[float]:
    return [(window.start_s - past.start_s) / DAY_S for past in windows]


def busy_day(bins: int, day: int) -> Demand:
    """Requests of equal days, but one with twice as many."""
    demand = demand_of(bins)
    requests = demand.requests.copy()
    requests[:, 96 * day : 96 * (day + 1)] *= 2
    return replace(demand, requests=requests)


def test_they_are_the_last_day_the_same_weekday_and_the_busiest() -> None:
    window = window_at(96 * 12, 96)
    windows = past_windows(window, busy_day(96 * 13, 8))
    assert days_before(window, windows) == [1, 7, 4]
    # Decided ten minutes ahead, when the last hour of yesterday is not over.
    assert [past.duration_s / 3600 for past in windows] == [23, 24, 24]


@pytest.mark.parametrize("bins", [5, 9, 10, 11])
def test_without_an_earlier_day_windows_begin_on_edges_of_bins(bins: int) -> None:
    window = replace(window_at(50, bins), period_s=BIN_S)
    windows = past_windows(window, demand_of(50 + bins))
    assert len(windows) == 2
    assert all(past.start_s % BIN_S == 0 for past in windows)


def test_a_day_is_named_once_and_the_nearest_fill_up() -> None:
    window = window_at(96 * 12, 96)
    assert days_before(window, past_windows(window, busy_day(96 * 13, 5))) == [1, 7, 2]


def test_what_the_window_itself_has_changes_none_of_them() -> None:
    window = window_at(96 * 12, 96)
    demand = busy_day(96 * 13, 8)
    known = past_windows(window, demand)
    requests = demand.requests.copy()
    requests[:, 96 * 12 :] *= 100
    assert past_windows(window, replace(demand, requests=requests)) == known


def test_all_but_the_last_day_have_a_day_of_history() -> None:
    window, demand = window_at(96 * 3 + 32, 16), demand_of(96 * 4)
    assert days_before(window, past_windows(window, demand)) == [1, 2]
    assert days_before(window, past_windows(window, demand, history_s=0.0)) == [1, 2, 3]


def test_the_static_fleet_is_sized_on_past_days_whatever_comes(tmp_path: Path) -> None:
    toy = days(tmp_path)
    (before,) = past_studies(toy)

    def meets(count: int) -> bool:
        held = np.array([count])
        done = simulate(
            before.trace, before.fleet(held), Static(held), seed=1,
            duration_s=before.window.duration_s,
        )  # fmt: skip
        return (summarise(done).slo_attainment["chat"] or 0.0) >= 0.95

    least = next(n for n in range(1, 30) if meets(n))
    for times in (1.0, 3.0):
        busier = days(tmp_path / str(times), after=times)
        run = run_policy(busier, policy_of("flat-before"), seed=1, progress=silent)
        assert [pool.initial for pool in run.fleet.pools] == [least]
    assert not run.meets_slo


def test_a_past_study_has_the_requests_of_its_window(tmp_path: Path) -> None:
    toy = days(tmp_path)
    earlier = replace(
        toy.window, start_s=toy.window.start_s - DAY_S, end_s=toy.window.end_s - DAY_S
    )
    past = study_at(toy, earlier)
    assert past.window == earlier and past.hardware is toy.hardware
    inside = toy.traffic.demand.inside(earlier.start_s, earlier.end_s)
    assert len(past.trace) == round(float(toy.traffic.demand.requests[:, inside].sum()))


def test_without_past_traffic_there_are_none(tmp_path: Path) -> None:
    toy = study(tmp_path, horizon={"period_s": 300, "duration_s": 6600, "lead_s": 120})
    assert past_studies(toy) == ()
    with pytest.raises(ScenarioError):
        run_policy(toy, policy_of("flat-before"), seed=1, progress=silent)
