"""Write plain values as YAML that every reader reads alike.

Text that is more than a word is quoted, because YAML 1.1 reads 07:30, no and 1e3 as other types.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_WORD = re.compile(r"[A-Za-z][A-Za-z0-9_./-]*")
# Lines without leading or trailing spaces, which a literal block keeps as they are.
_LINES = re.compile(r"(?:[!-~](?:[ -~]*[!-~])?\n){2,}")
_OTHER = {"y", "n", "yes", "no", "on", "off", "true", "false", "null", "nan", "inf"}


def yaml_text(documents: Sequence[Any], heads: Sequence[Sequence[str]]) -> str:
    """Return ``documents`` as a YAML stream, each below its comment lines in ``heads``."""
    return "---\n".join(
        "".join(f"# {line}".rstrip() + "\n" for line in _lines_of(head))
        + "".join(f"{line}\n" for line in _block(document, 0))
        for document, head in zip(documents, heads, strict=True)
    )


def _lines_of(head: Sequence[str]) -> Iterator[str]:
    """Yield the lines of a comment, split at every break, so that none of its text leaves it."""
    for line in head:
        # YAML 1.1 also breaks lines at NEL, LS and PS.
        yield from re.split(r"[\r\n\x85\u2028\u2029]", line)


def _block(value: Any, depth: int) -> Iterator[str]:
    """Yield the lines of a mapping or list in block style."""
    pad = "  " * depth
    if isinstance(value, Mapping):
        for key, item in value.items():
            if _nested(item):
                yield f"{pad}{_scalar(key)}:"
                yield from _block(item, depth + 1)
            elif isinstance(item, str) and _LINES.fullmatch(item):
                yield f"{pad}{_scalar(key)}: |"
                yield from (f"{pad}  {line}" for line in item.splitlines())
            else:
                yield f"{pad}{_scalar(key)}: {_scalar(item)}"
    else:
        for item in value:
            if not _nested(item):
                yield f"{pad}- {_scalar(item)}"
                continue
            first, *rest = _block(item, depth + 1)
            yield f"{pad}- {first.lstrip()}"
            yield from rest


def _nested(value: Any) -> bool:
    """Return whether a value needs its own lines below its key."""
    return isinstance(value, Mapping | list | tuple) and bool(value)


def _scalar(value: Any) -> str:
    """Return a scalar as YAML; it is quoted if it could be read as another type."""
    if isinstance(value, str) and _WORD.fullmatch(value) and value.lower() not in _OTHER:
        return value
    return json.dumps(value)  # JSON is valid flow style in every YAML version
