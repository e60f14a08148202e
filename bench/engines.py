"""Four runs of vLLM at and past saturation, replayed on profiles of the same machines' kernels.

Runs and kernels are LLMServingSim's (vLLM 0.19, bf16, chunks of 2,048 tokens); nothing is fitted to
the runs. Requests enter as they did the engine's queue. KV memory is what the memory model leaves.
Neither the links of the two runs on two GPUs nor their collectives were measured, so these rest on
efficiency factors: reported, not counted.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl

from bench import reference
from planner.inputs.catalogue import hardware
from planner.inputs.catalogue.estimate_calibration import efficiencies, estimate_fit
from planner.inputs.profiles.kernel_files import read_kernels
from simulation.arrays import FloatArray
from simulation.engine.run import simulate
from simulation.performance.compiled_graph import GraphProfile
from simulation.performance.kernel_tables import Kernels, kernels
from simulation.performance.memory import capacity_tokens
from simulation.performance.roofline import operator_profile
from simulation.performance.specs import Arrangement, EngineSettings
from simulation.policies.static import Static

TOKENS = 2048  # max_num_batched_tokens
CONTEXT = 1024  # at which KV memory is counted; without windows it does not matter
FILES = ("llmservingsim_v1_layers.csv.gz", "llmservingsim_v1_attention.parquet")


@dataclass(frozen=True, slots=True)
class Run:
    """One served deployment; ``counted``: nothing of it had to be assumed."""

    hardware: str
    model: str  # as the rows name it
    shape: str  # as the catalogue does
    gpu: str
    arrangement: Arrangement
    max_seqs: int
    counted: bool


RUNS = (
    Run("RTX4090", "Llama-3.1-8B", "llama-3.1-8b", "RTX-4090", Arrangement(), 256, True),
    Run("RTXPRO6000", "Llama-3.1-8B", "llama-3.1-8b", "RTX-PRO-6000", Arrangement(), 128, True),
    Run("RTXPRO6000", "Qwen3-32B", "qwen3-32b", "RTX-PRO-6000", Arrangement(tp=2), 128, False),
    Run(
        "RTXPRO6000",
        "Qwen3-30B-A3B-Instruct-2507",
        "qwen3-30b-a3b",
        "RTX-PRO-6000",
        Arrangement(attention_dp=2, moe_ep=2),
        128,
        False,
    ),
)


def measured_kernels(gpu: str) -> Kernels:
    """Return the kernels measured on a GPU type."""
    shapes = {name: hardware.shape(name) for name in hardware.models()}
    rows = []
    for name in FILES:
        path = reference.shared_file(f"data/profiles/{name}")
        rows += read_kernels(path, shapes=shapes, gpus=hardware.gpus()).by_gpu.get(gpu, [])
    return kernels(gpu, "LLMServingSim @ 5daddb2", rows)


def profile(run: Run) -> GraphProfile:
    """Return the profile of a run: the sum of its kernels, and the overhead of an iteration.

    The overhead is that of served deployments on other GPUs. Each copy of attention has its own
    batch and budget.
    """
    shape, gpu = hardware.shape(run.shape), hardware.gpu(run.gpu)
    copies = run.arrangement.attention_dp
    return operator_profile(
        shape,
        gpu,
        run.arrangement,
        measured_kernels(run.gpu),
        efficiencies(),
        EngineSettings(
            run.max_seqs * copies,
            TOKENS * copies,
            capacity_tokens(shape, gpu, run.arrangement, CONTEXT, TOKENS),
            estimate_fit().calibration.iteration_s,
        ),
    )


def replay(run: Run) -> list[dict[str, Any]]:
    """Return mean and p95 of TTFT, TPOT and E2E, and output throughput: simulated and of vLLM."""
    rows = pl.read_csv(
        reference.shared_file("data/profiles/llmservingsim_vllm_measured_requests.csv")
    ).filter((pl.col("hardware") == run.hardware) & (pl.col("model") == run.model))
    rows = rows.sort("queued_s")
    columns = (rows[name].to_numpy() for name in ("queued_s", "input_toks", "output_toks"))
    fleet = reference.fleet(reference.pool(1, profile(run)))
    result = simulate(reference.trace(*columns), fleet, Static([1]))
    log = result.requests
    compared = []
    for name, ours in (("ttft_ms", log.ttft_s), ("tpot_ms", log.tbt_s), ("e2e_ms", log.e2e_s)):
        both = ours * 1000.0, rows[name].to_numpy()
        for label, figure in (("mean", _mean), ("p95", _p95)):
            compared.append(_row(run, f"{name} {label}", *(figure(side) for side in both)))
    tokens = int(rows["output_toks"].sum())
    ends = log.last_token_s, rows["last_token_s"].to_numpy()
    compared.append(_row(run, "throughput", *(tokens / float(np.nanmax(end)) for end in ends)))
    return compared


def _mean(values: FloatArray) -> float:
    return float(np.nanmean(values))


def _p95(values: FloatArray) -> float:
    return float(np.nanquantile(values, 0.95))


def _row(run: Run, figure: str, ours: float, theirs: float) -> dict[str, Any]:
    return {
        "run": f"{run.model} on {run.arrangement.gpus} x {run.hardware}",
        "counted": run.counted,
        "figure": figure,
        "ours": ours,
        "vllm": theirs,
        "error": abs(ours / theirs - 1.0),
    }
