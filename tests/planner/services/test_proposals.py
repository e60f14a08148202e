"""Proposals: who may do what at which stage, and that what is approved is what runs."""

import pytest
from django.utils import timezone

from planner.errors import NotAllowed, NotReady, PlannerError
from planner.models import AuditRecord, Proposal, ReviewRules, Run, User
from planner.outputs.cover import cover_of
from planner.outputs.options import ExportOptions
from planner.selectors.active_plans import active_plans
from planner.selectors.review import proposals_for
from planner.services import approval, proposals
from planner.services.active_plans import plan_activate
from planner.services.proposals import amend, approve, ask_for_changes, comment, propose, reject
from planner.services.runs import run_delete
from planner.services.scenarios import scenario_create, scenario_update
from tests.planner.plan_runs import planned_run
from tests.planner.web.study import DOCUMENT


@pytest.fixture
def run(planner) -> Run:
    return planned_run(planner)


@pytest.fixture
def proposal(run, planner) -> Proposal:
    return propose(by=planner, title="Fewer by night", run=run, options={"repeat": "daily"})


def kinds(proposal: Proposal) -> list[str]:
    return [entry.kind for entry in proposal.entries.all()]


def test_a_story_from_proposed_to_in_force(run, planner, approver, proposal):
    assert proposal.state == "open" and proposal.base is None and proposal.policy == "lt-i"
    assert proposal.usd_30d == pytest.approx(30 * 500)  # its window is a day of $500
    comment(proposal=proposal, by=planner, text="@anna, is 2 enough? (@nobody)", anchor={
        "chart": "replicas", "series": "Run 1", "time": "2024-05-18T04:00:00Z"})  # fmt: skip
    assert list(proposals_for(approver)) == [proposal]
    ask_for_changes(proposal=proposal, by=approver, text="Take 3 by night.")
    proposal.refresh_from_db()
    with pytest.raises(NotReady, match="only open proposals"):
        approve(proposal=proposal, by=approver)
    better = planned_run(planner, (3, 5))
    proposal = amend(proposal=proposal, by=planner, run=better, message="Three it is.")
    assert (proposal.state, proposal.revision) == ("open", 2)
    proposal = approve(proposal=proposal, by=approver, text="Good.")
    assert proposal.state == "approved" and proposal.decided_at
    held = active_plans().first()
    assert held is not None and (held.run, held.proposal, held.by) == (better, proposal, approver)
    assert held.pools[0]["steps"][0][2] == 3 and held.repeat == "daily"
    assert kinds(proposal) == ["opened", "comment", "changes", "amended", "approved", "in-force"]
    signed = [
        (sign_off.role, sign_off.name) for sign_off in cover_of(better, timezone.now()).sign_offs
    ]
    assert signed == [("Prepared by", "pia"), ("Approved by", "anna")]
    assert [sign_off.name for sign_off in cover_of(run, timezone.now()).sign_offs] == ["", "", ""]
    deeds = {*AuditRecord.objects.values_list("actor", "action")}
    assert deeds >= {("pia", "proposal.made"), ("anna", "proposal.approved"),
                    ("anna", "plan.in-force")}  # fmt: skip
    with pytest.raises(NotReady, match="is approved and cannot be amended"):
        amend(proposal=proposal, by=planner, run=run)
    for run_gone in (run, better):
        with pytest.raises(NotReady, match=f"proposal {proposal.pk} is about it"):
            run_delete(run=run_gone, user=planner)


def test_roles_and_authors(proposal, planner, colleague, viewer, approver, admin):
    for act in (approve, reject):
        with pytest.raises(NotAllowed, match="approver or an admin"):
            act(proposal=proposal, by=colleague)
    with pytest.raises(NotAllowed, match="only read"):
        comment(proposal=proposal, by=viewer, text="Hm")
    with pytest.raises(NotAllowed, match="Only the author of"):
        proposals.withdraw(proposal=proposal, by=colleague)
    proposal_own = propose(by=approver, title="Mine", run=planned_run(approver), message="for @ada")
    with pytest.raises(NotAllowed, match="Ask another approver"):
        approve(proposal=proposal_own, by=approver)
    amend(proposal=proposal, by=approver, run=planned_run(approver))
    with pytest.raises(NotAllowed, match="proposed or amended"):
        approve(proposal=proposal, by=approver)
    ReviewRules.objects.create(self_approval=True)
    assert approve(proposal=proposal_own, by=approver).state == "approved"
    with pytest.raises(PlannerError, match="carl may not approve"):
        proposals.request_review(proposal=proposal, by=planner, reviewers=[colleague])


