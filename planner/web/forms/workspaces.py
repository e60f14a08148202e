"""What a new workspace is called."""

from __future__ import annotations

from typing import Any

from django import forms

from planner.web.forms.widgets import dress


class WorkspaceForm(forms.Form):
    name = forms.CharField(label="Name", max_length=80)
    slug = forms.CharField(
        label="Slug",
        max_length=40,
        required=False,
        help_text="For addresses, headers and commands; left out, made of the name. It stays.",
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        dress(self)
