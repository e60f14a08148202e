"""Read files that time the layers of a named model: vidur and LLMServingSim.

Each row becomes a call of an operator (kernel) of known size. For example, a projection is a
product of m tokens with its k x n matrix, which is split by tensor parallelism.
"""

from collections.abc import Iterator

import numpy as np
import polars as pl

from planner.errors import IngestError
from planner.inputs.catalogue.names import find_model, plain_name
from planner.inputs.profiles.kernel_files.frame import Frame, Rows, Shapes
from simulation.arrays import FloatArray
from simulation.performance.graph import OperatorGraph, operator_graph
from simulation.performance.graph_attention import per_gpu
from simulation.performance.kernel_tables import KernelRows
from simulation.performance.specs import Arrangement, ModelShape
from simulation.performance.work import Elementwise, Experts, Gemm

GPUS = {
    "a40": "A40", "a100": "A100-80GB", "h100": "H100-SXM", "H100": "H100-SXM",
    "A6000": "RTX-A6000", "RTX3090": "RTX-3090", "RTX4090": "RTX-4090",
    "RTXPRO6000": "RTX-PRO-6000", "a100_dgx": "A100-80GB", "h100_dgx": "H100-SXM",
}  # fmt: skip
"""Names of their hardware in our catalogue; another name is kept as it is."""

V1_LAYERS = {
    "qkv_proj": "qkv_projection", "o_proj": "output_projection",
    "gate_up_proj": "gate_up_projection", "down_proj": "down_projection", "lm_head": "output_head",
    "act_fn": "activation", "layernorm": "input_norm", "final_layernorm": "final_norm",
    "rotary_emb": "rope", "embedding": "embedding", "moe": "experts",
}  # fmt: skip
V0_LAYERS = {
    "o_proj": "output_projection", "down_proj": "down_projection", "lm_head": "output_head",
}  # fmt: skip


def shape_of(frame: Frame, shapes: Shapes, model: str) -> ModelShape:
    """Return a model's shape by name, with or without organisation; or raise IngestError."""
    canonical = find_model(model, {plain_name(name): name for name in shapes})
    if canonical is not None:
        return shapes[canonical]
    raise IngestError(
        f"{frame.name} times layers of {model}, an unknown name in the catalogue. Add the model "
        "first, for the sizes of its layers."
    )


def _kernel_rows(
    op: str, columns: dict[str, FloatArray], sizes: dict[str, int], seconds: FloatArray
) -> KernelRows:
    """Return timed calls of an operator; ``sizes`` are columns with one value for all calls."""
    constant = {name: np.full_like(seconds, size) for name, size in sizes.items()}
    return KernelRows(op, "bf16", {**columns, **constant}, seconds)


def _rows_of_operator(
    graph: OperatorGraph, name: str, tokens: FloatArray, seconds: FloatArray
) -> KernelRows | None:
    """Return timed calls of a graph's operator; None if it has no kernel rows here."""
    if name not in {operator.name for operator in graph.operators}:
        return None
    operator = graph[name]
    if isinstance(operator, Gemm):
        return _kernel_rows("gemm", {"m": tokens}, {"n": operator.n, "k": operator.k}, seconds)
    if isinstance(operator, Elementwise):
        sizes = {"k": operator.read, "n": operator.written}
        return _kernel_rows("elementwise", {"m": tokens}, sizes, seconds)
    if isinstance(operator, Experts):
        # Rows have the width of a whole expert, and the operator has one GPU's part.
        sizes = {
            "hidden": operator.hidden, "intermediate": operator.intermediate * operator.tp,
            "experts": operator.experts, "top_k": operator.top_k, "moe_tp": operator.tp,
            "moe_ep": operator.ep,
        }  # fmt: skip
        return _kernel_rows("experts", {"tokens": tokens}, sizes, seconds)
    return None


