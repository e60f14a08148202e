"""Publish a growing series as the store of a trace, for scenarios, forecasts and pages."""

import hashlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from planner.errors import IngestError
from planner.files.atomic_write import replace_folder
from planner.inputs.ingest.demand import demand_figures
from planner.inputs.ingest.grid import AMOUNTS as GRID_AMOUNTS
from planner.inputs.ingest.grid import Grid
from planner.inputs.ingest.report import UTC, IngestReport, moment_text
from planner.inputs.ingest.store import (
    DEMAND,
    LENGTHS,
    MAX_BINS,
    write_demand,
    write_report,
)
from planner.inputs.live.samples import AMOUNTS, KEYS, Samples
from simulation.arrays import FloatArray

NS_PER_S = 1_000_000_000  # ns per s
SAMPLE_SIZE = 1000  # values drawn from a histogram
FORMAT = "live"
LENGTH_FIELDS = ("input_tokens", "output_tokens")


def publish(samples: Samples, name: str, store: Path) -> IngestReport:
    """Write the samples of the live source ``name`` into ``store`` as a trace for scenarios.

    ``store`` is replaced as a whole or not at all. ``samples`` are as returned by
    GrowingSeries.read. All series cover the same span of time. Bins without a reading are gaps.
    Raise IngestError if no bin has a request or token.
    """
    began = time.perf_counter()
    grids, notes = _grids(samples, name)
    with replace_folder(store) as work:
        write_demand(work, grids)
        if lengths := list(_lengths(samples, name)):
            pl.concat(lengths).write_parquet(work / LENGTHS)
            notes.append(
                "Lengths are drawn from the source's histograms, prompt and answer "
                "separately, and scaled to the tokens of each bin."
            )
        report = _report(work, grids, samples, name, notes, time.perf_counter() - began)
        write_report(work, report)
    return report


def series_name(model: str, region: str, tier: str, name: str) -> str:
    """Return ``model``, ``region`` and ``tier`` that are not "", or else the source's ``name``."""
    return " / ".join(part for part in (model, region, tier) if part) or name


