"""CoCoServe's elastic instances: copy layers to idle memory, move modules under pressure.

A module is a layer, its attention or feed-forward projections, or its KV cache. The number of
instances stays. Those of a pool act alike, each on its share of the idle GPUs. At each decision,
one of these happens in each pool:

- Memory is short for the running and waiting sequences, or more requests are late than the
  threshold allows. Then module reduction (Algorithm 2) moves layers, projections and KV caches to
  borrowed devices. Next it removes copies, then it shrinks the batch and offloads.
- There was no pressure for a while. Then moved modules return if they fit.
- The free share of a device exceeds its threshold. Then Algorithm 1 copies layers to it, if the
  copies add more capacity per dollar than a replica.

A change takes effect after its seconds (``acting_cost``) and the coordination of copies. While an
operation runs, instances on the same devices are slower by the source's disturbance. Speeds follow
from the profile: see ``Layout.speed``.

Borrowed devices are idle GPUs, which are instances of pools without requests, or GPUs that serve
other pools. The pool that owns a device is its host. Idle GPUs cost money while modules are on
them. On GPUs that serve, modules use KV memory and computing time of the host. Their price is the
capacity that the host loses.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import exp, log

import numpy as np

from simulation.arrays import FloatArray, IntArray
from simulation.fleet import Fleet, Pool
from simulation.modules.layout import Layout
from simulation.modules.parts import COORDINATE_S, LATENCY_DISTURBANCE, acting_cost
from simulation.modules.reduction import Assessment, Instance, reduce
from simulation.modules.scale_up import algorithm1
from simulation.performance.profile import Profile
from simulation.policy import Actions, Observation, ScalingPolicy, Signals

CALM = 2  # decisions without pressure until moved modules return
MARGIN = 1.25  # of the need, that must fit at the start location before modules return
MIN_GAIN = 0.01  # smallest rise in speed that is worth copies
SAME_BATCH = 0.05  # relative difference of batches that count as one size
UNLIMITED = 1 << 20  # sequences


@dataclass(frozen=True, slots=True)
class Event:
    """An operation of a pool: its time, its kind, and the number of modules moved per instance."""

    time_s: float
    until_s: float
    pool: int
    kind: str  # copy, reduce, home
    copied: int  # layers
    layers: int  # moved whole, or their attention
    projections: int  # feed-forward parts moved without the rest
    caches: int  # moved without their layer
    given_up: int  # copies that are removed
    offloaded_bytes: float = 0.0  # weights moved to the host

    @property
    def modules(self) -> int:
        """Return the modules of an instance that were copied, moved or removed."""
        return self.copied + self.layers + self.projections + self.caches + self.given_up


@dataclass(frozen=True, slots=True, eq=False)
class ModuleLocations:
    """Numbers of modules on each of the D devices of a pool's instances from ``time_s`` on."""

    time_s: float
    pool: int
    copies: IntArray  # [D] copied layers
    parts: IntArray  # [D] attention of layers, original
    projections: IntArray  # [D] feed-forward projections of layers, original
    caches: IntArray  # [D] KV caches of layers
    borrowed: int  # instances of other pools that are borrowed
    speed: float  # relative to the start


@dataclass(slots=True, eq=False)
class _ElasticPool:
    """A pool whose modules are scaled: their placement, and the running operation."""

    index: int  # of the pool
    layout: Layout
    profile: Profile
    state: Instance  # placement now
    wanted: Instance  # placement after the running operation
    count: int  # instances
    tbt_s: float  # tightest limit of its tiers; inf: none
    until_s: float = -np.inf  # end of the last operation
    calm: int = 0  # decisions in a row without pressure
    limit: int = UNLIMITED  # sequences, set by module reduction
    tried: tuple[object, ...] = ()  # last state for which nothing helped
    recorded: tuple[object, ...] = ()  # last recorded placements
    # cache of ``_relative_speed``
    speeds: dict[tuple[Instance, int, bytes], float] = field(default_factory=dict)


