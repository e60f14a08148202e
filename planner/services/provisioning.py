"""Compute further figures of a provisioning run for its page and the REST API, and cache them.

A pool is the prefill or decode phase of a model in a region on a GPU type.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, fields, replace
from typing import Any

import numpy as np
from django.core.cache import cache

from planner.domain.kinds.provision import Options, ProvisionResult
from planner.domain.options import options_of
from planner.domain.provisioning.figures import PoolFigures
from planner.domain.provisioning.levels import (
    Judge,
    Measurements,
    Rules,
    measured_on,
    problem_of,
    solve_levels,
)
from planner.domain.serialise import as_json
from planner.errors import NotFound, NotReady
from planner.inputs.catalogue.hardware import shape
from planner.inputs.scenario.build import build_hardware
from planner.inputs.scenario.document import parse
from planner.models import Run
from planner.selectors.run_hardware import stored_hardware
from planner.selectors.runs import run_result, typed_result
from planner.version import code_version
from simulation.provisioning.level import savings
from simulation.provisioning.sensitivity import sensitivity
from simulation.provisioning.workload import PhaseLoad

Answer = dict[str, Any]  # as JSON
CACHE_S = 7 * 86_400
LENGTHS = (256, 512, 1024, 2048, 4096, 8192, 16384)  # tokens
SENSITIVITY_LENGTHS = (*LENGTHS, 32_768, 65_536)  # as in the paper on operator-level scaling
RATES = (5, 10, 20, 40, 80, 160)  # requests/s
FAMILY = ("qwen2-0.5b", "qwen2-1.5b", "qwen2-7b", "qwen2-72b")
SWEEPS = ("length", "rate", "size")
LIMIT_MULTIPLE = 3.0  # a latency limit is at least this multiple of a single pass on one GPU


def pool_of_run(run: Run, name: str, phase: str) -> PoolFigures:
    """Return the pool with this name (see ``pool_names``) and phase; "" stands for any.

    Raises NotReady if the run has no such pools, and NotFound for another name.
    """
    run_result(run)  # raises NotReady if there is none yet
    pools = typed_result(run, ProvisionResult).pools if run.kind == Run.Kind.PROVISION else ()
    if not pools:
        raise NotReady("This run did not provision below the replica. Start one with it.")
    names = pool_names(pools)
    for pool, pool_name in zip(pools, names, strict=True):
        if name in ("", pool_name, _plain_name(pool)) and phase in ("", pool.phase):
            return pool
    available = ", ".join(dict.fromkeys(names))
    raise NotFound(f"There is no {phase} pool {name!r} in this run. Known: {available}.")


def pool_names(pools: Sequence[PoolFigures]) -> list[str]:
    """Return ``model / region / gpu`` of each pool, with the precision where two would be equal."""
    precisions: dict[str, set[str]] = {}
    for pool in pools:
        precisions.setdefault(_plain_name(pool), set()).add(pool.weights)
    names = []
    for pool in pools:
        name = _plain_name(pool)
        names.append(f"{name} / {pool.weights}" if len(precisions[name]) > 1 else name)
    return names


def _plain_name(pool: PoolFigures) -> str:
    return f"{pool.model} / {pool.region} / {pool.gpu}"


def operator_sensitivity(run: Run, pool: PoolFigures) -> Answer:
    """Return latencies of a pool's operators by length, batch, rate and GPU share; cached.

    The answer has ``operators`` (names), each field of the responses as a list by operator, and the
    source of these figures in ``provenance``.
    """

    def compute() -> Answer:
        """Return the answer, computed."""
        load, measured = load_of_pool(run, pool)
        responses = sensitivity(
            load,
            lambda changed_load: problem_of(changed_load, pool.weights, measured=measured),
            lengths=SENSITIVITY_LENGTHS,
            rates=np.unique([*RATES, round(load.requests_s, 1)]),
        )
        answer: Answer = {"operators": list(responses.names)}
        for field in fields(responses):
            if field.name != "names":
                answer[field.name] = np.round(getattr(responses, field.name), 6).tolist()
        return answer | {"provenance": _curve_provenance(measured)}

    return _cache_answer(run, pool, "sensitivity", compute)


def savings_sweep(run: Run, pool: PoolFigures, by: str) -> Answer:
    """Return the savings of operator-level over whole-replica provisioning, as ``by`` varies.

    ``by`` is rate, size (of the model, in the Qwen2 family) or length (of the prompt). The rest is
    as in the pool. The plans are confirmed by a replay of requests whose lengths vary as in the
    pool's busiest hour.
    """
    if by not in SWEEPS:
        raise NotFound(f"There is no sweep by {by!r}. Known: {', '.join(SWEEPS)}.")

    def compute() -> Answer:
        """Return the savings at each point of the sweep, with operators placed greedily."""
        load, measured = load_of_pool(run, pool)
        points: dict[str | int, PhaseLoad] = {}  # loads by rate, model or prompt length
        if by == "rate":
            points = {rate: replace(load, requests_s=float(rate)) for rate in RATES}
        elif by == "size":
            points = {name: replace(load, shape=shape(name)) for name in FAMILY}
        else:
            points = {
                tokens: _at_length(load, tokens, pool.weights, measured) for tokens in LENGTHS
            }
        run_rules = options_of(Options, run.options).rules
        rules = replace(run_rules, levels=("operator",), method="greedy", proofs=False)
        rows = []
        for value, varied_load in points.items():
            rows.append({"at": value, **_savings_row(pool, varied_load, rules, measured)})
        return {"by": by, "rows": rows}

    answer: Answer = as_json(_cache_answer(run, pool, by, compute))
    return answer


def _savings_row(
    pool: PoolFigures, load: PhaseLoad, rules: Rules, measured: Measurements
) -> Answer:
    """Return the latency limit of a load, and the GPUs of whole replicas and by operators.

    Only the limit is returned if a plan is missing, or misses the pool's SLO target in the replay.
    """
    input_lengths = (load.isl, pool.isl_cv or 0.0)  # mean and coefficient of variation
    output_lengths = (load.osl, pool.osl_cv or 0.0)
    judge = Judge.log_normal(input_lengths, output_lengths, pool.attainment, seed=1)
    _, levels = solve_levels(load, pool.weights, rules, measured, judge)
    row: Answer = {"slo_ms": load.slo_s * 1e3}
    replays = [level.replayed for level in levels.values() if level.replayed is not None]
    meets_slo = all(replay.attainment >= judge.attainment for replay in replays)
    if meets_slo and {"model", "operator"} <= set(levels):
        replicas, operators = levels["model"], levels["operator"]
        row |= {"model_gpus": replicas.devices, "operator_gpus": operators.devices}
        row |= asdict(savings(replicas, operators))
    return row


def _curve_provenance(measured: Measurements) -> dict[str, str]:
    """Return the sources of the latency curves of a pool."""
    share = "a share of the SMs by the stated interference model"
    table = measured.interference
    if table is not None and table.alone:
        share = f"a share of the SMs where measured ({table.source}), else by the model"
    if measured.kernels is None:
        kernel_words = "published peaks x efficiency of measured kernels"
        return {"kind": "modelled", "source": f"{kernel_words}; {share}"}
    kernel_words = (
        f"kernels from {measured.kernels.source} where there are any, else efficiency factors"
    )
    return {"kind": "measured", "source": f"{kernel_words}; {share}"}


def _at_length(load: PhaseLoad, tokens: int, weights: str, measured: Measurements) -> PhaseLoad:
    """Return ``load`` with prompts of ``tokens`` tokens.

    Its latency limit may be unreachable for them, so it is raised to LIMIT_MULTIPLE times a single
    pass on one GPU. ``weights`` is the precision of the weights.
    """
    varied = replace(load, isl=float(tokens))
    problem = problem_of(varied, weights, measured=measured).problem
    single_pass_s = float(problem.latency_s[:, 0, 0].sum())  # one replica on one GPU, batch 1
    limit_s = LIMIT_MULTIPLE * single_pass_s + load.start_s
    return replace(varied, slo_s=max(load.slo_s, limit_s))


def load_of_pool(run: Run, pool: PoolFigures) -> tuple[PhaseLoad, Measurements]:
    """Return the load of a pool in the run, and the kernel measurements of its GPU type."""
    hardware_facts, options = stored_hardware(run.resolved), options_of(Options, run.options)
    hardware = build_hardware(parse(run.document, run.name), hardware_facts)
    model = next(model for model in hardware.models if model.name == pool.model)
    gpu = next(gpu for gpu in hardware.gpus if gpu.name == pool.gpu)
    assert model.shape is not None
    images = pool.images or 0.0
    phase_load = PhaseLoad(
        shape=model.shape,
        gpu=gpu,
        phase=pool.phase,
        requests_s=pool.requests_s,
        isl=pool.isl,
        cached=pool.cached_tokens or 0.0,
        osl=pool.osl,
        slo_s=pool.slo_ms / 1e3,
        image_tokens=images * (pool.image_tokens or 0.0),
        images=images or 1.0,
        start_s=(pool.start_ms or 0.0) / 1e3,
    )
    measured = measured_on(
        hardware_facts, [gpu.name], timing=options.kernels, interference=options.interference
    )
    # ``times`` is a factor on operator times, to match the scenario's own profile.
    return phase_load, replace(measured[gpu.name], times=pool.times or 1.0)


def _cache_answer(
    run: Run, pool: PoolFigures, figure: str, compute: Callable[[], Answer]
) -> Answer:
    """Return the result of ``compute`` from the cache, or compute and cache it.

    It is computed again for another ``figure``, load of the pool, run or version of the program.
    """
    load = as_json(replace(pool, levels={}, savings={}))
    question = json.dumps(
        [figure, code_version(), run.document, run.resolved, run.options, load], sort_keys=True
    )
    key = f"provisioning-{hashlib.sha256(question.encode()).hexdigest()}"
    answer: Answer | None = cache.get(key)
    if answer is None:
        answer = compute()
        cache.set(key, answer, CACHE_S)
    return answer
