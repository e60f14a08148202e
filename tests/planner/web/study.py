"""A completed comparison made by hand, for pages that show one: small, and every figure known."""

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import polars as pl
from django.utils import timezone

from planner.models import Run, Scenario, User
from planner.storage import row_arrays

START = datetime(2024, 5, 18, tzinfo=UTC)
HOURS = 24
BIN_S = 900
LABELS = {"today": "Today's fleet", "flat-peak": "Flat at peak", "lt-i": "Planned (LT-I)"}
GPU_HOURS = {"today": 400.0, "flat-peak": 320.0, "lt-i": 200.0}
POOLS = (("llama-3.1-8b", "us-east"), ("llama-2-70b", "us-west"))
PERIODS = 24

DOCUMENT = """\
# Kept across edits.
version: 1
name: Two pools
models: [llama-3.1-8b]
profiles:
  - {model: llama-3.1-8b, gpu: A100-80GB, tp: 1}
regions:
  - name: us-east # the larger one
    capacity: {A100-80GB: 64}
    usd_per_gpu_hour: {A100-80GB: 2.5}
    carbon_g_per_kwh: 300
tiers:
  - {name: IW-F, ttft_ms: 1000, tbt_ms: 100}
traffic:
  sources:
    - trace: week
      model: llama-3.1-8b
      regions: {us-east: 1.0}
      tiers: {IW-F: 1.0}
policies: [flat-peak, lt-i]
horizon:
  period_s: 3600 # an hour
"""


def figures(name: str) -> dict[str, Any]:
    """A policy's figures; cost, energy and carbon follow from its GPU-hours."""
    hours = GPU_HOURS[name]
    latency = {"mean": 300.0, "p50": 250.0, "p95": 900.0, "p99": 1500.0}
    return {
        "label": LABELS[name], "arrived": 120_000, "completed": 119_990, "rejected": 4,
        "unfinished": 6, "not_due": 0, "reject_reasons": {"longer than the model's context": 4},
        "gpu_hours": hours, "instance_hours": hours, "wasted_gpu_hours": hours / 50,
        "idle_gpu_hours": hours * 0.38, "busy_gpu_hours": hours * 0.6,
        "donated_gpu_hours": 0.0, "energy_kwh": hours * 0.4, "cost_usd": hours * 2.5,
        "host_energy_kwh": hours * 0.1, "before_gpu_hours": 0.0,
        "after_gpu_hours": 0.0, "after_cost_usd": 0.0,
        "after_energy_kwh": 0.0,
        "carbon_kg": hours * 0.12, "ttft_ms": latency, "tbt_ms": {**latency, "p95": 45.0},
        "e2e_ms": {**latency, "p95": 12_300.0}, "slo_attainment": {"IW-F": 0.97, "IW-N": 0.9},
        "slo_met": {"IW-F": True, "IW-N": False}, "meets_slo": False, "iterations": 10,
        "preemptions": 0, "wall_seconds": 1.0, "peak_rss_mb": 100.0,
    }  # fmt: skip


def decision(period: int, model: str, region: str) -> dict[str, Any]:
    period_start = (START + timedelta(hours=period)).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "period": period_start, "model": model, "region": region, "gpu": "A100-80GB", "tp": 1,
        "role": "mixed", "market": "owned", "current": 4,
        "delta": 2 if period == 0 else 0, "target": 6,
    }  # fmt: skip


