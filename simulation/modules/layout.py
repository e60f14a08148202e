"""One elastic instance: its devices, their memory, and its speed by placement of modules.

A placement (``reduction.Instance``) says on which device each layer, feed-forward part and KV cache
is, and which layers have copies on other devices.
"""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from simulation.arrays import FloatArray, IntArray
from simulation.modules.parts import PCIE_BYTES_S as HOST_BYTES_S
from simulation.modules.reduction import Instance, LayerBytes, weight_bytes_by_device
from simulation.modules.scale_up import ModuleProblem, Replication, algorithm1, optimum, runs
from simulation.performance.profile import Profile, iteration_s

ATTENTION_SHARE = 200 / 605  # of a layer's weights, from LLaMA-13B (table 1), unless given


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """The ``D`` devices of an instance with ``n`` layers: its own first, then those to borrow.

    Each device has as many GPUs as an instance. ``reading`` says how fast a layer with p copies is.
    ``source``: it takes 1 / p of the layer's time. ``split``: it takes the time for 1 / p of the
    batch, which is longer, since every copy reads all weights of the layer.
    """

    home: IntArray  # [n] device of each layer
    # [D] memory for layers and KV caches; of borrowed devices, the part that may be used
    room_bytes: FloatArray
    layer_bytes: float  # weights of a layer
    kv_layer_token_bytes: float  # KV cache of one token in one layer
    hidden_bytes: float  # per token, sent between layers on different devices
    link_bytes_s: float  # bandwidth between devices
    link_s: float  # latency per message
    isl: float  # mean input tokens of a request
    osl: float  # mean output tokens of a request
    reading: Literal["source", "split"] = "split"
    copies: bool = True  # whether layers may be copied
    moves: bool = True  # whether modules may be moved
    attention_weight_share: float = ATTENTION_SHARE  # of a layer's weights
    speed_of: FloatArray | None = None  # [D] relative to its own device; None: all equal
    # [D] instances of the same pool that use the device; None: only this one
    sharers: FloatArray | None = None
    # [D] pool of the fleet that owns the device; -1: the instance's own pool. Empty: no other pool
    # owns any. The owner lends idle GPUs, or serves requests and has memory to spare.
    hosts: tuple[int, ...] = ()
    # [D] instances of the owner that all instances of this pool use together
    owner_instances: tuple[int, ...] = ()

    @property
    def start(self) -> Instance:
        """Return the placement with everything at home, without copies."""
        return Instance.undivided(self.home, self.room_bytes.size)

    def sizes(self, cache_bytes: float = 0.0) -> LayerBytes:
        """Return the bytes of the two parts of a layer, with ``cache_bytes`` of KV cache."""
        attention = self.attention_weight_share * self.layer_bytes
        return LayerBytes(attention, self.layer_bytes - attention, cache_bytes)

    def weight_bytes_on(self, state: Instance) -> FloatArray:
        """Return the bytes of weights on each device, copies included, ``[D]``.

        Offloading to the host frees memory on the first layer's device.
        """
        bytes_used = weight_bytes_by_device(state, self.sizes())
        bytes_used[self.home[0]] -= min(state.offloaded_bytes, bytes_used[self.home[0]])
        return bytes_used

    def tokens(self, state: Instance) -> float:
        """Return how many tokens of KV cache fit; the fullest device with caches decides."""
        caches = np.bincount(state.kv_home, minlength=self.room_bytes.size)  # layers, by device
        free_bytes = np.maximum(self.room_bytes - self.weight_bytes_on(state), 0.0)
        has_caches = caches > 0
        token_bytes = caches[has_caches] * self.kv_layer_token_bytes
        return float((free_bytes[has_caches] / token_bytes).min())

    def max_kv_tokens(self) -> float:
        """Return the tokens of KV cache that fit if caches move to the best places.

        The caches of at least one layer stay at home. The other caches are dealt out to the
        remaining devices in turn. Every number of moved caches is tried.
        """
        others = np.setdiff1d(np.arange(self.room_bytes.size), self.home)
        start = self.start
        best = self.tokens(start)
        if not others.size or not self.moves:
            return best
        for moved in range(1, self.home.size):
            kv_home = self.home.copy()
            kv_home[self.home.size - moved :] = np.resize(others, moved)
            best = max(best, self.tokens(replace(start, kv_home=kv_home)))
        return best

    def device_speeds(self, busy: float | FloatArray = 0.0) -> FloatArray:
        """Return the speed of each device relative to an idle own device, ``[D]``.

        ``busy`` is the share of time that other instances compute on a device.
        """
        speed_alone = np.ones(self.room_bytes.size) if self.speed_of is None else self.speed_of
        return np.asarray(speed_alone / (1.0 + np.asarray(busy)), np.float64)

    def work_shares(self, state: Instance, profile: Profile, batch: float) -> FloatArray:
        """Return each device's computing time in a decode pass, ``[D]``.

        It is a share of the time of a pass with all modules at home, without copies. ``batch`` is
        the number of sequences.
        """
        on_device = np.eye(self.room_bytes.size)  # row d: 1 in column d
        attention = self._attention_time_share(batch)
        # [n, D] share of each layer's original that a device computes
        original = attention * on_device[state.home]
        original += (1.0 - attention) * on_device[state.ffn_home]
        layer_s = self._layer_s(profile, batch, 1 + state.replicated.sum(axis=1))
        seconds = (original + state.replicated) * layer_s[:, None]
        return np.asarray(seconds.sum(axis=0) / self.pass_s(profile, batch), np.float64)

    def _layer_s(self, profile: Profile, batch: float, copies: IntArray) -> FloatArray:
        """Return the seconds of each layer, ``[n]``, if ``copies [n]`` devices share its batch."""
        n = self.home.size
        if self.reading == "source":
            return np.asarray(self.pass_s(profile, batch) / n / copies, np.float64)
        part = np.maximum(batch / copies, 1.0)  # sequences on each device
        return np.asarray(iteration_s(profile, part, part * self._context, 0, 0) / n, np.float64)

    def gamma(self, profile: Profile, batch: float) -> float:
        """Return gamma: the time to scatter and gather a batch once, over the time of one layer."""
        crossing = 2 * (self.link_s + batch * self.hidden_bytes / self.link_bytes_s)
        return crossing / (self.pass_s(profile, batch) / self.home.size)

    def relative_speed(
        self, state: Instance, profile: Profile, batch: float, busy: float | FloatArray = 0.0
    ) -> float:
        """Return the speed of a placement relative to everything at home on own devices.

        A pass takes the time of its layers, of its crossings between devices, and of weights on the
        host, which cross to the GPU in every pass. A crossing is one scatter and one gather. A run
        of copies costs one. So does each layer, feed-forward part or KV cache on another device
        than the module that it works with. The slowest copy of a layer limits the layer. A pass may
        ignore copies, so copies never slow the instance.

        ``batch`` is the number of sequences. For ``busy`` see ``device_speeds``.
        """
        home_pass_s = self.pass_s(profile, batch)
        home_layer_s = home_pass_s / self.home.size
        crossing_s = self.gamma(profile, batch) * home_pass_s / self.home.size
        offloaded_s = state.offloaded_bytes / HOST_BYTES_S
        # Crossings beyond those of the placement at home, which ``pass_s`` includes.
        parts_away = (state.kv_home != state.home).sum() + (state.ffn_home != state.home).sum()
        borders = (np.diff(state.home) != 0).sum() - (np.diff(self.home) != 0).sum()
        crossings = float(parts_away + borders)
        # Without copies. [n]: time of a layer on its devices over that on an idle own device.
        speeds = self.device_speeds(busy)
        attention = self._attention_time_share(batch)
        slowdown = attention / speeds[state.home] + (1.0 - attention) / speeds[state.ffn_home]
        layers_s = float((home_layer_s * slowdown).sum())
        without_copies_s = layers_s + crossing_s * crossings + offloaded_s
        if not state.replicated.any():
            return home_pass_s / without_copies_s
        # With copies: each layer's batch is divided over its copies.
        layer_s = self._layer_s(profile, batch, 1 + state.replicated.sum(axis=1))
        slowest_copy = np.where(state.replicated, 1.0 / speeds, 0.0).max(axis=1)
        layers_s = float((layer_s * np.maximum(slowest_copy, slowdown)).sum())
        crossings += runs(state.replicated)
        with_copies_s = layers_s + crossing_s * crossings + offloaded_s
        # Copies are optional in each pass, so the faster way counts.
        return home_pass_s / min(with_copies_s, without_copies_s)

    def problem(
        self,
        state: Instance,
        profile: Profile,
        batch: float,
        reserve: float = 0.0,
        busy: float | FloatArray = 0.0,
    ) -> ModuleProblem:
        """Return the problem of choosing which layers to copy to which devices.

        Memory for ``reserve`` tokens of KV cache stays free on the devices with caches. ``batch``
        is the number of sequences. ``busy`` is the share of time that other instances compute on a
        device.
        """
        # Bytes on each device, [D]: original weights, KV caches of its layers, and the free rest.
        without_copies = replace(state, replicated=np.zeros_like(state.replicated))
        originals = self.weight_bytes_on(without_copies)
        layers = np.bincount(state.kv_home, minlength=self.room_bytes.size)  # with their KV cache
        free = self.room_bytes - originals - layers * self.kv_layer_token_bytes * reserve
        return ModuleProblem(
            home=state.home,
            layer_bytes=self.layer_bytes,
            free_bytes=np.maximum(free, 0.0),
            vacancy=np.clip(free / np.maximum(self.room_bytes, 1.0), 0.0, 1.0),
            speed=self.device_speeds(busy),
            gamma=self.gamma(profile, batch),
        )

    def plans(self, profile: Profile, batch: float) -> tuple[Replication, Replication | None]:
        """Return the copies by Algorithm 1 and by the exact method, with no KV cache reserved.

        ``batch`` is the number of sequences. The second is None if the devices have different
        speeds.
        """
        problem = self.problem(self.start, profile, batch)
        exact = None if np.ptp(problem.speed) > 0 else optimum(problem, time_limit_s=2.0)
        return algorithm1(problem), exact

    def borrowed_devices(self, *states: Instance) -> IntArray:
        """Return 1 for each device used in at least one of ``states``, otherwise 0, ``[D]``."""
        used = np.zeros(self.room_bytes.size, np.bool_)
        for state in states:
            used |= state.replicated.any(axis=0)
            for home in (state.home, state.ffn_home, state.kv_home):
                used[home] = True
        return used.astype(np.int64)

    @property
    def _context(self) -> float:
        """Return the mean tokens of a decoding sequence: its prompt and half of its output."""
        return self.isl + self.osl / 2

    def _attention_time_share(self, batch: float) -> float:
        """Return the share of a decode layer's time that its attention takes.

        It is the share of the bytes read: a layer reads its weights once, and attention also reads
        the KV caches of the ``batch`` sequences.
        """
        cache = batch * self._context * self.kv_layer_token_bytes
        attention = self.attention_weight_share * self.layer_bytes + cache
        return attention / (self.layer_bytes + cache)

    def pass_s(self, profile: Profile, batch: float) -> float:
        """Return the seconds of a decode iteration of ``batch`` sequences, with all at home."""
        return float(iteration_s(profile, batch, batch * self._context, 0, 0))
