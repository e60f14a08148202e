"""Module reduction, Algorithm 2 of CoCoServe: migrate, then evict, then slow down (B3).

Three phases of rising cost, each stopped as soon as the violations are gone: modules move from a
device that is short of memory or too busy (whole layers first; the KV cache alone where the other
device has memory but no room for the layer, section 3.3), then copies of layers on it are given up,
then the batch shrinks by steps and weights are offloaded to the host.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from bench.modules.costs import Cost, acting_cost
from simulation.arrays import BoolArray, FloatArray, IntArray

BATCH_STEP = 5  # section 4.2: "an appropriate step size (e.g., 5)"


@dataclass(frozen=True, slots=True, eq=False)
class Instance:
    """Where the modules of one instance are; ``n`` layers, ``D`` devices."""

    home: IntArray  # [n] device of the layer's weights
    kv_home: IntArray  # [n] device of its KV cache
    replicated: BoolArray  # [n, D] copies beside the original
    batch: int
    offloaded_bytes: float  # weights on the host


@dataclass(frozen=True, slots=True, eq=False)
class Assessment:
    """What is wrong with an instance: bytes over capacity by device, and whether the SLO is missed
    by more than its threshold."""

    over_bytes: FloatArray  # [D]; negative: room left
    slo_missed: bool

    @property
    def violated(self) -> bool:
        return self.slo_missed or bool((self.over_bytes > 0).any())


@dataclass(frozen=True, slots=True)
class Action:
    """One step; ``layer`` and devices are -1 where they do not apply."""

    kind: str  # migrate layer, migrate KV cache, evict replica, reduce batch, offload
    layer: int
    source: int
    target: int
    cost: Cost


@dataclass(frozen=True, slots=True, eq=False)
class Reduction:
    state: Instance
    actions: tuple[Action, ...]
    solved: bool


def memory_bytes(state: Instance, layer_bytes: float, kv_bytes_per_sequence: float) -> FloatArray:
    """Bytes on each device: originals, copies, and KV of the batch where it lives."""
    devices = state.replicated.shape[1]
    layers = np.bincount(state.home, minlength=devices) + state.replicated.sum(axis=0)
    caches = np.bincount(state.kv_home, minlength=devices)
    return np.asarray(
        layers * layer_bytes + caches * state.batch * kv_bytes_per_sequence, np.float64
    )


def reduce(
    state: Instance,
    assess: Callable[[Instance], Assessment],
    *,
    layer_bytes: float,
    kv_bytes: float,
) -> Reduction:
    """Act until ``assess`` finds nothing wrong; ``kv_bytes`` is the KV cache of one layer.

    A step is kept only when it does not put another device over its memory.
    """
    actions: list[Action] = []
    now = assess(state)
    for phase in (_migrations, _evictions):
        while now.violated:
            step = phase(state, now, layer_bytes, kv_bytes)
            if step is None:
                break
            trial, action = step
            after = assess(trial)
            if not _better(now, after):
                break
            state, now = trial, after
            actions.append(action)
    nothing = Cost(0.0, 0.0)
    while now.violated and state.batch > 1:
        trial = replace(state, batch=max(1, state.batch - BATCH_STEP))
        state, now = trial, assess(trial)
        actions.append(Action("reduce batch", -1, -1, -1, nothing))
    short = float(np.maximum(now.over_bytes, 0.0).sum())
    if short > 0:
        trial = replace(state, offloaded_bytes=state.offloaded_bytes + short)
        state, now = trial, assess(trial)
        d = int(now.over_bytes.argmax())
        actions.append(
            Action("offload", -1, d, -1, acting_cost("migrate", short / layer_bytes, layer_bytes))
        )
    return Reduction(state, tuple(actions), not now.violated)


def _better(before: Assessment, after: Assessment) -> bool:
    """Less memory over capacity in sum, or as little while the SLO is still to be met."""
    short = np.maximum(before.over_bytes, 0).sum(), np.maximum(after.over_bytes, 0).sum()
    return bool(short[1] < short[0] or (short[1] == short[0] and before.slo_missed))


def _migrations(
    state: Instance, now: Assessment, layer_bytes: float, kv_bytes: float
) -> tuple[Instance, Action] | None:
    """The last layer of the device most in need to the device with most room; or its KV cache."""
    source = _source(state, now)
    room = -now.over_bytes
    room[source] = -np.inf
    target = int(room.argmax())
    layers = np.flatnonzero((state.home == source) & (state.kv_home == source))
    if layers.size and room[target] >= layer_bytes + kv_bytes:
        i = int(layers[-1])
        home, kv_home = state.home.copy(), state.kv_home.copy()
        home[i] = kv_home[i] = target
        replicated = state.replicated.copy()
        replicated[i, target] = False  # the copy there becomes the original
        action = Action(
            "migrate layer", i, source, target, acting_cost("migrate", 1, layer_bytes + kv_bytes)
        )
        return replace(state, home=home, kv_home=kv_home, replicated=replicated), action
    caches = np.flatnonzero(state.kv_home == source)
    if caches.size and room[target] >= kv_bytes and now.over_bytes[source] > 0:
        i = int(caches[-1])
        kv_home = state.kv_home.copy()
        kv_home[i] = target
        action = Action("migrate KV cache", i, source, target, acting_cost("migrate", 1, kv_bytes))
        return replace(state, kv_home=kv_home), action
    return None


def _source(state: Instance, now: Assessment) -> int:
    """The device furthest over its memory, else the one with most layers to compute."""
    if (now.over_bytes > 0).any():
        return int(now.over_bytes.argmax())
    return int(np.bincount(state.home, minlength=now.over_bytes.size).argmax())


def _evictions(
    state: Instance, now: Assessment, layer_bytes: float, kv_bytes: float
) -> tuple[Instance, Action] | None:
    """Give up the copy whose loss costs least, where memory is short: of the layer with most
    copies, at the end of a run. Without a shortage an eviction would only slow the instance."""
    d = int(now.over_bytes.argmax())
    held = np.flatnonzero(state.replicated[:, d])
    if now.over_bytes[d] <= 0 or not held.size:
        return None
    copies = state.replicated.sum(axis=1)
    inner = np.array(
        [
            0 < i < copies.size - 1 and state.replicated[i - 1, d] and state.replicated[i + 1, d]
            for i in held
        ]
    )
    i = int(held[np.lexsort((-held, -copies[held], inner))[0]])
    replicated = state.replicated.copy()
    replicated[i, d] = False
    return replace(state, replicated=replicated), Action("evict replica", i, d, -1, Cost(0.0, 0.0))
