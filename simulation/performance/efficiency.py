"""Efficiency factors: the share of a GPU's published speed that kernels reach.

Each kind of operator has a few factors per GPU family and precision:

    seconds = floor + per_unit * units + per_element * elements
              + ((flops / (compute * peak))^q + (bytes / (bandwidth * peak bandwidth))^q)^(1/q)

- The floor is the time of the shortest call.
- A unit costs a fixed time. Units are the depth k of a product, the key-value heads of sequences in
  decode, the experts that are read, and the other GPUs of a collective.
- Elements are those that an expert layer copies between its steps.
- A sharpness q above 1 lets computing and reading overlap.
- In a collective over PCIe the GPUs share links. The share of the link is
  ``bandwidth * (2 / gpus)^sharing``. Behind a switch each GPU has its own link, and sharing is 0.

``tools/catalogue/fit_efficiency.py`` fits the factors to measured kernels, with their spread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from simulation.arrays import FloatArray
from simulation.errors import SimulationError
from simulation.performance.curves import overlapped_seconds
from simulation.performance.profile import Check
from simulation.performance.specs import GpuSpec
from simulation.performance.work import (
    Attention,
    Collective,
    Elementwise,
    Experts,
    Gemm,
    Iteration,
    Operator,
    Work,
)

KINDS = (
    "gemm",
    "attention_prefill",
    "attention_decode",
    "latent_decode",
    "experts",
    "elementwise",
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
)
# GPU families to take efficiency factors from, best first: the family, then the nearest generations
# of its vendor. "" is for GPUs of other vendors, and begins with the family of the same years.
NEAREST: Mapping[str, tuple[str, ...]] = {
    "hopper": ("hopper", "blackwell", "ampere", "ada"),
    "blackwell": ("blackwell", "hopper", "ampere", "ada"),
    "ada": ("ada", "ampere", "hopper", "blackwell"),
    "ampere": ("ampere", "hopper", "ada", "blackwell"),
    "rubin": ("blackwell", "hopper", "ampere", "ada"),
    "volta": ("ampere", "hopper", "ada", "blackwell"),
    "": ("hopper", "ampere", "blackwell", "ada"),
}
# Share of the published 8-bit peak that the best library reaches in large matrix products: hopper
# as fitted here, cdna3 by AMD's MI300X at 1,273 TFLOP/s ("Measuring Max-Achievable FLOPs, Part 2"),
# cdna4 by MI355X at 3,130 TFLOP/s ("FP8 GEMM Optimization on AMD CDNA 4", both ROCm blogs). All
# kernels of a foreign family are assumed slower than Hopper's by the ratio of these shares. A
# family that is not listed has the smallest share.
REACHED_PEAK_SHARE: Mapping[str, float] = {"hopper": 0.618, "cdna3": 0.487, "cdna4": 0.622}
# Precisions to take factors from, in this order, if a precision was not measured on a family.
SIMILAR_PRECISIONS: Mapping[str, tuple[str, ...]] = {
    "bf16": ("bf16", "fp8", "fp4"),
    "fp8": ("fp8", "bf16", "fp4"),
    "int8": ("fp8", "bf16", "fp4"),
    "int4": ("bf16", "fp8", "fp4"),
    "fp4": ("fp4", "fp8", "bf16"),
}
# Precisions that weights can be computed in. Wider ones unpack the weights. A GPU takes the fastest
# one that it has units for, so that fewer bits are never slower.
COMPUTED_IN: Mapping[str, tuple[str, ...]] = {
    "bf16": ("bf16",),
    "fp8": ("fp8", "bf16"),
    "int8": ("int8", "fp8", "bf16"),
    "fp4": ("fp4", "fp8", "bf16"),
    "int4": ("bf16",),  # weights only
}


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Factors between the peaks of a GPU and the speed that one kind of operator reaches.

    They are for one GPU family and one precision.
    """

    kind: str
    family: str
    precision: str
    floor_s: float
    per_unit_s: float
    per_element_s: float
    compute: float  # share of the peak FLOP/s
    bandwidth: float  # share of the peak bytes/s (of the link, for a collective)
    sharpness: float
    spread: float  # standard deviation of ln(predicted / measured) over the fitted rows
    rows: int
    source: str
    sharing: float = 0.0  # exponent by which the share of the link falls beyond two GPUs

    def share_of_link(self, gpus: int) -> float:
        """Return the share of the published link for a collective of ``gpus`` in one server."""
        return float(self.bandwidth * (2.0 / gpus) ** self.sharing)

    def with_slowdown(self, factor: float) -> Efficiency:
        """Return the factors of calls that take ``factor`` times as long."""
        names = ("floor_s", "per_unit_s", "per_element_s")
        seconds = {name: getattr(self, name) * factor for name in names}
        compute, bandwidth = self.compute / factor, self.bandwidth / factor
        return replace(self, **seconds, compute=compute, bandwidth=bandwidth)


