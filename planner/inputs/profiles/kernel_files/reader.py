"""Read files of measured kernels: detect their format and return rows by GPU type.

``read_kernels`` reads these formats:

    own               the output of tools/catalogue/measure_gpu.py, see ``own``
    aic_*             aiconfigurator: gemm, attention (context or generation), moe, nccl,
                      custom_allreduce
    vidur_mlp_ops, vidur_network
    llmservingsim_v0_layers, llmservingsim_v0_attention,
    llmservingsim_v1_layers, llmservingsim_v1_attention

The columns identify the format. A call that is faster than the published peak of its GPU is set
aside and counted. If more than 1 in 50 calls of a table are, the whole table is set aside, because
the rest was measured in the same way.
"""

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import polars as pl

from planner.errors import IngestError
from planner.inputs.ingest.options import IngestOptions
from planner.inputs.ingest.tables import LIBRARY_ERRORS, opened_table
from planner.inputs.profiles.kernel_files import aic, layers, native_format
from planner.inputs.profiles.kernel_files.frame import Frame, Rows, Shapes
from simulation.arrays import FloatArray
from simulation.errors import SimulationError
from simulation.performance.efficiency import COMPUTED_IN
from simulation.performance.kernel_tables import KernelRows
from simulation.performance.specs import GpuSpec

_MEDIAN = re.compile(r"^time_stats\.(\w+)\.median$")
_NAMES = {"num_tensor_parallel_workers": "tp", "latency": "latency_ms", "size": "size_bytes"}
_DEVICES = {  # words of a driver's name to the system
    "A100": "a100_sxm", "H100": "h100_sxm", "H200": "h200_sxm", "GB200": "gb200", "GB300": "gb300",
    "B200": "b200_sxm", "B300": "b300_sxm", "L40S": "l40s",
}  # fmt: skip
_NODES = {"A100-80GB": "a100_dgx", "H100-SXM": "h100_dgx"}  # nodes of Vidur by GPU
MOST_IMPOSSIBLE = 0.02  # share of a table's rows above which the whole table is set aside
LIMIT_BYTES = 1 << 30
# Errors of computing with a cell that is no number or an impossible size.
OF_CELLS = (TypeError, ValueError, LookupError, ArithmeticError)
Reader = Callable[[Frame, Shapes], Rows]
# Columns that identify each format. The first format with all its columns present wins.
FORMATS: Mapping[str, tuple[tuple[str, ...], Reader]] = {
    "own": (("op", "latency_us", "gpu"), native_format.read),
    "aic_gemm": (("system", "gemm_dtype", "m", "n", "k", "latency_ms"), aic.gemm),
    "aic_attention": (("system", "isl", "num_key_value_heads", "latency_ms"), aic.attention),
    "aic_moe": (("system", "moe_dtype", "num_tokens", "topk", "latency_ms"), aic.experts),
    "aic_nccl": (("system", "nccl_dtype", "op_name", "message_size"), aic.nccl),
    "aic_custom_allreduce": (("system", "allreduce_dtype", "message_size"), aic.custom_allreduce),
    "vidur_mlp_ops": (("gpu", "model", "num_tokens", "tp", "attn_pre_proj_ms"), layers.vidur_mlp),
    "vidur_network": (("node_sku", "collective", "size_bytes"), layers.vidur_network),
    "llmservingsim_v0_layers": (
        ("hardware", "model", "layer", "input_tokens", "latency_ns"),
        layers.layer_rows,
    ),
    "llmservingsim_v0_attention": (
        ("hardware", "model", "kv_cache_size", "attn_decode_ms"),
        layers.v0_attention,
    ),
    "llmservingsim_v1_layers": (("hardware", "model", "layer", "n", "time_us"), layers.layer_rows),
    "llmservingsim_v1_attention": (
        ("hardware", "model", "prefill_chunk", "kv_decode", "time_us"),
        layers.v1_attention,
    ),
}


@dataclass(frozen=True, slots=True)
class KernelFile:
    """The content of a file of kernels."""

    name: str
    format: str
    rows: int
    by_gpu: Mapping[str, list[KernelRows]] = field(repr=False)
    set_aside: Mapping[str, int]  # rows by reason
    # Interference measurements, only in our own format.
    sharing: tuple[native_format.Sharing, ...] = ()


