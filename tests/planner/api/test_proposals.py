"""Proposals, versions, rules and the log over the API: the story that scripts tell."""

from datetime import UTC, datetime

import pytest

from planner.inputs.scenario.document import parse
from planner.models import Run, User
from planner.outputs.options import ExportOptions
from planner.outputs.proposal_changes import proposed_of
from planner.services.active_plans import plan_activate
from planner.services.proposal_replay import periodic_rows
from planner.services.proposals import propose
from planner.services.scenarios import document_run
from planner.services.worker import run_execute
from tests.planner.plan_runs import planned_run
from tests.planner.samples import client_of
from tests.planner.toy import FLEET

V1 = "/api/v1"
PLANNED = f"""\
version: 1
name: Chat
{FLEET}
traffic:
  sources:
    - launch: {{requests_per_day: 20000, day: office, begins: 2027-01-04}}
      model: m
      input_tokens: {{mean: 400}}
      output_tokens: {{mean: 100}}
horizon: {{duration_s: 21600, period_s: 3600}}
fleet: {{startup_s: 60}}
"""


def test_a_proposal_from_made_to_in_force(planner, api, approver, reader) -> None:
    first, second = planned_run(planner), planned_run(planner, (3, 5))
    anna = client_of(approver)
    sent = {"run": first.pk, "title": "Week 21", "repeat": "daily", "reviewers": ["anna"]}
    made = api.post(f"{V1}/proposals/", sent, format="json")
    assert made.status_code == 201 and made.data["missing"] == "1 more approval"
    url = made["Location"]
    assert (
        api.post(f"{V1}/proposals/", sent | {"repeat": "hourly"}, format="json").status_code == 400
    )
    assert reader.post(f"{V1}/proposals/", sent, format="json").status_code == 403
    comment = {"text": "@pia, why?", "anchor": {"setting": "horizon.period_s"}}
    assert anna.post(f"{url}comments/", comment, format="json").data["anchor"] == comment["anchor"]
    wrong = comment | {"anchor": {"colour": "red"}}
    assert anna.post(f"{url}comments/", wrong, format="json").status_code == 400
    asked = anna.post(f"{url}changes/", {"text": "Take 3."}, format="json")
    assert asked.data["state"] == "changes"
    assert anna.post(f"{url}approve/", {}, format="json").status_code == 409
    assert api.post(f"{url}amend/", {"run": second.pk}, format="json").data["revision"] == 2
    difference = api.get(f"{url}difference/").data
    assert difference["pools"][0]["mean"] == [None, pytest.approx(13 / 3)]
    assert difference["saving"] == pytest.approx(1 - 500 / 1000)  # of today's fleet, served alike
    done = anna.post(f"{url}approve/", {"text": "Good."}, format="json")
    assert done.data["state"] == "approved"
    assert [entry["kind"] for entry in done.data["entries"]] == [
        "opened", "requested", "comment", "changes", "amended", "approved", "in-force"
    ]  # fmt: skip
    assert api.get(f"{V1}/plan-in-force/").data["proposal"] == done.data["id"]
    listed = api.get(f"{V1}/proposals/", {"state": "approved", "run": second.pk}).data
    assert [entry["id"] for entry in listed["results"]] == [done.data["id"]]
    assert api.get(f"{V1}/proposals/999/").status_code == 404


def test_rules_versions_and_the_log(planner, api, admin, scenario) -> None:
    ada = client_of(admin)
    rules = ada.get(f"{V1}/review-rules/").data
    assert rules["approvals"] == 1 and rules["admin_above_usd_30d"] is None
    assert api.put(f"{V1}/review-rules/", rules, format="json").status_code == 403
    assert ada.put(f"{V1}/review-rules/", rules | {"approvals": 2}, format="json").data == {
        **rules, "approvals": 2
    }  # fmt: skip
    url = f"{V1}/scenarios/{scenario.pk}/"
    api.patch(url, {"changes": {"horizon.period_s": 900}, "message": "Quarters"}, format="json")
    rows = api.get(f"{url}versions/").data["results"]
    assert [(row["number"], row["author"], row["message"]) for row in rows] == [
        (2, "pia", "Quarters"), (1, "pia", "")
    ]  # fmt: skip
    difference = api.get(f"{url}versions/difference/", {"old": 1, "new": 2}).data
    assert difference["settings"] == [{"key": "horizon.period_s", "values": [3600.0, 900.0]}]
    assert "3600" in api.get(f"{url}versions/1/").data["document"]
    assert api.post(f"{url}versions/1/restore/", {}, format="json").data["version"] == 3
    parts = {"part": "policies"}
    assert [row["number"] for row in api.get(f"{url}versions/", parts).data["results"]] == [1]
    assert api.get(f"{url}versions/difference/", {"old": 1, "new": 2, **parts}).data["lines"] == []
    assert api.get(f"{url}versions/", {"part": "tiers"}).status_code == 400
    same = api.post(f"{url}versions/2/restore/", parts, format="json")
    assert same.data["version"] == 3  # they are what they were
    made = api.post(f"{url}versions/2/branch/", {"name": "Other"}, format="json")
    assert made.status_code == 201 and made.data["name"] == "Other"
    assert api.get(f"{url}versions/9/").status_code == 404
    log = ada.get(f"{V1}/audit/", {"action": "scenario", "page_size": 2}).data
    assert [record["action"] for record in log["results"]] == [
        "scenario.created",
        "scenario.changed",
    ]
    assert set(log["results"][0]) == {
        "number", "at", "actor", "action", "key", "name", "details", "workspace",
    }  # fmt: skip


