"""Read measured deployments in a closed loop, to which estimates are fitted and compared.

aiconfigurator's served deployments and InferenceMAX's runs of DeepSeek-R1 have TTFT and TPOT.
InferenceMAX states whether a run drafts tokens, and so labels the rows of aiconfigurator's file
that are the same runs. ML.ENERGY's steady
state of vLLM has the time per output token of a batch, but no TTFT and no input lengths, so these
are assumed. NVIDIA's published peaks of TensorRT-LLM give a time per output token at the largest
batch. Models of one architecture and size are one ``shape``: DeepSeek-R1, V3 and V3.1 differ
in training only and compute the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from planner.errors import EXPECTED
from planner.inputs.catalogue.estimate_calibration import efficiencies
from planner.inputs.estimates.deployment_rows import deployment
from simulation.arrays import BoolArray, FloatArray
from simulation.performance.efficiency import NEAREST, Efficiencies
from simulation.performance.estimate.closed_loop import ClosedLoop
from simulation.performance.estimate.defaults import INFERENCEMAX_LENGTHS
from simulation.performance.estimate.estimate import fit_into_memory, loop_of
from simulation.performance.estimate.measured_corrections import Traits, traits_of
from tools.catalogue.recipes import (
    RUN,
    SIDES,
    Recipe,
    arrangement,
    facts_of,
    read_recipes,
    traits_of_recipe,
)

Rows = npt.NDArray[np.int64]
TableRow = Mapping[str, Any]  # of a CSV file, by column

SILICON = "profiles/silicon_measured.csv.gz"
ENERGY = "power/mlenergy_llm_inference.csv"
LABELLED = "profiles/inferencex_deepseek_r1.csv"
PEAKS = "profiles/trtllm_max_throughput.csv"
# Draft tokens of the InferenceMAX recipes with multi-token prediction, which its rows omit. With
# attention data parallel they draft one (dsr1_*_mtp.sh and perf-changelog.yaml of InferenceX).
DRAFTED = {"sglang": 2, "trtllm": 3}
# SGLang on AMD GPUs by date, for rows that do not name it (perf-changelog.yaml of InferenceX).
RELEASES = {
    "mi300x": {"": "0.5.5.post3", "2026-01-23": "0.5.7", "2026-02-12": "0.5.8",
               "2026-02-27": "0.5.9", "2026-05-18": "0.5.12"},
    "mi355x": {"": "0.5.5.post3", "2026-01-27": "0.5.8", "2026-02-27": "0.5.9",
               "2026-05-18": "0.5.12"},
}  # fmt: skip
SAME_RUN, SIMILAR = 0.005, 0.05  # relative differences of TPOT: of copies, of one configuration
# DeepSeek-V3 and R1 compute the same without drafts, so aiconfigurator's file lists a run without
# them under both names. A run of a campaign that is listed under R1 alone drafted tokens: so did
# 126 of 128 labelled runs with drafts, and 137 of 174 without are listed under both.
TIMES = ["silicon_ttft_ms", "silicon_tpot_ms"]
CAMPAIGN = ["system", "backend", "backend_version", "mode"]
DRAFTING_IMAGE = "1.2.0rc6.post3"  # of TensorRT-LLM's recipes with drafts (the same changelog)
STANDARD = (("gb200", "sglang"),)  # campaigns without drafts (the same changelog)
# How the published peaks were run (TensorRT-LLM's developer-guide/perf-overview.md): requests of a
# run by the longer of input and output, all sent at once. gpt-oss has a KV cache of 8 bits, but
# "auto" on Hopper, which is 16 bits for its weights.
REQUESTS = {1000: 3000, 1024: 3000, 8192: 1500, 32768: 1000}
CACHE_IN_16_BITS = [("openai/gpt-oss-20b", "H100"), ("openai/gpt-oss-20b", "H200")]
MOST_SEQUENCES = 2048.0  # of a rank; TensorRT-LLM's default max_batch_size
ENGINES = {"dynamo-sglang": "sglang", "sglang": "sglang", "dynamo-trt": "trtllm", "trt": "trtllm"}
# Assumed input tokens of ML.ENERGY's tasks: typical of LMArena prompts, and of GPQA questions with
# their instructions. Text tasks only: images and videos add an unknown number of tokens.
TASK_INPUT = {"lm-arena-chat": 300.0, "gpqa": 300.0}


@dataclass(frozen=True, slots=True)
class MeasuredRow:
    """One measured deployment as its source states it."""

    given: dict[str, Any]  # columns of a row of deployments (planner/inputs/estimates)
    tbt_s: float
    ttft_s: float  # nan: not measured
    source: str  # who measured it
    silicon: bool  # has TTFT and TPOT of a served deployment
    labelled: bool = True  # it is known whether it used speculative decoding


@dataclass(frozen=True, slots=True, eq=False)
class ServedRows:
    """Measured deployments as arrays of one length; ``ttft_s`` is NaN if not measured."""

    loop: ClosedLoop
    tbt_s: FloatArray
    ttft_s: FloatArray
    shape: npt.NDArray[np.str_]
    known: npt.NDArray[np.str_]  # the model's name in the catalogue
    gpu: npt.NDArray[np.str_]
    engine: npt.NDArray[np.str_]
    precision: npt.NDArray[np.str_]
    users: FloatArray
    silicon: BoolArray  # has TTFT and TPOT of a served deployment
    speculative: BoolArray  # measured with speculative decoding
    peak: BoolArray  # a published maximum of throughput
    foreign: BoolArray  # on a GPU of a vendor without measured kernels
    unsure: BoolArray  # may have used speculative decoding, which the source does not state
    copies: FloatArray  # rows with the same measured figures
    traits: Traits
    version: npt.NDArray[np.str_]  # engine with its version; "?" if unknown
    source: npt.NDArray[np.str_]  # who measured it
    refused: tuple[str, ...]

    @property
    def size(self) -> int:
        """Return the number of measured deployments."""
        return self.tbt_s.size

    def take(self, rows: Rows) -> ServedRows:
        """Return the deployments at the indices ``rows``; ``refused`` is the same."""
        taken: ServedRows = _take_rows(self, rows)
        return taken


def _take_rows(value: Any, rows: Rows) -> Any:
    """Return ``value`` with every array in it at the indices ``rows``."""
    if isinstance(value, np.ndarray):
        return value[rows]
    if isinstance(value, Mapping):
        return {name: _take_rows(part, rows) for name, part in value.items()}
    if isinstance(value, ServedRows | ClosedLoop | Traits):
        parts = {part.name: _take_rows(getattr(value, part.name), rows) for part in fields(value)}
        return type(value)(**parts)
    return value


def served_rows(data: Path, energy: bool = True, factors: Efficiencies | None = None) -> ServedRows:
    """Return the measured deployments under ``data``; those that cannot be built are ``refused``.

    With ``energy``, ML.ENERGY's rows and the published peaks are among them. Without ``factors``,
    the catalogue's efficiency factors of kernels are used.
    """
    factors = factors or efficiencies()
    rows = silicon_rows(data) + labelled_rows(data)
    rows += energy_rows(data) + peak_rows(data) if energy else []
    placed, kept, refused = [], [], []
    for row in rows:
        try:
            placed.append(fit_into_memory(deployment(row.given)))
            kept.append(row)
        except EXPECTED as problem:
            refused.append(str(problem))
    loop = loop_of(placed, factors)
    tbt = np.array([row.tbt_s for row in kept])
    ttft = np.array([row.ttft_s for row in kept])
    shape = np.array([_shape(p.deployment.shape.name) for p in placed])
    # Rows with the same rounded TBT and TTFT are copies of one measurement.
    figures = [
        (round(a, 8), b if np.isnan(b) else round(b, 7)) for a, b in zip(tbt, ttft, strict=True)
    ]
    count = Counter(map(str, figures))
    silicon = np.array([row.silicon for row in kept])
    traits = traits_of([p.deployment for p in placed])
    engine = np.array([p.deployment.engine for p in placed])
    version = traits.labels["version"]
    return ServedRows(
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
        speculative=loop.drafted > 0.0,
        peak=np.array([row.source == "TensorRT-LLM" for row in kept]),
        foreign=np.array([p.deployment.gpu.family not in NEAREST for p in placed]),
        unsure=_unsure(shape, silicon, figures, kept),
        copies=np.array([count[str(f)] for f in figures], np.float64),
        traits=traits,
        version=np.where(version == "", np.char.add(engine, " ?"), version),
        source=np.array([row.source for row in kept]),
        refused=tuple(refused),
    )


def silicon_rows(data: Path) -> list[MeasuredRow]:
    """Return aiconfigurator's rows.

    Rows of DeepSeek-R1 and V3 also state the tokens that they drafted. The recipe of their run
    states the arrangement of the disaggregated ones.
    """
    frame = pl.read_csv(data / SILICON, infer_schema_length=None)
    labels, recipes = _Labels.read(data, frame), read_recipes()
    stated = frame.filter(pl.col("decode_num_workers").is_not_null()).iter_rows(named=True)
    sides = {
        _times(row): {name: row[name] for name in row if name.startswith(SIDES)} for row in stated
    }
    rows = []
    for incomplete in frame.iter_rows(named=True):
        row = incomplete | sides.get(_times(incomplete), {})
        traits = {k: v for k, v in row.items() if not k.startswith("silicon_")}
        traits["model"] = traits.pop("model_path")
        drawn_lengths = (traits["isl"], traits["osl"]) in INFERENCEMAX_LENGTHS
        label: str | None = None
        recipe: Recipe = {}
        if "DeepSeek-R1" in traits["model"] or "DeepSeek-V3" in traits["model"]:
            label = labels.label(row)
            recipe = facts_of(recipes.get(_recipe_key(row), []), row, label)
            label = label or recipe.get("speculative")
        arranged = traits_of_recipe(recipe)
        if arranged:
            traits = {k: v for k, v in traits.items() if not k.startswith(SIDES)} | arranged
        if label == "mtp":
            ranks = max(row["attention_dp_size"] or 1, row["decode_attention_dp_size"] or 1)
            attention_dp = recipe.get("decode_dp", ranks > 1)
            assumed = 1 if attention_dp else DRAFTED[row["backend"]]
            traits["draft_tokens"] = recipe.get("drafts") or assumed
        rows.append(
            MeasuredRow(
                given=traits,
                tbt_s=row["silicon_tpot_ms"] / 1e3,
                ttft_s=row["silicon_ttft_ms"] / 1e3,
                source="InferenceMAX" if drawn_lengths else "aiconfigurator",
                silicon=True,
                labelled=label is not None,
            )
        )
    return rows


def _times(row: TableRow) -> tuple[float, ...]:
    """Return the measured times of a row. Rows with the same times are of one run."""
    return tuple(row[name] for name in TIMES)


def _recipe_key(row: TableRow) -> tuple[Any, ...]:
    """Return the row's key among the recipes; no recipe has that of a run in one pool ("agg")."""
    gpu = row["system"].removesuffix("_sxm") if row["mode"] == "disagg" else ""
    return (gpu, *(row[name] for name in ("backend", "precision", "isl", "osl", "concurrency")))


