"""What a comparison expected, beside what happened in its window."""

import pytest
from django.urls import reverse

from planner.models import Run, User
from planner.selectors.expectations import COST, coverage, expectations
from tests.planner.web.pages import signed_in
from tests.planner.web.study import completed_run


def stated(planner: User, *, cost: tuple[float, float], window: bool = True) -> Run:
    """A completed comparison whose level Economy recommends ``lt-i``."""
    run = completed_run(planner)
    interval = {"mean": sum(cost) / 2, "low": cost[0], "high": cost[1]}
    run.result["assurance"] = {
        "economy": {"expected": {"cost_usd": interval, "attainment": {"IW-F": None}}}
    }
    run.result["alternatives"] = {"economy": "lt-i", "static": "flat-before"}
    run.result["policies"]["lt-i"] |= {"cost_usd": 100.0}
    run.result["window"]["rank"] = {"rank": 1} if window else None
    run.save()
    return run


@pytest.mark.django_db
def test_an_interval_counts_as_right_if_it_contains_the_outcome(planner: User) -> None:
    stated(planner, cost=(90.0, 110.0))
    stated(planner, cost=(100.5, 100.5))
    stated(planner, cost=(102.0, 110.0))
    stated(planner, cost=(90.0, 110.0), window=False)  # it lies ahead: nothing came of it yet
    found = expectations()
    assert [its.inside for its in found] == [False, True, True]  # the newest first
    assert {(its.what, its.outcome, its.levels) for its in found} == {(COST, 100.0, ("economy",))}
    assert [its.verdict for its in found] == ["better", "in range", "in range"]
    assert coverage(found)[COST] == (2, 3)


@pytest.mark.django_db
def test_the_page_lists_them_and_is_empty_without_any(planner: User) -> None:
    client = signed_in(planner)
    address = reverse("web:expectations")
    assert client.get(address).context["page"].paginator.count == 0
    run = stated(planner, cost=(90.0, 110.0))
    page = client.get(address)
    assert page.context["counts"][0][1:] == (1, 1, 1.0)
    assert reverse("web:run", args=[run.pk]) in page.content.decode()
