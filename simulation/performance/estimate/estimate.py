"""Estimate TTFT, TBT, throughput and memory of a deployment at a concurrency, in steady state.

``estimate_rows`` is the vectorised form. It evaluates deployments of one model, GPU and arrangement
together. All fitted numbers are in ``calibration``.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from simulation.arrays import Array, FloatArray
from simulation.errors import SimulationError
from simulation.performance.efficiency import Efficiencies
from simulation.performance.estimate.calibration import ENGINES, Calibration, release_order
from simulation.performance.estimate.closed_loop import (
    DEMANDS,
    ClosedLoop,
    SteadyState,
    demands,
    steady_state,
)
from simulation.performance.estimate.defaults import ArrangedDeployment, Deployment, arrange
from simulation.performance.graph import operator_graph
from simulation.performance.memory import (
    MEMORY_SHARE,
    OVERHEAD_BYTES,
    gpu_kv_bytes,
    gpu_weight_bytes,
)
from simulation.performance.specs import Arrangement, GpuSpec, ModelShape
from simulation.performance.work import Iteration, iteration

# SGLang before these versions computes latent attention on AMD GPUs by AITER's persistent kernel.
# It was the default until 0.5.8, even with a 16-bit KV cache (sglang pull request 17327). Recipes
# for cdna3 then chose it for 8 bits (InferenceX pull requests 544 and 545). SGLang 0.5.10 has tuned
# kernels and a later AITER there (InferenceX pull request 811).
PERSISTENT = {"cdna3": "0.5.10", "cdna4": "0.5.8"}
TIGHT_SHARE = 0.95  # of GPU memory, the most that an operator can give the engine


@dataclass(frozen=True, slots=True)
class Estimate:
    """Speed and memory of one deployment at one concurrency; memory is of the fullest GPU."""

    ttft_s: float
    tbt_s: float
    tokens_per_s: float  # output tokens, of the whole deployment
    decode_s: float  # an iteration of decodes alone
    prompt_s: float  # one prompt computed alone, on one worker
    batch: float  # sequences that one decode worker holds
    arranged: ArrangedDeployment  # with all defaults filled in
    memory_bytes: float  # per GPU: weights and the KV cache in use
    weight_bytes: float  # per GPU
    assumptions: tuple[str, ...]  # one sentence per default


@dataclass(frozen=True, slots=True)
class RefusedEstimate:
    """The reason why a deployment cannot be estimated, in one sentence."""

    reason: str


@dataclass(frozen=True, slots=True)
class PlacedDeployment:
    """A deployment that fits into memory, with its largest batch and its bytes."""

    deployment: Deployment
    arranged: ArrangedDeployment
    batch: float  # sequences that one decode worker holds
    weight_bytes: float
    cache_bytes: float  # of one sequence at half of its output, on one GPU
    notes: tuple[str, ...]


def estimate(
    deployment: Deployment, calibration: Calibration, efficiencies: Efficiencies
) -> Estimate:
    """Return the estimate of a deployment; raise SimulationError if it does not fit in memory."""
    (answer,) = estimate_rows([deployment], calibration, efficiencies)
    if isinstance(answer, RefusedEstimate):
        raise SimulationError(answer.reason)
    return answer


def estimate_rows(
    deployments: Sequence[Deployment], calibration: Calibration, efficiencies: Efficiencies
) -> list[Estimate | RefusedEstimate]:
    """Return an estimate or a refusal for each of many deployments, in the same order."""
    answers: dict[int, Estimate | RefusedEstimate] = {}  # by index of the deployment
    placed: dict[int, PlacedDeployment] = {}
    for index, deployment in enumerate(deployments):
        try:
            placed[index] = fit_into_memory(deployment)
        except SimulationError as problem:
            answers[index] = RefusedEstimate(str(problem))
    if placed:
        steady = steady_state(loop_of(list(placed.values()), efficiencies), calibration)
        for row, (index, fitted) in enumerate(placed.items()):
            answers[index] = _estimate_of(fitted, steady, row)
    return [answers[index] for index in range(len(deployments))]


def _estimate_of(fitted: PlacedDeployment, steady: SteadyState, row: int) -> Estimate:
    """Return the estimate of a deployment from its ``row`` of the arrays in ``steady``."""
    arranged = fitted.arranged
    notes = arranged.assumptions + fitted.notes
    if np.isnan(arranged.prefill_workers):  # not given
        workers = float(np.ceil(steady.prefill_workers[row]))
        arranged = replace(arranged, prefill_workers=workers)
        notes += (f"prefill workers not given: {workers:g} taken, to keep up with decode",)
    cache_bytes = fitted.cache_bytes * fitted.batch / arranged.decode.attention_dp
    return Estimate(
        ttft_s=float(steady.ttft_s[row]),
        tbt_s=float(steady.tbt_s[row]),
        tokens_per_s=float(steady.tokens_per_s[row]),
        decode_s=float(steady.decode_s[row]),
        prompt_s=float(steady.prompt_s[row]),
        batch=fitted.batch,
        arranged=arranged,
        memory_bytes=fitted.weight_bytes + cache_bytes,
        weight_bytes=fitted.weight_bytes,
        assumptions=notes,
    )


def fit_into_memory(deployment: Deployment) -> PlacedDeployment:
    """Return ``deployment`` with the batch of a decode worker; raise SimulationError if none fits.

    The batch is limited by the users, the memory and the engine's ``max_num_seqs``.
    """
    arranged = arrange(deployment)
    gpu, ranks = deployment.gpu, arranged.decode.attention_dp
    shape = replace(deployment.shape, encoder=None)
    weight_bytes = gpu_weight_bytes(shape, arranged.decode)
    # Engines admit by the mean cache of a sequence, that at half of its output. TensorRT-LLM starts
    # a request only if its whole cache fits (GUARANTEED_NO_EVICT, the default).
    mean_tokens, end_tokens = deployment.isl + 0.5 * deployment.osl, deployment.isl + deployment.osl
    mean_cache_bytes = gpu_kv_bytes(shape, round(mean_tokens), arranged.decode)
    cache_bytes = mean_cache_bytes
    if deployment.engine == "trtllm":
        cache_bytes = gpu_kv_bytes(shape, round(end_tokens), arranged.decode)
    per_worker = deployment.concurrency / arranged.decode_workers  # requests
    sequences_per_rank = min(np.ceil(per_worker / ranks), deployment.max_num_seqs)
    free_bytes = gpu.memory_bytes * MEMORY_SHARE - OVERHEAD_BYTES - weight_bytes
    notes: tuple[str, ...] = ()
    # An operator raises the engine's share of memory before requests wait.
    if free_bytes < cache_bytes * sequences_per_rank:
        notes = (
            f"the engine uses {TIGHT_SHARE:.0%} of GPU memory (default: {MEMORY_SHARE:.0%}), so "
            "that more requests run at a time",
        )
        free_bytes = gpu.memory_bytes * TIGHT_SHARE - OVERHEAD_BYTES - weight_bytes
    if free_bytes < cache_bytes:
        raise _does_not_fit(deployment, arranged.decode, weight_bytes, cache_bytes)
    # No factor for pipeline stages: each stage holds its layers' cache of every sequence.
    max_sequences = (
        min(max(1.0, np.floor(free_bytes / cache_bytes)), deployment.max_num_seqs) * ranks
    )
    if per_worker > max_sequences:
        limit = "memory" if free_bytes / cache_bytes < deployment.max_num_seqs else "max_num_seqs"
        notes += (
            f"{limit} limits a replica to {max_sequences:,.0f} running requests of "
            f"{per_worker:,.0f}. The rest wait",
        )
    batch = float(np.clip(per_worker, min(1.0, deployment.concurrency), max_sequences))
    return PlacedDeployment(deployment, arranged, batch, weight_bytes, mean_cache_bytes, notes)


def _does_not_fit(
    deployment: Deployment, decode: Arrangement, weight_bytes: float, cache_bytes: float
) -> SimulationError:
    """Return the error for a GPU that cannot hold ``weight_bytes`` and ``cache_bytes``."""
    gpu = deployment.gpu
    return SimulationError(
        f"{deployment.shape.name} does not fit on {decode.gpus} x {gpu.name}: each "
        f"holds {weight_bytes / 1e9:.0f} GB of weights and needs {cache_bytes / 1e9:.1f} GB for "
        f"one sequence, of {gpu.memory_bytes * TIGHT_SHARE / 1e9:.0f} GB. Use more GPUs (tp) or a "
        "smaller precision."
    )


def loop_of(placed: Sequence[PlacedDeployment], efficiencies: Efficiencies) -> ClosedLoop:
    """Return the deployments as arrays for ``closed_loop``, one row each.

    Decoding sequences have their mean context. A prompt computes only the tokens that are not in
    the prefix cache.
    """
    deployments = [fitted.deployment for fitted in placed]
    arranged = [fitted.arranged for fitted in placed]
    decode_side = [deployment.decode for deployment in arranged]
    prefill_side = [deployment.prefill for deployment in arranged]
    isl, osl = _column(deployments, "isl"), _column(deployments, "osl")
    batch, ranks = _column(placed, "batch"), _column(prefill_side, "attention_dp")
    # Of one prompt: tokens to compute, and the pairs of each with itself or an earlier token. All
    # tokens have isl ** 2 / 2 pairs, and those in the prefix cache (hit_rate * isl) ** 2 / 2.
    hit_rate = _column(deployments, "prefix_hit_rate")
    tokens, pairs = (1.0 - hit_rate) * isl, (1.0 - hit_rate**2) * isl * isl / 2.0
    most_per_rank = np.maximum(batch / ranks - 1.0, 1.0)
    prompts_per_rank = np.clip(_column(arranged, "chunk_tokens") / tokens, 1.0, most_per_rank)
    joint_prompts = prompts_per_rank * ranks

    # Iterations: decodes, their context, prompt tokens (or drafted ones) and pairs.
    zeros = np.zeros_like(isl)
    context = batch * (isl + osl / 2.0)
    drafted_each = _column(deployments, "drafted")
    drafted = batch * drafted_each
    decode = iteration(batch, context, drafted, zeros)
    prefill = iteration(zeros, zeros, ranks * tokens, ranks * pairs)
    lone = iteration(zeros, zeros, tokens, pairs)
    mixed = iteration(batch, context, drafted + ranks * tokens, ranks * pairs)
    joint = iteration(zeros, zeros, joint_prompts * tokens, joint_prompts * pairs)
    demands_on = partial(_demands_of, deployments, efficiencies)
    return ClosedLoop(
        engine=np.array([ENGINES.index(deployment.engine) for deployment in deployments]),
        disaggregated=_column(arranged, "split", np.bool_),
        isl=isl,
        osl=osl,
        users=_column(deployments, "concurrency"),
        batch=batch,
        decode_workers=_column(arranged, "decode_workers"),
        prefill_workers=_column(arranged, "prefill_workers"),
        transfer_s=np.array([_transfer_s(fitted) for fitted in placed]),
        prefill_ranks=ranks,
        prompts_per_rank=prompts_per_rank,
        decode_ranks=_column(decode_side, "attention_dp"),
        rounds=_column(deployments, "rounds"),
        drafted=drafted_each,
        accepted=_column(deployments, "accepted"),
        layers=np.array([float(deployment.shape.layers) for deployment in deployments]),
        median_ttft=_column(deployments, "median_ttft", np.bool_),
        equal_lengths=_column(arranged, "equal", np.bool_),
        recv_interval=_column(arranged, "recv_interval"),
        persistent=np.array([_is_persistent(deployment) for deployment in deployments]),
        decode=demands_on(decode_side, decode),
        prefill=demands_on(prefill_side, prefill),
        lone_prompt=demands_on(prefill_side, prefill, lone),
        joint_prompts=demands_on(prefill_side, joint),
        mixed=demands_on(decode_side, mixed),
    )


def _column(records: Sequence[object], name: str, kind: npt.DTypeLike = np.float64) -> Array:
    """Return the field ``name`` of each record, ``[records]``."""
    return np.array([getattr(record, name) for record in records], kind)


def _transfer_s(placed: PlacedDeployment) -> float:
    """Return the seconds to send a prompt's cache from prefill to decode.

    0 if aggregated or if no speed is published. Each GPU of the prefill worker's rank sends its
    share over its own port.
    """
    deployment, prefill, gpu = placed.deployment, placed.arranged.prefill, placed.deployment.gpu
    speed = gpu.network_bytes_s or gpu.link_bytes_s
    if not placed.arranged.split or not speed:
        return 0.0
    shape = replace(deployment.shape, encoder=None)
    copies = prefill.tp if shape.kv_lora_rank else 1  # every GPU has the whole latent cache
    return gpu_kv_bytes(shape, round(deployment.isl), prefill) / copies / speed


def _is_persistent(deployment: Deployment) -> bool:
    """Return whether AITER's persistent kernel computes latent attention (see PERSISTENT)."""
    first_without = PERSISTENT.get(deployment.gpu.family)
    if first_without is None or deployment.engine != "sglang" or not deployment.shape.kv_lora_rank:
        return False
    # An unknown version has the order (), which is below all others.
    version_order, _ = release_order(deployment.version)
    first_without_order, _ = release_order(first_without)
    return () < version_order < first_without_order


