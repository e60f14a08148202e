"""Define the form that imports the current deployment into a scenario."""

from __future__ import annotations

from typing import Any

from django import forms

from planner.inputs.fleet.reading import MAX_CHARACTERS
from planner.web.forms.widgets import DressedForm

MAX_BYTES = 4 * MAX_CHARACTERS  # a UTF-8 character has at most four bytes


def _optional(label: str, names: str = "") -> forms.CharField:
    widget = forms.TextInput(attrs={"list": names} if names else {})
    return forms.CharField(label=label, max_length=200, required=False, widget=widget)


class FleetForm(DressedForm):
    """A file or pasted text, and the facts that it does not state."""

    file = forms.FileField(
        label="File",
        required=False,
        help_text="YAML of Kubernetes or Helm values.",
    )
    text = forms.CharField(
        label="Or paste",
        required=False,
        max_length=MAX_CHARACTERS,
        widget=forms.Textarea(attrs={"rows": 10, "class": "yaml", "spellcheck": "false"}),
        help_text="YAML, or a launch line such as <code>vllm serve MODEL -tp 4</code>.",
    )
    model = _optional("Model", "model-names")
    gpu = _optional("GPU or cloud instance", "gpu-names")
    tp = forms.IntegerField(label="GPUs per replica", required=False, min_value=1, max_value=1024)
    region = _optional("Region")
    replicas = forms.IntegerField(
        label="Replicas", required=False, min_value=0, max_value=1_000_000
    )

    def clean(self) -> dict[str, Any]:
        values = super().clean() or {}
        if not values.get("file") and not values.get("text", "").strip():
            raise forms.ValidationError("Choose a file or paste a text.")
        if values.get("file") and values["file"].size > MAX_BYTES:
            self.add_error("file", "The file is too large. Split it by deployment.")
        return values

    def described(self) -> tuple[str, str]:
        """Return the text and its name; raise ValidationError if the file is not text."""
        file = self.cleaned_data["file"]
        if not file:
            return self.cleaned_data["text"], "the pasted text"
        return file.read().decode("utf-8-sig", errors="replace"), file.name
