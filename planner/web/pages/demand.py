"""A stored trace over time, as the two charts of its page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl

from planner import storage
from planner.ingest import DemandColumns, bin_requests, read_demand
from planner.models import Trace
from planner.web.charts.figure import MAX_POINTS
from planner.web.charts.over_time import rate_figure

BINS_S = (1, 10, 60, 300, 900, 3600, 21600, 86400)
BINS_WANTED = 600  # enough to see the shape of any trace


def trace_figures(trace: Trace) -> dict[str, Any]:
    """Requests per second by series, and tokens per second where the file counts them."""
    folder, report = storage.folder(trace.store), trace.report
    if trace.kind == Trace.Kind.DEMAND:
        columns = read_demand(folder)
    else:
        span_s = (report["end_ns"] - report["start_ns"]) / 1e9
        columns = bin_requests(folder, bin_width(span_s))
    figures: dict[str, Any] = {}
    requests = {series.name: series.requests for series in columns}
    if any(np.isfinite(values).any() for values in requests.values()):
        rates = _rates(columns, requests)
        figures["requests"] = rate_figure(rates, unit="requests/s", clock=report["clock"])
    for field in ("input_tokens", "output_tokens", "total_tokens"):
        tokens = {
            series.name: values
            for series in columns
            if (values := getattr(series, field)) is not None
        }
        if tokens:
            unit = f"{field.replace('_', ' ')}/s"
            rates = _rates(columns, tokens)
            figures[field] = rate_figure(rates, unit=unit, clock=report["clock"])
    return figures


def bin_width(span_s: float) -> float:
    """A round width that gives about BINS_WANTED bins."""
    return next((width for width in BINS_S if span_s / width <= BINS_WANTED), BINS_S[-1])


def _rates(columns: Sequence[DemandColumns], amounts: dict[str, Any]) -> pl.DataFrame:
    """Columns series, time and per_s, a gap being null; bins too many to see are joined."""
    frames = []
    for series in columns:
        if series.name not in amounts:
            continue
        values = amounts[series.name]
        joined = max(1, math.ceil(len(values) / MAX_POINTS))
        whole = len(values) // joined * joined
        per_s = values[:whole].reshape(-1, joined).sum(axis=1) / (series.bin_s * joined)
        start_us = round(series.start_s * 1e6)
        step_us = series.bin_s * joined * 1e6
        moments = (start_us + np.round(np.arange(len(per_s)) * step_us)).astype(np.int64)
        frames.append(
            pl.DataFrame(
                {
                    "series": [series.name] * len(per_s),
                    "time": pl.Series(moments).cast(pl.Datetime("us", "UTC")),
                    "per_s": pl.Series(per_s).fill_nan(None),
                }
            )
        )
    return pl.concat(frames)