def _grids(samples: Samples, name: str) -> tuple[list[Grid], list[str]]:
    """Return a grid per series, all over one span of time, and notes on gaps and corrections.

    Raise IngestError if no bin has an amount, or for too many bins.
    """
    known_bins = samples.bins.filter(pl.any_horizontal(pl.col(*AMOUNTS).is_not_null()))
    if known_bins.is_empty():
        raise IngestError(
            f"Source {name} has counted no request or token yet. Read it again once it has."
        )
    bin_s, bin_starts_s = samples.bin_s, known_bins["bin_start"].to_numpy()
    start_s = int(bin_starts_s.min())
    bins = (int(bin_starts_s.max()) - start_s) // bin_s + 1
    groups = known_bins.partition_by(*KEYS, as_dict=True, maintain_order=True)
    all_bins = bins * len(groups)
    if all_bins > MAX_BINS:
        raise IngestError(
            f"Source {name} has {all_bins:,} bins of {bin_s} s, and {MAX_BINS:,} are allowed. Make "
            "one with wider bins."
        )
    grids, corrected_bins = [], 0
    for key, group in groups.items():
        model, region, tier = map(str, key)
        amounts, corrected = _amounts(group, (group["bin_start"] - start_s) // bin_s, bins)
        corrected_bins += corrected
        identity = {
            "name": series_name(model, region, tier, name),
            "model": model or None, "region": region or None, "tier": tier or None,
        }  # fmt: skip
        grids.append(Grid(identity, start_s * NS_PER_S, bin_s * NS_PER_S, amounts))
    notes = []
    if gaps := sum(grid.gaps for grid in grids):
        notes.append(f"{gaps:,} of {all_bins:,} bins were not measured: they are gaps.")
    if corrected_bins:
        notes.append(
            f"In {corrected_bins:,} bins fewer tokens than requests were counted, as engines count "
            "them at different times. These bins get one token per request."
        )
    return grids, notes


def _amounts(
    rows: pl.DataFrame, bin_index: pl.Series, bins: int
) -> tuple[dict[str, FloatArray], int]:
    """Return the amounts of a series ``[bins]``, and how many bins got more tokens than counted.

    Bins without a sample are unknown.
    """
    amounts = {field: np.full(bins, np.nan) for field in GRID_AMOUNTS}
    for field in AMOUNTS:
        values = rows[field].cast(pl.Float64).fill_null(np.nan).to_numpy()
        amounts[field][bin_index.to_numpy()] = values
    # Engines count tokens and requests at different times. A request has at least one token.
    is_corrected = np.zeros(bins, np.bool_)
    for field in LENGTH_FIELDS:
        has_fewer = amounts[field] < amounts["requests"]
        amounts[field][has_fewer] = amounts["requests"][has_fewer]
        is_corrected |= has_fewer
    return amounts, int(is_corrected.sum())


def _lengths(samples: Samples, name: str) -> Iterator[pl.DataFrame]:
    """Yield a sample of tokens per request from histograms, by series and LENGTH_FIELDS."""
    histograms = samples.histograms.filter(pl.col("what").is_in(LENGTH_FIELDS))
    groups = histograms.sort(*KEYS, "what").partition_by(*KEYS, "what", as_dict=True)
    for (model, region, tier, what), group in groups.items():
        tokens = sample_of(group)
        if tokens is None:
            continue
        series = series_name(str(model), str(region), str(tier), name)
        yield pl.DataFrame({"tokens": tokens}).select(
            pl.lit(series).alias("series"), pl.lit(what).alias("field"), "tokens"
        )


def _report(
    folder: Path, grids: list[Grid], samples: Samples, name: str, notes: list[str], seconds: float
) -> IngestReport:
    """Return the report of the trace in ``folder``, as if it had been read from a file."""
    # A live source has no file, so the hash is that of the stored content.
    files = (folder / DEMAND, folder / LENGTHS)
    contents = [file.read_bytes() for file in files if file.exists()]
    figures = demand_figures(grids, UTC)
    labels: dict[str, Any] = {}
    for label in KEYS:
        names = dict.fromkeys(grid.identity[label] for grid in grids)
        labels[f"{label}s"] = tuple(filter(None, names))
    return IngestReport(
        trace=name,
        format=FORMAT,
        rows=samples.bins.height,
        clock=UTC,
        start=moment_text(figures["start_ns"], UTC),
        end=moment_text(figures["end_ns"], UTC),
        **figures,
        **labels,
        columns={},
        notes=tuple(notes),
        provenance=f"measured, read live from {name}",
        sha256=hashlib.sha256(b"".join(contents)).hexdigest(),
        bytes=sum(map(len, contents)),
        seconds=seconds,
    )


def sample_of(histogram: pl.DataFrame) -> FloatArray | None:
    """Return SAMPLE_SIZE values at evenly spaced ranks of a histogram; None if it is empty.

    ``histogram`` has the columns least, most and count of one quantity, over any number of bins.
    Within a bucket, values are spread evenly on a logarithmic scale. The first bucket starts at a
    tenth of its bound, or at 1 if that is less. Values beyond the last finite bound are set to it,
    as no upper bound is known.
    """
    table = histogram.group_by("least", "most").agg(pl.col("count").sum())
    table = table.filter(pl.col("count") > 0).sort("most", "least")
    if table.is_empty():
        return None
    lower, upper, counts = (table[name].to_numpy() for name in ("least", "most", "count"))
    last_finite = np.maximum(lower, 1e-9)  # of the last bucket, which has no upper bound
    log_upper = np.log(np.where(np.isfinite(upper), upper, last_finite))
    first_lower = np.minimum(1.0, upper / 10)
    log_lower = np.log(np.where(lower > 0, lower, first_lower))
    cumulative = np.cumsum(counts)
    ranks = (np.arange(SAMPLE_SIZE) + 0.5) / SAMPLE_SIZE * cumulative[-1]
    bucket = np.searchsorted(cumulative, ranks)  # of each rank
    counts_below = cumulative[bucket] - counts[bucket]
    position = (ranks - counts_below) / counts[bucket]  # 0 to 1 in the bucket
    width = log_upper - log_lower
    values = np.exp(log_lower[bucket] + position * width[bucket])
    return np.asarray(np.sort(values), np.float64)
