"""How much of a GPU's published speed its kernels reach: a few factors per family and operator.

    seconds = floor + per_unit * units + per_element * elements
              + ((flops / (compute * peak))^q + (bytes / (bandwidth * peak bandwidth))^q)^(1/q)

The floor is the shortest call; units are what costs a fixed time each (the depth k of a product, a
sequence's key-value head in decode, an expert that is read at all); elements what an expert layer
copies between its steps. A sharpness q above 1 lets computing and reading overlap. Of a collective
over PCIe, whose GPUs stand in each other's way, the share of the link is ``bandwidth * (2 /
gpus)^sharing``; behind a switch each has its own, and sharing is 0. The factors were fitted to
measured kernels (``tools/catalogue/fit_efficiency.py``) and carry their spread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from simulation.arrays import FloatArray
from simulation.errors import SimulationError
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
    Recurrence,
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
# The family whose factors stand in for one that was never measured: the next generation of the same
# vendor, or the one that was current when the other vendor's part came out.
NEAREST: Mapping[str, tuple[str, ...]] = {
    "hopper": ("hopper", "blackwell", "ampere", "ada"),
    "blackwell": ("blackwell", "hopper", "ampere", "ada"),
    "ada": ("ada", "ampere", "hopper", "blackwell"),
    "ampere": ("ampere", "hopper", "ada", "blackwell"),
    "": ("hopper", "ampere", "blackwell", "ada"),
}
# A precision whose kernels were not measured on a family is taken from the next one here.
SIMILAR: Mapping[str, tuple[str, ...]] = {
    "bf16": ("bf16", "fp8", "fp4"),
    "fp8": ("fp8", "bf16", "fp4"),
    "int8": ("fp8", "bf16", "fp4"),
    "int4": ("bf16", "fp8", "fp4"),
    "fp4": ("fp4", "fp8", "bf16"),
}
# What a GPU without units for a precision computes in, after unpacking the weights.
COMPUTED_IN: Mapping[str, tuple[str, ...]] = {
    "bf16": ("bf16",),
    "fp8": ("fp8", "bf16"),
    "int8": ("int8", "fp8", "bf16"),
    "fp4": ("fp4", "fp8", "bf16"),
    "int4": ("bf16",),  # weights only
}


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Factors of one kind of operator on one family of GPUs in one precision."""

    kind: str
    family: str
    precision: str
    floor_s: float
    per_unit_s: float
    per_element_s: float
    compute: float  # share of the peak FLOP/s
    bandwidth: float  # share of the peak bytes/s (of the link, for a collective)
    sharpness: float
    spread: float  # standard deviation of ln(predicted / measured) over the rows fitted
    rows: int
    source: str
    sharing: float = 0.0  # how fast the share of the link falls with GPUs beyond two

    def share_of_link(self, gpus: int) -> float:
        """Of the published link, for a collective of so many GPUs of one server."""
        share: float = self.bandwidth * (2.0 / gpus) ** self.sharing
        return share


@dataclass(frozen=True, slots=True)
class Efficiencies:
    """All factors there are, and how far they are off on a family they were not fitted to."""

    entries: tuple[Efficiency, ...]
    across: Mapping[str, float]  # by kind: spread of ln(predicted / measured) on other families
    checks: tuple[Check, ...] = ()  # of whole iterations by these factors, on served deployments
    unpacked: float = 1.0  # on kernels of 16 bits, where experts' weights are 4-bit integers

    def find(self, kind: str, family: str, precision: str) -> Efficiency:
        """The factors of the nearest family and precision that were measured."""
        families = NEAREST.get(family, (family, *NEAREST[""]))
        for name in families:
            for similar in SIMILAR[precision]:
                for entry in self.entries:
                    if (entry.kind, entry.family, entry.precision) == (kind, name, similar):
                        return entry
        raise SimulationError(f"No efficiency factors for {kind}; they are part of the catalogue.")

    def slower(self, operator: Operator) -> float:
        """What a kernel that was not measured takes, of the one whose factors stand in for it."""
        return self.unpacked if unpacks(operator) else 1.0

    def spread(self, entry: Efficiency, family: str) -> float:
        """Its spread on a GPU of ``family``, wider where it was fitted to another one."""
        if entry.family == family:
            return entry.spread
        return max(entry.spread, self.across.get(entry.kind, entry.spread))


def kind_of(operator: Operator) -> str:
    """The kind of factors that ``operator`` needs."""
    if isinstance(operator, Collective):
        return "all_to_all" if operator.kind == "send" else operator.kind
    if isinstance(operator, Attention):
        if operator.axis != "decodes":
            return "attention_prefill"
        return "latent_decode" if operator.latent else "attention_decode"
    for kind, name in ((Gemm, "gemm"), (Experts, "experts"), (Elementwise, "elementwise")):
        if isinstance(operator, kind):
            return name
    if isinstance(operator, Recurrence):  # not measured: reads its state like attention its cache
        return "attention_decode" if operator.axis == "decodes" else "attention_prefill"
    raise SimulationError(f"Operator {operator.name} has no kind.")


def unpacks(operator: Operator) -> bool:
    """Experts whose 4-bit integers become 16 bits on the way: no such kernel was measured."""
    return isinstance(operator, Experts) and operator.precision == "int4"