def _demands_of(
    deployments: Sequence[Deployment],
    efficiencies: Efficiencies,
    arrangements: Sequence[Arrangement],
    iteration: Iteration,
    routed: Iteration | None = None,
) -> dict[str, FloatArray]:
    """Return ``demands`` of one iteration of each deployment, on its arrangement.

    Deployments with the same model, GPU and arrangement are computed together.
    """
    groups: dict[tuple[ModelShape, str, Arrangement], list[int]] = defaultdict(list)
    for row, (arrangement, deployment) in enumerate(zip(arrangements, deployments, strict=True)):
        groups[deployment.shape, deployment.gpu.name, arrangement].append(row)
    totals = {name: np.zeros(len(deployments)) for name in DEMANDS}
    for (shape, _, arrangement), rows in groups.items():
        graph = operator_graph(replace(shape, encoder=None), arrangement)
        gpu = deployments[rows[0]].gpu
        own_routed = routed.take(rows) if routed else None
        of_group = demands(graph, gpu, efficiencies, iteration.take(rows), own_routed)
        for name, values in of_group.items():
            totals[name][rows] = values
    return totals


PROMPT, ANSWER = 1024.0, 128.0  # tokens of the request that a start is computed for


def starts_s(
    shape: ModelShape,
    gpu: GpuSpec,
    arrangement: Arrangement,
    engines: Sequence[str],
    calibration: Calibration,
    efficiencies: Efficiencies,
    recv_interval: float = 1.0,
) -> list[float]:
    """Return, for each engine, the seconds of a lone request's TTFT outside its prompt's iteration.

    Memory is not checked: a deployment counts as placed with a batch of one request.
    """
    prompt = min(PROMPT, float(shape.max_context - 1))
    answer = min(ANSWER, shape.max_context - prompt)
    lone = [
        Deployment(shape, gpu, arrangement, prompt, answer, concurrency=1.0, engine=engine,
                   rounds=math.inf, recv_interval=recv_interval)
        for engine in engines
    ]  # fmt: skip
    placed = [
        PlacedDeployment(
            deployment, arrange(deployment), batch=1.0, weight_bytes=0.0, cache_bytes=0.0, notes=()
        )
        for deployment in lone
    ]
    steady = steady_state(loop_of(placed, efficiencies), calibration)
    seconds: list[float] = (steady.ttft_s - steady.prompt_s).tolist()
    return seconds