def test_what_is_in_force_is_replayed_on_the_new_traffic(planner) -> None:
    """Windows differ, so that their figures say nothing of each other: a run is started whose
    policy asks at every minute for what the plan in force asks for."""
    plan = plan_activate(
        run=planned_run(planner), options=ExportOptions(repeat="daily"), user=None,
        now=datetime(2024, 6, 1, tzinfo=UTC),
    )  # fmt: skip
    run = planned_run(planner, (1, 4))
    run.result["window"] |= {"start": "2024-05-25T06:00:00Z", "end": "2024-05-26T06:00:00Z"}
    run.save()
    proposal = propose(by=planner, title="Next week", run=run)
    replay = proposal.replay
    assert replay is not None and replay.kind == Run.Kind.SIMULATE
    (policy,) = parse(replay.document).policies
    steps = [(row.at, row.replicas, row.model) for row in policy.timetable]
    assert steps == [
        ("06:00", 0, None), ("06:00", 2, "llama-3.1-8b"), ("08:00", 5, "llama-3.1-8b"),
        ("00:00", 2, "llama-3.1-8b"),
    ]  # fmt: skip
    assert any("being replayed" in note for note in proposed_of(proposal).notes)
    figures = {**run.result["policies"]["lt-i"], "label": "Periodic", "cost_usd": 1000.0}
    replay.result = {"policies": {"periodic": figures}, "window": run.result["window"]}
    replay.state = Run.State.COMPLETED
    replay.save()
    proposed = proposed_of(proposal)
    assert proposed.saving == pytest.approx(0.5) and "replayed on the traffic" in proposed.against
    week = list(
        periodic_rows(plan, datetime(2024, 5, 24, tzinfo=UTC), datetime(2024, 5, 27, tzinfo=UTC))
    )
    assert [(row["day"], row["at"], row["replicas"]) for row in week[1:]] == [
        ("fri", "00:00", 2), ("fri", "08:00", 5), ("sat", "00:00", 2), ("sat", "08:00", 5),
        ("sun", "00:00", 2), ("sun", "08:00", 5),
    ]  # fmt: skip
    assert not list(
        periodic_rows(plan, datetime(2024, 5, 1, tzinfo=UTC), datetime(2024, 5, 27, tzinfo=UTC))
    )


def _planned(planner: User, usd: int) -> Run:
    """A plan by itself, at so much an hour of a GPU."""
    document = PLANNED.replace("usd_per_gpu_hour: {G: 2}", f"usd_per_gpu_hour: {{G: {usd}}}")
    run = document_run(document=document, owner=planner, kind=Run.Kind.PLAN)
    assert _done(run)
    run.refresh_from_db()
    return run


def _done(run: Run | None) -> bool:
    """Carried out here, as a worker would."""
    if run is None:
        return False
    ended = run_execute(run_id=run.pk)
    run.refresh_from_db()
    assert ended.state == Run.State.COMPLETED, ended.problem
    return True


def test_a_plan_by_itself_is_replayed_to_be_held_against_what_is_in_force(planner) -> None:
    """Planned and replayed for real: both sides attain, cost and are compared."""
    first, second = (_planned(planner, price) for price in (2, 3))
    alone = propose(by=planner, title="Alone", run=first)
    assert alone.replay is None and _done(alone.outcome)
    (note,) = (line for line in proposed_of(alone).notes if "no simulation" in line)
    assert f"run {alone.outcome.pk}: " in note and "% chat for $" in note
    plan_activate(
        run=first, options=ExportOptions(repeat="daily"), user=None,
        now=datetime(2024, 6, 1, tzinfo=UTC),
    )  # fmt: skip
    proposal = propose(by=planner, title="Dearer", run=second, options={"repeat": "daily"})
    assert any("replays its schedule" in line for line in proposed_of(proposal).notes)
    assert _done(proposal.outcome) and _done(proposal.replay)
    pair = [replay.result["policies"]["periodic"] for replay in (proposal.replay, proposal.outcome)]
    assert pair[0]["arrived"] == pair[1]["arrived"] > 0  # the same requests
    proposed = proposed_of(proposal)
    costs = next(row for group in proposed.groups for row in group.rows if row.label == "Cost")
    assert list(costs.values) == [policy["cost_usd"] for policy in pair]
