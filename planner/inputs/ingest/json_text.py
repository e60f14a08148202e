"""Parse JSON lines: one object per line, its fields as columns of text.

Fields of nested objects are columns too (``usage.prompt_tokens``), because gateways nest them.
"""

import json
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, NoReturn

import numpy as np
import polars as pl

from planner.errors import IngestError
from planner.inputs.ingest.blocks import Records
from planner.inputs.ingest.names import check_names
from planner.inputs.ingest.rows import BAD_IDS, Batch, RefusedRows, has_null_id

NOT_JSON = "not a JSON object"
DEPTH = 4  # most names in a column's path
_PLAIN = re.compile(r"[\w \-@.]+")  # a name that a path can hold without escapes
FieldPath = tuple[str, ...]  # names from the line's object down to a field


def read_probe(
    lines: Records, name: str, rows: int
) -> tuple[Mapping[str, FieldPath], pl.DataFrame]:
    """Return the path of every field by column, and the first ``rows`` lines as a table.

    Lines that are no JSON object are left out. Raise IngestError if no line has a field.
    """
    lines = lines.keep(np.arange(lines.start.size) < rows)
    columns: dict[str, FieldPath] = {}
    records = [json_object(lines.text(i)) for i in range(lines.start.size)]
    is_object = np.array([record is not None for record in records], dtype=np.bool_)
    for record in records:
        for path in _fields(record or {}):
            column = ".".join(path)
            # A top-level name may contain a dot, and then it comes first.
            if len(path) == 1 or column not in columns:
                columns[column] = path
    if not columns:
        raise IngestError(
            f"{name}, line {lines.line[0]} is not a JSON object. Write one object per line."
        )
    check_names(list(columns), name)
    return columns, _parse(lines.keep(is_object), columns, ids=None, name=name)


def batch(lines: Records, columns: Mapping[str, FieldPath], ids: str | None, name: str) -> Batch:
    """Return the records as a batch of text columns, with ``ids`` (None: no such) as lists.

    Records that are no JSON, or with a null in ``ids``, are refused: they are the batch's faults.
    """
    with suppress(IngestError):
        frame = _parse(lines, columns, ids, name)
        if not (ids and has_null_id(frame[ids]).any()):
            return Batch(frame, lines.line, lines.text)
    # The block is not valid as a whole. Judge each line, to refuse only the bad ones.
    reasons = np.array([_refusal_reason(lines.text(i), ids) for i in range(lines.start.size)])
    faults = []
    for reason in (NOT_JSON, BAD_IDS):
        bad = lines.keep(reasons == reason)
        if bad.start.size:
            faults.append(RefusedRows(reason, bad.line, bad.text))
    good = lines.keep(reasons == "")
    return Batch(_parse(good, columns, ids, name), good.line, good.text, tuple(faults))


def _fields(value: Mapping[str, object], above: FieldPath = ()) -> Iterator[FieldPath]:
    """Yield the path of every field of an object at the path ``above``, down to DEPTH.

    Nested fields with lists, deeper objects or unusual names are left out.
    """
    for key, inner in value.items():
        path = (*above, key)
        is_plain = _PLAIN.fullmatch(key)
        if isinstance(inner, dict) and inner and len(path) < DEPTH and is_plain:
            yield from _fields(inner, path)
        elif not above or (is_plain and not isinstance(inner, dict | list)):
            yield path


def _flatten(frame: pl.DataFrame, columns: Mapping[str, FieldPath]) -> pl.DataFrame:
    """Return the frame with a column for each nested field, extracted from its JSON text."""
    nested = []
    for column, (outer, *inner_keys) in columns.items():
        if inner_keys:
            json_path = "$" + "".join(f"['{key}']" for key in inner_keys)
            nested.append(pl.col(outer).str.json_path_match(json_path).alias(column))
    return frame.with_columns(nested) if nested else frame


def _parse(
    lines: Records, columns: Mapping[str, FieldPath], ids: str | None, name: str
) -> pl.DataFrame:
    """Return the lines as a table; raise IngestError if they are not JSON lines.

    ``columns`` maps a column to its field. ``ids`` is the field with a list of hash ids, if any.
    """
    # Nested objects are read as text.
    schema: dict[str, pl.DataType] = {path[0]: pl.String() for path in columns.values()}
    if ids:
        schema[ids] = pl.List(pl.Int64)
    if not lines.start.size:
        return _flatten(pl.DataFrame(schema=schema), columns)
    place = f"{name}, lines {lines.line[0]} to {lines.line[-1]}"
    try:
        frame = pl.read_ndjson(lines.kept_bytes(), schema=schema)
    except pl.exceptions.PolarsError as error:
        raise IngestError(
            f"{place} cannot be read as JSON lines ({error}). Write one object per line."
        ) from None
    if frame.height != lines.start.size:
        raise IngestError(f"{place} do not hold one JSON object each. Write one object per line.")
    return _flatten(frame, columns)


def _refusal_reason(text: str, ids: str | None) -> str:
    """Return why a line is refused, or "" if it is not."""
    value = json_object(text)
    if value is None:
        return NOT_JSON
    numbers = value.get(ids) if ids else None
    if numbers is None:
        return ""
    are_int64 = isinstance(numbers, list) and all(
        isinstance(x, int) and not isinstance(x, bool) and abs(x) < 2**63 for x in numbers
    )
    return "" if are_int64 else BAD_IDS


def json_object(text: str) -> dict[str, Any] | None:
    """Return the JSON object in a text; None for another text, and for one with NaN or infinity."""
    try:
        value = json.loads(text, parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _finite(number: str) -> float:
    """Return the value of a number in JSON; raise ValueError if it is too large for a float."""
    value = float(number)
    return value if math.isfinite(value) else _refuse(number)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
