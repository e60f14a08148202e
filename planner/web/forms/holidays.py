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
    """Return a date as it is, or a country code in capitals; raise ValidationError for others."""
    is_date = any(sign.isdigit() for sign in text)
    text = text if is_date else text.upper()
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
    choices = []
    # The registry has (name of the class, code of two letters, ...) by name of the country.
    for name, (_, code, *_) in sorted(COUNTRIES.items()):
        title = name.replace("_", " ").title()
        choices.append((code, title.replace(" And ", " and ").replace(" Of ", " of ")))
    return choices
