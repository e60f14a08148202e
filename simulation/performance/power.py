"""Power per GPU under load, from its memory traffic and FLOP/s as shares of the peaks.

An iteration of t seconds draws this power per GPU, as a share of its TDP:

    P = phi max(prefill, D) + (1 - phi) D
    D = smooth minimum of cap and
        floor + memory W^p + cache K^p + compute F^q
              + link + experts + block_experts + attention_dp - imbalance (1 - balance) - gap G

phi     share of t that the prompt tokens take at ``prefill_efficiency`` of the FLOP/s peak
W, K    bytes of weights and of KV cache (or state) read per second of the rest, over peak bandwidth
F       FLOP/s of the decodes in the rest, over the peak of the weights' precision
balance mean over largest number of experts that the GPUs of an expert-parallel group read
G       share of the rest without a running kernel: 1 - ``SLACK`` times the share that the work
        would take at the peaks, at least 0. Expert weights count ``ROUTED_SLACK`` times in it, or
        ``BLOCK_SLACK`` times if they are rescaled

Running kernels draw a floor. Above it, power follows the energy of bytes and operations, and
saturates at the GPU's limit. Links draw power if an instance has more than one GPU: a tenth of the
TDP on B200, and nothing measurable on H100.

The last line covers effects that bytes and FLOPs do not show. Grouped GEMMs keep the
multiprocessors busy at low throughput. This is strongest if the kernel widens or rescales its
weights: 8 bits scaled by block in Triton, or 4 bits on GPUs without 4-bit arithmetic. A slow host
leaves gaps between kernels.

A cap slows a phase only if it is below the power that the phase draws without it. Measured speeds
of several models and batches then follow one curve of cap over uncapped power. Decodes read memory
and lose little. Prompts compute and lose more.

tools/catalogue/fit_power.py fits the parameters on ML.ENERGY and splitwise rows, and prints the
errors. The form of the model is ours (modelled).
"""

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from simulation.arrays import FloatArray
from simulation.errors import SimulationError
from simulation.performance.graph import OperatorGraph
from simulation.performance.profile import Check
from simulation.performance.specs import GpuSpec, Provenance
from simulation.performance.work import Experts, Iteration, iteration

SHARPNESS = 8.0  # of the smooth minimum: within 9% of the cap if both sides are equal
# Time beyond this multiple of the time at the peaks counts as a gap. Of a dozen values tried, these
# had the smallest error on model families that the fit had not seen.
SLACK = 2.0
ROUTED_SLACK = 1.5  # further factor for expert weights
BLOCK_SLACK = 3.0  # replaces ROUTED_SLACK if the kernel widens or rescales the weights
LONGEST_PREFILL = 0.97  # share of an iteration; the rest must stay above 0 for the rates