@dataclass(frozen=True, slots=True)
class _Labels:
    """What tells whether runs of DeepSeek-R1 and V3 drafted tokens ("mtp") or not ("none")."""

    labelled: Mapping[tuple[Any, ...], list[tuple[float, str]]]  # see _labelled_runs
    v3_times: set[tuple[Any, ...]]  # TIMES of the rows that are listed under V3
    campaigns: set[tuple[Any, ...]]  # CAMPAIGN of the rows that are listed under V3 and R1

    @classmethod
    def read(cls, data: Path, silicon: pl.DataFrame) -> _Labels:
        """Read the labelled runs; take the rest from aiconfigurator's rows ``silicon``."""
        model = pl.col("model_path").str
        v3_times = set(silicon.filter(model.contains("V3")).select(TIMES).rows())
        structs = [dict(zip(TIMES, times, strict=True)) for times in v3_times]
        both = pl.struct(TIMES).is_in(structs) & model.contains("R1")
        campaigns = set(silicon.filter(both).select(CAMPAIGN).rows())
        return cls(_labelled_runs(data), v3_times, campaigns)

    def label(self, row: TableRow) -> str | None:
        """Return the label of one of aiconfigurator's rows; None: nothing tells it."""
        label = self._label_of_same_run(row)
        if label is None and _times(row) in self.v3_times:
            return "none"
        if row["backend_version"] == DRAFTING_IMAGE:
            return "mtp"
        if label is None and tuple(row[name] for name in CAMPAIGN) in self.campaigns:
            return "none" if (row["system"], row["backend"]) in STANDARD else "mtp"
        return label

    def _label_of_same_run(self, row: TableRow) -> str | None:
        """Return the label of the labelled run with the row's configuration and TPOT.

        Without one of the same TPOT it is the only label of those with a similar TPOT.
        """
        key = (row["system"].removesuffix("_sxm"), row["backend"], row["precision"],
               row["mode"] == "disagg", row["isl"], row["osl"], row["concurrency"])  # fmt: skip
        nearest_first = sorted(
            (abs(tpot / row["silicon_tpot_ms"] - 1.0), label)
            for tpot, label in self.labelled.get(key, [])
        )
        if nearest_first and nearest_first[0][0] < SAME_RUN:
            return nearest_first[0][1]
        similar = {label for difference, label in nearest_first if difference < SIMILAR}
        return similar.pop() if len(similar) == 1 else None


