"""Read the measured rows behind the built-in linear profiles, by arrangement."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl

from planner.inputs.ingest.benchmarks import read_benchmarks
from simulation.performance.rows import BenchmarkRows, benchmark_rows

SPLITWISE = "splitwise-sim data/perf_model.csv @ 8f99e7d (MIT)"
SAGESERVE = "SageServe data/Llama-3.x-tp-N.csv @ 0b95ca2 (MIT)"
SAGESERVE_DECODE = (
    f"{SAGESERVE}, time per token, without the prefill time of other requests in the batch"
)
SILICON = "aiconfigurator systems/silicon_sample.csv @ 095f58a (Apache-2.0), TensorRT-LLM"
MLENERGY = "ML.ENERGY leaderboard @ 0cd52da, H100, vLLM, median TPOT"

Key = tuple[str, str, int]  # model, GPU type, GPUs of one instance


@dataclass(frozen=True)
class MeasuredRows:
    """Rows of one arrangement, and the source of each half of its profile."""

    key: Key
    rows: BenchmarkRows
    decode: str
    prefill: str


def splitwise(data: Path) -> Iterator[MeasuredRows]:
    """Return Llama-2-70B and Bloom-176B without TP 2, where the KV cache has little memory."""
    models = {"llama2-70b": "llama-2-70b", "bloom-176b": "bloom-176b"}
    gpus = {"a100-80gb": "A100-80GB", "h100-80gb": "H100-SXM"}  # not the power-capped one
    benchmark = read_benchmarks(data / "profiles/splitwise_perf_model.csv").rows
    for (model, gpu, tp), rows in benchmark.arrangements():
        if gpu in gpus and tp >= 4:
            yield MeasuredRows((models[model], gpus[gpu], tp), rows, SPLITWISE, SPLITWISE)


def sageserve(data: Path) -> Iterator[MeasuredRows]:
    """Return Llama 3 on two A100, minus the time that the prompts of other sequences take.

    Runs on four GPUs are left out: a prompt takes longer there than on two (1,024 tokens of 8B: 78
    and 54 ms). The GPUs seem to be A100s linked in pairs, which is not the catalogue's type.
    Vidur's all-reduce of the same 8 MB takes 0.59 ms on four such GPUs, and 0.07 ms on two.
    """
    models = {"Llama-3.1-8B": "llama-3.1-8b", "Llama-3.2-3B": "llama-3.2-3b"}
    benchmark = read_benchmarks(data / "profiles/sageserve_llama3_perf.csv").rows
    for (raw, _, tp), rows in benchmark.arrangements():
        if tp == 2:
            key = (models[raw], "A100-80GB", tp)
            yield MeasuredRows(key, _separate_prompts(rows), SAGESERVE_DECODE, SAGESERVE)


def _separate_prompts(rows: BenchmarkRows) -> BenchmarkRows:
    """Take the time of other prompts out of the measured decode times.

    The engine computes prompts one by one while the first sequences already decode. In a batch of
    8B, each further sequence of 512 tokens makes a token of the first one 31 ms / 128 longer. The
    prompt of such a sequence takes 28 ms alone, so the measured decode phase includes the prompts
    of the others. The time to the first token is that of the first sequences: 48 ms in batches of 2
    and of 32.
    """
    alone = rows.batch == 1
    prompt_s = {isl: float(np.median(rows.prefill_s[alone & (rows.isl == isl)]))
                for isl in np.unique(rows.isl[alone])}  # fmt: skip
    others_s = (rows.batch - 1) * np.array([prompt_s[isl] for isl in rows.isl])
    return replace(
        rows,
        prefill_s=np.where(alone, rows.prefill_s, np.nan),
        tbt_s=rows.tbt_s - others_s / rows.osl,
        e2e_s=np.where(alone, rows.e2e_s, np.nan),
    )


def silicon(data: Path) -> Iterator[MeasuredRows]:
    """Return Llama-3.1-8B on H100, served at fixed concurrencies."""
    rows = pl.read_csv(data / "profiles/silicon_measured.csv.gz").filter(
        model_path="meta-llama/Llama-3.1-8B-Instruct", system="h100_sxm"
    )
    for tp in (1, 2, 4):
        part = rows.filter(tp_size=float(tp))
        numbers = {
            "tp": part["tp_size"].to_numpy(),
            "isl": part["isl"].to_numpy(),
            "osl": part["osl"].to_numpy(),
            "concurrency": part["concurrency"].to_numpy(),
            "tbt_s": part["silicon_tpot_ms"].to_numpy() / 1e3,
        }
        texts = {"model": ["llama-3.1-8b"] * part.height, "gpu": ["H100-SXM"] * part.height}
        decode = f"{SILICON}, TPOT of mixed iterations"
        prefill = (
            f"{SILICON}, delta from TPOT of mixed iterations, gamma taken equal to alpha; without "
            "what the engine takes before a request's first iteration, about 0.1 s of TTFT there"
        )
        yield MeasuredRows(
            ("llama-3.1-8b", "H100-SXM", tp), benchmark_rows(texts, numbers), decode, prefill
        )


def mlenergy(data: Path, max_batch: int) -> BenchmarkRows:
    """Return the TBT of Llama-3.1-70B on 4 x H100 by the actual batch, up to ``max_batch``."""
    rows = pl.read_csv(data / "power/mlenergy_llm_inference.csv").filter(
        pl.col("model_id") == "meta-llama/Llama-3.1-70B-Instruct",
        pl.col("gpu_model") == "H100",
        pl.col("tensor_parallel") == 4,
        pl.col("avg_batch_size") <= max_batch,
    )
    return benchmark_rows(
        {"model": ["llama-3.1-70b"] * rows.height, "gpu": ["H100-SXM"] * rows.height},
        {
            "tp": np.full(rows.height, 4.0),
            "batch": rows["avg_batch_size"].to_numpy(),
            "tbt_s": rows["median_itl_ms"].to_numpy() / 1e3,
        },
    )
