"""A case: one trace under one kind of limits, through `compare` as a user runs it."""

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.decisions.data import DATA, TRACES, UNSEEN, Data
from bench.decisions.outcome import Decision, decide
from planner.domain.traffic.sources import StoredTrace
from planner.errors import PlannerError
from planner.inputs.ingest import IngestOptions, ingest_file
from planner.inputs.scenario.document import parse
from simulation.errors import SimulationError

LIMITS = {
    "loose": {"ttft_ms": 5000, "tbt_ms": 200},
    "tight": {"ttft_ms": 1500, "tbt_ms": 100},
    "pd": {"ttft_ms": 2000, "tbt_ms": 60},
}
MODEL = "llama-3.1-70b"
# 20 requests/s need 10 to 60 replicas. A100s have no FP8, which the disaggregated pools use.
GPUS = {"loose": "A100-80GB", "tight": "A100-80GB", "pd": "H100-SXM"}
POLICIES = ["reactive", "hpa", "lt-i", "lt-ua", "decode-tps"]


def case(name: str, limits: str, rps: float) -> Decision | str:
    """Return the decision on one trace under one kind of limits, or why it failed."""
    data = next(data for data in (*DATA, *UNSEEN) if data.name == name)
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        stored = _ingest(data, Path(folder))
        scenario = parse(json.dumps(scenario_of(data, limits, rps)))
        try:
            decision = decide(f"{name}-{limits}", scenario, stored)
        except (PlannerError, SimulationError) as problem:
            return f"{name}-{limits}: {type(problem).__name__}: {problem}"
    figures = {**decision.figures, "seconds": round(time.perf_counter() - began)}
    print(decision.name, json.dumps(figures), file=sys.stderr, flush=True)
    return decision


def _ingest(data: Data, folder: Path) -> StoredTrace:
    file = TRACES / data.file
    path = folder / (file.name if not data.lengths else f"{data.name}.csv")
    options = data.write(file, path)
    report = ingest_file(path, folder / "store", IngestOptions(**options))
    return StoredTrace(path.name, report.kind, report.clock, folder / "store")


def scenario_of(data: Data, limits: str, rps: float) -> dict[str, Any]:
    tier, gpu = LIMITS[limits], GPUS[limits]
    profile: dict[str, Any] = {"model": MODEL, "gpu": gpu, "tp": 4}
    apart = {**profile, "kind": "roofline", "precision": "fp8"}
    source: dict[str, Any] = {"trace": "t", "model": MODEL, **data.lengths}
    if data.lengths:
        source |= {"series": "all"}
    if not data.prefixes:  # what prompts share is lost in thinning
        source |= {"scale": rps / data.rps}
    return {
        "version": 1,
        "name": f"{data.name}, {limits}",
        "seed": 1,
        "models": [MODEL],
        "profiles": (
            [{**apart, "role": role} for role in ("prefill", "decode")]
            if limits == "pd"
            else [profile]
        ),
        "regions": [{"name": "east", "like": "us-east-1", "capacity": {gpu: 1024}}],
        "tiers": [{**tier, "name": "chat", "ttft_ms": data.prompts * tier["ttft_ms"]}],
        "serving": [{"prefix_caching": data.prefixes}],
        "traffic": {"sources": [source]},
        "fleet": {"startup_s": 300, **({"minimum": 0} if limits == "pd" else {})},
        "horizon": data.horizon,
        "policies": [*POLICIES, *(["periodic"] if data.days else [])],
    }
