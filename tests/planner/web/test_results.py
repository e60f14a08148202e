"""What the results page picks out of a run's document."""

from __future__ import annotations

import re

import pytest
from django.template.loader import render_to_string

from planner.domain.formats import NOTHING
from planner.domain.results.ranking import compare
from planner.outputs.policy_tables import (
    assurance_table,
    policy_label,
    policy_table,
    table_of_test_days,
)
from planner.selectors.policies import default_policy
from tests.planner.domain.results.test_verdict import run


@pytest.mark.parametrize(
    ("names", "plan"),
    [
        (["flat-min", "lt-u", "lt-i-last-value"], "lt-u"),
        (["flat-min", "lt-ua", "lt-i-perfect"], "lt-ua"),
        (["flat-min", "lt-i", "lt-h"], "lt-i"),
    ],
)
def test_the_cards_mean_the_plan_that_the_headline_means(names: list[str], plan: str) -> None:
    """The plan that is recommended is the one that sentences are about: its price tells which."""
    usd = {"flat-min": 7, "lt-i-perfect": 18, plan: 19}
    runs = [run(name, usd.get(name, 20)) for name in names]
    comparison = compare(runs)
    assert comparison.warnings[0].endswith("the plan costs $19.00.")
    document = {"policies": {run.name: {} for run in runs}, "ranking": comparison.ranking}
    assert default_policy(document) == plan


def test_without_a_plan_the_cards_show_the_best_that_can_be_run() -> None:
    comparison = compare([run("lt-i-perfect", 1), run("reactive", 9), run("hpa", 8)])
    document = {"policies": dict.fromkeys(comparison.ranking), "ranking": comparison.ranking}
    assert default_policy(document) == "hpa"
    assert default_policy({"policies": {"lt-i-perfect": {}}}) == "lt-i-perfect"
    assert default_policy({}) == ""


def test_cards_and_chart_are_of_the_policy_that_is_recommended() -> None:
    document = {
        "policies": {"lt-i": {}, "flat-before": {}},
        "ranking": ["lt-i", "flat-before"],
        "recommended": {"policy": "flat-before"},
    }
    assert default_policy(document) == "flat-before"


def page(template: str, **context: object) -> str:
    return re.sub(r"\s+", " ", render_to_string(f"web/{template}", context))


def test_what_to_copy_stands_on_the_page() -> None:
    settings = [
        {"what": "target of requests waiting or running an instance", "where": "m in east, 2 x G",
         "value": 41.23456789},
        {"what": "tune_batch", "where": "", "value": True},
    ]  # fmt: skip
    shown = page("_settings.html", policies={"hpa": {"label": "HPA", "settings": settings}})
    for words in ("waiting or running an instance", "m in east, 2 x G", "41.2346", "true", "all"):
        assert words in shown
    assert "<table" not in page("_settings.html", policies={"old": {"label": "Kept before"}})


def test_a_signal_that_never_moved_is_told_below_the_label() -> None:
    row = {"note": "Its signal, KV memory in use, never passed 70%.", "slo_attainment": {}}
    table = policy_table([("reactive", "Unified reactive", row)], [])
    assert row["note"] in page("_figures.html", table=table, first="Policy")


def test_the_policy_that_is_taken_is_marked_among_all() -> None:
    row: dict[str, object] = {"slo_attainment": {}}
    table = policy_table([("lt-i", "Planned (LT-I)", row), ("today", "Today's fleet", row)], [])
    shown = page("_figures.html", table=table, first="Policy", marked="today", taken="lt-i")
    assert 'Planned (LT-I) <span class="badge bg-blue-lt">recommended</span>' in shown
    assert 'Today&#x27;s fleet <span class="badge bg-secondary-lt">baseline</span>' in shown
    assert shown.count("badge") == 2


def test_what_looked_ahead_carries_the_word() -> None:
    kept = {"label": "Flat at peak", "hindsight": True}
    assert policy_label(kept) == "Flat at peak, in hindsight"
    assert policy_label({"label": "Planned (LT-I)", "hindsight": False}) == "Planned (LT-I)"
    assert policy_label({"label": "Of an older run"}) == "Of an older run"


def test_a_row_per_test_day_has_a_cell_per_policy() -> None:
    on_day = {"cost_usd": 12.0, "attainment": {"chat": 0.97, "night": None}, "passes": True}
    day = {"name": "Past: Monday", "kind": "past", "required": True, "not_applicable": ""}
    lost = {"name": "Region lost", "kind": "region_lost", "required": False, "policies": {}}
    result = {
        "policies": {"lt-i": {"label": "Planned (LT-I)"}},
        "test_days": [
            day | {"policies": {"lt-i": on_day, "hpa": on_day | {"passes": False}}},
            day | {"name": "Past: Sunday", "policies": {"lt-i": on_day}},
            lost | {"not_applicable": "The scenario has one region."},
        ],
    }
    table = table_of_test_days(result)
    assert [head.text for head in table.heads[1:]] == ["Planned (LT-I) ($)", "hpa ($)"]
    assert [[cell.met for cell in line.cells[1:]] for line in table.lines] == [
        [True, False], [True, None], [None, None],
    ]  # fmt: skip
    assert table.lines[0].cells[1].text == "12" and "97" in table.lines[0].cells[1].small
    assert table.lines[1].cells[2].text == NOTHING
    assert [bool(line.note) for line in table.lines] == [False, False, True]
    assert table_of_test_days({}).lines == ()


def test_a_row_per_level_of_assurance_has_its_expected_cost() -> None:
    row = {
        "label": "Planned (LT-I)", "parameters": {"load_factor": 0.8}, "qualifies": True,
        "failing": [],
        "expected": {"cost_usd": {"mean": 12.0, "low": 11.0, "high": 14.0},
                     "attainment": {"chat": {"mean": 0.97, "low": 0.96, "high": 0.98}}},
    }  # fmt: skip
    nearest = row | {"qualifies": False, "failing": ["Region lost"]}
    nearest["expected"] = {"cost_usd": None, "attainment": {}}
    table = assurance_table({"assurance": {"safe": nearest, "economy": row}})
    economy, safe = table.lines
    assert (economy.name, safe.name) == ("economy", "safe")
    assert [line.cells[2].met for line in table.lines] == [True, False]
    assert (economy.cells[3].text, economy.cells[3].small) == ("12", "11 to 14")
    assert safe.cells[3].text == NOTHING and "Region lost" in safe.note and not economy.note
