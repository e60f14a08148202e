"""A code of a second factor."""

from __future__ import annotations

from typing import Any

from django import forms

from planner.web.forms.widgets import dress


class CodeForm(forms.Form):
    code = forms.CharField(
        label="Code",
        max_length=64,
        widget=forms.TextInput(
            attrs={"autocomplete": "one-time-code", "inputmode": "text", "autocapitalize": "none"}
        ),
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        dress(self)
