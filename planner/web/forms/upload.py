"""The upload of a trace: the file and how to read it."""

from __future__ import annotations

from typing import Any

from django import forms

from planner.ingest import IngestOptions
from planner.web.forms.widgets import dress

FORMATS = [
    ("auto", "Find out from the file"),
    ("azure", "Azure LLM trace (CSV)"),
    ("burstgpt", "BurstGPT (CSV)"),
    ("mooncake", "Mooncake (JSONL)"),
    ("csv", "Other CSV or Parquet, one row per request"),
    ("demand", "Demand: counts per bin (CSV or Parquet)"),
]


class UploadForm(forms.Form):
    """Bound data becomes IngestOptions; the file itself is streamed on by the view."""

    file = forms.FileField(
        label="File", error_messages={"empty": "The file is empty; export it again."}
    )
    format = forms.ChoiceField(choices=FORMATS, required=False, label="Format")
    model = forms.CharField(max_length=80, required=False, label="Model of every row")
    region = forms.CharField(max_length=80, required=False, label="Region of every row")
    tier = forms.CharField(max_length=80, required=False, label="Tier of every row")
    missing = forms.ChoiceField(
        choices=[("gap", "a gap: not known"), ("zero", "zero: nothing arrived")],
        required=False,
        label="Bins a demand file leaves out are",
    )
    strict = forms.BooleanField(
        required=False, label="Strict: refuse the file at its first bad row instead of counting it"
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
        "output_tokens, model, region, tier. Demand: time, requests, rate, series, "
        "input_tokens, output_tokens.",
    )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        dress(self)

    def clean_mapping(self) -> dict[str, str]:
        pairs: dict[str, str] = {}
        for number, line in enumerate(self.cleaned_data["mapping"].splitlines(), 1):
            if not line.strip():
                continue
            name, equals, column = (part.strip() for part in line.partition("="))
            if not (name and equals and column):
                raise forms.ValidationError(
                    f"Line {number}: write field=column, for example arrival=created."
                )
            pairs[name] = column
        return pairs

    def options(self) -> IngestOptions:
        """What the form says about the file; raises IngestError where it contradicts itself."""
        said = self.cleaned_data
        return IngestOptions(
            name=said["file"].name,
            format=said["format"] or "auto",
            mapping=said["mapping"],
            model=said["model"] or None,
            region=said["region"] or None,
            tier=said["tier"] or None,
            missing=said["missing"] or "gap",
            strict=said["strict"],
        )
