"""How people find things: by name, by id, by words."""

from __future__ import annotations

from typing import TypeVar

from django.db.models import Model, QuerySet

from planner.errors import NotFound

Row = TypeVar("Row", bound=Model)


def row_named(
    rows: QuerySet[Row], what: str, name: str, offered: QuerySet[Row] | None = None
) -> Row:
    """By name or, for scripts, by id; raises NotFound listing what there is, or is ``offered``."""
    name = name.replace("\0", "?")  # which PostgreSQL would not even look for
    row = rows.filter(name=name).first()
    if row is None and name.isdecimal():
        row = rows.filter(pk=int(name)).first()
    if row is None:
        offered = rows if offered is None else offered
        have = ", ".join(offered.values_list("name", flat=True)[:10]) or "none yet"
        raise NotFound(f"There is no {what} {name!r}; there are: {have}.")
    return row


def matches(search: str, *texts: str) -> bool:
    """Whether every word of ``search`` is part of one of ``texts``."""
    return all(any(word in text.casefold() for text in texts) for word in search.casefold().split())
