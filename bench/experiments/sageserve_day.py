"""What SageServe's figures are held against: Azure's conversations under its section 7.1, as a
scenario of the product's own words."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from planner.domain.outcome import Inputs
from planner.domain.preparation import study_of
from planner.domain.progress import silent
from planner.domain.study import Study
from planner.domain.traffic.sources import StoredTrace
from planner.inputs import catalogue
from planner.inputs.ingest import IngestOptions, ingest_file
from planner.inputs.scenario.document import parse
from simulation.performance.linear import LinearProfile

TRACES = Path(__file__).parents[2] / "../shared/data/traces"
ARRIVALS = TRACES / "azure2024_requests_10s.csv.gz"
# As the source's simulator has it (splitwise-sim, ../shared/reference/README.md): weights of 135 GB
# and a KV cache of 2 x 2 bytes x 80 layers x 8,192 per token, which is eight times what a server
# with grouped-query attention holds; no limit of context; batches of 512 sequences and 2,048
# tokens, prompts whole and first.
MODEL = {
    "name": "llama-2-70b",
    "weight_gb": 135,
    "kv_bytes_per_token": 2 * 2 * 80 * 8192,
    "max_context": 131_072,
    "source": "splitwise-sim, no grouped-query attention",
}
BATCH = {"max_batch": 512, "max_batch_tokens": 2048}
GROUPED_QUERY = {"kv_bytes_per_token": 2 * 2 * 80 * 1024, "source": "shape of Llama-2 70B"}
REGIONS = {"us-east-1": 0.4, "us-east-2": 0.35, "us-west-2": 0.25}
# IW-F and IW-N are 65 to 35 of the interactive requests (the source's figure 3 shows both large and
# gives no number; assumed), interactive to deferrable 3 to 1 (section 7.2, ablation).
FAST = 0.65
USD_PER_GPU_HOUR = 98.32 / 8  # of H100 (section 7.2.1); with one GPU type it decides nothing
HISTORY_DAYS = 3


class Day:
    """The peak day of the trace and the days before it, at ``scale``; ``bursts`` times the load in
    six random stretches of five minutes."""

    def __init__(self, folder: Path, scale: float, bursts: float = 1.0) -> None:
        self.scale = scale
        table = pl.read_csv(ARRIVALS, try_parse_dates=True).filter(pl.col("service") == "conv")
        daily = table.group_by(pl.col("time_utc").dt.date()).agg(pl.col("requests").sum())
        begins = daily["time_utc"].min()
        later = daily.filter((pl.col("time_utc") - begins).dt.total_days() >= HISTORY_DAYS)
        self.date = later.sort("requests")["time_utc"][-1]
        kept = table.filter(pl.col("time_utc").dt.date() <= self.date)
        kept = with_bursts(kept, self.date, bursts)
        self.stored = store_trace(kept, folder, f"day{bursts:g}")
        self.isl, self.osl = lengths()

    def study(
        self,
        *,
        gpu: str = "H100-SXM",
        interactive: float = 0.75,
        scheduler: str = "fcfs",
        grouped_query: bool = False,
    ) -> Study:
        model = MODEL | (GROUPED_QUERY if grouped_query else {})
        scenario = scenario_of(
            [Service(MODEL["name"], model, profile(gpu), "conv", self.scale, (self.isl, self.osl))],
            self.scale,
            self.date,
            gpu=gpu,
            interactive=interactive,
            scheduler=scheduler,
        )
        return study_of(Inputs(parse(json.dumps(scenario)), {"t": self.stored}), silent)


def store_trace(table: pl.DataFrame, folder: Path, name: str) -> StoredTrace:
    """Store the arrivals per 10 s, with a series for each service."""
    path = folder / f"{name}.csv"
    table.select(
        time=pl.col("time_utc").dt.strftime("%Y-%m-%dT%H:%M:%SZ"),
        series=pl.col("service"),
        requests=pl.col("requests"),
    ).write_csv(path)
    store = folder / f"{name}.store"
    ingest_file(path, store, IngestOptions(format="demand", bin_s=10.0, amounts="counts"))
    return StoredTrace(path.name, "demand", "utc", store)


@dataclass(frozen=True, slots=True)
class Service:
    """A model with its profile, the series of the trace that asks it, times ``share``, and the mean
    and spread of prompts and answers; ``model`` is its name where it is built in."""

    name: str
    model: str | dict[str, Any]
    profile: dict[str, Any]
    series: str
    share: float
    lengths: tuple[dict[str, float], dict[str, float]]


def scenario_of(
    services: list[Service],
    scale: float,
    start: Any,
    *,
    days: int = 1,
    gpu: str = "H100-SXM",
    interactive: float = 0.75,
    scheduler: str = "fcfs",
    starts: dict[str, float] | None = None,
) -> dict[str, Any]:
    """Return a scenario of some days of services in three regions, otherwise as in section 7.1.

    The source's fleet serves ten million requests. A smaller scale gets a smaller fleet.
    """
    fleet = min(1.0, scale)
    most = max(3, round(20 * fleet))
    gpus = sum(service.profile["tp"] for service in services)
    tiers = {"IW-F": FAST * interactive, "IW-N": (1 - FAST) * interactive, "NIW": 1 - interactive}
    return {
        "version": 1,
        "name": "SageServe's days",
        "seed": 1,
        "models": [service.model for service in services],
        "profiles": [service.profile for service in services],
        "regions": [
            {
                "name": name,
                "like": name,
                "capacity": {gpu: gpus * most},
                "usd_per_gpu_hour": {gpu: USD_PER_GPU_HOUR},
            }
            for name in REGIONS
        ],
        "tiers": [
            {"name": "IW-F", "ttft_ms": 1000},
            {"name": "IW-N", "ttft_ms": 60_000},
            {"name": "NIW", "e2e_ms": 86_400_000, "deferrable": True},
        ],
        "traffic": {
            "bin_s": 900,
            "sources": [
                {
                    "trace": "t",
                    "series": service.series,
                    "model": service.name,
                    "regions": REGIONS,
                    "tiers": {name: round(share, 6) for name, share in tiers.items()},
                    "scale": service.share,
                    "input_tokens": service.lengths[0],
                    "output_tokens": service.lengths[1],
                }
                for service in services
            ],
        },
        "serving": [{"scheduler": scheduler, "batching": "whole"}],
        "fleet": {
            "startup_s": 600,
            "scale_in": {"lend": True},  # to spot, back within a minute (6.4, 7.1)
            "minimum": max(1, round(2 * fleet)),
            "today": [
                {"model": service.name, "region": r, "gpu": gpu, "replicas": most}
                for service in services
                for r in REGIONS
            ],
            **({"starts": starts} if starts else {}),
        },
        "horizon": {"start": f"{start}T00:00:00Z", "duration_s": 86_400 * days, "period_s": 3600},
        "forecast": {"method": "arima"},  # the source's
        "policies": ["reactive"],
    }


def profile(gpu: str, model: str = "llama-2-70b", tp: int = 8) -> dict[str, Any]:
    """Return the built-in profile in full, so that memory is that of MODEL."""
    built_in = catalogue.profiles()[model, gpu, tp]
    assert isinstance(built_in, LinearProfile)
    ms = {
        f"{n}_ms": getattr(built_in, f"{n}_s") * 1000 for n in ("alpha", "beta", "gamma", "delta")
    }
    return {"model": model, "gpu": gpu, "tp": tp, **ms, **BATCH}


def with_bursts(table: pl.DataFrame, date: Any, factor: float) -> pl.DataFrame:
    """Return arrivals times ``factor`` in six random stretches of five minutes of ``date``."""
    rng = np.random.default_rng(8)
    starts = np.sort(rng.uniform(0, 86_400 - 300, 6))
    second = (pl.col("time_utc") - pl.lit(date).cast(pl.Datetime)).dt.total_seconds()
    inside = pl.any_horizontal([second.is_between(s, s + 300) for s in starts])
    return table.with_columns(
        requests=pl.when(inside)
        .then((pl.col("requests") * factor).cast(pl.Int64))
        .otherwise(pl.col("requests"))
    )


def lengths() -> tuple[dict[str, float], dict[str, float]]:
    """Return mean input and output tokens of the week's conversations, with the spread of 2023."""
    hourly = pl.read_csv(TRACES / "azure2024_hourly_tokens.csv")
    requests = hourly["conv_requests_10s"].sum()
    rows = pl.read_csv(TRACES / "azure2023_conv.csv.gz")
    spread = {}
    for want in ("input", "output"):
        name = next(c for c in rows.columns if want in c.lower() or
                    {"input": "context", "output": "generated"}[want] in c.lower())  # fmt: skip
        column = rows[name].cast(pl.Float64)
        spread[want] = float(column.std() / column.mean())  # type: ignore[operator,arg-type]
    means = {
        kind: float(hourly[name].sum()) / float(requests)
        for kind, name in (
            ("input", "conv_context_tokens_est"),
            ("output", "conv_generated_tokens"),
        )
    }
    isl, osl = (
        {"mean": round(float(means[k]), 1), "cv": round(spread[k], 2)} for k in ("input", "output")
    )
    return isl, osl
