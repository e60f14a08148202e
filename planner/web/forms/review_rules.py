"""Define the form of the rules for approval."""

from django import forms

from planner.services.approval import MAX_APPROVALS
from planner.web.forms.widgets import DressedForm


class RulesForm(DressedForm):
    approvals = forms.IntegerField(
        label="Approvals",
        min_value=1,
        max_value=MAX_APPROVALS,
        help_text="Approvals required for activation.",
    )
    self_approval = forms.BooleanField(
        label="Authors may approve too",
        required=False,
        help_text="Default: authors do not approve their proposals.",
    )
    admin_above_usd_30d = forms.FloatField(
        label="Budget, $ in 30 days",
        required=False,
        min_value=0,
        help_text="Above it, an admin must approve. Empty: no budget.",
    )
    required = forms.BooleanField(
        label="Require a proposal for every plan",
        required=False,
        help_text="Default: an approver may also activate a run directly.",
    )
