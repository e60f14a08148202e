"""Turn a file that was read as an upload into samples, counted in the source's bins."""

from pathlib import Path

import numpy as np
import polars as pl

from planner.errors import IngestError
from planner.inputs.ingest.report import UTC, IngestReport
from planner.inputs.ingest.store import DemandColumns, bin_requests, read_demand, scan_requests
from planner.inputs.live.samples import (
    AMOUNTS,
    HISTOGRAMS,
    KEYS,
    Samples,
    bins_frame,
    no_histograms,
)
from simulation.arrays import FloatArray

STEPS = 4  # buckets of lengths per doubling of tokens


def samples_of_file(store: Path, report: IngestReport, bin_s: int, others: pl.DataFrame) -> Samples:
    """Return the demand in a file of a live source as samples in bins of ``bin_s`` seconds.

    ``store`` is the folder of the imported file, and ``report`` its report. ``others`` lists the
    bins that files of the source reported before (GrowingSeries.origins). Requests are added to
    those of other files in the same bin, because logs may be cut within a bin. Counts per bin
    replace earlier counts.

    Raises IngestError for a file without calendar times, with bins that do not fit, or with
    requests that another file has.
    """
    if report.clock != UTC:
        raise IngestError(
            f"{report.trace} has no calendar times, only seconds from its start, so it cannot "
            "extend a series with dates. Export it with dates."
        )
    if report.kind == "demand":
        return Samples(bin_s, _bins_of_demand(store, report, bin_s), no_histograms())
    origin = report.sha256[:16]
    bins = _bins_of_requests(bin_requests(store, bin_s), origin)
    in_both = bins.join(
        others.filter(pl.col("origin") != origin), on=[*KEYS, "bin_start"], how="inner"
    )
    # Two files may each have a part of a bin. If one has all of it, its requests count twice. The
    # columns tell who has the complete bin: ``whole`` this file, and ``whole_right`` the other.
    counted_twice = in_both.filter(pl.col("whole") | pl.col("whole_right"))
    if counted_twice.height:
        starts = pl.from_epoch(counted_twice["bin_start"].sort(), "s")
        start = starts.dt.strftime("%Y-%m-%d %H:%M")[0]
        raise IngestError(
            f"{report.trace} holds requests of a time that another file of this source has, from "
            f"{start} on, and they would count twice. Cut it there."
        )
    return Samples(bin_s, bins, _lengths(store, bin_s, origin))


def _bins_of_requests(series: list[DemandColumns], origin: str) -> pl.DataFrame:
    """Return a log of requests as a table of BINS, whose first and last bin are partly seen."""
    tables = []
    for columns in series:
        bins = len(columns.requests)
        start = round(columns.start_s) + round(columns.bin_s) * np.arange(bins, dtype=np.int64)
        complete = np.ones(bins, bool)
        # The file may begin and end within a bin.
        complete[[0, -1]] = False
        table = _table(columns, start, _amounts(columns))
        tables.append(bins_frame(table.with_columns(whole=complete, origin=pl.lit(origin))))
    return pl.concat(tables)


def _bins_of_demand(store: Path, report: IngestReport, bin_s: int) -> pl.DataFrame:
    """Return a demand file as a table of BINS; raise IngestError unless its bins fit.

    ``bin_s`` must be a whole number of the file's bins, whose amounts are added up.
    """
    tables = []
    for columns in read_demand(store):
        narrow_per_bin = bin_s / columns.bin_s
        if narrow_per_bin < 1 or abs(narrow_per_bin - round(narrow_per_bin)) > 1e-9:
            raise IngestError(
                f"{report.trace} counts in bins of {columns.bin_s:g} s, and no whole number "
                f"fits into the source's {bin_s} s. Export it in narrower bins, or add the "
                "source with wider ones."
            )
        start_s = columns.start_s + columns.bin_s * np.arange(len(columns.requests))
        wide_bin = np.floor(start_s / bin_s + 1e-9).astype(np.int64)  # since the epoch
        index = wide_bin - wide_bin[0]
        amounts = {}
        for field, values in _amounts(columns).items():
            total = np.bincount(index, np.nan_to_num(values))
            known_bins = np.bincount(index, ~np.isnan(values))
            # Unknown if the amount of a narrow bin is unknown or missing.
            amounts[field] = np.where(known_bins >= round(narrow_per_bin), total, np.nan)
        wide_start_s = np.arange(wide_bin[0], wide_bin[-1] + 1, dtype=np.int64) * bin_s
        tables.append(bins_frame(_table(columns, wide_start_s, amounts)))
    return pl.concat(tables)


def _amounts(columns: DemandColumns) -> dict[str, FloatArray]:
    """Return the amounts that a series has, by name, ``[bins]`` each."""
    present = {field: getattr(columns, field) for field in AMOUNTS}
    return {field: values for field, values in present.items() if values is not None}


def _table(
    columns: DemandColumns, start: np.ndarray, amounts: dict[str, FloatArray]
) -> pl.DataFrame:
    """Return ``amounts`` as a table with labels; an unlabelled series uses its name as model."""
    labels = {"model": columns.model, "region": columns.region, "tier": columns.tier}
    if not any(labels.values()) and columns.name:
        labels["model"] = columns.name
    known = {field: pl.Series(values).fill_nan(None) for field, values in amounts.items()}
    return pl.DataFrame({"bin_start": start, **known}).with_columns(
        pl.lit(value or "").alias(label) for label, value in labels.items()
    )


def _lengths(store: Path, bin_s: int, origin: str) -> pl.DataFrame:
    """Return tokens per request as a table of HISTOGRAMS, with STEPS buckets per doubling.

    A bucket has the lengths above ``least`` and up to ``most``.
    """
    report, scan = scan_requests(store)
    start = ((pl.col("arrival_s") + report.start_s) / bin_s).floor().cast(pl.Int64) * bin_s
    keys = [pl.col(key).cast(pl.String).fill_null("") for key in KEYS]
    least = pl.col("most") / 2 ** (1 / STEPS)
    histograms = []
    for what in ("input_tokens", "output_tokens"):
        bucket = (pl.col(what).clip(1).log(2) * STEPS).ceil()
        lengths = scan.select(*keys, bin_start=start, most=2 ** (bucket / STEPS))
        counts = lengths.group_by(*KEYS, "bin_start", "most").agg(count=pl.len())
        columns = counts.with_columns(origin=pl.lit(origin), what=pl.lit(what), least=least)
        histograms.append(columns.collect(engine="streaming"))
    return pl.concat(histograms).select(
        pl.col(name).cast(kind) for name, kind in HISTOGRAMS.items()
    )