def _labelled_runs(data: Path) -> dict[tuple[Any, ...], list[tuple[float, str]]]:
    """Return TPOT in milliseconds and the label of each labelled run, by its configuration."""
    labels: dict[tuple[Any, ...], list[tuple[float, str]]] = {}
    for row in pl.read_csv(data / LABELLED, infer_schema_length=None).iter_rows(named=True):
        key = (row["gpu"], ENGINES[row["engine"]], row["precision"], row["disaggregated"],
               row["isl"], row["osl"], row["concurrency"])  # fmt: skip
        tpot = row["tpot_mean_ms"] or row["tpot_median_ms"]
        labels.setdefault(key, []).append((tpot, row["speculative"]))
    return labels


def labelled_rows(data: Path) -> list[MeasuredRow]:
    """Return InferenceMAX's runs of DeepSeek-R1, without those that aiconfigurator's file has."""
    aiconfigurator_tpot_ms = pl.read_csv(data / SILICON, infer_schema_length=None)[
        "silicon_tpot_ms"
    ].to_numpy()
    rows, recipes = [], read_recipes()
    for row in pl.read_csv(data / LABELLED, infer_schema_length=None).iter_rows(named=True):
        statistic = "mean" if row["tpot_mean_ms"] else "median"
        tpot, ttft = row[f"tpot_{statistic}_ms"], row[f"ttft_{statistic}_ms"]
        difference = np.abs(aiconfigurator_tpot_ms / tpot - 1.0).min()
        if statistic == "mean" and difference < SAME_RUN / 50:
            continue
        image = row["engine_image"] or ""
        engine = ENGINES[row["engine"]]
        version = image.rpartition(":")[2].lstrip("v").split("-")[0]
        run = (row["gpu"], engine, *(row[name] for name in RUN[2:])) if row["disaggregated"] else ()
        silicon_columns = {  # named as in aiconfigurator's file
            "backend_version": version,
            "decode_num_workers": row["decode_workers"],
            "decode_tp_size": row["decode_tp"],
            "decode_moe_ep_size": row["decode_ep"],
            "prefill_moe_ep_size": row["prefill_ep"],
        }
        recipe = facts_of(recipes.get(run, []), silicon_columns, row["speculative"])
        assumed = 1 if row["decode_dp_attention"] else DRAFTED[engine]
        drafted = 0 if row["speculative"] == "none" else recipe.get("drafts") or assumed
        traits = {
            "model": "deepseek-ai/DeepSeek-R1",
            "gpu": row["gpu"],
            "engine": engine,
            "engine_version": version or _release(row["gpu"], row["date"]),
            "precision": row["precision"],
            "mode": "disagg" if row["disaggregated"] else "agg",
            "ttft_statistic": statistic,
            "draft_tokens": drafted,
            **{name: row[name] for name in ("isl", "osl", "concurrency")},
        }
        # A run in one pool has its arrangement in the columns of the decode side.
        for side in SIDES if row["disaggregated"] else ("decode_",):
            prefix = side if row["disaggregated"] else ""
            tp, ep = row[f"{side}tp"], row[f"{side}ep"]
            traits |= arrangement(prefix, tp, ep, bool(row[f"{side}dp_attention"]))
            if prefix:
                traits[f"{prefix}workers"] = row[f"{side}workers"]
        if batch := recipe.get("max_num_seqs"):
            traits["max_num_seqs"] = batch
        rows.append(MeasuredRow(traits, tpot / 1e3, ttft / 1e3, "InferenceMAX", silicon=True))
    return rows


