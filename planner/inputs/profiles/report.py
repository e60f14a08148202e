"""Describe a fitted profile: its parameters, its range, and each measurement with its error."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import polars as pl

from simulation.arrays import BoolArray, FloatArray
from simulation.performance.fitting.compare import Residuals
from simulation.performance.fitting.fit_linear import Parameter
from simulation.performance.rows import BenchmarkRows

MILLI = ("s", "s per sequence", "s per token")  # units that are shown in thousandths
LOADS = {  # columns of benchmark rows that state the load
    "batch": "sequences in a batch",
    "concurrency": "requests in flight",
    "isl": "input tokens",
    "osl": "output tokens",
}


def residual_table(residuals: Residuals, rows: BenchmarkRows) -> pl.DataFrame:
    """Return one row per measurement of ``rows``: measured and predicted value, error, flags."""
    labels = []  # by which users find a row in their file
    for i in residuals.row.tolist():
        loads = {name: getattr(rows, name)[i] for name in LOADS}
        stated = [f"{name} {load:,.0f}" for name, load in loads.items() if np.isfinite(load)]
        labels.append(", ".join([f"row {i + 1}", *stated]))
    return measured_and_predicted(
        residuals.quantity.tolist(),
        labels,
        residuals.measured_s,
        residuals.predicted_s,
        inside=residuals.inside,
        outlier=residuals.outlier,
    )


def measured_and_predicted(
    quantity: Sequence[str] | str,
    labels: Sequence[str],
    measured_s: FloatArray,
    predicted_s: FloatArray,
    *,
    inside: BoolArray | bool = True,
    outlier: BoolArray,
) -> pl.DataFrame:
    """Return a row per measurement: values in ms, relative error and flags.

    ``inside`` are measurements in the range that the profile was fitted to.
    """
    rows = len(labels)
    return pl.DataFrame(
        {
            "quantity": [quantity] * rows if isinstance(quantity, str) else quantity,
            "unit": ["ms"] * rows,
            "label": labels,
            "measured": measured_s * 1000,
            "predicted": predicted_s * 1000,
            "error": predicted_s / measured_s - 1,
            "inside": np.broadcast_to(inside, rows),
            "outlier": outlier,
        }
    )


def parameter_documents(parameters: Iterable[Parameter]) -> dict[str, dict[str, Any]]:
    """Return value, 95% interval (None: unknown) and unit of each parameter; seconds in ms."""
    documents = {}
    for parameter in parameters:
        scale, unit = (
            (1000, f"m{parameter.unit}") if parameter.unit in MILLI else (1, parameter.unit)
        )
        finite = np.isfinite(parameter.low) and np.isfinite(parameter.high)
        documents[parameter.name] = {
            "value": parameter.value * scale,
            "low": parameter.low * scale if finite else None,
            "high": parameter.high * scale if finite else None,
            "unit": unit,
        }
    return documents


def range_words(columns: Iterable[tuple[FloatArray, str]]) -> str:
    """Return the ranges of columns in words, such as "1 to 32 sequences in a batch".

    ``columns`` are pairs of values and the noun for them. Columns without a number are left out.
    """
    parts = []
    for values, noun in columns:
        finite = values[np.isfinite(values)]
        if finite.size:
            low, high = finite.min(), finite.max()
            span = f"{low:,.0f}" if low == high else f"{low:,.0f} to {high:,.0f}"
            parts.append(f"{span} {noun}")
    return ", ".join(parts)


def range_of(rows: BenchmarkRows) -> str:
    """Return the range of each load of benchmark rows in words."""
    return range_words((getattr(rows, name), noun) for name, noun in LOADS.items())
