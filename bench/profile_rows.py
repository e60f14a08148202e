"""Measured benchmark rows, and the linear profiles (methods.md C1) fitted to them.

Plain least squares: ITL = alpha + beta b over the sequences b of a decode batch, and prefill time
= gamma + delta p over the prompt tokens p of an iteration, up to the 2,048 tokens that an iteration
takes. What lies beyond the rows fitted is not in the error; its bias is stated apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import polars as pl

CHUNK = 2048  # prefill tokens of one iteration; also the upper end of the prefill fits
CONTEXT = 4096  # tokens of prompt and of output in the decode fits; C1 has no context term
SPLITWISE = "splitwise-sim data/perf_model.csv @ 8f99e7d (MIT)"
SAGESERVE = "SageServe data/Llama-3.x-tp-N.csv @ 0b95ca2 (MIT)"
SAGESERVE_PREFILL = "SageServe data/llama-3.1-8B-tp-4-test.csv @ 0b95ca2 (MIT)"
SILICON = "aiconfigurator systems/silicon_sample.csv @ 095f58a (Apache-2.0), TensorRT-LLM"
MLENERGY = "ML.ENERGY leaderboard @ 0cd52da, H100, vLLM, median ITL"

Array = np.ndarray


@dataclass(frozen=True)
class Line:
    """Seconds = base + slope * size, with its error on the rows it was fitted to."""

    base_s: float
    slope_s: float
    kind: str
    source: str
    sizes: Array = field(repr=False)  # regressor of each row fitted, or of the line it comes from
    seconds: Array = field(repr=False, default_factory=lambda: np.zeros(0))  # of each row fitted
    rows: int = 0  # fitted, or checked against where the line was carried over
    r2: float | None = None
    mape: float | None = None
    beyond_bias: float | None = None

    def at(self, sizes: Array) -> Array:
        return self.base_s + self.slope_s * sizes


@dataclass(frozen=True)
class Profile:
    model: str
    gpu: str
    tp: int
    decode: Line
    prefill: Line

    @property
    def kind(self) -> str:
        return self.decode.kind if self.decode.kind == self.prefill.kind else "modelled"


def least_squares(columns: list[Array], seconds: Array) -> tuple[Array, float, float]:
    """Coefficients, R2 and mean absolute relative error."""
    design = np.column_stack(columns)
    coefficients = np.linalg.lstsq(design, seconds, rcond=None)[0]
    predicted = design @ coefficients
    spread = ((seconds - seconds.mean()) ** 2).sum()
    r2 = 1 - ((seconds - predicted) ** 2).sum() / spread
    return coefficients, float(r2), mape(predicted, seconds)


def mape(predicted: Array, measured: Array) -> float:
    return float(np.abs(predicted / measured - 1).mean())


def measured_line(sizes: Array, seconds: Array, source: str) -> Line:
    (base, slope), r2, error = least_squares([np.ones(len(sizes)), sizes], seconds)
    return Line(base, slope, "measured", source, sizes, seconds, len(sizes), r2, error)


def with_beyond(line: Line, predicted: Array, measured: Array) -> Line:
    bias = float((predicted / measured - 1).mean()) if len(measured) else None
    return replace(line, beyond_bias=bias)


def in_chunks(line: Line, prompts: Array) -> Array:
    """Seconds of prompts longer than an iteration takes: full chunks, then the rest."""
    full, rest = np.divmod(prompts, CHUNK)
    return full * line.at(np.array(CHUNK)) + np.where(rest > 0, line.at(rest), 0.0)


def decode_line(batch: Array, seconds: Array, context: Array, source: str) -> Line:
    """``context`` is the larger of prompt and output tokens of each row."""
    near = context <= CONTEXT
    line = measured_line(batch[near], seconds[near], source)
    return with_beyond(line, line.at(batch[~near]), seconds[~near])


def prefill_line(tokens: Array, prompts: Array, seconds: Array, source: str) -> Line:
    """``tokens`` of the iteration, ``prompts`` of one request; beyond: single longer prompts."""
    fits, long = tokens <= CHUNK, (tokens > CHUNK) & (tokens == prompts)
    line = measured_line(tokens[fits], seconds[fits], source)
    return with_beyond(line, in_chunks(line, prompts[long]), seconds[long])


def numbers(frame: pl.DataFrame, *names: str) -> list[Array]:
    return [frame[name].to_numpy().astype(float) for name in names]


def splitwise(data: Path) -> Iterator[Profile]:
    """Llama-2-70B and Bloom-176B; times in ms, ``token_time`` per token. TP 2 is left out: its
    ITL does not follow the batch (R2 below 0.6), since little memory is left for it."""
    rows = pl.read_csv(data / "profiles/splitwise_perf_model.csv")
    names = {"llama2-70b": "llama-2-70b", "bloom-176b": "bloom-176b"}
    gpus = {"a100-80gb": "A100-80GB", "h100-80gb": "H100-SXM"}
    for raw, model in names.items():
        for hardware, gpu in gpus.items():
            for tp in (4, 8) if model == "llama-2-70b" else (8,):
                part = rows.filter(model=raw, hardware=hardware, tensor_parallel=tp)
                prompt, batch, output, first, each = numbers(
                    part, "prompt_size", "batch_size", "token_size", "prompt_time", "token_time"
                )
                decode = decode_line(batch, each / 1e3, np.maximum(prompt, output), SPLITWISE)
                prefill = prefill_line(prompt * batch, prompt, first / 1e3, SPLITWISE)
                yield Profile(model, gpu, tp, decode, prefill)


def sageserve(data: Path) -> Iterator[Profile]:
    """Llama 3 on A100; times in seconds, ``token_time`` of the whole decode phase. Prefill rows of
    batches above 1 are left out: their time does not grow with the batch."""
    rows = pl.read_csv(data / "profiles/sageserve_llama3_perf.csv")
    prefill_rows = pl.read_csv(data / "profiles/sageserve_llama31_8b_tp4_prefill.csv")
    names = {"Llama-3.1-8B": "llama-3.1-8b", "Llama-3.2-3B": "llama-3.2-3b"}
    for raw, model in names.items():
        for tp in (2, 4):
            part = rows.filter(model=raw, tensor_parallel=tp)
            prompt, batch, output, whole = numbers(
                part, "prompt_size", "batch_size", "token_size", "token_time"
            )
            decode = decode_line(batch, whole / output, np.maximum(prompt, output), SAGESERVE)
            if (model, tp) == ("llama-3.1-8b", 4):
                prompt, first = numbers(prefill_rows, "prompt_tokens", "exec_time_s")
                prefill = prefill_line(prompt, prompt, first, SAGESERVE_PREFILL)
            else:
                single = part.filter(batch_size=1)
                prompt, first = numbers(single, "prompt_size", "prompt_time")
                prefill = prefill_line(prompt, prompt, first, SAGESERVE)
            yield Profile(model, "A100-80GB", tp, decode, prefill)


def silicon(data: Path) -> Iterator[Profile]:
    """Llama-3.1-8B on H100 from served deployments at a fixed concurrency b: in steady state every
    iteration decodes b sequences and prefills b isl / osl tokens, so
    TPOT = alpha + beta b + delta b isl / osl. A prefill alone was not seen: gamma = alpha."""
    rows = pl.read_csv(data / "profiles/silicon_measured.csv.gz")
    for tp in (1, 2, 4):
        part = rows.filter(
            model_path="meta-llama/Llama-3.1-8B-Instruct", system="h100_sxm", tp_size=float(tp)
        )
        isl, osl, b, tpot = numbers(part, "isl", "osl", "concurrency", "silicon_tpot_ms")
        tokens = b * isl / osl
        (alpha, beta, delta), r2, error = least_squares([np.ones(len(b)), b, tokens], tpot / 1e3)
        joint = {"rows": len(b), "r2": r2, "mape": error}
        decode = Line(alpha, beta, "measured", f"{SILICON}, TPOT of mixed iterations", b, **joint)
        source = f"{SILICON}, delta from TPOT of mixed iterations, gamma taken equal to alpha"
        prefill = Line(alpha, delta, "modelled", source, tokens, **joint)
        yield Profile("llama-3.1-8b", "H100-SXM", tp, decode, prefill)


def mlenergy(data: Path, max_batch: int) -> Line:
    """ITL of Llama-3.1-70B on 4 x H100 by batch, up to ``max_batch``."""
    rows = pl.read_csv(data / "power/mlenergy_llm_inference.csv").filter(
        model_id="meta-llama/Llama-3.1-70B-Instruct", gpu_model="H100", tensor_parallel=4
    )
    rows = rows.filter(pl.col("avg_batch_size") <= max_batch)
    batch, itl = numbers(rows, "avg_batch_size", "median_itl_ms")
    return measured_line(batch, itl / 1e3, MLENERGY)
