"""What the results page picks out of a run's document."""

from __future__ import annotations

import pytest

from planner.studies.results.verdict import compare
from planner.web.results import default_policy
from tests.planner.studies.results.test_verdict import run


@pytest.mark.parametrize(
    ("names", "plan"),
    [
        (["flat-min", "lt-u", "lt-i-last-value"], "lt-u"),
        (["flat-min", "lt-ua", "lt-i-perfect"], "lt-ua"),
        (["flat-min", "lt-i", "lt-h"], "lt-i"),
    ],
)
def test_the_cards_mean_the_plan_that_the_headline_means(names: list[str], plan: str) -> None:
    """The dearest of the plans is the one that sentences are about: its price tells which."""
    runs = [run(name, 7 if name == "flat-min" else 20 + (name == plan)) for name in names]
    comparison = compare(runs)
    assert comparison.warnings[0].endswith("the plan costs $21.00.")
    document = {"policies": {one.name: {} for one in runs}, "ranking": comparison.ranking}
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
