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
class _PoolState:
    """The placement of the modules of a pool's instances, and the running operation."""

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
    _pools: dict[int, _PoolState] = field(default_factory=dict)

    def reset(self, fleet: Fleet) -> IntArray:
        self._fleet = fleet
        self.events.clear()
        self.standings.clear()
        self.held.clear()
        self._pools = {
            p: _PoolState(
                layout.start, layout.start, fleet.pools[p].initial, _tbt_s(fleet, fleet.pools[p])
            )
            for p, layout in enumerate(self.layouts)
            if layout is not None
        }
        return self._targets()

    def decide(self, observation: Observation) -> Actions:
        """Act on each pool's modules; return the speeds, batches and KV memory that result."""
        now = observation.time_s
        for p in self._pools:
            self._act(p, observation, now)
        pools = len(self._fleet.pools)
        speed, kv_share = np.ones(pools), np.ones(pools)
        max_batch = np.array([pool.profile.max_batch for pool in self._fleet.pools], np.int64)
        for p, elastic in self._pools.items():
            layout, profile = self._layout(p), self._fleet.pools[p].profile
            own_speed = self._relative_speed(p, elastic.state, observation)
            speed[p] *= own_speed
            tokens = self._layout_with_free_memory(p, observation).tokens(elastic.state)
            kv_share[p] *= float(np.clip(tokens / profile.kv_capacity_tokens, 1e-6, 1.0))
            # Last step of Algorithm 2: limit sequences to those that fit with all their tokens.
            sequences_fit = tokens / (layout.isl + layout.osl) if layout.moves else np.inf
            max_batch[p] = int(np.clip(min(sequences_fit, elastic.limit), 1, profile.max_batch))
            self._record_location(p, now, own_speed)
            computing, memory = self._capacity_taken_from_others(p, elastic.state, observation)
            speed /= 1.0 + computing
            kv_share *= np.maximum(1.0 - memory, 1e-6)
            # Share of the interval until the next decision in which the operation still runs.
            acting = min(max(elastic.until_s - now, 0.0) / self.interval_s, 1.0)
            speed[self._neighbours(p)] /= 1.0 + LATENCY_DISTURBANCE * acting
        self._record_memory(now)
        return Actions(self._targets(), max_batch=max_batch, speed=speed, kv_share=kv_share)

    def _neighbours(self, p: int) -> list[int]:
        """Return pool ``p`` and the pools that an operation on its modules slows down.

        These have instances or modules on the same devices.
        """
        elastic, layout = self._pools[p], self._layout(p)
        if not layout.hosts:
            return [p]
        used = layout.borrowed_devices(elastic.state, elastic.wanted)
        hosts = {host for host, is_used in zip(layout.hosts, used.tolist(), strict=True) if is_used}
        sharing = {q for q in self._pools if hosts & set(self._layout(q).hosts) - {-1}}
        return sorted({p} | sharing | {host for host in hosts if self._serves(host)})

    def _serves(self, host: int) -> bool:
        """Return whether pool ``host`` serves requests, so that only a part of its GPUs is idle."""
        return host >= 0 and not self._fleet.pools[host].lends

    def _kv_use(self, observation: Observation) -> FloatArray:
        """Return the share of KV memory that each pool needs with a margin, at most 1, ``[pools]``.

        The memory is that of the pool's first placement.
        """
        use = MARGIN * np.nan_to_num(observation.utilisation)
        for p in self._pools:
            layout = self._layout(p)
            # The KV capacity in the profile includes memory for caches on borrowed devices.
            use[p] *= self._fleet.pools[p].profile.kv_capacity_tokens / layout.tokens(layout.start)
        return np.minimum(use, 1.0)

    def _layout_with_free_memory(self, p: int, observation: Observation) -> Layout:
        """Return the layout of pool ``p`` with only the memory that its hosts can spare now."""
        layout, use = self._layout(p), self._kv_use(observation)
        vacant = [1.0 - use[host] if self._serves(host) else 1.0 for host in layout.hosts]
        return replace(layout, room_bytes=layout.room_bytes * vacant) if vacant else layout

    def _busy_share_of_others(self, p: int, observation: Observation) -> FloatArray:
        """Return the share of time that other instances compute on each device, ``[D]``.

        These are the other instances of pool ``p`` that share the device, and that of the host (the
        pool that owns it). The share is above 1 if several of them compute all the time.
        """
        layout, busy = self._layout(p), np.nan_to_num(_signals(observation).busy)
        devices = layout.room_bytes.size
        # Instances of pool p on each device
        sharers = np.ones(devices) if layout.sharers is None else layout.sharers
        busy_share = np.maximum(sharers - 1.0, 0.0) * busy[p]
        for d, host in enumerate(layout.hosts):
            busy_share[d] += busy[host] if self._serves(host) else 0.0
        # Rounded, so that cached speeds hold for small changes of load.
        return np.asarray(np.round(busy_share, 1), np.float64)

    def _capacity_taken_from_others(
        self, p: int, state: Instance, observation: Observation
    ) -> tuple[FloatArray, FloatArray]:
        """Return the shares of computing time and of KV memory that each pool loses, ``[pools]``.

        They are taken by modules of pool ``p`` in the placement ``state``.
        """
        computing, memory = np.zeros(len(self._fleet.pools)), np.zeros(len(self._fleet.pools))
        layout, elastic = self._layout(p), self._pools[p]
        if not any(self._serves(host) for host in layout.hosts):
            return computing, memory
        running = _running(observation, p)
        work = layout.work_shares(state, self._fleet.pools[p].profile, running)
        caches = np.bincount(state.kv_home, minlength=layout.room_bytes.size)
        tokens = running * (layout.isl + layout.osl)
        used_bytes = layout.weight_bytes_on(state) + caches * layout.kv_layer_token_bytes * tokens
        for d, host in enumerate(layout.hosts):
            if self._serves(host):
                # Instances of pool p for each instance of the host
                per_host = elastic.count / max(int(observation.ready[host]), 1)
                busy = float(np.nan_to_num(_signals(observation).busy[p]))
                computing[host] += busy * work[d] * per_host
                memory[host] += used_bytes[d] / layout.room_bytes[d]
        return computing, memory

    def _is_worth_its_copies(
        self, p: int, before: Instance, after: Instance, gain: float, observation: Observation
    ) -> bool:
        """Return whether copies add more capacity per dollar than another replica would.

        ``gain`` is the relative rise in speed from placement ``before`` to ``after``. The cost is
        that of newly borrowed idle GPUs, and of the capacity that pools with serving GPUs lose.
        Without prices, GPUs are counted instead of dollars.
        """
        layout, elastic = self._layout(p), self._pools[p]
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
        computing_before, memory_before = self._capacity_taken_from_others(p, before, observation)
        computing_after, memory_after = self._capacity_taken_from_others(p, after, observation)
        busy = np.minimum(MARGIN * np.nan_to_num(_signals(observation).busy), 1.0)
        lost = np.zeros(prices.size)  # capacity that each pool loses, as a share
        for own_use, displaced_before, displaced_after in (
            (busy, computing_before, computing_after),
            (self._kv_use(observation), memory_before, memory_after),
        ):
            # Idle time and memory cost nothing, so only use beyond all of it is a loss.
            excess_before = np.maximum(own_use + displaced_before, 1.0)
            excess_after = np.maximum(own_use + displaced_after, 1.0)
            lost = np.maximum(lost, excess_after - excess_before)
        cost += float(lost @ (observation.ready * prices))
        return gain * elastic.count * float(prices[p]) > cost

    def _layout(self, p: int) -> Layout:
        """Return the layout of pool ``p``, which must have one."""
        layout = self.layouts[p]
        assert layout is not None
        return layout

    def _targets(self) -> IntArray:
        """Return the instances of each pool; of lending pools, those that modules borrow."""
        # Pools that only serve keep their instances.
        targets = np.array([0 if pool.lends else pool.initial for pool in self._fleet.pools])
        for p in self._pools:
            targets += self._borrowed_instances(p)
        return targets

    def _borrowed_instances(self, p: int) -> IntArray:
        """Return the instances of lending pools that modules of pool ``p`` borrow, ``[pools]``.

        They are borrowed before or after the running operation.
        """
        elastic, layout = self._pools[p], self._layout(p)
        borrowed = np.zeros(len(self._fleet.pools), np.int64)
        if layout.hosts:
            is_used = layout.borrowed_devices(elastic.state, elastic.wanted)
            counts = (is_used * np.array(layout.held)).tolist()
            for host, count in zip(layout.hosts, counts, strict=True):
                if host >= 0 and not self._serves(host):
                    borrowed[host] += count
        return borrowed

    def _relative_speed(self, p: int, state: Instance, observation: Observation) -> float:
        """Return the speed of placement ``state`` of pool ``p`` at the present batch and load.

        It is relative to the start. Results are cached.
        """
        elastic, busy = self._pools[p], self._busy_share_of_others(p, observation)
        batch_step = round(log(_running(observation, p)) / SAME_BATCH)
        key = (state, batch_step, busy.tobytes())
        if key not in elastic.speeds:
            profile = self._fleet.pools[p].profile
            batch = exp(batch_step * SAME_BATCH)
            elastic.speeds[key] = self._layout(p).relative_speed(state, profile, batch, busy)
        return elastic.speeds[key]

    def _act(self, p: int, observation: Observation, now: float) -> None:
        """Finish the operation of pool ``p`` if its time is over, and begin the next one.

        Under pressure modules are reduced, without it they return to their first devices or layers
        are copied. A state for which nothing helped is not tried again.
        """
        elastic = self._pools[p]
        if elastic.until_s > now:
            return
        if elastic.state is not elastic.wanted:
            elastic.state, elastic.speeds = elastic.wanted, {}
        layout = self._layout_with_free_memory(p, observation)
        running = _running(observation, p)
        waiting = float(observation.waiting[p]) / max(int(observation.ready[p]), 1)
        max_batch = float(self._fleet.pools[p].profile.max_batch)
        sequences = max(min(running + waiting, max_batch), 1.0)
        needed_tokens = sequences * (layout.isl + layout.osl)
        is_short, is_late = self._pressure(p, layout, needed_tokens, observation)
        pressed = is_short or is_late
        elastic.calm = 0 if pressed or observation.waiting[p] else elastic.calm + 1
        if elastic.calm >= CALM:
            elastic.limit = UNLIMITED
        # The key of an attempt: the placement, the load in steps of its logarithm, and the pressure
        reduction = elastic.state, round(log(sequences) / SAME_BATCH), is_short, is_late
        if pressed and layout.moves and reduction != elastic.tried:
            reduced = self._after_reduction(p, sequences, is_late, observation)
            self._change(p, now, "reduce", reduced, running)
            elastic.tried = reduction
            if elastic.until_s > now:
                return
        if elastic.calm >= CALM and _is_away(elastic.state, layout.start):
            copies = elastic.state.replicated.copy()
            # Copies at home become the originals.
            copies[np.arange(layout.home.size), layout.home] = False
            home = replace(layout.start, replicated=copies)
            if layout.tokens(home) >= MARGIN * needed_tokens:
                self._change(p, now, "home", home, running)
                return
        load_steps = [round(log(load) / SAME_BATCH) for load in (running, needed_tokens)]
        copying = (elastic.state, *load_steps)
        if layout.copies and copying != elastic.tried:
            copied = self._with_copies(p, running, needed_tokens, observation)
            if copied is not None:
                self._change(p, now, "copy", copied, running)
            elif not pressed:  # under pressure, ``tried`` stays that of the reduction
                elastic.tried = copying

    def _pressure(
        self, p: int, layout: Layout, needed_tokens: float, observation: Observation
    ) -> tuple[bool, bool]:
        """Return whether KV memory of pool ``p`` is short, and whether too many requests are late.

        ``layout`` has the memory that is free now. An instance needs ``needed_tokens`` of KV cache.
        """
        state, signals = self._pools[p].state, _signals(observation)
        is_short = needed_tokens > layout.tokens(state) or signals.preemptions[p] > 0
        # Modules leave a GPU that serves others if those need its memory.
        is_short |= bool((layout.weight_bytes_on(state) > layout.room_bytes).any())
        late = float(np.nanmax([signals.late_first[p], signals.late_done[p], 0.0]))
        return bool(is_short), late > self.violation_threshold

    def _with_copies(
        self, p: int, running: float, needed_tokens: float, observation: Observation
    ) -> Instance | None:
        """Return the placement with copies of layers by Algorithm 1; None if they are not worth it.

        ``running`` sequences are in a batch. KV memory for ``needed_tokens`` stays free.
        """
        state, profile = self._pools[p].state, self._fleet.pools[p].profile
        layout = self._layout_with_free_memory(p, observation)
        busy = self._busy_share_of_others(p, observation)
        speed_now = layout.relative_speed(state, profile, running, busy)
        # First only on GPUs that cost nothing more, then on idle GPUs too.
        for usable in (self._without_idle_gpus(p, layout), layout):
            copied = usable.add_layer_copies(
                state, profile, running, MARGIN * needed_tokens, self.vacancy_threshold, busy
            )
            gain = layout.relative_speed(copied, profile, running, busy) / speed_now - 1.0
            if gain > MIN_GAIN and self._is_worth_its_copies(p, state, copied, gain, observation):
                return copied
        return None

    def _without_idle_gpus(self, p: int, layout: Layout) -> Layout:
        """Return the layout without the idle GPUs that are not borrowed yet."""
        elastic = self._pools[p]
        borrowed = layout.borrowed_devices(elastic.state) > 0
        # Devices that cost nothing more: borrowed already, its own, or of a pool that serves
        usable = [
            bool(is_borrowed) or host < 0 or self._serves(host)
            for host, is_borrowed in zip(layout.hosts, borrowed.tolist(), strict=False)
        ]
        if not usable:
            return layout
        return replace(layout, room_bytes=np.where(usable, layout.room_bytes, 0.0))

    def _after_reduction(
        self, p: int, sequences: float, violated: bool, observation: Observation
    ) -> Instance:
        """Return the placement of an instance after module reduction (Algorithm 2).

        ``sequences`` run or wait on the instance. If ``violated``, the TBT limit must be kept too.
        Also sets the pool's limit on sequences.
        """
        elastic, layout = self._pools[p], self._layout_with_free_memory(p, observation)
        profile, busy = self._fleet.pools[p].profile, self._busy_share_of_others(p, observation)
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

    def _change(self, p: int, now: float, kind: str, after: Instance, running: float) -> None:
        """Begin the operation of type ``kind`` that leads to ``after``, and record its event.

        It takes the time of ``acting_cost`` with ``running`` sequences. Nothing happens if no
        module moves.
        """
        elastic, layout = self._pools[p], self._layout(p)
        before, sizes = elastic.state, layout.sizes()
        copied = int((after.replicated & ~before.replicated).sum())
        home_moved = after.home != before.home
        ffn_moved = (after.ffn_home != before.ffn_home) & ~home_moved
        cache_moved = (after.kv_home != before.kv_home) & ~home_moved
        layers, projections = int(home_moved.sum()), int(ffn_moved.sum())
        caches = int(cache_moved.sum())
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
                now, now + seconds, p, kind, copied, layers, projections, caches, removed,
                offloaded_bytes,
            )
        )  # fmt: skip

    def _record_location(self, p: int, now: float, speed: float) -> None:
        """Append the location of the modules of pool ``p`` to ``standings`` if it changed."""
        elastic, layout = self._pools[p], self._layout(p)
        if elastic.recorded == (elastic.state, elastic.wanted):
            return
        elastic.recorded = elastic.state, elastic.wanted
        devices, state = layout.room_bytes.size, elastic.state
        self.standings.append(
            ModuleLocations(
                time_s=now,
                pool=p,
                copies=state.replicated.sum(axis=0).astype(np.int64),
                parts=np.bincount(state.home, minlength=devices),
                projections=np.bincount(state.ffn_home, minlength=devices),
                caches=np.bincount(state.kv_home, minlength=devices),
                borrowed=int(self._borrowed_instances(p).sum()),
                speed=speed,
            )
        )

    def _record_memory(self, now: float) -> None:
        """Append an entry to ``held``: bytes of copies, and caches on other devices, by pool."""
        pairs = [(elastic.wanted, self._layout(p)) for p, elastic in self._pools.items()]
        copies = [float(wanted.replicated.sum()) * layout.layer_bytes for wanted, layout in pairs]
        away = [float((wanted.kv_home != layout.home).sum()) for wanted, layout in pairs]
        self.held.append((now, np.array(copies), np.array(away)))


def _is_away(state: Instance, start: Instance) -> bool:
    """Return whether a module is on another device than in ``start``, or on the host."""
    return bool(
        state.offloaded_bytes
        or (state.home != start.home).any()
        or (state.ffn_home != start.ffn_home).any()
        or (state.kv_home != start.kv_home).any()
    )


def _signals(observation: Observation) -> Signals:
    """Return the signals of an observation; this policy always gets them."""
    assert observation.signals is not None
    return observation.signals


def _running(observation: Observation, p: int) -> float:
    """Return the mean sequences in a batch of pool ``p`` since the last decision, at least 1."""
    return float(np.maximum(np.nan_to_num(_signals(observation).batch[p], nan=1.0), 1.0))


def _tbt_s(fleet: Fleet, pool: Pool) -> float:
    """Return the tightest TBT limit of the pool's tiers that are not deferrable; inf: none."""
    limits = [tier.tbt_s for tier in fleet.tiers if pool.takes(tier.name) and not tier.deferrable]
    return min((limit for limit in limits if limit is not None), default=np.inf)
