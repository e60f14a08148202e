"""Plans that clusters follow: frozen, one of each scenario, and at /metrics what they ask for."""

from datetime import UTC, datetime, timedelta

import pytest
from django.test import Client

from planner.errors import NotAllowed, NotReady, PlannerError
from planner.models import ActivePlan, Run, Scenario
from planner.outputs.metrics import desired_by_pool, exposition, plan_lines
from planner.outputs.options import ExportOptions
from planner.selectors.active_plans import active_plan, active_plan_of_run, active_plans
from planner.services.active_plans import plan_activate, plan_end
from planner.services.plan_outcomes import planned_pools
from planner.services.runs import run_remove
from planner.services.scenarios import scenario_create
from tests.planner.plan_runs import REPLICA, planned_run
from tests.planner.samples import client_of
from tests.planner.web.study import DOCUMENT, completed_run

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
URL = "/api/v1/plan-in-force/"


@pytest.fixture
def run(planner) -> Run:
    replica = REPLICA | {"model": 'a "b"\\', "gpu": "H100", "arrangement": "1 x H100"}
    return planned_run(planner, (2, 5, 3), region="us east", replica=replica)


def counts(plan: ActivePlan, hours: list[float], day: datetime) -> list[int | None]:
    return [desired_by_pool(plan, day + timedelta(hours=hour))[0].replicas for hour in hours]


def test_a_pattern_goes_on_and_dates_end(run, approver):
    hours = [0, 7.99, 8, 19, 20, 23.9]
    daily = plan_activate(run=run, options=ExportOptions(), user=approver, now=NOW)
    assert daily.repeat == "daily"  # its window is over
    assert counts(daily, hours, datetime(2030, 1, 3, tzinfo=UTC)) == [2, 2, 5, 5, 3, 3]
    once = plan_activate(run=run, options=ExportOptions(repeat="once"), user=approver, now=NOW)
    assert counts(once, hours, datetime(2024, 5, 18, tzinfo=UTC)) == [2, 2, 5, 5, 3, 3]
    assert counts(once, hours, datetime(2024, 5, 19, tzinfo=UTC)) == [None] * 6
    text = exposition(plan_lines([once], NOW))
    assert "headroom_plan_covers_now{" in text and "headroom_desired_replicas{" not in text
    there = {"timezone": "America/New_York", "repeat": "weekly"}
    week = plan_activate(
        run=run, options=ExportOptions.model_validate(there), user=approver, now=NOW
    )
    assert counts(week, [8, 20], datetime(2024, 5, 25, tzinfo=UTC)) == [5, 3]
    assert counts(week, [8, 20], datetime(2024, 5, 22, tzinfo=UTC)) == [5, 3]  # as that day


def test_a_plan_of_a_trace_without_dates_has_no_dates_to_run_once(run, approver):
    run.result["window"]["clock"] = "relative"
    run.save()
    run = Run.objects.get(pk=run.pk)
    with pytest.raises(PlannerError, match="repeat"):
        plan_activate(run=run, options=ExportOptions(repeat="once"), user=approver, now=NOW)
    assert not active_plans()
    assert plan_activate(run=run, options=ExportOptions(), user=approver, now=NOW)


def test_it_is_frozen_and_one_at_a_time(run, approver):
    first = plan_activate(run=run, options=ExportOptions(), user=approver, now=NOW)
    second = plan_activate(run=run, options=ExportOptions(), user=None, now=NOW)
    first.refresh_from_db()
    assert first.until == NOW and list(active_plans()) == [second]
    run_remove(run=run)
    kept = active_plans().first()
    assert kept is not None and kept.run is None and desired_by_pool(kept, NOW)[0].replicas == 5
    assert plan_end(user=approver, now=NOW) and not active_plans()
    assert not plan_end(user=approver, now=NOW)
    assert ActivePlan.objects.count() == 2  # what was in force stays on record


@pytest.fixture
def services(run, planner) -> tuple[Run, Run]:
    """Plans of two services, whose deployments have names of their own."""
    runs = []
    for name in ("chat", "search"):
        completed = completed_run(planner)
        pool = run.result["recommended"]["timetable"]
        completed.result["recommended"] = {"policy": "lt-i", "timetable": pool}
        completed.result["scenario"] = name
        completed.save()
        runs.append(completed)
    return runs[0], runs[1]


