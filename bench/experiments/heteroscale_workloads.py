"""What HeteroScale's dialogue and vision-language services are asked, on public data."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import polars as pl

from bench.experiments.sageserve_day import ARRIVALS, TRACES, Day
from planner.domain.traffic.sources import StoredTrace
from planner.inputs.ingest import IngestOptions, ingest_file

CLIENTS = TRACES / "servegen_mm-image_clients_10min.parquet"
LENGTHS = TRACES / "servegen_token_stats_6h.csv.gz"
BIN_S, WINDOW_S = 600, 21_600  # of its rates and of its lengths
# Spread of the tokens of a request of ServeGen's mm-image, from its own distributions by client
# (data/multimodal/mm-image of alibaba/ServeGen @ f891d118: text, and as many draws of an image's
# tokens as there are images), of which ../shared/data has quantiles.
INPUT_CV, OUTPUT_CV = 0.92, 1.19
STEADY = "vision-steady"  # the same requests, with the day's mean lengths at every hour


@dataclass(frozen=True, slots=True)
class Workload:
    """A stored day of a service and its model; ``without`` are the policies and parts that its data
    does not allow, ``bin_s`` is of what is planned on."""

    name: str
    model: str
    stored: StoredTrace
    series: str
    scale: float
    lengths: dict[str, dict[str, float]]  # where the file has no tokens, and their spread
    bin_s: float = 900.0
    hours: tuple[float, float] = (0.0, 24.0)  # that can be replayed
    date: str | None = None  # None: the trace's clock counts seconds from its start
    without: tuple[str, ...] = ()

    @property
    def clock(self) -> str:
        return "hour of the trace" if self.date is None else "hour (UTC)"

    def moment(self, hour: float) -> str | float:
        """Return an hour of the day in the notation of a scenario."""
        return 3600 * hour if self.date is None else f"{self.date}T{int(hour):02d}:00:00Z"


def dialogue(folder: Path, scale: float, bursts: float = 1.0) -> Workload:
    """Return Azure's conversations with the lengths of the source's service A (section 4.1)."""
    day = Day(folder, scale, bursts)
    lengths = {
        "input_tokens": {"mean": 3000, "cv": day.isl["cv"]},
        "output_tokens": {"mean": 350, "cv": day.osl["cv"]},
    }
    return Workload(
        "dialogue", "qwen3-235b-a22b", day.stored, "conv", scale, lengths, date=str(day.date)
    )


def vision(folder: Path, scale: float, name: str = "vision") -> Workload:
    """Return ServeGen's mm-image, in bins of ten minutes.

    No day precedes it, so its first hour is the history when the replay begins.
    """
    rates = pl.read_parquet(CLIENTS)
    stats = pl.read_csv(LENGTHS).filter(pl.col("model") == "mm-image")
    table = by_bin(rates, stats)
    path, store = folder / f"{name}.csv", folder / f"{name}.store"
    kept = table.select("time", "requests") if name == STEADY else table
    kept.with_columns(series=pl.lit("all")).write_csv(path)
    ingest_file(path, store, IngestOptions(format="demand", bin_s=float(BIN_S), amounts="counts"))
    lengths = {
        f"{kind}_tokens": {
            "mean": table[f"{kind}_tokens"].sum() / table["requests"].sum(),
            "cv": cv,
        }
        for kind, cv in (("input", INPUT_CV), ("output", OUTPUT_CV))
    }
    stored = StoredTrace(path.name, "demand", "relative", store)
    return Workload(
        name, "qwen3-vl-235b-a22b", stored, "all", scale, lengths,
        bin_s=BIN_S, hours=(1.0, 24.0), without=("periodic", "bursts"),
    )  # fmt: skip


def by_bin(rates: pl.DataFrame, stats: pl.DataFrame) -> pl.DataFrame:
    """Return requests, input and output tokens of all clients by bin.

    Each client has its mean lengths of six hours. A client without requests in them has the lengths
    of all others. Tokens of images are per image, and a prompt holds those of all its images.
    """
    means = stats.pivot(on="field", index=["client", "window_start_s"], values="mean")
    images = pl.col("image_count") * pl.col("image_tokens")
    means = means.select(
        pl.col("client").cast(pl.Int64),
        pl.col("window_start_s").cast(pl.Int64),
        isl=pl.col("text_tokens") + images.fill_null(0.0),
        osl=pl.col("output_tokens"),
    )
    asked = rates.select(
        pl.col("client").cast(pl.Int64),
        time=pl.col("t_s").cast(pl.Int64),
        window_start_s=pl.col("t_s").cast(pl.Int64) // WINDOW_S * WINDOW_S,
        requests=BIN_S * pl.col("rate_rps").cast(pl.Float64),
    ).join(means, on=["client", "window_start_s"], how="left")

    def tokens(lengths: str) -> pl.Expr:
        known = pl.col("requests").filter(pl.col(lengths).is_not_null())
        total = (pl.col("requests") * pl.col(lengths)).sum()
        return total / known.sum() * pl.col("requests").sum()

    return (
        asked.group_by("time")
        .agg(pl.col("requests").sum(), input_tokens=tokens("isl"), output_tokens=tokens("osl"))
        .sort("time")
        .with_columns(pl.col("time").cast(pl.Float64))
    )


@dataclass(frozen=True, slots=True)
class Source:
    """Where a workload is from, and the scale at which a fleet is 10 to 30 instances."""

    files: tuple[Path, ...]
    scale: float
    read: Callable[[Path, float], Workload]


SOURCES: dict[str, Source] = {
    "dialogue": Source((ARRIVALS,), 0.75, dialogue),
    "vision": Source((CLIENTS, LENGTHS), 8.0, vision),
    STEADY: Source((CLIENTS, LENGTHS), 8.0, partial(vision, name=STEADY)),
}
