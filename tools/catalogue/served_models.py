"""Read measured deployments in a closed loop, to which estimates are fitted and compared.

There are two sources. aiconfigurator's served deployments have TTFT and TPOT. ML.ENERGY's steady
state of vLLM has the time per output token of a batch, but no TTFT and no input lengths, so these
are assumed. Models of one architecture and size are one ``shape``: DeepSeek-R1, V3 and V3.1 differ
in training only and compute the same.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from planner.errors import EXPECTED
from planner.inputs.catalogue.efficiency import efficiencies
from planner.inputs.estimates.deployment_rows import DRAFTING, deployment
from simulation.arrays import BoolArray, FloatArray
from simulation.performance.efficiency import Efficiencies
from simulation.performance.estimate.closed_loop import ClosedLoop
from simulation.performance.estimate.defaults import DRAWN
from simulation.performance.estimate.estimate import fit_into_memory, loop_of
from simulation.performance.estimate.measured_corrections import Traits, traits_of

Rows = npt.NDArray[np.int64]

SILICON = "profiles/silicon_measured.csv.gz"
ENERGY = "power/mlenergy_llm_inference.csv"
# Assumed input tokens of ML.ENERGY's tasks: typical of LMArena prompts, and of GPQA questions with
# their instructions. Text tasks only: images and videos add an unknown number of tokens.
TASK_INPUT = {"lm-arena-chat": 300.0, "gpqa": 300.0}


@dataclass(frozen=True, slots=True, eq=False)
class Served:
    """Measured deployments as arrays of one length; ``ttft_s`` is nan if not measured."""

    loop: ClosedLoop
    tbt_s: FloatArray
    ttft_s: FloatArray
    shape: npt.NDArray[np.str_]
    known: npt.NDArray[np.str_]  # the model's name in the catalogue
    gpu: npt.NDArray[np.str_]
    engine: npt.NDArray[np.str_]
    precision: npt.NDArray[np.str_]
    users: FloatArray
    silicon: BoolArray
    unsure: BoolArray  # may have used speculative decoding, which the source does not state
    copies: FloatArray  # rows with the same measured figures
    traits: Traits
    drafts: BoolArray  # the model has layers that draft tokens
    version: npt.NDArray[np.str_]  # engine with its version; "?" if unknown
    source: npt.NDArray[np.str_]  # who measured it
    refused: tuple[str, ...]

    @property
    def size(self) -> int:
        return self.tbt_s.size

    def take(self, rows: Rows) -> Served:
        """Return some of the rows."""
        values: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        for name, value in values.items():
            if isinstance(value, ClosedLoop | Traits):
                values[name] = value.take(rows)
            elif isinstance(value, np.ndarray):
                values[name] = value[rows]
        return Served(**values)


def served(data: Path, energy: bool = True, factors: Efficiencies | None = None) -> Served:
    """Return all measured deployments under ``data``.

    Without ``factors``, the catalogue's efficiency factors of kernels are used.
    """
    factors = factors or efficiencies()
    rows = silicon_rows(data) + (energy_rows(data) if energy else [])
    placed, kept, refused = [], [], []
    for row in rows:
        try:
            placed.append(fit_into_memory(deployment(row["given"])))
            kept.append(row)
        except EXPECTED as problem:
            refused.append(str(problem))
    loop = loop_of(placed, factors)
    tbt = np.array([row["tbt_s"] for row in kept])
    ttft = np.array([row["ttft_s"] for row in kept])
    shape = np.array([_shape(p.deployment.shape.name) for p in placed])
    figures = [
        (round(a, 8), b if np.isnan(b) else round(b, 7)) for a, b in zip(tbt, ttft, strict=True)
    ]
    count = Counter(map(str, figures))
    silicon = np.array([row["silicon"] for row in kept])
    traits = traits_of([p.deployment for p in placed])
    engine = np.array([p.deployment.engine for p in placed])
    version = traits.labels["version"]
    return Served(
        loop=loop,
        tbt_s=tbt,
        ttft_s=ttft,
        shape=shape,
        known=np.array([p.deployment.shape.name for p in placed]),
        gpu=np.array([p.deployment.gpu.name for p in placed]),
        engine=engine,
        precision=np.array([p.arranged.decode.weights for p in placed]),
        users=loop.users,
        silicon=silicon,
        unsure=_unsure(shape, silicon, figures, kept),
        copies=np.array([count[str(f)] for f in figures], np.float64),
        traits=traits,
        drafts=np.array([p.deployment.shape.name.startswith(DRAFTING) for p in placed]),
        version=np.where(version == "", np.char.add(engine, " ?"), version),
        source=np.array([_source(row) for row in kept]),
        refused=tuple(refused),
    )


def silicon_rows(data: Path) -> list[dict[str, Any]]:
    """Return aiconfigurator's rows: the given traits and the measured values."""
    frame = pl.read_csv(data / SILICON, infer_schema_length=None)
    rows = []
    for row in frame.iter_rows(named=True):
        traits = {k: v for k, v in row.items() if not k.startswith("silicon_")}
        traits["model"] = traits.pop("model_path")
        rows.append(
            {
                "given": traits,
                "tbt_s": row["silicon_tpot_ms"] / 1e3,
                "ttft_s": row["silicon_ttft_ms"] / 1e3,
                "silicon": True,
            }
        )
    return rows


