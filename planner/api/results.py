"""Make the JSON schemas of results for the OpenAPI document, from their types and columns."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from planner.domain.columns import COUNT, FLAG, REASONS, TEXT, Column, Columns
from planner.domain.kinds.forecast import SeriesResult
from planner.domain.reports.registry import REPORTS
from planner.domain.serialise import COLUMNS, KEY, MERGED, OPTIONAL
from planner.field_notes import field_notes
from simulation.arrays import FloatArray

# The result of any kind of run; the run's number ``run`` is added to each.
AnyResult: Any = Union[(*(kind.result for kind in REPORTS.values()), SeriesResult)]
PLAIN = {bool: "boolean", int: "integer", float: ["number", "null"], str: "string"}
Schema = dict[str, Any]


def _object(kind: type) -> Schema:
    """Return the schema of a dataclass; the comments at its fields become the descriptions."""
    properties: Schema = {}
    required = []
    hints, notes = get_type_hints(kind), field_notes(kind)
    for field in fields(kind):
        metadata, hint = field.metadata, hints[field.name]
        if COLUMNS in metadata:
            schema = _rows_of_columns(metadata[COLUMNS], hint)
        else:
            schema = schema_of(hint)
        if MERGED in metadata:
            # The keys of a merged field, which may be missing, are keys of the result itself.
            for alternative in schema.get("anyOf", [schema]):
                properties |= alternative.get("properties", {})
            continue
        key = metadata.get(KEY, field.name)
        note = notes.get(field.name)
        properties[key] = schema | ({"description": note} if note else {})
        if OPTIONAL not in metadata:
            required.append(key)
    return {
        "type": "object",
        "title": kind.__name__,
        "properties": properties,
        "required": required,
    }


def schema_of(hint: Any) -> Schema:
    """Return the JSON schema of the type ``hint``, as ``as_json`` writes its values.

    A number may also be null, because ``as_json`` writes NaN and infinity so.
    """
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        schemas = [schema_of(kind) for kind in arguments if kind is not NoneType]
        if NoneType in arguments:
            schemas.append({"type": "null"})
        return {"anyOf": schemas}
    if origin is Literal:
        return {"enum": list(arguments)}
    if origin is not None and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": schema_of(arguments[1])}
    if origin is not None and issubclass(origin, Sequence):
        return {"type": "array", "items": schema_of(arguments[0])}
    if hint == FloatArray:
        return {"type": "array", "items": schema_of(float)}
    if hint is datetime:
        return {"type": "string", "format": "date-time"}
    if is_dataclass(hint) and isinstance(hint, type):
        return _object(hint)
    return {"type": PLAIN[hint]} if hint in PLAIN else {}


def _rows_of_columns(columns: Columns, hint: Any) -> Schema:
    """Return the schema of a field of type ``hint`` whose rows have the declared ``columns``.

    With ``columns.key``, JSON maps keys to rows. Otherwise a sequence is a list of rows, and any
    other type is one row.
    """
    cells = {column.name: _cell(column) for column in columns.columns}
    row = {"type": "object", "properties": cells}
    if columns.key:
        return {"type": "object", "additionalProperties": row}
    origin = get_origin(hint)
    is_list = isinstance(origin, type) and issubclass(origin, Sequence)
    return {"type": "array", "items": row} if is_list else row


def _cell(column: Column) -> Schema:
    """Return the schema of a value of a column.

    It has no type if the values are mappings or lists (``parts``, or not ``flat``).
    """
    description = {"description": f"{column.help} [{column.unit}]"}
    if column.parts or not column.flat:
        return description
    types = {TEXT: "string", FLAG: "boolean", COUNT: "integer", REASONS: "object"}  # by unit
    return {"type": [types.get(column.unit, "number"), "null"], **description}
