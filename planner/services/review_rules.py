"""Change the rules of review."""

from __future__ import annotations

from django.db import transaction

from planner.errors import PlannerError
from planner.models import ReviewRules, User
from planner.selectors.review import review_rules
from planner.services.access import check_may_administer
from planner.services.audit import record

MAX_APPROVALS = 9


@transaction.atomic
def rules_change(
    *,
    by: User | None,
    approvals: int,
    self_approval: bool,
    admin_above_usd_30d: float | None,
    required: bool,
) -> ReviewRules:
    """Set the rules of review, as an admin; earlier approvals stay valid."""
    check_may_administer(by)
    if not 1 <= approvals <= MAX_APPROVALS:
        raise PlannerError(f"approvals: {approvals} is not within 1 to {MAX_APPROVALS}.")
    if admin_above_usd_30d is not None and not 0 <= admin_above_usd_30d < 1e15:
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
