"""A duration is written with a unit, and comes back as the same seconds."""

import pytest
from django import forms

from planner.web.forms.fields import DurationField


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("2", 7200), ("0.5", 1800), ("20 min", 1200), ("1 d 4 h", 100_800), ("90s", 90), ("", None)],
)
def test_hours_are_the_unit_unless_another_is_named(text: str, seconds: float | None) -> None:
    assert DurationField(required=False).clean(text) == seconds


@pytest.mark.parametrize("seconds", [1, 90, 1200, 7200, 86_400, 90_061, 604_800, 0.5])
def test_a_shown_duration_is_read_as_the_same_seconds(seconds: float) -> None:
    field = DurationField()
    assert field.clean(field.prepare_value(seconds)) == seconds


@pytest.mark.parametrize("text", ["soon", "-2", "2 weeks", "1 minute", "nan", "1e3"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(forms.ValidationError):
        DurationField().clean(text)
