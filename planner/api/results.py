"""Describe results in the OpenAPI document, from the types of results and their columns."""

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
    """Return the schema of a dataclass; the comments at its fields are their descriptions."""
    properties: Schema = {}
    required = []
    hints, notes = get_type_hints(kind), field_notes(kind)
    for field in fields(kind):
        metadata, hint = field.metadata, hints[field.name]
        schema = _rows(metadata[COLUMNS], hint) if COLUMNS in metadata else schema_of(hint)
        # The keys of a merged field, which may be missing, are keys of the result itself.
        if MERGED in metadata:
            for part in schema.get("anyOf", [schema]):
                properties |= part.get("properties", {})
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
    """Return the schema of a type that ``as_json`` writes.

    Figures that could not be computed are null.
    """
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        known = [schema_of(part) for part in arguments if part is not NoneType]
        return {"anyOf": [*known, {"type": "null"}]} if NoneType in arguments else {"anyOf": known}
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


def _rows(columns: Columns, hint: Any) -> Schema:
    """Return the schema of rows with declared ``columns``.

    It is a mapping if the columns have a key, a list if the type ``hint`` is a sequence, else that
    of one row.
    """
    row = {
        "type": "object",
        "properties": {column.name: _column(column) for column in columns.columns},
    }
    if columns.key:
        return {"type": "object", "additionalProperties": row}
    origin = get_origin(hint)
    is_list = isinstance(origin, type) and issubclass(origin, Sequence)
    return {"type": "array", "items": row} if is_list else row


def _column(column: Column) -> Schema:
    """Return the schema of a column.

    A column with one value per key has only a description, because its type depends on the key.
    """
    units = {TEXT: "string", FLAG: "boolean", COUNT: "integer", REASONS: "object"}
    description = {"description": f"{column.help} [{column.unit}]"}
    if column.parts or not column.flat:
        return description
    return {"type": [units.get(column.unit, "number"), "null"], **description}