def read_kernels(
    path: Path | str,
    *,
    shapes: Shapes,
    gpus: Mapping[str, GpuSpec],
    name: str = "",
    format: str = "auto",
    gpu: str = "",
    max_bytes: int = LIMIT_BYTES,
) -> KernelFile:
    """Return the measured kernels in a file.

    ``shapes`` are models by name, for formats that name a model instead of layer sizes. ``gpus``
    are the GPU types whose published peaks rows are checked against. ``gpu`` is the type for a
    file that names none. The file may have ``max_bytes``, and four times as many unpacked.

    Raises IngestError with file, line or column, and the remedy.
    """
    frame = read_frame(Path(path), name, max_bytes)
    frame = replace(frame, data=with_known_names(frame.data, gpu, frame.name))
    kind = format if format != "auto" else detect(frame.data.columns, frame.name)
    if kind not in FORMATS:
        raise IngestError(
            f"There is no kernel format {kind!r}. Choose one of auto, {', '.join(FORMATS)}."
        )
    needed, _ = FORMATS[kind]
    for column in needed:
        if column not in frame.data.columns:
            raise IngestError(f"{frame.name} lacks the column {column} of the format {kind}.")
    by_gpu = _rows_by_gpu(frame, kind, shapes)
    if not any(by_gpu.values()):
        raise IngestError(f"{frame.name} holds no measured kernel; it has a header only.")
    set_aside: Counter[str] = Counter(frame.set_aside)
    for type_name in sorted(by_gpu.keys() & gpus.keys()):
        by_gpu[type_name] = plausible(by_gpu[type_name], gpus[type_name], set_aside)
    shared = native_format.sharing(frame) if kind == "own" else ()
    return KernelFile(frame.name, kind, frame.data.height, by_gpu, set_aside, shared)


def _rows_by_gpu(frame: Frame, kind: str, shapes: Shapes) -> dict[str, list[KernelRows]]:
    """Return the rows of a file in the format ``kind`` by GPU type.

    Raise IngestError for a cell that the format does not allow.
    """
    _, read_rows = FORMATS[kind]
    by_gpu: dict[str, list[KernelRows]] = {}
    try:
        for type_name, rows in read_rows(frame, shapes):
            by_gpu.setdefault(type_name, []).append(rows)
    except IngestError:
        raise
    except (SimulationError, *LIBRARY_ERRORS, *OF_CELLS) as problem:
        cause = str(problem).split("\n", 1)[0].strip()[:200]
        raise IngestError(
            f"{frame.name} is not as the format {kind} has it ({cause}). A cell that names a GPU, "
            "a model or a size is empty or no number. Correct or remove its row."
        ) from None
    return by_gpu


def kernel_format(path: Path, name: str = "", max_bytes: int = LIMIT_BYTES) -> str:
    """Return the format of a file by its columns, without reading all of it; raise IngestError."""
    if is_json(path, name):
        return detect(read_frame(path, name, max_bytes).data.columns, name)
    with opened_table(path, _options(name, max_bytes)) as table:
        return detect(with_known_names(table.probe, "any", name).columns, name)


def detect(columns: Sequence[str], name: str) -> str:
    """Return the kernel format whose columns a file has; raise IngestError if none matches."""
    for format, (needed, _) in FORMATS.items():
        if set(columns).issuperset(needed):
            return format
    raise IngestError(
        f"{name} is not in a known kernel format. It has the columns "
        f"{', '.join(columns[:12])}. See docs for the columns of Headroom's format."
    )


def read_frame(path: Path, name: str = "", max_bytes: int = LIMIT_BYTES) -> Frame:
    """Return all rows of ``path`` up to ``max_bytes``; raise IngestError if it is no table."""
    if is_json(path, name):
        return native_format.json_frame(path, name or path.name, max_bytes)
    name = name or path.name
    with opened_table(path, _options(name, max_bytes)) as table:
        batches = list(table.batches(table.columns))
    for batch in batches:
        if batch.faults:
            line = int(batch.faults[0].lines[0])
            raise IngestError(
                f"{name}, {table.unit} {line}: the row does not fit the columns. Correct it."
            )
    frames = [batch.frame for batch in batches]
    data = pl.concat(frames, how="vertical_relaxed") if frames else pl.DataFrame()
    lines = np.concatenate([batch.lines for batch in batches]) if batches else np.zeros(0, np.int64)
    for column in data.select(pl.col(pl.String)):
        text = column.replace("", None)
        numbers = text.cast(pl.Float64, strict=False)
        if numbers.null_count() == text.null_count():  # no text that is not a number
            data = data.with_columns(numbers)
    return Frame(name, table.unit, data, lines)


def is_json(path: Path, name: str) -> bool:
    return (name or path.name).endswith(".json")


