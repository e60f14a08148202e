"""Read measured power as loads: ML.ENERGY's models, splitwise's A100 runs, InferenceX's MI355X.

The ML.ENERGY rows have no input lengths. Loads are therefore stored for several input lengths, and
read at the length of the row's task. It is published for text tasks. For code, image and video it
is a nuisance parameter that ``tools.catalogue.fit_power`` fits.
"""

from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
import numpy.typing as npt
import polars as pl

from planner.inputs import catalogue
from planner.inputs.catalogue.estimate_calibration import efficiencies
from simulation.arrays import FloatArray
from simulation.performance.graph import OperatorGraph, operator_graph
from simulation.performance.power import Load, load
from simulation.performance.roofline import OperatorTiming
from simulation.performance.specs import Arrangement, GpuSpec
from simulation.performance.work import iteration

Names = npt.NDArray[np.str_]

MLENERGY = "power/mlenergy_llm_inference.csv"
SPLITWISE = "profiles/splitwise_perf_model.csv"
INFERENCEX = "profiles/inferencex_deepseek_r1.csv"
GPUS = {"H100": "H100-SXM", "B200": "B200"}
PRECISION = {"bfloat16": "bf16", "fp8": "fp8", "mxfp4": "fp4"}
TASKS = ("lm-arena-chat", "gpqa", "sourcegraph-fim", "image-chat", "video-chat")
# Mean prompts of the first two tasks: ML.ENERGY blog, leaderboard v3.0 (2026-01-13), Qwen3-32B.
TEXT_TOKENS = {"lm-arena-chat": 634.0, "gpqa": 224.0}
GRID = np.array([100.0, 300.0, 600.0, 1000.0, 2000.0, 4000.0, 8000.0])  # input tokens

# Releases and precisions of one architecture count as one model when models are left out.
FAMILIES = {
    "qwen3-235b": "Qwen3-235B", "qwen3-vl-235b": "Qwen3-235B",
    "qwen3-30b": "Qwen3-30B-A3B", "qwen3-coder-30b": "Qwen3-30B-A3B",
    "qwen3-omni-30b": "Qwen3-30B-A3B", "qwen3-vl-30b": "Qwen3-30B-A3B",
    "qwen3-32b": "Qwen3-32B", "qwen3-vl-32b": "Qwen3-32B",
    "qwen3-8b": "Qwen3-8B", "qwen3-vl-8b": "Qwen3-8B",
    "llama-3.1-70b": "Llama-3-70B", "llama-3.3-70b": "Llama-3-70B",
    "deepseek": "DeepSeek-V3", "nemotron-nano-12b": "Nemotron-Nano-12B",
}  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class PowerRows:
    """Measured rows; ``loads`` has shape ``[rows, len(GRID)]``, all other arrays ``[rows]``."""

    model: Names  # as published
    family: Names
    gpu: Names  # of the catalogue
    task: npt.NDArray[np.int64]  # index of TASKS
    weights: Names
    batch: FloatArray
    share: FloatArray  # measured watts per GPU over TDP
    loads: Load
    planned_s: FloatArray  # iteration time a roofline profile gives, [rows, len(GRID)]

    def at(self, input_tokens: FloatArray, planned: bool = False) -> Load:
        """Return the loads at the input tokens of each task, which have shape ``[len(TASKS)]``.

        They are interpolated between the lengths of GRID. ``planned``: with ``planned_s`` as their
        iteration times.
        """
        tokens = input_tokens[self.task]
        above = np.clip(np.searchsorted(GRID, tokens), 1, len(GRID) - 1)
        weight = (tokens - GRID[above - 1]) / (GRID[above] - GRID[above - 1])
        rows = np.arange(len(tokens))

        def interpolated(values: FloatArray) -> FloatArray:
            low = values[rows, above - 1]
            return np.asarray(low + weight * (values[rows, above] - low))

        loads = {f.name: interpolated(getattr(self.loads, f.name)) for f in fields(Load)}
        if planned:
            loads["seconds"] = interpolated(self.planned_s)
        return Load(**loads)


