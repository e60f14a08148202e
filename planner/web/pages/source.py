"""Build the page of a live source: its last days as read, with gaps."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import polars as pl
from django.utils import timezone

from planner.inputs.live.publication import series_name
from planner.models import Source
from planner.outputs.render.figure import MAX_POINTS, PALETTE, UTC, Figure, line, plain_figure
from planner.selectors.sources import source_gaps, source_series

DAYS = 7
LINES = 6


def source_context(source: Source) -> dict[str, Any]:
    samples = source_series(source, start=timezone.now() - timedelta(days=DAYS))
    if samples.bins.is_empty():  # without recent data, the last days with data
        end = source.trace.end_at if source.trace is not None else None
        if end is not None:
            samples = source_series(source, start=end - timedelta(days=DAYS), end=end)
    return {
        "gaps": source_gaps(source),
        "days": DAYS,
        "rates": _figure(samples.bins, source, ("requests",), "requests/s"),
        "queues": _figure(samples.bins, source, ("waiting", "running"), "requests, mean of a bin"),
        "kv": _figure(samples.bins, source, ("kv_use",), "share of the KV cache in use"),
        "speed": _figure(samples.bins, source, ("tbt_mean_s",), "s between tokens, mean of a bin"),
        "power": _figure(samples.bins, source, ("power_w",), "W"),
    }


def _figure(bins: pl.DataFrame, source: Source, fields: tuple[str, ...], y: str) -> Figure | None:
    """Draw the LINES largest series; return None if nothing is known.

    An unknown bin interrupts the line.
    """
    if bins.is_empty():
        return None
    start, end = int(str(bins["bin_start"].min())), int(str(bins["bin_start"].max()))
    step = source.bin_s * max(1, -(-((end - start) // source.bin_s + 1) // MAX_POINTS))
    grid = pl.DataFrame({"at": pl.int_range(start - start % step, end + 1, step, eager=True)})
    courses = []
    for (model, region, tier), group in bins.group_by("model", "region", "tier"):
        for field in fields:
            known = group.drop_nulls(field)
            if known.is_empty():
                continue
            rate = pl.col(field).mean() / (source.bin_s if field == "requests" else 1)
            course = (
                known.group_by((pl.col("bin_start") // step * step).alias("at"))
                .agg(rate.alias("y"))
                .join(grid, on="at", how="right")
                .sort("at")
            )
            name = series_name(str(model), str(region), str(tier), source.name)
            label = name if len(fields) == 1 else f"{name}, {field}"
            courses.append((float(known[field].sum()), label, course))
    if not courses:
        return None
    courses.sort(key=lambda ranked: (-ranked[0], ranked[1]))
    lines = [
        line(
            pl.from_epoch(course["at"], "s").dt.strftime("%Y-%m-%d %H:%M:%S").to_list(),
            course["y"].round(4).to_list(),
            label,
            PALETTE[place % len(PALETTE)],
            width=1.4,
            hover=f"%{{y:,.4~g}} {y.split(',')[0]}",
            connectgaps=False,
        )
        for place, (_, label, course) in enumerate(courses[:LINES])
    ]
    return plain_figure(
        lines, height=340, x=UTC, y=y, together=True, showlegend=True, xaxis={"type": "date"}
    )
