"""Values of the core as plain data: JSON without NaN, and the UTC datetimes of tables."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any

import numpy as np
import polars as pl

from simulation.arrays import FloatArray

KEY, MERGED, OPTIONAL, COLUMNS = "key", "merged", "optional", "columns"  # of a field's metadata


def as_json(value: Any) -> Any:
    """``value`` as JSON has it: what could not be computed (NaN, infinity) is None, a datetime text
    in UTC to the second, a dataclass its fields by name.

    A field's metadata may say otherwise: ``key`` another name, ``columns`` the table whose columns
    its rows have (planner.studies.columns), ``merged`` that its keys stand among those of the
    whole, ``optional`` that None leaves it out.
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
        return _fields(value)
    raise TypeError(f"{type(value).__name__} has no JSON")


def _fields(document: Any) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for field in fields(document):
        value, how = getattr(document, field.name), field.metadata
        if value is None and OPTIONAL in how:
            continue
        plain = how[COLUMNS].json(value) if COLUMNS in how else as_json(value)
        if MERGED in how:
            out |= plain or {}
        else:
            out[how.get(KEY, field.name)] = plain
    return out


def clean(value: float) -> float | None:
    return value if math.isfinite(value) else None


def so_many_gpus(count: int) -> str:
    """1 GPU, 2 GPUs."""
    return f"{count:,} GPU{'' if count == 1 else 's'}"


def milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else clean(1000 * float(seconds))


def moment(epoch_s: float) -> datetime:
    """In UTC, to the second."""
    return datetime.fromtimestamp(round(epoch_s), UTC)


def times(start_s: float, step_s: float, count: int) -> pl.Series:
    """``count`` moments, ``step_s`` apart."""
    return moments(start_s, step_s * np.arange(count, dtype=np.float64))


def moments(start_s: float, after_s: FloatArray) -> pl.Series:
    """``after_s`` seconds after ``start_s``, to the microsecond: apart, since epoch seconds with a
    fraction would round it."""
    epoch_us = np.round(start_s * 1e6).astype(np.int64) + np.round(after_s * 1e6).astype(np.int64)
    return pl.Series("time", epoch_us).cast(pl.Datetime("us", "UTC"))


def per_cent(share: float) -> str:
    """In per cent; what is not all is never rounded to all."""
    text = f"{share:.1%}"
    return "over 99.9%" if text == "100.0%" and share < 1 else text


def shares_in_time(attainment: Mapping[str, float | None]) -> str:
    """Of each tier that had requests; "nothing" where none had."""
    parts = [f"{per_cent(share)} of {tier}" for tier, share in attainment.items()
            if share is not None]  # fmt: skip
    return f"{', '.join(parts) or 'nothing'} in time"
