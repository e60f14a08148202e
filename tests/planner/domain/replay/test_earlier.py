"""Earlier windows: nothing of them is later than the first decision, and they are like the
window."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forecasting.demand import SeriesKey
from planner.domain.progress import silent
from planner.domain.replay.backtest_windows import (
    BLIND,
    NEAR,
    Earlier,
    earlier_windows,
    goal_of,
    reserve_of,
)
from planner.domain.replay.replay import run_policy
from planner.domain.replay.static_search import holds
from planner.domain.study import Study
from planner.domain.traffic.demand import Demand
from planner.domain.traffic.window import DAY_S, Window
from planner.errors import ScenarioError
from planner.policies.choice import policy_of
from simulation.cells import simulate_cell
from simulation.engine.run import simulate
from simulation.fleet import Fleet
from simulation.metrics import summarise
from simulation.policies.static import Static
from simulation.trace import Trace
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
    windows = earlier_windows(window, demand)
    for earlier_one in windows:
        assert earlier_one.end_s <= window.origins_s[0]
        assert earlier_one.origins_s[0] >= demand.start_s + 2 * BIN_S
        assert not earlier_one.ahead and earlier_one.period_s == window.period_s
        assert earlier_one.duration_s <= window.duration_s
    away = [(window.start_s - before.start_s) / DAY_S for before in windows]
    if len(windows) > 1:
        assert all(day == int(day) for day in away)
        assert min(away) == away[0] and len(set(away)) == len(away)


def test_the_last_day_then_the_same_weekday_then_the_days_before() -> None:
    windows = earlier_windows(window_at(96 * 9, 96), demand_of(96 * 10))
    assert [(96 * 9 * BIN_S - before.start_s) / DAY_S for before in windows] == [
        1,
        7,
        2,
        3,
        4,
        5,
        6,
        8,
    ]
    # Decided ten minutes ahead, when the last hour of yesterday is not over.
    assert [before.duration_s / 3600 for before in windows[:3]] == [23, 24, 24]
    morning = earlier_windows(window_at(96 * 3 + 32, 16), demand_of(96 * 4))
    assert [(before.start_s / BIN_S - 32) / 96 for before in morning] == [2, 1, 0]


def test_without_a_day_before_it_is_the_stretch_before_the_decision() -> None:
    (before,) = earlier_windows(window_at(40, 16), demand_of(60))
    assert (before.end_s, before.duration_s) == (39 * BIN_S, 16 * BIN_S)
    (short,) = earlier_windows(window_at(16, 16), demand_of(32))
    assert (short.end_s, short.duration_s) == (15 * BIN_S, 12 * BIN_S)
    assert earlier_windows(window_at(6, 16), demand_of(32)) == ()


def test_days_that_were_hardly_seen_are_left_out() -> None:
    blind = tuple(range(96 * 2 + 32, 96 * 2 + 32 + int(16 * BLIND) + 1))
    morning = earlier_windows(window_at(96 * 3 + 32, 16), demand_of(96 * 4, blind))
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


def test_a_quiet_day_stands_in_for_no_other(tmp_path: Path) -> None:
    """Of six days the third and fourth are at 5%: the fourth is rehearsed on beside as many others
    as were asked for, and the third tells nothing more."""
    load = np.repeat([20.0, 20.0, 1.0, 1.0, 20.0, 20.0], 1440)

    def windows(most: int, load: Any) -> list[float]:
        horizon = {"period_s": 3600, "duration_s": 3600, "start": "2024-05-18T08:00:00Z"}
        toy = study(
            tmp_path, series=load.tolist(), tiers=TIERS[:1], horizon=horizon,
            traffic={"sources": [make.source(**LENGTHS)], "bin_s": 900},
        )  # fmt: skip
        studies = Earlier(toy, most).studies
        return [(toy.window.start_s - its.window.start_s) / DAY_S for its in studies]

    assert windows(1, load) == [1]
    assert windows(2, load) == [1, 2, 4]
    # Where the nearest is as quiet, none is; where all are alike, the nearest are taken.
    load[4 * 1440 : 5 * 1440] = 1.0
    assert windows(2, load) == [1, 2]


def test_flat_before_is_what_the_day_before_needed_whatever_comes(tmp_path: Path) -> None:
    toy = days(tmp_path)
    counts = Earlier(toy).flat(1)
    (before,) = Earlier(toy).studies
    need = Earlier(toy).goals(1).wanted["chat"]
    assert need == pytest.approx(0.975, abs=0.005) and need <= goal_of(0.95, 1.0, 0.5)

    def share(count: int) -> float:
        held = np.array([count])
        done = simulate(
            before.trace, before.fleet(held), Static(held), seed=1,
            duration_s=before.window.duration_s,
        )  # fmt: skip
        return summarise(done).slo_attainment["chat"] or 0.0

    least = next(n for n in range(1, 30) if share(n) >= need)
    assert counts.tolist() == [least]
    more = days(tmp_path / "more", after=3.0)
    assert Earlier(more).flat(1).tolist() == [least]
    run = run_policy(more, policy_of("flat-before"), seed=1, progress=silent)
    assert [pool.initial for pool in run.fleet.pools] == [least] and not run.meets_slo


def test_flat_before_has_room_for_a_day_that_is_busier_than_those_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every day has half as much again: what the last one needed will not do, and is not taken. No
    fleet is replayed twice on a day."""
    load = np.concatenate([np.full(1440, 100.0 * 1.5**day) for day in range(6)])
    toy = study(
        tmp_path,
        series=load.tolist(),
        tiers=TIERS[:1],
        traffic={"sources": [make.source(**LENGTHS)], "bin_s": 900},
        horizon={"period_s": 3600, "duration_s": 3600, "start": "2024-05-18T08:00:00Z"},
    )
    earlier = Earlier(toy, most=1)
    busier = earlier.busier
    assert busier is not None and busier.rise.times == pytest.approx(1.5, rel=0.01)
    (before,) = earlier.studies
    assert len(busier.study.trace) == pytest.approx(1.5 * len(before.trace), rel=0.05)
    window = before.window
    demand = busier.study.traffic.demand
    seen = demand.requests[:, demand.inside(window.start_s, window.end_s)]
    np.testing.assert_allclose(seen, 15 * 100.0 * 1.5**5, rtol=0.01)  # a plan sees it as it comes
    replayed = []

    def noted(trace: Trace, fleet: Fleet, policy: Static, **how: Any) -> Any:
        goals = [tier.attainment for tier in how["watch"].tiers]
        replayed.append((len(trace), *goals, *np.asarray(policy.counts).tolist()))
        return simulate_cell(trace, fleet, policy, **how)

    monkeypatch.setattr("planner.domain.replay.static_replay.simulate_cell", noted)
    least, roomy = earlier.flat(1, room=False), earlier.flat(1)
    assert roomy.sum() > least.sum()
    assert len(set(replayed)) == len(replayed) == 4
    enough = earlier.goals(1).enough(before)
    assert holds(busier.study, roomy, enough, 1) and not holds(busier.study, least, enough, 1)
    run = run_policy(toy, policy_of("flat-before"), seed=1, progress=silent, earlier=earlier)
    assert run.meets_slo
    # A fleet that outgrows the GPUs there are is no room.
    few = replace(toy.hardware, maximum=np.full_like(toy.hardware.maximum, int(least.sum())))
    assert Earlier(replace(toy, hardware=few), most=1).flat(1).tolist() == least.tolist()