def test_authors_review_their_own_only_if_the_rules_allow_it(proposal, planner, approver):
    own = propose(by=approver, title="Mine", run=planned_run(approver))
    for asked in (own, amend(proposal=proposal, by=approver, run=planned_run(approver))):
        with pytest.raises(PlannerError):
            proposals.request_review(proposal=asked, by=planner, reviewers=[approver])
        assert not asked.reviewers.exists()
    ReviewRules.objects.create(self_approval=True)
    proposals.request_review(proposal=own, by=planner, reviewers=[approver])
    assert list(own.reviewers.all()) == [approver]


def test_two_pairs_of_eyes_and_an_admin_above_a_cost(proposal, approver, admin):
    second = User.objects.create_user("otto", role=User.Role.APPROVER)
    ReviewRules.objects.create(approvals=2, admin_above_usd_30d=10_000)
    held = approve(proposal=proposal, by=approver)
    assert held.state == "open" and approval.missing_approvals(held) == "1 more approval"
    with pytest.raises(NotReady, match="already approved"):
        approve(proposal=proposal, by=approver)
    held = approve(proposal=proposal, by=second)
    assert (
        held.state == "open"
        and "$15,000 in 30 days, above $10,000" in approval.missing_approvals(held)
    )
    with pytest.raises(NotAllowed, match="A rule cannot approve this proposal: it costs"):
        approve(proposal=proposal, by=None, rule="weekly")
    assert approve(proposal=proposal, by=admin).state == "approved"


def test_an_amendment_ends_approvals(proposal, planner, approver):
    ReviewRules.objects.create(approvals=2)
    approve(proposal=proposal, by=approver)
    held = amend(proposal=proposal, by=planner, run=planned_run(planner))
    assert approval.missing_approvals(held) == "2 more approvals"


def test_a_rule_approves_and_says_so(run):
    proposal = propose(by=None, title="Week 21", run=run, rule="weekly plan")
    with pytest.raises(NotAllowed):
        approve(proposal=proposal, by=None)
    approve(proposal=proposal, by=None, rule="within 5% of what is in force")
    held = active_plans().first()
    assert held is not None and held.by is None and held.proposal == proposal
    actors = {*AuditRecord.objects.filter(action="plan.in-force").values_list("actor", flat=True)}
    assert actors == {"rule: within 5% of what is in force"}


def test_what_was_compared_is_what_is_replaced(proposal, planner, approver, run):
    other = propose(by=planner, title="Another", run=planned_run(planner, (1, 1)))
    first = approve(proposal=other, by=approver)
    with pytest.raises(NotReady, match="The active plan changed"):
        approve(proposal=proposal, by=approver)
    held = amend(proposal=proposal, by=planner, run=run)
    assert held.base == first.plans.get() and held.base_run == other.run
    assert approve(proposal=held, by=approver).state == "approved"


def test_only_proposals_take_effect_where_that_is_the_rule(run, admin, approver, proposal):
    ReviewRules.objects.create(required=True)
    with pytest.raises(NotAllowed, match="only through proposals"):
        plan_activate(run=run, options=ExportOptions(), user=admin, now=run.finished_at)
    assert approve(proposal=proposal, by=approver).state == "approved"


def test_what_cannot_take_effect_is_not_proposed(planner, viewer, run):
    with pytest.raises(NotAllowed, match="only read"):
        propose(by=viewer, title="A", run=run)
    with pytest.raises(PlannerError, match="1 to 160 characters"):
        propose(by=planner, title=" ", run=run)
    run.kind = Run.Kind.SIMULATE
    with pytest.raises(NotReady, match="is not a plan"):
        propose(by=planner, title="A", run=run)


def test_a_proposal_knows_the_version_that_was_planned(planner):
    scenario = scenario_create(owner=planner, document=DOCUMENT, message="First")
    run = planned_run(planner, scenario=scenario)
    scenario_update(scenario=scenario, user=planner, document=DOCUMENT + "# more\n")
    proposal = propose(by=planner, title="A", run=run, draft=True)
    assert proposal.version is not None and proposal.version.number == 1
    assert proposals.mark_ready(proposal=proposal, by=planner).state == "open"
