"""How people find things: by name, by id, by words."""

from __future__ import annotations

from typing import TypeVar

from django.db.models import Model, QuerySet

from planner.errors import NotFound

MOST_DIGITS = 18  # of an id: what databases keep has 64 bits
Row = TypeVar("Row", bound=Model)


def row_named(
    rows: QuerySet[Row], what: str, name: str, offered: QuerySet[Row] | None = None
) -> Row:
    """By name or, for scripts, by id; raises NotFound listing what there is, or is ``offered``."""
    name = name.replace("\0", "?")  # which PostgreSQL would not even look for
    row = rows.filter(name=name).first()
    if row is None and (pk := id_of(name)) is not None:
        row = rows.filter(pk=pk).first()
    if row is None:
        offered = rows if offered is None else offered
        have = ", ".join(offered.values_list("name", flat=True)[:10]) or "none yet"
        raise NotFound(f"There is no {what} {name[:120]!r}; there are: {have}.")
    return row


def row_numbered(rows: QuerySet[Row], what: str, number: int, more: str = "") -> Row:
    """Raises NotFound, ``more`` saying what else there is to say."""
    row = rows.filter(pk=number).first()
    if row is None:
        raise NotFound(f"There is no {what} {number}{more}.")
    return row


def id_of(text: str) -> int | None:
    """The id of a row or the number of a version; None where it cannot be one."""
    return int(text) if text.isdecimal() and len(text) <= MOST_DIGITS else None


def version_of(text: str) -> int | None:
    """The version that a form was made from; None where it does not say. One that cannot be is
    none that anything is at."""
    return id_of(text) or 0 if text.isdecimal() else None


def matches(search: str, *texts: str) -> bool:
    """Whether every word of ``search`` is part of one of ``texts``."""
    return all(any(word in text.casefold() for text in texts) for word in search.casefold().split())
