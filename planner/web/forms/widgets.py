"""Apply Tabler's classes to Django's widgets, in one place."""

from collections.abc import Iterable
from functools import cache
from typing import Any, TypeVar
from zoneinfo import available_timezones

from django import forms
from django.forms.utils import flatatt
from django.utils.html import escape, format_html
from django.utils.safestring import SafeString, mark_safe

AnyForm = TypeVar("AnyForm", bound=forms.BaseForm)


class LongSelect(forms.Select):
    """A select with hundreds of choices, rendered without a template per choice.

    Templates for each choice would take most of a page's time.
    """

    def render(
        self, name: str, value: Any, attrs: dict[str, Any] | None = None, renderer: Any = None
    ) -> SafeString:
        selected = {str(item) for item in self.format_value(value)}
        options = mark_safe("".join(_options(self.choices, selected)))  # noqa: S308 - escaped there
        named = {"name": name} if name else {}  # an element without a name is not sent
        attributes = flatatt(self.build_attrs(self.attrs, named | (attrs or {})))
        return format_html("<select{}>{}</select>", attributes, options)


def _options(choices: Iterable[Any], selected: set[str]) -> Iterable[str]:
    """Yield the HTML of choices and groups of choices."""
    for value, label in choices:
        if isinstance(label, list | tuple):
            yield f'<optgroup label="{escape(value)}">'
            yield from _options(label, selected)
            yield "</optgroup>"
        else:
            chosen = " selected" if str(value) in selected else ""
            yield f'<option value="{escape(value)}"{chosen}>{escape(label)}</option>'


class DressedForm(forms.Form):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        dress(self)


@cache
def zone_choices() -> list[tuple[str, str]]:
    """Return every time zone as a choice. They come from some hundred files."""
    return [(name, name) for name in sorted(available_timezones())]


class ZoneForm(DressedForm):
    """A form for the time zone of a person (empty: the workspace's) or of a workspace."""

    def __init__(self, zone: str, inherited: str = "") -> None:
        super().__init__(initial={"zone": zone})
        own = [("", f"As the workspace ({inherited})")] if inherited else []
        self.fields["zone"] = forms.ChoiceField(
            label="Time zone", required=False, choices=[*own, *zone_choices()], widget=LongSelect
        )
        dress(self)


def dress(form: AnyForm, small: bool = False) -> AnyForm:
    """Give every widget of ``form`` its CSS class, mark fields with errors, and return it."""
    for name, field in form.fields.items():
        widget = field.widget
        if isinstance(widget, forms.CheckboxInput | forms.CheckboxSelectMultiple):
            style = "form-check-input"
        elif isinstance(widget, forms.Select):
            style = "form-select form-select-sm" if small else "form-select"
        else:
            style = "form-control form-control-sm" if small else "form-control"
        if form.is_bound and form.errors.get(name):
            style += " is-invalid"
        widget.attrs["class"] = style
    return form
