"""Seconds of the core as the UTC datetimes of tables."""

from __future__ import annotations

import numpy as np
import polars as pl

from simulation.arrays import FloatArray


def times(start_s: float, step_s: float, count: int) -> pl.Series:
    """``count`` moments, ``step_s`` apart."""
    return moments(start_s, step_s * np.arange(count, dtype=np.float64))


def moments(start_s: float, after_s: FloatArray) -> pl.Series:
    """``after_s`` seconds after ``start_s``, to the microsecond: apart, since epoch seconds with a
    fraction would round it."""
    epoch_us = np.round(start_s * 1e6).astype(np.int64) + np.round(after_s * 1e6).astype(np.int64)
    return pl.Series("time", epoch_us).cast(pl.Datetime("us", "UTC"))
