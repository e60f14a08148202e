"""Replay requests of models that share one GPU, and summarise them by model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from simulation.arrays import Array, BoolArray, FloatArray, IntArray
from simulation.performance.curves import packed_curves
from simulation.performance.profile import Profile
from simulation.sharing.gpu_state import GPU, MODEL, REQUEST, State
from simulation.sharing.shared_gpu import replay

NO_LIMIT = np.iinfo(np.int64).max


@dataclass(frozen=True, slots=True, eq=False)
class SharingModel:
    """A model, or a part of its replicas, that may share GPUs: speed, memory and requests.

    Requests whose KV cache cannot fit into memory are rejected.
    """

    name: str
    profile: Profile
    weight_bytes: float
    kv_bytes_per_token: float
    # All [request]:
    arrival_s: FloatArray  # ascending
    prompt_tokens: IntArray  # tokens to compute: without those that a prefix cache has
    input_tokens: IntArray
    output_tokens: IntArray
    ttft_s: FloatArray  # limits; inf: none
    tbt_s: FloatArray
    e2e_s: FloatArray
    tier: IntArray  # index into ``attainment``
    attainment: tuple[float, ...]  # required share of the requests of each tier

    def __len__(self) -> int:
        """Return the number of requests."""
        return len(self.arrival_s)

    @property
    def longest(self) -> int:
        """Return the input and output tokens of the longest request."""
        return int((self.input_tokens + self.output_tokens).max(initial=1))

    @property
    def memory_bytes(self) -> float:
        """Return the GPU memory for weights and KV cache of one replica."""
        return self.weight_bytes + self.profile.kv_capacity_tokens * self.kv_bytes_per_token

    @property
    def allowed_misses(self) -> IntArray:
        """Return how many requests of each tier may miss a limit, ``[tier]``."""
        required = np.array(self.attainment)
        counts = np.bincount(self.tier, minlength=len(required))
        # Shares such as 0.95 of 20 must allow one miss, so rounding must not decide.
        return np.floor((1.0 - required) * counts + 1e-9).astype(np.int64)

    def shift_arrivals(self, by_s: float, span_s: float) -> SharingModel:
        """Return the model with its requests ``by_s`` seconds later, modulo ``span_s``."""
        arrival = (self.arrival_s + by_s) % span_s
        order = np.argsort(arrival, kind="stable")
        return replace(self.part(order), arrival_s=arrival[order])

    def part(self, rows: slice | IntArray) -> SharingModel:
        """Return the model with the requests that ``rows`` selects."""
        columns = {
            name: getattr(self, name)[rows]
            for name in (
                "arrival_s", "prompt_tokens", "input_tokens", "output_tokens", "ttft_s", "tbt_s",
                "e2e_s", "tier",
            )
        }  # fmt: skip
        return SharingModel(
            self.name, self.profile, self.weight_bytes, self.kv_bytes_per_token, **columns,
            attainment=self.attainment,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class SharedHost:
    """The host of a shared GPU, and how its models share the GPU (see ``shared_gpu``)."""

    host_bytes: float  # host memory for weights
    host_bytes_s: float  # bandwidth between host memory and GPU
    disk_bytes_s: float  # bandwidth of the host's disk
    switch_s: float  # fixed time of a change of models
    process_bytes: float = 0.0  # GPU memory of each further engine, if models share by memory
    by_memory: bool = False  # all weights stay on the GPU, so all engines run at once
    whole_requests: bool = False  # a model gives way only when its batch is done
    overlap: bool = False  # a model computes while the weights of the next one load


@dataclass(frozen=True, slots=True, eq=False)
class ModelReplay:
    """Times and lateness of the requests of one model; NaN: the event did not happen."""

    first_s: FloatArray  # [request] time of the first token
    end_s: FloatArray  # [request] time of the last token
    late: BoolArray  # [request] whether it missed a limit, or was rejected
    rejected: int
    met: bool  # whether every tier meets its attainment
    loads: int  # times that the weights came onto the GPU
    load_s: float  # seconds that the GPU waited for these
    busy_s: float  # seconds of the model's iterations

    @property
    def completed(self) -> int:
        """Return the number of completed requests."""
        return int(np.isfinite(self.end_s).sum())

    @property
    def unfinished(self) -> int:
        """Return the number of requests that are neither completed nor rejected."""
        return len(self.end_s) - self.completed - self.rejected


@dataclass(frozen=True, slots=True, eq=False)
class GpuReplay:
    """The replay of one GPU."""

    models: tuple[ModelReplay, ...]
    end_s: float  # time of the last event

    @property
    def met(self) -> bool:
        """Return whether every tier of every model meets its attainment."""
        return all(model.met for model in self.models)


def fits_by_memory(models: Sequence[SharingModel], host: SharedHost) -> bool:
    """Return whether all weights and the longest request of each model fit on one GPU."""
    longest = max(model.longest * model.kv_bytes_per_token for model in models)
    return sum(model.weight_bytes for model in models) + longest <= _memory_bytes(models, host)


def replay_gpu(
    models: Sequence[SharingModel], host: SharedHost, *, to_the_end: bool = True
) -> GpuReplay:
    """Replay the requests of ``models`` on one GPU.

    Without ``to_the_end``, the replay stops once a tier of a model cannot meet its attainment.
    """
    memory_bytes = _memory_bytes(models, host)
    all_weights = sum(model.weight_bytes for model in models)
    # By model: which requests fit into memory, and how many of each tier may still miss a limit.
    fits, allowed = [], []
    for model in models:
        kv_bytes = (model.input_tokens + model.output_tokens) * model.kv_bytes_per_token
        fitting = kv_bytes <= memory_bytes - (all_weights if host.by_memory else model.weight_bytes)
        # Requests that do not fit are rejected, which misses their limits.
        rejected = np.bincount(model.tier[~fitting], minlength=len(model.attainment))
        fits.append(fitting)
        allowed.append(model.allowed_misses - rejected)
    limits = np.concatenate(allowed)
    state = _state(models, fits, host, memory_bytes, None if to_the_end else limits)
    end_s = replay(state) if to_the_end or (limits >= 0).all() else 0.0
    first_groups = np.cumsum([len(of_model) for of_model in allowed])[:-1]
    met = np.split(state.missed <= limits, first_groups)
    replays = (_model_replay(state, m, fits[m], met[m]) for m in range(len(models)))
    return GpuReplay(tuple(replays), end_s)


def _memory_bytes(models: Sequence[SharingModel], host: SharedHost) -> float:
    """Return the bytes for weights and KV caches on a GPU that the models share.

    Each engine leaves some memory for these; the smallest amount counts. With ``host.by_memory``
    all engines run at once, so the memory of the other engines is subtracted.
    """
    other_engines = len(models) - 1 if host.by_memory else 0
    return min(model.memory_bytes for model in models) - other_engines * host.process_bytes


def _state(
    models: Sequence[SharingModel],
    fits: Sequence[BoolArray],
    host: SharedHost,
    memory_bytes: float,
    allowed: IntArray | None,
) -> State:
    """Return the state before the first request.

    ``fits`` marks, per model, the requests that fit into memory. ``memory_bytes`` is the GPU memory
    for weights and KV caches. ``allowed [group]`` is how many requests of each tier of a model may
    be late; None: never end early.
    """
    requests = _requests(models, fits)
    gpu = _gpu_record(host, memory_bytes)
    rows = np.zeros(len(models), MODEL)
    rows["prefilling"], rows["last_used_s"] = -1, -np.inf
    for row, model in zip(rows, models, strict=True):
        row["weight_bytes"], row["kv_token_bytes"] = model.weight_bytes, model.kv_bytes_per_token
        row["max_batch"] = model.profile.max_batch
        row["budget"] = model.profile.max_batch_tokens
        # The host's memory gets weights in the order of the models.
        if gpu["hosted_bytes"] + model.weight_bytes <= host.host_bytes:
            row["hosted"] = 1
            gpu["hosted_bytes"] += model.weight_bytes
    if host.by_memory:
        rows["resident"] = 1
        gpu["used_bytes"] = rows["weight_bytes"].sum()
    curves = packed_curves([model.profile.curve.values for model in models])
    groups = sum(len(model.attainment) for model in models)
    batch = np.zeros((len(models), int(rows["max_batch"].max()) + 1), np.int64)
    limits = np.full(groups, NO_LIMIT) if allowed is None else allowed
    return State(requests, rows, gpu, curves, batch, np.zeros(groups, np.int64), limits)


def _gpu_record(host: SharedHost, memory_bytes: float) -> Array:
    """Return the record of the GPU before the first request, ``[1]``."""
    gpu = np.zeros(1, GPU)
    gpu["memory_bytes"], gpu["host_bytes"] = memory_bytes, host.host_bytes
    gpu["host_bytes_s"], gpu["disk_bytes_s"] = host.host_bytes_s, host.disk_bytes_s
    gpu["switch_s"] = host.switch_s
    gpu["pinned"], gpu["whole_requests"] = host.by_memory, host.whole_requests
    gpu["overlap"] = host.overlap and not (host.by_memory or host.whole_requests)
    gpu["current"] = gpu["loading"] = -1
    return gpu


def _requests(models: Sequence[SharingModel], fits: Sequence[BoolArray]) -> Array:
    """Return the requests of all models that fit into memory as records, by arrival.

    ``fits`` marks them per model. Requests of one model keep their order.
    """

    def joined(name: str) -> FloatArray:
        """Return the column ``name`` of the fitting requests of all models."""
        parts = [getattr(model, name)[rows] for model, rows in zip(models, fits, strict=True)]
        return np.concatenate(parts)

    owner = np.repeat(np.arange(len(models)), [int(rows.sum()) for rows in fits])
    requests = np.zeros(len(owner), REQUEST)
    first_group = np.concatenate([[0], np.cumsum([len(model.attainment) for model in models])])
    # TTFT and E2E count the seconds before the first iteration, which use no GPU.
    outside_s = np.array([model.profile.start_s for model in models])[owner]
    requests["model"], requests["group"] = owner, first_group[owner] + joined("tier")
    requests["arrival_s"], requests["prompt"] = joined("arrival_s"), joined("prompt_tokens")
    requests["isl"], requests["osl"] = joined("input_tokens"), joined("output_tokens")
    requests["ttft"], requests["tbt"] = joined("ttft_s") - outside_s, joined("tbt_s")
    requests["e2e"], requests["tokens_left"] = joined("e2e_s") - outside_s, requests["osl"]
    requests["first_s"] = requests["end_s"] = np.nan
    return requests[np.argsort(requests["arrival_s"], kind="stable")]


def _model_replay(state: State, m: int, fits: BoolArray, met: BoolArray) -> ModelReplay:
    """Return times and lateness of the requests of model ``m``, in their own order.

    ``fits`` marks the requests that fit into memory; all others are late and have no times.
    ``met [tier]`` states whether few enough requests are late.
    """
    first_s, end_s = np.full((2, len(fits)), np.nan)
    late = np.ones(len(fits), np.bool_)
    requests, model = state.requests[state.requests["model"] == m], state.models[m]
    first_s[fits], end_s[fits] = requests["first_s"], requests["end_s"]
    late[fits] = requests["late"]
    return ModelReplay(
        first_s, end_s, late, rejected=int((~fits).sum()), met=bool(met.all()),
        loads=int(model["loads"]), load_s=float(model["load_s"]), busy_s=float(model["busy_s"]),
    )  # fmt: skip
