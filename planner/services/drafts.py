"""A first scenario for a trace: everything filled in, so that a newcomer can run it at once."""

from __future__ import annotations

from typing import Any

from planner import catalogue
from planner.errors import NotReady
from planner.models import Scenario, Trace
from planner.scenario.document import dump_mapping, parse

MODEL = "llama-3.1-8b"
GPU = "A100-80GB"
REGION = "us-east"
CAPACITY_GPUS = 512
ASSUMED_INPUT = {"mean": 1155, "cv": 1.0}  # Azure 2023 conversation trace: mean ISL, spread near 1
ASSUMED_OUTPUT = {"mean": 211, "cv": 1.0}  # and mean OSL (Splitwise, ISCA 2024)


def scenario_draft(trace: Trace) -> str:
    """YAML of a scenario over ``trace``: a built-in model on a measured profile, one
    region, interactive tiers. Every series of a demand file becomes a source of its own."""
    if trace.state != Trace.State.READY:
        raise NotReady(f"Trace {trace.name} is not ready; wait until it has been read.")
    model, gpu, tp = MODEL, GPU, best_tp(MODEL, GPU)
    region = next(
        name for name, known in catalogue.regions().items() if gpu in known.usd_per_gpu_hour
    )
    data: dict[str, Any] = {
        "version": 1,
        "name": _free_name(f"Plan for {trace.name}"),
        "models": [model],
        "profiles": [{"model": model, "gpu": gpu, "tp": tp}],
        "regions": [{"name": REGION, "like": region, "capacity": {gpu: CAPACITY_GPUS}}],
        "tiers": [
            {"name": "IW-F", "ttft_ms": 1000, "tbt_ms": 100},
            {"name": "IW-N", "ttft_ms": 60_000},
        ],
        "traffic": {"sources": _sources(trace, model)},
        "fleet": {"startup_s": 600},
        "policies": ["flat-peak", "flat-min", "reactive", "lt-i"],
    }
    document = dump_mapping(data)
    parse(document)  # a draft that does not parse is a bug here, not in the user's hands
    return document


def _sources(trace: Trace, model: str) -> list[dict[str, Any]]:
    common: dict[str, Any] = {
        "trace": trace.name,
        "model": model,
        "regions": {REGION: 1.0},
        "tiers": {"IW-F": 0.7, "IW-N": 0.3},
    }
    if trace.kind == Trace.Kind.REQUESTS:
        return [common]
    sources = []
    for series in trace.report.get("series", []):
        source = common | {"series": series["name"]}
        if series.get("input_tokens") is None:
            source["input_tokens"] = ASSUMED_INPUT
        if series.get("output_tokens") is None:
            source["output_tokens"] = ASSUMED_OUTPUT
        sources.append(source)
    return sources


def best_tp(model: str, gpu: str) -> int:
    """GPUs per instance of the built-in profile to trust: a measured one, else the smallest."""
    own = {tp: p for (m, g, tp), p in catalogue.profiles().items() if (m, g) == (model, gpu)}
    return min(own, key=lambda tp: (own[tp].provenance.kind != "measured", tp))


def _free_name(wanted: str) -> str:
    name, n = wanted[:110], 2
    while Scenario.objects.filter(name=name).exists():
        name, n = f"{wanted[:110]} ({n})", n + 1
    return name
