"""What tables have in common, so that no template writes it out again."""

from __future__ import annotations

from django import template
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

register = template.Library()


@register.simple_tag
def heads(*labels: str) -> SafeString:
    """Heads of columns. ``num:Cost`` stands over figures, ``hidden:What to do`` is only spoken."""
    return format_html_join("", "{}", ((_head(label),) for label in labels))


def _head(label: str) -> SafeString:
    kind, colon, text = label.partition(":")
    if colon and kind == "num":
        return format_html('<th scope="col" class="num">{}</th>', text)
    if colon and kind == "hidden":
        return format_html('<th scope="col"><span class="visually-hidden">{}</span></th>', text)
    return format_html('<th scope="col">{}</th>', label)
