"""Hold the samples of a live source per bin: amounts, gauges and histograms.

Samples are labelled by model, region and tier.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import polars as pl

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
    "tbt_mean_s": "Mean TBT",
    "ttft_s": "TTFT",
    "tbt_s": "TBT",
    "e2e_s": "End to end",
}

BINS = {
    **dict.fromkeys(KEYS, pl.String),
    "bin_start": pl.Int64,  # left edge, whole seconds since the epoch
    "origin": pl.String,  # parts of a bin from several files add up; "" replaces earlier data
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
    """Samples in bins of ``bin_s`` seconds.

    ``bins`` has the columns of BINS, ``histograms`` those of HISTOGRAMS.
    """

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


def bins_frame(rows: Iterable[dict[str, object]] | pl.DataFrame) -> pl.DataFrame:
    """Return rows with all columns of BINS; missing columns get a default."""
    if not isinstance(rows, pl.DataFrame):
        rows = pl.DataFrame(list(rows), infer_schema_length=None)
    blank = {**dict.fromkeys((*KEYS, "origin"), ""), "whole": True}
    return rows.select(
        _column(name, kind, blank.get(name), name in rows.columns) for name, kind in BINS.items()
    )


def _column(name: str, kind: type[pl.DataType], blank: object, there: bool) -> pl.Expr:
    column = (pl.col(name) if there else pl.lit(None)).cast(kind)
    return (column if blank is None else column.fill_null(blank)).alias(name)


def no_histograms() -> pl.DataFrame:
    return pl.DataFrame(schema=HISTOGRAMS)
