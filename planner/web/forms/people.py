"""Whom to invite, as what."""

from __future__ import annotations

from django import forms

from planner.models import User
from planner.web.forms.widgets import DressedForm


class InviteForm(DressedForm):
    name = forms.CharField(
        label="User name",
        max_length=150,
        widget=forms.TextInput(attrs={"autocomplete": "off", "autocapitalize": "none"}),
    )
    role = forms.ChoiceField(
        label="Role", choices=User.Role.choices, initial=User.Role.VIEWER.value
    )

    existing = forms.BooleanField(
        label="Has an account already",
        required=False,
        help_text="In another workspace of this installation; no password is chosen then.",
    )

    def chosen(self) -> dict[str, str]:
        return {"name": self.cleaned_data["name"], "role": self.cleaned_data["role"]}
