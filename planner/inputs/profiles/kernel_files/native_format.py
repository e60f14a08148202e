"""Read our own format of measured operators, which ``tools/catalogue/measure_gpu.py`` writes.

One row per measurement, as CSV (a header line, then rows) or JSON (a list of objects with the same
names). A field that does not apply to an operator is empty (CSV) or missing (JSON).

    column           meaning, unit
    op               gemm | attention_prefill | attention_decode | norm | activation | rope |
                     experts | all_reduce | all_gather | reduce_scatter | all_to_all
    dtype            of the weights and inputs: bf16, fp8, fp4, int8, int4
    m, n, k          gemm: m rows, k in, n out, on this GPU. norm, activation, rope: m rows, k
                     elements read per row, n elements written per row
    batch            attention: sequences
    isl              attention_prefill: new tokens of each sequence (attention_decode: 1)
    context          attention: tokens of each sequence already in the KV cache
    heads, kv_heads, head_dim    attention: on this GPU
    kv_dtype         attention: of the KV cache; empty: as dtype
    tokens           experts: tokens that all GPUs of the group route, before top_k
    hidden, intermediate, experts, top_k, moe_tp, moe_ep    experts: of the whole model
    gpus             collectives: GPUs that take part
    message_bytes    collectives: the buffer of one GPU (all_gather: after, reduce_scatter: before)
    sm_share         share of the multiprocessors the operator could use, (0, 1]; empty: 1
    concurrent_with  operator that ran side by side on the same GPU, in the form
                     ``op:sm_share``, for example ``gemm:0.5``; empty: alone. A gemm of at most
                     256 rows is ``gemm_memory_bound`` here
    latency_us       median duration of one call, microseconds
    gpu              name of the GPU type, as in the catalogue
    source           what measured it: software and version, in words

Rows with ``sm_share`` below 1 or a ``concurrent_with`` are interference measurements. They are not
part of the profile of a whole GPU. ``sharing`` reads them.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from planner.errors import IngestError
from planner.files.documents import json_value
from planner.inputs.profiles.kernel_files.frame import Frame, Rows, Shapes
from simulation.performance.kernel_tables import KernelRows
from simulation.performance.specs import BYTES
from simulation.provisioning.interference import GEMM_MEMORY_BOUND

MAX_JSON_BYTES = 256 << 20
# Matrix products of up to so many rows wait for memory: peak FLOP/s over bytes/s is 150 to 300.
FEW_ROWS = 256
COLUMNS = (
    "op", "dtype", "m", "n", "k", "batch", "isl", "context", "heads", "kv_heads", "head_dim",
    "kv_dtype", "tokens", "hidden", "intermediate", "experts", "top_k", "moe_tp", "moe_ep", "gpus",
    "message_bytes", "sm_share", "concurrent_with", "latency_us", "gpu", "source",
)  # fmt: skip
NEEDED = {
    "gemm": ("m", "n", "k"),
    "attention_prefill": ("batch", "isl", "context", "heads", "kv_heads", "head_dim"),
    "attention_decode": ("batch", "context", "heads", "kv_heads", "head_dim"),
    **dict.fromkeys(("norm", "activation", "rope"), ("m", "n", "k")),
    "experts": ("tokens", "hidden", "intermediate", "experts", "top_k", "moe_tp", "moe_ep"),
    **dict.fromkeys(
        ("all_reduce", "all_gather", "reduce_scatter", "all_to_all"), ("gpus", "message_bytes")
    ),
}
"""By operator: the columns it must fill besides dtype, latency_us, gpu and source."""


# Columns that do not describe the size of a call.
MEASURED = ("latency_us", "sm_share", "concurrent_with", "source", "spread")


@dataclass(frozen=True, slots=True)
class Sharing:
    """The slowdown of an operator that gets a part of the GPU, or runs at once with another."""

    gpu: str
    op: str  # as in the file, or gemm_memory_bound
    dtype: str
    sm_share: float  # of the multiprocessors, (0, 1]
    concurrent_with: str  # as in the file; "": alone
    slowdown: float  # median over calls of seconds / seconds alone on a whole GPU
    calls: int


def sharing(frame: Frame) -> tuple[Sharing, ...]:
    """Return the median slowdowns of calls on a part of the GPU, or during another operator.

    A slowdown is a call's time over that of calls of the same sizes with the whole GPU to
    themselves. Calls without such a measurement are ignored. Matrix products with few rows are an
    operator of their own, bound by memory. () for a file without interference measurements.
    """
    data = frame.data
    if not {"sm_share", "concurrent_with"} & set(data.columns):
        return ()
    sizes = [name for name in data.columns if name not in MEASURED]
    share, concurrent = _sharing_conditions(data)
    latency_us = pl.col("latency_us").cast(pl.Float64, strict=False)
    rows = data.select(*sizes, share=share, concurrent=concurrent, us=latency_us)
    rows = rows.filter(pl.col("us") > 0, pl.col("share") > 0)
    if "m" in sizes:
        few_rows = pl.col("m").cast(pl.Float64, strict=False) <= FEW_ROWS
        is_memory_bound = (pl.col("op") == "gemm") & few_rows
        named = pl.when(is_memory_bound).then(pl.lit(GEMM_MEMORY_BOUND)).otherwise(pl.col("op"))
        rows = rows.with_columns(op=named)
    has_interference = (pl.col("share") < 1) | (pl.col("concurrent") != "")
    alone = rows.filter(~has_interference).group_by(sizes).agg(alone_us=pl.col("us").median())
    shared = rows.filter(has_interference).join(alone, on=sizes, nulls_equal=True)
    slowdown = (pl.col("us") / pl.col("alone_us")).median()
    keys = ("gpu", "op", "dtype", "share", "concurrent")
    shared = shared.with_columns(pl.col("dtype").cast(pl.String))
    slowdowns = shared.group_by(keys).agg(slowdown=slowdown, calls=pl.len()).sort(keys)
    return tuple(Sharing(*row) for row in slowdowns.iter_rows())


def _sharing_conditions(data: pl.DataFrame) -> tuple[pl.Expr, pl.Expr]:
    """Return the share of the multiprocessors (default 1) and the concurrent operator ("")."""
    share, concurrent = pl.lit(1.0), pl.lit("")
    if "sm_share" in data.columns:
        share = pl.col("sm_share").cast(pl.Float64, strict=False).fill_null(1.0)
    if "concurrent_with" in data.columns:
        concurrent = pl.col("concurrent_with").cast(pl.String).fill_null("")
    return share, concurrent


def read(frame: Frame, shapes: Shapes) -> Rows:
    """Yield (GPU type, kernel rows) of a file in this format, without interference measurements.

    These are counted as set aside. Raise IngestError for an unknown operator or precision.
    """
    if {"sm_share", "concurrent_with"} & set(frame.data.columns):
        share, concurrent = _sharing_conditions(frame.data)
        alone = frame.select((share >= 1.0) & (concurrent == ""))
        interference_rows = frame.data.height - alone.data.height
        frame.set_aside["under a share of the GPU or side by side"] += interference_rows
        frame = alone
    keys = "gpu", "op", "dtype", "kv_dtype"
    for (gpu, op, dtype, kv_dtype), part in frame.parts(*keys):
        precision = (kv_dtype or dtype) if op.startswith("attention") else dtype
        for column, name, known in (("op", op, NEEDED), ("dtype", precision, BYTES)):
            if name not in known:
                raise IngestError(
                    f"{frame.name}, {frame.unit} {int(part.lines[0])}: {column} {name!r} is "
                    f"unknown. Use one of {', '.join(known)}."
                )
        columns = {name: part.numbers(name) for name in NEEDED[op]}
        yield gpu, KernelRows(op, precision, columns, part.seconds("latency_us", 1e-6))


def json_frame(path: Path, name: str, max_bytes: int) -> Frame:
    """Return a JSON list of objects as texts, with the index as line; or raise IngestError."""
    limit = min(max_bytes, MAX_JSON_BYTES)
    if path.stat().st_size > limit:
        raise IngestError(f"{name} is larger than {limit / 1e6:.0f} MB. Write it as CSV.")
    content = json_value(path.read_bytes(), name, "Write it again.", IngestError)
    if not isinstance(content, list) or not all(isinstance(row, dict) for row in content):
        raise IngestError(f"{name} must hold a list of objects, one per measurement.")
    texts = {}
    for column in COLUMNS:
        cells = [row.get(column) for row in content]
        if any(cell is not None for cell in cells):
            texts[column] = [None if cell is None else str(cell) for cell in cells]
    return Frame(name, "row", pl.DataFrame(texts), np.arange(1, len(content) + 1, dtype=np.int64))
