"""The operator source's figures at its sizes: Qwen2 on A100, Poisson requests, 95% within 1 s.

Savings and throughput count plans that a replay confirms, as in a run of ``provision``. Gaps are of
GPUs after placement, by means of queues. A figure is (the source's, ours, where in the source).
"""

import sys
from dataclasses import replace

import numpy as np

from bench.provision.services import device_bytes
from planner.domain.provisioning.levels import (
    Judge,
    Rules,
    problem_of,
    solve_levels,
    with_ample_replicas,
)
from planner.inputs.catalogue import hardware
from simulation.provisioning.level import Level, savings
from simulation.provisioning.levels import plan_level
from simulation.provisioning.workload import PhaseLoad

MODEL, GPU, ISL, OSL, LIMIT_S = "qwen2-7b", "A100-80GB", 1024, 128, 1.0
GAP_RATES = (5.0, 10.0, 20.0, 40.0, 80.0, 160.0)
RATES = (20.0, 40.0, 80.0)
LENGTHS = (256, 1024, 4096, 16384)
SIZES = ("qwen2-0.5b", "qwen2-7b", "qwen2-72b")
MULTIPLE = 5.0  # of a lone pass: the limit of prompts that are longer than 1K
ATTAINMENT, SPREAD = 0.95, 0.4
STEP, STEPS = 1.05, 12  # rates of the throughput search: up to 1.8 times that of whole replicas
Figures = dict[str, tuple[float | None, float | None, str]]


def everything() -> Figures:
    """Return all figures."""
    return {**gaps(), **largest_savings(), **throughput()}


def service(model: str = MODEL, rate: float = 40.0, isl: int = ISL) -> PhaseLoad:
    """Return prefill at a rate and a mean length; long prompts get a longer limit."""
    load = PhaseLoad(
        hardware.shape(model), hardware.gpu(GPU), "prefill", rate, float(isl), OSL, LIMIT_S
    )
    lone_s = float(problem_of(load, "bf16").replica_s[0].min())
    return load if isl <= ISL else replace(load, slo_s=max(LIMIT_S, MULTIPLE * lone_s))


def plan_confirmed_level(load: PhaseLoad, name: str) -> Level | None:
    """Return a level that the replay confirms; None if there is none."""
    judge = Judge.log_normal((load.isl, SPREAD), (OSL, 0.0), ATTAINMENT, 1)
    _, levels = solve_levels(load, "bf16", Rules((name,), proofs=False), judge=judge)
    level = levels.get(name)
    if level is None or level.replayed is None or level.replayed.attainment < ATTAINMENT:
        return None
    return level


def gaps() -> Figures:
    """Return GPUs above the proven bound, and those of greedy methods above the exact plan (A5)."""
    bounds, greedy, own = [], [], []
    for rate in GAP_RATES:
        phase = with_ample_replicas(problem_of(service(rate=rate), "bf16"))
        exact, ours, theirs = (
            plan_level("operator", phase, device_bytes(GPU), method=method)
            for method in ("exact", "greedy", "algorithm1")
        )
        assert exact is not None
        assert ours is not None
        assert theirs is not None
        bounds.append(1.0 - (exact.least_devices or 0) / exact.devices)
        greedy.append(ours.devices / exact.devices - 1.0)
        own.append(theirs.devices / exact.devices - 1.0)
    where = "section 4.3, oracle"
    return {
        "operators_exact_gap_mean": (None, float(np.mean(bounds)), where),
        "operators_exact_gap_most": (None, float(np.max(bounds)), where),
        "operators_algorithm1_above_exact": (0.08, float(np.mean(own)), where),
        "operators_greedy_above_exact": (None, float(np.mean(greedy)), where),
    }


def largest_savings() -> Figures:
    """Return the most that operators save over length, rate and model size (A8)."""
    sweeps = {
        "length": (0.30, [service(isl=isl) for isl in LENGTHS]),
        "rate": (0.30, [service(rate=rate) for rate in RATES]),
        "size": (0.25, [service(model) for model in SIZES]),
    }
    out: Figures = {}
    for name, (theirs, loads) in sweeps.items():
        found = []
        for load in loads:
            coarse, fine = (plan_confirmed_level(load, level) for level in ("model", "operator"))
            if coarse is not None and fine is not None:
                found.append(savings(coarse, fine))
            print(f"{name}: {load.shape.name} {load.isl:.0f} tokens, {load.requests_s:.0f}/s",
                  coarse and coarse.devices, fine and fine.devices, file=sys.stderr)  # fmt: skip
        for measure in ("gpus", "energy", "memory"):
            shares = [share for its in found if (share := getattr(its, measure)) is not None]
            most = max(shares, default=None)
            source = theirs if measure == "gpus" else None
            out[f"operators_{measure}_saving_by_{name}"] = (source, most, "figures 10, 11, 13")
    return out


def throughput(models: tuple[str, ...] = (MODEL, "qwen2-57b-a14b")) -> Figures:
    """Return the highest rate by operators over that of whole replicas, on as many GPUs (A8)."""
    best = max(map(_ratio, models))
    return {"operators_throughput_by_requests": (1.6, best, "abstract")}


def _ratio(model: str) -> float:
    coarse = plan_confirmed_level(service(model), "model")
    assert coarse is not None
    rates = {level: _highest(model, level, coarse.devices) for level in ("model", "operator")}
    print(f"{model}: {rates} requests/s on {coarse.devices} GPUs", file=sys.stderr)
    return rates["operator"] / rates["model"]


def _highest(model: str, level: str, gpus: int) -> float:
    """Return the highest rate of the grid that a level serves on ``gpus`` GPUs."""
    low, high = 0, STEPS + 1
    while high - low > 1:
        middle = (low + high) // 2
        found = plan_confirmed_level(service(model, 40.0 * STEP**middle), level)
        low, high = (middle, high) if found and found.devices <= gpus else (low, middle)
    return float(40.0 * STEP**low)
