"""Steady state of a closed loop: N users, each with one request under way at any time.

What an iteration has to do comes from the operator graph (``demands``): seconds at the published
peaks of the GPU, by kind of work, and counts of what costs a fixed time. A ``Calibration`` says
what share of the peaks is reached and what the fixed times are; ``steady_state`` puts the
iterations together. Everything is arrays over deployments, so that a thousand rows, or a fit that
tries a thousand calibrations, take no longer than one.

Co-located (aggregated): the prompts of others are computed between a request's tokens. In steady
state a request finishes every osl / b iterations per sequence of the batch, so each iteration
carries b / osl prompts, and

    TBT = decode(b) + mix * b / osl * prompt

Disaggregated: decode workers see no prompts, TBT = decode(b). TTFT is the time of one's own prompt,
the wait for those before it (users start together, and keep part of that order), and where memory
bounds the batch, the wait for a place: by Little's law N = throughput * (TTFT + (osl - 1) TBT).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import numpy.typing as npt

from simulation.performance.calibration import ENGINES, Calibration
from simulation.performance.efficiency import bandwidth_of, link_bytes_s, peak_flops
from simulation.performance.graph import OperatorGraph
from simulation.performance.specs import GpuSpec
from simulation.performance.work import (
    Attention,
    Collective,
    Elementwise,
    Experts,
    Gemm,
    Iteration,
    Recurrence,
)

FloatArray = npt.NDArray[np.float64]
Demands = Mapping[str, FloatArray]

# Seconds at the published peaks, or counts, of one GPU's part of an iteration.
DEMANDS = (
    "gemm_read",  # weights of quantised projections, and of those in 16 bits
    "gemm16_read",
    "gemm_flops",
    "gemm16_flops",
    "experts_read",
    "experts_flops",
    "activations",  # what operators hand to each other through memory
    "cache_read",  # KV cache and states, in decode
    "cache_flops",
    "pairs_flops",  # attention of prompts
    "traffic",  # messages between GPUs
    "collectives",
    "hops",  # collectives, each times log2 of its GPUs
    "kernels",
    "quantised",  # kernels that quantise their input first
    "mixtures",  # layers with experts
    "mixers",  # layers with a recurrent state
    "latents",  # layers with latent attention
)
SHARPNESS = 3.0  # of the overlap of reading and computing; the kernels' fits lie between 2 and 6


def demands(graph: OperatorGraph, gpu: GpuSpec, it: Iteration) -> Demands:
    """What one GPU has to do for iterations ``it``; arrays of their shape, by DEMANDS."""
    bandwidth = bandwidth_of(gpu)
    out = {name: np.zeros(it.decodes.shape) for name in DEMANDS}
    for op in graph.operators:
        if op.axis == "encoder":
            continue
        work, running = op.work(it), op.count * (op.rows(it) > 0)
        if isinstance(op, Collective):
            out["traffic"] += op.count * work.message_bytes * op.traffic / link_bytes_s(op, gpu)
            out["collectives"] += running
            out["hops"] += running * np.log2(op.gpus)
            continue
        out["kernels"] += running
        out["activations"] += op.count * work.activation_bytes / bandwidth
        read = op.count * work.weight_bytes / bandwidth
        flops = op.count * work.flops / peak_flops(op, gpu)
        if isinstance(op, Experts):
            out["experts_read"] += read
            out["experts_flops"] += flops
            out["mixtures"] += running
            out["quantised"] += running * (op.precision != "bf16")
        elif isinstance(op, Gemm):
            wide = op.precision == "bf16"
            out["gemm16_read" if wide else "gemm_read"] += read
            out["gemm16_flops" if wide else "gemm_flops"] += flops
            out["quantised"] += running * (not wide)
        elif isinstance(op, Elementwise):
            pass
        elif op.axis == "prefill":
            out["pairs_flops"] += flops
        else:
            out["cache_read"] += op.count * work.kv_bytes / bandwidth
            out["cache_flops"] += flops
        if isinstance(op, Recurrence):
            out["mixers"] += running
        if isinstance(op, Attention) and graph.shape.kv_lora_rank:
            out["latents"] += running
    return out


def overlapped(x: FloatArray, y: FloatArray) -> FloatArray:
    """Seconds of two things done at once, a little more than the longer of them."""
    total: FloatArray = (x**SHARPNESS + y**SHARPNESS) ** (1.0 / SHARPNESS)
    return total


@dataclass(frozen=True, slots=True, eq=False)
class Loop:
    """Deployments as arrays of one shape ``[n]``; sequences are counted per decode worker."""

    engine: npt.NDArray[np.int64]  # index into ENGINES
    precision: npt.NDArray[np.str_]  # of the weights
    split: npt.NDArray[np.bool_]  # prefill and decode on workers of their own
    isl: FloatArray
    osl: FloatArray
    users: FloatArray  # concurrency of the deployment
    batch: FloatArray  # sequences that one decode worker holds, at most
    decode_workers: FloatArray
    prefill_workers: FloatArray
    prefill_ranks: FloatArray  # prompts that one prefill worker computes side by side
    decode: Demands  # an iteration of ``batch`` decodes
    prefill: Demands  # an iteration of ``prefill_ranks`` prompts

    def take(self, rows: npt.NDArray[np.int64]) -> Loop:
        """Some of the deployments."""
        values: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        for name, value in values.items():
            if isinstance(value, Mapping):
                values[name] = {key: part[rows] for key, part in value.items()}
            else:
                values[name] = value[rows]
        return Loop(**values)


def fixed_s(work: Demands, loop: Loop, c: Calibration) -> FloatArray:
    """Seconds of an iteration that do not depend on its size: launches and the host."""
    engine = np.choose(loop.engine, [c.of("host", e) for e in ENGINES])
    launches = (
        c.kernel_s * work["kernels"]
        + c.quantise_s * work["quantised"]
        + c.mixture_s * work["mixtures"]
        + c.mixer_s * work["mixers"]
        + c.latent_s * work["latents"]
    )
    return np.asarray((launches + c.iteration_s) * engine)


def iteration_s(work: Demands, loop: Loop, c: Calibration, prefill: bool) -> FloatArray:
    """Seconds of the iterations whose demands are ``work``."""
    low = np.select(
        [loop.precision == p for p in ("fp8", "int8", "fp4", "int4")],
        [c.fp8_read, c.fp8_read, c.fp4_read, c.int4_read],
        1.0,
    )
    read, experts = c.bandwidth * low, c.prefill_experts if prefill else c.decode_experts
    busy = overlapped(
        work["gemm_read"] / read + work["gemm16_read"] / c.bandwidth,
        (work["gemm_flops"] + work["gemm16_flops"]) / c.compute,
    )
    busy = busy + overlapped(work["experts_read"] / read, work["experts_flops"] / experts)
    busy = busy + overlapped(
        work["cache_read"] / c.cache_bandwidth, work["cache_flops"] / c.cache_compute
    )
    busy = busy + work["pairs_flops"] / c.attention + work["activations"] / c.activations
    moved = work["traffic"] / c.link + c.collective_s * work["collectives"] + c.hop_s * work["hops"]
    return np.asarray(busy + moved + fixed_s(work, loop, c))


@dataclass(frozen=True, slots=True, eq=False)
class Steady:
    """Arrays over deployments: seconds, and output tokens per second of the deployment."""

    ttft_s: FloatArray
    tbt_s: FloatArray
    tokens_per_s: FloatArray
    decode_s: FloatArray  # an iteration without prompts
    prompt_s: FloatArray  # one's own prompt alone


def steady_state(loop: Loop, c: Calibration) -> Steady:
    """TTFT and TBT in the closed loop."""
    decode = iteration_s(loop.decode, loop, c, prefill=False)
    decode = decode * np.where(loop.split, c.split_decode, 1.0)
    prompt = iteration_s(loop.prefill, loop, c, prefill=True)
    # A prompt among others shares launches and host time with the iteration it rides on.
    fixed = fixed_s(loop.prefill, loop, c)
    marginal = np.maximum(prompt - c.shared * fixed, 0.1 * prompt) / loop.prefill_ranks
    mix = np.choose(loop.engine, [c.of("mix", e) for e in ENGINES])
    tbt = decode + np.where(loop.split, 0.0, mix * loop.batch / loop.osl * marginal)
    queued = np.where(loop.split, loop.users / loop.prefill_workers, loop.batch)
    start = np.choose(loop.engine, [c.of("start", e) for e in ENGINES])
    order = np.choose(loop.engine, [c.of("order", e) for e in ENGINES])
    ttft = (
        start * np.where(loop.split, c.split_start, 1.0)
        + prompt
        + np.where(loop.split, 0.0, decode)
        + order
        * np.where(loop.split, c.split_order, 1.0)
        * (np.maximum(queued, 1.0) - 1.0)
        / 2.0
        * marginal
    )
    # Users beyond what the batch can hold wait for a place.
    held = np.minimum(loop.users, loop.batch * loop.decode_workers)
    stay = ttft + (loop.osl - 1.0) * tbt
    wait = stay * (loop.users / held - 1.0)
    return Steady(ttft + wait, tbt, loop.osl * held / stay, decode, prompt)
