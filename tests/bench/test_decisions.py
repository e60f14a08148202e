"""The bench of decisions: how a case is made of real data, and what is read off its result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from bench.decisions.__main__ import summed_up
from bench.decisions.cases import LIMITS, scenario_of
from bench.decisions.data import DATA
from bench.decisions.outcome import Decision, decided
from planner.scenario.document import parse
from tests.shared import TRACES, needs_shared


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("data", DATA, ids=lambda data: data.name)
def test_every_case_is_a_scenario(data: Any, limits: str) -> None:
    scenario = parse(json.dumps(scenario_of(data, limits, 10.0)))
    roles = {profile.role for profile in scenario.profiles}
    assert roles == ({"prefill", "decode"} if limits == "pd" else {"mixed"})


@needs_shared(TRACES / "servegen_total_rates_10min.csv")
def test_gaps_of_a_collection_are_no_demand(tmp_path: Path) -> None:
    data = next(data for data in DATA if data.name == "servegen-m-mid")
    data.write(TRACES / data.file, tmp_path / "out.csv")
    table = pl.read_csv(tmp_path / "out.csv")
    assert table.height == 13 * 144 and table["requests"].null_count() == 62
    assert (table["requests"].drop_nulls() > 0).all()


def test_figures_are_read_off_the_comparison() -> None:
    def policy(usd: float, attainment: float) -> dict[str, Any]:
        return {
            "cost_usd": usd,
            "tiers": {"chat": {"attainment": attainment, "target": 0.95},
                      "none": {"attainment": None, "target": 0.95}},
        }  # fmt: skip

    one = decided("a", True, {
        "recommended": {"policy": "hpa", "parameters": {"target": 0.5}},
        "policies": {"hpa": policy(60, 0.947), "flat-before": policy(100, 0.99),
                     "flat-min": policy(80, 0.96)},
    })  # fmt: skip
    assert one.figures["shortfall_points"] == pytest.approx(0.3)
    assert one.figures["over_runnable_flat"] == pytest.approx(0.6)
    assert one.figures["over_flat"] == pytest.approx(0.75)
    assert one.figures["over_perfect"] is None
    other = Decision("b", False, one.figures | {"over_flat": 1.2, "over_perfect": 1.1})
    found = summed_up([one, other])
    assert found["worst_cost_over_flat"] == 1.2
    assert found["mean_saving_diurnal"] == pytest.approx(0.25)
    assert found["mean_regret"] == pytest.approx(0.1)
