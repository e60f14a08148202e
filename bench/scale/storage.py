"""The made week as a stored trace, replayed by the product's own command."""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import polars as pl

from bench.product import ROOT, fresh_folder
from bench.scale.week import BUSY_RPS, MODELS, REGIONS, WEEK_S, week

WINDOW_S = 6.5 * 86_400  # the last of the week: a first decision needs some hours before it
START_S = 1_715_299_200
GPUS = 8  # of an instance
SPEED = {"alpha_ms": 28.8, "beta_ms": 0.34, "gamma_ms": 21, "delta_ms": 0.085}


def figures(requests: int) -> dict[str, Any]:
    """Return peak memory and time of ``bin/manage simulate`` on a stored trace."""
    with tempfile.TemporaryDirectory(prefix="headroom-week-") as folder, fresh_folder("scale"):
        path = Path(folder) / "week.csv"
        _write(path, requests)
        _manage("ingest", path)
        scenario = path.with_suffix(".yml")
        scenario.write_text(json.dumps(_scenario(path.name, requests)))
        began = time.perf_counter()
        result, usage = _manage("simulate", scenario, "--policy", "reactive")
        seconds = time.perf_counter() - began
    return {
        "stored_requests": result["arrived"],
        "stored_seconds": seconds,
        "stored_cpu_seconds": usage.ru_utime + usage.ru_stime,
        "stored_rss_mb": usage.ru_maxrss / 1024,
        "stored_percentiles_within": result["replayed"]["percentiles_within"],
        "stored_slo_attainment": result["slo_attainment"],
    }


def _write(path: Path, requests: int) -> None:
    """Write the requests as a CSV file in our format, hour by hour."""
    stream = week(requests).stream(MODELS)
    names = {"model": stream.models, "region": stream.regions, "tier": stream.tiers}
    with path.open("wb") as file:
        for hour, piece in enumerate(stream.chunks()):
            labels = {
                label: pl.Series(of, dtype=pl.String).gather(getattr(piece, label))
                for label, of in names.items()
            }
            columns = {
                "arrival": START_S + piece.arrival_s.round(4),
                "input_tokens": piece.input_tokens,
                "output_tokens": piece.output_tokens,
            }
            pl.DataFrame(columns | labels).write_csv(file, include_header=hour == 0)


def _scenario(file: str, requests: int) -> dict[str, Any]:
    """Return a scenario with the bench's fleet, whose pools may grow to twice the mean load."""
    mean = requests / WEEK_S / (len(MODELS) * len(REGIONS)) / BUSY_RPS
    room = GPUS * len(MODELS) * (round(2 * mean) + 8)
    facts = {"weight_gb": 138, "kv_bytes_per_token": 327_680, "max_context": 131_072}
    source = {"source": "made for a bench"}
    return {
        "version": 1,
        "name": "A made week",
        "models": [{"name": name, **facts, **source} for name in MODELS],
        "profiles": [
            {"model": name, "gpu": "H100-SXM", "tp": GPUS, **SPEED, **source} for name in MODELS
        ],
        "regions": [
            {
                "name": name, "capacity": {"H100-SXM": room}, "usd_per_gpu_hour": {"H100-SXM": 2},
                "carbon_g_per_kwh": 400,
                "latency_ms": {other: 30 for other in REGIONS if other > name},
            }
            for name in REGIONS
        ],
        "tiers": [
            {"name": "IW-F", "ttft_ms": 1000},
            {"name": "IW-N", "ttft_ms": 60_000},
            {"name": "NIW", "e2e_ms": 86_400_000, "percentile": 99, "deferrable": True},
        ],
        "traffic": {"sources": [{"file": file}]},
        "fleet": {"startup_s": 600, "minimum": 1},
        "policies": ["reactive"],
        "horizon": {"duration_s": WINDOW_S, "period_s": 3600},
    }  # fmt: skip


def _manage(*words: str | Path) -> tuple[dict[str, Any], Any]:
    """Return a command's answer, and the resources that its process used."""
    command = [sys.executable, "manage.py", *map(str, words), "--json"]
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(command, cwd=ROOT, stdout=out)
        _, status, usage = os.wait4(process.pid, 0)
        out.seek(0)
        text = out.read().decode()
    if status:
        raise SystemExit(f"{words[0]} failed: {text[-500:]}")
    answer: dict[str, Any] = json.loads(text.splitlines()[-1])
    return answer, usage