@dataclass(frozen=True, slots=True)
class Efficiencies:
    """All efficiency factors, and the error of predictions on GPU families without their own."""

    entries: tuple[Efficiency, ...]
    across: Mapping[str, float]  # by kind: spread of ln(predicted / measured) on other families
    checks: tuple[Check, ...] = ()  # of whole iterations with these factors, on served deployments
    # Factors on the seconds of a kernel:
    unpacked: float = 1.0  # 16-bit kernels of experts with 4-bit weights
    foreign: float = 1.0  # kernels on GPUs of vendors without measured kernels
    scaled: float = 1.0  # 8-bit products with a scale for each block

    def find(self, kind: str, family: str, precision: str) -> Efficiency:
        """Return the factors of one ``kind`` of operator, of the nearest family and precision.

        ``family`` and ``precision`` are the wanted ones; NEAREST and SIMILAR_PRECISIONS order the
        others. For families of other vendors, the factors are slowed by the ratio of shares in
        REACHED_PEAK_SHARE. Raises SimulationError if the kind has no factors at all.
        """
        # Share of the peak that kernels of the family reach: measured, or else of another vendor.
        families = (family, *NEAREST[""])
        reached_share = REACHED_PEAK_SHARE.get(family, min(REACHED_PEAK_SHARE.values()))
        if family in NEAREST:
            families, reached_share = NEAREST[family], REACHED_PEAK_SHARE["hopper"]
        entries = {(entry.kind, entry.family, entry.precision): entry for entry in self.entries}
        for near_family in families:
            for similar in SIMILAR_PRECISIONS[precision]:
                entry = entries.get((kind, near_family, similar))
                if entry is not None:
                    return entry.with_slowdown(REACHED_PEAK_SHARE["hopper"] / reached_share)
        raise SimulationError(f"No efficiency factors for {kind}; they are part of the catalogue.")

    def of(self, operator: Operator, gpu: GpuSpec) -> Efficiency:
        """Return the factors of ``operator`` in the precision of its weights or KV cache."""
        return self.find(kind_of(operator), gpu.family, precision_of(operator))

    def slower(self, operator: Operator, gpu: GpuSpec) -> float:
        """Return the factor on the seconds of ``operator``'s kernel.

        It covers properties that the measured kernels lack: unpacked 4-bit weights, block scales,
        and a vendor without measured kernels.
        """
        factor = 1.0
        if unpacks_weights(operator, gpu):
            factor = self.unpacked
        if scaled_by_block(operator, gpu):
            factor *= self.scaled
        if gpu.family not in NEAREST:
            factor += self.foreign - 1.0
        return factor

    def spread(self, entry: Efficiency, family: str) -> float:
        """Return the standard deviation of ln(predicted / measured) of ``entry`` on ``family``.

        It is wider if the factors were fitted to another family.
        """
        if entry.family == family:
            return entry.spread
        return max(entry.spread, self.across.get(entry.kind, entry.spread))


def kind_of(operator: Operator) -> str:
    """Return the kind of efficiency factors that ``operator`` uses."""
    if isinstance(operator, Collective):
        return "all_to_all" if operator.kind == "send" else operator.kind
    if isinstance(operator, Attention):
        if operator.axis != "decodes":
            return "attention_prefill"
        return "latent_decode" if operator.latent else "attention_decode"
    for kind, name in ((Gemm, "gemm"), (Experts, "experts"), (Elementwise, "elementwise")):
        if isinstance(operator, kind):
            return name
    # A recurrence was not measured. It reads its state like attention its cache.
    return "attention_decode" if operator.axis == "decodes" else "attention_prefill"


