"""Proposals, versions and the audit log in the browser."""

import json
from datetime import timedelta

import pytest
from django.test import Client

from planner.models import AuditRecord, Proposal, ReviewRules, Run, User
from planner.selectors.active_plans import active_plans
from planner.selectors.runs import stored_result
from planner.services.proposals import approve, propose
from planner.services.scenarios import scenario_edit
from planner.storage import row_arrays
from tests.planner.plan_runs import planned_run
from tests.planner.web.pages import json_in, signed_in, text_of
from tests.planner.web.study import DOCUMENT


def in_force(planner: User, approver: User) -> Proposal:
    """Two replicas by night, in force."""
    made = propose(by=planner, title="As it was", run=planned_run(planner))
    return approve(proposal=made, by=approver)


def cheaper(planner: User) -> Run:
    """The same traffic with a looser limit: cheaper, and served worse."""
    run = planned_run(planner, (1, 4))
    run.document = DOCUMENT.replace("3600", "1800")
    run.result["policies"]["lt-i"] |= {
        "cost_usd": 300.0, "flat_usd": 480.0, "slo_attainment": {"IW-F": 0.93, "IW-N": 0.9},
    }  # fmt: skip
    run.save()
    return run


def test_the_list_shows_change_and_failed_checks(planner: User, approver: User) -> None:
    first, run = in_force(planner, approver), cheaper(planner)
    made = propose(by=planner, title="Cheaper", run=run)
    client = signed_in(planner)
    ((listed, _, verdict),) = client.get("/proposals/").context["rows"]
    shown = client.get(f"/proposals/{made.pk}/").context
    assert listed == made and verdict is not None and first.run is not None
    assert verdict.failed == tuple(c.name for c in shown["checks"] if c.passed is False)
    assert verdict.failed  # it serves less than its target
    window = stored_result(run).window
    assert window is not None
    saved = 300.0 - first.run.result["policies"]["lt-i"]["cost_usd"]
    assert verdict.usd_per_day == pytest.approx(
        saved * (timedelta(days=1) / (window.end - window.start))
    )
    assert client.get("/proposals/?show=all").context["rows"][0][2] is None


def test_all_figures_of_a_repeated_plan_have_one_baseline(planner: User, approver: User) -> None:
    first = in_force(planner, approver)
    assert first.run is not None
    again = propose(by=planner, title="Again", run=first.run)
    shown = signed_in(planner).get(f"/proposals/{again.pk}/").context
    cost = next(tile for tile in shown["tiles"] if tile.unit == "$")
    assert cost.note == f"now ${cost.value:,.0f}"  # the active plan's, not the fleet's before it
    assert [pool.change for pool in shown["pools"]] == ["0"]
    assert not shown["worse"] and not shown["better"]


def test_a_new_proposal_shows_the_figures_of_the_chosen_policy(planner: User) -> None:
    run, client = cheaper(planner), signed_in(planner)
    costs = {name: row["cost_usd"] for name, row in run.result["policies"].items()}
    assert len(set(costs.values())) > 1
    for policy, cost_usd in costs.items():
        page = client.get("/proposals/new/", {"run": run.pk, "policy": policy})
        (shown,) = (fact.value for fact in page.context["facts"] if fact.unit == "$")
        assert shown == pytest.approx(cost_usd)


def test_a_story_in_pages(planner: User, approver: User, viewer: User) -> None:
    first = in_force(planner, approver)
    first.run.result["policies"]["lt-i"]["flat_usd"] = 800.0
    first.run.save()
    pia, anna, vera = signed_in(planner), signed_in(approver), signed_in(viewer)
    run = cheaper(planner)
    assert f"/proposals/new/?run={run.pk}" in pia.get(f"/runs/{run.pk}/").content.decode()
    page = pia.get("/proposals/new/", {"run": run.pk})
    assert f"the active plan, run {first.run.pk}" in text_of(page)
    sent = {"run": run.pk, "title": "Looser", "message": "See @anna", "reviewer": "anna"}
    made = pia.post("/proposals/new/", sent)
    proposal = Proposal.objects.latest("pk")
    url = f"/proposals/{proposal.pk}/"
    assert made.url == url
    text = text_of(pia.get(url))
    assert f"active plan {active_plans().get().number}" in text and "Scaling interval" in text
    shown = pia.get(url).context
    cost = next(tile for tile in shown["tiles"] if tile.unit == "$")
    # 300 of 500 dollars; at the attainment of what is there 1 - 300 * 800 / 480 / 500.
    assert (cost.value, cost.change, cost.note) == (300.0, "no saving", "now $500")
    assert [check.passed for check in shown["checks"]] == [False, False, None, None, None]
    assert "SLO attainment: IW-F" in [line.label for line in shown["worse"]]
    assert [(pool.before, pool.after) for pool in shown["pools"]] == [("2 to 5", "1 to 4")]
    assert shown["pools"][0].name == "llama-3.1-8b, us-east"
    assert "18 May 2024" in shown["window"] and "anna" in shown["waiting_for"]
    assert 'value="approve"' not in text
    assert json_in(pia.get(url), "replica-data")["data"][1]["name"] == "Proposed"
    assert "Looser" in text_of(anna.get("/proposals/", {"show": "for-me"}))
    act = f"{url}act/"
    anna.post(act, {"action": "comment", "text": "Why?", "setting": "horizon.period_s"})
    assert "on horizon.period_s" in text_of(pia.get(url))
    point = {"chart": "replicas", "series": "Proposed", "time": "2024-05-18 09:00", "value": "4"}
    anna.post(act, {"action": "comment", "text": "Only <b>4</b>?", **point})
    mark = json_in(pia.get(url), "replica-data")["data"][-1]
    assert (mark["x"], mark["y"]) == (["2024-05-18 09:00"], [4.0])
    assert mark["text"] == ["anna: Only &lt;b&gt;4&lt;/b&gt;?"]
    assert vera.post(act, {"action": "comment", "text": "x"}).status_code == 403
    assert pia.post(act, {"action": "approve"}).status_code == 403
    assert anna.post(act, {"action": "changes"}).status_code == 400
    assert anna.post(act, {"action": "dance"}).status_code == 400
    anna.post(act, {"action": "changes", "text": "Keep 95%."})
    assert "Changes requested" in text_of(pia.get(url))
    better = planned_run(planner, (2, 4))
    pia.post(act, {"action": "amend", "run": better.pk, "text": "Kept."})
    done = anna.post(act, {"action": "approve", "text": "Good."}, follow=True)
    assert f"Proposal {proposal.pk} is approved and active" in text_of(done)
    assert "before: 2 to 5" in text_of(done)
    held = active_plans().first()
    assert held is not None and held.proposal == proposal and held.run == better
    manifest = anna.get(f"/runs/{better.pk}/export/", {"to": "keda"}).content.decode()
    assert f"(approved: proposal {proposal.pk})" in manifest
    assert f"headroom/proposal: '{proposal.pk}'" in manifest.replace('"', "'")
    report = anna.get(f"/runs/{better.pk}/export/", {"to": "html"}).content.decode()
    assert f"proposal {proposal.pk}" in report and "anna" in report
    exported = AuditRecord.objects.filter(action="run.exported")
    assert {json.loads(record.details)["to"] for record in exported} == {"keda", "html"}


