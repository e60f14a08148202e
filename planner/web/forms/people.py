"""Define the form of an invitation: the person and the role."""

from __future__ import annotations

from typing import Any

from django import forms
from django.db.models import QuerySet

from planner.models import User
from planner.web.forms.widgets import DressedForm, dress


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


class RemovalForm(forms.Form):
    to = forms.ModelChoiceField(
        queryset=User.objects.none(),
        label="New owner of their items",
        required=False,
        empty_label="nobody: they own nothing",
    )
    confirm = forms.CharField(
        label="Their user name, once more",
        max_length=150,
        widget=forms.TextInput(attrs={"autocomplete": "off", "autocapitalize": "none"}),
    )

    def __init__(self, *args: Any, heirs: QuerySet[User], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields["to"].queryset = heirs.filter(is_active=True)  # type: ignore[attr-defined]
        dress(self)