def result(run_id: int = 0) -> dict[str, Any]:
    end = (START + timedelta(hours=HOURS)).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "kind": "compare", "scenario": "Two pools", "run": run_id,
        "window": {
            "start": "2024-05-18T00:00:00Z", "end": end, "period_s": 3600, "bin_s": BIN_S,
            "lead_s": 600, "clock": "utc", "replay": "requests generated from counts per bin",
        },
        "forecast": {"series": [
            {"model": model, "region": region, "tier": "IW-F", "method": "arima",
             "order": [2, 1, 1], "unit": "input_tokens", "wape": 0.12, "peak_wape": 0.2,
             "mase": 0.8, "coverage80": None, "fit_seconds": 1.0}
            for model, region in POOLS
        ], "seconds": 2.0},
        "capacity": [
            {"model": POOLS[0][0], "gpu": "A100-80GB", "tp": 1, "max_rps": 3.2,
             "input_tps": 3700.0, "ttft_ms": 410.0, "tbt_ms": None, "bound_by": "TTFT",
             "tier": "IW-F", "provenance": "measured", "source": "a profile"},
        ],
        "plan": {
            "status": "optimal", "objective": 512.0, "fleet_cost": 500.0, "bound": 512.0,
            "gap": 0.0, "solver": "highs", "build_seconds": 0.1, "solve_seconds": 0.2,
            "decisions": [decision(p, *pool) for p in range(PERIODS) for pool in POOLS],
            "binding": [{"family": "coverage", "where": "us-east", "periods": 5,
                         "sentence": "The peak of us-east needs every replica it has."}],
        },
        "speed_error": 0.12,
        "profile_error": [
            {"model": POOLS[0][0], "gpu": "A100-80GB", "tp": 1, "kind": "linear", "error": 0.12,
             "basis": "TBT, configurations left out of the fit", "replicas": 6,
             "replicas_if_slower": 7, "replicas_if_faster": 5, "note": ""},
            {"model": POOLS[1][0], "gpu": "A100-80GB", "tp": 8, "kind": "linear", "error": None,
             "basis": "not checked against measurements", "replicas": 6,
             "replicas_if_slower": None, "replicas_if_faster": None, "note": ""},
        ],
        "policies": {name: figures(name) for name in LABELS},
        "baselines": list(LABELS), "baseline": "today",
        "ranking": ["lt-i", "flat-peak", "today"],
        "flat_wins": True,
        "warnings": ["A flat fleet of 9 instances beats the plan.", "Something smaller."],
        "headline": "Planned (LT-I) needs 200 GPU-hours, half of today's fleet.",
        "provenance": [
            {"what": "Memory and power of A100-80GB", "kind": "published", "source": "data sheet"},
            {"what": "Price of A100-80GB in us-east", "kind": "assumed", "source": "a guess"},
        ],
        "notes": ["Token lengths are assumed."], "seconds": 12.3,
    }  # fmt: skip


def tables() -> dict[str, pl.DataFrame]:
    """The tables of the run, demand reaching a day further back than the window."""
    bins = HOURS * 3600 // BIN_S
    times = [START + timedelta(seconds=BIN_S * i) for i in range(-bins, bins)]
    wave = 1 + 0.6 * np.sin(np.arange(-bins, bins) * 2 * np.pi / bins)
    demand, forecast, replicas = [], [], []
    for k, (model, region) in enumerate(POOLS):
        where = {"model": model, "region": region}
        tokens = wave * BIN_S * 2000 * (k + 1)
        demand.append(pl.DataFrame({
            "time": times, **where, "tier": "IW-F", "requests": tokens / 1000,
            "input_tokens": tokens, "output_tokens": tokens / 5,
        }))  # fmt: skip
        rate = (tokens / BIN_S)[bins:]
        forecast.append(pl.DataFrame({
            "time": times[bins:], **where, "tier": "IW-F", "actual": rate, "mean": rate * 1.02,
            "p10": rate * 0.9, "p90": rate * 1.14,
        }))  # fmt: skip
        for name, hours in GPU_HOURS.items():
            level = hours / HOURS / len(POOLS)
            ready = np.round(level * wave[bins:]) if name == "lt-i" else np.full(bins, level)
            replicas.append(pl.DataFrame({
                "policy": name, "time": times[bins:], **where, "gpu": "A100-80GB", "ready": ready,
                "starting": 0.0, "draining": 0.0, "busy": ready * 0.6, "utilisation": 0.5,
                "waiting": 0.0, "input_tps": rate, "output_tps": rate / 5, "role": "mixed",
                "arrangement": "1 x A100-80GB", "power_kw": ready * 0.5,
            }))  # fmt: skip
    plan = [
        {"period_start": START + timedelta(hours=p), "model": m, "region": r, "gpu": "A100-80GB",
         "tp": 1, "current": 4, "delta": 0, "target": 6, "gpus": 6, "demand_tps": 2000.0,
         "capacity_tps": 22_200.0}
        for p in range(PERIODS) for m, r in POOLS
    ]  # fmt: skip
    flat = ("gpu_hours", "cost_usd", "energy_kwh", "carbon_kg", "arrived", "completed", "meets_slo")
    tiers = [
        {"policy": name, "tier": tier, "arrived": 60_000, "attainment": share, "target": 0.95,
         "met": share > 0.95, "ttft_ms_p95": 900.0, "tbt_ms_p95": 45.0, "e2e_ms_p95": 12_300.0}
        for name in LABELS for tier, share in (("IW-F", 0.97), ("IW-N", 0.9))
    ]  # fmt: skip
    return {
        "demand": pl.concat(demand),
        "forecast": pl.concat(forecast),
        "replicas": pl.concat(replicas),
        "plan": pl.DataFrame(plan),
        "policies": pl.DataFrame(
            [{"policy": n, "label": LABELS[n], **{k: figures(n)[k] for k in flat}} for n in LABELS]
        ),
        "tiers": pl.DataFrame(tiers),
        "groups": pl.DataFrame(groups()),
    }


