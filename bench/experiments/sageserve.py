"""SageServe's figures (methods.md E10) beside ours, on the conversations of Azure's week of 2024.

    python -m bench.experiments sageserve [--json] [--scale S] [--plots FOLDER]

Its traces are not public. What stands in: arrivals per 10 s of Azure's LLM inference trace 2024
(conversation), its mean lengths by the hourly token counts, their spread from the requests of 2023;
Llama-2 70B on 8 GPUs with the measured Splitwise profile that the source's simulator uses; three
regions with fixed shares of the arrivals; tiers drawn at the source's ratio of 3 to 1. Everything
else as section 7.1 has it: 20 instances per region at the start, at least 2, 10 minutes
to start, what is released lent out as spot and back within a minute.

- ``strategies``: instance-hours of a peak day (figure 11), hours wasted on starting, attainment.
- ``mix``: LT-UA against unified reactive at IW:NIW of 9:1 and 1:1; ``a100``: on A100;
  ``grouped_query``: with the KV cache that Llama-2 70B has on a server, an eighth.
- ``bursts``: the same day with random stretches of 5 minutes at 8 times the load (figure 16a).
- ``schedulers``: violations by tier under FCFS, EDF, PF and DPA (figure 15b), with LT-UA, on the
  day with those stretches: without them next to nothing is late.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from bench.experiments import svg
from planner import catalogue
from planner.ingest import IngestOptions, ingest_file
from planner.policies.choice import policy_of
from planner.scenario.document import parse
from planner.scenario.known import NOTHING
from planner.studies.planning.planning import plan_window
from planner.studies.preparing import study_of
from planner.studies.progress import silent
from planner.studies.replay import replay as played
from planner.studies.traffic.sources import StoredTrace
from planner.studies.values import PolicyRun, Study
from simulation.performance.linear import LinearProfile

# On the scenario's own forecast; LT-UA with both readings of section 6.4.
OWN_PLAN = ("lt-i", "lt-u", "lt-ua", "lt-ua by memory")
BY_MEMORY = {"lt-ua by memory": ("lt-ua", {"reading": "memory"})}
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
STRATEGIES = ("siloed", "reactive", *OWN_PLAN, "lt-i-perfect", "chiron")
# Llama-2 on a peak day, instance-hours (figure 11) and violations by tier (section 7.2.6).
THEIRS = {"reactive": 362.25, "lt-i": 274.5, "lt-u": 291.0, "lt-ua": 277.5, "chiron": 1146.0}
THEIR_VIOLATIONS = {
    "fcfs": (0.45, 0.25), "edf": (0.31, 0.34), "pf": (0.24, 0.60), "dpa": (0.28, 0.38),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    parser.add_argument("--scale", type=float, default=0.5, help="of the arrivals and the fleet")
    parser.add_argument("--plots", type=Path, help="folder for plots, as SVG")
    parser.add_argument("--only", default="", help="comma-separated parts")
    options = parser.parse_args()
    if not ARRIVALS.exists():
        sys.exit(f"{ARRIVALS.name} is not in ../shared/data/traces.")
    with tempfile.TemporaryDirectory() as folder:
        found = run(Path(folder), options.scale, options.only.split(",") if options.only else [])
    if options.plots:
        plot(found, options.plots)
    found.pop("by_hour", None)
    print(json.dumps(found, indent=None if options.json else 2))


def run(folder: Path, scale: float, only: list[str]) -> dict[str, Any]:
    began = time.perf_counter()
    found: dict[str, Any] = {"scale": scale}
    whole = Day(folder, scale)
    parts: dict[str, Callable[[], dict[str, Any]]] = {
        "strategies": lambda: strategies(whole, found),
        "mix": lambda: {
            name: against_reactive(whole.study(interactive=share))
            for name, share in (("9:1", 0.9), ("1:1", 0.5))
        },
        "a100": lambda: against_reactive(whole.study(gpu="A100-80GB")),
        "grouped_query": lambda: against_reactive(whole.study(grouped_query=True)),
        "bursts": lambda: strategies(Day(folder, scale, bursts=8.0), {}, OWN_PLAN),
        "schedulers": lambda: schedulers(Day(folder, scale, bursts=8.0)),
    }
    for name, part in parts.items():
        if not only or name in only:
            found[name] = part()
            _say(f"{name}: {time.perf_counter() - began:.0f} s")
    found["seconds"] = time.perf_counter() - began
    return found


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
        if bursts != 1.0:
            kept = _with_bursts(kept, self.date, bursts)
        path = folder / f"day{bursts:g}.csv"
        kept.select(
            time=pl.col("time_utc").dt.strftime("%Y-%m-%dT%H:%M:%SZ"),
            series=pl.lit("conv"),
            requests=pl.col("requests"),
        ).write_csv(path)
        store = folder / f"day{bursts:g}.store"
        ingest_file(path, store, IngestOptions(format="demand", bin_s=10.0))
        self.stored = StoredTrace(path.name, "demand", "utc", store)
        self.isl, self.osl = _lengths()

    def study(
        self,
        *,
        gpu: str = "H100-SXM",
        interactive: float = 0.75,
        scheduler: str = "fcfs",
        grouped_query: bool = False,
    ) -> Study:
        most = max(3, round(20 * self.scale))
        scenario = parse(
            json.dumps(
                {
                    "version": 1,
                    "name": "SageServe's day",
                    "seed": 1,
                    "models": [MODEL | (GROUPED_QUERY if grouped_query else {})],
                    "profiles": [_profile(gpu)],
                    "regions": [
                        {
                            "name": name,
                            "like": name,
                            "capacity": {gpu: 8 * most},
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
                                "series": "conv",
                                "model": "llama-2-70b",
                                "regions": REGIONS,
                                "tiers": {
                                    "IW-F": round(interactive * FAST, 6),
                                    "IW-N": round(interactive * (1 - FAST), 6),
                                    "NIW": round(1 - interactive, 6),
                                },
                                "scale": self.scale,
                                "input_tokens": self.isl,
                                "output_tokens": self.osl,
                            }
                        ],
                    },
                    "serving": [{"scheduler": scheduler, "batching": "whole"}],
                    "fleet": {
                        "startup_s": 600,
                        "scale_in": {"lend": True},  # to spot, back within a minute (6.4, 7.1)
                        "minimum": max(1, round(2 * self.scale)),
                        "today": [
                            {"model": "llama-2-70b", "region": r, "gpu": gpu, "replicas": most}
                            for r in REGIONS
                        ],
                    },
                    "horizon": {
                        "start": f"{self.date}T00:00:00Z",
                        "duration_s": 86_400,
                        "period_s": 3600,
                    },
                    "forecast": {"method": "arima"},  # the source's
                    "policies": ["reactive"],
                }
            )
        )
        return study_of(scenario, {"t": self.stored}, NOTHING, silent)


def _profile(gpu: str) -> dict[str, Any]:
    """The built-in one, in full: memory is then that of MODEL."""
    built_in = catalogue.profiles()["llama-2-70b", gpu, 8]
    assert isinstance(built_in, LinearProfile)
    ms = {
        f"{n}_ms": getattr(built_in, f"{n}_s") * 1000 for n in ("alpha", "beta", "gamma", "delta")
    }
    return {"model": "llama-2-70b", "gpu": gpu, "tp": 8, **ms, **BATCH}


def strategies(
    day: Day, found: dict[str, Any], names: tuple[str, ...] = STRATEGIES
) -> dict[str, Any]:
    one = day.study()
    theta = float(one.sizes.theta_tps.max())
    out: dict[str, Any] = {"requests": len(one.trace), "theta_tps": theta}
    planned = plan_window(one.plan_input, silent)
    by_hour = found.setdefault("by_hour", {})
    for name in dict.fromkeys(("reactive", *names)):
        policy, given = BY_MEMORY.get(name, (name, {}))
        if name == "chiron":  # its numbers of instances are for all of the arrivals
            given = {"scale": day.scale}
        ran = _ran(one, policy, planned, **given)
        out[name] = _figures(ran)
        up = (ran.series.ready + ran.series.starting + ran.series.draining).sum(axis=0)
        by_hour[name] = up.reshape(96, -1).mean(axis=1).tolist()  # quarters of an hour
        _say(f"  {name}: {json.dumps(out[name])}")
    return out


def against_reactive(one: Study) -> dict[str, Any]:
    ours = {name: _figures(_ran(one, name)) for name in ("reactive", "lt-ua")}
    saved = 1 - ours["lt-ua"]["instance_hours"] / ours["reactive"]["instance_hours"]
    return {**ours, "saved": saved}


def schedulers(day: Day) -> dict[str, Any]:
    """The day under LT-UA, waiting requests taken in four orders."""
    out = {}
    for scheduler in THEIR_VIOLATIONS:
        one = day.study(scheduler=scheduler)
        ran = _ran(one, "lt-ua")
        out[scheduler] = _figures(ran)
    return out


def _ran(one: Study, name: str, planned: Any = None, **given: Any) -> PolicyRun:
    return played.run_policy(
        one, policy_of(name, **given), seed=1, progress=silent, planned=planned
    )


def _figures(ran: PolicyRun) -> dict[str, Any]:
    summary = ran.summary
    gpus = ran.fleet.pools[0].gpus_per_instance
    return {
        "instance_hours": round(summary.instance_hours, 1),
        "wasted_hours": round(summary.wasted_gpu_hours / gpus, 1),
        "donated_hours": round(summary.donated_gpu_hours / gpus, 1),
        "violations": {
            name: None if share is None else round(1 - share, 4)
            for name, share in summary.slo_attainment.items()
        },
        "ttft_p95_s": {
            name: None if group.ttft_ms.p95 is None else round(group.ttft_ms.p95 / 1000, 2)
            for name, group in summary.tiers.items()
        },
        "arrived": summary.arrived,
        "unserved": summary.rejected + summary.unfinished,
    }


def _with_bursts(table: pl.DataFrame, date: Any, factor: float) -> pl.DataFrame:
    rng = np.random.default_rng(8)
    starts = np.sort(rng.uniform(0, 86_400 - 300, 6))
    second = (pl.col("time_utc") - pl.lit(date).cast(pl.Datetime)).dt.total_seconds()
    inside = pl.any_horizontal([second.is_between(s, s + 300) for s in starts])
    return table.with_columns(
        requests=pl.when(inside)
        .then((pl.col("requests") * factor).cast(pl.Int64))
        .otherwise(pl.col("requests"))
    )


def _lengths() -> tuple[dict[str, float], dict[str, float]]:
    """Mean input and output tokens of the week's conversations, spread of those of 2023."""
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


