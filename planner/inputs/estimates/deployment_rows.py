"""Read rows that describe deployments for ``estimate``: files, names, aliases and defaults.

The columns are those of ``bin/manage estimate --rows`` and those of aiconfigurator's measured
deployments (``model_path``, ``tp_size`` ...). A missing, empty or zero count is 1.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from planner.errors import IngestError, PlannerError
from planner.inputs import catalogue
from planner.inputs.catalogue.names import stated_precision
from planner.inputs.ingest import IngestOptions
from planner.inputs.ingest.tables import opened_table, python_safe
from planner.inputs.scenario.user_facts import NO_USER_FACTS, UserFacts
from simulation.errors import SimulationError
from simulation.performance.estimate.calibration import ENGINES, ROUNDS
from simulation.performance.estimate.defaults import Deployment
from simulation.performance.estimate.estimate import fit_into_memory
from simulation.performance.specs import BYTES, WIDTHS, Adapters, Arrangement, GpuSpec, ModelShape

PRECISIONS = {
    "bf16": "bf16", "bfloat16": "bf16", "fp16": "bf16", "float16": "bf16",
    "fp8": "fp8", "fp8_block": "fp8", "fp8_static": "fp8", "int8": "int8", "int8_wo": "int8",
    "fp4": "fp4", "nvfp4": "fp4", "mxfp4": "fp4", "w4a16_mxfp4": "fp4", "w4a8_mxfp4_mxfp8": "fp4",
    "int4": "int4", "int4_wo": "int4", "w4afp8": "int4", "awq": "int4", "gptq": "int4",
}  # fmt: skip
ENGINE_NAMES = {"vllm": "vllm", "sglang": "sglang", "trtllm": "trtllm", "tensorrt-llm": "trtllm",
                "trt-llm": "trtllm", "tensorrtllm": "trtllm"}  # fmt: skip
MODES = {"agg": False, "aggregated": False, "ifb": False, "disagg": True, "disaggregated": True}
ANSWERS = {"": None, **dict.fromkeys(("yes", "true", "1"), True),
           **dict.fromkeys(("no", "false", "0"), False)}  # fmt: skip
# Models published with layers that predict further tokens (DeepSeek-V3, arXiv 2412.19437, section
# 2.2; Qwen3-Next and Qwen3.5, GLM-4.5 and MiMo, their model cards).
DRAFTING = ("deepseek-v3", "deepseek-r1", "qwen3.5", "qwen3-next", "glm-4.5", "mimo")
LATENT_IN_8_BITS = ("blackwell", "rubin", "cdna3", "cdna4")  # families of those recipes
STATISTICS = {"mean": False, "median": True}
NUMBERS = ("recv_interval", "max_num_seqs", "chunk_tokens", "prefix_hit_rate")
LONGEST_VERSION = 60  # characters of an engine's version
ALIASES = {  # other names of columns
    "model_path": "model", "model_name": "model", "system": "gpu", "backend": "engine",
    "backend_version": "engine_version", "version": "engine_version",
    "kv_cache_quant_mode": "kv_cache", "kv_precision": "kv_cache",
    "gemm_quant_mode": "quant", "moe_quant_mode": "moe_quant",
    "scheduler_recv_interval": "recv_interval", "prefill_num_workers": "prefill_workers",
    "decode_num_workers": "decode_workers", "batch_size": "batch",
    "decode_batch_size": "decode_batch", "num_workers": "workers",
    "rate_rps": "rate",
    **{f"{side}{w}_size": f"{side}{w}" for side in ("", "prefill_", "decode_") for w in WIDTHS},
    **{f"{side}{short}": f"{side}attention_dp" for side in ("", "prefill_", "decode_")
       for short in ("dp", "adp")},
}  # fmt: skip
MOST_ROWS = 100_000
CHUNK_BYTES = 1 << 20  # small, so that a file with far too many rows is refused early
MOST_GPUS, MOST = 65_536, 1e9  # limits on GPUs and on other numbers, far above any deployment
EXAMPLES = {"model": "meta-llama/Llama-3.1-8B-Instruct", "gpu": "h100_sxm"}


class _Row(dict[str, Any]):
    """The values of a row by plain column name; methods raise PlannerError with the field."""

    def text(self, field: str) -> str:
        """Return a text that the row needs."""
        if field not in self:
            raise PlannerError(f"{field} is missing. Name it, such as {EXAMPLES[field]}.")
        return str(self[field]).strip()

    def choice(
        self, field: str, known: Mapping[str, Any], default: str, shown: tuple[str, ...]
    ) -> Any:
        """Return the value in ``known`` for the name in ``field``; the error offers ``shown``."""
        name = str(self.get(field, default)).strip().lower()
        if name not in known:
            raise PlannerError(f"{field} {name!r} is unknown. Use one of {', '.join(shown)}.")
        return known[name]

    def number(self, field: str, default: float | None = None) -> float:
        """Return the number in ``field``, or ``default``; raise an error if both are missing."""
        if field not in self and default is None:
            raise PlannerError(f"{field} is missing. Give a number.")
        return number(self.get(field, default), field)

    def gpus(self, field: str) -> int:
        """Return a number of GPUs; an empty field or 0 means 1."""
        count = self.number(field, 1)
        if count != round(count) or not 0 <= count <= MOST_GPUS:
            raise PlannerError(
                f"{field} is {count:g}. Give a whole number of GPUs, 1 or more and at most "
                f"{MOST_GPUS:,}."
            )
        return max(1, round(count))

    def workers(self, field: str) -> float | None:
        """Return a number of workers; None if it is missing or 0."""
        return self.number(field, 0.0) or None

    def adapters(self) -> Adapters | None:
        """Return the LoRA adapters, which need a rank and a number in use; None without them."""
        fields = ("lora_rank", "lora_active")
        if not self.keys() & set(fields):
            return None
        sizes = []
        for field in fields:
            if field not in self:
                raise PlannerError(
                    f"{field} is missing; LoRA adapters have a rank (lora_rank) and a number that "
                    "is in use at once (lora_active)."
                )
            if self.number(field) % 1:
                raise PlannerError(f"{field} is {self.number(field):g}. Give a whole number.")
            sizes.append(round(self.number(field)))
        return Adapters(*sizes)


def deployment(row: Mapping[str, Any], user_facts: UserFacts = NO_USER_FACTS) -> Deployment:
    """Return the deployment that a row describes.

    Its model and GPU are built in, or among ``user_facts``. If the row states no precision, and
    weights of 16 bits do not fit into memory, they get the most bits that fit. Raise PlannerError
    with the field and the remedy.
    """
    fields = _Row(named_fields(row))
    shape = _shape(fields.text("model"), user_facts)
    if adapters := fields.adapters():
        shape = replace(shape, adapters=adapters)
    weights, is_stated = _precision(fields, user_facts)
    described = _deployment(fields, shape, weights, user_facts)
    if is_stated or weights != "bf16" or _fits(described):
        return described
    for fewer in ("fp8", "fp4"):
        fitted = _deployment(fields, shape, fewer, user_facts)
        if _fits(fitted):
            note = f"precision not given: {fewer} is used, because 16 bits do not fit"
            return replace(fitted, notes=(*fitted.notes, note))
    return described


def _deployment(fields: _Row, shape: ModelShape, weights: str, user_facts: UserFacts) -> Deployment:
    """Return the deployment of a row with ``weights`` as precision, or raise PlannerError.

    If a row states a batch instead of its concurrency, that is the batch of a data-parallel rank.
    """
    gpu_name = fields.text("gpu")
    gpu = user_facts.gpus[gpu_name] if gpu_name in user_facts.gpus else catalogue.gpu(gpu_name)
    engine = fields.choice("engine", ENGINE_NAMES, "vllm", ENGINES)
    has_roles = any(key.startswith(("prefill_", "decode_")) for key in fields)
    is_split = fields.choice("mode", MODES, "disagg" if has_roles else "agg", ("agg", "disagg"))
    cache = PRECISIONS.get(str(fields.get("kv_cache", "")).lower())
    cache = cache or _default_kv_precision(shape, gpu, engine, weights)
    isl, osl = fields.number("isl"), fields.number("osl")
    if osl > 1 and not shape.causal:
        raise PlannerError(f"osl: {shape.name} is an encoder and writes no tokens. Give osl 1.")
    prefill, prefill_workers, batch_field = None, None, "batch"
    if is_split:
        decode = _arrangement(fields, "decode_", weights, cache)
        decode_workers, batch_field = fields.workers("decode_workers"), "decode_batch"
        prefill = _arrangement(fields, "prefill_", weights, cache)
        prefill_workers = fields.workers("prefill_workers")
    else:
        decode, decode_workers = _aggregated_arrangement(fields, weights, cache, shape)
    if "concurrency" not in fields and batch_field in fields:
        ranks = decode.attention_dp * (decode_workers or 1.0)
        concurrency = fields.number(batch_field) * ranks
    else:
        concurrency = fields.number("concurrency")
    return Deployment(
        shape, gpu, decode, isl, osl, concurrency, engine, prefill=prefill,
        prefill_workers=prefill_workers, decode_workers=decode_workers,
        **_engine_options(fields, shape),
    )  # fmt: skip


def _engine_options(fields: _Row, shape: ModelShape) -> dict[str, Any]:
    """Return the fields of a Deployment for engine version, speculative decoding and batches.

    ``notes`` has a sentence if the model could draft tokens, but the row gives none.
    """
    drafted = fields.number("draft_tokens", 0)
    accepted = math.nan if drafted else 0.0
    if "accepted_tokens" in fields:
        accepted = fields.number("accepted_tokens")
    if "acceptance" in fields:
        accepted = drafted * fields.number("acceptance")
    notes: tuple[str, ...] = ()
    if shape.name.startswith(DRAFTING) and not drafted:
        notes = (
            f"without speculative decoding: {shape.name} has layers that draft tokens (MTP); "
            "served with them decode takes about half to two thirds of the time. Give "
            "draft_tokens and accepted_tokens",
        )
    return {
        "version": str(fields.get("engine_version", "")).strip()[:LONGEST_VERSION],
        "rounds": fields.number("rounds", ROUNDS),
        "equal": fields.choice("equal_lengths", ANSWERS, "", ("yes", "no")),
        "drafted": drafted,
        "accepted": accepted,
        **{name: fields.number(name) for name in NUMBERS if name in fields},
        "median_ttft": fields.choice("ttft_statistic", STATISTICS, "mean", tuple(STATISTICS)),
        "notes": notes,
    }


def _shape(name: str, user_facts: UserFacts) -> ModelShape:
    """Return the shape of a model, own or built in; raise PlannerError if it has none."""
    if name not in user_facts.models:
        return catalogue.shape(name)
    shape = user_facts.models[name].shape
    if shape is None:
        raise PlannerError(
            f"model {name} is known only by its memory. Add it from its config.json for estimates."
        )
    return shape


def named_fields(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row's non-empty values by the planner's (lower-case) names of columns.

    Of several columns with one meaning, the first counts.
    """
    fields: dict[str, Any] = {}
    for column, value in row.items():
        name = str(column).strip().lower().lstrip("-").replace("-", "_")
        name = ALIASES.get(name, name)
        text = "" if value is None else str(value).strip()
        if text.lower() not in ("", "null", "none", "nan"):
            fields.setdefault(name, value)
    return fields


