"""Whether the product contradicts itself.

    python -m bench.accuracy consistent

``monotone_in_gpus``: pairs of estimates of one deployment of which the one on more GPUs of a kind
gives fewer tokens per second: on L40S, whose GPUs reduce over PCIe, wide tensor parallelism costs
more than it brings. ``monotone_in_gpus_built_in``: pairs of built-in profiles likewise,
each of which says so where it is used. ``size_agrees_tbt`` and ``_ttft``: of computed profiles at
IN_FLIGHT, how far the estimate in steady traffic and the closed forms of sizes at the rate that it
gives are apart at most (relative to the smaller); an estimate's TTFT holds what the engine takes
from arrival to the first iteration, which sizes do not.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np

from planner import catalogue
from planner.catalogue.contradictions import carries
from planner.catalogue.efficiency import efficiencies
from planner.catalogue.estimating import estimate_fit
from planner.catalogue.serving import serving_limits
from simulation.performance.estimate.arranging import Deployment
from simulation.performance.estimate.estimate import Estimate, estimate, estimate_rows
from simulation.performance.roofline import roofline_profile
from simulation.performance.specs import Arrangement
from simulation.sizing.batch_queue import evaluate
from simulation.sizing.workload import Workload

MODELS = ("llama-3.1-8b", "llama-3.1-70b", "qwen3-32b", "gpt-oss-120b")
GPUS = ("A100-80GB", "H100-SXM", "H200", "B200", "MI300X", "L40S")
WIDTHS = (1, 2, 4, 8)
USERS = (1.0, 16.0, 256.0)
ISL, OSL, IN_FLIGHT = 1155, 211, 32.0
STEADY = 1e6  # rounds, of which the first counts for nothing
ALIKE = 1e-9


def figures(_: Path) -> dict[str, Any]:
    return {
        "monotone_in_gpus": sum(_fewer(*key) for key in itertools.product(MODELS, GPUS, USERS)),
        "monotone_in_gpus_built_in": _built_in(),
        **_agreement(),
    }


def _deployment(model: str, gpu: str, tp: int, users: float, engine: str = "vllm") -> Deployment:
    where = Arrangement(tp=tp, moe_tp=tp)
    shape, kind = catalogue.shape(model), catalogue.gpu(gpu)
    return Deployment(shape, kind, where, ISL, OSL, users, engine, rounds=STEADY)


def _fewer(model: str, gpu: str, users: float) -> int:
    """How often the next width gives less, of those that fit."""
    rows = [_deployment(model, gpu, tp, users) for tp in WIDTHS]
    answers = estimate_rows(rows, estimate_fit().calibration, efficiencies())
    rates = [one.tokens_per_s for one in answers if isinstance(one, Estimate)]
    return sum(more < few * (1 - ALIKE) for few, more in itertools.pairwise(rates))


def _built_in() -> int:
    known = catalogue.profiles()
    return sum(
        few[:2] == many[:2] and few[2] < many[2] and carries(known[many]) < carries(known[few])
        for few, many in itertools.permutations(known, 2)
    )


def _agreement() -> dict[str, float]:
    apart: dict[str, list[float]] = {"tbt": [], "ttft": []}
    same = (np.full(100, ISL, np.int32), np.full(100, OSL, np.int32))
    for (model, gpu, tp), engine in itertools.product(
        (
            ("llama-3.1-8b", "H100-SXM", 1),
            ("llama-3.1-70b", "H100-SXM", 4),
            ("qwen3-32b", "B200", 1),
        ),
        ("vllm", "trtllm"),
    ):
        given = _deployment(model, gpu, tp, IN_FLIGHT, engine)
        one = estimate(given, estimate_fit().calibration, efficiencies())
        limits = serving_limits(given.shape, given.gpu, given.decode, engine=engine)
        profile = roofline_profile(given.shape, given.gpu, given.decode, efficiencies(), **limits)
        seen = evaluate(profile, Workload(*same, burstiness=1.0).at(one.tokens_per_s / OSL))
        for name, other in (("tbt", seen.tbt.mean), ("ttft", seen.ttft.mean)):
            ours = getattr(one, f"{name}_s")
            apart[name].append(max(ours, other) / min(ours, other) - 1.0)
    return {f"size_agrees_{name}": float(max(values)) for name, values in apart.items()}
