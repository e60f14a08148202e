"""Apply the rules of review: who may approve a proposal, and which approvals are missing."""

from datetime import datetime, timedelta

from django.db import transaction
from django.utils import timezone

from planner.domain.options import options_of
from planner.domain.reports.change import Check, Simulated, checks
from planner.domain.results.stored import StoredPolicy, StoredResult
from planner.errors import NotAllowed, NotReady, PlannerError
from planner.models import Proposal, ReviewRules, Run, User
from planner.outputs.options import ExportOptions
from planner.selectors.review import approvals_of, authors_of, review_rules
from planner.selectors.runs import stored_result
from planner.services.access import check_may_administer, check_may_approve
from planner.services.active_plans import activatable_plan, plans_replaced_by
from planner.services.audit import record
from planner.services.plan_outcomes import end_of_traffic

MAX_APPROVALS = 9
MONTH_S = 30 * 86_400.0
MAX_USD = 1e15  # above any cost


def missing_approvals(proposal: Proposal) -> str:
    """Return in words which approvals a proposal needs before it becomes active; "" if none."""
    approvals = approvals_of(proposal)
    still_needed = review_rules().approvals - len(approvals)
    if still_needed > 0:
        return f"{still_needed} more {'approval' if still_needed == 1 else 'approvals'}"
    reason = why_admin_needed(proposal)
    if reason and not any(approval.by and approval.by.may_administer for approval in approvals):
        return f"the approval of an admin: {reason}"
    return ""


def why_admin_needed(proposal: Proposal) -> str:
    """Return why one of the approvers must be an admin; "" if that is not required."""
    limit_usd = review_rules().admin_above_usd_30d
    if limit_usd is None or (proposal.usd_30d is not None and proposal.usd_30d <= limit_usd):
        return ""
    # An unknown cost counts as above the limit.
    if proposal.usd_30d is None:
        return "its cost is not known"
    return f"it costs ${proposal.usd_30d:,.0f} in 30 days, above ${limit_usd:,.0f}"


def why_not_approvable(proposal: Proposal, by: User) -> str:
    """Return why ``by`` cannot approve the proposal, for pages; "" if ``by`` can."""
    try:
        check_may_approve(by)
        if proposal.state != Proposal.State.OPEN:
            return f"It is {state_label(proposal)}."
        check_up_to_date(proposal)
        check_may_approve_proposal(proposal, by)
    except PlannerError as problem:
        return str(problem)
    return ""


def why_outdated(proposal: Proposal) -> str:
    """Return why a proposal must be amended before approval; "" if it need not."""
    try:
        check_up_to_date(proposal)
    except PlannerError as problem:
        return str(problem)
    return ""


def cost_usd_30d(run: Run, policy: str) -> float | None:
    """Return the cost (USD) of a policy in a run, scaled from the run's window to 30 days.

    None if its result has no cost or no window.
    """
    result = stored_result(run)
    figures = result.policies.get(policy, StoredPolicy())
    recommended = result.recommended
    # The simulated cost if there is one. Results of old versions have the cost of the recommended
    # policy, and results without a simulation that of the plan.
    cost = figures.cost_usd
    if cost is not None:  # starts before the window and work after it happen once
        cost -= (figures.before_cost_usd or 0.0) + (figures.after_cost_usd or 0.0)
    if cost is None and recommended is not None and recommended.policy == policy:
        cost = recommended.cost_usd
    if cost is None and result.plan and result.plan.totals:
        cost = result.plan.totals.usd
    if cost is None or result.window is None:
        return None
    return cost * MONTH_S / (result.window.end - result.window.start).total_seconds()


def check_up_to_date(proposal: Proposal) -> None:
    """Raise NotReady unless the proposal was compared with the plan that it would replace.

    Also raises NotReady if the active plan of another scenario shares some of its deployments.
    """
    run, current = proposal.run, None
    if run is not None:
        options = options_of(ExportOptions, dict(proposal.options))
        plan = activatable_plan(run, options, timezone.now())
        current = next(iter(plans_replaced_by(plan, run)), None)
    if proposal.base_id != (current.pk if current else None):
        raise NotReady(
            "The active plan changed after this proposal was compared with it. Amend the proposal "
            "to compare it again. The run may stay the same."
        )