def unpacks_weights(operator: Operator, gpu: GpuSpec) -> bool:
    """Return whether ``operator`` unpacks 4-bit weights to 16 bits before it computes.

    No GPU computes with 4-bit integers. A GPU without units for fp4 unpacks the experts of that
    precision: TensorRT-LLM's guide to gpt-oss names bf16 activations for H200, and MXFP8 for B200.
    No such kernel was measured.
    """
    four_bits = ("int4",) if gpu.peak_flops.get("fp4") else ("int4", "fp4")
    return isinstance(operator, Experts) and operator.precision in four_bits


def scaled_by_block(operator: Operator, gpu: GpuSpec) -> bool:
    """Return whether ``operator`` computes in 8 bits, with a scale for each block of weights.

    Models with experts do so. The measured kernels have one scale for all weights. A GPU without
    8-bit units unpacks the weights to 16 bits, so this returns False.
    """
    if not gpu.peak_flops.get("fp8"):
        return False
    if isinstance(operator, Gemm):
        return operator.by_block
    return isinstance(operator, Experts) and operator.precision == "fp8"


def precision_of(operator: Operator) -> str:
    """Return the precision that the weights or the KV cache of ``operator`` are stored in."""
    if isinstance(operator, Gemm | Experts):
        return operator.precision
    return operator.kv_cache if isinstance(operator, Attention) else "bf16"


def computed_in(operator: Operator, gpu: GpuSpec) -> tuple[str, ...]:
    """Return the precisions in which the GPU can compute ``operator``, fewest bits first.

    Attention uses 16 bits. Raises SimulationError if the GPU has no published peak for any of the
    precisions.
    """
    precision = operator.precision if isinstance(operator, Gemm | Experts) else "bf16"
    choices = ("bf16",) if unpacks_weights(operator, gpu) else COMPUTED_IN[precision]
    peaks = [gpu.peak_flops.get(name) for name in choices]
    _first_published(gpu, f"peak for {precision}", "peak_flops", *peaks)
    return tuple(name for name, peak in zip(choices, peaks, strict=True) if peak)


def _first_published(gpu: GpuSpec, figure: str, field: str, *values: float | None) -> float:
    """Return the first of ``values`` that is known; raise SimulationError if none is."""
    for value in values:
        if value:
            return value
    raise SimulationError(
        f"{gpu.name} has no published {figure}. Add {field} in its catalogue entry."
    )


def peak_flops(operator: Operator, gpu: GpuSpec, precision: str = "") -> float:
    """Return the peak FLOP/s of the units of ``precision`` that compute ``operator``.

    Default: those with the fewest bits.
    """
    return gpu.peak_flops[precision or computed_in(operator, gpu)[0]]


def stays_within_server(operator: Collective, gpu: GpuSpec) -> bool:
    """Return whether a collective stays on the links between the GPUs of one server."""
    return operator.gpus <= gpu.gpus_per_node and operator.kind != "send"


def link_bytes_s(operator: Collective, gpu: GpuSpec, near: bool = False) -> float:
    """Return the bytes per second that each GPU can send to the farthest GPU of a collective.

    With ``near``, return those that it can send to a GPU of its server. If only the other of the
    two speeds is published, return that. Raises SimulationError if neither is.
    """
    speeds = (gpu.link_bytes_s, gpu.network_bytes_s)
    if not near and not stays_within_server(operator, gpu):
        speeds = (gpu.network_bytes_s, gpu.link_bytes_s)
    figure = f"link speed, which {operator.gpus} GPUs need"
    return _first_published(gpu, figure, "link_bytes_s", *speeds)


def transfer_s(
    operator: Collective, message_bytes: FloatArray, gpu: GpuSpec,
    near_share: float = 1.0, far_share: float = 1.0,
) -> FloatArray:  # fmt: skip
    """Return the seconds in which the links of one GPU transfer its ``message_bytes``.

    ``near_share`` is the share of the peak that links in the node reach, ``far_share`` the share
    that links to other nodes reach. Both work at the same time, so the longer time counts.
    """
    far_bytes_s = link_bytes_s(operator, gpu) * far_share
    if operator.kind == "send":
        return message_bytes / far_bytes_s
    near_bytes_s = link_bytes_s(operator, gpu, near=True) * near_share
    near_s = message_bytes * operator.traffic / near_bytes_s  # ``traffic`` is per byte of message
    if stays_within_server(operator, gpu):
        return near_s
    return np.maximum(near_s, message_bytes * operator.leaving(gpu.gpus_per_node) / far_bytes_s)


