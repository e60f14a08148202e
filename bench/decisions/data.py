"""Real traffic as files that the product ingests, and the window that is decided on in each.

Sources, licences and quirks: ../shared/data/README.md.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

TRACES = Path(__file__).parents[2] / "../shared/data/traces"
HOUR, DAY = 3600, 86_400


@dataclass(frozen=True, slots=True)
class Data:
    """A trace: how its file is made, which window is planned, and how it enters a scenario."""

    name: str
    file: str  # in TRACES
    write: Callable[[Path, Path], dict[str, Any]]  # (file, where to): what ingesting is told
    horizon: dict[str, Any]  # the last whole day, or the last third of an hour: not chosen
    rps: float  # its requests a second on average
    lengths: dict[str, Any] = field(default_factory=dict)  # of a source that holds counts
    diurnal: bool = False
    prefixes: bool = False
    prompts: float = 1.0  # limits of TTFT are so many times as long: the prompts are

    @property
    def days(self) -> bool:
        """Return whether the window lasts a day or more."""
        return int(self.horizon["duration_s"]) >= DAY


def _azure(service: str) -> Callable[[Path, Path], dict[str, Any]]:
    def write(file: Path, to: Path) -> dict[str, Any]:
        table = pl.read_csv(file, try_parse_dates=True).filter(pl.col("service") == service)
        return _demand(
            table.head(len(table) - 1).select(  # the last label is midnight of day 8
                time=pl.col("time_utc").dt.strftime("%Y-%m-%dT%H:%M:%SZ"),
                requests=pl.col("requests").cast(pl.Float64),
            ),
            to,
            10.0,
        )

    return write


def _burstgpt(kind: str) -> Callable[[Path, Path], dict[str, Any]]:
    def write(file: Path, to: Path) -> dict[str, Any]:
        table = pl.read_csv(file).select(
            time=(pl.col("day") * DAY + pl.col("hour") * HOUR).cast(pl.Float64),
            requests=pl.col(f"{kind}_requests").cast(pl.Float64),
        )
        return _demand(table, to, float(HOUR))

    return write


def _servegen(model: str, days: int) -> Callable[[Path, Path], dict[str, Any]]:
    """Return a function that writes the demand of ``model`` on the first ``days`` days."""

    def write(file: Path, to: Path) -> dict[str, Any]:
        table = pl.read_csv(file).filter((pl.col("model") == model) & (pl.col("t_s") < days * DAY))
        rate = pl.col("rate_rps").cast(pl.Float64)
        # A total of exactly 0 is a gap of the collection, not demand.
        table = table.select(
            time=pl.col("t_s").cast(pl.Float64),
            requests=pl.when(rate == 0).then(None).otherwise(600.0 * rate),
        )
        return _demand(table, to, 600.0)

    return write


def _clients(file: Path, to: Path) -> dict[str, Any]:
    """Write the total demand of all clients."""
    table = pl.read_parquet(file).group_by("t_s").agg(pl.col("rate_rps").sum()).sort("t_s")
    table = table.select(
        time=pl.col("t_s").cast(pl.Float64), requests=600.0 * pl.col("rate_rps").cast(pl.Float64)
    )
    return _demand(table, to, 600.0)


def _demand(table: pl.DataFrame, to: Path, bin_s: float) -> dict[str, Any]:
    table.with_columns(series=pl.lit("all")).write_csv(to)
    return {"format": "demand", "bin_s": bin_s, "amounts": "counts"}


def _as_it_is(file: Path, to: Path) -> dict[str, Any]:
    to.write_bytes(file.read_bytes())
    return {}


# Mean lengths of Azure's week (hourly token counts), the spread of its requests of 2023; BurstGPT
# and ServeGen are given chat-like ones, since the files used here hold no lengths (assumed).
CONV = {"input_tokens": {"mean": 1630, "cv": 1.0}, "output_tokens": {"mean": 107, "cv": 1.0}}
CODE = {"input_tokens": {"mean": 2500, "cv": 0.8}, "output_tokens": {"mean": 23, "cv": 1.6}}
CHAT = {"input_tokens": {"mean": 800, "cv": 1.2}, "output_tokens": {"mean": 250, "cv": 0.9}}
# As ServeGen's histograms of the model have them; its images as the tokens they are turned into,
# 1.6 of them in a request.
REASON = {"input_tokens": {"mean": 1270, "cv": 3.1}, "output_tokens": {"mean": 1530, "cv": 1.5}}
IMAGE = {"input_tokens": {"mean": 1442, "cv": 0.9}, "output_tokens": {"mean": 130, "cv": 1.2}}
A_DAY = {"duration_s": DAY, "period_s": HOUR}
EIGHT_HOURS = {"duration_s": 8 * HOUR, "period_s": HOUR}

DATA = (
    Data(
        "azure2024-conv", "azure2024_requests_10s.csv.gz", _azure("conv"),
        A_DAY, 45.1, CONV, diurnal=True,
    ),
    Data(
        "azure2024-code", "azure2024_requests_10s.csv.gz", _azure("code"),
        A_DAY, 27.8, CODE, diurnal=True,
    ),
    Data(
        "burstgpt-conv", "burstgpt_hourly.csv", _burstgpt("conversation"), A_DAY, 0.027, CHAT,
        diurnal=True,
    ),
    Data(
        "servegen-m-large", "servegen_total_rates_10min.csv", _servegen("m-large", 14),
        A_DAY, 196.0, CHAT,
    ),
    Data(
        "servegen-m-mid", "servegen_total_rates_10min.csv", _servegen("m-mid", 13),
        A_DAY, 1790.0, CHAT,
    ),
    Data(
        "azure2023-conv", "azure2023_conv.csv.gz", _as_it_is,
        {"duration_s": 1200, "period_s": 300}, 5.5,
    ),
    Data(
        "mooncake", "mooncake_conversation.jsonl.gz", _as_it_is,
        {"duration_s": 1200, "period_s": 300}, 3.4, prefixes=True, prompts=4.0,
    ),
)  # fmt: skip

# Nothing was decided on these when the rules that recommend were written. Since then,
# servegen-deepseek-r1 led to the second past window of traces without a whole day, so it is not
# unseen in that respect. Of a single day the last third is the window.
UNSEEN = (
    Data(
        "servegen-deepseek-r1", "servegen_deepseek-r1_clients_10min.parquet", _clients,
        EIGHT_HOURS, 16.0, REASON,
    ),
    Data(
        "servegen-mm-image", "servegen_mm-image_clients_10min.parquet", _clients,
        EIGHT_HOURS, 9.5, IMAGE,
    ),
    Data("burstgpt-api", "burstgpt_hourly.csv", _burstgpt("api"), A_DAY, 0.272, CHAT),
)  # fmt: skip
