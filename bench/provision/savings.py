"""Savings by phase in steady state: the table, and the source's claims on it.

Savings are 1 - operator level / model level in GPUs after placement, watts and bytes held; the
operator level here is the best placement of operators, also where whole replicas would be better.
"""

import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np

from bench.provision.services import (
    GPUS,
    LIMITS,
    MODELS,
    PHASES,
    RATES,
    device_bytes,
    levels,
    problem,
    trace,
)
from simulation.provisioning.level import savings
from simulation.provisioning.levels import model_level, plan_level
from simulation.provisioning.workload import PhaseProblem, at_rate

# Operator-level autoscaling, section 4.3: figures 10 to 13 and the text, GPUs, energy, memory.
SEED = {
    ("azure", "prefill"): (0.35, 0.25, 0.45),
    ("azure", "decode"): (0.15, 0.15, 0.15),  # "below"
    ("mooncake", "prefill"): (0.22, 0.20, 0.41),
    ("mooncake", "decode"): (None, None, None),
}
MEASURES = ("gpus", "energy", "memory")
LENGTHS = (256, 1024, 4096, 8192, 16384, 32768)
SIZES = ("qwen2-0.5b", "qwen2-1.5b", "qwen2-7b", "qwen2-72b")
SWEPT = ("qwen2-7b", "qwen2-57b-a14b")
MULTIPLE = 3.0  # of one pass alone on one GPU: the limit of the length sweep


@dataclass(frozen=True, slots=True)
class Row:
    """One service at both levels; GPUs are 0 where whole replicas keep no limit."""

    trace: str
    model: str
    gpu: str
    phase: str
    rate: float
    isl: float
    own_rate: bool
    model_gpus: int = 0
    operator_gpus: int = 0
    least_gpus: int = 0
    gpus: float = float("nan")
    energy: float = float("nan")
    memory: float = float("nan")


def figures_of_phase(phase: PhaseProblem) -> dict[str, float]:
    """Return the figures of one row of the table."""
    room = device_bytes(phase.service.gpu.name)
    whole_model = model_level(phase, room)
    if whole_model is None:
        return {}
    fine = plan_level("operator", phase, room, proofs=True)
    if fine is None:
        return {}
    return {
        "model_gpus": whole_model.devices,
        "operator_gpus": fine.devices,
        "least_gpus": fine.least_devices or 0,
        **asdict(savings(whole_model, fine)),
    }


def table() -> Iterator[Row]:
    """Yield a row for every model, GPU, trace, rate and phase, at the trace's mean lengths."""
    for name, limits in LIMITS.items():
        requests = trace(name)
        isl, osl = float(requests.isl.mean()), float(requests.osl.mean())
        for model in MODELS:
            for gpu in GPUS:
                for phase in PHASES:
                    base = problem(model, gpu, phase, 20.0, isl, osl, limits[phase])
                    for rate in (requests.rate, *RATES):
                        figures = figures_of_phase(at_rate(base, rate))
                        as_traced = rate == requests.rate
                        yield Row(name, model, gpu, phase, rate, isl, as_traced, **figures)  # type: ignore[arg-type]


def print_table(rows: list[Row]) -> None:
    """Print GPUs and savings by rate to stderr; the last columns have the source's figures."""
    head = f"{'trace':<9}{'model':<16}{'GPU':<10}{'phase':<8}"
    head += "".join(f"{text:>22}" for text in ("own rate", *(f"{r:.0f}/s" for r in RATES)))
    print(head + "   source, at most", file=sys.stderr)
    print("GPUs by whole replicas > by operators, saved: GPUs/power/memory in %", file=sys.stderr)
    for key in dict.fromkeys((r.trace, r.model, r.gpu, r.phase) for r in rows):
        of_key = [r for r in rows if (r.trace, r.model, r.gpu, r.phase) == key]
        cells = [
            f"{r.model_gpus:>4} >{r.operator_gpus:>3} "
            + "/".join(f"{100 * getattr(r, m):.0f}" for m in MEASURES)
            if r.model_gpus
            else "-"
            for r in of_key
        ]
        theirs = SEED[key[0], key[3]]
        last = "/".join("?" if x is None else f"{100 * x:.0f}" for x in theirs)
        print(
            f"{key[0]:<9}{key[1]:<16}{key[2]:<10}{key[3]:<8}"
            + "".join(f"{cell:>22}" for cell in cells)
            + f"   {last}",
            file=sys.stderr,
        )


def by_length() -> list[dict[str, object]]:
    """Return savings by prompt length: prefill at 40 requests/s on A100.

    The limit is three times a lone pass on one GPU.
    """
    rows: list[dict[str, object]] = []
    for model in SWEPT:
        for isl in LENGTHS:
            alone = problem(model, "A100-80GB", "prefill", 40.0, isl, 1.0, 1.0)
            limit = MULTIPLE * float(alone.problem.latency_s[:, 0, 0].sum())
            phase = problem(model, "A100-80GB", "prefill", 40.0, isl, 1.0, limit)
            rows.append({"model": model, "isl": isl, "slo_s": limit, **figures_of_phase(phase)})
    return rows


