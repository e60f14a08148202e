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
from simulation.modules.reduction import Assessment, Instance, Reduction, reduce
from simulation.modules.scale_up import algorithm1
from simulation.performance.profile import Profile
from simulation.policy import Actions, Observation, ScalingPolicy, Signals

CALM_DECISIONS = 2  # decisions without pressure until moved modules return
MEMORY_MARGIN = 1.25  # of the need, that must fit at the start location before modules return
MIN_SPEED_GAIN = 0.01  # smallest rise in speed that is worth copies
BATCH_STEP = 0.05  # relative difference of batches that count as one size
NO_SEQUENCE_LIMIT = 1 << 20  # sequences


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
    placement: Instance
    next_placement: Instance  # after the running operation
    instances: int
    tbt_s: float  # tightest limit of its tiers; inf: none
    operation_ends_s: float = -np.inf  # end of the last operation
    calm_decisions: int = 0  # in a row without pressure
    max_sequences: int = NO_SEQUENCE_LIMIT  # set by module reduction
    fruitless_attempt: tuple[object, ...] = ()  # last state for which nothing helped
    recorded_placements: tuple[object, ...] = ()
    # cache of ``_relative_speed``
    cached_speeds: dict[tuple[Instance, int, bytes], float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Load:
    """The load of an instance at a decision."""

    running: float  # sequences in its batch
    sequences: float  # running or waiting, at most the largest batch
    needed_tokens: float  # of KV cache, for these sequences
    is_short: bool  # of KV memory
    is_late: bool  # too many requests are late

    @property
    def pressed(self) -> bool:
        """Return whether modules must be reduced."""
        return self.is_short or self.is_late


@dataclass(eq=False)
class ModuleScaling(ScalingPolicy):
    """Scale the modules of the pools that have a layout.

    ``events``, ``locations`` and ``taken_memory`` record the run. An entry of ``taken_memory`` is a
    time in seconds, the bytes of copies of each pool with a layout, and its caches on other
    devices.
    """

    layouts: Sequence[Layout | None]  # by pool; None: its modules are not scaled
    vacancy_threshold: float = 0.0  # vacant share of a device above which it gets copies
    violation_threshold: float = 0.05  # share of late requests above which modules are reduced
    interval_s: float = 5.0
    name: str = "modules"
    wants_signals: bool = True
    events: list[Event] = field(default_factory=list)
    locations: list[ModuleLocations] = field(default_factory=list)
    taken_memory: list[tuple[float, FloatArray, FloatArray]] = field(default_factory=list)
    _fleet: Fleet = field(init=False, repr=False)
    _observation: Observation = field(init=False, repr=False)  # of the present decision
    _pools: list[_ElasticPool] = field(default_factory=list)

    def reset(self, fleet: Fleet) -> IntArray:
        """Place all modules as at the start, and clear the records; return the first counts."""
        self._fleet = fleet
        self.events.clear()
        self.locations.clear()
        self.taken_memory.clear()
        self._pools = []
        for p, (layout, pool) in enumerate(zip(self.layouts, fleet.pools, strict=True)):
            if layout is not None:
                elastic = _ElasticPool(
                    p, layout, pool.profile, placement=layout.start, next_placement=layout.start,
                    instances=pool.initial, tbt_s=_tbt_s(fleet, pool),
                )  # fmt: skip
                self._pools.append(elastic)
        return self._targets()

    def decide(self, observation: Observation) -> Actions:
        """Act on each pool's modules; return the speeds, batches and KV memory that result."""
        self._observation, now = observation, observation.time_s
        for elastic in self._pools:
            self._act(elastic, now)
        pools = self._fleet.pools
        speed, kv_share = np.ones((2, len(pools)))
        max_batch = np.array([pool.profile.max_batch for pool in pools], np.int64)
        for elastic in self._pools:
            p = elastic.index
            own_speed = self._relative_speed(elastic, elastic.placement)
            # Factors multiply, because modules of other pools reduce them too (``_slow_others``).
            speed[p] *= own_speed
            tokens = self._layout_with_free_memory(elastic).tokens(elastic.placement)
            free_share = tokens / elastic.profile.kv_capacity_tokens
            kv_share[p] *= float(np.clip(free_share, 1e-6, 1.0))  # above 0: it is a divisor
            max_batch[p] = _largest_batch(elastic, tokens)
            self._record_location(elastic, now, own_speed)
            self._slow_others(elastic, speed, kv_share)
        self._record_taken_memory(now)
        return Actions(self._targets(), max_batch=max_batch, speed=speed, kv_share=kv_share)

    def _slow_others(self, elastic: _ElasticPool, speed: FloatArray, kv_share: FloatArray) -> None:
        """Reduce ``speed`` and ``kv_share [pools]`` by what the modules of a pool take from others.

        While an operation runs, it slows its neighbours too.
        """
        computing, memory = self._capacity_taken_from_others(elastic, elastic.placement)
        speed /= 1.0 + computing
        kv_share *= np.maximum(1.0 - memory, 1e-6)
        # Share of the interval until the next decision in which the operation still runs.
        left_s = max(elastic.operation_ends_s - self._observation.time_s, 0.0)
        operating_share = min(left_s / self.interval_s, 1.0)
        speed[self._neighbours(elastic)] /= 1.0 + LATENCY_DISTURBANCE * operating_share

    def _record_taken_memory(self, now: float) -> None:
        """Append the copied bytes and the moved KV caches of each pool to ``taken_memory``.

        Each layer has a number of copies (``replicated``) and a GPU with its KV cache
        (``kv_home``).
        """
        copied_bytes, caches_away = np.zeros((2, len(self._pools)))
        for i, elastic in enumerate(self._pools):
            copied_bytes[i] = elastic.next_placement.replicated.sum() * elastic.layout.layer_bytes
            caches_away[i] = (elastic.next_placement.kv_home != elastic.layout.home).sum()
        self.taken_memory.append((now, copied_bytes, caches_away))

    def _neighbours(self, elastic: _ElasticPool) -> list[int]:
        """Return the index of a pool, and of those that an operation on its modules slows down.

        These have instances or modules on the same devices.
        """
        layout = elastic.layout
        if not layout.hosts:
            return [elastic.index]
        used = layout.borrowed_devices(elastic.placement, elastic.next_placement)
        # -1 stands for the instance's own GPUs.
        hosts = set(np.array(layout.hosts)[used > 0].tolist()) - {-1}
        sharing = {other.index for other in self._pools if hosts & set(other.layout.hosts)}
        serving_hosts = {host for host in hosts if self._serves(host)}
        return sorted({elastic.index} | sharing | serving_hosts)

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
        use = MEMORY_MARGIN * np.nan_to_num(self._observation.utilisation)
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
        serving = [d for d, host in enumerate(layout.hosts) if self._serves(host)]
        if not serving:
            return computing, memory
        running = self._running(elastic)
        work = layout.work_shares(state, elastic.profile, running)
        caches = np.bincount(state.kv_home, minlength=layout.room_bytes.size)
        tokens = running * (layout.isl + layout.osl)
        used_bytes = layout.weight_bytes_on(state) + caches * layout.kv_layer_token_bytes * tokens
        busy = float(np.nan_to_num(self._signals.busy[elastic.index]))
        for d in serving:
            host = layout.hosts[d]
            guests = elastic.instances / max(int(self._observation.ready[host]), 1)  # per host
            computing[host] += busy * work[d] * guests
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
        borrowed_before = layout.borrowed_devices(before)
        newly_borrowed = np.maximum(layout.borrowed_devices(after) - borrowed_before, 0)
        for d, host in enumerate(layout.hosts):
            if host >= 0 and not self._serves(host):
                cost += float(newly_borrowed[d]) * layout.owner_instances[d] * prices[host]
        lost = self._lost_capacity(elastic, before, after)
        cost += float(lost @ (self._observation.ready * prices))
        return gain * elastic.instances * float(prices[elastic.index]) > cost

    def _lost_capacity(
        self, elastic: _ElasticPool, before: Instance, after: Instance
    ) -> FloatArray:
        """Return the share of capacity that each pool loses to another placement of ``elastic``."""
        computing_before, memory_before = self._capacity_taken_from_others(elastic, before)
        computing_after, memory_after = self._capacity_taken_from_others(elastic, after)
        busy = np.minimum(MEMORY_MARGIN * np.nan_to_num(self._signals.busy), 1.0)
        lost_time = _excess(busy, computing_after) - _excess(busy, computing_before)
        kv_use = self._kv_use()
        lost_memory = _excess(kv_use, memory_after) - _excess(kv_use, memory_before)
        return np.maximum(np.maximum(lost_time, lost_memory), 0.0)

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
            is_used = layout.borrowed_devices(elastic.placement, elastic.next_placement)
            counts = (is_used * np.array(layout.owner_instances)).tolist()
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
        if key not in elastic.cached_speeds:
            batch = exp(batch_step * BATCH_STEP)
            elastic.cached_speeds[key] = elastic.layout.relative_speed(
                state, elastic.profile, batch, busy
            )
        return elastic.cached_speeds[key]

    def _act(self, elastic: _ElasticPool, now: float) -> None:
        """Finish the operation of a pool if its time is over, and begin the next one.

        Under pressure modules are reduced, without it they return to their first devices or layers
        are copied. A state for which nothing helped is not tried again.
        """
        if elastic.operation_ends_s > now:
            return
        if elastic.placement is not elastic.next_placement:
            elastic.placement, elastic.cached_speeds = elastic.next_placement, {}
        load = self._load_of(elastic)
        is_calm = not load.pressed and not self._observation.waiting[elastic.index]
        elastic.calm_decisions = elastic.calm_decisions + 1 if is_calm else 0
        if elastic.calm_decisions >= CALM_DECISIONS:
            elastic.max_sequences = NO_SEQUENCE_LIMIT
        self._reduce_modules(elastic, now, load)
        if elastic.operation_ends_s > now or self._return_modules(elastic, now, load):
            return
        self._copy_layers(elastic, now, load)

    def _load_of(self, elastic: _ElasticPool) -> _Load:
        """Return the load of an instance of a pool, and whether it is too high."""
        layout, p = self._layout_with_free_memory(elastic), elastic.index
        running = self._running(elastic)
        waiting = self._observation.waiting[p] / max(int(self._observation.ready[p]), 1)
        sequences = max(min(running + float(waiting), float(elastic.profile.max_batch)), 1.0)
        needed_tokens = sequences * (layout.isl + layout.osl)
        is_short, is_late = self._pressure(elastic, layout, needed_tokens)
        return _Load(running, sequences, needed_tokens, is_short, is_late)

    def _reduce_modules(self, elastic: _ElasticPool, now: float, load: _Load) -> None:
        """Begin a module reduction under pressure, unless it was tried at the same load before."""
        attempt = elastic.placement, _log_step(load.sequences), load.is_short, load.is_late
        if not load.pressed or not elastic.layout.moves or attempt == elastic.fruitless_attempt:
            return
        reduced = self._after_reduction(elastic, load.sequences, load.is_late)
        self._change(elastic, now, "reduce", reduced, load.running)
        elastic.fruitless_attempt = attempt

    def _return_modules(self, elastic: _ElasticPool, now: float, load: _Load) -> bool:
        """Begin to return modules to their first devices after calm decisions; return success.

        False if the pool is not calm, if nothing has moved, or if the modules do not fit there.
        """
        layout = self._layout_with_free_memory(elastic)
        placement, start = elastic.placement, layout.start
        has_moved = (
            placement.offloaded_bytes
            or (placement.home != start.home).any()
            or (placement.ffn_home != start.ffn_home).any()
            or (placement.kv_home != start.kv_home).any()
        )
        if elastic.calm_decisions < CALM_DECISIONS or not has_moved:
            return False
        copies = placement.replicated.copy()
        # Copies on the first devices become the originals.
        copies[np.arange(layout.home.size), layout.home] = False
        returned = replace(start, replicated=copies)
        fits = layout.tokens(returned) >= MEMORY_MARGIN * load.needed_tokens
        if fits:
            self._change(elastic, now, "home", returned, load.running)
        return fits

    def _copy_layers(self, elastic: _ElasticPool, now: float, load: _Load) -> None:
        """Begin to copy layers if that is worth it, unless it was tried at the same load before."""
        attempt = elastic.placement, _log_step(load.running), _log_step(load.needed_tokens)
        if not elastic.layout.copies or attempt == elastic.fruitless_attempt:
            return
        copied = self._with_copies(elastic, load.running, load.needed_tokens)
        if copied is not None:
            self._change(elastic, now, "copy", copied, load.running)
        elif not load.pressed:  # under pressure, the last attempt stays that of the reduction
            elastic.fruitless_attempt = attempt

    def _pressure(
        self, elastic: _ElasticPool, layout: Layout, needed_tokens: float
    ) -> tuple[bool, bool]:
        """Return whether KV memory of a pool is short, and whether too many requests are late.

        ``layout`` has the memory that is free now. An instance needs ``needed_tokens`` of KV cache.
        """
        p, state, signals = elastic.index, elastic.placement, self._signals
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
        state, profile = elastic.placement, elastic.profile
        layout = self._layout_with_free_memory(elastic)
        busy = self._busy_share_of_others(elastic)
        speed_now = layout.relative_speed(state, profile, running, busy)
        # First only on GPUs that cost nothing more, then on idle GPUs too.
        for usable in (self._without_idle_gpus(elastic, layout), layout):
            problem = usable.problem(state, profile, running, MEMORY_MARGIN * needed_tokens, busy)
            replication = algorithm1(problem, vacancy_threshold=self.vacancy_threshold)
            copied = replace(state, replicated=replication.replicated)
            gain = layout.relative_speed(copied, profile, running, busy) / speed_now - 1.0
            if gain > MIN_SPEED_GAIN and self._is_worth_its_copies(elastic, state, copied, gain):
                return copied
        return None

    def _without_idle_gpus(self, elastic: _ElasticPool, layout: Layout) -> Layout:
        """Return the layout without the idle GPUs that are not borrowed yet."""
        borrowed = layout.borrowed_devices(elastic.placement) > 0
        # Devices that cost nothing more: borrowed already, its own, or of a pool that serves
        costs_nothing = [
            bool(is_borrowed) or host < 0 or self._serves(host)
            for host, is_borrowed in zip(layout.hosts, borrowed.tolist(), strict=False)
        ]
        if not costs_nothing:
            return layout
        return replace(layout, room_bytes=np.where(costs_nothing, layout.room_bytes, 0.0))

    def _after_reduction(self, elastic: _ElasticPool, sequences: float, violated: bool) -> Instance:
        """Return the placement of an instance after module reduction (Algorithm 2).

        ``sequences`` run or wait on the instance. If ``violated``, the TBT limit must be kept too.
        Of the placements with and without copies, the one with more KV memory is returned. Also
        sets the pool's limit on sequences, which applies if only a smaller batch keeps the TBT
        limit.
        """
        layout = self._layout_with_free_memory(elastic)
        batch = round(sequences)
        best, most_tokens = elastic.placement, -1.0
        # Copies on a device may leave no memory for caches, so also try without copies.
        copies = elastic.placement.replicated
        for replicated in (copies, np.zeros_like(copies)):
            candidate = replace(elastic.placement, replicated=replicated, batch=batch)
            reduction = self._reduction(elastic, candidate, violated)
            batch_shrank = reduction.state.batch < batch
            tokens = layout.tokens(reduction.state)
            if tokens > most_tokens:
                best, most_tokens = replace(reduction.state, batch=elastic.placement.batch), tokens
                elastic.max_sequences = NO_SEQUENCE_LIMIT
                if batch_shrank and violated:
                    elastic.max_sequences = reduction.state.batch
            if reduction.solved and not batch_shrank:
                break
        return best

    def _reduction(self, elastic: _ElasticPool, candidate: Instance, violated: bool) -> Reduction:
        """Return the module reduction of ``candidate``; if ``violated``, it keeps the TBT limit."""
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

        sizes = layout.sizes(candidate.batch * per_sequence_bytes)
        return reduce(candidate, assess, sizes, layout.device_speeds(busy))

    def _change(
        self, elastic: _ElasticPool, now: float, kind: str, after: Instance, running: float
    ) -> None:
        """Begin the operation of type ``kind`` that leads to ``after``, and record its event.

        It takes the time of ``acting_cost`` with ``running`` sequences. Nothing happens if no
        module moves.
        """
        before = elastic.placement
        event = _event(elastic.index, kind, now, before, after)
        if not event.modules and not event.offloaded_bytes:
            return
        event = replace(event, until_s=now + _operation_s(event, elastic.layout, running))
        elastic.next_placement, elastic.operation_ends_s = after, event.until_s
        # Stop using removed copies now, since the operation needs their memory.
        if event.given_up:
            remaining_copies = before.replicated & after.replicated
            elastic.placement = replace(before, replicated=remaining_copies)
            elastic.cached_speeds = {}
        self.events.append(event)

    def _record_location(self, elastic: _ElasticPool, now: float, speed: float) -> None:
        """Append the location of the modules of a pool to ``locations`` if it changed."""
        if elastic.recorded_placements == (elastic.placement, elastic.next_placement):
            return
        elastic.recorded_placements = elastic.placement, elastic.next_placement
        devices, state = elastic.layout.room_bytes.size, elastic.placement
        copies = state.replicated.sum(axis=0).astype(np.int64)
        parts, projections, caches = (
            np.bincount(home, minlength=devices)
            for home in (state.home, state.ffn_home, state.kv_home)
        )
        borrowed = int(self._borrowed_instances(elastic).sum())
        location = ModuleLocations(
            now, elastic.index, copies, parts, projections, caches, borrowed, speed
        )
        self.locations.append(location)


def _event(p: int, kind: str, now: float, before: Instance, after: Instance) -> Event:
    """Return the event of an operation of pool ``p``, with the end still at ``now``."""
    home_moved = after.home != before.home
    return Event(
        now,
        now,
        p,
        kind,
        copied=int((after.replicated & ~before.replicated).sum()),
        layers=int(home_moved.sum()),
        projections=int(((after.ffn_home != before.ffn_home) & ~home_moved).sum()),
        caches=int(((after.kv_home != before.kv_home) & ~home_moved).sum()),
        given_up=int((before.replicated & ~after.replicated).sum()),
        offloaded_bytes=max(after.offloaded_bytes - before.offloaded_bytes, 0.0),
    )


def _operation_s(event: Event, layout: Layout, running: float) -> float:
    """Return the seconds of an operation while ``running`` sequences are in a batch."""
    tokens = max(running, 1.0) * (layout.isl + layout.osl / 2)
    cache_bytes = max(tokens * layout.kv_layer_token_bytes, 1.0)
    seconds = COORDINATE_S if event.copied else 0.0
    for action, size_bytes in (
        ("replicate", event.copied * layout.layer_bytes),
        ("migrate", event.layers * layout.layer_bytes),
        ("migrate", event.projections * layout.sizes().feed_forward),
        ("migrate", event.caches * cache_bytes),
        ("migrate", event.offloaded_bytes),
    ):
        if size_bytes:
            seconds += acting_cost(action, size_bytes, layout.link_bytes_s).seconds
    return seconds


def _largest_batch(elastic: _ElasticPool, tokens: float) -> int:
    """Return the sequences that fit into ``tokens`` with all of theirs, and within the limit."""
    layout = elastic.layout
    sequences_fit = tokens / (layout.isl + layout.osl) if layout.moves else np.inf
    sequences = min(sequences_fit, elastic.max_sequences)
    return int(np.clip(sequences, 1, elastic.profile.max_batch))


def _excess(own_use: FloatArray, taken: FloatArray) -> FloatArray:
    """Return the use of a pool and what others take from it, as a share of all; at least 1.

    Losing idle time or memory costs nothing, so less than 1 counts as 1.
    """
    return np.maximum(own_use + taken, 1.0)


def _log_step(load: float) -> int:
    """Return ``load`` in whole steps of its logarithm; loads of one step count as equal."""
    return round(log(load) / BATCH_STEP)


def _tbt_s(fleet: Fleet, pool: Pool) -> float:
    """Return the tightest TBT limit of the pool's tiers that are not deferrable; inf: none."""
    limits = [tier.tbt_s for tier in fleet.tiers if pool.takes(tier.name) and not tier.deferrable]
    return min((limit for limit in limits if limit is not None), default=np.inf)