def energy_rows(data: Path) -> list[dict[str, Any]]:
    """Return ML.ENERGY's text tasks; the time per token is the batch divided by the throughput."""
    frame = pl.read_csv(data / ENERGY, infer_schema_length=None)
    rows = []
    for row in frame.iter_rows(named=True):
        if row["task"] not in TASK_INPUT:
            continue
        gpus, spread = row["num_gpus"], row["data_parallel"] > 1
        apart = row["expert_parallel"] > 1
        traits = {
            "model": row["model_id"],
            "gpu": row["gpu_model"],
            "engine": "vllm",
            "precision": row["weight_precision"],
            "tp": 1 if spread else gpus,
            "attention_dp": gpus if spread else 1,
            "moe_tp": 1 if apart else gpus,
            "moe_ep": gpus if apart else 1,
            "isl": TASK_INPUT[row["task"]],
            "osl": row["avg_output_len"],
            "concurrency": max(1.0, row["avg_batch_size"]),
        }
        tbt = row["avg_batch_size"] / row["output_throughput_tokens_per_sec"]
        rows.append({"given": traits, "tbt_s": tbt, "ttft_s": np.nan, "silicon": False})
    return rows


def _shape(name: str) -> str:
    """Return one name for all releases that compute the same."""
    for stem in ("deepseek-v3", "deepseek-r1"):
        if name.startswith(stem) and "3.2" not in name:
            return "deepseek-v3"
    for stem in ("llama-3.1-70b", "llama-3.3-70b"):
        if name.startswith(stem):
            return "llama-3-70b"
    return name.replace("-thinking", "").replace("-instruct", "")


def _source(row: dict[str, Any]) -> str:
    """Return who measured a row.

    aiconfigurator's file also has InferenceMAX's runs, which their lengths identify.
    """
    if not row["silicon"]:
        return "ML.ENERGY"
    traits = row["given"]
    return "InferenceMAX" if (traits["isl"], traits["osl"]) in DRAWN else "aiconfigurator"


def _unsure(
    shape: npt.NDArray[np.str_], silicon: BoolArray, figures: list[Any], rows: list[dict[str, Any]]
) -> BoolArray:
    """Return which rows may hide speculative decoding.

    These are rows of models that draft tokens themselves. A row does not count if the same
    measurement is also listed under DeepSeek-V3, since those rows ran without it.
    """
    measured = zip(figures, rows, silicon, strict=True)
    plain = {f for f, row, served in measured if served and "V3" in row["given"]["model"]}
    speculative = np.isin(shape, ["deepseek-v3", "qwen3.5-397b-a17b"]) & silicon
    return np.asarray(speculative & ~np.array([f in plain for f in figures]))
