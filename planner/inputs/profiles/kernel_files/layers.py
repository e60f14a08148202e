"""Read files that time the layers of a named model: vidur and LLMServingSim.

Their rows become calls of known size. A projection of a model at a tensor parallelism is a product
of m tokens with the k x n matrix of that projection.
"""

import numpy as np
import polars as pl

from planner.errors import IngestError
from planner.inputs.catalogue.names import find_model, plain_name
from planner.inputs.profiles.kernel_files.frame import Frame, Rows, Shapes
from simulation.arrays import FloatArray
from simulation.performance.graph import OperatorGraph, operator_graph
from simulation.performance.graph_attention import split
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
    """Return the shape of ``model``.

    The name matches with or without organisation and the usual suffixes. Raises IngestError for an
    unknown model.
    """
    canonical = find_model(model, {plain_name(name): name for name in shapes})
    if canonical is not None:
        return shapes[canonical]
    raise IngestError(
        f"{frame.name} times layers of {model}, an unknown name in the catalogue. Add the model "
        "first, for the sizes of its layers."
    )


def _gemm(m: FloatArray, n: int, k: int, seconds: FloatArray) -> KernelRows:
    """Return timings of products of ``m`` rows with one k x n matrix."""
    columns = {"m": m, "n": np.full_like(m, n), "k": np.full_like(m, k)}
    return KernelRows("gemm", "bf16", columns, seconds)


def _elementwise(m: FloatArray, read: int, written: int, seconds: FloatArray) -> KernelRows:
    """Return timings of an operator that reads and writes so many elements per row of ``m``."""
    columns = {"m": m, "k": np.full_like(m, read), "n": np.full_like(m, written)}
    return KernelRows("elementwise", "bf16", columns, seconds)


def _attention(
    op: str, heads: tuple[int, int, int], columns: dict[str, FloatArray], seconds: FloatArray
) -> KernelRows:
    """Return attention timings; ``heads`` are query heads, KV heads and head dimension of all."""
    names = ("heads", "kv_heads", "head_dim")
    fixed = {n: np.full_like(seconds, v) for n, v in zip(names, heads, strict=True)}
    return KernelRows(op, "bf16", {**columns, **fixed}, seconds)


def _rows_of_operator(
    graph: OperatorGraph, name: str, m: FloatArray, seconds: FloatArray
) -> KernelRows | None:
    """Return timings of an operator of ``graph`` as rows; None if the graph lacks it.

    ``m`` is the number of tokens of each call.
    """
    if name not in {operator.name for operator in graph.operators}:
        return None
    operator = graph[name]
    if isinstance(operator, Gemm):
        return _gemm(m, operator.n, operator.k, seconds)
    if isinstance(operator, Elementwise):
        return _elementwise(m, operator.read, operator.written, seconds)
    if isinstance(operator, Experts):
        sizes = {
            "hidden": operator.hidden, "intermediate": operator.intermediate * operator.tp,
            "experts": operator.experts, "top_k": operator.top_k, "moe_tp": operator.tp,
            "moe_ep": operator.ep,
        }  # fmt: skip
        columns = {name: np.full_like(m, size) for name, size in sizes.items()}
        return KernelRows("experts", "bf16", {"tokens": m, **columns}, seconds)
    return None


def vidur_mlp(frame: Frame, shapes: Shapes) -> Rows:
    """Yield kernel rows by GPU from ``vidur_mlp_ops``, which has medians of a layer in ms."""
    keys = ("gpu", "model", "tp", "n_head", "n_kv_head", "n_embd", "n_expanded_embd", "vocab_size",
            "use_gated_mlp")  # fmt: skip
    for key, part in frame.parts(*keys):
        gpu, model, tp, heads, kv_heads, hidden, ffn_width, vocab, gated = key
        shape = ModelShape(
            name=model, layers=1, hidden=_int(hidden), vocab=_int(vocab), heads=_int(heads),
            kv_heads=_int(kv_heads), head_dim=_int(hidden) // _int(heads),
            intermediate=_int(ffn_width), max_context=32768, gated=gated.lower() == "true",
        )  # fmt: skip
        graph = operator_graph(shape, Arrangement(tp=_int(tp)))
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
        norm = part.seconds("input_layernorm_ms", 1e-3) + part.seconds("add_ms", 1e-3)
        yield gpu, _elementwise(tokens, 2 * shape.hidden, 2 * shape.hidden, norm)


def _int(text: str) -> int:
    return int(float(text))


def vidur_network(frame: Frame, shapes: Shapes) -> Rows:
    """Yield rows of ``vidur_network``: all-reduce over NVLink between all GPUs of a node."""
    for (node, collective), part in frame.parts("node_sku", "collective"):
        all_of_node = part.numbers("num_workers") == part.numbers("devices_per_node")
        inside = part.select(all_of_node)
        usable = inside.data.height if collective == "all_reduce" and node in GPUS else 0
        part.set_aside["between nodes, in pairs, or not an all-reduce"] += part.data.height - usable
        if not usable:
            continue
        columns = inside.columns({"gpus": "num_workers", "message_bytes": "size_bytes"})
        seconds = inside.seconds("median_ms", 1e-3)
        yield GPUS[node], KernelRows("all_reduce", "bf16", columns, seconds)


