"""Watts per GPU by what it does: how fast it reads memory and computes, as shares of its peaks.

Per GPU, as a share of its TDP, an iteration of t seconds draws

    P = phi max(prefill, D) + (1 - phi) D
    D = smooth minimum of cap and
        floor + memory W^p + cache K^p + compute F^q
              + link + experts + block_experts + attention_dp - imbalance (1 - balance) - gap G

phi     share of t that its prompt tokens take at ``prefill_efficiency`` of the FLOP/s peak
W, K    bytes of weights and of KV cache (or state) read per second of the rest, over peak bandwidth
F       FLOP/s of the decodes in the rest over the peak of the weights' precision
balance mean over largest number of experts that the GPUs of an expert-parallel group have to read
G       share of the rest that no kernel runs: 1 - ``SLACK`` times what the peaks need, at least 0,
        expert weights counted ``ROUTED_SLACK`` times, and ``BLOCK_SLACK`` times where rescaled

so power follows the energy of bytes and operations above a floor that a GPU draws while kernels run
at all, and saturates at its limit. Links to other GPUs draw theirs wherever an instance has more
than one (a tenth of the TDP on B200, nothing to be seen on H100). The last line holds what bytes
and FLOPs do not tell: grouped GEMMs keep the multiprocessors busy at low throughput, most where the
kernel itself widens or rescales its weights (8 bits scaled by block in Triton; 4 bits on GPUs
without 4-bit arithmetic); and a host that does not keep up leaves gaps. Fitted on ML.ENERGY and
splitwise rows by tools/catalogue/fit_power.py, which prints the errors; the form is ours
(modelled).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from simulation.arrays import FloatArray
from simulation.errors import SimulationError
from simulation.performance.graph import OperatorGraph
from simulation.performance.profile import Check
from simulation.performance.specs import GpuSpec, Provenance
from simulation.performance.work import Experts, iteration

SHARPNESS = 8.0  # of the smooth minimum: within 9% of the cap where both sides are equal
# Kernel time over what the peaks allow, beyond which time counts as a gap; of a dozen tried, those
# with the least error on model families left out.
SLACK = 2.0
ROUTED_SLACK = 1.5  # of expert weights, on top
BLOCK_SLACK = 3.0  # instead of it where the kernel widens or rescales them
LONGEST_PREFILL = 0.97  # of an iteration, so that what is left of it keeps a rate


@dataclass(frozen=True, slots=True)
class PowerModel:
    """Parameters of the module's formula, shares of TDP unless named; idle power is a GPU's own."""

    floor: float  # while kernels run
    memory: float  # at peak bandwidth, reading weights
    cache: float  # at peak bandwidth, reading KV cache or state
    compute: float  # at the FLOP/s peak of the weights' precision
    memory_exponent: float
    compute_exponent: float
    prefill: float  # while prompts are computed
    prefill_efficiency: float  # of the FLOP/s peak
    experts: float = 0.0
    block_experts: float = 0.0
    attention_dp: float = 0.0
    imbalance: float = 0.0
    gap: float = 0.0  # less, of a GPU that waits for its host
    link: float = 0.0  # of links to other GPUs, wherever an instance has more than one
    expert_bytes: float = 1.0  # bytes that grouped GEMMs move per byte of weights they need
    cap: float = 0.98
    provenance: Provenance = field(default=Provenance("assumed", ""))
    checks: tuple[Check, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Load:
    """What one GPU does in iterations, arrays of one shape; bytes and operations per iteration."""

    seconds: FloatArray
    weight_bytes: FloatArray  # all but routed experts
    expert_bytes: FloatArray
    cache_bytes: FloatArray
    decode_flops: FloatArray
    prefill_flops: FloatArray
    balance: FloatArray  # of experts over GPUs, (0, 1]
    bandwidth_bytes_s: FloatArray
    peak_flops: FloatArray
    experts: FloatArray  # 1 with a mixture of experts, else 0
    block_experts: FloatArray  # 1 where the kernel widens or rescales their weights
    attention_dp: FloatArray  # 1 with attention data parallelism
    linked: FloatArray  # 1 where the instance has more than one GPU


def load(
    graph: OperatorGraph,
    gpu: GpuSpec,
    seconds: npt.ArrayLike,
    decodes: npt.ArrayLike,
    decode_context: npt.ArrayLike,
    prefill_tokens: npt.ArrayLike = 0.0,
    prefill_pairs: npt.ArrayLike = 0.0,
    *,
    block_scaled: bool | None = None,
) -> Load:
    """The load of iterations given as in ``profile.iteration_s``, ``seconds`` each.

    ``block_scaled``: the kernel widens or rescales expert weights. None: it does with all of 8
    bits, and with 4 bits where the GPU has no 4-bit peak.
    """
    bandwidth, peak = _peaks(graph, gpu)
    arrays = np.broadcast_arrays(
        *(
            np.asarray(x, np.float64)
            for x in (seconds, decodes, decode_context, prefill_tokens, prefill_pairs)
        )
    )
    time, b, c, p, a = (np.array(x) for x in arrays)
    if (time <= 0).any():
        raise SimulationError("Power is of iterations that take time: seconds must be above 0.")
    decode, prefill = iteration(b, c), iteration(0.0 * b, 0.0, p, a)
    zero = np.zeros_like(time)
    weights, experts, cache, flops = zero.copy(), zero.copy(), zero.copy(), zero.copy()
    balance = zero + 1.0
    routed = False
    for operator in graph.operators:
        work = operator.work(decode)
        flops += operator.count * work.flops
        cache += operator.count * work.kv_bytes
        if isinstance(operator, Experts):
            routed = True
            experts += operator.count * work.weight_bytes
            balance = _balance(operator, operator.distinct(decode))
        else:
            weights += operator.count * work.weight_bytes
    stages = graph.arrangement.pp  # each GPU works on one of them at a time
    weights_in = graph.arrangement.weights
    rescaled = weights_in == "fp8" or (weights_in == "fp4" and not gpu.peak_flops.get("fp4"))
    scaled = routed and (rescaled if block_scaled is None else block_scaled)
    return Load(
        seconds=time,
        weight_bytes=weights / stages,
        expert_bytes=experts / stages,
        cache_bytes=cache / stages,
        decode_flops=flops / stages,
        prefill_flops=graph.total("flops", prefill) / stages,
        balance=balance,
        bandwidth_bytes_s=zero + bandwidth,
        peak_flops=zero + peak,
        experts=zero + routed,
        block_experts=zero + scaled,
        attention_dp=zero + (graph.arrangement.attention_dp > 1),
        linked=zero + (graph.arrangement.gpus > 1),
    )


def share_of_tdp(model: PowerModel, load: Load) -> FloatArray:
    """Power per GPU over its TDP while such iterations run one after the other."""
    needed = load.prefill_flops / (load.peak_flops * model.prefill_efficiency)
    phi = np.minimum(needed / load.seconds, LONGEST_PREFILL)
    rest = load.seconds * (1.0 - phi)
    per_second = rest * load.bandwidth_bytes_s
    weights = (load.weight_bytes + model.expert_bytes * load.expert_bytes) / per_second
    dynamic = (
        model.memory * weights**model.memory_exponent
        + model.cache * (load.cache_bytes / per_second) ** model.memory_exponent
        + model.compute * (load.decode_flops / (rest * load.peak_flops)) ** model.compute_exponent
        + model.experts * load.experts
        + model.block_experts * load.block_experts
        + model.attention_dp * load.attention_dp
        + model.link * load.linked
        - model.imbalance * (1.0 - load.balance)
        - model.gap * _gap(load, rest)
    )
    uncapped = np.maximum(model.floor + dynamic, 0.5 * model.floor)
    decode = (uncapped**-SHARPNESS + model.cap**-SHARPNESS) ** (-1.0 / SHARPNESS)
    prefill = np.maximum(model.prefill, decode)
    return np.asarray(phi * prefill + (1.0 - phi) * decode)


def _gap(load: Load, rest: FloatArray) -> FloatArray:
    """Share of the time without prompts, ``rest`` seconds, that no kernel should need."""
    slack = np.where(load.block_experts > 0, BLOCK_SLACK, ROUTED_SLACK)
    moved = load.weight_bytes + slack * load.expert_bytes + load.cache_bytes
    needed = moved / load.bandwidth_bytes_s + load.decode_flops / load.peak_flops
    return np.maximum(1.0 - SLACK * needed / rest, 0.0)


def watts(model: PowerModel, gpu: GpuSpec, load: Load) -> FloatArray:
    """Power per GPU at the board; never below idle, never above TDP."""
    if gpu.tdp_w is None:
        raise SimulationError(f"{gpu.name} has no TDP: power by load needs one (tdp_w).")
    return np.clip(share_of_tdp(model, load) * gpu.tdp_w, gpu.idle_w, gpu.tdp_w)


@dataclass(frozen=True, slots=True)
class PowerAtLoad:
    """Watts of one model on one GPU arrangement, from the iterations that run on it."""

    model: PowerModel
    gpu: GpuSpec
    graph: OperatorGraph

    def watts(
        self,
        seconds: npt.ArrayLike,
        decodes: npt.ArrayLike,
        decode_context: npt.ArrayLike,
        prefill_tokens: npt.ArrayLike = 0.0,
        prefill_pairs: npt.ArrayLike = 0.0,
    ) -> FloatArray:
        """Per GPU, of iterations (or means over many) as in ``load``."""
        of_iterations = load(
            self.graph, self.gpu, seconds, decodes, decode_context, prefill_tokens, prefill_pairs
        )
        return watts(self.model, self.gpu, of_iterations)


@dataclass(frozen=True, slots=True)
class PowerOfSides:
    """Watts of an instance whose GPUs do not all do the same: the mean of its sides, each with its
    share of the GPUs and its own operators, in the same iterations."""

    sides: tuple[tuple[float, PowerAtLoad], ...]

    @property
    def model(self) -> PowerModel:
        return self.sides[0][1].model

    def watts(
        self,
        seconds: npt.ArrayLike,
        decodes: npt.ArrayLike,
        decode_context: npt.ArrayLike,
        prefill_tokens: npt.ArrayLike = 0.0,
        prefill_pairs: npt.ArrayLike = 0.0,
    ) -> FloatArray:
        """Per GPU, as ``PowerAtLoad``."""
        iterations = (seconds, decodes, decode_context, prefill_tokens, prefill_pairs)
        by_side = [share * side.watts(*iterations) for share, side in self.sides]
        return np.asarray(np.add.reduce(by_side), np.float64)


Power = PowerAtLoad | PowerOfSides


def _peaks(graph: OperatorGraph, gpu: GpuSpec) -> tuple[float, float]:
    """Bandwidth, and the FLOP/s of the weights' precision; 4-bit weights are widened to 16."""
    precision = graph.arrangement.weights
    peak = gpu.peak_flops.get(precision if precision in ("fp8", "int8") else "bf16")
    peak = peak or gpu.peak_flops.get("bf16")
    if not gpu.bandwidth_bytes_s or not peak:
        raise SimulationError(
            f"{gpu.name}: power by load needs its memory bandwidth and its bf16 FLOP/s peak."
        )
    return gpu.bandwidth_bytes_s, peak


def _balance(operator: Experts, distinct: FloatArray) -> FloatArray:
    """Mean over expected largest number of experts read by the GPUs of a group.

    A GPU reads a binomial number of its ``experts / ep``; the largest of ``ep`` lies about
    sqrt(2 ln ep) standard deviations above the mean.
    """
    if operator.ep == 1:
        return np.ones_like(distinct)
    experts_each = operator.experts / operator.ep
    hit = distinct / experts_each
    largest = distinct + np.sqrt(2.0 * np.log(operator.ep) * distinct * (1.0 - hit))
    largest = np.maximum(np.minimum(largest, experts_each), min(1.0, experts_each))
    return np.where(distinct > 0, np.minimum(distinct / largest, 1.0), 1.0)
