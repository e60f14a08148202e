"""Fill in the settings that the description of a deployment omits.

Published measurements often omit the number of workers, or count GPUs twice. The defaults here are
common practice. Each one used is listed in the assumptions of the estimate.
"""

import math
import sys
from dataclasses import dataclass, replace

from simulation.errors import SimulationError
from simulation.performance.efficiency import COMPUTED_IN, NEAREST
from simulation.performance.estimate.calibration import ENGINES, ROUNDS
from simulation.performance.memory import MAX_BATCH_TOKENS
from simulation.performance.specs import BYTES, Arrangement, GpuSpec, ModelShape

# Defaults of disaggregated deployments, from the InferenceMAX recipes of DeepSeek-R1 that state
# their counts. Above this many users attention is data parallel. Below, there are this many decode
# workers per prefill worker.
SPREAD_ABOVE = {"vllm": 128.0, "sglang": 128.0, "trtllm": 450.0}
DECODE_WORKERS = {"vllm": 4.0, "sglang": 1.0, "trtllm": 4.0}
MOST_DRAFTED = 64
# Input and output lengths of InferenceMAX, which draws each request from 0.8 to 1 times them. The
# engines' own benchmarks give all requests one length by default.
INFERENCEMAX_LENGTHS = frozenset({(1024.0, 1024.0), (1024.0, 8192.0), (8192.0, 1024.0)})
STEADY_ROUNDS = 100.0  # rounds; with more, the traffic counts as steady and not as a benchmark
# Decode iterations between two polls for requests in SGLang (--scheduler-recv-interval). The
# InferenceMAX recipes set it by the number of users; the default of SGLang is 1.
RECV_FEW, RECV_MANY, MANY_USERS = 10.0, 30.0, 16.0
# Largest tensor parallelism of attention or of an expert in engines. A larger "tp" counts the GPUs
# of all workers of a disaggregated deployment; its experts are then expert parallel.
MAX_TENSOR_PARALLEL = 16
WORKER_GPUS = 8  # GPUs of one worker of such a deployment
MOST = sys.float_info.max
MOST_TOKENS, MOST_HITS, MOST_RECV = 1e6, 0.99, 10_000.0
# Smallest and largest value of the fields of a deployment.
LIMITS = {
    "isl": (1, MOST),
    "osl": (1, MOST),
    "concurrency": (1, MOST),
    "prefill_workers": (1, MOST),
    "decode_workers": (1, MOST),
    "rounds": (1, math.inf),
    "recv_interval": (1, MOST_RECV),
    "max_num_seqs": (1, math.inf),
    "chunk_tokens": (1, MOST_TOKENS),
    "prefix_hit_rate": (0, MOST_HITS),
}


@dataclass(frozen=True, slots=True)
class Deployment:
    """A deployment to estimate, and the number of users who each send one request after the other.

    It is disaggregated if ``prefill`` is set.
    """

    shape: ModelShape
    gpu: GpuSpec
    decode: Arrangement  # of the decode workers, or of all work if aggregated
    isl: float  # tokens, mean
    osl: float
    concurrency: float
    engine: str = "vllm"
    prefill: Arrangement | None = None
    prefill_workers: float | None = None  # None: unknown
    decode_workers: float | None = None
    notes: tuple[str, ...] = ()  # assumptions that the caller has made already
    version: str = ""  # of the engine; "" if unknown
    # Consecutive requests of each user. All users start together, as in a benchmark. Use inf for
    # steady traffic.
    rounds: float = ROUNDS
    drafted: float = 0.0  # tokens drafted and verified per sequence and iteration (speculation)
    accepted: float = math.nan  # mean number of them that are accepted; nan: unknown
    equal: bool | None = None  # all requests have the same lengths; None: unknown
    recv_interval: float | None = None  # decode iterations between SGLang's polls for requests
    max_num_seqs: float = math.inf  # sequences that one attention rank decodes at once, at most
    chunk_tokens: float | None = None  # prompt tokens of one iteration, at most; None: unknown
    prefix_hit_rate: float = 0.0  # share of a prompt's tokens in a prefix cache
    median_ttft: bool = False  # TTFT is the median of requests, not their mean

    def __post_init__(self) -> None:
        """Raise ``SimulationError`` for numbers out of range or an unknown engine."""
        for name, (minimum, maximum) in LIMITS.items():
            value = getattr(self, name)
            if value is not None and not minimum <= value <= maximum:
                limits = f"at least {minimum}" if maximum >= MOST else f"{minimum} to {maximum:g}"
                raise SimulationError(f"{name} is {value:g}. Give {limits}.")
        if self.engine not in ENGINES:
            raise SimulationError(
                f"Engine {self.engine!r} is unknown. Use one of {', '.join(ENGINES)}."
            )
        if self.isl + self.osl > self.shape.max_context:
            length = self.isl + self.osl
            raise SimulationError(
                f"{self.shape.name} takes {self.shape.max_context} tokens of input and output, not "
                f"{f'{length:.0f}' if length < 1e12 else f'{length:g}'}. Shorten isl or osl."
            )
        accepted = 0.0 if math.isnan(self.accepted) else self.accepted
        if not 0 <= accepted <= self.drafted <= MOST_DRAFTED:
            raise SimulationError(
                f"{self.accepted:g} of {self.drafted:g} drafted tokens cannot be accepted. Give "
                f"draft_tokens from 0 to {MOST_DRAFTED} and at most as many accepted."
            )


