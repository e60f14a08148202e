"""One elastic instance: its devices, what fits on them, how fast it runs as its modules stand."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from simulation.arrays import FloatArray, IntArray
from simulation.errors import SimulationError
from simulation.modules.reduction import Instance, LayerBytes, weights_held
from simulation.modules.scale_up import Replication, algorithm1, optimum
from simulation.modules.speedup import ModuleProblem, runs
from simulation.performance.profile import Profile, iteration_s

READINGS = ("source", "split")
HOST_BYTES_S = 25e9  # between a GPU and its host: PCIe 4.0 x16 of 31.5 GB/s as copies reach it
ATTENTION_SHARE = 200 / 605  # of a layer's weights, of LLaMA-13B (table 1), where nobody says


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """``D`` devices, each as many GPUs as an instance has: its own first, then what it may borrow.

    ``reading`` says how a layer with p copies runs: ``source``, in 1 / p of its time; ``split``, in
    the time of 1 / p of the batch, since every copy reads all weights of the layer.
    """

    home: IntArray  # [n] device of each layer
    room_bytes: FloatArray  # [D] for layers and KV caches; own devices, then its part of idle ones
    layer_bytes: float
    kv_layer_token_bytes: float  # KV cache of one token in one layer
    hidden_bytes: float  # of one token between layers
    link_bytes_s: float
    link_s: float  # of a message, whatever its size
    isl: float  # mean tokens of a request, in and out
    osl: float
    reading: str = "split"
    copies: bool = True
    moves: bool = True
    attention_share: float = ATTENTION_SHARE  # of a layer's weights
    speed_of: FloatArray | None = None  # [D] of a device, 1 that of its own; None: all alike
    sharers: FloatArray | None = None  # [D] instances that compute on a device; None: itself alone
    hosts: tuple[int, ...] = ()  # [D] the fleet's pool that a device is of, -1 its own; empty: none
    held: tuple[int, ...] = ()  # [D] instances of that pool which all that are alike take of it

    def __post_init__(self) -> None:
        if self.reading not in READINGS:
            raise SimulationError(
                f"There is no reading {self.reading!r}; use {' or '.join(READINGS)}."
            )

    @property
    def start(self) -> Instance:
        """Everything at home, no copies."""
        return Instance.whole(self.home, self.room_bytes.size)

    def sizes(self, cache_bytes: float = 0.0) -> LayerBytes:
        attention = self.attention_share * self.layer_bytes
        return LayerBytes(attention, self.layer_bytes - attention, cache_bytes)

    def used(self, state: Instance) -> FloatArray:
        """Bytes of layers and copies on each device; what is offloaded leaves room at home."""
        bytes_used = weights_held(state, self.sizes())
        bytes_used[self.home[0]] -= min(state.offloaded_bytes, bytes_used[self.home[0]])
        return bytes_used

    def tokens(self, state: Instance) -> float:
        """Tokens of KV cache that fit where the caches are."""
        caches = np.bincount(state.kv_home, minlength=self.room_bytes.size)
        free = np.maximum(self.room_bytes - self.used(state), 0.0)
        holds = caches > 0
        return float((free[holds] / (caches[holds] * self.kv_layer_token_bytes)).min())

    def most_tokens(self) -> float:
        """With the caches of as many layers moved as gives most; one at least of them at home, in
        turn to each device that is not home."""
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

    def paces(self, busy: float = 0.0) -> FloatArray:
        """Speed of each device, [D]: where others compute on it too, a ``busy`` share of the time,
        each of them in its turn."""
        alone = np.ones(self.room_bytes.size) if self.speed_of is None else self.speed_of
        others = 0.0 if self.sharers is None else np.maximum(self.sharers - 1.0, 0.0)
        return np.asarray(alone / (1.0 + others * busy), np.float64)

    def gamma(self, profile: Profile, batch: float) -> float:
        """One scatter and gather of a batch over one layer's time."""
        crossing = 2 * (self.link_s + batch * self.hidden_bytes / self.link_bytes_s)
        return crossing / (self.pass_s(profile, batch) / self.home.size)

    def speed(self, state: Instance, profile: Profile, batch: float, busy: float = 0.0) -> float:
        """Times as fast as everything at home on devices of its own. Layers of several copies by
        the reading, the slowest of them counting; each run of copies, and each layer, feed-forward
        part or KV cache that is away from what it works with, pays a scatter and a gather; weights
        on the host cross to the GPU in every pass. Copies need not be used, so they alone never
        slow."""
        n = self.home.size
        pass_time_s = self.pass_s(profile, batch)
        crossing = self.gamma(profile, batch) * pass_time_s / n
        paces = self.paces(busy)
        away = float((state.kv_home != state.home).sum() + (state.ffn_home != state.home).sum())
        away += float((np.diff(state.home) != 0).sum() - (np.diff(self.home) != 0).sum())
        share = self._attention_time(batch)
        unit = share / paces[state.home] + (1.0 - share) / paces[state.ffn_home]  # [n] of a layer's
        offloaded = state.offloaded_bytes / HOST_BYTES_S
        without = float((pass_time_s / n * unit).sum()) + crossing * away + offloaded
        if not state.replicated.any():
            return pass_time_s / without
        copies = 1 + state.replicated.sum(axis=1)
        if self.reading == "source":
            part_s = pass_time_s / n / copies
        else:
            part = np.maximum(batch / copies, 1.0)
            part_s = iteration_s(profile, part, part * self._context, 0, 0) / n
        slowest = np.where(state.replicated, 1.0 / paces, 0.0).max(axis=1)
        layers = part_s * np.maximum(slowest, unit)
        with_copies = float(layers.sum()) + crossing * (runs(state.replicated) + away) + offloaded
        return pass_time_s / min(with_copies, without)

    def problem(self, state: Instance, profile: Profile, batch: float, reserve: float = 0.0,
                busy: float = 0.0) -> ModuleProblem:  # fmt: skip
        """What may be copied where; ``reserve``: tokens of KV cache that room is kept for where the
        caches are."""
        caches = np.bincount(state.kv_home, minlength=self.room_bytes.size)
        originals = self.used(replace(state, replicated=np.zeros_like(state.replicated)))
        free = self.room_bytes - originals - caches * self.kv_layer_token_bytes * reserve
        return ModuleProblem(
            home=state.home,
            layer_bytes=self.layer_bytes,
            free_bytes=np.maximum(free, 0.0),
            vacancy=np.clip(free / np.maximum(self.room_bytes, 1.0), 0.0, 1.0),
            speed=self.paces(busy),
            gamma=self.gamma(profile, batch),
        )

    def copied(self, state: Instance, profile: Profile, batch: float, reserve: float,
               vacancy_threshold: float = 0.0, busy: float = 0.0) -> Instance:  # fmt: skip
        """``state`` with the copies of Algorithm 1 in what memory is left on devices vacant by more
        than the threshold."""
        problem = self.problem(state, profile, batch, reserve, busy)
        replication = algorithm1(problem, vacancy_threshold=vacancy_threshold)
        return replace(state, replicated=replication.replicated)

    def plans(self, profile: Profile, batch: float) -> tuple[Replication, Replication | None]:
        """Algorithm 1 and the exact plan from where it starts, all its room free; no exact one
        where devices differ."""
        problem = self.problem(self.start, profile, batch)
        exact = None if np.ptp(problem.speed) > 0 else optimum(problem, time_limit_s=2.0)
        return algorithm1(problem), exact

    def borrows(self, *states: Instance) -> IntArray:
        """Devices with anything on them in one of ``states``, ``[D]`` 0 or 1."""
        some = np.zeros(self.room_bytes.size, np.bool_)
        for state in states:
            some |= state.replicated.any(axis=0)
            for home in (state.home, state.ffn_home, state.kv_home):
                some[home] = True
        return some.astype(np.int64)

    @property
    def _context(self) -> float:
        return self.isl + self.osl / 2

    def _attention_time(self, batch: float) -> float:
        """Share of a decode's layer that attention takes: by the bytes it reads."""
        cache = batch * self._context * self.kv_layer_token_bytes
        attention = self.attention_share * self.layer_bytes + cache
        return attention / (self.layer_bytes + cache)

    def pass_s(self, profile: Profile, batch: float) -> float:
        """One decode of the batch at home."""
        return float(iteration_s(profile, batch, batch * self._context, 0, 0))