def plot(found: dict[str, Any], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    by_hour = found.get("by_hour") or {}
    if by_hour:
        count = len(next(iter(by_hour.values())))
        x = [24 * i / count for i in range(count)]
        shown = {name: by_hour[name] for name in by_hour if name != "lt-i-perfect"}
        title = "Instances of Llama-2 70B in three regions on the peak day"
        (folder / "sageserve-instances.svg").write_text(
            svg.lines(title, "hour (UTC)", "instances", x, shown)
        )
    if "strategies" in found:
        ours = found["strategies"]
        names = [name for name in THEIRS if name in ours]
        base = ours["reactive"]["instance_hours"]
        (folder / "sageserve-hours.svg").write_text(
            svg.bars(
                "Instance-hours, unified reactive = 1",
                "relative",
                names,
                {
                    "SageServe": [THEIRS[name] / THEIRS["reactive"] for name in names],
                    "ours": [ours[name]["instance_hours"] / base for name in names],
                },
            )
        )
    if "schedulers" in found:
        names = list(THEIR_VIOLATIONS)
        (folder / "sageserve-schedulers.svg").write_text(
            svg.bars(
                "Share of requests late, by scheduler",
                "fraction",
                names,
                {
                    "SageServe IW-F": [THEIR_VIOLATIONS[n][0] for n in names],
                    "SageServe IW-N": [THEIR_VIOLATIONS[n][1] for n in names],
                    "ours IW-F": [found["schedulers"][n]["violations"]["IW-F"] for n in names],
                    "ours IW-N": [found["schedulers"][n]["violations"]["IW-N"] for n in names],
                },
            )
        )


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