def vidur_mlp(frame: Frame, shapes: Shapes) -> Rows:
    """Yield (GPU type, kernel rows) of a file ``vidur_mlp_ops``: medians of one layer in ms."""
    keys = ("gpu", "model", "tp", "n_head", "n_kv_head", "n_embd", "n_expanded_embd", "vocab_size",
            "use_gated_mlp")  # fmt: skip
    for key, part in frame.parts(*keys):
        gpu, model, tp, heads, kv_heads, hidden, ffn_width, vocab, gated = key
        shape = ModelShape(
            name=model, layers=1, hidden=_whole(hidden), vocab=_whole(vocab), heads=_whole(heads),
            kv_heads=_whole(kv_heads), head_dim=_whole(hidden) // _whole(heads),
            intermediate=_whole(ffn_width), max_context=32768, gated=gated.lower() == "true",
        )  # fmt: skip
        graph = operator_graph(shape, Arrangement(tp=_whole(tp)))
        tokens = part.numbers("num_tokens", 1)
        gpu = GPUS.get(gpu, gpu)
        for column, name in (
            ("attn_pre_proj_ms", "qkv_projection"), ("attn_post_proj_ms", "output_projection"),
            ("mlp_up_proj_ms", "gate_up_projection"), ("mlp_down_proj_ms", "down_projection"),
            ("mlp_act_ms", "activation"), ("attn_rope_ms", "rope"), ("emb_ms", "embedding"),
        ):  # fmt: skip
            rows = _rows_of_operator(graph, name, tokens, part.seconds(column, 1e-3))
            if rows is not None:
                yield gpu, rows
        # Our norm includes the residual addition. Vidur times it separately.
        norm_s = part.seconds("input_layernorm_ms", 1e-3) + part.seconds("add_ms", 1e-3)
        sizes = {"k": 2 * shape.hidden, "n": 2 * shape.hidden}
        yield gpu, _kernel_rows("elementwise", {"m": tokens}, sizes, norm_s)


def _whole(text: str) -> int:
    """Return the whole number in a text such as "8" or "8.0"."""
    return int(float(text))


def vidur_network(frame: Frame, shapes: Shapes) -> Rows:
    """Yield (GPU type, kernel rows) of a file ``vidur_network``: all-reduces over NVLink."""
    for (node, collective), part in frame.parts("node_sku", "collective"):
        all_of_node = part.numbers("num_workers") == part.numbers("devices_per_node")
        inside = part.select(all_of_node)
        usable = inside.data.height if collective == "all_reduce" and node in GPUS else 0
        part.set_aside["between nodes, in pairs, or not an all-reduce"] += part.data.height - usable
        if not usable:
            continue
        columns = inside.columns({"gpus": "num_workers", "message_bytes": "size_bytes"})
        yield GPUS[node], _kernel_rows("all_reduce", columns, {}, inside.seconds("median_ms", 1e-3))


def layer_rows(frame: Frame, shapes: Shapes) -> Rows:
    """Yield (GPU type, kernel rows) of a file of LLMServingSim with a row per layer and call.

    Version 1 has vLLM's layers, in us. Version 0 has ns of layers in eager PyTorch: projections of
    attention and FFN, which engines fuse, are rows of their own. Layers that are no operator of the
    graph are counted as left out.
    """
    is_version_1 = "time_us" in frame.data.columns
    tokens_column, operators = ("n", V1_LAYERS) if is_version_1 else ("input_tokens", V0_LAYERS)
    time_column, unit_s = ("time_us", 1e-6) if is_version_1 else ("latency_ns", 1e-9)
    for (hardware, model, layer, tp), part in frame.parts("hardware", "model", "layer", "tp"):
        shape = shape_of(frame, shapes, model)
        graph = operator_graph(shape, Arrangement(tp=_whole(tp)))
        tokens, seconds = part.numbers(tokens_column, 1), part.seconds(time_column, unit_s)
        widths = {} if is_version_1 else _projection_widths(shape, _whole(tp))
        if layer in widths:
            sizes = {"n": widths[layer], "k": shape.hidden}
            rows: KernelRows | None = _kernel_rows("gemm", {"m": tokens}, sizes, seconds)
        else:
            rows = _rows_of_operator(graph, operators.get(layer, ""), tokens, seconds)
        if rows is None:
            part.leave_out(f"layer {layer} is no operator of the graph")
        else:
            yield GPUS.get(hardware, hardware), rows


def _projection_widths(shape: ModelShape, tp: int) -> dict[str, int]:
    """Return the columns, on one of ``tp`` GPUs, of each projection's matrix that engines fuse."""
    q_width = per_gpu(shape.heads, tp) * shape.head_dim
    kv_width = per_gpu(shape.kv_heads, tp) * shape.head_dim
    widths = {"q_proj": q_width, "k_proj": kv_width, "v_proj": kv_width}
    if not shape.experts:
        widths |= dict.fromkeys(("gate_proj", "up_proj"), per_gpu(shape.intermediate, tp))
    return widths


def _head_sizes(heads: int, kv_heads: int, head_dim: int, tp: int) -> dict[str, int]:
    """Return the columns of attention on one of ``tp`` GPUs; the arguments are of all GPUs."""
    return {"heads": per_gpu(heads, tp), "kv_heads": per_gpu(kv_heads, tp), "head_dim": head_dim}


