"""Tabler's classes on Django's widgets, in one place."""

from __future__ import annotations

from typing import TypeVar

from django import forms

AnyForm = TypeVar("AnyForm", bound=forms.BaseForm)


def dress(form: AnyForm, small: bool = False) -> AnyForm:
    """Give every widget of ``form`` its class, and mark fields that have errors."""
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
