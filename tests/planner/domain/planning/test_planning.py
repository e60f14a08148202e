"""The rolling plan: hand-worked, causal, and played out early enough."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forecasting.demand import DemandSeries
from forecasting.rule_forecaster import RuleForecaster
from planner.domain.planning.figures import plan_figures, window_figures
from planner.domain.planning.inputs import PlanInput, PlannedWindow
from planner.domain.planning.planning import (
    begin_forecasts,
    plan_window,
    schedule_of,
    static_at_peak,
    static_before,
)
from planner.domain.planning.spare_replicas import spare_of
from planner.domain.progress import silent
from planner.domain.traffic.window import Window
from planner.errors import Infeasible, ScenarioError
from planner.optimizer.problem import OPTIMAL, ScalingPlan, Totals, WindowPlan
from planner.second_process import second_process
from tests.planner.domain import builders as make

LENGTHS = {"input_tokens": {"mean": 100}, "output_tokens": {"mean": 10}}
TIERS = [
    {"name": "chat", "ttft_ms": 1000},
    {"name": "batch", "e2e_ms": 3_600_000, "deferrable": True},
]


def planned(
    folder: Path, tps: npt.ArrayLike, current: int = 1, method: str | None = None, **changes: Any
) -> tuple[PlannedWindow, PlanInput]:
    """Plan the last half of a file whose bins of 60 s hold ``tps`` input tokens a second."""
    requests = (np.asarray(tps) * 60 / 100).tolist()
    fields = {"traffic": {"sources": [make.source(**LENGTHS)]}, "horizon": {"period_s": 300}}
    scenario = make.scenario(**(fields | changes))
    asked = make.plan_input(scenario, make.demand_file(folder, {"a": requests}))
    asked = replace(asked, current=np.full(asked.current.shape, current))
    return plan_window(asked, silent, method=method), asked


def test_two_periods_worked_by_hand(tmp_path: Path) -> None:
    """1,500 then 3,500 tokens/s on instances of 1,000: 2 then 4. At $2 an hour, five minutes each
    cost $1.00; three starts of a minute (from 1) another $0.10."""
    tps = np.repeat([1000.0, 1000.0, 1500.0, 3500.0], 5)
    result, asked = planned(tmp_path, tps, method="perfect")
    assert result.plan.target[:, 0, 0, 0].tolist() == [2, 4]
    assert result.plan.demand_tps[:, 0, 0].tolist() == [1500, 3500]
    figures = plan_figures(asked, result.plan)
    assert figures.status == OPTIMAL
    assert figures.fleet_cost == pytest.approx(1.0)
    assert figures.objective == pytest.approx(1.1)
    assert figures.gap == pytest.approx(0.0, abs=1e-4)
    moves = [(row.current, row.delta, row.target) for row in figures.decisions]
    assert moves == [(1, 1, 2), (2, 2, 4)]
    assert asked.window.period_starts_s.tolist() == [make.EPOCH + 600, make.EPOCH + 900]


def test_what_instances_carry_together_is_planned_with(tmp_path: Path) -> None:
    """A pair carries 2,400 and four 5,200 where one carries 1,000: 1,500 takes 2 and 3,500 takes 3
    (3,700), not 4."""
    tps = np.repeat([1000.0, 1000.0, 1500.0, 3500.0], 5)
    _, asked = planned(tmp_path, tps, method="perfect")
    pools = np.array([[[1000.0, 2400.0, 3700.0, 5200.0]]])
    pools = np.broadcast_to(pools, (*asked.sizes.theta_tps.shape, 4))
    sizes = replace(asked.sizes, theta_tps=pools[..., -1] / 4, pool_tps=pools)
    result = plan_window(replace(asked, sizes=sizes), silent, method="perfect")
    assert result.plan.target[:, 0, 0, 0].tolist() == [2, 3]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="a single core has no second process")
def test_forecasts_that_were_begun_are_made_in_the_second_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plan is the one that this process makes, with fewer fits here."""
    fits_here: list[RuleForecaster] = []
    fit = RuleForecaster.fit

    def counted(self: RuleForecaster, series: DemandSeries) -> RuleForecaster:
        fits_here.append(self)
        return fit(self, series)

    monkeypatch.setattr(RuleForecaster, "fit", counted)
    tps = 1000.0 + 500.0 * np.sin(np.arange(480) * 2 * np.pi / 60)
    alone, asked = planned(tmp_path, tps)
    with second_process(["forecasting.selection"]):
        fits_alone = len(fits_here)
        begin_forecasts(asked.settings, asked.hardware, asked.traffic, asked.window)
        shared = plan_window(asked, silent)
    assert len(fits_here) - fits_alone < fits_alone
    np.testing.assert_array_equal(shared.load.tps, alone.load.tps)
    assert shared.quantiles == alone.quantiles
    assert shared.plan.target.tolist() == alone.plan.target.tolist()


