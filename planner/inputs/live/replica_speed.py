"""Derive the speed of replicas from samples of live sources: mean TBT by load."""

from dataclasses import dataclass

import polars as pl

from simulation.arrays import FloatArray

MOST_INTERVALS = 2000  # of a series; the Kalman filter processes them one at a time
NEEDED = ("requests", "input_tokens", "output_tokens", "running", "replicas", "tbt_mean_s")


@dataclass(frozen=True, slots=True, eq=False)
class ServedSpeed:
    """The measured speed of one model in one region over time; arrays ``[intervals]``."""

    model: str  # "" if unknown, as the region
    region: str
    at_s: FloatArray  # start of each interval, epoch seconds
    running: FloatArray  # mean batch size of a replica
    requests_per_s: FloatArray  # per replica
    input_tokens: FloatArray  # mean per request
    output_tokens: FloatArray
    tbt_s: FloatArray  # mean over tokens


def served_speeds(bins: pl.DataFrame, bin_s: int) -> list[ServedSpeed]:
    """Return the speed of each model and region (all tiers) from bins with all of NEEDED.

    A speed has arrays by interval of one or more bins, in the order of the fields of ServedSpeed.
    """
    complete = bins.filter(
        pl.all_horizontal(pl.col(name).fill_nan(None).is_not_null() for name in NEEDED),
        pl.all_horizontal(pl.col("requests", "output_tokens", "replicas", "tbt_mean_s") > 0),
    )
    served = []
    for (model, region), rows in complete.group_by("model", "region", maintain_order=True):
        # Join bins to intervals, so that at most MOST_INTERVALS remain.
        bins_per_interval = -(-rows["bin_start"].n_unique() // MOST_INTERVALS)  # rounded up
        intervals = _means_of_intervals(rows, bin_s * bins_per_interval)
        columns = intervals.select(
            pl.col("bin_start").cast(pl.Float64), "running", pl.col("requests") / bin_s,
            "input_tokens_each", "output_tokens_each", "tbt_mean_s",
        )  # fmt: skip
        arrays = (column.to_numpy() for column in columns)
        served.append(ServedSpeed(str(model), str(region), *arrays))
    return served


def _means_of_intervals(rows: pl.DataFrame, interval_s: int) -> pl.DataFrame:
    """Return the means of bins over intervals, by the interval's ``bin_start``.

    ``requests`` and ``running`` are per replica and bin, tokens per request (``_each``), and
    ``tbt_mean_s`` per output token.
    """
    tokens, requests = pl.col("output_tokens"), pl.col("requests")
    mean_tbt_s = (pl.col("tbt_mean_s") * tokens).sum() / tokens.sum()
    bins = rows.group_by("bin_start").agg(  # of all tiers
        pl.col("requests", "input_tokens", "output_tokens", "running").sum(),
        pl.col("replicas").max(),
        mean_tbt_s,
    )
    tokens_each = pl.col("input_tokens", "output_tokens").sum() / requests.sum()
    intervals = bins.group_by(pl.col("bin_start") // interval_s * interval_s).agg(
        (pl.col("requests", "running") / pl.col("replicas")).mean(),
        tokens_each.name.suffix("_each"),
        mean_tbt_s,
    )
    return intervals.sort("bin_start")
