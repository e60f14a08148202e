"""Describe the pools that run today, as a file of a cluster states them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from planner.inputs.catalogue.hardware import gpu_known_as
from planner.inputs.numbers import finite_number

# Vendors' words before the name of a GPU, and what a device plugin adds behind it.
PREFIX = re.compile(r"^(nvidia|tesla|amd|instinct)[-_ ]+", re.IGNORECASE)
SHARED = re.compile(r"-(shared|mig-\S+)$", re.IGNORECASE)
SUFFIXES = {"m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30}
# Metrics of engines, by the measure of the simulated autoscalers.
MEASURES = {
    "queue": ("num_requests_waiting", "num_queue_reqs", "queue_size"),
    "memory": ("kv_cache_usage_perc", "gpu_cache_usage_perc", "token_usage"),
    "gpu": ("DCGM_FI_DEV_GPU_UTIL", "gpu_utilization_share"),
    "concurrency": ("num_requests_in_flight", "num_requests_running"),
}


@dataclass(frozen=True, slots=True)
class Trigger:
    """A metric that an autoscaler follows."""

    kind: str  # keda, hpa, aibrix, wva, kserve or llm-d
    metric: str  # the name of the metric, or its query
    value: float | None = None  # its target; None: the file states none
    per_replica: bool = True  # the target is a mean over replicas
    query: str = ""

    @property
    def measure(self) -> str:
        """Return the name of the simulator's signal that is most like this metric, or "".

        A metric of requests that wait and run is a "concurrency".
        """
        text = self.query or self.metric
        measures = [name for name, parts in MEASURES.items() if any(part in text for part in parts)]
        if {"queue", "concurrency"} <= set(measures):
            return "concurrency"
        return measures[0] if measures else ""


@dataclass(frozen=True, slots=True)
class RunningPool:
    """Replicas of one kind, as a file describes them; "" or None: the file does not state it."""

    name: str = ""
    model: str = ""
    gpu: str = ""  # the catalogue's name, or that of the file without the vendor
    gpus: int | None = None  # GPUs that the pods of one replica ask for
    tp: int | None = None
    pp: int | None = None
    dp: int | None = None
    expert_parallel: bool | None = None
    attention_dp: bool | None = None  # SGLang: the data-parallel ranks share the TP group
    precision: str = ""
    kv_precision: str = ""
    engine: str = ""
    engine_version: str = ""
    role: str = ""  # mixed, prefill or decode
    region: str = ""
    max_batch: int | None = None
    max_batch_tokens: int | None = None
    replicas: int | None = None
    minimum: int | None = None  # limits of its autoscaler
    maximum: int | None = None
    scaled: bool = False  # an autoscaler sets the replicas
    triggers: tuple[Trigger, ...] = ()
    notes: tuple[str, ...] = ()
    # The policy that simulates its autoscaler: name and parameters. None: KEDA, HPA or unknown.
    autoscaler: Mapping[str, Any] | None = None

    def filled_from(self, other: RunningPool) -> RunningPool:
        """Return this pool, with facts that it lacks taken from ``other``."""
        facts = {field.name: getattr(self, field.name) for field in fields(self)}
        known = {name: fact for name, fact in facts.items() if fact not in ("", None, ())}
        return replace(other, **known)

    @property
    def engines(self) -> int:
        """Return the number of independent engines in one replica (plain data parallelism)."""
        return 1 if self.expert_parallel or self.attention_dp else (self.dp or 1)

    @property
    def width(self) -> int | None:
        """Return the GPUs of one engine, or None if the file does not state them.

        With expert parallelism, data-parallel ranks share one engine, so their GPUs add up. With
        attention data parallelism, ``tp`` has them already.
        """
        if self.tp is None:
            return self.gpus
        ranks = (self.dp or 1) if self.expert_parallel and not self.attention_dp else 1
        return self.tp * (self.pp or 1) * ranks

    @property
    def needs(self) -> tuple[str, ...]:
        """Return the names of the facts that a scenario requires and the file does not state."""
        known = {"model": self.model, "gpu": self.gpu, "tp": self.width}
        return tuple(name for name, value in known.items() if not value)

    def as_dict(self) -> dict[str, Any]:
        """Return the pool as data for JSON. Without an autoscaler, both limits are its replicas."""
        fixed_replicas = None if self.scaled else self.replicas
        trigger = self.triggers[0] if self.triggers else None
        return {
            "name": self.name,
            "model": self.model or None,
            "gpu": self.gpu or None,
            "gpus": self.gpus if self.width is None else self.width * self.engines,
            "tp": self.tp if self.tp is not None else self.gpus,
            "pp": self.pp,
            "dp": self.dp,
            "precision": self.precision or None,
            "engine": self.engine or None,
            "engine_version": self.engine_version or None,
            "role": self.role or "mixed",
            "region": self.region or None,
            "replicas": self.replicas,
            "replicas_min": fixed_replicas if self.minimum is None else self.minimum,
            "replicas_max": fixed_replicas if self.maximum is None else self.maximum,
            "trigger": trigger.metric if trigger else None,
            "trigger_value": trigger.value if trigger else None,
            "triggers": [
                {name: value for name, value in asdict(each).items() if name != "query"}
                for each in self.triggers
            ],
            "autoscaler": dict(self.autoscaler) if self.autoscaler else None,
            "needs": list(self.needs),
            "notes": list(self.notes),
        }  # fmt: skip


def gpu_type(text: str) -> str:
    """Return the catalogue's name of a GPU type or cloud instance; else a shortened text."""
    text = SHARED.sub("", text.strip())
    known = gpu_known_as(text)
    return known if known != text else gpu_known_as(PREFIX.sub("", text))


def value_at(value: Any, *keys: str) -> Any:
    """Return the value under nested ``keys``, or None; without keys, ``value`` itself."""
    for key in keys:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def section(value: Any, *keys: str) -> Mapping[str, Any]:
    """Return the mapping under nested ``keys``; empty if there is no mapping."""
    value = value_at(value, *keys)
    return value if isinstance(value, Mapping) else {}


def rows(value: Any, *keys: str) -> list[Mapping[str, Any]]:
    """Return the mappings of the list under nested ``keys``; [] if there is no list."""
    value = value_at(value, *keys)
    return [row for row in value if isinstance(row, Mapping)] if isinstance(value, list) else []


def whole_number(value: Any, *keys: str) -> int | None:
    """Return the whole number under nested ``keys``; None for others than 0 to a million."""
    count = finite_number(value_at(value, *keys))
    if count is None or not 0 <= count <= 1e6 or count % 1:
        return None
    return int(count)


def replica_count(value: Any, *keys: str) -> int:
    """Return the replicas under nested ``keys``; 1 if none are stated, as in Kubernetes."""
    count = whole_number(value, *keys)
    return 1 if count is None else count


def number(value: Any, *keys: str) -> float | None:
    """Return the number or quantity (such as 500m) under nested ``keys``, or None."""
    match = re.fullmatch(r"([-+]?[\d.]+(?:[eE][-+]?\d+)?)([a-zA-Z]*)%?", one_line(value, *keys))
    if match is None:
        return None
    digits, suffix = match.groups()
    if suffix and suffix not in SUFFIXES:
        return None
    try:
        return float(digits) * SUFFIXES.get(suffix, 1.0)
    except ValueError:
        return None


def one_line(value: Any, *keys: str) -> str:
    """Return the text under nested ``keys`` without blanks around it; "" if there is none."""
    value = value_at(value, *keys)
    return str(value).strip() if isinstance(value, str | int | float) else ""
