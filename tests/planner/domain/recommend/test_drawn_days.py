"""Drawn days: what they conserve, and that no later traffic is in them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner.domain.traffic.drawn_days import draw_days, requests_of_path, with_path
from planner.domain.traffic.traffic import AMOUNTS, Traffic, build_traffic
from planner.domain.traffic.window import Window, resolve_window
from tests.planner.domain import builders as make

BIN = 900.0
DAY_BINS = 96


def days_of(folder: Path, days: int, growth: float = 1.0) -> tuple[Traffic, Window]:
    hours = np.arange(days * DAY_BINS) * BIN / 3600
    level = growth ** (hours // 24)
    counts = np.rint(level * (60 + 40 * np.sin(2 * np.pi * (hours - 8) / 24)))
    stored = make.demand_file(folder, {"chat": counts.tolist()}, bin_s=BIN)
    lengths = {
        "input_tokens": {"mean": 100, "cv": 0.5}, "output_tokens": {"mean": 20, "cv": 0.5},
        "series": "chat",
    }  # fmt: skip
    scenario = make.scenario(
        traffic__sources=[make.source(**lengths)],
        horizon={"duration_s": 86_400, "period_s": 3600, "lead_s": 1800},
        forecast={"method": "seasonal-naive"},
    )
    asked = make.settings_of(scenario)
    traffic = build_traffic(asked.traffic, {"t": stored})
    return traffic, resolve_window(asked.window, traffic.demand, traffic.clock)


def test_paths_use_nothing_from_the_first_decision_on(tmp_path: Path) -> None:
    traffic, window = days_of(tmp_path, 5)
    known = round((window.origins_s[0] - traffic.demand.start_s) / BIN)
    later = traffic.demand.requests.copy()
    later[:, known:] *= 7.0
    other = replace(traffic, demand=replace(traffic.demand, requests=later))
    drawn, again = (draw_days(t, window, "seasonal-naive", 6, 1) for t in (traffic, other))
    assert np.array_equal(drawn.requests, again.requests)


def test_the_same_seed_draws_the_same_days(tmp_path: Path) -> None:
    traffic, window = days_of(tmp_path, 5)
    one, same, other = (draw_days(traffic, window, "seasonal-naive", 6, s) for s in (1, 1, 2))
    assert np.array_equal(one.requests, same.requests)
    assert not np.array_equal(one.requests, other.requests)


def test_paths_contain_the_growth_of_past_days(tmp_path: Path) -> None:
    """Each day has a fifth more than the one before, which seasonal naive always misses."""
    traffic, window = days_of(tmp_path, 12, growth=1.2)
    drawn = draw_days(traffic, window, "seasonal-naive", 20, 1)
    last = traffic.demand.requests[:, -2 * DAY_BINS : -DAY_BINS].sum()
    totals = drawn.requests[:, :, 2:].sum(axis=(1, 2))
    assert 1.1 < np.median(totals) / last < 1.3


def test_a_series_that_began_later_is_drawn_beside_the_others(tmp_path: Path) -> None:
    traffic, window = days_of(tmp_path, 7)
    demand = traffic.demand
    late = demand.requests.copy()
    late[:, : 3 * DAY_BINS] = 0.0
    keys = (*demand.keys, replace(demand.keys[0], tier="late"))
    both: dict[str, Any] = {name: np.vstack([getattr(demand, name)] * 2) for name in AMOUNTS}
    both |= {"keys": keys, "sampling": None}
    both["requests"] = np.vstack([demand.requests, late])
    drawn = draw_days(
        replace(traffic, demand=replace(demand, **both)), window, "seasonal-naive", 6, 1
    )
    old, new = drawn.requests.sum(axis=2).T
    np.testing.assert_allclose(np.median(new), np.median(old), rtol=0.1)


def test_days_spread_more_with_less_history(tmp_path: Path) -> None:
    def spread(folder: str, days: int) -> float:
        (tmp_path / folder).mkdir()
        traffic, window = days_of(tmp_path / folder, days)
        totals = draw_days(traffic, window, "seasonal-naive", 20, 1).requests.sum(axis=(1, 2))
        return float(np.std(np.log(totals)))

    assert spread("few", 2) > 2 * spread("many", 12)


@pytest.mark.parametrize("path", [0, 3])
def test_requests_of_a_path_are_as_many_as_the_path_has(tmp_path: Path, path: int) -> None:
    traffic, window = days_of(tmp_path, 5)
    drawn = draw_days(traffic, window, "seasonal-naive", 6, 1)
    pattern = traffic.requests(window.start_s - 86_400, window.end_s - 86_400, 1)
    trace = requests_of_path(traffic, window, drawn, path, pattern, 1)
    counts = np.bincount((trace.arrival_s // BIN).astype(int), minlength=DAY_BINS)
    wanted = drawn.requests[path][:, 2:].sum(axis=0)
    assert np.all(np.abs(counts - wanted) <= 1)
    assert np.all(np.diff(trace.arrival_s) >= 0) and trace.arrival_s[-1] < window.duration_s
    lengths = set(zip(pattern.input_tokens.tolist(), pattern.output_tokens.tolist(), strict=True))
    mine = set(zip(trace.input_tokens.tolist(), trace.output_tokens.tolist(), strict=True))
    assert mine <= lengths  # prompts and answers of a request stay together


def test_a_path_as_the_pattern_was_keeps_every_request(tmp_path: Path) -> None:
    traffic, window = days_of(tmp_path, 5)
    drawn = draw_days(traffic, window, "seasonal-naive", 2, 1)
    pattern = traffic.requests(window.start_s - 86_400, window.end_s - 86_400, 1)
    counts = np.bincount((pattern.arrival_s // BIN).astype(int), minlength=DAY_BINS)
    as_it_was = drawn.requests.copy()
    as_it_was[0, :, 2:] = counts
    same = requests_of_path(traffic, window, replace(drawn, requests=as_it_was), 0, pattern, 1)
    assert np.allclose(same.arrival_s, pattern.arrival_s)
    assert np.array_equal(same.input_tokens, pattern.input_tokens)


def test_without_a_pattern_requests_are_drawn_from_the_models_lengths(tmp_path: Path) -> None:
    traffic, window = days_of(tmp_path, 3)
    drawn = draw_days(traffic, window, "seasonal-naive", 2, 1)
    nothing = traffic.measured.rows(slice(0))
    trace = requests_of_path(traffic, window, drawn, 0, nothing, 1)
    assert abs(len(trace) - drawn.requests[0][:, 2:].sum()) <= DAY_BINS
    assert set(trace.input_tokens.tolist()) <= set(traffic.lengths[0][0].tolist())


def test_policies_see_the_path_from_the_first_decision_on(tmp_path: Path) -> None:
    traffic, window = days_of(tmp_path, 5)
    drawn = draw_days(traffic, window, "seasonal-naive", 3, 1)
    demand = with_path(traffic.demand, drawn, 2)
    known = round((drawn.start_s - demand.start_s) / BIN)
    assert np.array_equal(demand.requests[:, :known], traffic.demand.requests[:, :known])
    assert np.allclose(demand.requests[:, known:], drawn.requests[2])
    each = np.nansum(demand.input_tokens[:, :known]) / np.nansum(demand.requests[:, :known])
    assert np.allclose(demand.input_tokens[:, known:], each * demand.requests[:, known:])