def test_spare_instances_and_what_they_cost(tmp_path: Path) -> None:
    """One more in either period: twice five minutes at $2 an hour, and a start of a minute."""
    tps = np.repeat([1000.0, 1000.0, 1500.0, 3500.0], 5)
    kept = {"objective": {"spare": {"instances": 1}}}
    result, asked = planned(tmp_path, tps, method="perfect", **kept)
    assert result.plan.target[:, 0, 0, 0].tolist() == [3, 5]
    spare = spare_of(asked, result, silent)
    assert spare is not None
    assert (spare.instances, spare.by, spare.regions) == (1, "pool", 0)
    assert spare.usd == pytest.approx(2 * 2 / 12 + 2 / 60)
    assert spare.gpu_hours == pytest.approx(2 / 12 + 1 / 60)
    assert spare.usd_share == pytest.approx(spare.usd / 1.1)
    assert spare.sentence == (
        "Demand is carried without any replica of every pool: that costs $0.37 (+33.3%) and 0.2 "
        "GPU-hours of this window."
    )
    assert window_figures(asked, result, spare=spare).spare is spare
    plain, without = planned(tmp_path, tps, method="perfect")
    assert spare_of(without, plain, silent) is None


def test_the_only_region_cannot_be_lost(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match=r"^objective\.spare\.regions"):
        planned(tmp_path, np.full(20, 900.0), objective={"spare": {"regions": 1}})


def test_peak_within_a_period_is_what_is_planned_for(tmp_path: Path) -> None:
    tps = np.full(20, 500.0)
    tps[13] = 2600
    result, _ = planned(tmp_path, tps, method="perfect")
    assert result.plan.target[:, 0, 0, 0].tolist() == [3, 1]


def test_deferrable_load_adds_its_share_of_the_last_period(tmp_path: Path) -> None:
    """E6: beta of the NIW load seen in the period before the decision, not of what comes."""
    tps = np.repeat([3000.0, 1000.0, 2000.0, 4000.0], 5)
    source = make.source(tiers={"chat": 0.5, "batch": 0.5}, **LENGTHS)
    result, _ = planned(
        tmp_path, tps, method="perfect", tiers=TIERS, traffic={"sources": [source]},
        forecast={"niw_buffer": 0.1}, horizon={"period_s": 300, "lead_s": 0},
    )  # fmt: skip
    interactive, deferred = 0.5 * np.array([2000, 4000]), 0.5 * np.array([1000, 2000])
    np.testing.assert_allclose(result.plan.demand_tps[:, 0, 0], interactive + 0.1 * deferred)


def test_only_deferrable_traffic_is_planned_without_a_forecast(tmp_path: Path) -> None:
    source = make.source(tiers={"batch": 1.0}, **LENGTHS)
    result, _ = planned(
        tmp_path, np.full(20, 5000.0), tiers=TIERS, traffic={"sources": [source]},
        forecast={"niw_buffer": 0.1},
    )  # fmt: skip
    assert result.forecasts == ()
    np.testing.assert_allclose(result.plan.demand_tps, 500.0)