def v0_layers(frame: Frame, shapes: Shapes) -> Rows:
    """Yield kernel rows from a file ``llmservingsim_v0_layers``, in nanoseconds.

    Layers ran in eager PyTorch. So the projections of attention and of the FFN, which engines fuse,
    are rows of their own.
    """
    for (hardware, model, layer, tp), part in frame.parts("hardware", "model", "layer", "tp"):
        shape = shape_of(frame, shapes, model)
        graph = operator_graph(shape, Arrangement(tp=_int(tp)))
        m, seconds = part.numbers("input_tokens", 1), part.seconds("latency_ns", 1e-9)
        heads = split(shape.heads, _int(tp)) * shape.head_dim
        kv_heads = split(shape.kv_heads, _int(tp)) * shape.head_dim
        ffn_width = split(shape.intermediate, _int(tp))
        widths_of_projections = {"q_proj": heads, "k_proj": kv_heads, "v_proj": kv_heads}
        if not shape.experts:
            widths_of_projections |= {"gate_proj": ffn_width, "up_proj": ffn_width}
        rows: KernelRows | None = None
        if layer in widths_of_projections:
            rows = _gemm(m, widths_of_projections[layer], shape.hidden, seconds)
        elif layer in V0_LAYERS:
            rows = _rows_of_operator(graph, V0_LAYERS[layer], m, seconds)
        if rows is None:
            part.leave_out(f"layer {layer} is no operator of the graph")
        else:
            yield GPUS.get(hardware, hardware), rows


def v0_attention(frame: Frame, shapes: Shapes) -> Rows:
    """Yield rows of ``llmservingsim_v0_attention``: one layer in ms; heads of the whole model."""
    keys = ("hardware", "tp", "n_embd", "n_q_head", "n_kv_head")
    for (hardware, tp, hidden, heads, kv_heads), part in frame.parts(*keys):
        sizes = (
            split(_int(heads), _int(tp)), split(_int(kv_heads), _int(tp)),
            _int(hidden) // _int(heads),
        )  # fmt: skip
        gpu = GPUS.get(hardware, hardware)
        prefill = part.select(pl.col("attn_prefill_ms").is_not_null())
        if prefill.data.height:
            names = {"batch": "batch_size", "isl": "prefill_chunk_size", "context": "kv_cache_size"}
            seconds = prefill.seconds("attn_prefill_ms", 1e-3)
            columns = prefill.columns(names)
            yield gpu, _attention("attention_prefill", sizes, columns, seconds)
        decode = part.select(pl.col("attn_decode_ms").is_not_null())
        if decode.data.height:
            columns = decode.columns({"batch": "batch_size", "context": "kv_cache_size"})
            seconds = decode.seconds("attn_decode_ms", 1e-3)
            yield gpu, _attention("attention_decode", sizes, columns, seconds)


def v1_layers(frame: Frame, shapes: Shapes) -> Rows:
    """Yield rows of ``llmservingsim_v1_layers``: the fused layers of vLLM, in microseconds."""
    for (hardware, model, layer, tp), part in frame.parts("hardware", "model", "layer", "tp"):
        shape = shape_of(frame, shapes, model)
        graph = operator_graph(shape, Arrangement(tp=_int(tp)))
        m, seconds = part.numbers("n", 1), part.seconds("time_us", 1e-6)
        rows = _rows_of_operator(graph, V1_LAYERS.get(layer, ""), m, seconds)
        if rows is None:
            part.leave_out(f"layer {layer} is no operator of the graph")
        else:
            yield GPUS.get(hardware, hardware), rows


def v1_attention(frame: Frame, shapes: Shapes) -> Rows:
    """Yield rows of ``llmservingsim_v1_attention``: one layer, in microseconds.

    A call may have a prompt chunk and decodes. The time beyond that of the chunk alone is counted
    for its decodes ("attention_beside").
    """
    for (hardware, model, tp), part in frame.parts("hardware", "model", "tp"):
        shape = shape_of(frame, shapes, model)
        sizes = (
            split(shape.heads, _int(tp)), split(shape.kv_heads, _int(tp)), shape.head_dim,
        )  # fmt: skip
        gpu = GPUS.get(hardware, hardware)
        decodes, chunk = part.numbers("n_decode"), part.numbers("prefill_chunk")
        prefill = part.select((decodes == 0) & (chunk > 0))
        decode = part.select((chunk == 0) & (decodes > 0))
        mixed_calls = part.data.filter((pl.col("n_decode") > 0) & (pl.col("prefill_chunk") > 0))
        if prefill.data.height:
            columns = prefill.columns({"isl": "prefill_chunk", "context": "kv_prefill"})
            seconds = prefill.seconds("time_us", 1e-6)
            columns["batch"] = np.ones_like(seconds)
            yield gpu, _attention("attention_prefill", sizes, columns, seconds)
        if decode.data.height:
            columns = decode.columns({"batch": "n_decode", "context": "kv_decode"})
            seconds = decode.seconds("time_us", 1e-6)
            yield gpu, _attention("attention_decode", sizes, columns, seconds)
        columns, seconds = _decodes_with_chunks(mixed_calls, prefill.data)
        if seconds.size:
            yield gpu, _attention("attention_beside", sizes, columns, seconds)
        if seconds.size < mixed_calls.height:
            reason = "prefill and decode in one call, without a measurement of the chunk"
            part.set_aside[reason] += mixed_calls.height - seconds.size


def _decodes_with_chunks(
    mixed_calls: pl.DataFrame, chunks: pl.DataFrame
) -> tuple[dict[str, FloatArray], FloatArray]:
    """Return batch and context of decodes that run with a prompt chunk, and their extra seconds.

    The extra time of a call is its time less that of a call with the prompt chunk alone.
    """
    chunk = ["prefill_chunk", "kv_prefill"]
    joined = (
        mixed_calls.join(chunks.group_by(chunk).agg(alone=pl.col("time_us").median()), on=chunk)
        .select("n_decode", "kv_decode", more=(pl.col("time_us") - pl.col("alone")) * 1e-6)
        .filter(pl.col("more") > 0)
        .cast(pl.Float64)
    )
    sequences, context, extra_s = (joined[name].to_numpy() for name in joined.columns)
    return {"batch": sequences, "context": context}, extra_s
