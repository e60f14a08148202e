"""Define the form of a new API token."""

from __future__ import annotations

from django import forms

from planner.models import ApiToken
from planner.services.tokens import DEFAULT_DAYS, MAX_DAYS
from planner.web.forms.widgets import DressedForm


class TokenForm(DressedForm):
    name = forms.CharField(
        label="Name", max_length=60, help_text="What will use it, such as nightly-plan."
    )
    scope = forms.ChoiceField(label="For", choices=ApiToken.Scope.choices)
    days = forms.IntegerField(
        label="Works for, days", min_value=1, max_value=MAX_DAYS, initial=DEFAULT_DAYS
    )
