"""Hold the samples of a live source per bin: amounts, gauges and histograms.

Samples are labelled by model, region and tier.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl

from planner.errors import SourceError

MOST_SAMPLES = 20_000  # in one request
LARGEST = 1e12
EARLIEST = datetime(2000, 1, 1, tzinfo=UTC)
MOST_AHEAD = timedelta(days=1)  # largest accepted clock difference
KEYS = ("model", "region", "tier")  # "" if unknown
AMOUNTS = ("requests", "input_tokens", "output_tokens")  # sums over the bin
GAUGES = {
    "waiting": "requests",  # in queues, mean over the bin, of all replicas
    "running": "requests",  # in batches, mean over the bin, of all replicas
    "kv_use": "",  # share of the KV cache in use, mean over replicas and the bin
    "replicas": "replicas",  # replicas present in the bin
    "power_w": "W",  # of all GPUs, mean over the bin
    "tbt_mean_s": "s",  # mean gap between tokens of the bin
}
# Counted in buckets: lengths in tokens, latencies in seconds.
COUNTED = ("input_tokens", "output_tokens", "ttft_s", "tbt_s", "e2e_s")
# Label of each column.
WORDS = {
    "requests": "Requests",
    "input_tokens": "Input tokens",
    "output_tokens": "Output tokens",
    "waiting": "Requests waiting",
    "running": "Requests running",
    "kv_use": "KV cache in use",
    "replicas": "Replicas",
    "power_w": "Power of the GPUs",
    "tbt_mean_s": "Mean TPOT",
    "ttft_s": "TTFT",
    "tbt_s": "TPOT",
    "e2e_s": "End to end",
}
BINS = {
    **dict.fromkeys(KEYS, pl.String),
    "bin_start": pl.Int64,  # left edge, whole seconds since the epoch
    "origin": pl.String,  # file that saw the bin; amounts of several add up. "": no file
    "whole": pl.Boolean,  # whether the origin saw all of the bin
    **dict.fromkeys((*AMOUNTS, *GAUGES), pl.Float64),  # null: unknown
}
HISTOGRAMS = {
    **dict.fromkeys(KEYS, pl.String),
    "bin_start": pl.Int64,
    "origin": pl.String,
    "what": pl.String,  # one of COUNTED
    "least": pl.Float64,  # lower bound of the bucket; needed, as empty buckets are not kept
    "most": pl.Float64,  # upper bound, included; inf for the last
    "count": pl.Float64,  # in this bucket alone
}


@dataclass(frozen=True, slots=True, eq=False)
class Samples:
    """Samples in bins of ``bin_s`` seconds: tables with the columns of BINS and HISTOGRAMS."""

    bin_s: int
    bins: pl.DataFrame
    histograms: pl.DataFrame

    @property
    def requests(self) -> float:
        return float(self.bins["requests"].fill_nan(None).sum() or 0.0)

    @property
    def span(self) -> tuple[int, int] | None:
        """Return the left edge of the first bin and the right edge of the last, or None."""
        if self.bins.is_empty():
            return None
        first, last = self.bins["bin_start"].min(), self.bins["bin_start"].max()
        return int(str(first)), int(str(last)) + self.bin_s


def _buckets_of_row(row: Mapping[str, Any], keys: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a row of HISTOGRAMS for each bucket in a sent ``row``; ``keys`` identify its bin."""
    for field, quantity in HISTOGRAM_FIELDS.items():
        lower = 0.0
        buckets = row.get(field) or {}
        counts = sorted((float(bound), float(count)) for bound, count in buckets.items())
        for upper, count in counts:
            bucket = {"what": quantity, "least": lower, "most": upper, "count": count}
            yield {**keys, "origin": "", **bucket}
            lower = upper


