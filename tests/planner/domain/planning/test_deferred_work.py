"""Room for work that may wait: all of it is done before it is urgent, and no more is bought."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.domain.planning.deferred_work import (
    DeferredWork,
    TierWork,
    deferred_tps,
    filled_level,
    level_load,
)
from planner.domain.planning.inputs import PlanInput
from planner.domain.planning.planning import plan_window, static_at_peak
from planner.domain.progress import silent
from tests.planner.domain import builders as make

LENGTHS = {"input_tokens": {"mean": 100}, "output_tokens": {"mean": 10}}
BIN = 60.0
loads = st.lists(st.floats(0, 100), min_size=1, max_size=12).map(np.array)


@given(load=loads, amount=st.floats(0, 1000))
def test_work_fills_the_bins_as_water_does(load: npt.NDArray[np.float64], amount: float) -> None:
    levelled = filled_level(load, amount)
    assert np.maximum(levelled - load, 0).sum() == pytest.approx(amount, abs=1e-6)
    assert (levelled <= load.max() + 1e-9) == (amount <= (load.max() - load).sum() + 1e-9)


@given(load=loads, seed=st.integers(0, 99), bins=st.integers(0, 6))
def test_a_flat_level_is_the_least_at_which_all_is_done_in_time(
    load: npt.NDArray[np.float64], seed: int, bins: int
) -> None:
    work = np.random.default_rng(seed).uniform(0, 50, len(load))

    def late(carried: float) -> bool:
        """Bin by bin, oldest first, on two days alike."""
        waiting: list[list[float]] = []
        for t, (busy, come) in enumerate(zip(np.tile(load, 2), np.tile(work, 2), strict=True)):
            waiting.append([t, come])
            room = carried - busy
            for job in waiting:
                done = min(room, job[1])
                job[1], room = job[1] - done, room - done
            if any(left > 1e-6 and t - came >= bins for came, left in waiting):
                return True
        return False

    levelled = level_load(load, work, bins)
    least = max(load.max(), (load + work).mean())
    assert not late(levelled + 1e-6)
    assert levelled == pytest.approx(least) or late(levelled - 1e-4)


def asked(folder: Path, chat: Any, batch: Any, **changes: Any) -> PlanInput:
    """The last 60 of 100 bins of a minute in periods of 10, of tokens/s."""
    tiers = [
        {"name": "chat", "ttft_ms": 1000},
        {"name": "batch", "e2e_ms": 3_600_000, "deferrable": True, "priority_after_s": 1800},
    ]
    fields: dict[str, Any] = {
        "tiers": tiers, "fleet": {"startup_s": 0, "minimum": 0},
        "traffic": {"sources": [
            make.source(series="chat", tiers={"chat": 1}, **LENGTHS),
            make.source(series="batch", tiers={"batch": 1}, **LENGTHS),
        ]},
        "horizon": {"period_s": 600, "duration_s": 3600, "lead_s": 0},
    }  # fmt: skip
    scenario = make.scenario(**(fields | changes))
    counts = {
        name: (np.broadcast_to(np.asarray(tps, float), 100) * BIN / 100).tolist()
        for name, tps in (("chat", chat), ("batch", batch))
    }
    return make.plan_input(scenario, make.demand_file(folder, counts))


def test_everything_is_done_before_it_is_urgent(tmp_path: Path) -> None:
    inputs = asked(tmp_path, 1000.0, 600.0)
    load = np.full((6, 1, 1, 10), 1000.0)
    put_off = deferred_tps(inputs, load, at_once=False)[:, 0, 0].sum(axis=1) * BIN
    come = np.cumsum(np.full(60, 600.0 * BIN))
    done = np.cumsum(put_off)
    for p in range(3, 6):  # half an hour later, at the end of each period
        assert done[p] >= come[10 * (p - 2) - 1] * (1 - 1e-9)
    assert done[-1] <= come[-1]


def test_what_fits_below_the_peak_costs_nothing(tmp_path: Path) -> None:
    """Load of 1,000 with one bin of 3,000 in ten leaves 1,800 on the mean for 600."""
    chat = np.tile([3000.0, *[1000.0] * 9], 10)
    load = np.tile(chat[:10], (6, 1)).reshape(6, 1, 1, 10)
    put_off = deferred_tps(asked(tmp_path, chat, 600.0), load, at_once=False)
    assert ((load + put_off).max(axis=3) == 3000.0).all()


def test_a_plan_makes_room_where_a_tenth_did_not(tmp_path: Path) -> None:
    steady = asked(tmp_path, 1000.0, 2000.0)
    tenth = steady.settings.forecast.model_copy(update={"niw_buffer": 0.1})
    paper = replace(steady, settings=replace(steady.settings, forecast=tenth))
    ours, theirs = (
        plan_window(inputs, silent, method="perfect").plan.demand_tps[:, 0, 0]
        for inputs in (steady, paper)
    )
    assert theirs == pytest.approx(1200.0)
    assert (np.diff(ours) > 0).any()  # as the queue fills; then all that comes is done
    assert ours[-1] == pytest.approx(3000.0, rel=0.1)
    flat = static_at_peak(steady)[0][0, 0, 0]
    assert flat == 3  # instances of 1,000


def test_what_is_done_is_that_of_the_most_urgent() -> None:
    relaxed = TierWork(np.array([0.0, 10.0]), 100.0, np.array([5.0, 5.0]))
    urgent = TierWork(np.array([20.0]), 10.0, np.array([4.0]))
    work = DeferredWork.of([relaxed, urgent])
    assert work.urgent_s.tolist() == [30.0, 100.0, 110.0]
    assert work.without_first(6.0).tokens.tolist() == [0.0, 3.0, 5.0]
    # Half of a minute's way for the first, by the end for what is urgent within it.
    single = TierWork(np.array([0.0]), 60.0, np.array([8.0]))
    assert DeferredWork.of([single]).tokens_needed(0.0, 30.0) == 4.0
    assert work.tokens_needed(0.0, 30.0) == pytest.approx(4.0 + 5 * 30 / 100 + 5 * 20 / 100)
