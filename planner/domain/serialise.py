"""Convert values to JSON without NaN and back, and times to UTC datetimes for tables."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from functools import cache, partial
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import numpy as np
import polars as pl

from planner.domain.formats import counted, percent
from simulation.arrays import FloatArray

T = TypeVar("T")
KEY, MERGED, OPTIONAL, COLUMNS = "key", "merged", "optional", "columns"  # keys of field metadata


def as_json(value: Any) -> Any:
    """Return ``value`` as JSON data.

    NaN and infinity become None. A datetime becomes text in UTC, to the second. A dataclass
    becomes a dict of its fields. Raise TypeError for types without a JSON form.

    The metadata of a field can change this:

    - ``key`` sets another name.
    - ``columns`` sets the columns of its rows (planner.domain.columns).
    - ``merged`` puts its keys into the parent's dict.
    - ``optional`` omits the field if it is None.
    """
    match value:
        case None | bool() | str():
            return value
        case Enum():
            return value.value
        case int():
            return int(value)
        case float():
            return clean(float(value))
        case datetime():
            return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        case np.generic() | np.ndarray():
            return as_json(value.tolist())
        case Mapping():
            return {str(key): as_json(item) for key, item in value.items()}
        case list() | tuple():
            return [as_json(item) for item in value]
    if is_dataclass(value):
        return _fields_as_json(value)
    raise TypeError(f"{type(value).__name__} has no JSON")


def _fields_as_json(document: Any) -> dict[str, Any]:
    """Return the fields of a dataclass as a dict, by the rules of ``as_json``."""
    result: dict[str, Any] = {}
    for field in fields(document):
        value, metadata = getattr(document, field.name), field.metadata
        if value is None and OPTIONAL in metadata:
            continue
        plain = metadata[COLUMNS].json(value) if COLUMNS in metadata else as_json(value)
        if MERGED in metadata:
            result |= plain or {}
        else:
            result[metadata.get(KEY, field.name)] = plain
    return result


def clean(value: float) -> float | None:
    """Return ``value``, or None if it is NaN or infinite."""
    return value if math.isfinite(value) else None


def gpu_words(count: int) -> str:
    """Return "1 GPU" or "2 GPUs"."""
    return counted(count, "GPU")


def milliseconds(seconds: float | None) -> float | None:
    """Return seconds as milliseconds; None stays None, and so do NaN and infinity."""
    return None if seconds is None else clean(1000 * float(seconds))


def moment(epoch_s: float) -> datetime:
    """Return the datetime in UTC, rounded to the second."""
    return datetime.fromtimestamp(round(epoch_s), UTC)


def times(start_s: float, step_s: float, count: int) -> pl.Series:
    """Return ``count`` datetimes from ``start_s`` on, ``step_s`` seconds apart."""
    return moments(start_s, step_s * np.arange(count, dtype=np.float64))


def moments(start_s: float, after_s: FloatArray) -> pl.Series:
    """Return the datetimes ``after_s`` seconds after ``start_s``, to the microsecond.

    ``start_s`` is in epoch seconds. The two are rounded separately, because their sum as a float
    would lose precision.
    """
    epoch_us = np.round(start_s * 1e6).astype(np.int64) + np.round(after_s * 1e6).astype(np.int64)
    return pl.Series("time", epoch_us).cast(pl.Datetime("us", "UTC"))


def shares_in_time(attainment: Mapping[str, float | None]) -> str:
    """Return the SLO attainment of tiers in words; tiers without requests (None) are omitted."""
    parts = [f"{percent(share)} {tier}" for tier, share in attainment.items()
            if share is not None]  # fmt: skip
    return ", ".join(parts) or "no requests"


def from_json(kind: type[T], data: Mapping[str, Any]) -> T:
    """Return ``data``, written by ``as_json``, as an object of the dataclass ``kind``.

    Rows with declared columns stay plain rows. A key that an older version did not write gets its
    field's default, an empty value or None.
    """
    values = {}
    for field, hint in _typed_fields(kind):  # type: ignore[arg-type]
        if MERGED in field.metadata:
            values[field.name] = _value_from_parent(hint, data)
            continue
        key = field.metadata.get(KEY, field.name)
        if key in data:
            values[field.name] = data[key] if COLUMNS in field.metadata else _value(hint, data[key])
        elif field.default is MISSING and field.default_factory is MISSING:
            empty = get_origin(hint)
            values[field.name] = empty() if empty in (tuple, dict) else None
    return kind(**values)


@cache
def _typed_fields(kind: Any) -> tuple[tuple[Field[Any], Any], ...]:
    """Return the fields of a dataclass with their types."""
    hints = get_type_hints(kind)
    return tuple((field, hints[field.name]) for field in fields(kind) if field.init)


def _value_from_parent(hint: Any, data: Mapping[str, Any]) -> Any:
    """Return a value whose keys ``as_json`` merged into its parent's; None if they are missing."""
    kinds: list[Any] = [kind for kind in get_args(hint) or (hint,) if is_dataclass(kind)]
    if not kinds:
        return data
    (kind,) = kinds
    keys = {field.metadata.get(KEY, field.name) for field, _ in _typed_fields(kind)
            if MERGED not in field.metadata}  # fmt: skip
    if NoneType in get_args(hint) and not keys <= data.keys():
        return None
    return from_json(kind, data)


def _value(hint: Any, value: Any) -> Any:
    """Return a JSON value as a value of the type ``hint``; None stays None."""
    return None if value is None else _reader(hint)(value)


def _as_is(value: Any) -> Any:
    """Return a JSON value that needs no conversion."""
    return value


@cache
def _reader(hint: Any) -> Callable[[Any], Any]:
    """Return the function that reads JSON values, other than None, of the type ``hint``."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        kinds = [kind for kind in arguments if kind is not NoneType]
        return _reader(kinds[0]) if len(kinds) == 1 else _as_is
    if isinstance(origin, type) and issubclass(origin, Mapping):
        _, item_kind = arguments
        return lambda value: {key: _value(item_kind, item) for key, item in value.items()}
    if isinstance(origin, type) and issubclass(origin, Sequence):
        kinds = [kind for kind in arguments if kind is not Ellipsis]
        return partial(_items, kinds, tuple if origin is tuple else list)
    if origin is None and isinstance(hint, type):
        if is_dataclass(hint):
            return partial(from_json, hint)
        if hint is datetime:
            return datetime.fromisoformat
        if issubclass(hint, Enum):
            return hint
    return _as_is


def _items(kinds: list[Any], container: type, values: Sequence[Any]) -> Any:
    """Return a JSON list as a ``container``, a tuple or list.

    ``kinds`` has the type of each item, or one type for all items.
    """
    item_kinds = kinds if len(kinds) == len(values) else [kinds[0]] * len(values)
    return container(_value(kind, item) for kind, item in zip(item_kinds, values, strict=True))