def by_size() -> list[dict[str, object]]:
    """Return savings by size in the Qwen2 family: 1K tokens at 40 requests/s within 1 s on A100."""
    return [
        {"model": m, **figures_of_phase(problem(m, "A100-80GB", "prefill", 40.0, 1024, 1.0, 1.0))}
        for m in SIZES
    ]


def throughput() -> list[dict[str, object]]:
    """Return the highest rate by operators over that of whole replicas, on as many GPUs.

    The case is prefill of 1K tokens within 1 s, on the GPUs that whole replicas need.
    """
    rows: list[dict[str, object]] = []
    for model, gpu in (("qwen2-7b", "A100-80GB"), ("qwen2-57b-a14b", "A100-80GB"),
                       ("llama-3.1-70b", "H100-SXM")):  # fmt: skip
        base = problem(model, gpu, "prefill", 40.0, 1024, 1.0, 1.0)
        devices = levels(base, ())["model"].devices
        rates = {level: highest(base, level, devices) for level in ("model", "operator")}
        watts = {}
        for level, rate in rates.items():
            phase_at = at_rate(base, rate)
            room = device_bytes(gpu)
            level_plan = (
                model_level(phase_at, room)
                if level == "model"
                else plan_level("operator", phase_at, room)
            )
            watts[level] = level_plan.power_w / rate if level_plan else float("nan")
        rows.append(
            {
                "model": model,
                "gpu": gpu,
                "gpus": devices,
                "model_rate": rates["model"],
                "operator_rate": rates["operator"],
                "ratio": rates["operator"] / rates["model"],
                "energy_per_request": watts["operator"] / watts["model"] - 1.0,
            }
        )
    return rows


def highest(base: PhaseProblem, level: str, devices: int) -> float:
    """Return the highest rate that ``devices`` GPUs serve, to 1%."""
    room = device_bytes(base.service.gpu.name)

    def enough(rate: float) -> bool:
        phase_at = at_rate(base, rate)
        level_plan = (
            model_level(phase_at, room)
            if level == "model"
            else plan_level("operator", phase_at, room, quick=True)
        )
        return level_plan is not None and level_plan.devices <= devices

    low, high = 0.0, 2.0 * base.service.requests_s
    while enough(high):
        low, high = high, 2.0 * high
    while high - low > 0.01 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if enough(middle) else (low, middle)
    return low


def claims(
    rows: list[Row], more: dict[str, list[dict[str, object]]]
) -> dict[str, dict[str, object]]:
    """Return each of the source's claims with our numbers."""

    def mean(measure: str, **where: object) -> float:
        picked = [
            getattr(r, measure)
            for r in rows
            if r.model_gpus and all(getattr(r, k) == v for k, v in where.items())
        ]
        return float(np.mean(picked)) if picked else float("nan")

    scaled = [r for r in rows if not r.own_rate and r.model_gpus]
    phases = {p: {m: mean(m, phase=p, own_rate=False) for m in MEASURES} for p in PHASES}
    low = [r for r in rows if r.model_gpus and r.rate < 20]
    long = {
        model: [row for row in more["length"] if row["model"] == model and "gpus" in row]
        for model in SWEPT
    }
    falls = {
        model: {
            "peak_gpus": max(float(o["gpus"]) for o in points),  # type: ignore[arg-type]
            "peak_isl": max(points, key=lambda o: float(o["gpus"]))["isl"],  # type: ignore[arg-type]
            "longest_gpus": points[-1]["gpus"],
            "longest_memory": points[-1]["memory"],
            "shortest_memory": points[0]["memory"],
        }
        for model, points in long.items()
        if points
    }
    sizes = [float(o.get("gpus", np.nan)) for o in more["size"]]  # type: ignore[arg-type]
    ratios = [float(o["ratio"]) for o in more["throughput"]]  # type: ignore[arg-type]
    return {
        "prefill beats decode in GPUs": {
            "holds": phases["prefill"]["gpus"] > phases["decode"]["gpus"],
            "means": phases,
            "cells": len(scaled),
        },
        "GPU savings fall at very long inputs, memory savings rise": {
            "holds": all(
                f["longest_gpus"] < f["peak_gpus"] and f["longest_memory"] > f["shortest_memory"]  # type: ignore[operator]
                for f in falls.values()
            ),
            "by_model": falls,
        },
        "nothing below 20 requests/s": {
            "holds": all(r.gpus <= 0 for r in low),
            "share_of_cells_that_save": float(np.mean([r.gpus > 0 for r in low])),
            "mean_gpus_by_model": {
                model: float(np.mean([r.gpus for r in low if r.model == model]))
                for model in dict.fromkeys(r.model for r in low)
            },
        },
        "larger models gain more at a fixed limit": {
            "holds": bool(np.all(np.diff(sizes) >= 0) and sizes[-1] > sizes[0]),
            "gpus": dict(zip(SIZES, sizes, strict=True)),
        },
        "1.6 times the throughput on the same GPUs": {
            "holds": max(ratios) >= 1.6,
            "ratios": more["throughput"],
        },
    }


def everything() -> dict[str, object]:
    rows = list(table())
    print_table(rows)
    more = {"length": by_length(), "size": by_size(), "throughput": throughput()}
    return {
        "savings": [asdict(row) for row in rows],
        **more,
        "claims": claims(rows, more),
    }
