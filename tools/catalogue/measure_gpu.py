"""Measure the operators of a model's shape on your own GPU; needs PyTorch and nothing else.

    python measure_gpu.py --shape llama-3.1-8b --out my-gpu.csv
    python measure_gpu.py --config path/to/config.json --tp 1,2,4 --gpu H200 --out my-gpu.csv
    python measure_gpu.py --shape tiny --device cpu --quick --out smoke.csv

Copy this file to the machine with the GPU. It times these operators one at a time: GEMMs (QKV,
output, gate-up, down, head), attention of prefill and decode, norms, activations, rotary embedding,
experts, and collectives if there are several GPUs. Then it times pairs side by side on disjoint
shares of the multiprocessors (green contexts). Each measurement is one row, in the columns that
Headroom imports (planner/inputs/profiles/kernel_files/native_format.py).

Times are CUDA events around one call, after warm-up, with the L2 cache flushed before each. The
flush also hides the launch time. A row has the median of the repeats. Its ``spread`` is the
difference of the 90th and 10th percentiles, divided by the median.
"""

import argparse
import csv
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

COLUMNS = (
    "op", "dtype", "m", "n", "k", "batch", "isl", "context", "heads", "kv_heads", "head_dim",
    "kv_dtype", "tokens", "hidden", "intermediate", "experts", "top_k", "moe_tp", "moe_ep", "gpus",
    "message_bytes", "sm_share", "concurrent_with", "latency_us", "gpu", "source", "spread",
)  # fmt: skip
REPEATS, WARM_UP = 20, 3
FLUSH_BYTES = 256 << 20  # more than any L2 cache
LARGEST = 4 << 30  # bytes of operands of one call
TOKENS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
LENGTHS = (128, 512, 1024, 2048, 4096, 8192)
CONTEXTS = (128, 512, 1024, 2048, 4096, 8192, 16384, 32768)
MESSAGES = tuple(1 << power for power in range(11, 29))  # 2 KiB to 256 MiB
FEW_ROWS = 256  # products of at most so many rows wait for memory
GROWING, CPU_LARGEST = ("m", "tokens", "isl", "context", "batch"), 512
NO_TORCH = "PyTorch is not installed here: install it (pip install torch) and run this again."
NO_CUDA = (
    "PyTorch finds no CUDA GPU here: run this where there is one, or try it with --device cpu."
)


Row = dict[str, Any]  # of the file, by column