def number(value: Any, field: str) -> float:
    """Return ``value`` as a float; raise PlannerError with the field if it is not a number."""
    try:
        parsed = float(value)
    except (TypeError, ValueError):
        raise PlannerError(f"{field} {value!r} is not a number.") from None
    if not abs(parsed) <= MOST:  # also for NaN
        raise PlannerError(f"{field} {value!r} is not a number up to {MOST:,.0f}.")
    return parsed


def _precision(fields: _Row, user_facts: UserFacts) -> tuple[str, bool]:
    """Return the precision of the weights (default: as published), and whether it is stated."""
    if "precision" in fields:
        names = ("bf16", "fp8", "fp4", "int8", "int4")
        return str(fields.choice("precision", PRECISIONS, "", names)), True
    for field in ("moe_quant", "quant"):  # experts are most of the weights
        if precision := PRECISIONS.get(str(fields.get(field, "")).strip().lower()):
            return precision, True
    name = fields.text("model")
    if in_name := stated_precision(name):
        return in_name, True
    return "bf16" if name in user_facts.models else catalogue.published_precision(name), False


def _fits(deployment: Deployment) -> bool:
    """Return whether the model fits into the memory of the deployment's GPUs."""
    try:
        fit_into_memory(deployment)
    except SimulationError:
        return False
    return True