@dataclass(frozen=True, slots=True)
class ArrangedDeployment:
    """The workers of a deployment with all defaults filled in."""

    decode: Arrangement
    prefill: Arrangement
    decode_workers: float
    prefill_workers: float  # nan: enough to keep up with decode
    split: bool  # True if disaggregated
    assumptions: tuple[str, ...]
    equal: bool = False  # all requests have the same lengths
    recv_interval: float = 0.0  # decode iterations between two polls for requests
    chunk_tokens: float = MAX_BATCH_TOKENS  # prompt tokens of one iteration, at most

    @property
    def gpus(self) -> float:
        """Return the number of GPUs of all workers."""
        total = self.decode.gpus * self.decode_workers
        return total + self.prefill.gpus * self.prefill_workers if self.split else total


def arrange(deployment: Deployment) -> ArrangedDeployment:
    """Return ``deployment`` with the settings that it omits, and the assumptions made for them."""
    filled = _with_defaults(deployment)
    notes = filled.assumptions + _inconsistent_settings(deployment, filled)
    equal = _has_equal_lengths(deployment)
    assumed_equal = equal and deployment.equal is None
    # The order of requests only matters if users share the workers of prompts and decodes.
    if assumed_equal and deployment.prefill is None and deployment.concurrency > 1:
        effect = ""
        if deployment.engine == "sglang":
            effect = " SGLang's users then stay in step and wait for half of the others' prompts."
        notes += (
            f"a benchmark. All users start together, with equal request lengths.{effect} "
            "For steady traffic, set “Requests per user” (rounds) to 1000. "
            "For mixed lengths, set “Equal request lengths” (equal_lengths) to no",
        )
    interval = _recv_interval(deployment)
    if interval > 1.0 and deployment.recv_interval is None:
        notes += (
            f"SGLang polls for requests every {interval:g} iterations, as in InferenceMAX's "
            "recipes for these lengths. Give recv_interval 1 for its default",
        )
    chunk = _chunk_tokens(deployment)
    if chunk != MAX_BATCH_TOKENS and deployment.chunk_tokens is None:
        notes += (
            f"TensorRT-LLM taken to compute one prompt of {chunk:g} tokens at a time, as "
            f"InferenceMAX's recipes have it. Give chunk_tokens {MAX_BATCH_TOKENS} for its default",
        )
    return replace(
        filled, assumptions=notes, equal=equal, recv_interval=interval, chunk_tokens=chunk
    )


def _has_equal_lengths(deployment: Deployment) -> bool:
    """Return whether all requests have the same lengths.

    If unknown, this is assumed of benchmarks, except those with the lengths of InferenceMAX.
    """
    if deployment.equal is not None:
        return deployment.equal
    return (
        deployment.rounds <= STEADY_ROUNDS
        and (deployment.isl, deployment.osl) not in INFERENCEMAX_LENGTHS
    )


def _recv_interval(deployment: Deployment) -> float:
    """Return the decode iterations between SGLang's polls for requests.

    0 for other engines and for disaggregated deployments.
    """
    if deployment.engine != "sglang" or deployment.prefill is not None:
        return 0.0
    if deployment.recv_interval is not None:
        return deployment.recv_interval
    if not _is_recipe(deployment):
        return 1.0  # SGLang's default. Only InferenceMAX's recipes for NVIDIA set another.
    return RECV_MANY if deployment.concurrency >= MANY_USERS else RECV_FEW


def _is_recipe(deployment: Deployment) -> bool:
    """Return whether a deployment is a benchmark with InferenceMAX's lengths on an NVIDIA GPU.

    Such deployments are tuned by its published recipes.
    """
    drawn = (deployment.isl, deployment.osl) in INFERENCEMAX_LENGTHS
    return deployment.rounds <= STEADY_ROUNDS and drawn and deployment.gpu.family in NEAREST


