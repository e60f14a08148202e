"""Levels judged by requests, on random services: what plans promise and what comes.

``plan_shortfall_points``: the share of requests that a plan promised to serve within its limit less
that of requests it was not made with, in points, the worst of 60 services at all levels.
``level_order_violations``: finer levels that are worse in GPUs, power, memory or latency;
``monotone_violations``: services that need more for a looser limit or less load; ``over_power``:
plans that draw more than their boards may; ``station_visits_per_second`` of the replay, one core;
``replica_agreement``: p50 and p95 of a lone replica beside the engine's, the worst.
"""

import sys
import time
from dataclasses import replace
from itertools import pairwise

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
from simulation.arrays import IntArray
from simulation.fleet import Tier
from simulation.performance.compiled_graph import GraphProfile
from simulation.performance.graph import operator_graph
from simulation.performance.specs import Arrangement
from simulation.provisioning.level import Level, no_worse
from simulation.provisioning.levels import LEVELS, level_of, model_level, plan_level
from simulation.provisioning.replay import LevelReplay, Requests, draw_requests
from simulation.provisioning.replicas import under_load
from simulation.provisioning.workload import Phase, PhaseLoad, PhaseProblem
from simulation.sizing.capacity import NO_LIMIT, SizingCase, isolated_role
from simulation.sizing.trial import RequestDraws, Trial

CASES, ATTAINMENT = 60, 0.95
MODELS = ("qwen2-7b", "llama-3.1-8b", "qwen2-57b-a14b", "llama-3.1-70b")
GPUS = ("A100-80GB", "H100-SXM")
LOOSER, MORE = (1.0, 1.5, 3.0, 10.0), (1.0, 1.5, 3.0)
OTHER = 77  # seed of requests that no plan was made with


