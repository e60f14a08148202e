"""Summarize a log with one line per request: each run becomes a benchmark row.

No column holds the load that a request met. By Little's law, the mean number in flight is the sum
of all end-to-end times over the duration of the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import polars as pl

from planner.errors import IngestError
from planner.inputs.ingest.clock import choose_clock, read, unit_of
from planner.inputs.ingest.names import SYNONYMS, compact_name
from simulation.arrays import FloatArray
from simulation.performance.rows import BenchmarkRows, benchmark_rows

LOG_ROWS = 20
TEXTS = ("model", "gpu", "precision")
ARRIVAL = ("arrivals", "arrivalms", "arrivaltime", "arrivaltimes", "arrivaltimems")


def arrival_column(header: Sequence[str], rows: int) -> str | None:
    """Return the name of the arrival column, or None; a table with one is a log of requests.

    From LOG_ROWS rows on, any name of a time column is accepted. A shorter table may have one row
    per run instead.
    """
    names = (*ARRIVAL, *SYNONYMS["arrival"]) if rows >= LOG_ROWS else ARRIVAL
    titles = {compact_name(title): title for title in header}
    return next((titles[name] for name in names if name in titles), None)


def arrivals_s(cells: pl.Series, name: str) -> FloatArray:
    """Return arrivals in seconds, from numbers or dates."""
    frame = cells.to_frame()
    when = choose_clock(frame, (cells.name,), name=name, unit=unit_of(cells.name))
    arrivals = read(frame, when)
    if any(wrong.any() for wrong in arrivals.refused.values()):
        raise IngestError(
            f"{name}: {cells.name} has values that are not times. Correct these rows."
        )
    return np.asarray(arrivals.ns / 1e9)


def runs(
    texts: Mapping[str, Sequence[str]], numbers: Mapping[str, FloatArray]
) -> tuple[BenchmarkRows, list[str]]:
    """Return one row per model, GPU, precision and tp, aggregated over its requests.

    ``numbers`` has isl, osl, arrival_s, e2e_s, ttft_s and tbt_s of every request. Lengths are means
    and times are medians, as benchmarks report them.
    """
    needed = ("arrival_s", "ttft_s", "e2e_s", "isl", "osl")
    is_complete = np.isfinite(sum(numbers[name] for name in needed))
    if not is_complete.any():
        raise IngestError("No request has times to its first and last token. Add them.")
    count, failed = int(is_complete.sum()), int((~is_complete).sum())
    missing = dict.fromkeys(TEXTS, [""] * is_complete.size) | {
        "tp": np.full(is_complete.size, np.nan)
    }
    frame = pl.DataFrame({**missing, **texts, **numbers}).filter(is_complete).fill_nan(None)
    arrival, e2e, osl = pl.col("arrival_s"), pl.col("e2e_s"), pl.col("osl")
    # From the first arrival to the last completion.
    seconds = (arrival + e2e).max() - arrival.min()
    rows = frame.group_by(*TEXTS, "tp", maintain_order=True).agg(
        pl.col("isl", "osl").mean(),
        pl.col("ttft_s", "tbt_s", "e2e_s").median(),
        (e2e.sum() / seconds).alias("concurrency"),
        (osl.sum() / seconds).alias("throughput"),
        osl.len().cast(pl.Float64).alias("completed"),
        (osl.len() * failed / count).alias("failed"),
    )
    texts_of_run = {name: rows[name].to_list() for name in TEXTS}
    columns = {
        name: rows[name].fill_null(np.nan).to_numpy() for name in rows.columns if name not in TEXTS
    }
    notes = [
        f"One line per request: {count:,} requests were summed up as {rows.height} runs, with mean "
        "lengths, median times and the mean number in flight (Little's law)."
    ]
    if failed:
        notes.append(f"{failed:,} requests have no times and count as failed.")
    return benchmark_rows(texts_of_run, columns), notes
