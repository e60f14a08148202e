"""Find and replace characters that cannot be stored in text.

PostgreSQL stores neither U+0000 nor lone surrogates. SQLite stores some of them, but such rows
could not be moved to PostgreSQL. The product therefore refuses them on both.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

# Lone surrogates appear in JSON escapes and in file names that are not UTF-8.
UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
REPLACEMENT = "\ufffd"


def unstorable_character(value: Any) -> str | None:
    """Return the first character in a JSON-like value that cannot be stored, such as "U+0000".

    None if there is none.
    """
    for text in _texts(value):
        found = UNSTORABLE.search(text)
        if found:
            return f"U+{ord(found[0]):04X}"
    return None


def storable(value: Any) -> Any:
    """Return a JSON-like value with U+FFFD in place of characters that cannot be stored."""
    if isinstance(value, str):
        return UNSTORABLE.sub(REPLACEMENT, value)
    if isinstance(value, Mapping):
        return {storable(name): storable(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [storable(item) for item in value]
    return value


def _texts(value: Any) -> Iterator[str]:
    """Yield every text in a JSON-like value, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield str(name)
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)
