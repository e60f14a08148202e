"""The bench of decisions: how a case is made of real data, and what is read off its result."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from bench.decisions.__main__ import summed_up
from bench.decisions.cases import LIMITS, scenario_of
from bench.decisions.data import DATA, UNSEEN
from bench.decisions.outcome import Decision, decided
from planner.domain.results.ranking import compare
from planner.inputs.scenario.document import parse
from tests.planner.domain.results.test_verdict import run as policy_run
from tests.shared import TRACES, needs_shared


@pytest.mark.parametrize("limits", LIMITS)
@pytest.mark.parametrize("data", [*DATA, *UNSEEN], ids=lambda data: data.name)
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


@needs_shared(TRACES / "servegen_mm-image_clients_10min.parquet")
def test_clients_are_summed(tmp_path: Path) -> None:
    data = next(data for data in UNSEEN if data.name == "servegen-mm-image")
    data.write(TRACES / data.file, tmp_path / "out.csv")
    table = pl.read_csv(tmp_path / "out.csv")
    assert table.height == 144 and table["time"].is_sorted()
    assert float(table["requests"].sum()) / 86_400 == pytest.approx(data.rps, rel=0.01)


def test_costs_are_compared_at_equal_attainment() -> None:
    """One that attains less than the other is not cheaper for it: 60 against 80 dollars, where
    flat fleets as good as the two cost 70 and 80, is 60 x 80 / 70 against 80."""
    take = replace(policy_run("hpa", 60, 0.947), flat_usd=70.0)
    first = decided("a", True, compare([
        take,
        policy_run("flat-before", 100, 0.946),
        replace(policy_run("flat-min", 80, 0.96), flat_usd=80.0),
    ]))  # fmt: skip
    assert first.figures["policy"] == "hpa"
    assert first.figures["shortfall_points"] == pytest.approx(0.3)
    assert first.figures["over_runnable_flat"] == pytest.approx(0.6)  # as good, to 0.2 points
    assert first.figures["over_flat"] == pytest.approx(6 / 7)
    assert first.figures["paid_over_flat"] == pytest.approx(0.75)
    assert first.figures["over_perfect"] is None is first.figures["paid_over_perfect"]
    # Neither of those that can be run attains its tier: nobody who saw the past would have.
    assert (
        first.figures["seer"]
        is first.figures["over_seer"]
        is first.figures["seer_over_flat"]
        is None
    )
    other = Decision("b", False, first.figures | {"over_flat": 1.2, "over_perfect": 1.1})
    none = Decision("c", True, first.figures | {"over_flat": None})
    summed = summed_up([first, other, none])
    assert summed["worst_cost_over_flat"] == 1.2 and summed["untold"] == ["c: over_flat"]
    assert summed["mean_saving_diurnal"] == pytest.approx(1 / 7)
    assert summed["mean_regret"] == pytest.approx(0.1)
    assert summed["as_paid"]["mean_saving_diurnal"] == pytest.approx(0.25)
    assert summed["as_paid"]["worst_cost_over_runnable_flat"] == pytest.approx(0.6)


def test_the_best_of_what_could_be_run_tells_choice_from_what_nobody_knew() -> None:
    """The flat fleet of the days before is taken at 100; lt-i at 60 would have done, cheaper still
    is only what knew the window or missed."""
    compared = compare([
        policy_run("flat-before", 100, 0.96),
        policy_run("lt-i", 60, 0.96),
        policy_run("hpa", 20, 0.5),
        policy_run("flat-min", 50, 0.96),
    ])  # fmt: skip
    taken = replace(compared.recommended, policy="flat-before")
    figures = decided("a", True, replace(compared, recommended=taken)).figures
    assert figures["seer"] == "lt-i" and figures["over_flat"] == pytest.approx(2.0)
    assert figures["over_seer"] == pytest.approx(100 / 60)
    assert figures["seer_over_flat"] == pytest.approx(60 / 50)
