"""Define the form for a code of a second factor."""

from __future__ import annotations

from django import forms

from planner.web.forms.widgets import DressedForm


class CodeForm(DressedForm):
    code = forms.CharField(
        label="Code",
        max_length=64,
        widget=forms.TextInput(
            attrs={"autocomplete": "one-time-code", "inputmode": "text", "autocapitalize": "none"}
        ),
    )
