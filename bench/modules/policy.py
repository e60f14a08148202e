"""CoCoServe's elastic instances: layers copied to idle memory, KV caches moved under pressure (B5).

Every elastic instance is a pool of its own with one instance. At each instant, per instance:

- short of memory for the sequences that run and wait: module reduction (Algorithm 2) moves layers
  or KV caches to its part of the idle devices, then gives up copies, then shrinks the batch;
- calm for a while: what moved comes home again where they fit;
- with room left: Algorithm 1 copies layers to where there is any (idle fragments).

What is decided serves after the seconds of table 2, and while an operation runs every instance is
slower by what the source says its neighbours lose. Speeds follow from the profile: see
``Layout.speed``. The source's own policy acts on vacancy and violation rates; violations are seen
here as sequences that wait or were preempted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from bench.modules.costs import THROUGHPUT_DISTURBANCE, acting_cost
from bench.modules.reduction import Assessment, Instance, reduce
from bench.modules.scale_up import algorithm1
from bench.modules.speedup import ModuleProblem, runs
from simulation.arrays import FloatArray, IntArray
from simulation.errors import SimulationError
from simulation.fleet import Fleet
from simulation.performance.profile import Profile, iteration_s
from simulation.policy import Actions, Observation

READINGS = ("source", "split")
CALM = 2  # instants without pressure until what moved comes home
MARGIN = 1.25  # of what is needed, that home must hold before they do
WORTH = 1.01  # times as fast at least, for copies to be made


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """One elastic instance: where its layers are, and the memory it may use on each device.

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

    def __post_init__(self) -> None:
        if self.reading not in READINGS:
            raise SimulationError(
                f"There is no reading {self.reading!r}; use {' or '.join(READINGS)}."
            )

    @property
    def start(self) -> Instance:
        """Everything at home, no copies."""
        shape = self.home.size, self.room_bytes.size
        return Instance(self.home, self.home.copy(), np.zeros(shape, np.bool_), 1, 0.0)

    def used(self, state: Instance) -> FloatArray:
        """Bytes of layers and copies on each device."""
        layers = np.bincount(state.home, minlength=self.room_bytes.size)
        return np.asarray((layers + state.replicated.sum(axis=0)) * self.layer_bytes, np.float64)

    def tokens(self, state: Instance) -> float:
        """Tokens of KV cache that fit where the caches are."""
        caches = np.bincount(state.kv_home, minlength=self.room_bytes.size)
        free = np.maximum(self.room_bytes - self.used(state), 0.0)
        holds = caches > 0
        return float((free[holds] / (caches[holds] * self.kv_layer_token_bytes)).min())

    def gamma(self, profile: Profile, batch: float) -> float:
        """One scatter and gather of a batch over one layer's time."""
        crossing = 2 * (self.link_s + batch * self.hidden_bytes / self.link_bytes_s)
        return crossing / (self._pass_s(profile, batch) / self.home.size)

    def speed(self, state: Instance, profile: Profile, batch: float) -> float:
        """Times as fast as without copies: layers of several copies by the reading; each run of
        copies, layer away from home and KV cache away from its layer pays a scatter and a gather.
        Copies need not be used, so they alone never slow."""
        n = self.home.size
        whole = self._pass_s(profile, batch)
        copies = 1 + state.replicated.sum(axis=1)
        if self.reading == "source":
            layers = whole / n / copies
        else:
            part = np.maximum(batch / copies, 1.0)
            layers = iteration_s(profile, part, part * self._context, 0, 0) / n
        crossing = self.gamma(profile, batch) * whole / n
        away = float((state.kv_home != state.home).sum() + (np.diff(state.home) != 0).sum())
        away -= float((np.diff(self.home) != 0).sum())
        with_copies = float(layers.sum()) + crossing * (runs(state.replicated) + away)
        without = whole + crossing * away
        return whole / min(with_copies, without)

    def copied(self, state: Instance, profile: Profile, batch: float, reserve: float) -> Instance:
        """``state`` with the copies of Algorithm 1 in what memory is left; ``reserve``: tokens of
        KV cache that room is kept for where the caches are."""
        caches = np.bincount(state.kv_home, minlength=self.room_bytes.size)
        originals = np.bincount(state.home, minlength=self.room_bytes.size) * self.layer_bytes
        free = self.room_bytes - originals - caches * self.kv_layer_token_bytes * reserve
        problem = ModuleProblem(
            home=state.home,
            layer_bytes=self.layer_bytes,
            free_bytes=np.maximum(free, 0.0),
            vacancy=np.clip(free / np.maximum(self.room_bytes, 1.0), 0.0, 1.0),
            speed=np.ones(self.room_bytes.size),
            gamma=self.gamma(profile, batch),
        )
        return replace(state, replicated=algorithm1(problem).replicated)

    @property
    def _context(self) -> float:
        return self.isl + self.osl / 2

    def _pass_s(self, profile: Profile, batch: float) -> float:
        return float(iteration_s(profile, batch, batch * self._context, 0, 0))


