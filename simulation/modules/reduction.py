"""Module reduction, Algorithm 2 of CoCoServe: migrate, then evict, then slow down (B3).

Three phases of rising cost, each stopped as soon as the violations are gone. Modules move from a
device that is short of memory or too slow, what section 3.3 recommends first: whole layers with
their KV cache; projections (the feed-forward part, then attention's) to a device that computes
faster; the KV cache alone to one that has memory and no room for the layer; projections to any that
has room for them alone. Then copies of layers there are given up; then the batch shrinks by steps
and weights are offloaded to the host.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from simulation.arrays import BoolArray, FloatArray, IntArray
from simulation.modules.costs import Cost, acting_cost

BATCH_STEP = 5  # section 4.2: "an appropriate step size (e.g., 5)"


@dataclass(frozen=True, slots=True, eq=False)
class Instance:
    """Where the modules of one instance are; ``n`` layers, ``D`` devices."""

    home: IntArray  # [n] device of the layer: of its attention, where the other part is apart
    ffn_home: IntArray  # [n] of its feed-forward part
    kv_home: IntArray  # [n] of its KV cache
    replicated: BoolArray  # [n, D] copies of whole layers beside the original
    batch: int
    offloaded_bytes: float = 0.0  # weights on the host

    @classmethod
    def whole(cls, home: IntArray, devices: int, batch: int = 1) -> Instance:
        """Every layer in one piece at ``home``, no copies."""
        copies = np.zeros((home.size, devices), np.bool_)
        return cls(home, home.copy(), home.copy(), copies, batch)


@dataclass(frozen=True, slots=True)
class LayerBytes:
    """What one layer takes: weights of its two parts, and its KV cache."""

    attention: float
    feed_forward: float
    cache: float

    @property
    def weights(self) -> float:
        return self.attention + self.feed_forward


@dataclass(frozen=True, slots=True, eq=False)
class Assessment:
    """What is wrong with an instance: bytes over capacity by device, and whether the SLO is missed
    by more than its threshold; ``speed`` tells two that miss it apart."""

    over_bytes: FloatArray  # [D]; negative: room left
    slo_missed: bool
    speed: float = 1.0

    @property
    def violated(self) -> bool:
        return self.slo_missed or bool((self.over_bytes > 0).any())


@dataclass(frozen=True, slots=True)
class Action:
    """One step; ``layer`` and devices are -1 where they do not apply."""

    kind: str  # migrate layer, feed-forward, attention, KV cache; evict replica, reduce batch ...
    layer: int
    source: int
    target: int
    cost: Cost


@dataclass(frozen=True, slots=True, eq=False)
class Reduction:
    state: Instance
    actions: tuple[Action, ...]
    solved: bool


def weights_held(state: Instance, sizes: LayerBytes) -> FloatArray:
    """Bytes of originals and copies on each device."""
    devices = state.replicated.shape[1]
    return np.asarray(
        np.bincount(state.home, minlength=devices) * sizes.attention
        + np.bincount(state.ffn_home, minlength=devices) * sizes.feed_forward
        + state.replicated.sum(axis=0) * sizes.weights,
        np.float64,
    )


def reduce(
    state: Instance,
    assess: Callable[[Instance], Assessment],
    sizes: LayerBytes,
    speed: FloatArray | None = None,
) -> Reduction:
    """Act until ``assess`` finds nothing wrong; ``speed`` ``[D]`` of devices, alike where it is
    left out. A step is kept only when it does not put another device over its memory."""
    pace = np.ones(state.replicated.shape[1]) if speed is None else speed
    actions: list[Action] = []
    now = assess(state)
    for phase in (_migrations, _evictions):
        while now.violated:
            step = phase(state, now, sizes, pace)
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
        cost = acting_cost("migrate", short / sizes.weights, sizes.weights)
        actions.append(Action("offload", -1, d, -1, cost))
    return Reduction(state, tuple(actions), not now.violated)


def _better(before: Assessment, after: Assessment) -> bool:
    """Less memory over capacity in sum, or as little and no slower while the SLO is still to be
    met."""
    short = np.maximum(before.over_bytes, 0).sum(), np.maximum(after.over_bytes, 0).sum()
    no_slower = before.slo_missed and after.speed >= before.speed
    return bool(short[1] < short[0] or (short[1] == short[0] and no_slower))


def _migrations(
    state: Instance, now: Assessment, sizes: LayerBytes, speed: FloatArray
) -> tuple[Instance, Action] | None:
    """The last module that helps of the device most in need, by section 3.3."""
    source = _source(state, now)
    room = -now.over_bytes
    room[source] = -np.inf
    roomiest = int(room.argmax())
    complete = (state.home == source) & (state.ffn_home == source) & (state.kv_home == source)
    if complete.any() and room[roomiest] >= sizes.weights + sizes.cache:
        return _moved(state, _last(complete), source, roomiest, "layer", sizes)
    faster = np.where(speed > speed[source], room, -np.inf)
    compute = _projections(state, source, int(faster.argmax()), faster, sizes)
    if compute is not None:
        return compute
    if not now.over_bytes[source] > 0:
        return None
    caches = state.kv_home == source
    if caches.any() and room[roomiest] >= sizes.cache:
        return _moved(state, _last(caches), source, roomiest, "KV cache", sizes)
    return _projections(state, source, roomiest, room, sizes)


def _projections(
    state: Instance, source: int, target: int, room: FloatArray, sizes: LayerBytes
) -> tuple[Instance, Action] | None:
    """Weights of a layer's part alone: the feed-forward part is the larger, and needs no cache."""
    for part, where, size in (
        ("feed-forward", state.ffn_home, sizes.feed_forward),
        ("attention", state.home, sizes.attention),
    ):
        there = where == source
        if there.any() and size > 0 and room[target] >= size:
            return _moved(state, _last(there), source, target, part, sizes)
    return None