def _default_kv_precision(shape: ModelShape, gpu: GpuSpec, engine: str, weights: str) -> str:
    """Return the default precision of the KV cache: 16 bits, as in the engines, or 8 bits.

    It is 8 bits for fp4 weights, as NVIDIA publishes them. It is also 8 bits for weights of at most
    8 bits with TensorRT-LLM, and with latent attention on SGLang (InferenceX, dsr1_fp8_b200.sh and
    dsr1_fp8_mi355x.sh).
    """
    latent = engine == "sglang" and bool(shape.kv_lora_rank) and gpu.family in LATENT_IN_8_BITS
    in_8_bits = weights == "fp4" or engine == "trtllm" or latent
    return "fp8" if in_8_bits and BYTES[weights] < 2.0 else "bf16"


def _arrangement(fields: _Row, side: str, weights: str, cache: str) -> Arrangement:
    """Return the arrangement in the parallelism columns of a row.

    ``side`` is the prefix of the columns: "prefill_", "decode_", or "" if aggregated. ``weights``
    and ``cache`` are precisions. The numbers of GPUs for experts are made consistent with the
    others.
    """
    # A column for both sides counts where there is none for this side.
    columns = [side + width if side + width in fields else width for width in WIDTHS]
    tp, pp, dp, moe_tp, moe_ep = map(fields.gpus, columns)
    attention_gpus, expert_gpus = tp * dp, moe_tp * moe_ep
    if attention_gpus == 1 and expert_gpus > 1:  # only the experts are stated
        dp = attention_gpus = expert_gpus  # each of their GPUs has the whole attention
    if attention_gpus > 1 and expert_gpus == 1:  # only the attention is stated
        moe_tp, moe_ep = (1, dp) if tp == 1 else (attention_gpus, 1)
    elif attention_gpus != expert_gpus:
        # Inconsistent widths keep only the kind of parallelism: expert or tensor.
        moe_tp, moe_ep = (1, attention_gpus) if moe_ep > 1 else (attention_gpus, 1)
    return Arrangement(tp, pp, dp, moe_tp, moe_ep, weights, cache)


