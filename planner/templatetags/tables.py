"""Provide the common parts of tables, so that no template repeats them."""

from __future__ import annotations

from django import template
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

register = template.Library()


@register.simple_tag
def heads(*labels: str) -> SafeString:
    """Return the column headings.

    ``num:Cost`` is a heading of numbers. ``hidden:What to do`` is for screen readers only.
    """
    return format_html_join("", "{}", ((_head(label),) for label in labels))


def _head(label: str) -> SafeString:
    kind, colon, text = label.partition(":")
    if colon and kind == "num":
        return format_html('<th scope="col" class="num">{}</th>', text)
    if colon and kind == "hidden":
        return format_html('<th scope="col"><span class="visually-hidden">{}</span></th>', text)
    return format_html('<th scope="col">{}</th>', label)
