"""What one simulation says beyond its totals: by interval, by group of requests, by request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from planner.pipeline.moments import moments, times
from planner.scenario.columns import SHOWN
from simulation.energy import pool_energy
from simulation.fleet import Pool
from simulation.metrics import meets_slo
from simulation.results import COMPLETED, REJECTED, UNFINISHED, SimulationResult

OUTCOMES = {COMPLETED: "completed", REJECTED: "rejected", UNFINISHED: "unfinished"}
ALL = "all"  # of a group: every tier, model or region together
GROUPED = ("tier", "model", "region")
LATENCIES = ("ttft_ms", "tbt_ms", "e2e_ms")
PERCENTILES = (50, 95, 99)
KW_PER_KWH_S = 3600.0


@dataclass(frozen=True, slots=True, eq=False)
class Detail:
    """``minutes`` has a row per interval and pool, ``groups`` one per tier, model and home region
    with each of them also together, ``requests`` one per request, None where not asked for."""

    minutes: pl.DataFrame
    groups: pl.DataFrame
    requests: pl.DataFrame | None


def detail_of(result: SimulationResult, labels: Sequence[str], *, requests: bool) -> Detail:
    """``labels`` names the arrangement of each pool."""
    labels = [_cut(label, pool) for label, pool in zip(labels, result.fleet.pools, strict=True)]
    return Detail(
        minutes_table(result, labels),
        groups_table(result),
        requests_table(result, labels) if requests else None,
    )


def _cut(label: str, pool: Pool) -> str:
    """A pool that a policy has cut out for some tiers says so."""
    return label if pool.tiers is None else f"{label} for {', '.join(pool.tiers)}"


def minutes_table(result: SimulationResult, labels: Sequence[str]) -> pl.DataFrame:
    """The series of every pool: means of instances, sequences and shares over the interval,
    requests waiting at its end, tokens/s, and kilowatts of GPUs and hosts with PUE."""
    series, start_s = result.series, result.trace.start_s
    intervals = series.ready.shape[1]
    edges = np.append(np.arange(intervals) * series.interval_s, result.duration_s)
    seconds = np.diff(edges)
    frames = []
    for p, pool in enumerate(result.fleet.pools):
        energy = pool_energy(result, p)
        frames.append(
            pl.DataFrame(
                {
                    "time": times(start_s, series.interval_s, intervals),
                    "model": pool.model,
                    "region": pool.region,
                    "gpu": pool.gpu.name,
                    "role": SHOWN[pool.role],
                    "arrangement": labels[p],
                    "ready": series.ready[p],
                    "starting": series.starting[p],
                    "draining": series.draining[p],
                    "busy": series.busy[p],
                    "utilisation": series.utilisation[p],
                    "waiting": series.waiting[p],
                    "input_tps": series.input_tokens[p] / seconds,
                    "output_tps": series.output_tokens[p] / seconds,
                    "power_kw": (energy.gpu_kwh + energy.host_kwh) * KW_PER_KWH_S / seconds,
                }
            )
        )
    return pl.concat(frames)


def requests_table(result: SimulationResult, labels: Sequence[str]) -> pl.DataFrame:
    """One row per request, in order of arrival; times in milliseconds, null where it did not
    happen. ``region`` is where it came from, ``pool`` where it was served."""
    trace = result.trace
    pools = [
        f"{label} in {pool.region}" for pool, label in zip(result.fleet.pools, labels, strict=True)
    ]
    known = list(dict.fromkeys(pools))
    place = np.array([*(known.index(name) for name in pools), -1])  # of nowhere, which is -1
    table = {
        "arrival": moments(trace.start_s, trace.arrival_s),
        "model": _named(trace.model, trace.models),
        "region": _named(trace.region, trace.regions),
        "tier": _named(trace.tier, trace.tiers),
        **_figures(result),
        "pool": _named(place[result.requests.pool], known),
    }
    return pl.DataFrame(table).with_columns(pl.col(pl.Float64).fill_nan(None))


def groups_table(result: SimulationResult) -> pl.DataFrame:
    """Exact percentiles (linear between ranks) of every tier, model and home region, and of all of
    each together; ``attainment`` is the share of those that arrived within every limit (X4)."""
    trace = result.trace
    rows = pl.DataFrame(
        {
            "tier": _named(trace.tier, trace.tiers),
            "model": _named(trace.model, trace.models),
            "region": _named(trace.region, trace.regions),
            **_figures(result),
        }
    ).with_columns(pl.col(pl.Float64).fill_nan(None))
    wanted = [
        pl.len().alias("arrived"),
        *((pl.col("outcome") == word).sum().alias(word) for word in OUTCOMES.values()),
        pl.col("met").mean().alias("attainment"),
        pl.col("input_tokens").mean().alias("mean_isl"),
        pl.col("output_tokens").mean().alias("mean_osl"),
        *(
            pl.col(name).quantile(share / 100, interpolation="linear").alias(f"{name}_p{share}")
            for name, share in product(LATENCIES, PERCENTILES)
        ),
    ]
    frames = []
    for apart in product((False, True), repeat=len(GROUPED)):
        keys = [name for name, own in zip(GROUPED, apart, strict=True) if own]
        found = rows.group_by(keys).agg(wanted) if keys else rows.select(wanted)
        names = [pl.col(name).cast(pl.String) for name in keys]
        rest = [pl.lit(ALL).alias(name) for name in GROUPED if name not in keys]
        frames.append(found.with_columns(*names, *rest).select(*GROUPED, pl.exclude(GROUPED)))
    return pl.concat(frames).sort(GROUPED)


def _figures(result: SimulationResult) -> dict[str, Any]:
    """Per request: tokens, what became of it, milliseconds, and whether it met its limits."""
    log, trace = result.requests, result.trace
    return {
        "input_tokens": trace.input_tokens,
        "output_tokens": trace.output_tokens,
        "outcome": _named(log.outcome, tuple(OUTCOMES[code] for code in sorted(OUTCOMES))),
        "ttft_ms": log.ttft_s * 1000,
        "tbt_ms": log.tbt_s * 1000,
        "e2e_ms": log.e2e_s * 1000,
        "met": meets_slo(result),
    }


def _named(codes: npt.NDArray[Any], names: Sequence[str]) -> pl.Series:
    """Codes as names, kept as small as the codes; one below 0 is null."""
    kept = pl.Series(codes.astype(np.int32))
    at = kept.set(kept < 0, None).cast(pl.UInt32)
    return pl.Series(names, dtype=pl.Enum(list(names))).gather(at)
