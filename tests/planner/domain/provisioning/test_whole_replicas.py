"""Whole replicas of real models: the fewest there are, and never more for less."""

from dataclasses import replace

import numpy as np

from planner.domain.provisioning.levels import (
    Judge,
    Rules,
    problem_of,
    solve_levels,
    with_ample_replicas,
)
from planner.inputs.catalogue import hardware
from simulation.performance.memory import MEMORY_SHARE
from simulation.provisioning.levels import model_level
from simulation.provisioning.workload import Phase, PhaseLoad

MODEL, GPU = "llama-3.1-8b", "A100-80GB"
ROOM = MEMORY_SHARE * hardware.gpu(GPU).memory_bytes


def load(phase: Phase, rate: float, isl: float, limit: float) -> PhaseLoad:
    return PhaseLoad(hardware.shape(MODEL), hardware.gpu(GPU), phase, rate, isl, 200.0, limit)


def test_long_prompts_take_no_more_than_one_gpu_each_would() -> None:
    """168.8 prompts/s of 16,384 tokens within three lone passes: 233 replicas of one GPU do."""
    alone = problem_of(load("prefill", 168.8, 16_384.0, 1e3), "bf16").replica_s[0, 0]
    within = load("prefill", 168.8, 16_384.0, 3.0 * float(alone))
    replicas = model_level(with_ample_replicas(problem_of(within, "bf16")), ROOM)
    assert replicas is not None
    assert replicas.devices <= 233
    assert replicas.devices >= 168.8 * float(alone) / 1.5  # no arrangement is that much better


def test_an_order_is_taken_where_it_needs_fewer() -> None:
    """Prompts of very different lengths: short ones first is never worse than as they come, and
    what it saves is said."""
    rng = np.random.default_rng(5)
    isl = np.clip(rng.lognormal(8.0, 1.3, 3000), 16, 60_000).astype(np.int64)
    service = load("prefill", 10.0, float(isl.mean()), 3.0)
    judge = Judge(isl, np.full(isl.size, 20), 0.95, 1)
    rules = Rules(("model",), proofs=False)
    by_order = {}
    for order in ("fcfs", "shortest", "best"):
        phase, levels = solve_levels(service, "bf16", replace(rules, order=order), judge=judge)
        by_order[order] = phase.service.order, levels["model"]
    in_turn, best = by_order["fcfs"][1], by_order["best"][1]
    assert best.replayed is not None
    assert best.replayed.attainment >= 0.95
    assert by_order["best"][0] == "shortest"
    assert best.devices == by_order["shortest"][1].devices < in_turn.devices == best.fcfs_devices
    # Sequences that decode do not wait for each other: there is no order to choose.
    decode = load("decode", 8.0, float(isl.mean()), 0.1)
    phase, _ = solve_levels(decode, "bf16", replace(rules, order="best"), judge=judge)
    assert phase.service.order == "fcfs"
