"""Plans that were in force are versions of a plan: listed with who, when and why, any two compared,
restored as they were frozen, branched into a scenario."""

from datetime import UTC, datetime, timedelta

import pytest

from planner.errors import NotAllowed, NotFound, NotReady
from planner.models import ActivePlan, Channel, Delivery, ReviewRules, User
from planner.outputs.metrics import desired_by_pool
from planner.outputs.options import ExportOptions
from planner.outputs.plan_difference import week_difference
from planner.selectors.active_plans import active_plans
from planner.services.active_plans import plan_activate, plan_restore
from planner.services.runs import run_remove
from planner.services.scenarios import plan_branch, scenario_create, scenario_edit
from tests.planner.plan_runs import planned_run
from tests.planner.samples import client_of
from tests.planner.web.pages import signed_in, text_of
from tests.planner.web.study import DOCUMENT

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
DAILY = ExportOptions(repeat="daily")
URL = "/api/v1/plans-in-force/"


@pytest.fixture
def plans(planner: User, approver: User) -> list[ActivePlan]:
    """Two by night and five by day, from 8:00; then one and four, of another version."""
    scenario = scenario_create(owner=planner, document=DOCUMENT)
    first = planned_run(planner, (2, 5), scenario=scenario)
    first.document = scenario.document
    first.save()
    changed = scenario_edit(scenario=scenario, user=planner, changes={"horizon.period_s": 1800})
    second = planned_run(planner, (1, 4), scenario=changed)
    second.document = changed.document
    second.save()
    return [
        plan_activate(run=run, options=DAILY, user=approver, now=NOW + n * HOUR, message=why)
        for n, (run, why) in enumerate(((first, "For May"), (second, "One less")))
    ]


HOUR = timedelta(hours=1)


def test_two_plans_by_hand(plans: list[ActivePlan]) -> None:
    """8 hours at 2 and 16 at 5 a day are 96 replica-hours; one less all the time is 24 less."""
    apart_by = week_difference(*plans)
    assert apart_by.hours == 168 and apart_by.replica_hours == (7 * 96, 7 * 72)
    assert apart_by.changed == 24 / 96
    (pool,) = apart_by.pools
    assert pool.mean == (4.0, 3.0) and pool.most == (5, 4)
    assert [(setting.key, setting.values) for setting in apart_by.settings] == [
        ("horizon.period_s", (3600, 1800))
    ]
    back = week_difference(plans[1], plans[0])
    assert back.replica_hours == apart_by.replica_hours[::-1] and back.changed == 24 / 72
    assert week_difference(plans[0], plans[0]).changed == 0
    # Dates say nothing of the other days of a week: what both say of is compared.
    plans[1].repeat = "once"
    assert week_difference(*plans).hours == 24
    plans[1].pools = [{**plans[1].pools[0], "name": "another"}]
    apart = week_difference(*plans)
    assert apart.replica_hours == (96, 72) and apart.changed == (96 + 72) / 96
    assert [pool.most for pool in apart.pools] == [(0, 4), (5, 0)]


def test_restored_as_it_was_frozen_whatever_became_of_its_run(
    plans: list[ActivePlan], planner: User, approver: User
) -> None:
    first, second = plans
    with pytest.raises(NotAllowed):
        plan_restore(plan=first, user=planner, now=NOW)
    with pytest.raises(NotReady, match="is active"):
        plan_restore(plan=second, user=approver, now=NOW)
    first.refresh_from_db()
    assert first.until is not None and first.run is not None
    run_remove(run=first.run)
    first = ActivePlan.objects.get(pk=first.pk)
    webhook = Channel.objects.create(kind="webhook", address="https://x.example", salt="x")
    again = plan_restore(plan=first, user=approver, now=NOW + 2 * HOUR, message="Too few")
    assert list(active_plans()) == [again] and again.origin == first and again.why == "Too few"
    assert [gauge.replicas for gauge in desired_by_pool(again, NOW)] == [5]
    assert ActivePlan.objects.get(pk=second.pk).until == NOW + 2 * HOUR
    delivery = Delivery.objects.get(channel=webhook)
    assert delivery.event == "plan.in-force" and "is made active again" in delivery.text
    with pytest.raises(NotFound):
        plan_branch(plan=again, user=planner)
    notes = week_difference(again, second).notes
    assert notes == (f"Run {first.number} was removed: its settings are not known.",)


def test_dates_that_are_over_and_rules_are_respected(
    plans: list[ActivePlan], approver: User
) -> None:
    first = ActivePlan.objects.get(pk=plans[0].pk)
    first.repeat = "once"
    with pytest.raises(NotReady, match="ended at 2024-05-19 00:00 UTC"):
        plan_restore(plan=first, user=approver, now=NOW)
    ReviewRules.objects.create(required=True)
    with pytest.raises(NotAllowed, match="only through proposals"):
        plan_restore(plan=plans[0], user=approver, now=NOW)


def test_over_the_api_and_on_pages(
    plans: list[ActivePlan], planner: User, approver: User, viewer: User
) -> None:
    first, second = plans
    boss, reader = client_of(approver), client_of(viewer)
    listed = reader.get(URL, {"scenario": first.scenario}).json()["results"]
    assert [(entry["id"], entry["by"], entry["message"]) for entry in listed] == [
        (second.pk, "anna", "One less"), (first.pk, "anna", "For May")
    ]  # fmt: skip
    assert not reader.get(URL, {"scenario": "no such"}).json()["results"]
    assert reader.get(URL, {"run": 7}).status_code == 400
    assert reader.get(URL, {"cursor": ""}).json()["results"][0]["until"] is None
    (pool,) = reader.get(f"{URL}{first.pk}/").json()["pools"]
    assert [step[2] for step in pool["steps"]] == [2, 5]
    answer = reader.get(f"{URL}difference/", {"old": first.pk, "new": second.pk}).json()
    assert answer["replica_hours"] == [672, 504]
    assert [setting["key"] for setting in answer["settings"]] == ["horizon.period_s"]
    asked = {"from": first.pk, "to": second.pk, "scenario": first.scenario}
    response = signed_in(viewer).get("/plans-in-force/", asked)
    assert response.context["found"].changed == 0.25
    assert response.context["found"].replica_hours == (672, 504)
    page = text_of(response)
    assert "60 30" in page and "For May" in page  # minutes of a scaling interval
    rows = signed_in(viewer).get("/plans-in-force/").context["rows"]
    assert [(plan.pk, replicas is None) for plan, replicas, _ in rows] == [
        (second.pk, False), (first.pk, True)
    ]  # fmt: skip
    alone = text_of(signed_in(approver).get(f"/plans-in-force/{first.pk}/"))
    assert "Activate again" in alone and "was active" in alone
    branched = client_of(planner).post(f"{URL}{first.pk}/branch/", {"name": "May"}, format="json")
    assert branched.status_code == 201 and branched.json()["name"] == "May"
    again = boss.post(f"{URL}{first.pk}/restore/", {"message": "Back"}, format="json")
    assert again.status_code == 201 and again.json()["origin"] == first.pk
    assert boss.post(f"{URL}{again.json()['id']}/restore/").status_code == 409
    signed_in(approver).post(f"/plans-in-force/{second.pk}/restore/", {"message": "No"})
    (held,) = active_plans()
    assert held.origin == second and held.why == "No"
