"""Check operator profiles against measurements that they have not seen.

``operator_tpot_median_error`` covers Llama-3.1-8B and Qwen3-32B on H100 at TP 1 to 8, bf16 and fp8.
Profiles use ``aic_*`` kernels of that GPU only. They are compared with the TPOT of served
deployments (``silicon_measured``, co-located). Nothing is fitted to those rows.

The served loop is reduced to its steady state: ``concurrency`` sequences, at most those that fit in
memory. A new sequence replaces each that ends, so each sequence sees the prompt of every other once
over its output. TensorRT-LLM and vLLM compute prompts in the same iterations as the decodes. SGLang
uses separate iterations (its ``--enable-mixed-chunk`` is off by default). Host overhead is zero,
since all three schedule ahead while the GPU works.

The other checks use layer timings of LLMServingSim v1 and vidur. Tables use the sizes at
alternate places, and the sizes between them are predicted.
"""

import sys
from functools import cache
from pathlib import Path

import numpy as np
import polars as pl

from planner.inputs.catalogue import hardware
from planner.inputs.catalogue.estimate_calibration import efficiencies
from planner.inputs.profiles.kernel_files import KernelFile, read_frame, read_kernels
from planner.inputs.profiles.kernel_files.layers import layer_rows
from simulation.performance.efficiency import Efficiencies
from simulation.performance.kernel_tables import KernelRows, Kernels, kernels
from simulation.performance.memory import largest_batch
from simulation.performance.profile import Profile, check, iteration_s
from simulation.performance.roofline import operator_profile, roofline_profile
from simulation.performance.specs import Arrangement, EngineSettings, ModelShape

Array = np.ndarray
H100 = "H100-SXM"
AIC = (
    "aic_gemm.parquet",
    "aic_context_attention.parquet",
    "aic_generation_attention.parquet",
    "aic_moe.parquet",
    "aic_nccl.parquet",
    "aic_custom_allreduce.parquet",
)
MODELS = {"meta-llama/Llama-3.1-8B-Instruct": "llama-3.1-8b", "Qwen/Qwen3-32B": "qwen3-32b"}
BUDGET = 8192  # tokens of an iteration; the default of vLLM and TensorRT-LLM on these GPUs
MAX_BATCH, CAPACITY = 256, 1 << 20  # sequences, and tokens of KV cache: neither limits here


@cache
def shapes() -> dict[str, ModelShape]:
    return {name: hardware.shape(name) for name in hardware.models()}


def file(data: Path, name: str) -> KernelFile:
    """Return a file of measured kernels."""
    return read_kernels(data / "profiles" / name, shapes=shapes(), gpus=hardware.gpus())


def aic_kernels(data: Path, gpu: str) -> Kernels:
    """Return the ``aic_*`` kernels of one GPU type."""
    rows = [table for name in AIC for table in file(data, name).by_gpu.get(gpu, [])]
    return kernels(gpu, "aiconfigurator @ 095f58a, vLLM kernels", rows)


def served_tpot_s(profile: Profile, n: int, isl: int, osl: int, mixed: bool) -> float:
    """Return the mean seconds per output token with ``n`` sequences in a closed loop, steady state.

    A request spends some time on its prompt and ``osl * tpot`` on decoding. The decoding share of
    its time is also the share of the n sequences that decode at any time. The same share of the
    other prompts falls into its decode phase. ``mixed``: prompts share iterations with decodes.
    """
    context = isl + osl / 2
    chunks = int(np.ceil(isl / BUDGET))
    tokens, pairs = isl / chunks, isl * isl / 2 / chunks
    prompt_alone_s = chunks * float(iteration_s(profile, 0, 0, tokens, pairs))
    decodes = float(n)
    tpot_s = 0.0
    for _ in range(100):  # a fixed-point iteration with half steps
        decode_s = float(iteration_s(profile, decodes, decodes * context, 0, 0))
        both_s = float(iteration_s(profile, decodes, decodes * context, tokens, pairs))
        prompt_s = chunks * (both_s - decode_s) if mixed else prompt_alone_s
        decoding_s = osl * tpot_s
        share = decoding_s / (prompt_alone_s + decode_s / 2 + decoding_s) if tpot_s else 1.0
        next_tpot_s = decode_s + (n - 1) * share * prompt_s / osl
        decodes = max(1.0, n * share)
        if abs(next_tpot_s - tpot_s) < 1e-7 * next_tpot_s:
            break
        tpot_s = (tpot_s + next_tpot_s) / 2 if tpot_s else next_tpot_s
    return next_tpot_s


