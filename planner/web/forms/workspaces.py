"""Define the form of a new workspace."""

from __future__ import annotations

from django import forms

from planner.web.forms.widgets import DressedForm


class WorkspaceForm(DressedForm):
    name = forms.CharField(label="Name", max_length=80)
    slug = forms.CharField(
        label="Slug",
        max_length=40,
        required=False,
        help_text="For addresses, headers and commands. Default: from the name. It stays.",
    )
