"""Find rows by name, id or words."""

from typing import TypeVar

from django.db.models import Model, QuerySet

from planner.errors import NotFound

MAX_DIGITS = 18  # digits of an id, which has 64 bits in a database
Row = TypeVar("Row", bound=Model)


def row_by_name(
    rows: QuerySet[Row], noun: str, name: str, offered: QuerySet[Row] | None = None
) -> Row:
    """Return a row by its name or, for scripts, by its id.

    Raises NotFound that lists the names in ``offered`` (default: all rows).
    """
    name = name.replace("\0", "?")  # PostgreSQL refuses to search for NUL
    row = rows.filter(name=name).first()
    pk = id_of(name)
    if row is None and pk is not None:
        row = rows.filter(pk=pk).first()
    if row is None:
        offered = rows if offered is None else offered
        names = ", ".join(offered.values_list("name", flat=True)[:10]) or "none yet"
        raise NotFound(f"There is no {noun} {name[:120]!r}. Known: {names}.")
    return row


def row_by_number(rows: QuerySet[Row], noun: str, number: int, hint: str = "") -> Row:
    """Return the row with the id ``number``; raise NotFound, whose message ends with ``hint``."""
    row = rows.filter(pk=number).first()
    if row is None:
        raise NotFound(f"There is no {noun} {number}{hint}.")
    return row


def id_of(text: str) -> int | None:
    """Return ``text`` as a number if it can be the id of a row, else None."""
    return int(text) if text.isdecimal() and len(text) <= MAX_DIGITS else None


def version_of(text: str) -> int | None:
    """Return the version in a form field; None if the form has none.

    An impossible number becomes 0, which no row has.
    """
    if not text.isdecimal():
        return None
    return id_of(text) or 0


def matches(search: str, *texts: str) -> bool:
    """Return whether every word of ``search`` is part of one of ``texts``."""
    lower_texts = [text.casefold() for text in texts]
    words = search.casefold().split()
    return all(any(word in text for text in lower_texts) for word in words)