def named(name: str) -> ExportOptions:
    return ExportOptions(names=(f"a-b-h100-us-east={name}",))


def test_each_scenario_has_a_plan_in_force(services, approver, settings):
    """What is put in force of one service ends nothing of another."""
    chat, search = services
    first = plan_activate(run=chat, options=named("chat"), user=approver, now=NOW)
    second = plan_activate(run=search, options=named("search"), user=approver, now=NOW)
    assert list(active_plans()) == [second, first]
    settings.HEADROOM_METRICS_OPEN = True
    text = Client().get("/metrics").content.decode()
    for run, name in zip(services, ("chat", "search"), strict=True):
        of = f'run="{run.pk}",policy="lt-i",scenario="{name}"'
        assert f"headroom_plan_in_force{{{of}}} 1\n" in text
        assert f"headroom_plan_covers_now{{{of}}} 1\n" in text
        assert f'role="mixed",run="{run.pk}",scenario="{name}"}} ' in text
    assert text.count("# TYPE headroom_desired_replicas gauge") == 1
    later = plan_activate(run=chat, options=named("chat"), user=approver, now=NOW)
    assert list(active_plans()) == [later, second] and active_plan_of_run(chat) == later
    boss = client_of(approver)
    held = boss.get(URL, {"scenario": "search"}).json()
    assert (held["run"], held["others"]) == (search.pk, [{"run": chat.pk, "scenario": "chat"}])
    unsaid = boss.delete(URL)
    assert unsaid.status_code == 409 and "chat, search" in unsaid.content.decode()
    assert boss.delete(f"{URL}?scenario=chat").status_code == 204
    assert list(active_plans()) == [second]


def test_no_deployment_is_asked_for_by_two_plans(services, approver):
    """A plan that has all deployments of another replaces it, as a branch does; one that has some
    of them is refused, as the others would be left alone."""
    chat, search = services
    first = plan_activate(run=chat, options=ExportOptions(), user=approver, now=NOW)
    second = plan_activate(run=search, options=ExportOptions(), user=approver, now=NOW)
    assert list(active_plans()) == [second]
    first.refresh_from_db()
    assert first.until == NOW
    second.pools = [*second.pools, {**second.pools[0], "name": "another"}]
    second.save()
    with pytest.raises(NotReady, match="a-b-h100-us-east"):
        plan_activate(run=chat, options=ExportOptions(), user=approver, now=NOW)
    assert list(active_plans()) == [second]


def test_replicas_are_requested_one_cold_start_before_their_period(run, approver):
    """A pattern wraps: what serves from midnight on is requested on the evening before."""
    rows = [("17T23:50", "18T00:00", 4), ("18T07:50", "18T08:00", 5), ("18T20:00", "18T20:00", 3)]
    run.result["recommended"]["timetable"]["rows"] = [
        {"begins": f"2024-05-{begins}:00Z", "period": f"2024-05-{period}:00Z", "replicas": [count]}
        for begins, period, count in rows
    ]
    run.save()
    hours = [-0.2, -0.1, 0, 7.8, 7.9, 19.9, 20, 23.8, 23.9]
    midnight = datetime(2024, 5, 18, tzinfo=UTC)
    expected = {
        "daily": [3, 4, 4, 4, 5, 5, 3, 3, 4],
        "weekly": [3, 4, 4, 4, 5, 5, 3, 3, 3],
        "once": [None, 4, 4, 4, 5, 5, 3, 3, 3],
    }
    for repeat, replicas in expected.items():
        options = ExportOptions.model_validate({"repeat": repeat, "timezone": "America/New_York"})
        plan = plan_activate(run=run, options=options, user=approver, now=NOW)
        assert counts(plan, hours, midnight) == replicas
        (pool,) = planned_pools(plan, midnight, midnight + timedelta(days=1))
        requested = dict(zip(pool.times_s - midnight.timestamp(), pool.replicas, strict=True))
        assert requested == {0: 4, 7 * 3600 + 50 * 60: 5, 20 * 3600: 3} | (
            {23 * 3600 + 50 * 60: 4} if repeat == "daily" else {}
        )


