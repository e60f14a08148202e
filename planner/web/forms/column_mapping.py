"""Choose the columns of a refused file, with a choice above each column of its first rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django import forms
from django.forms import BoundField

from planner.inputs.ingest import IngestOptions, Preview
from planner.inputs.ingest.clock import UNITS_NS
from planner.inputs.ingest.formats import ARRIVALS
from planner.inputs.ingest.options import AUTO
from planner.web.forms.widgets import dress

MAX_COLUMNS = 60
FIELDS = (
    ("", "not used"),
    (
        "One row per request",
        (
            ("arrival", "Arrival time"),
            ("input_tokens", "Input tokens"),
            ("output_tokens", "Output tokens"),
            ("utility", "Utility of the request"),
        ),
    ),
    (
        "Counts per bin",
        (
            ("time", "Begin of the bin"),
            ("requests", "Requests in the bin"),
            ("rate", "Requests per second"),
            ("total_tokens", "Tokens, input and output"),
            ("series", "Name of the series"),
        ),
    ),
    ("Either", (("model", "Model"), ("region", "Region"), ("tier", "Tier"))),
)
JOINED = {"arrival": "+", "time": "+", "requests": ","}  # fields that may use several columns
UNITS = (("", "as it looks"), *((unit, unit) for unit in UNITS_NS))


class MappingForm(forms.Form):
    """The column choices; bound data becomes the options for reading the stored file again."""

    unit = forms.ChoiceField(choices=UNITS, required=False, label="Unit of times that are numbers")

    no_answers = forms.BooleanField(
        required=False, label="It has no lengths of answers: count its requests by 10 s"
    )

    def __init__(self, preview: Preview, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.preview = preview
        self.shown = preview.columns[:MAX_COLUMNS]
        for place, column in enumerate(self.shown):
            self.fields[f"column_{place}"] = forms.ChoiceField(
                choices=FIELDS,
                required=False,
                label=f"What {column} is",
                initial=preview.guess.get(column, ""),
            )
        dress(self)
        for place in range(len(self.shown)):
            self.fields[f"column_{place}"].widget.attrs["class"] += " column-choice"

    def heads(self) -> Iterator[tuple[str, BoundField]]:
        """Yield every column with its choice."""
        for place, column in enumerate(self.shown):
            yield column, self[f"column_{place}"]

    @property
    def rows(self) -> list[tuple[str, ...]]:
        return [row[:MAX_COLUMNS] for row in self.preview.rows]

    @property
    def left_out(self) -> int:
        return len(self.preview.columns) - len(self.shown)

    def clean(self) -> dict[str, Any]:
        chosen: dict[str, list[str]] = {}
        for place, column in enumerate(self.shown):
            if field := self.cleaned_data.get(f"column_{place}"):
                chosen.setdefault(field, []).append(column)
        if not chosen:
            raise forms.ValidationError("Choose the meaning of at least one column.")
        for field, columns in chosen.items():
            if len(columns) > 1 and field not in JOINED:
                raise forms.ValidationError(
                    f"{' and '.join(columns)} are both said to be {field.replace('_', ' ')}. "
                    "Keep one."
                )
        mapping = {field: JOINED.get(field, "").join(columns) for field, columns in chosen.items()}
        for field in ("arrival", "time"):
            if field in mapping and self.cleaned_data.get("unit"):
                mapping[field] += f":{self.cleaned_data['unit']}"
        self.cleaned_data["mapping"] = mapping
        return self.cleaned_data

    def options(self, file_name: str) -> IngestOptions:
        counted = ARRIVALS.name if self.cleaned_data["no_answers"] else AUTO
        return IngestOptions(name=file_name, format=counted, mapping=self.cleaned_data["mapping"])
