"""Convert values to plain data: JSON without NaN, and UTC datetimes for tables."""

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import Any

import numpy as np
import polars as pl

from planner.domain.formats import percent
from simulation.arrays import FloatArray

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
        return _fields(value)
    raise TypeError(f"{type(value).__name__} has no JSON")


def _fields(document: Any) -> dict[str, Any]:
    """Return the fields of a dataclass as a dict, by the rules of ``as_json``."""
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
    """Return ``value``, or None if it is NaN or infinite."""
    return value if math.isfinite(value) else None


def gpu_words(count: int) -> str:
    """Return "1 GPU" or "2 GPUs"."""
    return f"{count:,} GPU{'' if count == 1 else 's'}"


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
    return f"{', '.join(parts) or 'no requests'}"