@dataclass(frozen=True, slots=True)
class Event:
    """One operation of a pool: from when to when, and how many layers or caches it acted on."""

    time_s: float
    until_s: float
    pool: int
    kind: str  # copy, reduce, home
    modules: int


@dataclass(slots=True, eq=False)
class _Elastic:
    """What one pool is, and what it will be once its operation is done."""

    state: Instance
    wanted: Instance
    until_s: float = -np.inf
    calm: int = 0


@dataclass(slots=True, eq=False)
class ModuleScaling:
    """Layouts of the fleet's pools, each of one instance; ``events`` and ``held`` (time, bytes of
    copies, caches away from home by pool) say afterwards what was done."""

    layouts: Sequence[Layout]
    interval_s: float = 5.0
    name: str = "modules"
    wants_signals: bool = True
    events: list[Event] = field(default_factory=list)
    held: list[tuple[float, FloatArray, FloatArray]] = field(default_factory=list)
    _fleet: Fleet | None = None
    _pools: list[_Elastic] = field(default_factory=list)

    def reset(self, fleet: Fleet) -> IntArray:
        if len(self.layouts) != len(fleet.pools):
            raise SimulationError("Module scaling needs a layout for every pool of the fleet.")
        if any(pool.maximum > 1 for pool in fleet.pools):
            raise SimulationError("An elastic instance is a pool of its own: set its maximum to 1.")
        self._fleet = fleet
        self.events.clear()
        self.held.clear()
        self._pools = [_Elastic(layout.start, layout.start) for layout in self.layouts]
        return np.ones(len(fleet.pools), np.int64)

    def decide(self, observation: Observation) -> Actions:
        assert self._fleet is not None, "reset comes first"
        now = observation.time_s
        for p in range(len(self._pools)):
            self._act(p, observation, now)
        busy = any(one.until_s > now for one in self._pools)
        speed, share, batch = [], [], []
        for p, (one, layout) in enumerate(zip(self._pools, self.layouts, strict=True)):
            profile = self._fleet.pools[p].profile
            pace = layout.speed(one.state, profile, _running(observation, p))
            speed.append(pace * (1.0 - THROUGHPUT_DISTURBANCE if busy else 1.0))
            tokens = layout.tokens(one.state)
            share.append(float(np.clip(tokens / profile.kv_capacity_tokens, 1e-6, 1.0)))
            # The last step of Algorithm 2: no more sequences than fit with all their tokens.
            fit = tokens / (layout.isl + layout.osl) if layout.moves else np.inf
            batch.append(int(np.clip(fit, 1, profile.max_batch)))
        self._keep(now)
        return Actions(
            np.ones(len(self._pools), np.int64),
            max_batch=np.array(batch, np.int64),
            speed=np.array(speed),
            kv_share=np.array(share),
        )

    def _act(self, p: int, observation: Observation, now: float) -> None:
        """Finish what pool ``p`` is at, then see what it needs."""
        assert self._fleet is not None
        one, layout = self._pools[p], self.layouts[p]
        profile = self._fleet.pools[p].profile
        if one.until_s > now:
            return
        one.state = one.wanted
        running = _running(observation, p)
        sequences = min(running + float(observation.waiting[p]), float(profile.max_batch))
        needed = sequences * (layout.isl + layout.osl)
        assert observation.signals is not None
        lost = observation.signals.preemptions[p] > 0
        short = needed > layout.tokens(one.state) or lost
        one.calm = 0 if short or observation.waiting[p] else one.calm + 1
        if short and layout.moves:
            self._change(p, now, "reduce", self._reduced(p, max(sequences, 1.0)), running)
            if one.until_s > now:
                return
        away = (one.state.kv_home != layout.home) | (one.state.home != layout.home)
        if one.calm >= CALM and away.any():
            copies = one.state.replicated.copy()
            copies[np.arange(layout.home.size), layout.home] = False  # they are the originals now
            home = replace(
                one.state, home=layout.home, kv_home=layout.home.copy(), replicated=copies
            )
            if layout.tokens(home) >= MARGIN * needed:
                self._change(p, now, "home", home, running)
                return
        if layout.copies:
            more = layout.copied(one.state, profile, running, MARGIN * needed)
            faster = layout.speed(more, profile, running)
            if faster > WORTH * layout.speed(one.state, profile, running):
                self._change(p, now, "copy", more, running)

    def _reduced(self, p: int, sequences: float) -> Instance:
        """Algorithm 2 for as many sequences as run and wait."""
        assert self._fleet is not None
        one, layout = self._pools[p], self.layouts[p]
        per_sequence = layout.kv_layer_token_bytes * (layout.isl + layout.osl)

        def assess(state: Instance) -> Assessment:
            caches = np.bincount(state.kv_home, minlength=layout.room_bytes.size)
            held = layout.used(state) + caches * state.batch * per_sequence
            return Assessment(held - layout.room_bytes, False)

        best = None
        # Copies elsewhere may be what keeps caches from moving there: without them too.
        for replicated in (one.state.replicated, np.zeros_like(one.state.replicated)):
            wanted = replace(one.state, replicated=replicated, batch=round(sequences))
            kv_bytes = wanted.batch * per_sequence
            found = reduce(wanted, assess, layer_bytes=layout.layer_bytes, kv_bytes=kv_bytes)
            # Its last phase, the smaller batch, is among the actions of every instant.
            state = replace(found.state, batch=one.state.batch, offloaded_bytes=0.0)
            if best is None or layout.tokens(state) > layout.tokens(best):
                best = state
            if found.solved and found.state.batch == wanted.batch:
                break
        assert best is not None
        return best

    def _change(self, p: int, now: float, kind: str, wanted: Instance, running: float) -> None:
        """Begin an operation, where there is one: it costs what table 2 says."""
        one, layout = self._pools[p], self.layouts[p]
        copied = int((wanted.replicated & ~one.state.replicated).sum())
        layers = int((wanted.home != one.state.home).sum())
        alone = wanted.home == one.state.home  # caches that move without their layer
        caches = int(((wanted.kv_home != one.state.kv_home) & alone).sum())
        gone = int((one.state.replicated & ~wanted.replicated).sum())
        if not copied + layers + caches + gone:
            return
        seconds = 0.0
        if copied:
            seconds += acting_cost("replicate", copied, layout.layer_bytes).seconds
        if layers:
            seconds += acting_cost("migrate", layers, layout.layer_bytes).seconds
        if caches:
            tokens = max(running, 1.0) * (layout.isl + layout.osl / 2)
            size = max(tokens * layout.kv_layer_token_bytes, 1.0)
            seconds += acting_cost("migrate", caches, size).seconds
        one.wanted, one.until_s = wanted, now + seconds
        # Copies that go are not used from now on: their memory is what is waited for.
        one.state = replace(one.state, replicated=one.state.replicated & wanted.replicated)
        self.events.append(Event(now, now + seconds, p, kind, copied + layers + caches + gone))

    def _keep(self, now: float) -> None:
        bytes_of = [
            float(one.wanted.replicated.sum()) * layout.layer_bytes
            for one, layout in zip(self._pools, self.layouts, strict=True)
        ]
        away = [float((one.wanted.kv_home != layout.home).sum())
                for one, layout in zip(self._pools, self.layouts, strict=True)]  # fmt: skip
        self.held.append((now, np.array(bytes_of), np.array(away)))


def _running(observation: Observation, p: int) -> float:
    """Mean sequences of the batch since the last instant, at least 1."""
    assert observation.signals is not None
    return float(np.maximum(np.nan_to_num(observation.signals.batch[p], nan=1.0), 1.0))