def _chunk_tokens(deployment: Deployment) -> float:
    """Return the prompt tokens that one iteration computes at most."""
    if deployment.chunk_tokens is not None:
        return deployment.chunk_tokens
    if deployment.engine == "trtllm" and deployment.prefill is None and _is_recipe(deployment):
        return deployment.isl  # the recipes' --max_num_tokens allows one prompt at a time
    return MAX_BATCH_TOKENS


def _inconsistent_settings(deployment: Deployment, filled: ArrangedDeployment) -> tuple[str, ...]:
    """Return notes on settings that engines handle differently from the estimate.

    They are tensor parallelism that does not divide heads, precisions that the GPU cannot compute
    in, 16-bit attention beside 4-bit experts, LoRA adapters, answers of one token, and images.
    """
    notes, shape, gpu, weights = [], deployment.shape, deployment.gpu, filled.decode.weights
    for tp in dict.fromkeys((filled.decode.tp, filled.prefill.tp)):
        if shape.heads % tp:
            notes.append(
                f"tp {tp} does not divide the {shape.heads} attention heads of {shape.name}, "
                "which most engines refuse (computed anyway)"
            )
    unit = next((name for name in COMPUTED_IN[weights] if gpu.peak_flops.get(name)), weights)
    if unit != weights and weights != "int4":  # int4 is known to be a storage format only
        notes.append(
            f"{gpu.name} does not compute in {weights}: weights are stored in {weights}, "
            f"computed in {unit}"
        )
    if shape.experts and BYTES[weights] < 1.0:
        notes.append("attention keeps 16 bits, as in published models with 4-bit experts")
    if shape.adapters:
        notes.append(
            f"{shape.adapters.active} LoRA adapters of rank {shape.adapters.rank} in use at once, "
            "on all linear layers but experts, router and output head (modelled: no measured "
            "deployment had adapters)"
        )
    if deployment.osl == 1:
        notes.append(
            "answers of one token, as for embeddings: only prompts count; TBT then says nothing"
        )
    if shape.encoder:
        notes.append(f"text only: images for {shape.name} and their encoder are not counted")
    return tuple(notes)


def _with_defaults(deployment: Deployment) -> ArrangedDeployment:
    """Return the workers and their arrangements, with a note for each default that is filled in."""
    notes, workers = list(deployment.notes), deployment.decode_workers or 1.0
    if deployment.prefill is None:  # aggregated, unless the GPUs of all workers were counted as tp
        arrangement = _aggregated_arrangement(deployment, notes)
        if arrangement.tp > MAX_TENSOR_PARALLEL and deployment.decode_workers is None:
            return _split_total_tp(deployment, notes)
        return ArrangedDeployment(
            arrangement, arrangement, workers, prefill_workers=1.0, split=False,
            assumptions=tuple(notes),
        )  # fmt: skip
    decode, prefill = deployment.decode, deployment.prefill
    if deployment.decode_workers is None:
        # At high concurrency, one decode worker spreads over all GPUs of the decode side.
        spread = deployment.concurrency > SPREAD_ABOVE[deployment.engine]
        workers = 1.0 if spread else DECODE_WORKERS[deployment.engine]
        notes.append(f"decode workers not given: {workers:g} taken")
        decode, prefill = _spread_sides(deployment, decode, prefill, spread, notes)
    decode = _avoid_divided_experts(decode, notes)
    prefill = _avoid_divided_experts(prefill, notes)
    prefill_workers = deployment.prefill_workers or math.nan
    return ArrangedDeployment(
        decode, prefill, workers, prefill_workers, split=True, assumptions=tuple(notes)
    )