def service_of(seed: int) -> tuple[PhaseLoad, IntArray, IntArray]:
    """Return a random service and the lengths of its requests."""
    rng = np.random.default_rng(seed)
    phase: Phase = ("prefill", "decode")[seed % 2]
    spec, shape = hardware.gpu(GPUS[seed // 2 % 2]), hardware.shape(MODELS[seed // 4 % 4])
    isl = np.clip(rng.lognormal(rng.uniform(5.5, 8.0), 0.7, 4000), 8, 16_000).astype(np.int64)
    osl = np.clip(rng.lognormal(rng.uniform(4.0, 5.5), 0.7, 4000), 2, 1500).astype(np.int64)
    rate = float(np.exp(rng.uniform(np.log(2.0), np.log(60.0))))
    limit = float(rng.uniform(1.0, 5.0) if phase == "prefill" else rng.uniform(0.04, 0.15))
    load = PhaseLoad(shape, spec, phase, rate, float(isl.mean()), float(osl.mean()), limit)
    return load, isl, osl


def everything(cases: int = CASES) -> dict[str, float]:
    shortfall, worse, over, visits, seconds, finer = 0.0, 0, 0, 0, 0.0, 0
    rules = Rules(LEVELS, proofs=False)
    for seed in range(cases):
        load, isl, osl = service_of(seed)
        phase, levels = solve_levels(load, "bf16", rules, judge=Judge(isl, osl, ATTAINMENT, seed))
        room = device_bytes(load.gpu.name)
        fresh = LevelReplay(phase, [draw_requests(isl, osl, phase, seed=OTHER + seed)], room)
        coarser: list[Level] = []
        for name in reversed(LEVELS):
            level = levels.get(name)
            if level is None or level.replayed is None:
                continue
            over += level.power_w > (load.gpu.tdp_w or np.inf) * level.devices * (1 + 1e-9)
            worse += not all(no_worse(level, coarse) for coarse in coarser)
            finer += not level.method.startswith("as ") and name != "model"
            if level.replayed.attainment >= ATTAINMENT and not level.method.startswith("as "):
                begun = time.perf_counter()
                came = fresh.latency_of(level)
                seconds += time.perf_counter() - begun
                visits += came.visits
                shortfall = max(shortfall, 100.0 * (ATTAINMENT - came.attainment))
            coarser.append(level)
        print(f"judged {seed + 1} of {cases}", file=sys.stderr)
    return {
        "plan_shortfall_points": shortfall,
        "level_order_violations": worse,
        "over_power": over,
        "judged_cases": cases,
        "finer_levels_taken": finer,
        "monotone_violations": monotone_violations(cases),
        "station_visits_per_second": visits_per_second(),
        "replica_agreement": replica_agreement(),
    }


def monotone_violations(cases: int) -> int:
    """Return how often a plan needs more for a looser limit, or less for more load."""
    rises = 0
    for seed in range(0, cases, 3):
        load, _, _ = service_of(seed)
        looser = [replace(load, slo_s=load.slo_s * times) for times in LOOSER]
        busier = [replace(load, requests_s=load.requests_s * times) for times in MORE]
        rises += _rises([_needs(level) for level in looser])
        rises += _rises([_needs(level) for level in busier][::-1])
    return rises


def _needs(load: PhaseLoad) -> tuple[float, float]:
    phase, room = with_ample_replicas(problem_of(load, "bf16")), device_bytes(load.gpu.name)
    whole_model = model_level(phase, room)
    if whole_model is None:
        return np.inf, np.inf
    fine = plan_level("operator", phase, room, coarser=[whole_model])
    return whole_model.devices, np.inf if fine is None else fine.devices


def _rises(needs: list[tuple[float, float]]) -> int:
    return sum(
        after[i] > before[i] for before, after in pairwise(needs)
        for i in range(2)
    )  # fmt: skip


def visits_per_second(rounds: int = 3) -> float:
    """Return the simulated station visits per second of decodes.

    An 8B model decodes 16.9 requests/s through runs of layers.
    """
    rng = np.random.default_rng(1)
    isl = np.clip(rng.lognormal(6.8, 0.7, 2000), 16, 8000).astype(np.int64)
    osl = np.clip(rng.lognormal(5.0, 0.7, 2000), 2, 1500).astype(np.int64)
    load = PhaseLoad(
        hardware.shape("llama-3.1-8b"), hardware.gpu("A100-80GB"), "decode", 16.9,
        float(isl.mean()), float(osl.mean()), 0.05,
    )  # fmt: skip
    phase, room = with_ample_replicas(problem_of(load, "bf16")), device_bytes("A100-80GB")
    level = plan_level("module", phase, room)
    assert level is not None
    judge = LevelReplay(phase, [draw_requests(isl, osl, phase)], room)
    visits = judge.latency_of(level).visits
    took = []
    for _ in range(rounds):
        begun = time.perf_counter()
        judge.latency_of(level)
        took.append(time.perf_counter() - begun)
    return visits / min(took)


def replica_agreement() -> float:
    """Return the largest relative difference of p50 and p95 between one station and the engine.

    It covers prompts and decodes at three loads.
    """
    worst = 0.0
    for seed, (kind, share) in enumerate(
        (kind, share) for kind in ("prefill", "decode") for share in (0.4, 0.7, 0.9)
    ):
        load, isl, osl = service_of(kind == "decode")
        phase = problem_of(load, "bf16")
        worst = max(worst, _agreement(phase, isl, osl, share, seed))
    return worst


def _agreement(phase: PhaseProblem, isl: IntArray, osl: IntArray, share: float, seed: int) -> float:
    """Return the difference at a share of the capacity of one replica.

    The replica has batches of 8 prompts, or of all sequences.
    """
    most = 8 if phase.queues else int(phase.problem.batches[-1])
    b = int(np.searchsorted(phase.problem.batches, most))
    passes = 1.0 if phase.queues else phase.service.osl
    rate = share * most / float(phase.replica_s[b, 0]) / passes
    phase = problem_of(replace(phase.service, requests_s=rate, slo_s=1e3), phase.weights)
    whole_model = model_level(phase, 1e15)
    assert whole_model is not None
    assert whole_model.replicas is not None
    single = replace(whole_model.replicas, replicas=1, batch=most, parallel=1, stages=1)
    plan = under_load(phase, single)
    assert plan is not None
    graph = operator_graph(phase.service.shape, Arrangement(tp=1, weights=phase.weights))
    curve = LevelReplay(phase, [], 1e15).curve(0)
    profile = GraphProfile(
        model=phase.service.shape.name, gpu=phase.service.gpu.name, tp=1, max_batch=most,
        max_batch_tokens=NO_LIMIT, kv_capacity_tokens=NO_LIMIT, kind="roofline",
        provenance=phase.service.gpu.provenance, curve=curve, graph=graph, timing=phase.timing,
        spread=0.0,
    )  # fmt: skip
    tier = Tier("limits", ttft_s=1.0, tbt_s=1.0)
    pools, sample, only = isolated_role(
        SizingCase(profile, (isl, osl), tier, role=phase.service.phase)
    )
    log = Trial(pools, RequestDraws(sample, seed=seed, requests=2000), only).at(rate)
    came = LevelReplay(
        phase,
        [
            Requests(
                log.trace.arrival_s,
                log.trace.input_tokens.astype(np.int64),
                log.trace.output_tokens.astype(np.int64),
            )
        ],
        1e15,
    ).latency_of(level_of(phase, plan))
    took = log.requests.ttft_s if phase.queues else log.requests.tbt_s
    took = took[int(0.1 * took.size) :]
    engine = (np.quantile(took, q, method="lower") for q in (0.5, 0.95))
    pairs = zip(engine, (came.p50_s, came.p95_s), strict=True)
    return max(abs(float(ours / theirs) - 1.0) for theirs, ours in pairs)
