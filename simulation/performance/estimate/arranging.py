"""What a deployment leaves unsaid, and what is taken for it.

Published measurements often leave out how many workers there were, or count GPUs twice. The rules
here are common practice, each named in the estimate's assumptions; whatever is given is kept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from simulation.errors import SimulationError
from simulation.performance.efficiency import COMPUTED_IN
from simulation.performance.estimate.calibration import ENGINES, ROUNDS
from simulation.performance.specs import Arrangement, GpuSpec, ModelShape

# Users of a disaggregated deployment beyond which attention is usually data parallel, and decode
# workers beside one prefill worker below that: what recipes with stated counts have (InferenceMAX
# recipes of DeepSeek-R1, by engine).
SPREAD_ABOVE = {"vllm": 128.0, "sglang": 128.0, "trtllm": 450.0}
DECODE_WORKERS = {"vllm": 4.0, "sglang": 1.0, "trtllm": 4.0}
MOST_DRAFTED = 64
# Input and output tokens that InferenceMAX serves, each request drawn from 0.8 to 1 of them; the
# benchmarks of engines give all requests one length unless told otherwise.
DRAWN = frozenset({(1024.0, 1024.0), (1024.0, 8192.0), (8192.0, 1024.0)})
STEADY = 100.0  # rounds above which it is no benchmark
# Decode iterations that SGLang lets pass between two looks for new requests
# (--scheduler-recv-interval): InferenceMAX's recipes set it by the number of users, its own default
# is 1.
RECV_FEW, RECV_MANY, MANY = 10.0, 30.0, 16.0
MOST_RECV = 10_000.0
# GPUs between which engines split attention or an expert at most. A larger "tp" is the GPUs of all
# workers of a deployment whose prefill and decode are apart; experts are then parallel by expert.
TENSOR_PARALLEL_MOST = 16
WORKER = 8  # GPUs of one worker of those


@dataclass(frozen=True, slots=True)
class Deployment:
    """Users in a closed loop on one deployment. ``prefill`` set: prefill and decode are apart."""

    shape: ModelShape
    gpu: GpuSpec
    decode: Arrangement  # of all work, or of decode workers
    isl: float  # tokens, mean
    osl: float
    concurrency: float
    engine: str = "vllm"
    prefill: Arrangement | None = None
    prefill_workers: float | None = None  # None: not known
    decode_workers: float | None = None
    notes: tuple[str, ...] = ()  # what was taken for what the caller left out
    version: str = ""  # of the engine; "" where it is not known
    # Requests that each user asks for one after the other, all users starting together as in a
    # benchmark; inf for traffic that comes as it comes.
    rounds: float = ROUNDS
    drafted: float = 0.0  # tokens drafted and verified per sequence and iteration (speculation)
    accepted: float = 0.0  # of them, those that stand, on average
    equal: bool | None = None  # all requests have the same lengths; None: not known
    recv_interval: float | None = None  # decode iterations between SGLang's looks for requests

    def __post_init__(self) -> None:
        for name, least in (("isl", 1), ("osl", 1), ("concurrency", 1)):
            value = getattr(self, name)
            if not least <= value < math.inf:
                raise SimulationError(f"{name} is {value:g}; give at least {least}.")
        if self.engine not in ENGINES:
            raise SimulationError(
                f"Engine {self.engine!r} is unknown; use one of {', '.join(ENGINES)}."
            )
        if self.isl + self.osl > self.shape.max_context:
            length = self.isl + self.osl
            raise SimulationError(
                f"{self.shape.name} takes {self.shape.max_context} tokens of input and output, not "
                f"{f'{length:.0f}' if length < 1e12 else f'{length:g}'}; shorten isl or osl."
            )
        if not self.rounds >= 1:
            raise SimulationError(f"rounds is {self.rounds:g}; give at least 1.")
        if not 0 <= self.accepted <= self.drafted <= MOST_DRAFTED:
            raise SimulationError(
                f"{self.accepted:g} of {self.drafted:g} drafted tokens cannot be accepted; give "
                f"draft_tokens from 0 to {MOST_DRAFTED} and at most as many accepted."
            )
        if self.recv_interval is not None and not 1 <= self.recv_interval <= MOST_RECV:
            raise SimulationError(
                f"recv_interval is {self.recv_interval:g}; give iterations from 1 to "
                f"{MOST_RECV:,.0f}."
            )
        for name in ("prefill_workers", "decode_workers"):
            value = getattr(self, name)
            if value is not None and not 1 <= value < math.inf:
                raise SimulationError(f"{name} is {value}; give at least 1, or leave it out.")


@dataclass(frozen=True, slots=True)
class Arranged:
    """A deployment with everything said."""

    decode: Arrangement
    prefill: Arrangement
    decode_workers: float
    prefill_workers: float  # nan: as many as keep up with decode
    split: bool
    assumptions: tuple[str, ...]
    equal: bool = False  # all requests have the same lengths
    recv_interval: float = 0.0  # decode iterations between two looks for requests

    @property
    def gpus(self) -> float:
        """Of all workers."""
        total = self.decode.gpus * self.decode_workers
        return total + self.prefill.gpus * self.prefill_workers if self.split else total


def arrange(deployment: Deployment) -> Arranged:
    """Fill in what ``deployment`` leaves out."""
    filled = _filled(deployment)
    notes = filled.assumptions + _cannot_be_as_said(deployment, filled)
    equal = _equal(deployment)
    if (
        equal
        and deployment.equal is None
        and deployment.prefill is None
        and deployment.concurrency > 1
    ):
        notes += (EQUAL + (IN_STEP if deployment.engine == "sglang" else TRAIN) + NOT_EQUAL,)
    interval = _recv_interval(deployment)
    if interval > 1.0 and deployment.recv_interval is None:
        notes += (
            f"SGLang taken to look for requests every {interval:g} iterations, as InferenceMAX's "
            "recipes for these lengths have it; give recv_interval 1 for its default",
        )
    return replace(filled, assumptions=notes, equal=equal, recv_interval=interval)


EQUAL = "all requests taken to have the same lengths, as benchmarks give them, so that "
IN_STEP = "SGLang's users stay in step and wait for half of the others' prompts"
TRAIN = "those that started one after the other keep coming one after the other"
NOT_EQUAL = "; give equal_lengths no where lengths differ"


def _equal(deployment: Deployment) -> bool:
    if deployment.equal is not None:
        return deployment.equal
    return deployment.rounds <= STEADY and (deployment.isl, deployment.osl) not in DRAWN


def _recv_interval(deployment: Deployment) -> float:
    if deployment.engine != "sglang" or deployment.prefill is not None:
        return 0.0
    if deployment.recv_interval is not None:
        return deployment.recv_interval
    if deployment.rounds > STEADY or (deployment.isl, deployment.osl) not in DRAWN:
        return 1.0
    return RECV_MANY if deployment.concurrency >= MANY else RECV_FEW


def _cannot_be_as_said(deployment: Deployment, filled: Arranged) -> tuple[str, ...]:
    """What an engine would refuse or do in another way."""
    notes, shape, gpu, weights = [], deployment.shape, deployment.gpu, filled.decode.weights
    for tp in dict.fromkeys((filled.decode.tp, filled.prefill.tp)):
        if shape.heads % tp:
            notes.append(
                f"tp {tp} does not divide the {shape.heads} attention heads of {shape.name}, which "
                "most engines refuse; computed as if it did"
            )
    unit = next((name for name in COMPUTED_IN[weights] if gpu.peak_flops.get(name)), weights)
    if unit != weights and weights != "int4":  # which is known to be of weights alone
        notes.append(
            f"{gpu.name} does not compute in {weights}: weights are kept in {weights}, "
            f"computed in {unit}"
        )
    if shape.adapters:
        notes.append(
            f"{shape.adapters.active} LoRA adapters of rank {shape.adapters.rank} in use at once, "
            "on all linear layers but those of experts, router and output head: modelled, no "
            "served deployment with adapters was among those measured"
        )
    if deployment.osl == 1:
        notes.append(
            "answers of one token: a request is its prompt alone, as where a model embeds or "
            "classifies; TBT then says nothing"
        )
    if shape.encoder:
        notes.append(f"text alone: images for {shape.name} and the encoder of them are not counted")
    return tuple(notes)


def _filled(deployment: Deployment) -> Arranged:
    notes = list(deployment.notes)
    if deployment.prefill is None:
        where, workers = _together(deployment, notes)
        if where.tp > TENSOR_PARALLEL_MOST and deployment.decode_workers is None:
            return _counted_in_all(deployment, notes)
        return Arranged(where, where, workers, 1.0, False, tuple(notes))
    decode, prefill = deployment.decode, deployment.prefill
    known = deployment.decode_workers is not None
    workers = deployment.decode_workers or 1.0
    prefills = deployment.prefill_workers or math.nan
    if not known:
        spread = deployment.concurrency > SPREAD_ABOVE[deployment.engine]
        workers = 1.0 if spread else DECODE_WORKERS[deployment.engine]
        notes.append(f"decode workers not given: {workers:g} taken")
        if decode.gpus == 1 and deployment.shape.experts and deployment.gpu.gpus_per_node > 1:
            node = deployment.gpu.gpus_per_node
            decode, prefill = _grouped(decode, node, 1), _grouped(prefill, node, 1)
            notes.append(f"one GPU per worker cannot be: {node} taken")
        if decode.tp > TENSOR_PARALLEL_MOST and decode.tp == prefill.tp:
            node = min(deployment.gpu.gpus_per_node, 8)
            total, prefill = decode.tp, _grouped(prefill, node, 1)
            decode = _grouped(decode, total - node if spread else 8, 1)
            notes.append(f"{total} GPUs taken as those of all workers")
        if deployment.shape.experts:
            if spread and decode.attention_dp == 1:
                decode = _grouped(decode, 1, decode.gpus)
                notes.append("attention of decode taken as data parallel")
            if prefill.attention_dp == 1:
                prefill = _grouped(prefill, 1, prefill.gpus)
                notes.append("attention of prefill taken as data parallel")
    decode, prefill = (_whole_experts(where, notes) for where in (decode, prefill))
    return Arranged(decode, prefill, workers, prefills, True, tuple(notes))


def _counted_in_all(deployment: Deployment, notes: list[str]) -> Arranged:
    """The GPUs of all workers, of which what makes no whole worker, or one, computes prompts."""
    total = deployment.decode.tp
    prefill = total % WORKER or WORKER
    spread = (
        deployment.concurrency > SPREAD_ABOVE[deployment.engine] and deployment.shape.experts > 0
    )
    workers = 1.0 if spread else float((total - prefill) // WORKER)
    notes.append(
        f"tp {total} taken as the GPUs of all workers of a deployment whose prefill ({prefill} "
        f"GPUs a worker) and decode ({total - prefill} GPUs) are apart"
    )
    decode = (1, total - prefill) if spread else (WORKER, 1)
    return Arranged(
        _grouped(deployment.decode, *decode),
        _grouped(deployment.decode, *((1, prefill) if deployment.shape.experts else (prefill, 1))),
        workers,
        math.nan,
        True,
        tuple(notes),
    )


def _whole_experts(where: Arrangement, notes: list[str]) -> Arrangement:
    if where.moe_tp <= TENSOR_PARALLEL_MOST:
        return where
    notes.append(f"experts on {where.moe_tp} GPUs taken as parallel by expert")
    return _grouped(where, where.tp, where.attention_dp, experts=True)


def _together(deployment: Deployment, notes: list[str]) -> tuple[Arrangement, float]:
    where, workers = deployment.decode, deployment.decode_workers or 1.0
    group, side = where.tp * where.attention_dp, math.isqrt(where.tp * where.attention_dp)
    twice = side * side == group and (where.moe_ep in (side, group))
    apart = deployment.gpu.network_bytes_s != deployment.gpu.link_bytes_s
    if (
        deployment.shape.experts
        and apart
        and twice
        and group > deployment.gpu.gpus_per_node >= side
    ):
        notes.append(f"{group} GPUs taken as {side}: tensor times expert parallelism of the same")
        spread = where.tp == 1
        return _grouped(where, 1 if spread else side, side if spread else 1, experts=True), workers
    return where, workers


def _grouped(where: Arrangement, tp: int, dp: int, experts: bool = False) -> Arrangement:
    """The same on ``tp * dp`` GPUs, experts parallel by expert where they were, or attention is."""
    group = tp * dp
    parallel = experts or where.moe_ep > 1 or dp > 1
    return replace(
        where,
        tp=tp,
        attention_dp=dp,
        moe_tp=1 if parallel else group,
        moe_ep=group if parallel else 1,
    )