def test_a_plan_that_was_not_replayed_says_so(planner: User, approver: User) -> None:
    in_force(planner, approver)
    run = planned_run(planner, (1, 4))
    run.result["policies"] = {}
    run.save()
    made = propose(by=planner, title="Planned alone", run=run)
    page = signed_in(planner).get(f"/proposals/{made.pk}/")
    assert f"Run {run.pk} planned and replayed nothing" in text_of(page)
    assert [check.passed for check in page.context["checks"]] == [False, None, None, None, None]


def test_an_admin_sets_the_rules(admin: User) -> None:
    sent = {"approvals": 2, "self_approval": "on", "admin_above_usd_30d": "1e6"}
    client = signed_in(admin)
    assert client.post("/proposals/rules/", sent | {"approvals": 0}).status_code == 400
    assert client.post("/proposals/rules/", sent).status_code == 302
    rules = ReviewRules.objects.get()
    assert (rules.approvals, rules.self_approval, rules.required) == (2, True, False)
    assert "$1,000,000" in text_of(client.get("/proposals/")) or rules.admin_above_usd_30d == 1e6


def test_versions_are_compared_restored_and_branched(planner, scenario) -> None:
    client = signed_in(planner)
    scenario_edit(scenario=scenario, user=planner, changes={"horizon.period_s": 900},
                  message="Quarters")  # fmt: skip
    url = f"/scenarios/{scenario.pk}/versions/"
    text = text_of(client.get(url))
    assert "From version 1 to version 2" in text and "Quarters" in text
    assert "Scaling interval, min 60 15" in text
    assert "- period_s: 3600 # an hour" in text and "+ period_s: 900 # an hour" in text
    assert client.get(url, {"from": "7"}).status_code == 404
    client.post(f"{url}1/restore/")
    scenario.refresh_from_db()
    assert scenario.version == 3 and "3600" in scenario.document
    parts = text_of(client.get(url, {"part": "policies"}))
    assert "Its policies" in parts and "Quarters" not in parts  # that save changed none
    taken = client.post(f"{url}1/restore/", {"part": "policies"}, follow=True)
    assert "Policies of version 1 are restored, as version 3" in text_of(taken)
    assert client.get(url, {"part": "tiers"}).status_code == 400
    made = client.post(f"{url}2/branch/", {"name": "Quarters"}, follow=True)
    assert "Quarters is created" in text_of(made)


def test_an_admin_searches_the_log(admin: User, scenario) -> None:
    client = signed_in(admin)
    assert "Scenario created Chat" in text_of(client.get("/audit/", {"action": "scenario"}))
    assert "No matching entry" in text_of(client.get("/audit/", {"search": "nowhere"}))
    rows = json.loads(client.get("/audit/audit.json").content)["records"]
    assert [row["number"] for row in rows] == list(range(1, len(rows) + 1))
    assert client.get("/audit/audit.csv").content.startswith(b"number,at,actor,action,")
    assert client.get("/audit/audit.pdf").status_code == 404


def test_signing_in_is_in_the_log(planner: User) -> None:
    client = Client()
    client.post("/login/", {"username": "pia", "password": "wrong"})
    client.post("/login/", {"username": "pia", "password": "pia-secret"})
    client.post("/logout/")
    records = AuditRecord.objects.order_by("number").values_list("action", "key", "name")
    assert [action for action, _, _ in records] == [
        "user.refused", "user.signed-in", "user.signed-out"
    ]  # fmt: skip


def test_a_removed_table_is_no_end_of_a_page(planner: User, approver: User) -> None:
    proposal = propose(by=planner, title="A", run=planned_run(planner))
    row_arrays.remove(proposal.run.store)
    assert signed_in(planner).get(f"/proposals/{proposal.pk}/").status_code == 200
