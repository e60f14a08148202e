"""Old data goes by itself: never untold, never what something rests on, and not unless asked."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from planner.models import (
    ActivePlan,
    AuditRecord,
    Channel,
    Delivery,
    Firing,
    Proposal,
    Run,
    Scenario,
    Schedule,
    Source,
    Trace,
    User,
)
from planner.services.retention import NOTICE_PERIOD, removal_sentence, retention_sweep
from planner.services.scenarios import scenario_create
from planner.storage import row_arrays
from tests.planner.samples import DOCUMENT
from tests.planner.web.pages import signed_in, text_of

NOW = datetime(2026, 6, 1, tzinfo=UTC)
DAYS = 90
DAY = timedelta(days=1)


@pytest.fixture(autouse=True)
def asked(settings: Any) -> None:
    settings.HEADROOM_KEEP_RUNS_DAYS = settings.HEADROOM_KEEP_TRACES_DAYS = DAYS
    settings.HEADROOM_WEBHOOKS = ["hooks.example"]


def run_of(age: timedelta, state: str = Run.State.COMPLETED) -> Run:
    run = Run.objects.create(kind="plan", state=state, name="old", finished_at=NOW - age)
    Run.objects.filter(pk=run.pk).update(created_at=NOW - age)
    return run


def trace_of(name: str, age: timedelta) -> Trace:
    trace = Trace.objects.create(name=name, file_name=name, sha256=name * 8, bytes=1)
    Trace.objects.filter(pk=trace.pk).update(created_at=NOW - age)
    return trace


def left() -> set[int]:
    return set(Run.objects.values_list("pk", flat=True))


def test_what_is_old_goes_a_week_after_it_was_told_of(db: None, planner: User) -> None:
    Channel.objects.create(kind="webhook", address="https://hooks.example/x", salt="s")
    old, soon, young = (run_of(DAYS * DAY + age) for age in (DAY, -3 * DAY, -10 * DAY))
    old.store = f"runs/{old.pk}"
    old.save()
    row_arrays.tables_write(old.store, {})
    going = run_of(900 * DAY, Run.State.RUNNING)
    trace = trace_of("conv", 900 * DAY)
    assert retention_sweep(now=NOW) == 0
    (notice,) = Delivery.objects.all()
    assert notice.event == "data.removal"
    assert (
        f"2 runs ({old.pk}, {soon.pk}) of over 90 days will be removed from 2026-06-08"
        in notice.text
    )
    assert "1 trace (conv)" in notice.text
    old.refresh_from_db()
    assert "removed after 2026-06-08" in removal_sentence(old) and removal_sentence(young) == ""
    trace.refresh_from_db()
    assert "will be removed after" in text_of(signed_in(planner).get("/traces/conv/"))
    assert retention_sweep(now=NOW + NOTICE_PERIOD - DAY) == 0  # a week is a week; tells of young
    assert Delivery.objects.count() == 2
    assert retention_sweep(now=NOW + NOTICE_PERIOD) == 3
    assert left() == {young.pk, going.pk} and not Trace.objects.exists()
    assert not row_arrays.exists(old.store)
    gone = AuditRecord.objects.filter(actor="rule: kept for so many days")
    assert {row.action for row in gone} == {"run.removed", "trace.removed"} and gone.count() == 3


def test_what_something_rests_on_stays(scenario: Scenario, planner: User) -> None:
    when = {"begins": NOW, "ends": NOW}
    in_force, proposed, base, first, last, free = (run_of(900 * DAY) for _ in range(6))
    ActivePlan.objects.create(
        run=in_force, number=1, scenario="x", policy="lt-i", repeat="once", zone="UTC", pools=[],
        since=NOW, until=NOW, **when,
    )  # fmt: skip
    Proposal.objects.create(title="t", run=proposed, replay=base, policy="lt-i", author=planner)
    schedule = Schedule.objects.create(
        name="s", scenario=scenario, cron="0 5 * * *", next_due=NOW, owner=planner
    )
    for run, due in ((first, NOW - 2 * DAY), (last, NOW - DAY)):
        Firing.objects.create(
            schedule=schedule, due_at=due, fired_at=due, state=Firing.State.MISSED, run=run
        )
    live, used = trace_of("live", 900 * DAY), trace_of("conv", 900 * DAY)
    Source.objects.create(name="s", kind="samples", settings={}, bin_s=900, trace=live)
    scenario_create(owner=planner, document=DOCUMENT.replace("Chat", "Other"))
    assert used.name in DOCUMENT
    retention_sweep(now=NOW)
    assert retention_sweep(now=NOW + NOTICE_PERIOD) == 2
    assert left() == {run_kept.pk for run_kept in (in_force, proposed, base, last)}
    assert free.pk not in left() and Trace.objects.count() == 2


def test_what_comes_to_be_needed_meanwhile_stays(db: None, planner: User) -> None:
    run, trace = run_of(900 * DAY), trace_of("conv", 900 * DAY)
    retention_sweep(now=NOW)
    Proposal.objects.create(title="t", run=run, policy="lt-i", author=planner)
    scenario_create(owner=planner, document=DOCUMENT)
    assert retention_sweep(now=NOW + NOTICE_PERIOD) == 0
    trace.refresh_from_db()
    assert left() == {run.pk} and trace.removal_announced_at is None


def test_without_the_setting_nothing_goes(db: None, settings: Any) -> None:
    settings.HEADROOM_KEEP_RUNS_DAYS = settings.HEADROOM_KEEP_TRACES_DAYS = None
    run_of(9000 * DAY)
    for moment in (NOW, NOW + NOTICE_PERIOD):
        assert retention_sweep(now=moment) == 0
    assert len(left()) == 1 and not Delivery.objects.exists()