def test_where_nothing_came_before_it_says_so(tmp_path: Path) -> None:
    toy = study(tmp_path, horizon={"period_s": 300, "duration_s": 6600, "lead_s": 120})
    assert Earlier(toy).studies == ()
    with pytest.raises(ScenarioError, match="leave it out, or choose a later"):
        run_policy(toy, policy_of("flat-before"), seed=1, progress=silent)
    # That there are none is not said where none were asked for.
    with pytest.raises(ScenarioError, match="none are rehearsed on here"):
        Earlier(toy, most=0).flat(1)


def test_what_no_fleet_serves_in_time_is_no_reserve() -> None:
    assert goal_of(0.95, 1.0, 0.5) == pytest.approx(0.975)
    assert goal_of(0.95, 0.97, 0.5) == pytest.approx(0.96)
    assert goal_of(0.95, 0.95, 0.5) == 0.95
    assert goal_of(0.95, 0.9, 0.5) == pytest.approx(0.9 - NEAR)  # as near as there is


@pytest.mark.parametrize("windows", [1, 2, 3])
def test_the_reserve_is_how_often_the_last_of_several_is_the_hardest(windows: int) -> None:
    orders = list(permutations(range(windows + 1)))
    hardest = sum(order[-1] == windows for order in orders)
    assert reserve_of(windows) == pytest.approx(hardest / len(orders))


def test_all_but_the_nearest_have_a_day_before_them(tmp_path: Path) -> None:
    """The first day has nothing that its own first decision could be forecast from."""

    def at(start: str) -> Study:
        folder = tmp_path / start[8:10]
        folder.mkdir()
        return study(
            folder,
            series=np.full(4 * 1440, 60.0).tolist(),
            tiers=TIERS[:1],
            traffic={"sources": [make.source(**LENGTHS)], "bin_s": 900},
            horizon={"period_s": 3600, "duration_s": 4 * 3600, "start": start},
        )

    toy = at("2024-05-16T08:00:00Z")

    def away(earlier: Earlier) -> list[float]:
        return [(toy.window.start_s - its.window.start_s) / DAY_S for its in earlier.studies]

    assert away(Earlier(toy)) == [1, 2]
    assert away(Earlier(toy, history_s=0.0)) == [1, 2, 3]
    assert Earlier(toy).reserve == pytest.approx(1 / 3) and Earlier(toy).days
    # On the first day it is the stretch right before, and that is no day.
    first = Earlier(at("2024-05-13T12:00:00Z"))
    assert len(first.studies) == 1 and not first.days


def test_a_limit_that_no_fleet_meets_buys_no_fleet_without_end(tmp_path: Path) -> None:
    """Some prompts alone take longer than this: more instances do not help them."""
    toy = days(tmp_path / "tight")
    (tier,) = toy.hardware.tiers
    tight = replace(tier, ttft_s=0.07)
    toy = replace(toy, hardware=replace(toy.hardware, tiers=(tight,)))
    goals = Earlier(toy).goals(1)
    assert not goals.can and goals.wanted["chat"] < 0.95
    most = int(toy.hardware.maximum.max())
    assert 0 < Earlier(toy).flat(1).sum() < most / 2