def _moved(
    state: Instance, i: int, source: int, target: int, part: str, sizes: LayerBytes
) -> tuple[Instance, Action]:
    """Layer ``i``, or a part of it, at ``target``; a copy of a whole layer that stands there
    becomes the original."""
    home, ffn_home, kv_home = state.home.copy(), state.ffn_home.copy(), state.kv_home.copy()
    replicated, size = state.replicated, 0.0
    if part in ("layer", "attention"):
        home[i], size = target, size + sizes.attention
    if part in ("layer", "feed-forward"):
        ffn_home[i], size = target, size + sizes.feed_forward
    if part in ("layer", "KV cache"):
        kv_home[i], size = target, size + sizes.cache
    if part == "layer":
        replicated = replicated.copy()
        replicated[i, target] = False
    moved = replace(state, home=home, ffn_home=ffn_home, kv_home=kv_home, replicated=replicated)
    action = Action(f"migrate {part}", i, source, target, acting_cost("migrate", 1, size))
    return moved, action


def _last(there: BoolArray) -> int:
    return int(np.flatnonzero(there)[-1])


def _source(state: Instance, now: Assessment) -> int:
    """The device furthest over its memory, else the one with most layers to compute."""
    if (now.over_bytes > 0).any():
        return int(now.over_bytes.argmax())
    return int(np.bincount(state.ffn_home, minlength=now.over_bytes.size).argmax())


def _evictions(
    state: Instance, now: Assessment, sizes: LayerBytes, speed: FloatArray
) -> tuple[Instance, Action] | None:
    """Give up the copy whose loss costs least, where memory is short: of the layer with most
    copies, at the end of a run. Without a shortage an eviction would only slow the instance."""
    d = int(now.over_bytes.argmax())
    copied = np.flatnonzero(state.replicated[:, d])
    if now.over_bytes[d] <= 0 or not copied.size:
        return None
    copies = state.replicated.sum(axis=1)
    inner = np.array(
        [
            0 < i < copies.size - 1 and state.replicated[i - 1, d] and state.replicated[i + 1, d]
            for i in copied
        ]
    )
    i = int(copied[np.lexsort((-copied, -copies[copied], inner))[0]])
    replicated = state.replicated.copy()
    replicated[i, d] = False
    return replace(state, replicated=replicated), Action("evict replica", i, d, -1, Cost(0.0, 0.0))
