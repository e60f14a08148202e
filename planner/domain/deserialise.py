"""Read results back from the JSON that planner.domain.serialise writes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import datetime
from enum import Enum
from functools import cache, partial
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from planner.domain.serialise import COLUMNS, KEY, MERGED

T = TypeVar("T")


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
        of_item = arguments[1]
        return lambda value: {key: _value(of_item, item) for key, item in value.items()}
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

    ``kinds`` has the type of each item, or first the type of all items.
    """
    each = kinds if len(kinds) == len(values) else [kinds[0]] * len(values)
    return container(_value(kind, item) for kind, item in zip(each, values, strict=True))
