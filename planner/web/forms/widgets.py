"""Apply Tabler's classes to Django's widgets, in one place."""

import html
from collections.abc import Iterable
from functools import cache
from typing import Any, TypeVar
from zoneinfo import available_timezones

from django import forms
from django.forms.renderers import DjangoTemplates
from django.utils.html import format_html
from django.utils.safestring import SafeString, mark_safe

AnyForm = TypeVar("AnyForm", bound=forms.BaseForm)
Attributes = dict[str, Any]  # of an HTML element; or the context of a widget's template


INPUTS = frozenset(
    widget.template_name
    for widget in (
        forms.TextInput, forms.NumberInput, forms.EmailInput, forms.URLInput, forms.PasswordInput,
        forms.HiddenInput, forms.DateInput, forms.DateTimeInput, forms.TimeInput,
        forms.CheckboxInput,
    )
)  # fmt: skip
BOXES = frozenset(
    widget.option_template_name for widget in (forms.CheckboxSelectMultiple, forms.RadioSelect)
)


class FormRenderer(DjangoTemplates):
    """Render inputs and selects without templates.

    Django renders two templates per input and per choice. They would take most of the time of a
    page with hundreds of fields.
    """

    def render(self, template_name: str, context: Attributes, request: Any = None) -> str:
        """Write selects and inputs directly, which is faster, and all others by their template."""
        widget = context.get("widget", {})
        if template_name == forms.Select.template_name:
            return _select(widget)
        if template_name in INPUTS or (template_name in BOXES and not widget["wrap_label"]):
            named = {"type": widget["type"], "name": widget["name"], "value": widget["value"]}
            return format_html("<input{}>", _attributes(named | widget["attrs"]))
        return super().render(template_name, context, request)


def _select(widget: Attributes) -> SafeString:
    """Return the HTML of a select, from what Django gives its template as ``widget``."""
    groups = []
    for group, options, _ in widget["optgroups"]:
        options_html = ""
        for option in options:
            attributes = _attributes({"value": option["value"]} | option["attrs"])
            options_html += f"<option{attributes}>{_escape_text(option['label'])}</option>"
        if group:
            options_html = f'<optgroup label="{_escape_text(group)}">{options_html}</optgroup>'
        groups.append(options_html)
    attributes = _attributes({"name": widget["name"]} | widget["attrs"])
    return format_html("<select{}>{}</select>", attributes, SafeString("".join(groups)))


def _attributes(values: Attributes) -> SafeString:
    """Return HTML attributes: only the name if a value is True, nothing if it is False or None."""
    parts = []
    for name, value in values.items():
        if value is True:
            parts.append(f" {name}")
        elif value is not None and value is not False:
            parts.append(f' {name}="{_escape_text(value)}"')
    return SafeString("".join(parts))


def _escape_text(value: Any) -> str:
    """Return a text for HTML. Django's ``escape`` also takes lazy texts, which costs more."""
    return value if isinstance(value, SafeString) else html.escape(str(value))


class LongSelect(forms.Select):
    """A select with hundreds of choices, rendered without a template per choice.

    Templates for each choice would take most of a page's time.
    """

    def render(
        self, name: str, value: Any, attrs: Attributes | None = None, renderer: Any = None
    ) -> SafeString:
        """Return the HTML of the select with its options."""
        selected = {str(item) for item in self.format_value(value)}
        options = mark_safe("".join(_options(self.choices, selected)))  # noqa: S308 - escaped there
        named = {"name": name} if name else {}  # an element without a name is not sent
        attributes = _attributes(named | self.build_attrs(self.attrs, attrs))
        return format_html("<select{}>{}</select>", attributes, options)


def _options(choices: Iterable[Any], selected: set[str]) -> Iterable[str]:
    """Yield the HTML of ``choices``; a choice with a list of choices is a group."""
    for value, label in choices:
        if isinstance(label, list | tuple):
            yield f'<optgroup label="{_escape_text(value)}">'
            yield from _options(label, selected)
            yield "</optgroup>"
        else:
            chosen = " selected" if str(value) in selected else ""
            yield f'<option value="{_escape_text(value)}"{chosen}>{_escape_text(label)}</option>'


class DressedForm(forms.Form):
    """A form with the CSS classes of ``dress``."""

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
        """Select ``zone``; ``inherited`` is the workspace's zone, of a person's form only."""
        super().__init__(initial={"zone": zone})
        own = [("", f"As the workspace ({inherited})")] if inherited else []
        self.fields["zone"] = forms.ChoiceField(
            label="Time zone", required=False, choices=[*own, *zone_choices()], widget=LongSelect
        )
        dress(self)


def dress(form: AnyForm, small: bool = False) -> AnyForm:
    """Give every widget of ``form`` its CSS class, mark fields with errors, and return it.

    ``small`` widgets fit into a table.
    """
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