def architecture_of(model: str) -> str:
    """Return the name of a model's architecture, which its releases share."""
    name = catalogue.model_name(model)
    return next((group for start, group in FAMILIES.items() if name.startswith(start)), name)


def block_scaled(model: str, precision: str, gpu: str) -> bool:
    """Return whether the expert kernel widens or rescales its weights.

    Qwen's fp8 weights have a scale per block of 128 x 128 (``config.json``: weight_block_size),
    which Triton's grouped GEMM applies. DeepSeek's weights have one too, but ML.ENERGY ran them
    with FlashInfer's kernel (ml-energy/benchmark @ 60f99cc, configs/vllm/lm-arena-chat/deepseek-ai/
    DeepSeek-V3.1/B200/monolithic.env.yaml: VLLM_USE_FLASHINFER_MOE_FP8). Llama 4's have one per
    channel. Hopper widens mxfp4 to 16 bits. Blackwell multiplies 4 bits.
    """
    return (precision == "fp8" and "Qwen" in model) or (precision == "fp4" and gpu == "H100")


def arrangement(row: dict[str, object], precision: str, routed: bool) -> Arrangement:
    """Return the arrangement of a row.

    vLLM's expert parallelism spans the tensor and data parallel GPUs of attention.
    """
    gpus, copies = int(str(row["num_gpus"])), int(str(row["data_parallel"]))
    if not routed:
        return Arrangement(tp=gpus // copies, attention_dp=copies, weights=precision)
    experts = int(str(row["expert_parallel"]))
    return Arrangement(
        tp=gpus // copies,
        attention_dp=copies,
        moe_tp=gpus // experts,
        moe_ep=experts,
        weights=precision,
    )


def steady(batch: float, output: float) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Return the mean iteration of a steady batch, for each input length of GRID.

    Its decodes, their context tokens, prompt tokens, and query-key pairs of these prompts. Answers
    have ``output`` tokens.
    """
    begun = batch / output  # requests whose prompt one iteration computes
    return (
        np.full(len(GRID), batch),
        batch * (GRID + output / 2),
        begun * GRID,
        begun * GRID**2 / 2,
    )


def mlenergy(data: Path, planned: bool = False) -> PowerRows:
    """Return all 838 rows; ``planned``: with the iteration times of roofline profiles too."""
    frame = pl.read_csv(data / MLENERGY)
    specs = {name: catalogue.gpu(known) for name, known in GPUS.items()}
    graphs: dict[tuple[str, Arrangement], OperatorGraph] = {}
    loads, times = [], []
    for row in frame.iter_rows(named=True):
        precision = PRECISION[row["weight_precision"]]
        shape = catalogue.shape(row["model_id"])
        where = arrangement(row, precision, shape.experts > 0)
        graph = graphs.setdefault((shape.name, where), operator_graph(shape, where))
        batch, gpu = float(row["avg_batch_size"]), specs[row["gpu_model"]]
        steady_load = steady(batch, float(row["avg_output_len"]))
        seconds = batch / float(row["output_throughput_tokens_per_sec"])
        scaled = block_scaled(row["model_id"], precision, row["gpu_model"])
        loads.append(load(graph, gpu, seconds, iteration(*steady_load), block_scaled=scaled))
        times.append(roofline_s(graph, gpu, steady_load) if planned else loads[-1].seconds)
    names = frame["model_id"].to_numpy().astype(np.str_)
    gpu_names = np.array([GPUS[name] for name in frame["gpu_model"]])
    tdp = np.array([specs[name].tdp_w for name in frame["gpu_model"]], np.float64)
    return PowerRows(
        model=names,
        family=np.array([architecture_of(name) for name in names]),
        gpu=gpu_names,
        task=np.array([TASKS.index(name) for name in frame["task"]]),
        weights=np.array([PRECISION[p] for p in frame["weight_precision"]]),
        batch=frame["avg_batch_size"].to_numpy().astype(np.float64),
        share=frame["avg_power_watts_per_gpu"].to_numpy() / tdp,
        loads=_stack_loads(loads),
        planned_s=np.stack(times),
    )


def roofline_s(
    graph: OperatorGraph,
    gpu: GpuSpec,
    point: tuple[FloatArray, FloatArray, FloatArray, FloatArray],
) -> FloatArray:
    """Return the iteration time from published facts and kernel efficiencies.

    An unmeasured model gets its time in the same way.
    """
    it, factors = iteration(*point), efficiencies()
    total = sum(
        (operator.count * OperatorTiming(gpu, factors)(operator, it))
        for operator in graph.operators
    )
    return np.asarray(total, np.float64)


def splitwise(data: Path) -> tuple[Names, Load, FloatArray]:
    """Return the arrangement, decode load and mean share of TDP of A100-80GB runs.

    The mean is over a run of 128 output tokens. Only runs with at most 2,048 prompt tokens in all
    are used, since decodes then dominate the mean.
    """
    frame = pl.read_csv(data / SPLITWISE).filter(
        (pl.col("average_power") > 0) & (pl.col("prompt_size") * pl.col("batch_size") <= 2048)
    )
    gpu = catalogue.gpu("A100-80GB")
    names, loads = [], []
    for row in frame.iter_rows(named=True):
        tp, batch = int(row["tensor_parallel"]), float(row["batch_size"])
        graph = operator_graph(catalogue.shape(row["model"]), Arrangement(tp=tp))
        context = batch * (row["prompt_size"] + row["token_size"] / 2)
        loads.append(
            load(graph, gpu, np.full(1, row["token_time"] / 1000), iteration(batch, context))
        )
        names.append(f"{row['model']} x{tp}")
    stacked = _stack_loads(loads)
    flat = Load(**{f.name: getattr(stacked, f.name)[:, 0] for f in fields(Load)})
    return np.array(names), flat, frame["average_power"].to_numpy().astype(np.float64)


def inferencex(data: Path) -> tuple[Names, Load, FloatArray]:
    """Return the lengths, load and share of TDP of DeepSeek-R1's runs with power, on MI355X.

    Repeated runs count once. Lengths are drawn from 80% to 100% of the stated ones. The sequences
    in decode follow from Little's law.
    """
    frame = pl.read_csv(data / INFERENCEX, infer_schema_length=None)
    frame = frame.filter(pl.col("gpu_power_w").is_not_null())
    frame = frame.unique(["gpu", "decode_tp", "isl", "osl", "concurrency"], maintain_order=True)
    gpu = catalogue.gpu("MI355X")
    names, loads = [], []
    for row in frame.iter_rows(named=True):
        tp, prompt, answer = row["decode_tp"], 0.9 * row["isl"], 0.9 * row["osl"]
        where = Arrangement(tp=tp, moe_tp=tp, weights=row["precision"])
        rate = tp * row["output_tokens_per_s_per_gpu"]
        batch = min(row["concurrency"], rate * row["tpot_median_ms"] / 1000)
        begun = batch / answer
        it = iteration(batch, batch * (prompt + answer / 2), begun * prompt, begun * prompt**2 / 2)
        graph = operator_graph(catalogue.shape(row["model"]), where)
        loads.append(load(graph, gpu, np.full(1, batch / rate), it))
        names.append(f"{row['isl']} {row['osl']}")
    stacked = _stack_loads(loads)
    flat = Load(**{f.name: getattr(stacked, f.name)[:, 0] for f in fields(Load)})
    return np.array(names), flat, frame["gpu_power_w"].to_numpy() / (gpu.tdp_w or np.nan)


def _stack_loads(loads: list[Load]) -> Load:
    """Return loads with arrays ``[n]`` as one load with arrays ``[loads, n]``."""
    return Load(**{f.name: np.stack([getattr(x, f.name) for x in loads]) for f in fields(Load)})