def test_a_plan_that_cannot_be_names_the_period(tmp_path: Path) -> None:
    tps = np.repeat([1000.0, 1000.0, 1500.0, 90_000.0], 5)
    with pytest.raises(Infeasible, match=r"the period from 13 May 2024, 00:15 UTC\. .*east"):
        planned(tmp_path, tps, method="perfect")


@pytest.mark.parametrize(
    ("method", "lead_s"), [("auto", 0), ("arima", 60), ("last-value", 420), ("auto", 420)]
)
def test_what_comes_after_a_decision_never_changes_it(
    tmp_path: Path, method: str, lead_s: float
) -> None:
    rng = np.random.default_rng(1)
    tps = 1500 + 400 * np.sin(np.arange(120) / 9) + rng.normal(0, 90, 120)
    source = make.source(tiers={"chat": 0.7, "batch": 0.3}, **LENGTHS)
    common: dict[str, Any] = {
        "tiers": TIERS,
        "traffic": {"sources": [source]},
        "horizon": {"period_s": 600, "lead_s": lead_s, "duration_s": 3600},
        "forecast": {"method": method},
    }
    before, asked = planned(tmp_path, tps, **common)
    origins = asked.window.origins_s
    assert (origins <= asked.window.period_starts_s).all()
    changed = 0
    for cut in range(1, len(origins)):
        bin_at = round((origins[cut] - make.EPOCH) / 60)
        other = tps.copy()
        other[bin_at:] *= 4
        after, _ = planned(tmp_path, other, **common)
        known = slice(0, cut + 1)
        np.testing.assert_allclose(
            after.plan.demand_tps[known], before.plan.demand_tps[known], rtol=1e-9
        )
        np.testing.assert_array_equal(after.plan.target[known], before.plan.target[known])
        changed += int((after.plan.demand_tps != before.plan.demand_tps).any())
    assert changed == len(origins) - 2  # after the last origin nothing is left to change
    truth, _ = planned(tmp_path, tps, **common, method="perfect")
    assert (truth.plan.demand_tps != before.plan.demand_tps).any()


@settings(max_examples=12)
@given(peaks=st.lists(st.integers(1, 30_000), min_size=2, max_size=2), seed=st.integers(0, 9))
def test_flat_at_peak_covers_every_region_and_no_less_would(
    tmp_path_factory: pytest.TempPathFactory, peaks: list[int], seed: int
) -> None:
    folder = tmp_path_factory.mktemp("peak")
    rng = np.random.default_rng(seed)
    shape = rng.uniform(0.1, 1.0, (2, 20))
    shape[:, 14] = 1.0
    tps = np.array(peaks)[:, None] * shape
    tps[:, :10] *= 3  # before the window: not its peak
    regions = [{**make.WEST, "name": "east"}, make.WEST]
    series = {name: (tps[i] * 60 / 100).tolist() for i, name in enumerate(("a", "b"))}
    sources = [
        make.source(series="a", regions={"east": 1}, **LENGTHS),
        make.source(series="b", regions={"west": 1}, **LENGTHS),
    ]
    scenario = make.scenario(
        traffic={"sources": sources}, regions=regions, fleet={"startup_s": 60, "minimum": 0}
    )
    asked = make.plan_input(scenario, make.demand_file(folder, series))
    fleet, misfit = static_at_peak(asked)
    counts = fleet[0, :, 0]
    assert not misfit
    top = asked.traffic.demand.input_tokens[:, 10:].max(axis=1) / 60
    assert counts.tolist() == np.ceil(top / 1000 - 1e-9).astype(int).tolist()


