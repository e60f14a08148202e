"""Read and write holidays as text: "US, DE-BY, 2024-12-24"."""

from collections.abc import Sequence
from datetime import date
from typing import Any

from django import forms
from holidays.registry import COUNTRIES
from pydantic import TypeAdapter, ValidationError

from planner.inputs.scenario.holidays import GIVE, Holiday

MOST = 100  # as in the schema
_ONE: TypeAdapter[str] = TypeAdapter(Holiday)


class HolidaysField(forms.Field):
    """A field for countries and dates, checked by the rules of the scenario."""

    def __init__(self, *, label: str, required: bool) -> None:
        super().__init__(
            label=label,
            required=required,
            widget=forms.TextInput(attrs={"placeholder": "none"}),
            help_text="Countries, such as US or DE-BY, and dates, such as 2024-12-24, separated "
            "by commas. Holidays get a forecast pattern of their own.",
        )

    def to_python(self, value: Any) -> list[str] | None:
        """Return the checked items of a text, each once; None if it is empty."""
        parts = [part.strip() for part in str(value or "").replace("\n", ",").split(",")]
        holidays = list(dict.fromkeys(_check_item(part) for part in parts if part))
        if len(holidays) > MOST:
            raise forms.ValidationError(f"Give at most {MOST}. A country counts as one.")
        return holidays or None

    def prepare_value(self, value: Any) -> Any:
        return ", ".join(map(str, value)) if isinstance(value, list | tuple) else value


def _check_item(text: str) -> str:
    """Return one item with country codes in capitals; raise ValidationError if it is not known."""
    text = text if any(sign.isdigit() for sign in text) else text.upper()
    try:
        return _ONE.validate_python(text)
    except ValidationError:
        raise forms.ValidationError(f"{text!r} is not known. Give {GIVE}.") from None


def holidays_as_text(value: Any) -> list[str] | None:
    """Return a document's holidays with dates as text; None if they are not a list."""
    if not isinstance(value, Sequence) or isinstance(value, str):
        return None
    # A date that YAML has parsed as ISO text.
    return [day.isoformat() if isinstance(day, date) else str(day) for day in value]


def countries() -> list[tuple[str, str]]:
    """Return the country codes with their names, sorted by name."""
    return [
        (codes[1], name.replace("_", " ").title().replace(" And ", " and ").replace(" Of ", " of "))
        for name, codes in sorted(COUNTRIES.items())
    ]
