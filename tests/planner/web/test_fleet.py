"""The five places, the search over all names, and the home page of the fleet."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from planner.domain.formats import signed_percent
from planner.domain.report import Meaning
from planner.domain.reports.schedule import schedule_from
from planner.models import Run, Scenario, Source, User
from planner.outputs.metrics import desired_by_pool, next_change
from planner.outputs.options import ExportOptions
from planner.outputs.reports import compared_with_active, run_report
from planner.selectors.active_plans import compares_with
from planner.selectors.places import ACCOUNT, PLACES
from planner.selectors.runs import stored_result
from planner.services.active_plans import plan_activate
from planner.services.proposals import propose
from planner.web.pages.fleet import fleet_plan
from planner.web.pages.fleet_services import services_now, services_planned
from tests.planner.plan_runs import REPLICA, planned_run
from tests.planner.web.pages import signed_in

NOW = datetime(2026, 6, 1, 6, 30, tzinfo=UTC)


@pytest.fixture
def run(planner: User) -> Run:
    replica = REPLICA | {"model": "m", "gpu": "H100", "arrangement": "1 x H100"}
    return planned_run(planner, (2, 5, 3), replica=replica)


def test_every_job_is_in_the_menu_of_every_page(client: Client) -> None:
    """One click opens a place, the second goes to the job."""
    for page in ("home", "scenarios", "glossary"):
        html = client.get(reverse(f"web:{page}")).content.decode()
        menu = html[html.index('id="navbar-menu"') :].partition("</nav>")[0]
        for place in PLACES:
            assert place.label in menu
            for job in place.jobs:
                assert f'href="{reverse(f"web:{job.page}")}"' in menu
    for job in (job for place in PLACES for job in place.jobs):
        assert client.get(reverse(f"web:{job.page}")).status_code in (200, 403)


def test_a_viewer_is_shown_no_job_that_is_not_allowed(viewer: User) -> None:
    client = signed_in(viewer)
    html = client.get(reverse("web:home")).content.decode()
    assert reverse("web:scenario-new") not in html
    for text in ("new scenario", "people"):
        found = client.get(reverse("web:find"), {"q": text}).content.decode()
        assert f'href="{reverse("web:scenario-new")}"' not in found
        assert f'href="{reverse("web:people")}"' not in found


def test_names_of_all_kinds_are_found(client: Client, planner: User, run: Run) -> None:
    scenario = Scenario.objects.create(name="Chat <east>", owner=planner, document="")
    answers = {
        "chat <east>": reverse("web:scenario", args=[scenario.pk]),
        "two pools": reverse("web:run", args=[run.pk]),
        "plan and comp": reverse("web:run", args=[run.pk]),
        "h100-sxm": reverse("web:gpu", args=["H100-SXM"]),
        "H200 price": reverse("web:gpu", args=["H200"]),
        "pools two": reverse("web:run", args=[run.pk]),
        "pareto": f"{reverse('web:glossary')}#trade-off",
        "disaggregated": reverse("web:pd-ratio"),
    }
    for text, address in answers.items():
        found = client.get(reverse("web:find"), {"q": text}, headers={"HX-Request": "true"})
        assert f'href="{address}"' in found.content.decode()
        assert "<html" not in found.content.decode() and "<east>" not in found.content.decode()
    nothing = client.get(reverse("web:find"), {"q": "zzzz"})
    assert not re.search(r'class="found"', nothing.content.decode())
    assert {job.page for job in ACCOUNT.jobs} & {"people", "audit"}


@pytest.mark.parametrize("options", [{}, {"repeat": "weekly"}, {"timezone": "America/New_York"}])
def test_the_next_change_is_the_first_minute_with_other_replicas(
    run: Run, approver: User, options: dict[str, Any]
) -> None:
    plan = plan_activate(
        run=run, options=ExportOptions.model_validate(options), user=approver, now=NOW
    )
    change = next_change(plan, NOW)
    assert change is not None

    def at(moment: datetime) -> list[int | None]:
        return [pool.replicas for pool in desired_by_pool(plan, moment)]

    assert at(change.at) != at(NOW) == at(change.at - timedelta(minutes=1))
    assert [change.before, change.after] == [sum(map(int, filter(None, at(moment))))
                                             for moment in (NOW, change.at)]  # fmt: skip
    moment = NOW
    while moment < change.at:
        assert at(moment) == at(NOW)
        moment += timedelta(minutes=15)


@pytest.mark.parametrize("options", [{}, {"repeat": "once"}])
def test_a_replica_that_only_moves_to_another_pool_is_no_change(
    run: Run, approver: User, options: dict[str, Any]
) -> None:
    timetable = run.result["recommended"]["timetable"]
    pool = timetable["pools"][0]
    timetable["pools"] = [pool, {**pool, "region": "us-west"}]
    for row, counts in zip(timetable["rows"], ([2, 3], [3, 2], [3, 3]), strict=True):
        row["replicas"] = counts
    run.save()
    plan = plan_activate(
        run=run, options=ExportOptions.model_validate(options), user=approver, now=NOW
    )
    now = datetime(2024, 5, 18, 6, tzinfo=UTC)
    change = next_change(plan, now)
    assert change is not None
    assert (change.at.hour, change.before, change.after) == (20, 5, 6)


def test_home_has_each_service_with_its_replicas_and_its_own_next_change(
    run: Run, approver: User
) -> None:
    timetable = run.result["recommended"]["timetable"]
    pool = timetable["pools"][0]
    decode = {**pool, "replica": {**pool["replica"], "model": "n"}}
    timetable["pools"] = [pool, {**pool, "region": "us-west"}, decode]
    for row, counts in zip(timetable["rows"], ([2, 3, 1], [3, 2, 1], [3, 3, 1]), strict=True):
        row["replicas"] = counts
    run.save()
    now = datetime(2024, 5, 18, 6, tzinfo=UTC)
    planned = services_planned(schedule_from(stored_result(run).recommended.timetable))
    assert [(one.name, one.replicas) for one in planned] == [("m", "5 to 6"), ("n", "1")]
    plan = plan_activate(run=run, options=ExportOptions(), user=approver, now=NOW)
    first, second = services_now(plan, now)
    assert (first.name, first.gpus, first.replicas) == ("m", "1 x H100", "5")
    assert first.regions == "us-east 2, us-west 3" and first.change.startswith("6 at 20:")
    assert second.replicas == "1" and "at" not in second.change.split()
    doubt = fleet_plan(plan, now, charts=0).trust[0]
    assert doubt.meaning is Meaning.RISK  # no live traffic


def test_home_leads_to_one_next_step(run: Run, planner: User, approver: User) -> None:
    """First to a proposal to approve, then to an alert and a live source.

    An own proposal that waits for others is a step only without an active plan.
    """

    def primary(user: User) -> list[str]:
        page = signed_in(user).get(reverse("web:home")).content.decode()
        return re.findall(r'<a class="btn[^"]* btn-primary[^"]*"\s+href="([^"]+)"', page)

    assert primary(planner) == [reverse("web:run", args=[run.pk])]
    first = propose(by=planner, title="First", run=run)
    assert primary(planner) == [reverse("web:proposal", args=[first.pk])]
    first.delete()
    plan = plan_activate(run=run, options=ExportOptions(), user=approver, now=NOW)
    assert primary(planner) == [reverse("web:sources")]
    weekly = {"repeat": "weekly"} if plan.repeat != "weekly" else {"repeat": "daily"}
    proposal = propose(by=planner, title="Repeated otherwise", run=run, options=weekly)
    assert primary(approver) == [reverse("web:proposal", args=[proposal.pk])]
    assert primary(planner) == [reverse("web:sources")]
    Source.objects.create(name="prom", kind="prometheus", state=Source.State.PROBLEM)
    assert primary(planner) == [reverse("web:source", args=["prom"])]


def test_home_leads_to_the_proposal_that_replaces_an_outdated_one(
    run: Run, planner: User, approver: User
) -> None:
    propose(by=planner, title="Before the plan", run=run, options={"repeat": "weekly"})
    plan = plan_activate(run=run, options=ExportOptions(), user=approver, now=NOW)

    def step() -> tuple[str, int | str | None]:
        shown = signed_in(planner).get(reverse("web:home")).context["next_step"]
        return shown.label, shown.key

    label, outdated = step()
    weekly = {"repeat": "weekly"} if plan.repeat != "weekly" else {"repeat": "daily"}
    newer = propose(by=planner, title="After it", run=run, options=weekly)
    assert step()[1] == newer.pk != outdated and step()[0] != label


@pytest.mark.parametrize("factor", [0.5, 1, 1.25])
def test_a_new_result_is_compared_with_the_active_plan_of_the_same_window(
    run: Run, planner: User, approver: User, factor: float
) -> None:
    plan = plan_activate(run=run, options=ExportOptions(), user=approver, now=NOW)
    values = [fact.value for fact in run_report(run).facts]
    assert [fact.value for fact in compared_with_active(run_report(run), run).facts] == values
    new = planned_run(planner)
    new.result["policies"]["lt-i"]["cost_usd"] *= factor
    new.save()
    assert compares_with(plan, stored_result(new), plan.policy)
    facts = compared_with_active(run_report(new), new).facts
    (cost,) = (fact for fact in facts if fact.unit == "$")
    assert cost.meaning is (Meaning.SAVING if factor < 1 else Meaning.NEUTRAL)
    assert factor == 1 or cost.change.startswith(signed_percent(factor - 1, 0))
    new.result["window"]["start"] = "2024-05-17T00:00:00Z"
    new.save()
    new = Run.objects.get(pk=new.pk)
    assert not compares_with(plan, stored_result(new), plan.policy)
    own = run_report(new)
    shown = compared_with_active(own, new)
    assert shown.facts == own.facts and shown.charts == own.charts
    assert len(shown.warnings) > len(own.warnings)  # the saving is not over the active plan


def test_only_others_proposals_that_change_the_plan_are_to_review(
    client: Client, run: Run, planner: User, approver: User
) -> None:
    propose(by=approver, title="My own", run=run)
    assert signed_in(approver).get(reverse("web:home")).context["to_review"] == []
    plan = plan_activate(run=run, options=ExportOptions(), user=approver, now=NOW)
    again = propose(by=planner, title="The same again", run=run)
    weekly = {"repeat": "weekly"} if plan.repeat != "weekly" else {"repeat": "daily"}
    other = propose(by=planner, title="Repeated otherwise", run=run, options=weekly)
    assert [again.repeats_active_plan, other.repeats_active_plan] == [True, False]
    home = signed_in(approver).get(reverse("web:home")).context
    assert home["to_review"] == [other]
    assert client.get(reverse("web:home")).context["to_review"] == []  # a planner cannot approve


def test_a_plan_that_stays_has_no_next_change(run: Run, approver: User) -> None:
    run.result["recommended"]["timetable"]["rows"] = [
        {"begins": "2024-05-18T00:00:00Z", "replicas": [2]}
    ]
    run.save()
    plan = plan_activate(run=run, options=ExportOptions(), user=approver, now=NOW)
    assert next_change(plan, NOW) is None
    before = run.result["policies"][run.result["baseline"]]["cost_usd"]
    later = NOW + 1.5 * (plan.ends - plan.begins)
    facts = {fact.label: fact.value for fact in fleet_plan(plan, later, charts=0).facts}
    saving = before - run.result["policies"][plan.policy]["cost_usd"]
    assert facts["Savings by schedule"] == pytest.approx(1.5 * saving) and saving > 0


def test_the_saving_follows_the_schedule(run: Run, approver: User) -> None:
    plan = plan_activate(run=run, options=ExportOptions(), user=approver, now=NOW)
    policies = run.result["policies"]
    before, cost = (policies[key]["cost_usd"] for key in (run.result["baseline"], plan.policy))

    def saved(hours: float) -> Any:
        facts = fleet_plan(plan, NOW + timedelta(hours=hours), charts=0).facts
        return next(fact.value for fact in facts if fact.label == "Savings by schedule")

    # 2 replicas for 8 h, 5 for 12 h, 3 for 4 h. It is active from 6:30 on.
    day = (plan.ends - plan.begins) / timedelta(hours=1)
    planned = 2 * 8 + 5 * 12 + 3 * (day - 20)
    assert saved(8) == pytest.approx(before * 8 / day - cost * (2 * 1.5 + 5 * 6.5) / planned)
    assert saved(48) == pytest.approx(2 * saved(24))
    assert saved(8 + 0.9 / 60) == saved(8)  # both costs are counted in whole minutes
