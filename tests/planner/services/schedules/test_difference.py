"""Differences of plans worked out by hand, and what the rule makes of them."""

from datetime import datetime, timedelta

import pytest

from planner.outputs.plan_difference import plan_difference
from planner.outputs.weekly_pattern import Step
from planner.services.schedule_firings import reason_for_review

MONDAY = datetime(2024, 5, 13)
DAY, HOUR = timedelta(days=1), timedelta(hours=1)


def plan(begins, *counts, each=HOUR, name="chat"):
    steps = tuple(
        Step(begins + i * each, begins + (i + 1) * each, count) for i, count in enumerate(counts)
    )
    return {(name, "east"): steps}


CHAT = {("chat", "east"): 2.0}
OLD, NEW, OTHER = ((name, "east") for name in ("old", "new", "other"))


def test_hour_by_hour_by_hand():
    difference = plan_difference(plan(MONDAY, 4, 6, 5), plan(MONDAY, 4, 4, 8), CHAT)
    assert (difference.hours, difference.left_out) == (3, 0)
    assert (difference.replica_hours, difference.replica_hours_was) == (15, 16)
    assert difference.replicas_changed == pytest.approx((2 + 3) / 16)
    assert (difference.usd, difference.usd_was) == (30, 32)
    assert difference.usd_changed == pytest.approx(-2 / 32)
    largest = difference.largest
    assert (largest.begins, largest.was, largest.will_be) == (MONDAY + 2 * HOUR, 8, 5)
    assert "Over 3 hours 31.2% of replica-hours differ, it costs 6.2% less ($30.00)" in (
        difference.sentence
    )


def test_a_plan_is_no_different_from_itself():
    plans = plan(MONDAY, 3, 9, 1, each=HOUR / 4) | plan(MONDAY, 2, each=3 * HOUR / 4, name="other")
    difference = plan_difference(plans, plans, CHAT | {OTHER: 2.0})
    assert (difference.replicas_changed, difference.usd_changed, difference.largest) == (0, 0, None)
    assert (
        difference.replica_hours
        == difference.replica_hours_was
        == pytest.approx(13 / 4 + 2 * 3 / 4)
    )
    assert reason_for_review(difference, (), max_replicas=0.0, max_cost=0.0) == ""


@pytest.mark.parametrize(
    ("after", "hours", "was"),
    [
        (7 * DAY, 2, 10),  # the same hours of the week before
        (14 * DAY, 2, 10),  # of two weeks before
        (DAY, 2, 10),  # no week lies before: of the day before
        (DAY + 2 * HOUR, 0, 0),  # of which nothing was said
        (-7 * DAY, 0, 0),  # nor before it began
    ],
)
def test_a_time_is_held_against_the_last_like_it(after, hours, was):
    difference = plan_difference(plan(MONDAY + after, 5, 6), plan(MONDAY, 4, 6), CHAT)
    assert (difference.hours, difference.replica_hours_was) == (hours, was)
    assert difference.left_out == 2 - hours


def test_a_pool_that_comes_or_goes_counts_whole():
    gone, come = plan(MONDAY, 2, 2, name="old"), plan(MONDAY, 3, 3, name="new")
    both = plan(MONDAY, 1, 1)
    prices = CHAT | {OLD: 1.0, NEW: 2.0}
    difference = plan_difference(both | come, both | gone, prices)
    assert difference.replicas_changed == pytest.approx((4 + 6) / 6)
    assert (difference.usd, difference.usd_was) == (2 * (2 + 6), 2 * (2 + 2))
    unpriced = plan_difference(both | come, both, CHAT)
    assert (unpriced.usd, unpriced.usd_changed) == (None, None)


@pytest.mark.parametrize(
    ("max_replicas", "max_cost", "missed", "words"),
    [
        (0.35, 0.07, (), ""),
        (0.3, 0.07, (), "31.2% of replica-hours differ, above the limit of 30.0%"),
        (0.35, 0.05, (), r"cost differs by −6.2%, beyond the limit of 5.0%"),
        (0.35, None, (), "no limits are set"),
        (1.0, 1.0, ("chat",), "missed the target for chat"),
    ],
)
def test_the_rule_asks_beyond_its_limits(max_replicas, max_cost, missed, words):
    difference = plan_difference(plan(MONDAY, 4, 6, 5), plan(MONDAY, 4, 4, 8), CHAT)
    asked = reason_for_review(difference, missed, max_replicas=max_replicas, max_cost=max_cost)
    assert words in asked and bool(asked) == bool(words)


def test_a_first_plan_and_one_of_other_hours_are_asked_for():
    limits = {"max_replicas": 1.0, "max_cost": 1.0}
    assert "No plan is active" in reason_for_review(None, (), **limits)
    later = plan_difference(plan(MONDAY + 3 * HOUR, 4, 4), plan(MONDAY, 4), CHAT)
    assert "too few" in reason_for_review(later, (), **limits)