def _options(name: str, max_bytes: int) -> IngestOptions:
    return IngestOptions(name=name, max_bytes=max_bytes, max_expanded_bytes=4 * max_bytes)


def plausible(rows: list[KernelRows], gpu: GpuSpec, set_aside: Counter[str]) -> list[KernelRows]:
    """Return the tables of ``rows`` without calls faster than the peak FLOP/s of ``gpu`` allows.

    A table with a larger share of such calls than MOST_IMPOSSIBLE is removed whole. Removed calls
    are counted in ``set_aside``. Memory bandwidth is not checked, because a kernel that is measured
    repeatedly finds its data in the cache.
    """
    plausible_rows = []
    for table in rows:
        least_s = _seconds_at_peak(table, gpu)
        if least_s is None:
            plausible_rows.append(table)
            continue
        too_fast, label = table.seconds < least_s, f"{table.op} {table.precision} on {gpu.name}"
        share = too_fast.mean()
        if share > MOST_IMPOSSIBLE:
            reason = "rows are faster than the published peak, so the table is not used"
            set_aside[f"{label}: {share:.0%} of the {reason}"] += too_fast.size
            continue
        if share:
            set_aside[f"{label}: faster than the peak"] += int(too_fast.sum())
        columns = {name: values[~too_fast] for name, values in table.columns.items()}
        seconds = table.seconds[~too_fast]
        plausible_rows.append(KernelRows(table.op, table.precision, columns, seconds))
    return plausible_rows


def _seconds_at_peak(rows: KernelRows, gpu: GpuSpec) -> FloatArray | None:
    """Return the least seconds of each call, at the GPU's peak FLOP/s.

    None for operators other than matrix products and prefill attention, or without a known peak.
    """
    sizes = rows.columns
    if rows.op == "gemm":
        flops = 2.0 * sizes["m"] * sizes["n"] * sizes["k"]
        precision = rows.precision.removesuffix("_block")
    elif rows.op == "attention_prefill":
        keys = sizes["context"] + sizes["isl"] / 2.0  # of a mean prompt token, causal
        # Two matrix products (with keys, and with values) of 2 FLOPs per number and key.
        flops = 4.0 * sizes["batch"] * sizes["isl"] * keys * sizes["heads"] * sizes["head_dim"]
        precision = "bf16"
    else:
        return None
    for name in COMPUTED_IN.get(precision, ("bf16",)):
        if gpu.peak_flops.get(name):
            return flops / gpu.peak_flops[name]
    return None


def with_known_names(data: pl.DataFrame, gpu: str, name: str) -> pl.DataFrame:
    """Return a table with the column names that the readers of formats know.

    Vidur writes statistics as ``time_stats.OPERATOR.median``, and names GPU and model in the path
    of the file alone. Newer files of aiconfigurator name the device as its driver does. ``gpu`` is
    the type that the caller gave, or "". ``name`` is the file's.
    """
    columns = set(data.columns)
    operator_of_median = {}
    for column in data.columns:
        if match := _MEDIAN.match(column):
            operator_of_median[column] = match[1]
    renamed = {old: new for old, new in _NAMES.items() if old in columns and new not in columns}
    if operator_of_median == {"time_stats.all_reduce.median": "all_reduce"}:
        data = data.rename({"time_stats.all_reduce.median": "median_ms"} | renamed)
        return _with_gpu(data, "node_sku", _NODES.get(gpu, gpu), name)
    if operator_of_median:
        times = {column: f"{operator}_ms" for column, operator in operator_of_median.items()}
        data = _with_gpu(data.rename(times | renamed), "gpu", gpu, name)
        return data if "model" in data.columns else data.with_columns(model=pl.lit("unnamed"))
    if "device" in columns and "system" not in columns:
        device = pl.col("device")  # such as "NVIDIA H100 80GB HBM3"; others stay
        known = device.str.extract(rf"(?:^|[\W_])({'|'.join(_DEVICES)})(?:[\W_]|$)")
        system = known.replace_strict(_DEVICES, default=device)
        data = data.rename(renamed).with_columns(system=system)
        if {"backend", "kernel_source"} <= set(data.columns):
            data = data.with_columns(kernel_source=pl.col("backend"))
    return data


def _with_gpu(data: pl.DataFrame, column: str, gpu: str, name: str) -> pl.DataFrame:
    """Return the table with a GPU column, by default ``gpu``; raise IngestError without both."""
    if column in data.columns:
        return data
    if not gpu:
        raise IngestError(f"{name} names no GPU in its columns. Name the measured GPU.")
    return data.with_columns(pl.lit(gpu).alias(column))
