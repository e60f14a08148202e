"""The levels along a scenario's traffic: what they hold, on observation and on forecast."""

from typing import Any

import numpy as np
import polars as pl
import pytest

from planner.domain.kinds import provision
from planner.domain.kinds.provision import Options
from planner.domain.outcome import Inputs, Outcome
from planner.domain.progress import silent
from planner.domain.traffic.sources import StoredTrace
from planner.errors import ScenarioError
from tests.planner.domain import builders as make
from tests.planner.domain.provisioning.test_provisioning import small

SHORT = {"horizon": {"period_s": 300, "duration_s": 300}}


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> StoredTrace:
    """Ninety minutes at 10 requests/s, then twenty minutes that rise to 40/s."""
    rate = np.r_[np.full(90, 10.0), np.linspace(10.0, 40.0, 20)]
    return make.demand_file(tmp_path_factory.mktemp("courses"), {"a": (60 * rate).tolist()})


def course(stored: StoredTrace, known: str, level: str = "operator", **changes: Any) -> Outcome:
    asked = Options(level=level, over_time=known)
    return provision.run(Inputs(small(**(SHORT | changes)), {"t": stored}), asked, silent)


@pytest.fixture(scope="module")
def observed(stored: StoredTrace) -> Outcome:
    return course(stored, "observed")


def test_totals_are_those_of_the_table(observed: Outcome) -> None:
    over_time, rows = observed.document["over_time"], observed.tables["courses"]
    assert over_time["windows"] == 30 and rows.height == 30 * 2 * 2
    for pool in over_time["pools"]:
        for level, total in pool["levels"].items():
            windows = rows.filter(pl.col("phase") == pool["phase"], pl.col("level") == level)
            assert windows["gpus"].sum() * 10 / 3600 == pytest.approx(total["gpu_hours"])
            assert windows["memory_gb"].mean() == pytest.approx(total["memory_gb"])
            met = windows.filter("met")["requests_s"].sum() / windows["requests_s"].sum()
            assert met == pytest.approx(total["by_means"])
            assert total["attainment"] >= 0.95  # of requests
            held = total["held"]
            assert held["gpu_hours"] == pytest.approx(held["gpus"] * 300 / 3600)
            assert 0.0 <= held["attainment"] <= 1.0
            assert total["as_whole"] == 1.0 or level != "model"
        assert pool["replayed_windows"] >= 6
    by_model = over_time["levels"]["model"]["gpu_hours"]
    saved = over_time["savings"]["operator"]["gpus"]
    assert saved == pytest.approx(1 - over_time["levels"]["operator"]["gpu_hours"] / by_model)


def test_each_level_acts_at_its_own_speed(observed: Outcome) -> None:
    levels = observed.document["over_time"]["pools"][0]["levels"]
    assert levels["operator"]["acts_s"] < 1.0 < levels["model"]["acts_s"]
    assert (levels["operator"]["every_s"], levels["model"]["every_s"]) == (10.0, 60.0)


def test_a_forecast_that_repeats_the_last_minute_is_observation(stored: StoredTrace) -> None:
    courses = [
        course(stored, known, "model", forecast={"method": "last-value"}).document["over_time"]
        for known in ("observed", "forecast")
    ]
    assert courses[1]["known"] == "a forecast by the minute (last-value)"
    for seen, foreseen in zip(courses[0]["pools"], courses[1]["pools"], strict=True):
        by_observation, by_forecast = seen["levels"]["model"], foreseen["levels"]["model"]
        # Only the first minute of five differs: observation has none before it and sees itself.
        assert by_forecast["gpu_hours"] == pytest.approx(by_observation["gpu_hours"], rel=1 / 5)
        assert by_forecast["attainment"] >= 0.95


def test_a_forecast_needs_history(stored: StoredTrace) -> None:
    with pytest.raises(ScenarioError, match="plan on observed demand"):
        course(stored, "forecast", "module", horizon={"period_s": 300, "duration_s": 5700},
               forecast={"method": "arima"})  # fmt: skip


def test_a_forecast_without_history_is_refused_before_anything_is_planned(
    stored: StoredTrace,
) -> None:
    stages: list[str] = []
    whole = small(horizon={"period_s": 300, "duration_s": 6600})
    with pytest.raises(ScenarioError, match="horizon"):
        provision.run(
            Inputs(whole, {"t": stored}), Options(level="module", over_time="forecast"),
            lambda done, stage: stages.append(stage),
        )  # fmt: skip
    assert len(stages) == 1
