"""Drafts of a launch: what is asked is in the scenario, what is not is filled in, and it runs."""

from datetime import date
from typing import Any

import pytest

from planner.inputs.scenario.document import parse
from planner.services.draft_windows import HORIZONS
from planner.services.launch_drafts import LaunchDescription, launch_assumptions, launch_draft
from planner.services.scenarios import scenario_warnings

pytestmark = pytest.mark.django_db


def asked(**changes: Any) -> LaunchDescription:
    fields: dict[str, Any] = {
        "model": "llama-3.1-8b", "gpu": "A100-80GB", "region": "", "requests_per_day": 200_000,
        "input_tokens": 1155, "output_tokens": 211, "day": "office", "weekend": None,
        "utc_offset_h": -5, "growth_per_month": 0.1, "begins": date(2027, 1, 4), "ttft_ms": 2000,
        "tbt_ms": 100, "horizon": HORIZONS["week"],
    }  # fmt: skip
    return LaunchDescription(**fields | changes)


def test_a_draft_says_what_was_asked_and_can_run() -> None:
    text = launch_draft(asked())
    drafted = parse(text)
    launch = drafted.traffic.sources[0].launch
    assert launch is not None and launch.requests_per_day == 200_000
    assert (launch.day, launch.utc_offset_h) == ("office", -5)
    assert drafted.traffic.growth.per_month == 0.1 and drafted.horizon.duration_s == 7 * 86_400
    assert scenario_warnings(text) == []
    rows = {row.what: row for row in launch_assumptions(asked(), text)}
    assert "measured" in rows["Model and GPUs"].why and "Azure" in rows["Shape of the day"].why


def test_a_model_without_a_measurement_is_estimated_and_that_is_said() -> None:
    query = asked(model="Qwen/Qwen3-32B", gpu="H200", day=[1.0] * 24)
    text = launch_draft(query)
    profile = parse(text).profiles[0]
    assert profile.kind == "roofline" and scenario_warnings(text) == []
    assert "not measured" in next(launch_assumptions(query, text)).why
