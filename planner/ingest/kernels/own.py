"""Our own format of measured operators: what ``bench/measure_gpu.py`` writes.

One row per measurement, as CSV (a header line, then rows) or JSON (a list of objects with the same
names). A field that does not apply to an operator is left empty (CSV) or out (JSON).

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
                     ``op:sm_share``, for example ``gemm:0.5``; empty: alone
    latency_us       median duration of one call, microseconds
    gpu              name of the GPU type, as in the catalogue
    source           what measured it: software and version, in words

Rows with ``sm_share`` below 1 or a ``concurrent_with`` are interference measurements; they do not
enter the profile of a whole GPU.
"""

from __future__ import annotations

COLUMNS = (
    "op", "dtype", "m", "n", "k", "batch", "isl", "context", "heads", "kv_heads", "head_dim",
    "kv_dtype", "tokens", "hidden", "intermediate", "experts", "top_k", "moe_tp", "moe_ep", "gpus",
    "message_bytes", "sm_share", "concurrent_with", "latency_us", "gpu", "source",
)  # fmt: skip
NEEDED = {
    "gemm": ("m", "n", "k"),
    "attention_prefill": ("batch", "isl", "context", "heads", "kv_heads", "head_dim"),
    "attention_decode": ("batch", "context", "heads", "kv_heads", "head_dim"),
    "norm": ("m", "n", "k"),
    "activation": ("m", "n", "k"),
    "rope": ("m", "n", "k"),
    "experts": (
        "tokens", "hidden", "intermediate", "experts", "top_k", "moe_tp", "moe_ep",
    ),
    "all_reduce": ("gpus", "message_bytes"),
    "all_gather": ("gpus", "message_bytes"),
    "reduce_scatter": ("gpus", "message_bytes"),
    "all_to_all": ("gpus", "message_bytes"),
}  # fmt: skip
"""By operator: the columns it must fill besides dtype, latency_us, gpu and source."""
