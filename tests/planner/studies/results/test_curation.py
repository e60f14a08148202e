"""Which policy to take: by objective, among those that meet every tier, the simplest of equals."""

from __future__ import annotations

from dataclasses import replace

import pytest

from planner.policies.registry import POLICIES
from planner.studies.commands.compare import Options
from planner.studies.commands.compare import run as compare_scenario
from planner.studies.progress import silent
from planner.studies.results.curation import TIE
from planner.studies.results.verdict import compare
from simulation.metrics import Percentiles
from tests.planner.studies import builders as make
from tests.planner.studies.results.test_verdict import run


def chosen(*runs, objective="cost"):
    found = compare(runs).recommendations
    return next((one for one in found if one.objective == objective), None)


def test_the_cheapest_that_meets_every_tier():
    found = chosen(run("reactive", 1, fast=0.5), run("lt-i", 20), run("lt-ua", 15))
    assert (found.policy, found.value, found.unit) == ("lt-ua", 15, "USD")
    assert "2 of 3 policies meet every tier" in found.reason
    assert "next is Planned (LT-I), 33% more" in found.reason


def test_the_simplest_wins_ties():
    near = 10 * (1 + TIE) - 1e-9
    found = chosen(run("lt-ua", 10), run("reactive", near), run("chiron", 10))
    assert found.policy == "reactive"
    assert "Planned, by utilisation and load (LT-UA) does no more than 1% better" in found.reason
    assert chosen(run("lt-ua", 10), run("reactive", near + 0.01)).policy == "lt-ua"


def test_what_is_sized_in_hindsight_says_so_and_what_nobody_can_run_is_left_out():
    found = chosen(run("lt-i-perfect", 1), run("flat-min", 5), run("lt-i", 9))
    assert found.policy == "flat-min" and "sized in hindsight" in found.reason


def test_objectives_differ():
    fast = Percentiles(1.0, 1.0, 100.0, 200.0)
    slow = Percentiles(1.0, 1.0, 900.0, 950.0)
    runs = [run("lt-i", 20, ttft_ms=slow), run("chiron", 90, ttft_ms=fast)]
    assert chosen(*runs).policy == "lt-i"
    assert chosen(*runs, objective="ttft").policy == "chiron"
    assert chosen(*runs, objective="e2e") is None  # nothing was measured


def test_where_none_meets_every_tier_the_closest_is_taken():
    found = chosen(run("reactive", 1, fast=0.5), run("lt-i", 20, fast=0.9))
    assert found.policy == "lt-i" and "no policy meets every tier" in found.reason


def test_nothing_to_choose_without_requests_or_alternatives():
    assert compare([run("lt-i", 20)]).recommendations == ()
    quiet = {"arrived": 0, "completed": 0}
    assert compare([run("lt-i", 2, **quiet), run("reactive", 1, **quiet)]).recommendations == ()


def test_labels_are_told_apart_by_their_kind():
    one = replace(run("reactive", 10), name="reactive:Calm", label="Calm")
    found = chosen(one, run("lt-ua", 9.99))
    assert (found.policy, found.label) == ("reactive:Calm", "Calm")


@pytest.fixture(scope="module")
def everything(tmp_path_factory):
    stored = make.demand_file(
        tmp_path_factory.mktemp("all"), {"a": [900 + 90 * (i % 9) for i in range(60)]}
    )
    calm = {"name": "reactive", "label": "Calm", "cooldown_s": 300}
    one = make.scenario(
        policies=["flat-peak", calm],
        traffic={"sources": [make.source(input_tokens={"mean": 800}, output_tokens={"mean": 40})]},
        horizon={"period_s": 300, "duration_s": 900},
    )
    return compare_scenario(one, {"t": stored}, Options(policies=["all"]), progress=silent).document


def test_all_replays_every_policy_there_is_and_says_what_it_left_out(everything):
    played = set(everything["policies"])
    # The scenario has reactive with a label; nobody said what runs today; there is no day before.
    assert played == set(POLICIES) - {"today", "periodic", "reactive"} | {"reactive:Calm"}
    assert any("Periodic is left out" in warning for warning in everything["warnings"])
    assert everything["policies"]["reactive:Calm"]["label"] == "Calm"
    for figures in everything["policies"].values():
        assert figures["arrived"] == everything["requests"]


def test_the_document_recommends_by_objective(everything):
    found = {one["objective"]: one for one in everything["recommendations"]}
    assert set(found) == {"cost", "energy", "carbon", "ttft", "e2e"}
    for one in found.values():
        assert one["policy"] in everything["policies"] and one["reason"].endswith(".")
    cheapest = min(
        figures["cost_usd"]
        for name, figures in everything["policies"].items()
        if figures["meets_slo"] and name != "lt-i-perfect"
    )
    assert found["cost"]["value"] <= cheapest * (1 + TIE)
