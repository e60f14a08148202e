"""Define the form of the rules for approval."""

from __future__ import annotations

from django import forms

from planner.services.review_rules import MAX_APPROVALS
from planner.web.forms.widgets import DressedForm


class RulesForm(DressedForm):
    approvals = forms.IntegerField(
        label="Approvals",
        min_value=1,
        max_value=MAX_APPROVALS,
        help_text="Number of approvals before a plan is active.",
    )
    self_approval = forms.BooleanField(
        label="Authors may approve too",
        required=False,
        help_text="Left out, nobody approves what they proposed or amended.",
    )
    admin_above_usd_30d = forms.FloatField(
        label="An admin above, $ in 30 days",
        required=False,
        min_value=0,
        help_text="Above it one of those who approve is an admin; left out, none has to be.",
    )
    required = forms.BooleanField(
        label="Plans take effect by proposals alone",
        required=False,
        help_text="Left out, an approver may also put a run in force directly.",
    )
