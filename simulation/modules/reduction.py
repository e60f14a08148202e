"""Module reduction, Algorithm 2 of CoCoServe: migrate, then evict, then slow down.

An instance violates its limits if a device lacks memory or the SLO is missed. Three phases of
rising cost run until there is no violation:

1. Modules move from a device that lacks memory or speed, in the order of section 3.3. Whole layers
   with their KV cache come first. Then projections (the feed-forward part, then that of attention)
   move to a faster device. Then a KV cache alone moves to a device without memory for the layer.
   Then projections alone move to any device with memory for them.
2. Copies of layers on the device are evicted.
3. The batch shrinks in steps, and weights are offloaded to the host.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from simulation.arrays import BoolArray, FloatArray, IntArray

BATCH_STEP = 5  # section 4.2: "an appropriate step size (e.g., 5)"


@dataclass(frozen=True, slots=True, eq=False)
class Instance:
    """The placement of the modules of one instance with ``n`` layers on ``D`` devices."""

    home: IntArray  # [n] device of the layer, or of its attention if the parts are separate
    ffn_home: IntArray  # [n] device of its feed-forward part
    kv_home: IntArray  # [n] device of its KV cache
    replicated: BoolArray  # [n, D] copies of whole layers, without the original
    batch: int  # most sequences
    offloaded_bytes: float = 0.0  # weights on the host

    @classmethod
    def undivided(cls, home: IntArray, devices: int, batch: int = 1) -> Instance:
        """Return the placement with every layer in one piece at ``home``, without copies."""
        copies = np.zeros((home.size, devices), np.bool_)
        return cls(home, home.copy(), home.copy(), copies, batch)


@dataclass(frozen=True, slots=True)
class LayerBytes:
    """Bytes of one layer: weights of its two parts, and its KV cache."""

    attention: float
    feed_forward: float
    cache: float

    @property
    def weights(self) -> float:
        """Return the bytes of weights of both parts."""
        return self.attention + self.feed_forward


@dataclass(frozen=True, slots=True, eq=False)
class Assessment:
    """How a placement violates the limits of an instance."""

    over_bytes: FloatArray  # [D] memory needed beyond that of the device; negative: free memory
    slo_missed: bool  # whether the SLO is missed by more than its threshold
    speed: float = 1.0  # to compare two placements that miss the SLO

    @property
    def violates_limits(self) -> bool:
        """Return whether the SLO is missed or a device has too little memory."""
        return self.slo_missed or bool((self.over_bytes > 0).any())


@dataclass(frozen=True, slots=True, eq=False)
class Reduction:
    """The placement after module reduction, and whether no violation is left."""

    state: Instance
    solved: bool


def weight_bytes_by_device(state: Instance, sizes: LayerBytes) -> FloatArray:
    """Return the bytes of weights on each device, originals and copies, ``[D]``."""
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
    """Migrate, evict, then shrink the batch until ``assess`` finds no violation, or no step helps.

    ``sizes`` are the bytes of a layer. ``speed [D]`` are the relative speeds of the devices; None:
    all equal. A migration or eviction counts only if it improves the assessment
    (``_is_improvement``).
    """
    speeds = np.ones(state.replicated.shape[1]) if speed is None else speed
    assessment = assess(state)
    for phase in (_migrate, _evict):
        while assessment.violates_limits:
            trial = phase(state, assessment, sizes, speeds)
            if trial is None:
                break
            after = assess(trial)
            if not _is_improvement(assessment, after):
                break
            state, assessment = trial, after
    while assessment.violates_limits and state.batch > 1:
        state = replace(state, batch=max(1, state.batch - BATCH_STEP))
        assessment = assess(state)
    # Last resort: offload what still exceeds the memory.
    short = float(np.maximum(assessment.over_bytes, 0.0).sum())
    if short > 0:
        state = replace(state, offloaded_bytes=state.offloaded_bytes + short)
        assessment = assess(state)
    return Reduction(state, not assessment.violates_limits)


def _is_improvement(before: Assessment, after: Assessment) -> bool:
    """Return whether a step from ``before`` to ``after`` improves the placement.

    It does if less memory is short. While the SLO is missed, an equal shortage at no lower speed
    also counts.
    """
    short_before = np.maximum(before.over_bytes, 0).sum()
    short_after = np.maximum(after.over_bytes, 0).sum()
    if short_after == short_before:
        return before.slo_missed and after.speed >= before.speed
    return bool(short_after < short_before)


def _migrate(
    state: Instance, assessment: Assessment, sizes: LayerBytes, speed: FloatArray
) -> Instance | None:
    """Move one module away from the device with the largest violation (section 3.3).

    The kinds of modules are tried in this order: whole layer, feed-forward part or attention to a
    faster device, KV cache, feed-forward part or attention to any device. The last layer with such
    a module on the device is chosen. Return the new placement; None: no module can move. ``speed
    [D]`` are the relative speeds of the devices.
    """
    # The device furthest over its memory, or else the one that computes most layers.
    source = int(assessment.over_bytes.argmax())
    if not assessment.over_bytes[source] > 0:
        source = int(np.bincount(state.ffn_home, minlength=assessment.over_bytes.size).argmax())
    free_bytes = -assessment.over_bytes
    free_bytes[source] = -np.inf
    emptiest = int(free_bytes.argmax())
    # A whole layer, to the device with the most free memory.
    complete = (state.home == source) & (state.ffn_home == source) & (state.kv_home == source)
    if complete.any() and free_bytes[emptiest] >= sizes.weights + sizes.cache:
        return _move_layer(state, complete, emptiest, "layer")
    # A part of a layer, to the faster device with the most free memory.
    free_on_faster = np.where(speed > speed[source], free_bytes, -np.inf)
    moved = _migrate_projections(state, source, int(free_on_faster.argmax()), free_on_faster, sizes)
    if moved is not None:
        return moved
    if not assessment.over_bytes[source] > 0:
        return None  # a slower device helps only if memory is short
    caches = state.kv_home == source
    if caches.any() and free_bytes[emptiest] >= sizes.cache:
        return _move_layer(state, caches, emptiest, "KV cache")
    return _migrate_projections(state, source, emptiest, free_bytes, sizes)


def _migrate_projections(
    state: Instance, source: int, target: int, free_bytes: FloatArray, sizes: LayerBytes
) -> Instance | None:
    """Move the weights of the feed-forward part or attention of a layer to device ``target``.

    The feed-forward part is larger and is tried first. ``free_bytes [D]`` is the free memory.
    Return the new placement; None: no part fits.
    """
    for part, devices, size in (
        ("feed-forward", state.ffn_home, sizes.feed_forward),
        ("attention", state.home, sizes.attention),
    ):
        at_source = devices == source
        if at_source.any() and size > 0 and free_bytes[target] >= size:
            return _move_layer(state, at_source, target, part)
    return None


def _move_layer(state: Instance, layers: BoolArray, target: int, part: str) -> Instance:
    """Return the placement after the last of ``layers``, or a ``part`` of it, moved to ``target``.

    ``layers [n]`` is a mask. ``part`` is "layer", "attention", "feed-forward" or "KV cache". If the
    target device has a copy of the whole layer, that becomes the original.
    """
    layer = np.flatnonzero(layers)[-1]
    home, ffn_home, kv_home = state.home.copy(), state.ffn_home.copy(), state.kv_home.copy()
    replicated = state.replicated
    if part in ("layer", "attention"):
        home[layer] = target
    if part in ("layer", "feed-forward"):
        ffn_home[layer] = target
    if part in ("layer", "KV cache"):
        kv_home[layer] = target
    if part == "layer":
        replicated = replicated.copy()
        replicated[layer, target] = False
    return replace(state, home=home, ffn_home=ffn_home, kv_home=kv_home, replicated=replicated)


def _evict(
    state: Instance, assessment: Assessment, sizes: LayerBytes, speed: FloatArray
) -> Instance | None:
    """Remove one copy from the fullest device, and return the new placement.

    A run is a series of consecutive layers copied to a device. A copy at the end of a run, of the
    layer with most copies, costs least to lose. None: the device has no copy, or memory is not
    short, so removing a copy would only slow the instance.
    """
    device = int(assessment.over_bytes.argmax())
    copied = np.flatnonzero(state.replicated[:, device])
    if assessment.over_bytes[device] <= 0 or not copied.size:
        return None
    copies = state.replicated.sum(axis=1)
    # Whether both neighbours are copied to the device too. With one more entry at either end, layer
    # i is entry i + 1. Its neighbours are entries i and i + 2.
    padded = np.pad(state.replicated[:, device], 1)
    within_run = padded[copied] & padded[copied + 2]
    # Ends of runs first, then layers with most copies, then the last layer.
    order = np.lexsort((-copied, -copies[copied], within_run))
    layer = int(copied[order[0]])
    replicated = state.replicated.copy()
    replicated[layer, device] = False
    return replace(state, replicated=replicated)