def tpot_rows(data: Path, factors: Efficiencies | None = None) -> pl.DataFrame:
    """Return served deployments with the TPOT (ms) that operator and roofline profiles predict.

    Without ``factors``, the catalogue's efficiency factors are used.
    """
    factors = factors or efficiencies()
    path = data / "profiles/silicon_measured.csv.gz"
    rows = pl.read_csv(path, infer_schema_length=None).filter(
        (pl.col("system") == "h100_sxm")
        & (pl.col("mode") == "agg")
        & pl.col("model_path").is_in(list(MODELS))
        & pl.col("concurrency").is_not_null()
        & (pl.col("precision").is_null() | pl.col("precision").is_in(["bf16", "fp8"]))
    )
    gpu, measured = hardware.gpu(H100), aic_kernels(data, H100)
    profiles: dict[tuple[str, Arrangement], tuple[Profile, Profile]] = {}
    predicted = []
    for row in rows.iter_rows(named=True):
        shape = shapes()[MODELS[row["model_path"]]]
        where = Arrangement(tp=int(row["tp_size"]), weights=row["precision"] or "bf16")
        isl, osl = row["isl"], row["osl"]
        key = (shape.name, where)
        if key not in profiles:
            engine = EngineSettings(MAX_BATCH, BUDGET, CAPACITY)
            profiles[key] = (
                operator_profile(shape, gpu, where, measured, factors, engine),
                roofline_profile(shape, gpu, where, factors, engine),
            )  # fmt: skip
        n = min(row["concurrency"], max(1, largest_batch(shape, gpu, where, isl + osl)))
        mixed = row["backend"] != "sglang"
        predicted.append([1e3 * served_tpot_s(p, n, isl, osl, mixed) for p in profiles[key]])
    latencies = pl.DataFrame(predicted, schema=["operator_ms", "roofline_ms"], orient="row")
    return pl.concat([rows, latencies], how="horizontal")


def predict_left_out_sizes(rows: list[KernelRows]) -> tuple[Array, Array]:
    """Return measured and predicted seconds of every second size.

    The predictions come from tables of the other sizes.
    """
    train, test = [], []
    for table in rows:
        is_left_out = _left_out_sizes(table)
        train.append(_select(table, ~is_left_out))
        test.append(_select(table, is_left_out))
    tables = kernels("", "", train)
    measured, predicted = [], []
    for table in test:
        seconds = _predict(tables, table)
        if seconds is not None:
            measured.append(table.seconds)
            predicted.append(seconds)
    return np.concatenate(measured), np.concatenate(predicted)


def _sizes(rows: KernelRows) -> Array:
    """Return the number of tokens of each row."""
    return rows.columns["tokens" if rows.op == "experts" else "m"]


def _left_out_sizes(rows: KernelRows) -> Array:
    """Return a mask of the rows whose size is the second, fourth, ... of the measured sizes."""
    sizes = _sizes(rows)
    mask: Array = np.searchsorted(np.unique(sizes), sizes) % 2 == 1
    return mask


def _select(rows: KernelRows, mask: Array) -> KernelRows:
    """Return the rows where ``mask`` is True."""
    columns = {name: values[mask] for name, values in rows.columns.items()}
    return KernelRows(rows.op, rows.precision, columns, rows.seconds[mask])


def _predict(tables: Kernels, rows: KernelRows) -> Array | None:
    """Return seconds of ``rows``, all of one shape, by ``tables``; None: no prediction."""
    c = rows.columns
    if rows.seconds.size == 0:
        return None
    if rows.op == "gemm":
        read = tables.gemm[rows.precision].at(c["m"], int(c["n"][0]), int(c["k"][0]))
        return None if read is None else read[0]
    if rows.op == "experts":
        names = ("hidden", "intermediate", "experts", "top_k", "moe_tp", "moe_ep")
        key = (rows.precision, *(int(c[name][0]) for name in names))
        return tables.experts[key].at(c["tokens"])  # type: ignore[index]
    return tables.elementwise[(int(c["k"][0]), int(c["n"][0]))].at(c["m"])


def attention_held_out(rows: list[KernelRows]) -> tuple[Array, Array]:
    """Return measured and predicted seconds of decodes at batches and contexts left out in turn."""
    measured, predicted = [], []
    for row in rows:
        if row.op != "attention_decode":
            continue
        c = row.columns
        batch_rank, context_rank = (
            np.searchsorted(np.unique(c[name]), c[name]) for name in ("batch", "context")
        )
        for diagonal in (1, 3):  # of four, so that neighbours on both sides remain
            left_out = (batch_rank + context_rank) % 4 == diagonal
            table = kernels("", "", [_select(row, ~left_out)]).decode
            batch, context = c["batch"][left_out], c["context"][left_out]
            seconds, inside = next(iter(table.values())).at(batch, context)
            measured.append(row.seconds[left_out][inside])
            predicted.append(seconds[inside])
    return np.concatenate(measured), np.concatenate(predicted)