@dataclass(eq=False)
class ModuleScaling(ScalingPolicy):
    """Scale the modules of the pools that have a layout.

    ``events``, ``standings`` and ``held`` record the run. An entry of ``held`` is a time in
    seconds, the bytes of copies of each pool with a layout, and its caches on other devices.
    """

    layouts: Sequence[Layout | None]  # by pool; None: its modules are not scaled
    vacancy_threshold: float = 0.0  # vacant share of a device above which it gets copies
    violation_threshold: float = 0.05  # share of late requests above which modules are reduced
    interval_s: float = 5.0
    name: str = "modules"
    wants_signals: bool = True
    events: list[Event] = field(default_factory=list)
    standings: list[ModuleLocations] = field(default_factory=list)
    held: list[tuple[float, FloatArray, FloatArray]] = field(default_factory=list)
    _fleet: Fleet = field(init=False, repr=False)
    _observation: Observation = field(init=False, repr=False)  # of the present decision
    _pools: list[_ElasticPool] = field(default_factory=list)

    def reset(self, fleet: Fleet) -> IntArray:
        self._fleet = fleet
        self.events.clear()
        self.standings.clear()
        self.held.clear()
        self._pools = []
        for p, (layout, pool) in enumerate(zip(self.layouts, fleet.pools, strict=True)):
            if layout is not None:
                elastic = _ElasticPool(
                    p, layout, pool.profile, state=layout.start, wanted=layout.start,
                    count=pool.initial, tbt_s=_tbt_s(fleet, pool),
                )  # fmt: skip
                self._pools.append(elastic)
        return self._targets()

    def decide(self, observation: Observation) -> Actions:
        """Act on each pool's modules; return the speeds, batches and KV memory that result."""
        self._observation, now = observation, observation.time_s
        for elastic in self._pools:
            self._act(elastic, now)
        speed, kv_share = np.ones((2, len(self._fleet.pools)))
        max_batch = np.array([pool.profile.max_batch for pool in self._fleet.pools], np.int64)
        copied_bytes, caches_away = np.zeros((2, len(self._pools)))
        for i, elastic in enumerate(self._pools):
            p, layout = elastic.index, elastic.layout
            own_speed = self._relative_speed(elastic, elastic.state)
            speed[p] *= own_speed
            tokens = self._layout_with_free_memory(elastic).tokens(elastic.state)
            free_share = tokens / elastic.profile.kv_capacity_tokens
            kv_share[p] *= float(np.clip(free_share, 1e-6, 1.0))
            # Last step of Algorithm 2: limit sequences to those that fit with all their tokens.
            sequences_fit = tokens / (layout.isl + layout.osl) if layout.moves else np.inf
            sequences = min(sequences_fit, elastic.limit)
            max_batch[p] = int(np.clip(sequences, 1, elastic.profile.max_batch))
            self._record_location(elastic, now, own_speed)

            # Others lose what its modules take, and time while an operation runs.
            computing, memory = self._capacity_taken_from_others(elastic, elastic.state)
            speed /= 1.0 + computing
            kv_share *= np.maximum(1.0 - memory, 1e-6)
            # Share of the interval until the next decision in which the operation still runs.
            acting = min(max(elastic.until_s - now, 0.0) / self.interval_s, 1.0)
            speed[self._neighbours(elastic)] /= 1.0 + LATENCY_DISTURBANCE * acting
            copied_bytes[i] = elastic.wanted.replicated.sum() * layout.layer_bytes
            caches_away[i] = (elastic.wanted.kv_home != layout.home).sum()
        self.held.append((now, copied_bytes, caches_away))
        return Actions(self._targets(), max_batch=max_batch, speed=speed, kv_share=kv_share)

    def _neighbours(self, elastic: _ElasticPool) -> list[int]:
        """Return the index of a pool, and of those that an operation on its modules slows down.

        These have instances or modules on the same devices.
        """
        layout = elastic.layout
        if not layout.hosts:
            return [elastic.index]
        used = layout.borrowed_devices(elastic.state, elastic.wanted)
        hosts = set(np.array(layout.hosts)[used > 0].tolist()) - {-1}  # -1: the instance's own GPUs
        sharing = {other.index for other in self._pools if hosts & set(other.layout.hosts)}
        return sorted({elastic.index} | sharing | set(filter(self._serves, hosts)))

    @property
    def _signals(self) -> Signals:
        """Return the signals of the present decision; this policy always gets them."""
        assert self._observation.signals is not None
        return self._observation.signals

    def _running(self, elastic: _ElasticPool) -> float:
        """Return the mean sequences in a batch of a pool since the last decision, at least 1."""
        batch = self._signals.batch[elastic.index]
        return float(np.maximum(np.nan_to_num(batch, nan=1.0), 1.0))

    def _serves(self, host: int) -> bool:
        """Return whether pool ``host`` serves requests, so that only a part of its GPUs is idle."""
        return host >= 0 and not self._fleet.pools[host].lends

    def _kv_use(self) -> FloatArray:
        """Return the share of KV memory that each pool needs with a margin, at most 1, ``[pools]``.

        The memory is that of the pool's first placement.
        """
        use = MARGIN * np.nan_to_num(self._observation.utilisation)
        for elastic in self._pools:
            # The KV capacity in the profile includes memory for caches on borrowed devices.
            own_tokens = elastic.layout.tokens(elastic.layout.start)
            use[elastic.index] *= elastic.profile.kv_capacity_tokens / own_tokens
        return np.minimum(use, 1.0)

    def _layout_with_free_memory(self, elastic: _ElasticPool) -> Layout:
        """Return the layout of a pool with only the memory that its hosts can spare now."""
        layout, use = elastic.layout, self._kv_use()
        vacant = [1.0 - use[host] if self._serves(host) else 1.0 for host in layout.hosts]
        return replace(layout, room_bytes=layout.room_bytes * vacant) if vacant else layout

    def _busy_share_of_others(self, elastic: _ElasticPool) -> FloatArray:
        """Return the share of time that other instances compute on each device, ``[D]``.

        These are the other instances of the pool that share the device, and that of the host (the
        pool that owns it). The share is above 1 if several of them compute all the time.
        """
        layout, busy = elastic.layout, np.nan_to_num(self._signals.busy)
        devices = layout.room_bytes.size
        # Instances of the pool on each device
        sharers = np.ones(devices) if layout.sharers is None else layout.sharers
        busy_share = np.maximum(sharers - 1.0, 0.0) * busy[elastic.index]
        for d, host in enumerate(layout.hosts):
            busy_share[d] += busy[host] if self._serves(host) else 0.0
        # Rounded, so that cached speeds hold for small changes of load.
        return np.asarray(np.round(busy_share, 1), np.float64)

    def _capacity_taken_from_others(
        self, elastic: _ElasticPool, state: Instance
    ) -> tuple[FloatArray, FloatArray]:
        """Return the shares of computing time and of KV memory that each pool loses, ``[pools]``.

        They are taken by modules of the pool ``elastic`` in the placement ``state``.
        """
        computing, memory = np.zeros((2, len(self._fleet.pools)))
        layout = elastic.layout
        if not any(self._serves(host) for host in layout.hosts):
            return computing, memory
        running = self._running(elastic)
        work = layout.work_shares(state, elastic.profile, running)
        caches = np.bincount(state.kv_home, minlength=layout.room_bytes.size)
        tokens = running * (layout.isl + layout.osl)
        used_bytes = layout.weight_bytes_on(state) + caches * layout.kv_layer_token_bytes * tokens
        for d, host in enumerate(layout.hosts):
            if self._serves(host):
                # Instances of the pool for each instance of the host
                per_host = elastic.count / max(int(self._observation.ready[host]), 1)
                busy = float(np.nan_to_num(self._signals.busy[elastic.index]))
                computing[host] += busy * work[d] * per_host
                memory[host] += used_bytes[d] / layout.room_bytes[d]
        return computing, memory

    def _is_worth_its_copies(
        self, elastic: _ElasticPool, before: Instance, after: Instance, gain: float
    ) -> bool:
        """Return whether copies add more capacity per dollar than another replica would.

        ``gain`` is the relative rise in speed from placement ``before`` to ``after``. The cost is
        that of newly borrowed idle GPUs, and of the capacity that pools with serving GPUs lose.
        Without prices, GPUs are counted instead of dollars.
        """
        layout = elastic.layout
        # Dollars per hour of an instance of each pool
        prices = np.array(
            [pool.gpus_per_instance * (pool.usd_per_gpu_hour or 1.0) for pool in self._fleet.pools]
        )
        cost = 0.0
        newly_borrowed = np.maximum(
            layout.borrowed_devices(after) - layout.borrowed_devices(before), 0
        )
        for d, host in enumerate(layout.hosts):
            if host >= 0 and not self._serves(host):
                cost += float(newly_borrowed[d]) * layout.held[d] * prices[host]
        computing_before, memory_before = self._capacity_taken_from_others(elastic, before)
        computing_after, memory_after = self._capacity_taken_from_others(elastic, after)
        busy = np.minimum(MARGIN * np.nan_to_num(self._signals.busy), 1.0)
        lost = np.zeros(prices.size)  # capacity that each pool loses, as a share
        for own_use, displaced_before, displaced_after in (
            (busy, computing_before, computing_after),
            (self._kv_use(), memory_before, memory_after),
        ):
            # Idle time and memory cost nothing, so only use beyond all of it is a loss.
            excess_before = np.maximum(own_use + displaced_before, 1.0)
            excess_after = np.maximum(own_use + displaced_after, 1.0)
            lost = np.maximum(lost, excess_after - excess_before)
        cost += float(lost @ (self._observation.ready * prices))
        return gain * elastic.count * float(prices[elastic.index]) > cost

    def _targets(self) -> IntArray:
        """Return the instances of each pool; of lending pools, those that modules borrow."""
        # Pools that only serve keep their instances.
        targets = np.array([0 if pool.lends else pool.initial for pool in self._fleet.pools])
        for elastic in self._pools:
            targets += self._borrowed_instances(elastic)
        return targets

    def _borrowed_instances(self, elastic: _ElasticPool) -> IntArray:
        """Return the instances of lending pools that modules of a pool borrow, ``[pools]``.

        They are borrowed before or after the running operation.
        """
        layout = elastic.layout
        borrowed = np.zeros(len(self._fleet.pools), np.int64)
        if layout.hosts:
            is_used = layout.borrowed_devices(elastic.state, elastic.wanted)
            counts = (is_used * np.array(layout.held)).tolist()
            for host, count in zip(layout.hosts, counts, strict=True):
                if host >= 0 and not self._serves(host):
                    borrowed[host] += count
        return borrowed

    def _relative_speed(self, elastic: _ElasticPool, state: Instance) -> float:
        """Return the speed of placement ``state`` of a pool at the present batch and load.

        It is relative to the start. Results are cached.
        """
        busy = self._busy_share_of_others(elastic)
        batch_step = _log_step(self._running(elastic))
        key = (state, batch_step, busy.tobytes())
        if key not in elastic.speeds:
            batch = exp(batch_step * SAME_BATCH)
            elastic.speeds[key] = elastic.layout.relative_speed(state, elastic.profile, batch, busy)
        return elastic.speeds[key]

    def _act(self, elastic: _ElasticPool, now: float) -> None:
        """Finish the operation of a pool if its time is over, and begin the next one.

        Under pressure modules are reduced, without it they return to their first devices or layers
        are copied. A state for which nothing helped is not tried again.
        """
        if elastic.until_s > now:
            return
        if elastic.state is not elastic.wanted:
            elastic.state, elastic.speeds = elastic.wanted, {}

        # The load, and whether it is too high
        layout = self._layout_with_free_memory(elastic)
        running, all_waiting = self._running(elastic), self._observation.waiting[elastic.index]
        waiting = float(all_waiting) / max(int(self._observation.ready[elastic.index]), 1)
        sequences = max(min(running + waiting, float(elastic.profile.max_batch)), 1.0)
        needed_tokens = sequences * (layout.isl + layout.osl)
        is_short, is_late = self._pressure(elastic, layout, needed_tokens)
        pressed = is_short or is_late
        elastic.calm = 0 if pressed or all_waiting else elastic.calm + 1
        if elastic.calm >= CALM:
            elastic.limit = UNLIMITED

        # Reduce modules. The key of an attempt: the placement, the load in steps of its logarithm,
        # and the pressure.
        reduction = elastic.state, _log_step(sequences), is_short, is_late
        if pressed and layout.moves and reduction != elastic.tried:
            reduced = self._after_reduction(elastic, sequences, is_late)
            self._change(elastic, now, "reduce", reduced, running)
            elastic.tried = reduction
            if elastic.until_s > now:
                return

        # Return modules to their first devices.
        if elastic.calm >= CALM and _is_away(elastic.state, layout.start):
            copies = elastic.state.replicated.copy()
            # Copies at home become the originals.
            copies[np.arange(layout.home.size), layout.home] = False
            home = replace(layout.start, replicated=copies)
            if layout.tokens(home) >= MARGIN * needed_tokens:
                self._change(elastic, now, "home", home, running)
                return

        # Copy layers.
        copying = elastic.state, _log_step(running), _log_step(needed_tokens)
        if layout.copies and copying != elastic.tried:
            copied = self._with_copies(elastic, running, needed_tokens)
            if copied is not None:
                self._change(elastic, now, "copy", copied, running)
            elif not pressed:  # under pressure, ``tried`` stays that of the reduction
                elastic.tried = copying

    def _pressure(
        self, elastic: _ElasticPool, layout: Layout, needed_tokens: float
    ) -> tuple[bool, bool]:
        """Return whether KV memory of a pool is short, and whether too many requests are late.

        ``layout`` has the memory that is free now. An instance needs ``needed_tokens`` of KV cache.
        """
        p, state, signals = elastic.index, elastic.state, self._signals
        is_short = needed_tokens > layout.tokens(state) or signals.preemptions[p] > 0
        # Modules leave a GPU that serves others if those need its memory.
        is_short |= bool((layout.weight_bytes_on(state) > layout.room_bytes).any())
        late = float(np.nanmax([signals.late_first[p], signals.late_done[p], 0.0]))
        return bool(is_short), late > self.violation_threshold

    def _with_copies(
        self, elastic: _ElasticPool, running: float, needed_tokens: float
    ) -> Instance | None:
        """Return the placement with copies of layers by Algorithm 1; None if they are not worth it.

        ``running`` sequences are in a batch. KV memory for ``needed_tokens`` stays free.
        """
        state, profile = elastic.state, elastic.profile
        layout = self._layout_with_free_memory(elastic)
        busy = self._busy_share_of_others(elastic)
        speed_now = layout.relative_speed(state, profile, running, busy)
        # First only on GPUs that cost nothing more, then on idle GPUs too.
        for usable in (self._without_idle_gpus(elastic, layout), layout):
            problem = usable.problem(state, profile, running, MARGIN * needed_tokens, busy)
            replication = algorithm1(problem, vacancy_threshold=self.vacancy_threshold)
            copied = replace(state, replicated=replication.replicated)
            gain = layout.relative_speed(copied, profile, running, busy) / speed_now - 1.0
            if gain > MIN_GAIN and self._is_worth_its_copies(elastic, state, copied, gain):
                return copied
        return None

    def _without_idle_gpus(self, elastic: _ElasticPool, layout: Layout) -> Layout:
        """Return the layout without the idle GPUs that are not borrowed yet."""
        borrowed = layout.borrowed_devices(elastic.state) > 0
        # Devices that cost nothing more: borrowed already, its own, or of a pool that serves
        usable = [
            bool(is_borrowed) or host < 0 or self._serves(host)
            for host, is_borrowed in zip(layout.hosts, borrowed.tolist(), strict=False)
        ]
        if not usable:
            return layout
        return replace(layout, room_bytes=np.where(usable, layout.room_bytes, 0.0))

    def _after_reduction(self, elastic: _ElasticPool, sequences: float, violated: bool) -> Instance:
        """Return the placement of an instance after module reduction (Algorithm 2).

        ``sequences`` run or wait on the instance. If ``violated``, the TBT limit must be kept too.
        Also sets the pool's limit on sequences.
        """
        layout, profile = self._layout_with_free_memory(elastic), elastic.profile
        busy = self._busy_share_of_others(elastic)
        per_sequence_bytes = layout.kv_layer_token_bytes * (layout.isl + layout.osl)

        def assess(placement: Instance) -> Assessment:
            """Return how a placement violates limits, and its speed (see ``relative_speed``)."""
            caches = np.bincount(placement.kv_home, minlength=layout.room_bytes.size)
            batch = placement.batch
            used_bytes = layout.weight_bytes_on(placement) + caches * batch * per_sequence_bytes
            missed, speed = False, 1.0
            if violated and np.isfinite(elastic.tbt_s):  # a smaller batch only shortens TBT
                speed = layout.relative_speed(placement, profile, float(batch), busy)
                missed = layout.pass_s(profile, float(batch)) / speed > elastic.tbt_s
            return Assessment(used_bytes - layout.room_bytes, missed, speed)

        best, most_tokens, limit = elastic.state, -1.0, elastic.limit
        # Copies on a device may leave no memory for caches, so also try without copies.
        copies = elastic.state.replicated
        for replicated in (copies, np.zeros_like(copies)):
            candidate = replace(elastic.state, replicated=replicated, batch=round(sequences))
            sizes = layout.sizes(candidate.batch * per_sequence_bytes)
            reduction = reduce(candidate, assess, sizes, layout.device_speeds(busy))
            tokens = layout.tokens(reduction.state)
            if tokens > most_tokens:
                best, most_tokens = replace(reduction.state, batch=elastic.state.batch), tokens
                shrunk = reduction.state.batch < candidate.batch
                limit = reduction.state.batch if shrunk and violated else UNLIMITED
            if reduction.solved and reduction.state.batch == candidate.batch:
                break
        elastic.limit = limit
        return best

    def _change(
        self, elastic: _ElasticPool, now: float, kind: str, after: Instance, running: float
    ) -> None:
        """Begin the operation of type ``kind`` that leads to ``after``, and record its event.

        It takes the time of ``acting_cost`` with ``running`` sequences. Nothing happens if no
        module moves.
        """
        layout, before = elastic.layout, elastic.state
        sizes = layout.sizes()
        copied = int((after.replicated & ~before.replicated).sum())
        home_moved = after.home != before.home
        layers = int(home_moved.sum())
        projections = int(((after.ffn_home != before.ffn_home) & ~home_moved).sum())
        caches = int(((after.kv_home != before.kv_home) & ~home_moved).sum())
        removed = int((before.replicated & ~after.replicated).sum())
        offloaded_bytes = max(after.offloaded_bytes - before.offloaded_bytes, 0.0)
        if not copied + layers + projections + caches + removed and not offloaded_bytes:
            return
        seconds = COORDINATE_S if copied else 0.0
        tokens = max(running, 1.0) * (layout.isl + layout.osl / 2)
        cache_bytes = max(tokens * layout.kv_layer_token_bytes, 1.0)
        for action, size_bytes in (
            ("replicate", copied * layout.layer_bytes),
            ("migrate", layers * layout.layer_bytes),
            ("migrate", projections * sizes.feed_forward),
            ("migrate", caches * cache_bytes),
            ("migrate", offloaded_bytes),
        ):
            if size_bytes:
                seconds += acting_cost(action, size_bytes, layout.link_bytes_s).seconds
        elastic.wanted, elastic.until_s = after, now + seconds
        # Stop using removed copies now, since the operation needs their memory.
        if removed:
            remaining_copies = before.replicated & after.replicated
            elastic.state, elastic.speeds = replace(before, replicated=remaining_copies), {}
        self.events.append(
            Event(
                now, now + seconds, elastic.index, kind, copied, layers, projections, caches,
                removed, offloaded_bytes,
            )
        )  # fmt: skip

    def _record_location(self, elastic: _ElasticPool, now: float, speed: float) -> None:
        """Append the location of the modules of a pool to ``standings`` if it changed."""
        if elastic.recorded == (elastic.state, elastic.wanted):
            return
        elastic.recorded = elastic.state, elastic.wanted
        devices, state = elastic.layout.room_bytes.size, elastic.state
        copies = state.replicated.sum(axis=0).astype(np.int64)
        parts, projections, caches = (
            np.bincount(home, minlength=devices)
            for home in (state.home, state.ffn_home, state.kv_home)
        )
        borrowed = int(self._borrowed_instances(elastic).sum())
        location = ModuleLocations(
            now, elastic.index, copies, parts, projections, caches, borrowed, speed
        )
        self.standings.append(location)


def _log_step(load: float) -> int:
    """Return ``load`` in whole steps of its logarithm; loads of one step count as equal."""
    return round(log(load) / SAME_BATCH)


def _is_away(state: Instance, start: Instance) -> bool:
    """Return whether a module is on another device than in ``start``, or on the host."""
    return bool(
        state.offloaded_bytes
        or (state.home != start.home).any()
        or (state.ffn_home != start.ffn_home).any()
        or (state.kv_home != start.kv_home).any()
    )


def _tbt_s(fleet: Fleet, pool: Pool) -> float:
    """Return the tightest TBT limit of the pool's tiers that are not deferrable; inf: none."""
    limits = [tier.tbt_s for tier in fleet.tiers if pool.takes(tier.name) and not tier.deferrable]
    return min((limit for limit in limits if limit is not None), default=np.inf)