def _release(gpu: str, date: str) -> str:
    """Return SGLang's version of an AMD ``gpu`` on a date ("2026-02-12"); "" if unknown."""
    releases = RELEASES.get(gpu, {})
    return releases[max(start for start in releases if start <= date)] if releases else ""


def peak_rows(data: Path) -> list[MeasuredRow]:
    """Return the published peaks: the time per output token at the mean batch of a run.

    A run sends its requests in as few waves as memory allows, and the last wave may be small. All
    waves together take as long as equal ones, because an iteration's time is nearly linear in its
    sequences.
    """
    rows = []
    for row in pl.read_csv(data / PEAKS, infer_schema_length=None).iter_rows(named=True):
        attention_dp, gpus = row["parallelism"] == "dep", row["gpus"]  # with expert parallelism
        traits = {
            "model": row["model"], "gpu": row["gpu"], "engine": "trtllm",
            "precision": row["precision"], "isl": row["isl"], "osl": row["osl"],
            "rounds": 1000, "equal_lengths": "yes",
            **arrangement("", gpus, gpus if attention_dp else 1, attention_dp),
        }  # fmt: skip
        most = {"max_num_seqs": MOST_SEQUENCES, "concurrency": MOST_SEQUENCES * gpus}
        if (row["model"], row["gpu"]) in CACHE_IN_16_BITS:
            traits["kv_cache"] = "bf16"
        requests = REQUESTS[max(row["isl"], row["osl"])]
        waves = np.ceil(requests / fit_into_memory(deployment(traits | most)).batch)
        traits["concurrency"] = requests / waves
        tbt = traits["concurrency"] / (row["max_output_tokens_per_s_per_gpu"] * gpus)
        rows.append(MeasuredRow(traits, tbt, np.nan, "TensorRT-LLM", silicon=False))
    return rows


