"""Requests that a plan is corrected on."""

from pathlib import Path

import numpy as np

from planner.domain.planning.planning import plan_window
from planner.domain.progress import silent
from planner.domain.verification.correction import correction_windows, redraw_arrivals
from tests.planner.domain.replay.test_replay import study


def test_they_came_before_the_first_decision(tmp_path: Path) -> None:
    shared = study(tmp_path)
    planned = plan_window(shared.plan_input, silent)
    windows = correction_windows(shared, planned, 1, silent)
    assert windows
    for ground in windows:
        assert ground.study.window.end_s <= shared.window.origins_s[0]
        assert len(ground.study.trace) > 0 and "oracle" not in ground.words


def test_without_any_the_windows_own_are_drawn_anew_and_it_is_said(tmp_path: Path) -> None:
    shared = study(tmp_path, horizon={"period_s": 300, "lead_s": 120, "duration_s": 2100})
    planned = plan_window(shared.plan_input, silent, method="perfect")
    (ground,) = correction_windows(shared, planned, 1, silent)
    assert "oracle" in ground.words
    assert ground.study.window is shared.window and len(ground.study.trace) == len(shared.trace)


def test_drawn_anew_a_bin_holds_as_many_of_its_own_requests(tmp_path: Path) -> None:
    trace, bin_s = study(tmp_path).trace, 60.0
    again = redraw_arrivals(trace, bin_s, seed=1)
    assert (np.diff(again.arrival_s) >= 0).all()
    bins = [np.floor(its.arrival_s / bin_s).astype(int) for its in (trace, again)]
    np.testing.assert_array_equal(*(np.bincount(places) for places in bins))
    assert not np.array_equal(again.arrival_s, trace.arrival_s)
    for where in range(bins[0].max() + 1):
        pairs = [
            set(zip(its.input_tokens[of == where].tolist(), its.output_tokens[of == where].tolist(),
                    its.model[of == where].tolist(), strict=True))
            for its, of in zip((trace, again), bins, strict=True)
        ]  # fmt: skip
        assert pairs[1] <= pairs[0]
    same = redraw_arrivals(trace, bin_s, seed=1)
    assert same.arrival_s.tobytes() == again.arrival_s.tobytes()
    assert redraw_arrivals(trace, bin_s, seed=2).arrival_s.tobytes() != again.arrival_s.tobytes()
