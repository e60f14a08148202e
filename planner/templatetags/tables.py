"""Provide the parts that the tables of all pages share."""

from django import template
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

register = template.Library()


@register.simple_tag
def heads(*labels: str) -> SafeString:
    """Return the cells of the column headings.

    ``num:Cost, $`` is a heading of numbers with their unit. ``hidden:Action`` is for screen readers
    only. An empty label has no column.
    """
    cells = [(_head(label),) for label in labels if label]
    return format_html_join("", "{}", cells)


def _head(label: str) -> SafeString:
    """Return the cell of a column heading; ``label`` is one of ``heads``."""
    if label.startswith("num:"):
        name, _, unit = label.removeprefix("num:").partition(", ")
        unit_span = format_html(' <span class="unit">{}</span>', unit) if unit else ""
        return format_html('<th scope="col" class="num">{}{}</th>', name, unit_span)
    if label.startswith("hidden:"):
        text = label.removeprefix("hidden:")
        return format_html('<th scope="col"><span class="visually-hidden">{}</span></th>', text)
    return format_html('<th scope="col">{}</th>', label)


@register.simple_block_tag
def table(content: str, label: str, *labels: str, look: str = "", id: str = "") -> SafeString:
    """Return a list as a table that scrolls on its own; the block holds its rows.

    ``label`` names it for screen readers, ``labels`` are its column headings as in ``heads``, and
    ``look`` are further classes, such as ``table-mobile-md`` for rows that stack on a phone.
    """
    id_attribute = format_html(' id="{}"', id) if id else ""
    return format_html(
        '<div class="table-responsive" tabindex="0" role="region" aria-label="{}">'
        '<table class="table table-vcenter card-table {}"{}>'
        "<thead><tr>{}</tr></thead><tbody>{}</tbody></table></div>",
        label,
        look,
        id_attribute,
        heads(*labels),
        content,
    )


@register.simple_block_tag
def datum(content: str, title: str) -> SafeString:
    """Return an item of a grid of data: the title, and below it the content of the block."""
    return format_html(
        '<div class="datagrid-item"><div class="datagrid-title">{}</div>'
        '<div class="datagrid-content wrap text-break">{}</div></div>',
        title,
        content,
    )