def _spread_sides(
    deployment: Deployment, decode: Arrangement, prefill: Arrangement, spread: bool,
    notes: list[str],
) -> tuple[Arrangement, Arrangement]:  # fmt: skip
    """Return the arrangements of decode and prefill workers whose number is not given.

    If ``spread``, decode has one worker with all of its GPUs. Three defaults apply in turn: no
    worker of a mixture of experts has one GPU, a ``tp`` too large for a worker counts the GPUs of
    all workers, and attention of such models is data parallel. Each applied one adds to ``notes``.
    """
    node_gpus = deployment.gpu.gpus_per_node
    if decode.gpus == 1 and deployment.shape.experts and node_gpus > 1:
        decode = _with_gpus_grouped(decode, node_gpus, 1)
        prefill = _with_gpus_grouped(prefill, node_gpus, 1)
        notes.append(f"one GPU per worker cannot be: {node_gpus} taken")
    if decode.tp > MAX_TENSOR_PARALLEL and decode.tp == prefill.tp:
        total, worker = decode.tp, min(node_gpus, WORKER_GPUS)
        prefill = _with_gpus_grouped(prefill, worker, 1)
        decode = _with_gpus_grouped(decode, total - worker if spread else WORKER_GPUS, 1)
        notes.append(f"{total} GPUs counted over all workers")
    if deployment.shape.experts and spread and decode.attention_dp == 1:
        decode = _with_gpus_grouped(decode, 1, decode.gpus)
        notes.append("decode attention assumed data parallel")
    if deployment.shape.experts and prefill.attention_dp == 1:
        prefill = _with_gpus_grouped(prefill, 1, prefill.gpus)
        notes.append("prefill attention assumed data parallel")
    return decode, prefill


def _split_total_tp(deployment: Deployment, notes: list[str]) -> ArrangedDeployment:
    """Return a deployment whose ``tp`` counts the GPUs of all workers, divided into workers.

    Decode workers have WORKER_GPUS GPUs each, or one worker has them all at high concurrency. The
    remainder (or WORKER_GPUS, if it is 0) computes prompts. Assumptions are added to ``notes``.
    """
    total = deployment.decode.tp  # GPUs
    prefill = total % WORKER_GPUS or WORKER_GPUS
    spread = (
        deployment.concurrency > SPREAD_ABOVE[deployment.engine] and deployment.shape.experts > 0
    )
    workers = 1.0 if spread else float((total - prefill) // WORKER_GPUS)
    notes.append(
        f"tp {total} counted over all workers of a deployment with prefill ({prefill} "
        f"GPUs a worker) and decode ({total - prefill} GPUs) on separate GPUs"
    )
    # (tp, dp) of a worker: mixtures of experts have data parallel attention, except small decodes.
    decode_tp_dp = (1, total - prefill) if spread else (WORKER_GPUS, 1)
    prefill_tp_dp = (1, prefill) if deployment.shape.experts else (prefill, 1)
    return ArrangedDeployment(
        decode=_with_gpus_grouped(deployment.decode, *decode_tp_dp),
        prefill=_with_gpus_grouped(deployment.decode, *prefill_tp_dp),
        decode_workers=workers,
        prefill_workers=math.nan,
        split=True,
        assumptions=tuple(notes),
    )


def _avoid_divided_experts(arrangement: Arrangement, notes: list[str]) -> Arrangement:
    """Return the arrangement with expert parallelism if engines cannot split experts so finely."""
    if arrangement.moe_tp <= MAX_TENSOR_PARALLEL:
        return arrangement
    notes.append(f"experts on {arrangement.moe_tp} GPUs assumed expert-parallel")
    return _with_gpus_grouped(arrangement, arrangement.tp, arrangement.attention_dp, experts=True)


def _aggregated_arrangement(deployment: Deployment, notes: list[str]) -> Arrangement:
    """Return the arrangement of an aggregated deployment, with GPUs counted once.

    Published rows often multiply tensor and expert parallelism of the same GPUs: 8 GPUs become 64.
    This is assumed if the GPUs are a square number over several nodes, and their root fits in one.
    An assumption is added to ``notes``.
    """
    arrangement = deployment.decode
    gpus = arrangement.tp * arrangement.attention_dp
    root = math.isqrt(gpus)
    is_square = root * root == gpus and arrangement.moe_ep in (root, gpus)
    slow_network = deployment.gpu.network_bytes_s != deployment.gpu.link_bytes_s
    root_fits_node = gpus > deployment.gpu.gpus_per_node >= root
    if deployment.shape.experts and slow_network and is_square and root_fits_node:
        notes.append(f"{gpus} GPUs taken as {root}: tensor times expert parallelism of the same")
        tp, dp = (1, root) if arrangement.tp == 1 else (root, 1)
        return _with_gpus_grouped(arrangement, tp, dp, experts=True)
    return arrangement


def _with_gpus_grouped(
    arrangement: Arrangement, tp: int, dp: int, experts: bool = False
) -> Arrangement:
    """Return ``arrangement`` on ``tp * dp`` GPUs.

    Experts are expert parallel if ``experts`` is set, if they were before, or if ``dp`` exceeds 1.
    """
    group = tp * dp
    parallel = experts or arrangement.moe_ep > 1 or dp > 1
    return replace(
        arrangement,
        tp=tp,
        attention_dp=dp,
        moe_tp=1 if parallel else group,
        moe_ep=group if parallel else 1,
    )