def test_the_fleet_that_stands_in_for_todays_knows_nothing_of_the_window(tmp_path: Path) -> None:
    tps = np.full(40, 900.0)
    tps[5] = 2500.0  # the peak before the window
    scenario = make.scenario(
        traffic={"sources": [make.source(**LENGTHS)]}, fleet={"startup_s": 60, "minimum": 0}
    )
    flat = []
    for inside in (100.0, 9000.0):
        tps[-10:] = inside
        asked = make.plan_input(scenario, make.demand_file(tmp_path, {"a": (tps * 0.6).tolist()}))
        flat.append(static_before(asked))
    assert [fleet.counts.sum() for fleet in flat] == [3, 3]
    assert flat[0].seconds == asked.window.start_s - asked.traffic.demand.start_s


# When a plan asks for what


def plan_of(targets: list[int], period_s: float = 3600.0) -> ScalingPlan:
    windows = [
        WindowPlan(
            OPTIMAL,
            np.array([[[n]]]),
            0.0,
            0.0,
            0.0,
            0.0,
            "highs",
            0.0,
            0.0,
            (),
            "",
            Totals(0.0, 0.0, 0.0, 0.0, 0, 0),
        )
        for n in targets
    ]
    starts = make.EPOCH + period_s * np.arange(len(targets))
    return ScalingPlan(
        ("m",), ("east",), ("G",), np.ones((1, 1), int), starts, period_s,
        np.array([[[1]]]), np.zeros((len(targets), 1, 1)), tuple(windows),
    )  # fmt: skip


def window_of(plan: ScalingPlan, lead_s: float, bin_s: float = 60.0) -> Window:
    start = float(plan.period_start_s[0])
    end = start + plan.period_s * len(plan.windows)
    return Window(start, end, plan.period_s, lead_s, bin_s, after_traffic=False)


def test_what_the_plan_lends_is_back_before_the_period_that_wants_it() -> None:
    plan = plan_of([5, 5, 3])
    assert schedule_of(plan, window_of(plan, 600)).lent is None
    lends = replace(plan, lent=np.array([3, 0, 1]).reshape(3, 1, 1, 1))
    asked = schedule_of(lends, window_of(lends, 600))
    times, targets, lent = asked.times_s, asked.targets, asked.lent
    assert lent is not None and times.tolist() == [0, 3000, 3600, 6600, 7200]
    assert targets[:, 0, 0, 0].tolist() == [5, 5, 5, 5, 3]
    assert lent[:, 0, 0, 0].tolist() == [3, 0, 0, 0, 1]


@given(
    targets=st.lists(st.integers(0, 9), min_size=1, max_size=12),
    lead_s=st.integers(0, 8000),
    period_s=st.sampled_from([60.0, 300.0, 900.0, 3600.0]),
)
def test_the_most_of_what_is_under_way_and_of_what_was_decided_is_asked_for(
    targets: list[int], lead_s: float, period_s: float
) -> None:
    """Growth is asked for a lead early, and shrinking waits for the end of its period."""
    plan = plan_of(targets, period_s)
    window = window_of(plan, lead_s)
    asked = schedule_of(plan, window)
    times, steps = asked.times_s, asked.targets
    assert (np.diff(times) > 0).all() and times[0] == 0

    def asked_at(moment: float) -> int:
        return int(steps[np.searchsorted(times, moment, side="right") - 1, 0, 0, 0])

    begins = period_s * np.arange(len(targets))
    known_s = np.maximum(0.0, window.origins_s - window.start_s)
    for moment in {*times, *begins, *known_s, *np.maximum(0.0, begins - lead_s)}:
        counted = (known_s <= moment + 1e-6) & (moment < begins + period_s)
        assert asked_at(moment) == np.array(targets)[counted].max()
    for begin, target in zip(begins, targets, strict=True):
        assert asked_at(max(0.0, begin - lead_s)) >= target


def test_the_plan_ahead_of_the_trace_is_decided_at_its_end() -> None:
    plan = plan_of([2, 5])
    window = replace(window_of(plan, 7200), after_traffic=True)
    asked = schedule_of(plan, window)
    times, targets = asked.times_s, asked.targets
    assert times.tolist() == [0, 3600]
    assert targets[:, 0, 0, 0].tolist() == [5, 5]