def bins_frame(rows: Iterable[dict[str, object]] | pl.DataFrame) -> pl.DataFrame:
    """Return rows as a table with all columns of BINS.

    Keys and origin are "" if null or absent, ``whole`` is True, and other columns are null.
    """
    if not isinstance(rows, pl.DataFrame):
        rows = pl.DataFrame(list(rows), infer_schema_length=None)
    blank = {**dict.fromkeys((*KEYS, "origin"), ""), "whole": True}
    columns = {}
    for name, kind in BINS.items():
        column = (pl.col(name) if name in rows.columns else pl.lit(None)).cast(kind)
        columns[name] = column.fill_null(blank[name]) if name in blank else column
    return rows.select(**columns)


def no_histograms() -> pl.DataFrame:
    """Return an empty table with the columns of HISTOGRAMS."""
    return pl.DataFrame(schema=HISTOGRAMS)


# Fields of a sample with a histogram: the count of each bucket alone, by its upper bound in tokens
# or seconds ("+Inf" for the last).
HISTOGRAM_FIELDS = {
    "input_lengths": "input_tokens",
    "output_lengths": "output_tokens",
    "ttft": "ttft_s",
    "tbt": "tbt_s",
    "e2e": "e2e_s",
}
FIGURES = (*AMOUNTS, *GAUGES)


def samples_of_rows(rows: Sequence[Mapping[str, Any]], bin_s: int, now: datetime) -> Samples:
    """Return the samples that a program sent, in bins of ``bin_s`` seconds.

    A row has the time, KEYS, FIGURES and HISTOGRAM_FIELDS of one bin of one model, region and tier,
    of the types that the REST API checks. Its ``time`` is the start of the bin, with a time zone,
    and not after ``now``. A figure that is absent or None is unknown. Raise SourceError that names
    the row and the field.
    """
    if not 1 <= len(rows) <= MOST_SAMPLES:
        raise SourceError(
            f"samples: {len(rows):,} were sent. Send 1 to {MOST_SAMPLES:,} at a time."
        )
    bins, seen_bins = [], set()
    histograms: list[dict[str, Any]] = []
    for index, row in enumerate(rows):
        location = f"samples[{index}]"
        _check(row, location, bin_s, now)
        keys = {key: row.get(key, "") for key in KEYS}
        keys["bin_start"] = int(row["time"].timestamp())
        if tuple(keys.values()) in seen_bins:
            raise SourceError(f"{location}: this bin of this series is in the message twice.")
        seen_bins.add(tuple(keys.values()))
        bins.append(keys | {name: row.get(name) for name in FIGURES})
        histograms += _buckets_of_row(row, keys)
    return Samples(bin_s, bins_frame(bins), pl.DataFrame(histograms, schema=HISTOGRAMS))


def _check(row: Mapping[str, Any], location: str, bin_s: int, now: datetime) -> None:
    """Raise SourceError, naming ``location``, for a row with an invalid value, or without any."""
    time: datetime = row["time"]
    if not EARLIEST <= time <= now + MOST_AHEAD:
        raise SourceError(f"{location}.time: {time.isoformat()} is not in the past.")
    figures = {name: row[name] for name in FIGURES if row.get(name) is not None}
    if not figures:
        raise SourceError(f"{location}: this bin is empty. Give at least requests.")
    for name, value in figures.items():
        if not 0 <= value <= LARGEST:
            raise SourceError(f"{location}.{name}: give a number from 0 to {LARGEST:g}.")
    for name in HISTOGRAM_FIELDS:
        for upper_bound, count in (row.get(name) or {}).items():
            try:
                bound = float(upper_bound)
            except ValueError:
                bound = -1.0
            if not bound > 0 or not 0 <= count <= LARGEST:
                raise SourceError(
                    f"{location}.{name}: {upper_bound}: {count} is no bucket. Give upper bounds "
                    "above 0 (or +Inf) and the count of each bucket, not cumulative."
                )
    if time.timestamp() % bin_s:
        raise SourceError(
            f"{location}.time: {time:%Y-%m-%dT%H:%M:%SZ} is not the start of a bin of "
            f"{bin_s} s. Send sums of whole bins, with their start as time."
        )