def v0_attention(frame: Frame, shapes: Shapes) -> Rows:
    """Yield (GPU type, kernel rows) of a file ``llmservingsim_v0_attention``: one layer, in ms."""
    keys = ("hardware", "tp", "n_embd", "n_q_head", "n_kv_head")
    for (hardware, tp, hidden, heads, kv_heads), part in frame.parts(*keys):
        head_dim = _whole(hidden) // _whole(heads)
        sizes = _head_sizes(_whole(heads), _whole(kv_heads), head_dim, _whole(tp))
        gpu = GPUS.get(hardware, hardware)
        prefill = part.select(pl.col("attn_prefill_ms").is_not_null())
        if prefill.data.height:
            names = {"batch": "batch_size", "isl": "prefill_chunk_size", "context": "kv_cache_size"}
            seconds = prefill.seconds("attn_prefill_ms", 1e-3)
            yield gpu, _kernel_rows("attention_prefill", prefill.columns(names), sizes, seconds)
        decode = part.select(pl.col("attn_decode_ms").is_not_null())
        if decode.data.height:
            columns = decode.columns({"batch": "batch_size", "context": "kv_cache_size"})
            seconds = decode.seconds("attn_decode_ms", 1e-3)
            yield gpu, _kernel_rows("attention_decode", columns, sizes, seconds)


def v1_attention(frame: Frame, shapes: Shapes) -> Rows:
    """Yield (GPU type, kernel rows) of a file ``llmservingsim_v1_attention``: one layer, in us.

    A call may have a prompt chunk and decodes. Its time beyond that of the chunk alone is the time
    of its decodes, as operator "attention_beside".
    """
    for (hardware, model, tp), part in frame.parts("hardware", "model", "tp"):
        shape = shape_of(frame, shapes, model)
        sizes = _head_sizes(shape.heads, shape.kv_heads, shape.head_dim, _whole(tp))
        for rows in _v1_calls(part, sizes):
            yield GPUS.get(hardware, hardware), rows


def _v1_calls(part: Frame, sizes: dict[str, int]) -> Iterator[KernelRows]:
    """Yield the calls of one model: of prompt chunks, of decodes, and of decodes beside a chunk."""
    decodes, chunk = part.numbers("n_decode"), part.numbers("prefill_chunk")
    prefill = part.select((decodes == 0) & (chunk > 0))
    if prefill.data.height:
        columns = prefill.columns({"isl": "prefill_chunk", "context": "kv_prefill"})
        seconds = prefill.seconds("time_us", 1e-6)
        yield _kernel_rows("attention_prefill", columns, sizes | {"batch": 1}, seconds)
    decode = part.select((chunk == 0) & (decodes > 0))
    if decode.data.height:
        columns = decode.columns({"batch": "n_decode", "context": "kv_decode"})
        yield _kernel_rows("attention_decode", columns, sizes, decode.seconds("time_us", 1e-6))
    mixed_calls = part.data.filter((pl.col("n_decode") > 0) & (pl.col("prefill_chunk") > 0))
    columns, seconds = _decodes_with_chunks(mixed_calls, prefill.data)
    if seconds.size:
        yield _kernel_rows("attention_beside", columns, sizes, seconds)
    if seconds.size < mixed_calls.height:
        reason = "prefill and decode in one call, without a measurement of the chunk"
        part.set_aside[reason] += mixed_calls.height - seconds.size


def _decodes_with_chunks(
    mixed_calls: pl.DataFrame, chunks: pl.DataFrame
) -> tuple[dict[str, FloatArray], FloatArray]:
    """Return the columns "batch" and "context" of the decodes in mixed calls, and their seconds.

    The time of the decodes is the call's time minus that of a call with the prompt chunk alone.
    ``chunks`` are the calls with a chunk alone. Mixed calls without such a call are left out.
    """
    chunk = ["prefill_chunk", "kv_prefill"]
    chunk_alone = chunks.group_by(chunk).agg(alone_us=pl.col("time_us").median())
    decodes = (
        mixed_calls.join(chunk_alone, on=chunk)
        .select("n_decode", "kv_decode", seconds=(pl.col("time_us") - pl.col("alone_us")) * 1e-6)
        .filter(pl.col("seconds") > 0)
        .cast(pl.Float64)
    )
    load = {"batch": decodes["n_decode"].to_numpy(), "context": decodes["kv_decode"].to_numpy()}
    return load, decodes["seconds"].to_numpy()