def bandwidth_of(gpu: GpuSpec) -> float:
    """Return the memory bandwidth in bytes/s; raise SimulationError if it is unknown."""
    return _first_published(gpu, "memory bandwidth", "bandwidth_bytes_s", gpu.bandwidth_bytes_s)


def features(operator: Operator, iteration: Iteration) -> tuple[FloatArray, FloatArray]:
    """Return the units of one call, each with a fixed cost, and the elements that it copies.

    Units are the depth of a product, the KV heads of all sequences in a decode, the experts that
    are read, or the other GPUs of a collective. Only experts copy elements, between their steps.
    """
    rows = operator.rows(iteration)
    zeros = np.zeros_like(rows)
    if isinstance(operator, Gemm):
        return np.full_like(rows, operator.k), zeros
    if isinstance(operator, Attention) and operator.axis == "decodes":
        return rows * operator.kv_heads, zeros
    if isinstance(operator, Experts):
        # Pairs of a token and one of its experts, on one GPU.
        pairs = rows * operator.top_k / (operator.ep if operator.dispatched else 1)
        elements_per_pair = 2 * operator.hidden + 3 * operator.intermediate
        return operator.distinct(iteration), pairs * elements_per_pair
    if isinstance(operator, Collective):
        return np.full_like(rows, operator.gpus - 1), zeros
    return zeros, zeros


def bound_s(operator: Operator, work: Work, gpu: GpuSpec, precision: str = "") -> FloatArray:
    """Return the roofline: the least seconds that the published peaks allow.

    Weights and the KV cache come from memory. Activations do not count, since an operator may find
    the output of the previous one in the cache of the chip. For ``precision`` see ``peak_flops``.
    """
    if isinstance(operator, Collective):
        return transfer_s(operator, work.message_bytes, gpu)
    compute_s = work.flops / peak_flops(operator, gpu, precision)
    return np.maximum(compute_s, (work.weight_bytes + work.kv_bytes) / bandwidth_of(gpu))


def kernel_s(
    operator: Operator, iteration: Iteration, gpu: GpuSpec, efficiencies: Efficiencies
) -> FloatArray:
    """Return the seconds of one call of a kernel, for each iteration.

    The GPU uses the fastest precision that it can compute these weights in. Factors are those of
    the nearest measured family and precision.
    """
    if not isinstance(operator, Gemm | Experts):
        return modelled_s(operator, iteration, gpu, efficiencies.of(operator, gpu))
    seconds = []
    for precision in computed_in(operator, gpu):
        factors = efficiencies.find(kind_of(operator), gpu.family, precision)
        seconds.append(modelled_s(operator, iteration, gpu, factors, precision))
    return np.asarray(np.min(seconds, axis=0))


def modelled_s(
    operator: Operator, iteration: Iteration, gpu: GpuSpec, factors: Efficiency, precision: str = ""
) -> FloatArray:
    """Return the seconds of one call, at least the roofline, for each iteration.

    They are the floor, the times of units and elements (see ``features``), and the time in which
    the GPU computes and reads memory, or its links transfer. ``factors`` has the efficiency
    factors. Iterations without rows take 0 seconds. For ``precision`` see ``peak_flops``.
    """
    work = operator.work(iteration)
    units, elements = features(operator, iteration)
    if isinstance(operator, Collective):
        share = factors.share_of_link(min(operator.gpus, gpu.gpus_per_node))
        busy_s = transfer_s(operator, work.message_bytes, gpu, share, factors.bandwidth)
    else:
        compute_s = work.flops / (factors.compute * peak_flops(operator, gpu, precision))
        memory_s = work.memory_bytes / (factors.bandwidth * bandwidth_of(gpu))
        busy_s = overlapped_seconds(compute_s, memory_s, factors.sharpness)
    seconds = factors.floor_s + factors.per_unit_s * units
    seconds = seconds + factors.per_element_s * elements + busy_s
    bounded = np.maximum(seconds, bound_s(operator, work, gpu, precision))
    return np.where(operator.rows(iteration) > 0, bounded, 0.0)