def test_a_plan_follows_its_scenario_through_a_new_name(services, planner, approver):
    scenario = scenario_create(owner=planner, document=DOCUMENT)
    Run.objects.filter(pk=services[0].pk).update(scenario=scenario)
    chat = Run.objects.get(pk=services[0].pk)
    held = plan_activate(run=chat, options=named("chat"), user=approver, now=NOW)
    Scenario.objects.filter(pk=scenario.pk).update(name="Chat, all regions")
    assert active_plan_of_run(chat) == active_plan("Chat, all regions") == held
    assert active_plan_of_run(services[1]) is None


def test_who_approves_says_so_and_a_rule_is_refused(run, planner):
    with pytest.raises(NotAllowed, match="approver or an admin"):
        plan_activate(run=run, options=ExportOptions(), user=planner, now=NOW)
    with pytest.raises(NotAllowed):
        plan_end(user=planner, now=NOW)
    run.result["policies"]["hpa-queue"] = {"label": "HPA", "settings": [
        {"what": what, "where": "", "value": value}
        for what, value in (("metric", "queue"), ("target", 5.0), ("tolerance", 0.1))]}  # fmt: skip
    with pytest.raises(NotReady, match="has no replicas in run"):
        plan_activate(run=run, options=ExportOptions(policy="hpa-queue"), user=None, now=NOW)
    place = "llama-3.1-8b in us-east, "
    run.result["policies"]["hpa-queue"]["settings"] += [
        {"what": f"replicas at {what}", "where": place, "value": value}
        for what, value in (("least", 1), ("most", 8))
    ]
    run.result = {**run.result}  # another document, as a row that is read again has
    with pytest.raises(NotReady, match="scales by its rule"):
        plan_activate(run=run, options=ExportOptions(policy="hpa-queue"), user=None, now=NOW)


def test_prometheus_scrapes_with_a_token_unless_the_operator_opens_it(
    run, approver, reader, settings
):
    key = reader._credentials["HTTP_AUTHORIZATION"].split()[1]
    client = Client(headers={"Authorization": f"Bearer {key}"})
    assert client.get("/metrics").content.endswith(b"headroom_plan_in_force 0\n")
    plan_activate(run=run, options=ExportOptions(), user=approver, now=NOW)
    answer = client.get("/metrics")
    assert answer["Content-Type"].startswith("text/plain; version=0.0.4")
    lines = answer.content.decode().splitlines()
    (line,) = [line for line in lines if line.startswith("headroom_desired_replicas{")]
    assert 'pool="a-b-h100-us-east",region="us-east",model="a \\"b\\"\\\\"' in line
    assert line.rsplit(" ", 1)[1] in "2 5 3"
    assert Client().get("/metrics").status_code == 401  # from this machine too
    assert client.get("/metrics", headers={"Authorization": f"Token {key}"}).status_code == 200
    assert client.get("/metrics", headers={"Authorization": "Bearer x"}).status_code == 401
    assert client.delete("/metrics").status_code == 405
    settings.HEADROOM_METRICS_OPEN = True
    assert Client().get("/metrics", REMOTE_ADDR="10.0.0.7").status_code == 200


def test_over_the_api(run, approver, api):
    boss = client_of(approver)
    assert boss.get(URL).status_code == 404 == boss.delete(URL).status_code
    assert api.post(URL, {"run": run.pk}, format="json").status_code == 403
    put = boss.post(URL, {"run": run.pk, "repeat": "daily"}, format="json")
    assert put.status_code == 201 and put.json()["by"] == "anna"
    (pool,) = api.get(URL).json()["desired"]
    assert pool["pool"] == "a-b-h100-us-east" and pool["replicas"] in (2, 3, 5)
    wrong = boss.post(URL, {"run": run.pk, "repeat": "hourly"}, format="json")
    assert wrong.status_code == 400 and "hourly" in wrong.content.decode()
    assert boss.delete(URL).status_code == 204 and boss.get(URL).status_code == 404
