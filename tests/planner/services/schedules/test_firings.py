"""Schedules at work, on a clock that is given: each moment once, missed ones told, and what a rule
puts in force."""

from datetime import UTC, datetime, timedelta

import polars as pl
import pytest

from planner.errors import NotAllowed, NotReady, PlannerError
from planner.models import ActivePlan, Firing, ReviewRules, Run, Schedule
from planner.services.proposals import approve
from planner.services.schedule_firings import schedule_fire, schedules_tick
from planner.services.schedules import (
    schedule_change,
    schedule_create,
    schedule_pause,
    schedule_resume,
)
from planner.storage import row_arrays

MONDAY = datetime(2024, 5, 13, 6, tzinfo=UTC)
HOUR, WEEK = timedelta(hours=1), timedelta(days=7)
LIMITS = {"most_replicas": 0.1, "most_cost": 0.1}


@pytest.fixture
def schedule(approver, scenario) -> Schedule:
    return schedule_create(
        owner=approver, name="Mondays", scenario=scenario, cron="0 6 * * 1",
        now=MONDAY - timedelta(days=1), **LIMITS,
    )  # fmt: skip


def planned(firing: Firing, *counts: int, met: bool = True, usd: float = 2.0) -> None:
    """The run of a firing as a worker would have left it: so many replicas, an hour each."""
    run, begins = firing.run, firing.as_of
    replica = {"model": "m", "gpu": "H100", "tp": 1, "role": "mixed", "market": "owned",
               "arrangement": "1 x H100"}  # fmt: skip
    rows = [
        {"begins": (begins + i * HOUR).isoformat(), "replicas": [count]}
        for i, count in enumerate(counts)
    ]
    run.result = {
        "kind": "plan",
        "scenario": "Chat",
        "window": {"start": begins.isoformat(), "end": (begins + len(counts) * HOUR).isoformat(),
                   "clock": "utc"},
        "recommended": {
            "policy": "lt-i", "label": "Planned", "meets_slo": met,
            "timetable": {"pools": [{"region": "east", "replica": replica}], "rows": rows,
                          "by_itself": False},
        },
    }  # fmt: skip
    run.state, run.store, run.finished_at = Run.State.COMPLETED, f"runs/{run.pk}", begins
    run.save()
    prices = [
        {**replica, "region": "east", "target": count, "usd_per_hour": usd * count}
        for count in counts
    ]
    row_arrays.tables_write(run.store, {"plan": pl.DataFrame(prices)})


def tick(now: datetime):
    return schedules_tick(now=now, enqueue=False)


def fire(now: datetime, *counts: int, **how) -> Firing:
    """What a tick fires, with its run done and looked at a minute later."""
    (firing,) = tick(now).fired
    planned(firing, *counts, **how)
    (settled,) = tick(now + timedelta(minutes=1)).settled
    return settled


def test_a_moment_comes_once_and_with_what_was_known(schedule):
    assert tick(MONDAY - HOUR).fired == ()
    (firing,) = tick(MONDAY + timedelta(seconds=20)).fired
    assert tick(MONDAY + timedelta(seconds=21)).fired == ()
    assert (firing.due_at, firing.as_of, firing.state) == (MONDAY, MONDAY, "running")
    assert 'until: "2024-05-13T06:00:00+00:00"' in firing.run.document.replace("'", '"')
    assert "start: end" in firing.run.document and "# an hour" in firing.run.document
    schedule.refresh_from_db()
    assert schedule.next_due == MONDAY + WEEK


def test_only_one_of_two_ticks_at_once_takes_a_moment(schedule, monkeypatch):
    first = Schedule.objects.get()
    assert len(tick(MONDAY).fired) == 1
    rows = Schedule.objects.filter(pk=first.pk)
    monkeypatch.setattr(
        Schedule.objects,
        "filter",
        lambda **k: [first] if "next_due__lte" in k else rows.filter(**k),
    )
    assert tick(MONDAY).fired == ()  # it read the row before the other changed it
    assert Firing.objects.count() == 1


def test_missed_moments_are_told_and_one_is_made_up_for(schedule):
    """Nobody was there for three Mondays and two days."""
    now = MONDAY + 2 * WEEK + timedelta(days=2, minutes=5)
    (firing,) = tick(now).fired
    assert firing.due_at == MONDAY + 2 * WEEK
    assert firing.as_of == now and "Run 48.1 h late." in firing.words
    missed = Firing.objects.filter(state=Firing.State.MISSED).order_by("due_at")
    assert [firing.due_at for firing in missed] == [MONDAY, MONDAY + WEEK]
    assert all("2024-05-27 06:00" in firing.words for firing in missed)


def test_one_that_is_still_going_lets_the_next_be_missed(schedule):
    tick(MONDAY)
    (second,) = tick(MONDAY + WEEK).fired
    assert (second.state, second.run) == ("missed", None) and "still going" in second.words