@dataclass(frozen=True, slots=True)
class PowerModel:
    """Parameters of the module's formula, as shares of TDP unless stated otherwise."""

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
    gap: float = 0.0  # subtracted while a GPU waits for its host
    link: float = 0.0  # of links to other GPUs, if an instance has more than one
    expert_bytes: float = 1.0  # bytes that grouped GEMMs move per byte of weights they need
    cap: float = 0.98
    provenance: Provenance = field(default=Provenance("assumed", ""))
    checks: tuple[Check, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Load:
    """Work of one GPU in iterations, arrays of one shape; bytes and operations per iteration."""

    seconds: FloatArray
    weight_bytes: FloatArray  # without routed experts
    expert_bytes: FloatArray
    cache_bytes: FloatArray
    decode_flops: FloatArray
    prefill_flops: FloatArray
    balance: FloatArray  # of experts over GPUs, (0, 1]
    bandwidth_bytes_s: FloatArray
    peak_flops: FloatArray
    experts: FloatArray  # 1 with a mixture of experts, else 0
    block_experts: FloatArray  # 1 if the kernel widens or rescales their weights
    attention_dp: FloatArray  # 1 with attention data parallelism
    linked: FloatArray  # 1 if the instance has more than one GPU


def load(
    graph: OperatorGraph,
    gpu: GpuSpec,
    seconds: npt.ArrayLike,
    iterations: Iteration,
    *,
    block_scaled: bool | None = None,
) -> Load:
    """Return the work of one GPU in ``iterations`` that take ``seconds`` each.

    ``block_scaled`` states whether the kernel of experts converts their weights; None: infer it.
    Raises SimulationError if a time is not above 0 or a peak is unknown.
    """
    precision = graph.arrangement.weights
    peak = gpu.peak_flops.get("bf16")  # also for 4-bit weights
    if precision in ("fp8", "int8"):
        peak = gpu.peak_flops.get(precision) or peak
    bandwidth = gpu.bandwidth_bytes_s
    if not bandwidth or not peak:
        raise SimulationError(
            f"{gpu.name}: power by load needs its memory bandwidth and its bf16 FLOP/s peak."
        )
    time, batch, context, tokens, pairs = np.broadcast_arrays(
        np.asarray(seconds, np.float64),
        iterations.decodes,
        iterations.decode_context,
        iterations.prefill_tokens,
        iterations.prefill_pairs,
    )
    if (time <= 0).any():
        raise SimulationError("Power is of iterations that take time: seconds must be above 0.")
    decode = iteration(batch, context)  # the decodes alone, then the prompts alone
    prefill = iteration(0.0 * batch, 0.0, tokens, pairs)
    zero = np.zeros_like(time)
    experts = [operator for operator in graph.operators if isinstance(operator, Experts)]
    expert_bytes, balance = zero, zero + 1.0
    for operator in experts:  # of one kind, so the balance of the last one holds for all
        expert_bytes = expert_bytes + operator.count * operator.work(decode).weight_bytes
        balance = _balance(operator, operator.distinct(decode))
    stages = graph.arrangement.pp  # the graph counts all stages, a GPU runs one
    if block_scaled is None:
        block_scaled = _is_block_scaled(graph, gpu)
    # Adding ``zero`` gives every field the shape of the iterations.
    return Load(
        seconds=time,
        weight_bytes=(graph.total("weight_bytes", decode) - expert_bytes) / stages,
        expert_bytes=expert_bytes / stages,
        cache_bytes=graph.total("kv_bytes", decode) / stages,
        decode_flops=graph.total("flops", decode) / stages,
        prefill_flops=graph.total("flops", prefill) / stages,
        balance=balance,
        bandwidth_bytes_s=zero + bandwidth,
        peak_flops=zero + peak,
        experts=zero + bool(experts),
        block_experts=zero + bool(experts and block_scaled),
        attention_dp=zero + (graph.arrangement.attention_dp > 1),
        linked=zero + (graph.arrangement.gpus > 1),
    )


def _is_block_scaled(graph: OperatorGraph, gpu: GpuSpec) -> bool:
    """Return whether the kernel of experts converts their weights.

    It does with fp4 weights on GPUs without a 4-bit peak, and with fp8 weights in Triton.
    DeepSeek's models (with latent attention) and AMD's GPUs have kernels of their own.
    """
    precision = graph.arrangement.weights
    if precision == "fp8":
        return not graph.shape.kv_lora_rank and gpu.vendor != "AMD"
    return precision == "fp4" and not gpu.peak_flops.get("fp4")


def share_of_tdp(model: PowerModel, load: Load) -> FloatArray:
    """Return the power per GPU over its TDP, if the iterations of ``load`` run without pause.

    It is a mean over the share of the time that prompts take, and the rest. Power in the rest rises
    with traffic and FLOP/s as shares of the peaks, up to the cap of ``model``. The module docstring
    has the formula (``prefill_share`` is phi, the traffic W and K, ``computing`` F).
    """
    prefill_s = load.prefill_flops / (load.peak_flops * model.prefill_efficiency)
    prefill_share = np.minimum(prefill_s / load.seconds, LONGEST_PREFILL)
    rest_s = load.seconds * (1.0 - prefill_share)
    most_bytes = rest_s * load.bandwidth_bytes_s
    weight_traffic = (load.weight_bytes + model.expert_bytes * load.expert_bytes) / most_bytes
    cache_traffic = load.cache_bytes / most_bytes
    computing = load.decode_flops / (rest_s * load.peak_flops)
    dynamic = (
        model.memory * weight_traffic**model.memory_exponent
        + model.cache * cache_traffic**model.memory_exponent
        + model.compute * computing**model.compute_exponent
        + model.experts * load.experts
        + model.block_experts * load.block_experts
        + model.attention_dp * load.attention_dp
        + model.link * load.linked
        - model.imbalance * (1.0 - load.balance)
        - model.gap * _gap_share(load, rest_s)
    )
    uncapped = np.maximum(model.floor + dynamic, 0.5 * model.floor)
    decode = (uncapped**-SHARPNESS + model.cap**-SHARPNESS) ** (-1.0 / SHARPNESS)
    prefill = np.maximum(model.prefill, decode)
    return np.asarray(prefill_share * prefill + (1.0 - prefill_share) * decode)


def _gap_share(load: Load, rest_s: FloatArray) -> FloatArray:
    """Return the share of ``rest_s`` in which no kernel runs (G of the module's formula)."""
    slack = np.where(load.block_experts > 0, BLOCK_SLACK, ROUTED_SLACK)
    moved_bytes = load.weight_bytes + slack * load.expert_bytes + load.cache_bytes
    at_peaks_s = moved_bytes / load.bandwidth_bytes_s + load.decode_flops / load.peak_flops
    return np.asarray(np.maximum(1.0 - SLACK * at_peaks_s / rest_s, 0.0))


def watts(model: PowerModel, gpu: GpuSpec, load: Load) -> FloatArray:
    """Return the board power per GPU in watts, between idle power and TDP.

    Raises SimulationError if the GPU has no TDP.
    """
    if gpu.tdp_w is None:
        raise SimulationError(f"{gpu.name} has no TDP: power by load needs one (tdp_w).")
    return np.clip(share_of_tdp(model, load) * gpu.tdp_w, gpu.idle_w, gpu.tdp_w)


@dataclass(frozen=True, slots=True)
class PowerAtLoad:
    """Power of one model on one GPU arrangement, from the iterations that run on it.

    An instance has several ``graphs`` if its GPUs differ, such as those for attention and for
    feed-forward layers. ``shares`` are the shares of the GPUs that run each.
    """

    model: PowerModel
    gpu: GpuSpec
    graphs: tuple[OperatorGraph, ...]
    shares: tuple[float, ...] = (1.0,)

    def watts(self, seconds: npt.ArrayLike, *amounts: npt.ArrayLike) -> FloatArray:
        """Return mean watts per GPU while iterations of ``seconds`` run without pause.

        ``amounts`` are the decodes, their context, prompt tokens and pairs, as for ``iteration``.
        """
        mean_w: FloatArray = np.zeros(())
        for share, graph in zip(self.shares, self.graphs, strict=True):
            work = load(graph, self.gpu, seconds, iteration(*amounts))
            mean_w = mean_w + share * watts(self.model, self.gpu, work)
        return mean_w


def _balance(operator: Experts, distinct: FloatArray) -> FloatArray:
    """Return how evenly the experts in use spread over GPUs: mean / largest number per GPU, to 1.

    ``distinct`` is the mean. A GPU reads a binomial number of its ``experts / ep``. The largest of
    ``ep`` such numbers lies about sqrt(2 ln ep) standard deviations above the mean.
    """
    if operator.ep == 1:
        return np.ones_like(distinct)
    experts_each = operator.experts / operator.ep
    read_share = distinct / experts_each
    largest = distinct + np.sqrt(2.0 * np.log(operator.ep) * distinct * (1.0 - read_share))
    largest = np.maximum(np.minimum(largest, experts_each), min(1.0, experts_each))
    return np.where(distinct > 0, np.minimum(distinct / largest, 1.0), 1.0)


@dataclass(frozen=True, slots=True)
class PowerCap:
    """A power cap of GPUs, and the speed of prompts that remains under it."""

    share: float  # of TDP
    prefill_speed: float  # of the speed without a cap, (0, 1]
    clock_mhz: float | None = None  # locked GPU clock that draws this power, if it is known


@dataclass(frozen=True, slots=True, eq=False)
class CapCurve:
    """Speed of a phase (1: uncapped) by the cap over its uncapped power, both ascending ``[n]``."""

    cap: FloatArray
    speed: FloatArray
    provenance: Provenance

    def __post_init__(self) -> None:
        ascends = (np.diff(self.cap) > 0).all() and (np.diff(self.speed) >= 0).all()
        if self.cap.shape != self.speed.shape or not self.cap.size or not ascends:
            raise SimulationError("Power caps and their speeds must ascend.")
        if not (self.cap[0] > 0 and self.speed[0] > 0 and self.speed[-1] <= 1):
            raise SimulationError("Power caps and speeds are shares above 0, speeds at most 1.")

    def speed_at(self, cap: float) -> float:
        """Return the speed under a cap of ``cap`` times the uncapped power.

        It is 1 from the full power on. Raises SimulationError below the first point of the curve.
        """
        if cap < self.cap[0] * (1 - 1e-9):
            raise SimulationError(
                f"A cap at {cap:.0%} of the power drawn is below the measured caps, which begin at "
                f"{self.cap[0]:.0%}. Choose a higher cap."
            )
        return float(np.interp(cap, np.append(self.cap, 1.0), np.append(self.speed, 1.0)))


def cap_power(model: PowerModel, cap: PowerCap) -> PowerModel:
    """Return ``model`` under a power cap: less power, and prompts that take longer."""
    return replace(
        model,
        cap=min(model.cap, cap.share),
        prefill=min(model.prefill, cap.share),
        prefill_efficiency=model.prefill_efficiency * cap.prefill_speed,
    )
