"""Read kernel tables of aiconfigurator (ai-dynamo): shapes per GPU, latency in milliseconds."""

from planner.errors import IngestError
from planner.inputs.profiles.kernel_files.frame import Frame, Rows, Shapes
from simulation.arrays import FloatArray
from simulation.performance.kernel_tables import KernelRows

GPUS = {
    "a100_sxm": "A100-80GB",
    "h100_sxm": "H100-SXM",
    "h200_sxm": "H200",
    "b200_sxm": "B200",
    "b300_sxm": "B300",
    "gb200": "GB200",
    "gb300": "GB300",
    "l40s": "L40S",
}
"""Names of the systems in our catalogue; another name is kept as it is."""
PRECISIONS = {
    "bfloat16": "bf16", "float16": "bf16", "half": "bf16", "fp8": "fp8", "fp8_block": "fp8_block",
    "nvfp4": "fp4", "int8_wo": "int8", "int4_wo": "int4", "int8": "int8",
}  # fmt: skip
# Routing is skewed in practice. Two distributions were measured; aiconfigurator uses this one too.
DISTRIBUTION = "power_law_1.2"


def _parts(frame: Frame, *columns: str) -> list[tuple[str, tuple[str, ...], Frame]]:
    """Return (GPU type, values of ``columns``, part) for each combination of these, sorted."""
    by_key = dict(frame.parts("system", *columns))
    return [
        (GPUS.get(system, system), tuple(values), by_key[system, *values])
        for system, *values in sorted(by_key)
    ]


def _precision(frame: Frame, name: str) -> str:
    """Return the precision that AIConfigurator calls ``name``; raise IngestError if unknown."""
    if name not in PRECISIONS:
        raise IngestError(
            f"{frame.name}, {frame.unit} {int(frame.lines[0])}: the precision {name!r} is unknown. "
            f"Use one of {', '.join(PRECISIONS)}."
        )
    return PRECISIONS[name]


def gemm(frame: Frame, shapes: Shapes) -> Rows:
    """Yield (GPU type, kernel rows) of matrix products."""
    for gpu, (dtype,), part in _parts(frame, "gemm_dtype"):
        columns = part.columns({"m": "m", "n": "n", "k": "k"})
        yield gpu, _rows("gemm", _precision(part, dtype), columns, part)


def attention(frame: Frame, shapes: Shapes) -> Rows:
    """Yield (GPU type, kernel rows) of attention: of prefill, or of decode if all ``isl`` are 1.

    The column ``step`` is the number of tokens that are in the KV cache already.
    """
    names = {
        "batch": "batch_size", "isl": "isl", "context": "step", "heads": "num_heads",
        "kv_heads": "num_key_value_heads", "head_dim": "head_dim",
    }  # fmt: skip
    # Both tables have the same columns. A file is only one of them.
    decode = bool((frame.numbers("isl") == 1).all())
    for gpu, (dtype,), part in _parts(frame, "kv_cache_dtype"):
        columns = part.columns(names)
        op = "attention_decode" if decode else "attention_prefill"
        if decode:
            columns["context"] = columns["context"] + 1.0  # the new token attends to itself
        yield gpu, _rows(op, _precision(part, dtype), columns, part)


def experts(frame: Frame, shapes: Shapes, distribution: str = DISTRIBUTION) -> Rows:
    """Yield (GPU type, kernel rows) of mixture-of-experts layers, routed by ``distribution``.

    Rows with other distributions of tokens over experts are counted as set aside.
    """
    names = {
        "tokens": "num_tokens", "hidden": "hidden_size", "intermediate": "inter_size",
        "experts": "num_experts", "top_k": "topk", "moe_tp": "moe_tp_size", "moe_ep": "moe_ep_size",
    }  # fmt: skip
    for gpu, (dtype, pattern), part in _parts(frame, "moe_dtype", "distribution"):
        if pattern != distribution:
            part.leave_out(f"experts are hit in another pattern than {distribution}")
            continue
        yield gpu, _rows("experts", _precision(part, dtype), part.columns(names), part)


def nccl(frame: Frame, shapes: Shapes) -> Rows:
    """Yield (GPU type, kernel rows) of collectives; ``message_size`` counts elements."""
    for gpu, (dtype, op), part in _parts(frame, "nccl_dtype", "op_name"):
        name = "all_to_all" if op == "alltoall" else op
        yield gpu, _collective(name, part, 1.0 if dtype == "int8" else 2.0)


def custom_allreduce(frame: Frame, shapes: Shapes) -> Rows:
    """Yield (GPU type, kernel rows) of vLLM's own all-reduce kernels.

    Rows outside a CUDA graph include the launch from Python, so they are set aside.
    """
    for gpu, (kernel,), part in _parts(frame, "kernel_source"):
        if kernel.endswith("_eager"):
            part.leave_out("launched outside a CUDA graph")
            continue
        yield gpu, _collective("all_reduce", part, 2.0)


def _collective(op: str, part: Frame, element_bytes: float) -> KernelRows:
    """Return the kernel rows of the collective ``op``, whose elements have ``element_bytes``."""
    columns = part.columns({"gpus": "num_gpus", "message_bytes": "message_size"})
    columns["message_bytes"] = columns["message_bytes"] * element_bytes
    return _rows(op, "bf16" if element_bytes == 2.0 else "int8", columns, part)


def _rows(op: str, precision: str, columns: dict[str, FloatArray], part: Frame) -> KernelRows:
    return KernelRows(op, precision, columns, part.seconds("latency_ms", 1e-3))