def energy_rows(data: Path) -> list[MeasuredRow]:
    """Return ML.ENERGY's text tasks; the time per token is the batch divided by the throughput."""
    frame = pl.read_csv(data / ENERGY, infer_schema_length=None)
    rows = []
    for row in frame.iter_rows(named=True):
        if row["task"] not in TASK_INPUT:
            continue
        gpus = row["num_gpus"]
        ep = gpus if row["expert_parallel"] > 1 else 1
        traits = {
            "model": row["model_id"],
            "gpu": row["gpu_model"],
            "engine": "vllm",
            "precision": row["weight_precision"],
            **arrangement("", gpus, ep, row["data_parallel"] > 1),
            "isl": TASK_INPUT[row["task"]],
            "osl": row["avg_output_len"],
            "concurrency": max(1.0, row["avg_batch_size"]),
        }
        tbt = row["avg_batch_size"] / row["output_throughput_tokens_per_sec"]
        rows.append(MeasuredRow(traits, tbt, np.nan, "ML.ENERGY", silicon=False))
    return rows


def _shape(name: str) -> str:
    """Return the common name of all models of the catalogue that compute the same as ``name``."""
    for stem in ("deepseek-v3", "deepseek-r1"):
        if name.startswith(stem) and "3.2" not in name:
            return "deepseek-v3"
    for stem in ("llama-3.1-70b", "llama-3.3-70b"):
        if name.startswith(stem):
            return "llama-3-70b"
    return name.replace("-thinking", "").replace("-instruct", "")


def _unsure(
    shape: npt.NDArray[np.str_], silicon: BoolArray, figures: list[Any], rows: list[MeasuredRow]
) -> BoolArray:
    """Return which rows may have used speculative decoding, which their source does not state.

    These are rows of models that draft tokens themselves. A row does not count if it is labelled,
    or if the same ``figures`` are also listed under DeepSeek-V3, since those rows ran without it.
    """
    measured = list(zip(figures, rows, strict=True))
    of_v3 = {times for times, row in measured if row.silicon and "V3" in row.given["model"]}
    drafting_models = np.isin(shape, ["deepseek-v3", "qwen3.5-397b-a17b"]) & silicon
    known = [row.labelled or times in of_v3 for times, row in measured]
    return np.asarray(drafting_models & ~np.array(known))