@dataclass(frozen=True)
class Shape:
    """The dimensions of a model's shape that determine its operators."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    gated: bool = True
    experts: int = 0
    top_k: int = 0
    expert_intermediate: int = 0


SHAPES = {
    "tiny": Shape(64, 4, 2, 16, 128, 256, experts=4, top_k=2, expert_intermediate=32),
    "llama-3.1-8b": Shape(4096, 32, 8, 128, 14336, 128256),
    "llama-3.1-70b": Shape(8192, 64, 8, 128, 28672, 128256),
    "qwen3-32b": Shape(5120, 64, 8, 128, 25600, 151936),
    "qwen3-30b-a3b": Shape(2048, 32, 4, 128, 6144, 151936, True, 128, 8, 768),
    "qwen3-235b-a22b": Shape(4096, 64, 4, 128, 12288, 151936, True, 128, 8, 1536),
    "mixtral-8x7b": Shape(4096, 32, 8, 128, 14336, 32000, True, 8, 2, 14336),
}


@dataclass(frozen=True)
class Case:
    """One operator to time, as the columns that describe it."""

    op: str
    dtype: str
    size: dict[str, int] = field(default_factory=dict)


def shape_of(config: dict[str, Any]) -> Shape:
    """Return the shape in a Hugging Face ``config.json``; raise ValueError for missing keys."""
    text = config.get("text_config") or config

    def first(*names: str, default: int | None = None) -> int:
        """Return the first whole number under one of the names, which differ between models."""
        for name in names:
            if isinstance(text.get(name), int):
                return int(text[name])
        if default is None:
            raise ValueError(f"config.json has no {names[0]}: use the model's own, unchanged.")
        return default

    hidden = first("hidden_size", "n_embd")
    heads = first("num_attention_heads", "n_head")
    experts = first("num_experts", "n_routed_experts", "num_local_experts", default=0)
    intermediate = first("intermediate_size", "n_inner", default=4 * hidden)
    return Shape(
        hidden=hidden,
        heads=heads,
        kv_heads=first("num_key_value_heads", default=heads),
        head_dim=first("head_dim", default=hidden // heads),
        intermediate=intermediate,
        vocab=first("vocab_size"),
        gated=str(text.get("hidden_act", "silu")) in ("silu", "swiglu", "gelu_pytorch_tanh"),
        experts=experts,
        top_k=first("num_experts_per_tok", "num_experts_per_token", default=1) if experts else 0,
        expert_intermediate=first("moe_intermediate_size", default=intermediate) if experts else 0,
    )


def gemms(shape: Shape, tp: int) -> dict[str, tuple[int, int]]:
    """Return n and k of the matrices on one of ``tp`` GPUs."""
    heads, kv_heads = shape.heads // tp, max(shape.kv_heads // tp, 1)
    inner = shape.intermediate // tp
    return {
        "qkv": ((heads + 2 * kv_heads) * shape.head_dim, shape.hidden),
        "output": (shape.hidden, heads * shape.head_dim),
        "gate_up": ((2 if shape.gated else 1) * inner, shape.hidden),
        "down": (shape.hidden, inner),
        "head": (shape.vocab // tp, shape.hidden),
    }


def cases(shape: Shape, tps: list[int], dtypes: list[str], quick: bool) -> list[Case]:
    """Return every operator to time alone, without duplicates.

    ``tps`` are tensor parallel sizes. ``dtypes`` ("bf16", "fp8") are those of GEMMs. With ``quick``
    every third or fourth size is timed.
    """
    step = 4 if quick else 1
    tokens, batches = TOKENS[:: 3 if quick else 1], BATCHES[::step]
    lengths, contexts = LENGTHS[::step], CONTEXTS[::step]
    distinct: dict[str, Case] = {}

    def add(op: str, dtype: str, **size: int) -> None:
        distinct.setdefault(f"{op} {dtype} {sorted(size.items())}", Case(op, dtype, size))

    for tp in tps:
        if shape.heads % tp:
            raise ValueError(f"--tp {tp}: {shape.heads} heads cannot be split so; use a divisor.")
        heads, kv_heads = shape.heads // tp, max(shape.kv_heads // tp, 1)
        for dtype in dtypes:
            for n, k in gemms(shape, tp).values():
                for m in tokens:
                    add("gemm", dtype, m=m, n=n, k=k)
        dims = {"heads": heads, "kv_heads": kv_heads, "head_dim": shape.head_dim}
        for isl, batch, context in product(lengths, (1, 4), (0, 4096)):
            add("attention_prefill", "bf16", batch=batch, isl=isl, context=context, **dims)
        for context, batch in product(contexts, batches):
            kv_cache_bytes = (
                batch * context * kv_heads * shape.head_dim * 4
            )  # keys, values; 16 bits
            if kv_cache_bytes <= LARGEST:
                add("attention_decode", "bf16", batch=batch, isl=1, context=context, **dims)
        inner = shape.intermediate // tp
        rope = (heads + kv_heads) * shape.head_dim
        for m in tokens:
            add("norm", "bf16", m=m, n=shape.hidden, k=shape.hidden)
            add("activation", "bf16", m=m, n=inner, k=(2 if shape.gated else 1) * inner)
            add("rope", "bf16", m=m, n=rope, k=rope)
            if shape.experts:
                add(
                    "experts", "bf16", tokens=m, hidden=shape.hidden, moe_tp=tp, moe_ep=1,
                    intermediate=shape.expert_intermediate, experts=shape.experts,
                    top_k=shape.top_k,
                )  # fmt: skip
    return list(distinct.values())


class Meter:
    """Build calls of operators on one device, and time them."""

    def __init__(self, torch: Any, device: str) -> None:
        self.torch, self.device = torch, device
        self.cuda = device == "cuda"
        flush = FLUSH_BYTES if self.cuda else 1 << 20
        self.flush = torch.empty(flush, dtype=torch.int8, device=device)
        self.second_stream: Any = torch.cuda.Stream() if self.cuda else None
        self.notes: dict[str, str] = {}  # what was replaced or left out, by operator

    def tensor(self, *size: int) -> Any:
        """Return random bf16 numbers on the device."""
        return self.torch.randn(*size, device=self.device, dtype=self.torch.bfloat16)

    def call(self, case: Case) -> Callable[[], Any]:
        """Return the operator's call, with its own operands."""
        torch, size = self.torch, case.size
        functional = torch.nn.functional
        if case.op == "gemm":
            return self._gemm(case)
        if case.op.startswith("attention"):
            return self._attention(case)
        if case.op == "norm":
            x, weight = self.tensor(size["m"], size["k"]), self.tensor(size["k"])
            if hasattr(functional, "rms_norm"):
                return lambda: functional.rms_norm(x, (size["k"],), weight)
            return lambda: functional.layer_norm(x, (size["k"],), weight)
        if case.op == "activation":
            x = self.tensor(size["m"], size["k"])
            if size["k"] == size["n"]:
                return lambda: functional.gelu(x)
            gate, up = x.chunk(2, dim=-1)
            return self._graph(lambda: functional.silu(gate) * up)
        if case.op == "rope":
            x = self.tensor(size["m"], size["k"])
            cos, sin = (self.tensor(size["m"], size["k"] // 2) for _ in range(2))

            def rotate() -> Any:
                a, b = x.chunk(2, dim=-1)
                return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)

            return self._graph(rotate)
        return self._experts(case)

    def _gemm(self, case: Case) -> Callable[[], Any]:
        """Return a product of m × k and k × n, of bf16 or of fp8 with one scale per matrix."""
        torch, (m, n, k) = self.torch, (case.size[name] for name in "mnk")
        a, b = self.tensor(m, k), self.tensor(n, k)
        if case.dtype == "bf16":
            return lambda: torch.nn.functional.linear(a, b)
        a, b = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn).t()
        scale = torch.ones((), device=self.device)
        return lambda: torch._scaled_mm(
            a, b, scale_a=scale, scale_b=scale, out_dtype=torch.bfloat16
        )

    def _attention(self, case: Case) -> Callable[[], Any]:
        """Return causal attention of ``isl`` new tokens on ``context`` earlier ones a sequence.

        flash-attn computes it where it is installed, otherwise PyTorch. A note says which.
        """
        torch, size = self.torch, case.size
        keys = size["context"] + (size["isl"] if case.op == "attention_prefill" else 0)
        q = self.tensor(size["batch"], size["heads"], size["isl"], size["head_dim"])
        k, v = (self.tensor(size["batch"], size["kv_heads"], keys, size["head_dim"]) for _ in "kv")
        try:
            from flash_attn import flash_attn_func

            q, k, v = (x.transpose(1, 2).contiguous() for x in (q, k, v))
            self.notes.setdefault("attention", "flash-attn")
            return lambda: flash_attn_func(q, k, v, causal=True)
        except ImportError:
            self.notes.setdefault("attention", "scaled_dot_product_attention")
        attend = torch.nn.functional.scaled_dot_product_attention
        if case.op == "attention_decode":
            # Heads of a group read the same KV cache. As queries of one head they read it once.
            q = q.view(size["batch"], size["kv_heads"], -1, size["head_dim"])
            return lambda: attend(q, k, v)
        options: dict[str, Any] = {}
        if size["heads"] != size["kv_heads"]:
            if "enable_gqa" in (attend.__doc__ or ""):
                options["enable_gqa"] = True
            else:
                self.notes["heads"] = "KV heads repeated: this PyTorch has no grouped attention"
                k, v = (x.repeat_interleave(size["heads"] // size["kv_heads"], 1) for x in (k, v))
        if not size["context"]:
            return lambda: attend(q, k, v, is_causal=True, **options)
        from torch.nn.attention.bias import causal_lower_right

        mask = causal_lower_right(size["isl"], keys)
        return lambda: attend(q, k, v, attn_mask=mask, **options)

    def _experts(self, case: Case) -> Callable[[], Any]:
        """Return a run of experts, one after the other, on evenly spread tokens.

        It is one CUDA graph on a GPU. It is slower than a fused kernel, which PyTorch alone does
        not have.
        """
        size = case.size
        inner = max(size["intermediate"] // size["moe_tp"], 1)
        assignments = size["tokens"] * size["top_k"]  # of a token to an expert
        used = min(size["experts"], assignments)
        counts = [assignments // used + (i < assignments % used) for i in range(used)]
        inputs = [self.tensor(count, size["hidden"]) for count in counts]
        up = self.tensor(used, size["hidden"], 2 * inner)
        down = self.tensor(used, inner, size["hidden"])
        silu = self.torch.nn.functional.silu

        def run() -> Any:
            for i, x in enumerate(inputs):
                gate, linear = (x @ up[i]).chunk(2, dim=-1)
                (silu(gate) * linear) @ down[i]

        return self._graph(run)

    def _graph(self, run: Callable[[], Any]) -> Callable[[], Any]:
        """Return ``run`` as a CUDA graph, without the time between the launches of its kernels.

        On a CPU it is ``run`` itself.
        """
        if not self.cuda:
            return run
        torch = self.torch
        warm_up_stream = torch.cuda.Stream()  # a graph must be warmed up outside the main stream
        with torch.cuda.stream(warm_up_stream):
            run()
        torch.cuda.current_stream().wait_stream(warm_up_stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        return lambda: graph.replay()

    def time(
        self, run: Callable[[], Any], beside: tuple[Callable[[], Any], int] | None = None
    ) -> list[float]:
        """Return the microseconds of each repeat of ``run`` after warm-up.

        ``beside`` is a call that keeps the second stream busy, and how often it runs per repeat.
        Repeats that outlast the second stream are left out, so there may be none.
        """
        torch, times = self.torch, []
        for repeat in range(WARM_UP + REPEATS):
            if not self.cuda:
                self.flush.zero_()
                start = time.perf_counter()
                run()
                micros = (time.perf_counter() - start) * 1e6
            else:
                before, after, last = (torch.cuda.Event(enable_timing=True) for _ in range(3))
                if beside is not None:
                    with torch.cuda.stream(self.second_stream):
                        for _ in range(beside[1]):
                            beside[0]()
                        last.record()
                self.flush.zero_()
                before.record()
                run()
                after.record()
                torch.cuda.synchronize()
                micros = before.elapsed_time(after) * 1e3
                # Such a call ran alone for a while.
                if beside is not None and after.elapsed_time(last) < 0:
                    continue
            if repeat >= WARM_UP:
                times.append(micros)
        return times


def row_of(case: Case, micros: list[float], **more: Any) -> Row:
    """Return a row of the file: the case, ``more`` columns, and the median of ``micros`` (µs).

    The columns that are equal in all rows are missing; ``write`` adds them.
    """
    median = statistics.median(micros)
    spread = 0.0
    if len(micros) > 1:
        deciles = statistics.quantiles(micros, n=10)
        spread = (deciles[-1] - deciles[0]) / median
    return {
        "op": case.op,
        "dtype": case.dtype,
        **case.size,
        **more,
        "latency_us": round(median, 3),
        "spread": round(spread, 4),
    }


def alone(meter: Meter, work: list[Case]) -> Iterator[Row]:
    """Time cases one by one; note and omit those that cannot run here."""
    for done, case in enumerate(work):
        try:
            micros = meter.time(meter.call(case))
        except (RuntimeError, ImportError, AttributeError, ValueError) as error:
            why = str(error).splitlines()[0][:120] if str(error) else type(error).__name__
            meter.notes.setdefault(f"{case.op} {case.dtype}", f"left out: {why}")
            continue
        finally:
            if done % 100 == 99:
                print(f"{done + 1} of {len(work)}", file=sys.stderr)
        yield row_of(case, micros)


def representatives(shape: Shape) -> list[Case]:
    """Return operators of a millisecond or so that differ in what limits them.

    The first and the third are limited by arithmetic, the others by memory bandwidth.
    """
    n, k = gemms(shape, 1)["gate_up"]
    dims = {"heads": shape.heads, "kv_heads": shape.kv_heads, "head_dim": shape.head_dim}
    return [
        Case("gemm", "bf16", {"m": 4096, "n": n, "k": k}),
        Case("gemm", "bf16", {"m": 32, "n": n, "k": k}),
        Case("attention_prefill", "bf16", {"batch": 1, "isl": 8192, "context": 0, **dims}),
        Case("attention_decode", "bf16", {"batch": 128, "isl": 1, "context": 4096, **dims}),
        Case("activation", "bf16", {"m": 16384, "n": shape.intermediate, "k": shape.intermediate}),
    ]


def partition(torch: Any, sms: int) -> tuple[Any, Any, float]:
    """Return a stream on ``sms`` multiprocessors, one on the others, and the first one's share.

    The driver gives whole groups of multiprocessors. Raises RuntimeError if it refuses, and
    ImportError without the CUDA bindings (which PyTorch installs).
    """
    from cuda.bindings import driver

    def unwrap(answer: tuple[Any, ...]) -> Any:
        """Return the driver's answer without its error code, which must be 0."""
        if int(answer[0]) != 0:
            raise RuntimeError(f"The CUDA driver refused a share of the GPU: {answer[0].name}.")
        return answer[1] if len(answer) == 2 else answer[1:]

    def stream(resource: Any) -> Any:
        """Return a stream that runs on some multiprocessors only (a green context)."""
        described = unwrap(driver.cuDevResourceGenerateDesc([resource], 1))
        flags = driver.CUgreenCtxCreate_flags.CU_GREEN_CTX_DEFAULT_STREAM
        context = unwrap(driver.cuGreenCtxCreate(described, device, flags))
        flags = driver.CUstream_flags.CU_STREAM_NON_BLOCKING
        return torch.cuda.ExternalStream(
            int(unwrap(driver.cuGreenCtxStreamCreate(context, flags, 0)))
        )

    device = unwrap(driver.cuDeviceGet(torch.cuda.current_device()))
    kind = driver.CUdevResourceType.CU_DEV_RESOURCE_TYPE_SM
    all_sms = unwrap(driver.cuDeviceGetDevResource(device, kind))
    groups, _, others = unwrap(driver.cuDevSmResourceSplitByCount(1, all_sms, 0, sms))
    return stream(groups[0]), stream(others), groups[0].sm.smCount / all_sms.sm.smCount


def side_by_side(meter: Meter, few: list[Case], shares: list[float]) -> Iterator[Row]:
    """Time operators on a share of the multiprocessors, alone and with another on the rest.

    A share of 1 stands for two streams that compete for all multiprocessors.
    """
    torch = meter.torch
    total = torch.cuda.get_device_properties(0).multi_processor_count
    calls = [meter.call(case) for case in few]
    alone_us = [statistics.median(meter.time(call)) for call in calls]
    for wanted in shares:
        stream, meter.second_stream, share, rest = None, torch.cuda.Stream(), 1.0, 1.0
        if wanted < 1.0:
            try:
                stream, meter.second_stream, share = partition(torch, int(total * wanted))
            except (ImportError, AttributeError, RuntimeError) as error:
                meter.notes["sm_share"] = f"not measured: {error}"
                return
            rest = 1.0 - share
        share, rest = round(share, 4), round(rest, 4)
        with torch.cuda.stream(stream):
            for case, call, micros in zip(few, calls, alone_us, strict=True):
                if share < 1.0:
                    yield row_of(case, meter.time(call), sm_share=share)
                for other, other_call, other_us in zip(few, calls, alone_us, strict=True):
                    # The other must outlast the call, and both get slower together: 4 times as
                    # long, and 2 ms for the flush, which waits for the other's memory too.
                    other_calls = int((2_000 + 4 * micros / share) / other_us) + 1
                    times = meter.time(call, (other_call, min(other_calls, 2_000)))
                    if times:
                        few_rows = other.op == "gemm" and other.size["m"] <= FEW_ROWS
                        name = f"{other.op}_memory_bound" if few_rows else other.op
                        beside = f"{name}:{rest}"
                        yield row_of(case, times, sm_share=share, concurrent_with=beside)


def _collectives(rank: int, world: int, backend: str, port: int, sizes: Any, queue: Any) -> None:
    """Time collectives in process ``rank`` of ``world``, for messages of ``sizes`` bytes.

    The first process puts the rows into ``queue``. Each repeat takes as long as the slowest rank.
    """
    import torch
    import torch.distributed as dist

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    device = "cuda" if backend == "nccl" else "cpu"
    if device == "cuda":
        torch.cuda.set_device(rank)
    dist.init_process_group(backend, rank=rank, world_size=world)
    meter = Meter(torch, device)
    for size in sizes:
        full = torch.zeros(size // 2, dtype=torch.bfloat16, device=device)
        part = torch.zeros(size // 2 // world, dtype=torch.bfloat16, device=device)
        received = torch.empty_like(full)
        calls: dict[str, Callable[[], Any]] = {
            "all_reduce": partial(dist.all_reduce, full),
            "all_gather": partial(dist.all_gather_into_tensor, full, part),
            "reduce_scatter": partial(dist.reduce_scatter_tensor, part, full),
            "all_to_all": partial(dist.all_to_all_single, received, full),
        }
        for op, call in calls.items():
            try:
                micros = meter.time(call)
            except (RuntimeError, NotImplementedError):
                continue  # gloo does not support all of them
            slowest = torch.tensor(micros, dtype=torch.float64, device=device)
            dist.all_reduce(slowest, dist.ReduceOp.MAX)
            if rank == 0:
                case = Case(op, "bf16", {"gpus": world, "message_bytes": size})
                queue.put(row_of(case, slowest.tolist()))
    dist.destroy_process_group()


def collectives(torch: Any, device: str, quick: bool) -> Iterator[Row]:
    """Yield rows for 2, 4, 8 ... of the GPUs here, or for two processes on a CPU."""
    count = torch.cuda.device_count() if device == "cuda" else 2
    sizes = MESSAGES[:: 6 if quick else 1][: 2 if device == "cpu" else None]
    worlds = [n for n in (2, 4, 8, 16) if n <= count]
    for world in worlds:
        context = torch.multiprocessing.get_context("spawn")
        queue = context.Queue()
        backend = "nccl" if device == "cuda" else "gloo"
        port = 29500 + world
        torch.multiprocessing.spawn(
            _collectives, (world, backend, port, sizes, queue), nprocs=world
        )
        while not queue.empty():
            yield queue.get()


def write(path: Path, rows: list[Row], gpu: str, source: str) -> None:
    """Write the file; every row names what measured it."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore")
        writer.writeheader()
        for row in rows:
            writer.writerow({**row, "gpu": gpu, "source": source})


def versions(torch: Any, device: str) -> str:
    """Return this script and the versions of PyTorch, CUDA and the driver, as one text."""
    parts = [f"tools/catalogue/measure_gpu.py, PyTorch {torch.__version__}"]
    if device == "cuda":
        parts.append(f"CUDA {torch.version.cuda}")
        try:
            query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
            answer = subprocess.run(query, capture_output=True, text=True, check=True, timeout=30)
            parts.append(f"driver {answer.stdout.split()[0]}")
        except (OSError, subprocess.SubprocessError, IndexError):
            pass
    return ", ".join(parts)


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    """Return the options of the command line, or of ``words`` if given."""
    text = (__doc__ or "").split("\n", 1)[0]
    parser = argparse.ArgumentParser(prog="measure_gpu.py", description=text)
    model = parser.add_mutually_exclusive_group(required=True)
    model.add_argument("--config", type=Path, help="the model's config.json from Hugging Face")
    model.add_argument("--shape", choices=SHAPES, help="a built-in shape")
    parser.add_argument("--tp", default="1", help="tensor parallel sizes, for example 1,2,4")
    parser.add_argument("--dtypes", default="bf16", help="of GEMMs: bf16 or bf16,fp8")
    parser.add_argument("--out", type=Path, default=Path("operators.csv"))
    parser.add_argument("--gpu", help="name of the GPU type in the catalogue; default: its own")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--quick", action="store_true", help="a few sizes of everything")
    parser.add_argument(
        "--sm-shares",
        default="0.125,0.25,0.375,0.5,0.625,0.75,0.875",
        help="shares of the multiprocessors for pairs; 1: two streams without shares",
    )
    parser.add_argument("--only-interference", action="store_true", help="pairs and shares only")
    parser.add_argument("--no-interference", action="store_true")
    parser.add_argument("--no-collectives", action="store_true")
    parser.add_argument("--list", action="store_true", help="count what would be measured, stop")
    return parser.parse_args(words)


def shares_of(options: argparse.Namespace) -> list[float]:
    """Return the numbers of --sm-shares; raise ValueError for one outside (0, 1]."""
    try:
        shares = [float(part) for part in options.sm_shares.split(",")]
    except ValueError:
        shares = [0.0]
    if not all(0.0 < share <= 1.0 for share in shares):
        raise ValueError(f"--sm-shares {options.sm_shares}: give shares above 0 and up to 1.")
    return shares


def shape_and_cases(options: argparse.Namespace) -> tuple[Shape, list[Case]]:
    """Return the model shape and the cases to time; raise ValueError for an impossible option."""
    try:
        tps = [int(part) for part in options.tp.split(",")]
    except ValueError:
        raise ValueError(f"--tp {options.tp}: give numbers, for example 1,2,4.") from None
    dtypes = options.dtypes.split(",")
    if set(dtypes) - {"bf16", "fp8"} or min(tps) < 1:
        raise ValueError("--dtypes knows bf16 and fp8, --tp numbers from 1.")
    shares_of(options)
    if options.config is None:
        shape = SHAPES[options.shape]
        return shape, cases(shape, tps, dtypes, options.quick)
    try:
        config = json.loads(options.config.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{options.config} cannot be read as JSON: {error}") from None
    if not isinstance(config, dict):
        raise ValueError(f"{options.config} holds no JSON object: give a model's config.json.")
    shape = shape_of(config)
    return shape, cases(shape, tps, dtypes, options.quick)


def measure(torch: Any, shape: Shape, work: list[Case], options: argparse.Namespace) -> list[Row]:
    """Return all rows; print notes on omitted cases to stderr."""
    meter, device = Meter(torch, options.device), options.device
    if device == "cpu":  # smallest run, to check that it works
        work = [c for c in work if max(c.size.get(name, 0) for name in GROWING) <= CPU_LARGEST]
    if options.only_interference:
        work = []
    few = representatives(shape) if device == "cuda" and not options.no_interference else []
    rows = list(alone(meter, [*(case for case in work if case not in few), *few]))
    if few:
        rows += side_by_side(meter, few, shares_of(options))
    if not options.no_collectives:
        rows += collectives(torch, device, options.quick)
    for what, note in meter.notes.items():
        print(f"{what}: {note}", file=sys.stderr)
    return rows


def main(words: list[str] | None = None) -> int:
    """Measure and write the file; return the exit status, 2 with an explanation on stderr."""
    options = arguments(words)
    try:
        shape, work = shape_and_cases(options)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    if options.list:
        print(f"{len(work)} operators alone, {len({case.op for case in work})} kinds")
        return 0
    try:
        import torch
    except ImportError:
        print(NO_TORCH, file=sys.stderr)
        return 2
    if options.device == "cuda" and not torch.cuda.is_available():
        print(NO_CUDA, file=sys.stderr)
        return 2
    with torch.inference_mode():
        rows = measure(torch, shape, work, options)
    name = torch.cuda.get_device_name(0) if options.device == "cuda" else "CPU"
    write(options.out, rows, options.gpu or name, versions(torch, options.device))
    print(f"{len(rows)} measurements in {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
