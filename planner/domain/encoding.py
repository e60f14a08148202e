"""Write results of a run's parts as bytes, so that another process or host can continue with them.

Unlike pickle, reading runs no code: it builds dataclasses and enums of this project, and plain
values, numeric arrays and tables. Every float, NaN and infinity included, survives to the last bit.
"""

import importlib
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime
from enum import Enum
from typing import Any

import numpy as np
import polars as pl
import zstandard

from planner.errors import DamagedFile

PACKAGES = ("forecasting.", "simulation.", "planner.")  # whose dataclasses and enums are built
TREE = "tree"  # name of the JSON among the stored arrays
LEVEL = 3  # of zstd compression: above it, little is saved


def encode(value: Any, shared: Sequence[Any] = ()) -> bytes:
    """Return ``value`` as bytes.

    Objects of ``shared``, which the reader has already, are written as references. Raises TypeError
    for a value of a type that ``decode`` does not build.
    """
    writer = _Writer(shared)
    tree = json.dumps(writer.plain(value)).encode()
    buffer = io.BytesIO()
    arrays_written: dict[str, Any] = {TREE: np.frombuffer(tree, np.uint8), **writer.arrays}
    np.savez(buffer, **arrays_written)
    return zstandard.compress(buffer.getvalue(), LEVEL)


def decode(content: bytes, shared: Sequence[Any] = ()) -> Any:
    """Return the value that ``encode`` wrote.

    ``shared`` must be the same objects in the same order. Raises DamagedFile if ``content`` was not
    written by ``encode``.
    """
    try:
        buffer = io.BytesIO(zstandard.decompress(content))
        with np.load(buffer, allow_pickle=False) as arrays:
            stored = {name: arrays[name] for name in arrays.files}
        return _build(json.loads(stored[TREE].tobytes()), stored, shared)
    except (zstandard.ZstdError, ValueError, KeyError, IndexError, OSError) as problem:
        raise DamagedFile(f"A stored part of this run cannot be read ({problem}).") from None


class _Writer:
    """Turns values into JSON; arrays and tables are collected in ``arrays``."""

    def __init__(self, shared: Sequence[Any]) -> None:
        self._shared_index = {id(value): index for index, value in enumerate(shared)}
        self.arrays: dict[str, np.ndarray[Any, Any]] = {}

    def plain(self, value: Any) -> Any:  # noqa: C901 - one case for each type
        """Return ``value`` as JSON; what JSON cannot express becomes a list [tag, ...]."""
        if id(value) in self._shared_index:
            return ["shared", self._shared_index[id(value)]]
        match value:
            case Enum():  # before str and int, which an enum may be as well
                return ["enum", *_name(type(value)), value.name]
            case None | bool() | str():
                return value
            case np.ndarray():
                return ["array", self._store_array(value)]
            case np.generic():
                return ["scalar", self._store_array(np.asarray(value))]
            case int() | float():
                return value
            case datetime():
                return ["datetime", value.isoformat()]
            case pl.DataFrame():
                table = io.BytesIO()
                value.write_ipc(table)
                return ["table", self._store_array(np.frombuffer(table.getvalue(), np.uint8))]
            case Mapping():
                return ["dict", [[self.plain(k), self.plain(v)] for k, v in value.items()]]
            case tuple() if hasattr(value, "_fields"):
                return ["named", *_name(type(value)), *map(self.plain, value)]
            case tuple():
                return ["tuple", *map(self.plain, value)]
            case list():
                return ["list", *map(self.plain, value)]
        if is_dataclass(value) and not isinstance(value, type):
            values = {f.name: self.plain(getattr(value, f.name)) for f in fields(value)}
            return ["object", *_name(type(value)), values]
        raise TypeError(f"{type(value).__qualname__} cannot be part of a result")

    def _store_array(self, array: np.ndarray[Any, Any]) -> str:
        """Store a numeric array, and return the name under which the JSON refers to it."""
        if array.dtype.hasobject:
            raise TypeError("an array of objects cannot be part of a result")
        name = str(len(self.arrays))
        self.arrays[name] = array
        return name


def _name(kind: type) -> tuple[str, str]:
    """Return (module, name) of a type of this project; raise TypeError for any other."""
    if not kind.__module__.startswith(PACKAGES) or "." in kind.__qualname__:
        raise TypeError(f"{kind.__module__}.{kind.__qualname__} cannot be part of a result")
    return kind.__module__, kind.__qualname__


def _build(  # noqa: C901 - one case for each type
    tree: Any, arrays: Mapping[str, Any], shared: Sequence[Any]
) -> Any:
    """Return the value that the JSON ``tree`` describes, with its arrays and shared objects."""

    def built(branch: Any) -> Any:
        """Return the value of a branch of ``tree``."""
        return _build(branch, arrays, shared)

    match tree:
        case ["shared", int(index)]:
            return shared[index]
        case ["enum", module, name, member]:
            return _class(module, name)[member]
        case ["array", name]:
            array = arrays[name]
            array.flags.writeable = False
            return array
        case ["scalar", name]:
            return arrays[name][()]
        case ["datetime", text]:
            return datetime.fromisoformat(text)
        case ["table", name]:
            return pl.read_ipc(arrays[name].tobytes())
        case ["dict", pairs]:
            return {built(key): built(item) for key, item in pairs}
        case ["named", module, name, *items]:
            return _class(module, name)(*map(built, items))
        case ["tuple", *items]:
            return tuple(map(built, items))
        case ["list", *items]:
            return [built(item) for item in items]
        case ["object", module, name, values]:
            result = object.__new__(_class(module, name))
            for field, item in values.items():
                object.__setattr__(result, field, built(item))
            return result
    return tree


def _class(module: str, name: str) -> Any:
    """Return a data class of this project by name; raise ValueError for anything else."""
    if not module.startswith(PACKAGES):
        raise ValueError(f"{module} is no module of this project")
    kind = getattr(importlib.import_module(module), name, None)
    holds_data = isinstance(kind, type) and (
        is_dataclass(kind) or issubclass(kind, Enum) or hasattr(kind, "_fields")
    )
    if not holds_data:
        raise ValueError(f"{module}.{name} is no dataclass, named tuple or enum")
    return kind
