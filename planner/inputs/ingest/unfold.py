"""Turn JSON documents, arrays and nested records into one JSON object per row.

A path such as ``data[].results[]`` says where the rows are: a name enters an object, ``[]`` takes
each element of a list, ``*`` takes lists of equal length as columns. Short fields of the objects
around a row are inherited. Lists of keys with values (OpenTelemetry) become fields.
"""

import codecs
import itertools
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from planner.errors import IngestError
from planner.inputs.ingest.blocks import MAX_RECORD_BYTES
from planner.inputs.ingest.connectors import CONNECTORS

DOCUMENT_BYTES = 64 << 20  # of one JSON object that holds all rows
LONGEST = 200  # characters of an inherited value
MOST_INHERITED = 64  # fields that a row may inherit from one object
_LISTS = ("data", "results", "records", "requests", "logs", "items", "rows", "hits", "values")
_SPACE = re.compile(r"[\s,]*")
_DECODER = json.JSONDecoder(parse_constant=lambda _: None)
_STEP = re.compile(r"\[\]|\*|[^.\[\]*]+")
Row = dict[str, Any]


def path_steps(path: str) -> tuple[str, ...]:
    """Return the steps of a path: ``("data", "[]")`` for ``data[]``."""
    return tuple(_STEP.findall(path))


def unfold_rows(value: Any, path: Sequence[str], inherited: Row | None = None) -> Iterator[Row]:
    """Yield the rows at ``path`` in a document, with the fields of the objects around them.

    A step is a key, ``[]`` for each item of a list, or ``*`` for an object of equally long lists,
    which are columns. ``inherited`` are the fields of the objects around ``value``. Values that do
    not fit the path have no rows.
    """
    inherited = inherited or {}
    if not path:
        if isinstance(value, dict):
            yield inherited | _flatten_key_values(value)
        elif isinstance(value, list):
            yield inherited | {str(index): item for index, item in enumerate(value)}
        return
    step, rest = path[0], path[1:]
    if step == "[]" and isinstance(value, list):
        for item in value:
            yield from unfold_rows(item, rest, inherited)
    elif step == "*" and isinstance(value, dict):
        columns = {key: item for key, item in value.items() if isinstance(item, list)}
        fields = inherited | _inherited_fields(value)
        for row in zip(*columns.values(), strict=False):
            yield fields | dict(zip(columns, row, strict=True))
    elif isinstance(value, dict) and step in value:
        yield from unfold_rows(value[step], rest, inherited | _inherited_fields(value))


def _flatten_key_values(value: Mapping[str, Any]) -> Row:
    """Return an object in which each list of key-value pairs has become fields."""
    row: Row = {}
    for key, inner in value.items():
        row |= _pairs(inner) or {key: inner}
    return row


def _pairs(value: Any) -> Row | None:
    """Return [{"key" or "name": "a", "value": 1}] as {"a": 1}; None for other values."""
    if not isinstance(value, list) or not value:
        return None
    if not all(isinstance(pair, dict) for pair in value):
        return None
    key = "key" if "key" in value[0] else "name"
    if not all(key in pair and "value" in pair for pair in value):
        return None
    return {str(_unwrap(pair[key])): _unwrap(pair["value"]) for pair in value}


def _unwrap(value: Any) -> Any:
    """Return the value in ``{"intValue": "7"}`` or ``{"value": 7}``; others as they are."""
    if isinstance(value, dict) and value:
        key = "value" if "value" in value else next(iter(value))
        if key == "value" or (len(value) == 1 and key.endswith("Value")):
            return value[key]
    return value


def _inherited_fields(value: Mapping[str, Any]) -> Row:
    """Return an object's short values, also of objects directly in it, at most MOST_INHERITED."""
    row: Row = {}
    for key, inner in value.items():
        fields = inner if isinstance(inner, dict) else {key: inner}
        for name, item in _flatten_key_values(fields).items():
            is_nested = isinstance(item, dict | list)
            is_long = isinstance(item, str) and len(item) > LONGEST
            if not is_nested and not is_long and len(row) < MOST_INHERITED:
                row[name] = item
    return row


def path_of(record: Any, *, document: bool) -> tuple[str, ...]:
    """Return the path (of ``unfold_rows``) to the rows in a record; () if it is a row itself.

    The paths of known formats are tried first. If the record is a whole ``document``, its rows may
    also be its only list of objects. A record among many others is then a row itself.
    """
    if not isinstance(record, dict):
        return ()
    for connector in CONNECTORS.values():
        if connector.rows:
            path = path_steps(connector.rows)
            first_row = next(unfold_rows(record, path), None)
            if first_row is not None and connector.recognises(list(_names(first_row))):
                return path
    if not document:
        return ()
    keys_of_lists = []  # of objects
    for key, value in record.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            keys_of_lists.append(key)
    if len(keys_of_lists) == 1 or (keys_of_lists and keys_of_lists[0].lower() in _LISTS):
        return (keys_of_lists[0], "[]")
    for key, value in record.items():
        inner_path = path_of(value, document=True)
        if inner_path:
            return (key, *inner_path)
    return ()


def _names(row: Row, above: str = "") -> Iterator[str]:
    """Yield the dotted names of all fields of a row, nested ones included."""
    for key, value in row.items():
        yield above + key
        if isinstance(value, dict) and above.count(".") < 4:
            yield from _names(value, f"{above}{key}.")


def documents(pieces: Iterable[bytes], name: str) -> Iterator[Any]:
    """Yield the elements of a file that is one JSON array, or else the JSON values in it.

    Raise IngestError for text that is not JSON or not UTF-8, or for a value that is too large.
    """
    decoder = codecs.getincrementaldecoder("utf-8-sig")("strict")
    unread, has_started, is_array, count = "", False, False, 0
    for piece in itertools.chain(pieces, (None,)):  # None: the end
        try:
            unread += decoder.decode(piece or b"", final=piece is None)
        except UnicodeDecodeError:
            raise IngestError(f"{name} is not UTF-8 text. Save the file as UTF-8.") from None
        position = 0
        if not has_started and unread.strip():
            has_started, is_array = True, unread.lstrip()[0] == "["
            position = unread.index("[") + 1 if is_array else 0
        for value, end in _complete_values(unread, position, last=piece is None):
            yield value
            count += 1
            position = end
        unread = _SPACE.sub("", unread[position:], count=1)
        most_bytes = MAX_RECORD_BYTES if is_array else DOCUMENT_BYTES
        if len(unread) > most_bytes:
            raise IngestError(
                f"{name}: value {count + 1} exceeds {most_bytes >> 20} MiB. Write JSON lines."
            )
    if unread.strip(" \r\n\t,]"):
        raise IngestError(
            f"{name} is not JSON after value {count} ({unread.strip()[:40]!r}). Write it again."
        )


def _complete_values(text: str, position: int, *, last: bool) -> Iterator[tuple[Any, int]]:
    """Yield each complete JSON value and its end; ``last``: no text follows."""
    while True:
        position = _SPACE.match(text, position).end()  # type: ignore[union-attr]
        try:
            value, position = _DECODER.raw_decode(text, position)
        except ValueError:  # the end, a "]", or a part of a value
            return
        if position == len(text) and not last and not isinstance(value, dict | list):
            return  # a number may go on in the next piece
        yield value, position