def test_a_pause_misses_nothing(schedule, planner):
    schedule_pause(schedule=schedule, user=planner)
    assert tick(MONDAY + WEEK).fired == ()
    schedule_resume(schedule=schedule, user=planner, now=MONDAY + WEEK + HOUR)
    assert tick(MONDAY + WEEK + HOUR).fired == () and not Firing.objects.exists()
    assert schedule.next_due == MONDAY + 2 * WEEK


def test_the_rule_decides_within_its_limits(schedule, approver):
    """Week by week: the first has to be reviewed, one like it follows unasked, another is asked."""
    first = fire(MONDAY, 4, 4, 6, 6)
    assert (first.state, first.proposal.state) == ("review", "open")
    assert "No plan is active" in first.words
    approve(proposal=first.proposal, by=approver, now=MONDAY + HOUR)
    second = fire(MONDAY + WEEK, 4, 5, 6, 6)
    plan = ActivePlan.objects.get(until=None)
    assert (second.state, plan.number) == ("approved", second.run.pk)
    assert (plan.repeat, plan.by, plan.proposal) == ("once", None, second.proposal)
    assert second.difference["replicas_changed"] == pytest.approx(1 / 20)
    assert plan.since == MONDAY + WEEK + timedelta(minutes=1)
    third = fire(MONDAY + 2 * WEEK, 4, 8, 6, 6)
    assert third.state == "review"
    assert "14.3% of replica-hours differ, above the limit of 10.0%" in third.words
    fourth = fire(MONDAY + 3 * WEEK, 4, 5, 6, 6, met=False)
    assert fourth.state == "review" and "missed the target" in fourth.words
    # What waits is one proposal, which the next plan amends.
    assert (fourth.proposal, fourth.proposal.revision) == (third.proposal, 2)
    assert ActivePlan.objects.get(until=None) == plan
    fifth = fire(MONDAY + 4 * WEEK, 4, 5, 6, 6)
    assert (fifth.state, fifth.proposal) == ("approved", third.proposal)


def test_rules_of_review_are_kept_by_the_rule_too(schedule, approver):
    """An admin has to approve what costs as much: being within limits does not."""
    first = fire(MONDAY, 4, 4)
    approve(proposal=first.proposal, by=approver, now=MONDAY + HOUR)
    ReviewRules.objects.create(admin_above_usd_30d=1.0)
    second = fire(MONDAY + WEEK, 4, 4)
    assert second.state == "review" and "Within the limits" in second.words
    assert "A rule cannot approve this proposal: its cost is not known" in second.words


def test_a_run_that_fails_is_told(schedule):
    (firing,) = tick(MONDAY).fired
    Run.objects.filter(pk=firing.run_id).update(state=Run.State.FAILED, problem="No such trace.")
    (settled,) = tick(MONDAY + HOUR).settled
    assert (settled.state, settled.words) == ("failed", "No such trace.")
    schedule.scenario.delete()
    (again,) = tick(MONDAY + WEEK).fired
    assert again.state == "failed" and "scenario was removed" in again.words


def test_fired_by_hand_as_of_a_moment(schedule, planner, viewer):
    then = MONDAY - timedelta(days=30)
    firing = schedule_fire(schedule=schedule, user=planner, now=MONDAY, as_of=then, enqueue=False)
    assert (firing.as_of, firing.by, firing.due_at) == (then, planner, MONDAY)
    with pytest.raises(NotReady, match="this very second"):
        schedule_fire(schedule=schedule, user=planner, now=MONDAY, enqueue=False)
    with pytest.raises(NotAllowed):
        schedule_fire(schedule=schedule, user=viewer, now=MONDAY + HOUR, enqueue=False)


def test_limits_are_for_approvers_to_set(schedule, scenario, planner):
    kept = {"owner": planner, "scenario": scenario, "cron": "0 6 * * 1", "now": MONDAY}
    asks = schedule_create(name="All reviewed", **kept)
    with pytest.raises(NotAllowed, match="approver"):
        schedule_create(name="Mine", **kept, **LIMITS)
    with pytest.raises(NotAllowed, match="approver"):
        schedule_change(schedule=asks, user=planner, now=MONDAY, **LIMITS)
    with pytest.raises(NotAllowed, match="approver"):
        schedule_change(schedule=schedule, user=planner, now=MONDAY, cron="* * * * *")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"cron": "0 6 * *"}, "4 fields"),
        ({"zone": "Nowhere"}, "IANA"),
        ({"kind": "ingest"}, "choose from plan, compare"),
        ({"options": {"nonsense": 1}}, "nonsense"),
        ({"most_replicas": 0.1}, "give both"),
        ({"most_replicas": 0.1, "most_cost": -1}, "most_cost: -1 must be a share"),
        ({"name": "Mondays"}, "already"),
        ({"name": " "}, "needs one"),
    ],
)
def test_what_makes_no_schedule_is_refused(schedule, scenario, fields, words):
    arguments = {"name": "Other", "scenario": scenario, "cron": "0 6 * * 1", "now": MONDAY} | fields
    with pytest.raises(PlannerError, match=words):
        schedule_create(owner=None, **arguments)
