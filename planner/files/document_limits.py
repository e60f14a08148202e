"""Limit how much a document may hold, before anything else reads it."""

from collections.abc import Mapping, Sequence
from typing import Any

from planner.files.stored_text import unstorable_character

MAX_VALUES = 200_000  # with aliases expanded: a few lines of them can expand to billions of values
MAX_DEPTH = 50
MAX_DIGITS = 40  # digits of a whole number; no quantity needs more


def fault_of_extent(data: Any, *, values: int = MAX_VALUES) -> str:
    """Return why plain data is too large, as the end of a sentence; "" if it is not.

    It finds aliases that multiply or contain themselves, and nesting that would exhaust recursion.
    It also finds whole numbers that are too long for Python to print, and characters that cannot be
    stored.
    """
    count = 0
    rest: list[tuple[Any, int]] = [(data, 0)]
    while rest:
        value, level = rest.pop()
        count += 1
        if count > values:
            return f"more than {values:,} values, far more than are needed. Check its aliases"
        if level > MAX_DEPTH:
            return f"nested deeper than {MAX_DEPTH} levels. Check its brackets and aliases"
        if isinstance(value, int) and abs(value) >= 10**MAX_DIGITS:
            return f"a number with more than {MAX_DIGITS} digits"
        if character := unstorable_character(_text_of(value)):
            return f"the character {character} in a text, which cannot be stored. Remove it"
        if isinstance(value, Mapping):
            rest += [(item, level + 1) for item in value.values()]
            rest += [(key, level + 1) for key in value if isinstance(key, int)]
        elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
            rest += [(item, level + 1) for item in value]
    return ""


def _text_of(value: Any) -> str:
    """Return a text, or the joined keys of a mapping, without the content of its values."""
    if isinstance(value, Mapping):
        return "".join(key for key in value if isinstance(key, str))
    return value if isinstance(value, str) else ""
