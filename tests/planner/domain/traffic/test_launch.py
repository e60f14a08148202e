"""Traffic without a trace: what is described is what is drawn, planned for and replayed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner.domain.planning.planning import plan_window
from planner.domain.progress import silent
from planner.domain.traffic.described_traffic import expected_counts
from planner.domain.traffic.forecast_requests import requests_ahead
from planner.domain.traffic.traffic import LAUNCHED_NOTE, build_traffic
from planner.domain.traffic.window import resolve_window
from planner.errors import ScenarioError
from planner.inputs.catalogue.shapes import shapes
from planner.inputs.scenario.schema import Launch
from planner.inputs.scenario.settings import settings_of
from tests.planner.domain import builders as make

HOUR, DAY, WEEK = 3600.0, 86400.0, 604_800.0
BEGINS = "2024-05-13"  # make.EPOCH, a Monday
LENGTHS = {"input_tokens": {"mean": 100}, "output_tokens": {"mean": 10}}


def launched(**launch: Any) -> dict[str, Any]:
    fields = {"rps": 2.0, "begins": BEGINS} | launch
    fields = {key: value for key, value in fields.items() if value is not None}
    source = make.source(trace=None, launch=fields, **LENGTHS)
    return {"traffic__sources": [source], "forecast": {"quantile": "mean"}}


def parts(duration_s: float = DAY, **launch: Any) -> Any:
    scenario = make.scenario(**launched(**launch), horizon={"duration_s": duration_s})
    asked = settings_of(scenario)
    traffic = build_traffic(asked.traffic, {})
    return scenario, traffic, resolve_window(asked.window, traffic.demand, traffic.clock)


@pytest.mark.parametrize("day", [*shapes(), [0] * 12 + [1] * 6 + [3] * 6])
@pytest.mark.parametrize("offset", [0, -5, 5.5])
def test_a_week_has_what_is_described_whatever_its_shape(day: Any, offset: float) -> None:
    launch = Launch(rps=2.0, day=day, utc_offset_h=offset)
    week = expected_counts(launch, make.EPOCH, 900.0, 672, "utc")
    assert week.sum() == pytest.approx(2.0 * WEEK)
    # Bins of any width hold the same.
    hours = expected_counts(launch, make.EPOCH, HOUR, 168, "utc")
    np.testing.assert_allclose(week.reshape(168, 4).sum(axis=1), hours)


def test_hours_are_local_and_weekends_have_their_share() -> None:
    day = [0.0] * 24
    day[9] = 1.0
    launch = Launch(requests_per_day=86_400, day=day, weekend=0.5, utc_offset_h=-5)
    hours = expected_counts(launch, make.EPOCH, HOUR, 168, "utc").reshape(7, 24)
    assert set(np.flatnonzero(hours.sum(axis=0))) == {14}  # 9 in the morning, five hours behind
    np.testing.assert_allclose(hours.sum(axis=1)[5:] / hours.sum(axis=1)[:5].mean(), 0.5)


def test_a_plan_without_a_trace_is_for_what_is_described(tmp_path: Path) -> None:
    _, traffic, window = parts(WEEK, day="office")
    assert window.after_traffic and window.start_s == make.EPOCH and LAUNCHED_NOTE in traffic.notes
    assert traffic.demand.bins == 28 * 96
    drawn = traffic.demand.requests.sum() / (28 * DAY)
    assert drawn == pytest.approx(2.0, rel=0.03)
    scenario, _, _ = parts(DAY)
    inputs = make.plan_input(scenario, make.StoredTrace("t", "demand", "utc", tmp_path))
    load = plan_window(inputs, silent).load
    expected = (
        expected_counts(scenario.traffic.sources[0].launch, make.EPOCH, 900.0, 96, "utc")
        * 100
        / 900
    )
    np.testing.assert_allclose(load.tps[:, 0, 0].ravel(), expected)
    requests, notes = requests_ahead(inputs.traffic, inputs.window, "auto", 3)
    assert notes[0].startswith("The window is after the traffic")
    assert len(requests) == pytest.approx(expected.sum() * 9, rel=0.02)


def test_a_launch_beside_a_trace_comes_over_the_same_time(tmp_path: Path) -> None:
    stored = make.demand_file(tmp_path, {"m": [60.0] * 240})
    sources = [make.source(**LENGTHS), make.source(
        trace=None, launch={"rps": 2.0, "day": "flat", "variation": 0}, **LENGTHS
    )]  # fmt: skip
    asked = settings_of(make.scenario(traffic__sources=sources))
    demand = build_traffic(asked.traffic, {"t": stored}).demand
    np.testing.assert_allclose(demand.requests, 60.0 + 2.0 * demand.bin_s)
    assert demand.start_s == make.EPOCH and demand.bins == 240


def test_what_a_launch_lacks_is_said_with_its_field() -> None:
    with pytest.raises(ScenarioError, match=r"launch.begins: no trace says"):
        parts(begins=None)
    with pytest.raises(ScenarioError, match="either rps"):
        make.scenario(**launched(requests_per_day=5))
    bare = make.source(trace=None, launch={"rps": 1.0}, model=None)
    with pytest.raises(ScenarioError, match="needs model, input_tokens, output_tokens too"):
        make.scenario(traffic__sources=[bare])