def groups() -> list[dict[str, Any]]:
    """How each tier, model and region was served, and all of each together."""
    rows = []
    for policy in LABELS:
        for tier in ("all", "IW-F", "IW-N"):
            for model, region in (("all", "all"), *POOLS, *((m, "all") for m, _ in POOLS)):
                share = {"all": 0.935, "IW-F": 0.97, "IW-N": 0.9}[tier]
                row = {"policy": policy, "tier": tier, "model": model, "region": region,
                       "arrived": 1000, "completed": 990, "rejected": 4, "unfinished": 6,
                       "attainment": share, "mean_isl": 800.0, "mean_osl": 90.0}  # fmt: skip
                for name, p50 in (("ttft_ms", 250.0), ("tbt_ms", 30.0), ("e2e_ms", 4000.0)):
                    row |= {f"{name}_p50": p50, f"{name}_p95": 3 * p50, f"{name}_p99": 5 * p50}
                rows.append(row)
    return rows


def completed_run(owner: User, scenario: Scenario | None = None, **fields: Any) -> Run:
    """The row and its tables, as a worker would have left them."""
    now = timezone.now()
    run = Run.objects.create(
        kind=Run.Kind.COMPARE, state=Run.State.COMPLETED, owner=owner, scenario=scenario,
        name="Two pools", document=DOCUMENT, progress=1.0, stage="Done", log="10:00:00 Planning",
        started_at=now - timedelta(seconds=12), finished_at=now, **fields,
    )  # fmt: skip
    run.store = f"runs/{run.pk}"
    run.result = result(run.pk)
    run.save()
    row_arrays.remove(run.store)  # numbers begin at 1 in each test, and folders of others stay
    row_arrays.tables_write(run.store, tables())
    return run


MONDAY = datetime(2024, 5, 13, tzinfo=UTC)
KEYS = {"model": "m", "region": "east", "tier": "interactive"}


def moments_of(run: Run) -> None:
    """Tables as a forecast leaves them: three moments an hour apart, two hours ahead each."""
    hour = timedelta(hours=1)
    moments = pl.DataFrame([
        {"time": MONDAY + (o + step) * hour, **KEYS, "mean": 10.0 + o, "p10": 9.0, "p90": 12.0,
         "origin": MONDAY + o * hour}
        for o in range(3) for step in range(2)
    ])  # fmt: skip
    history = pl.DataFrame(
        [{"time": MONDAY + h * hour, **KEYS, "actual": 10.0 + 2 * h} for h in range(-3, 5)]
    )
    kept = {
        name: row_arrays.table_read(run.store, name) for name in row_arrays.tables_list(run.store)
    }
    row_arrays.tables_write(run.store, kept | {"moments": moments, "history": history})
