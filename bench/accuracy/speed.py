"""Iteration latencies per second, on one core, from compiled code, for every kind of profile.

Iterations are drawn at random over the whole range of a profile, a third each of decode, prefill
and mixed, so that no branch or cache line can be guessed. Operator and roofline profiles are
compiled by the same function to the same layout, so one of them stands for both.
"""

import time
from pathlib import Path
from typing import Any

import numpy as np

from planner.inputs.catalogue import hardware
from planner.inputs.catalogue.estimate_calibration import efficiencies
from planner.inputs.ingest.benchmarks import read_benchmarks
from simulation.performance.curves import Curve, evaluate, linear
from simulation.performance.roofline import roofline_profile
from simulation.performance.specs import Arrangement, EngineSettings
from simulation.performance.table import table_curve

ITERATIONS, REPEATS, SEED = 200_000, 30, 20260101


def curves(data: Path) -> dict[str, Curve]:
    """Return a curve of each layout, by kind of profile."""
    by_kind = {"linear": linear(8e-3, 5e-5, 9e-3, 4e-5)}
    rows = read_benchmarks(data / "profiles/splitwise_perf_model.csv").rows
    (_, first), *_ = rows.arrangements()
    by_kind["table"] = table_curve(first)
    shape, gpu = hardware.shape("llama-3.1-8b"), hardware.gpu("H100-SXM")
    limits = EngineSettings(256, 8192, 1 << 19)
    roofline = roofline_profile(shape, gpu, Arrangement(), efficiencies(), limits).curve
    return by_kind | {"operator": roofline, "roofline": roofline}


def per_second(curve: Curve) -> float:
    """Return the evaluations per second of CPU time, in the fastest of ``REPEATS`` passes.

    Other programs on the machine slow the other passes.
    """
    random = np.random.default_rng(SEED)
    kind = random.integers(0, 3, ITERATIONS)
    b = np.where(kind == 1, 0, random.integers(1, 257, ITERATIONS)).astype(float)
    p = np.where(kind == 0, 0, random.integers(1, 8193, ITERATIONS)).astype(float)
    c = b * random.integers(1, 16385, ITERATIONS)
    a = p * random.integers(1, 16385, ITERATIONS)
    evaluate(curve, b[:1], c[:1], p[:1], a[:1])  # compile
    best = np.inf
    for _ in range(REPEATS):
        start = time.process_time()
        evaluate(curve, b, c, p, a)
        best = min(best, time.process_time() - start)
    return ITERATIONS / best


def figures(data: Path) -> dict[str, Any]:
    speeds = {name: per_second(curve) for name, curve in curves(data).items()}
    return {
        "evaluations_per_second": min(speeds.values()),
        **{f"evaluations_per_second_{name}": speed for name, speed in speeds.items()},
    }
