"""Define the upload form of a trace: the file and how to read it."""

from __future__ import annotations

from typing import Any

from django import forms

from planner.errors import IngestError
from planner.inputs.ingest import IngestOptions
from planner.inputs.ingest.formats import OFFERED
from planner.inputs.ingest.options import OptionLabel, column_mapping
from planner.web.forms.widgets import dress


class UploadForm(forms.Form):
    """The upload; bound data becomes IngestOptions, while the view streams the file."""

    file = forms.FileField(
        label="File", error_messages={"empty": "The file is empty. Export it again."}
    )
    mapping = forms.CharField(
        required=False,
        label="Columns",
        widget=forms.Textarea(
            attrs={
                "rows": 4,
                "spellcheck": "false",
                "placeholder": "arrival=created:ms\ninput_tokens=prompt_len",
            }
        ),
        help_text="One <code>field=column</code> a line. Requests: arrival, input_tokens, "
        "output_tokens, cached_tokens, model, region, tier. Tokens may be sums: a+b. "
        "Demand: time, requests, rate, series, "
        "input_tokens, output_tokens.",
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.fields |= {name: _field(option) for name, option in OFFERED.items()}
        dress(self)

    def clean_mapping(self) -> dict[str, str]:
        lines = self.cleaned_data["mapping"].splitlines()
        try:
            return column_mapping((line for line in lines if line.strip()), "Line ")
        except IngestError as problem:
            raise forms.ValidationError(str(problem)) from None

    def options(self) -> IngestOptions:
        """Return the options for reading the file; raise IngestError on contradictions."""
        chosen = self.cleaned_data
        return IngestOptions.of(chosen["file"].name, chosen, chosen["mapping"])


def _field(option: OptionLabel) -> forms.Field:
    if option.switch:
        return forms.BooleanField(required=False, label=option.label)
    if option.choices:
        choices = list(option.choices.items())
        return forms.ChoiceField(choices=choices, required=False, label=option.label)
    return forms.CharField(max_length=option.longest, required=False, label=option.label)