def iteration_error(data: Path) -> float:
    """Return the median error of the total time of all layers at the sizes left out.

    It covers Llama-3.1-8B, Qwen3-32B and Qwen3-30B-A3B where LLMServingSim measured them, without
    attention.
    """
    frame = read_frame(data / "profiles/llmservingsim_v1_layers.csv.gz")
    keys = frame.data.select("hardware", "model", "tp").unique(maintain_order=True)
    errors = []
    for hardware_name, model, tp in keys.iter_rows():
        chosen = frame.select(
            (pl.col("hardware") == hardware_name)
            & (pl.col("model") == model)
            & (pl.col("tp") == tp)
            & (pl.col("kind") != "per_sequences")
        )
        totals: dict[float, tuple[float, float]] = {}
        for _, row in layer_rows(chosen, shapes()):
            sizes = _sizes(row)[_left_out_sizes(row)]
            for size, measured, predicted in zip(
                sizes, *predict_left_out_sizes([row]), strict=True
            ):
                before = totals.get(size, (0.0, 0.0))
                totals[size] = (before[0] + measured, before[1] + predicted)
        measured_s, predicted_s = np.array(list(totals.values())).T
        relative_errors = predicted_s / measured_s - 1
        median = np.median(np.abs(relative_errors))
        print(f"{model} on {tp} x {hardware_name}: layers {median:.3f}", file=sys.stderr)
        errors.append(relative_errors)
    return float(np.median(np.abs(np.concatenate(errors))))


def figures(data: Path) -> dict[str, float]:
    """Return errors as fractions; print them by engine, precision and TP to stderr."""
    rows = tpot_rows(data).with_columns(
        operator=pl.col("operator_ms") / pl.col("silicon_tpot_ms") - 1,
        roofline=pl.col("roofline_ms") / pl.col("silicon_tpot_ms") - 1,
        precision=pl.col("precision").fill_null("bf16"),
    )
    groups = rows.group_by("model_path", "backend", "precision", "tp_size").agg(
        pl.len().alias("rows"),
        pl.col("operator").abs().median().alias("operator_error"),
        pl.col("operator").median().alias("operator_bias"),
        pl.col("roofline").abs().median().alias("roofline_error"),
    )
    with pl.Config(tbl_rows=40, tbl_hide_dataframe_shape=True, fmt_str_lengths=40):
        print(groups.sort("model_path", "backend", "precision", "tp_size"), file=sys.stderr)
    result = {
        "operator_tpot_median_error": _median(rows["operator"]),
        "roofline_tpot_median_error": _median(rows["roofline"]),
    }
    for precision in ("bf16", "fp8"):
        part = rows.filter(pl.col("precision") == precision)
        result[f"operator_tpot_median_error_{precision}"] = _median(part["operator"])
    layers = file(data, "llmservingsim_v1_layers.csv.gz")
    attention = file(data, "llmservingsim_v1_attention.parquet")
    vidur = file(data, "vidur_mlp_ops.parquet")
    result["operator_iteration_median_error"] = iteration_error(data)
    for name, source in (("operator_layers", layers), ("vidur_layers", vidur)):
        pairs = [predict_left_out_sizes(tables) for tables in source.by_gpu.values()]
        result |= _errors(name, pairs)
    result |= _errors(
        "operator_attention", [attention_held_out(v) for v in attention.by_gpu.values()]
    )
    return result


def _median(errors: pl.Series) -> float:
    """Return the median size of the errors."""
    return float(np.median(np.abs(errors.to_numpy())))


def _errors(name: str, pairs: list[tuple[Array, Array]]) -> dict[str, float]:
    """Return the errors of pairs of measured and predicted seconds as figures; print them too."""
    measured, predicted = (np.concatenate(side) for side in zip(*pairs, strict=True))
    errors = check(name, "sizes left out", measured, predicted)
    print(
        f"{name}: {errors.rows} calls left out, MAPE {errors.mape:.3f}, bias {errors.bias:+.3f}",
        file=sys.stderr,
    )
    return {f"{name}_median_error": errors.median, f"{name}_mape": errors.mape}
