"""What the results page picks out of a run's document."""

from typing import Any

import pytest

from planner.domain.reports.policies import Row, policies_table
from planner.domain.results.figures import BY_NAME
from planner.domain.results.ranking import compare
from planner.domain.results.stored import StoredPolicy, StoredRecommendation, StoredResult
from planner.domain.study import PolicyRun
from tests.planner.domain.results.test_verdict import run
from tests.planner.reports import rows_of


def stored(*policies: str, **parts: Any) -> StoredResult:
    return StoredResult(policies=dict.fromkeys(policies, StoredPolicy()), **parts)


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
    assert "$19.00" in comparison.warnings[0]
    assert stored(*(run.name for run in runs), ranking=comparison.ranking).default_policy == plan


def test_without_a_plan_the_cards_show_the_best_that_can_be_run() -> None:
    comparison = compare([run("lt-i-perfect", 1), run("reactive", 9), run("hpa", 8)])
    ranking = comparison.ranking
    assert stored(*ranking, ranking=ranking).default_policy == "hpa"
    assert stored("lt-i-perfect").default_policy == "lt-i-perfect"
    assert stored().default_policy == ""
    assert set(stored("lt-i-perfect", "flat-peak", "hpa").deployable_labels) == {"hpa"}


def test_cards_and_chart_are_of_the_policy_that_is_recommended() -> None:
    names = ("lt-i", "flat-before")
    recommended = StoredRecommendation(policy="flat-before")
    assert stored(*names, ranking=names, recommended=recommended).default_policy == "flat-before"


def rows(*policies: PolicyRun) -> list[Row]:
    return [Row(policy.label, BY_NAME.row(policy) | {"name": policy.name}) for policy in policies]


def test_a_table_of_policies_has_a_column_for_each_tier_and_marks_the_recommended() -> None:
    plan, flat = run("lt-i", 10.0), run("flat-before", 20.0)
    shown = policies_table(rows(plan, flat), "lt-i", {"lt-i": 0.5})
    heads = [head.text for head in shown.heads]
    tiers = [f"SLO attainment: {tier}" for tier in plan.summary.slo_attainment]
    assert set(tiers) <= set(heads)
    assert shown.marked == {0}
    first, second = rows_of(shown)
    assert (first["Cost"], second["Cost"], first["Saving vs baseline"]) == (10.0, 20.0, 0.5)
    assert second["Saving vs baseline"] is None


def test_a_signal_that_never_moved_is_noted() -> None:
    figures = {"name": "reactive", "note": "Its signal never passed 70%."}
    (row,) = rows_of(policies_table([Row("Reactive", figures)], None, {}))
    assert row["Note"] == figures["note"]