def precision_of(operator: Operator) -> str:
    """What its weights or its cache are stored in."""
    if isinstance(operator, Gemm | Experts):
        return operator.precision
    return operator.kv_cache if isinstance(operator, Attention) else "bf16"


def peak_flops(operator: Operator, gpu: GpuSpec) -> float:
    """Peak FLOP/s of the units that compute ``operator``; attention always in 16 bits."""
    precision = operator.precision if isinstance(operator, Gemm | Experts) else "bf16"
    for name in COMPUTED_IN[precision]:
        if gpu.peak_flops.get(name):
            return gpu.peak_flops[name]
    raise SimulationError(
        f"{gpu.name} has no published peak for {precision}; add peak_flops in its catalogue entry."
    )


def within_server(operator: Collective, gpu: GpuSpec) -> bool:
    """Whether it goes over the links between the GPUs of one server."""
    return operator.gpus <= gpu.gpus_per_node and operator.kind != "send"


def link_bytes_s(operator: Collective, gpu: GpuSpec) -> float:
    """Bytes per second each GPU can send to the farthest of a collective."""
    speeds = gpu.link_bytes_s, gpu.network_bytes_s
    return _speed(speeds if within_server(operator, gpu) else speeds[::-1], operator, gpu)


def _speed(speeds: tuple[float | None, ...], operator: Collective, gpu: GpuSpec) -> float:
    speed_known = next((speed for speed in speeds if speed), None)
    if not speed_known:
        raise SimulationError(
            f"{gpu.name} has no published link speed, which {operator.gpus} GPUs need; add "
            "link_bytes_s in its catalogue entry."
        )
    return speed_known


def sent_s(
    operator: Collective, message: FloatArray, gpu: GpuSpec, near: float = 1.0, far: float = 1.0
) -> FloatArray:
    """Seconds that the links of one GPU are busy, at shares of their peaks: those within its node,
    and those to other nodes at the same time, whichever takes longer."""
    if operator.kind == "send":
        return message / (link_bytes_s(operator, gpu) * far)
    link = _speed((gpu.link_bytes_s, gpu.network_bytes_s), operator, gpu)
    within = message * operator.traffic / (link * near)
    if within_server(operator, gpu):
        return within
    leaving = message * operator.leaving(gpu.gpus_per_node)
    return np.maximum(within, leaving / (link_bytes_s(operator, gpu) * far))


def bandwidth_of(gpu: GpuSpec) -> float:
    if not gpu.bandwidth_bytes_s:
        raise SimulationError(
            f"{gpu.name} has no published memory bandwidth; add bandwidth_bytes_s in its "
            "catalogue entry."
        )
    return gpu.bandwidth_bytes_s


def features(operator: Operator, it: Iteration) -> tuple[FloatArray, FloatArray]:
    """Units and elements of ``operator``, for the factors that cost a time each."""
    rows = operator.rows(it)
    none = np.zeros_like(rows)
    if isinstance(operator, Gemm):
        return np.full_like(rows, operator.k), none
    if isinstance(operator, Attention) and operator.axis == "decodes":
        return rows * operator.kv_heads, none
    if isinstance(operator, Experts):
        routed = rows * operator.top_k / (operator.ep if operator.dispatched else 1)
        return operator.distinct(it), routed * (2 * operator.hidden + 3 * operator.intermediate)
    if isinstance(operator, Collective):
        return np.full_like(rows, operator.gpus - 1), none
    return none, none


def bound_s(operator: Operator, work: Work, gpu: GpuSpec) -> FloatArray:
    """The roofline: no kernel can be faster than the published peaks allow.

    Weights and the KV cache come from memory; activations are left out, since what one operator
    writes the next may still find in the cache of the chip.
    """
    if isinstance(operator, Collective):
        return sent_s(operator, work.message_bytes, gpu)
    compute = work.flops / peak_flops(operator, gpu)
    return np.maximum(compute, (work.weight_bytes + work.kv_bytes) / bandwidth_of(gpu))


def modelled_s(operator: Operator, it: Iteration, gpu: GpuSpec, entry: Efficiency) -> FloatArray:
    """Seconds of one call by the formula at the top; 0 where the operator has nothing to do."""
    work = operator.work(it)
    units, elements = features(operator, it)
    if isinstance(operator, Collective):
        share = entry.share_of_link(min(operator.gpus, gpu.gpus_per_node))
        busy = sent_s(operator, work.message_bytes, gpu, share, entry.bandwidth)
    else:
        flops = work.flops / (entry.compute * peak_flops(operator, gpu))
        moved = work.memory_bytes / (entry.bandwidth * bandwidth_of(gpu))
        busy = combine(flops, moved, entry.sharpness)
    seconds = entry.floor_s + entry.per_unit_s * units + entry.per_element_s * elements + busy
    bounded = np.maximum(seconds, bound_s(operator, work, gpu))
    return np.where(operator.rows(it) > 0, bounded, 0.0)


def combine(flops: FloatArray, moved: FloatArray, sharpness: float) -> FloatArray:
    """(flops^q + moved^q)^(1/q) without overflow."""
    larger = np.maximum(np.maximum(flops, moved), 1e-30)
    smaller = np.minimum(flops, moved) / larger
    total: FloatArray = larger * (1.0 + smaller**sharpness) ** (1.0 / sharpness)
    return total