def _aggregated_arrangement(
    fields: _Row, weights: str, cache: str, shape: ModelShape
) -> tuple[Arrangement, float | None]:
    """Return the arrangement of an aggregated deployment, and its instances (None: one).

    If the row states concurrency and batch, their ratio is the number of data-parallel ranks. A
    model with experts then gets data-parallel attention, if its tensor parallelism is a multiple of
    the ranks. Other models get one instance per rank.
    """
    arrangement = _arrangement(fields, "", weights, cache)
    workers = fields.workers("workers")
    has_both = {"batch", "concurrency"} <= fields.keys()
    if workers is not None or not has_both or arrangement.attention_dp > 1:
        return arrangement, workers
    batches = fields.number("concurrency") / max(fields.number("batch"), 1.0)
    ranks = round(batches)
    if batches <= 1.5:  # one rank
        return arrangement, None
    if shape.experts and arrangement.tp % ranks == 0:
        return replace(arrangement, tp=arrangement.tp // ranks, attention_dp=ranks), None
    return arrangement, float(ranks)


def read_rows(path: Path | str, name: str = "") -> list[dict[str, Any] | str]:
    """Return the rows of a file as dicts by column, or the reason why one cannot be read.

    Raise IngestError for a file with more than MOST_ROWS rows.
    """
    name = name or Path(path).name
    options = IngestOptions(chunk_bytes=CHUNK_BYTES, name=name)
    rows: list[dict[str, Any] | str] = []
    lines: list[int] = []
    with opened_table(path, options) as table:
        for batch in table.batches(table.columns):
            faults = sum(fault.lines.size for fault in batch.faults)
            if len(rows) + batch.frame.height + faults > MOST_ROWS:
                raise IngestError(f"{name} has more than {MOST_ROWS} rows. Split it into several.")
            rows += python_safe(batch.frame).iter_rows(named=True)
            lines += batch.lines.tolist()
            for fault in batch.faults:
                for line in fault.lines.tolist():
                    rows.append(f"{name}, {table.unit} {line}: {fault.reason}.")
                    lines.append(line)
    return [rows[i] for i in np.argsort(lines, kind="stable")]