def barred_authors(proposal: Proposal) -> set[int]:
    """Return the keys of the users who may not approve, since they wrote the proposal."""
    return set() if review_rules().self_approval else set(authors_of(proposal))


def approvers_of(proposal: Proposal) -> list[User]:
    """Return the users who may still approve the proposal, sorted by name."""
    excluded = barred_authors(proposal) | {approval.by_id for approval in approvals_of(proposal)}
    people = User.objects.filter(is_active=True).order_by("username")
    return [person for person in people if person.may_approve and person.pk not in excluded]


def people_to_ask(proposal: Proposal) -> list[User]:
    """Return the users who may approve the proposal and are no reviewers yet, sorted by name."""
    reviewers = {reviewer.pk for reviewer in proposal.reviewers.all()}
    return [person for person in approvers_of(proposal) if person.pk not in reviewers]


def waiting_for(proposal: Proposal) -> str:
    """Return who may still approve, in words such as "waits for anna, ben"."""
    names = ", ".join(person.username for person in approvers_of(proposal))
    return f"waits for {names or 'an approver, but nobody else may approve'}"


def check_may_approve_proposal(proposal: Proposal, by: User) -> None:
    """Raise NotAllowed if ``by`` wrote the proposal, and NotReady if ``by`` has approved it."""
    if by.pk in barred_authors(proposal):
        raise NotAllowed("You proposed or amended this. Ask another approver.")
    if any(approval.by_id == by.pk for approval in approvals_of(proposal)):
        raise NotReady(
            f"You already approved this proposal. It needs {missing_approvals(proposal)}."
        )


def state_label(proposal: Proposal) -> str:
    """Return the state of a proposal in words."""
    return proposal.get_state_display().lower()


@transaction.atomic
def rules_change(
    *,
    by: User | None,
    approvals: int,
    self_approval: bool,
    admin_above_usd_30d: float | None,
    required: bool,
) -> ReviewRules:
    """Set the review rules, as an admin; existing approvals stay valid.

    A plan needs ``approvals`` approvals. With ``self_approval``, an author may approve. If a plan
    costs more than ``admin_above_usd_30d`` (USD in 30 days; None: no limit), one of the approvers
    must be an admin. If ``required``, plans become active only through proposals.
    """
    check_may_administer(by)
    if not 1 <= approvals <= MAX_APPROVALS:
        raise PlannerError(f"approvals: {approvals} is not within 1 to {MAX_APPROVALS}.")
    if admin_above_usd_30d is not None and not 0 <= admin_above_usd_30d < MAX_USD:
        raise PlannerError("admin_above_usd_30d: give dollars in 30 days, 0 or more, or nothing.")
    rules = review_rules()
    rules.approvals, rules.self_approval = approvals, self_approval
    rules.admin_above_usd_30d, rules.required, rules.by = admin_above_usd_30d, required, by
    rules.save()
    record(
        "review-rules.changed", rules, by=by, approvals=approvals, self_approval=self_approval,
        admin_above_usd_30d=admin_above_usd_30d, required=required,
    )  # fmt: skip
    return rules


def checks_of(
    proposal: Proposal, result: StoredResult, after: Simulated | None, now: datetime
) -> list[Check]:
    """Return the checks of a proposal for its reviewers.

    ``after`` is the simulated proposal, from the run result ``result``.
    """
    return list(
        checks(
            after,
            usd_30d=proposal.usd_30d,
            budget_usd_30d=review_rules().admin_above_usd_30d,
            data_age=data_age(proposal.run, result, now) if proposal.run else None,
        )
    )


def data_age(run: Run, result: StoredResult, now: datetime) -> timedelta | None:
    """Return the age of the newest traffic that a run planned on; None for a trace without dates.

    That traffic ends where the planned window starts, or before it with the trace.
    """
    if result.clock != "utc" or result.window is None:
        return None
    start = result.window.start
    return now - min(start, end_of_traffic(run) or start)
