"""Starts of instances: the source of their weights, and registration."""

from __future__ import annotations

from typing import Any

import numpy as np

from simulation.compiled import kernel
from simulation.engine.accounting import settle
from simulation.engine.heaps import schedule
from simulation.engine.prefix import clear
from simulation.engine.routing_order import rank
from simulation.lifecycle import DRAINING, LENT, OFF, READY, STARTING

# Source of a start: spot instance of the same model, spot instance of another model, new instance
# with weights on its host, new instance that fetches them.
FROM_SPOT, FROM_OTHER, FROM_LOCAL, FROM_REMOTE = range(4)


@kernel
def _lowest(s: Any, p: int, status: int) -> int:
    """Return the first slot of a pool in a status, or else the next unused slot."""
    pool = s.pools[p]
    slot = pool.first
    while slot < pool.first + pool.top and s.instances[slot].status != status:
        slot += 1
    return int(slot)


@kernel
def _begin_life(s: Any, slot: int, p: int, t: float) -> None:
    """Reset the record of an instance before its start."""
    instance = s.instances[slot]
    instance.pool = p
    instance.partial = instance.fresh = instance.newest = -1
    clear(s, slot)
    instance.slow, instance.soft_until, instance.link_free = 1.0, 0.0, 0.0
    instance.lending = instance.loaded = instance.fails = 0


@kernel
def _new(s: Any, p: int, t: float) -> int:
    """Return a free slot for a new instance of a pool, born at ``t``."""
    pool = s.pools[p]
    slot = _lowest(s, p, OFF)
    pool.top = max(pool.top, slot + 1 - pool.first)
    instance = s.instances[slot]
    _begin_life(s, slot, p, t)
    instance.born, instance.settled = t, t
    return int(slot)


@kernel
def place_first(s: Any, p: int, t: float) -> None:
    """Place an instance that is ready from the beginning."""
    pool = s.pools[p]
    slot = _new(s, p, t)
    s.instances[slot].status, s.instances[slot].source = READY, FROM_LOCAL
    pool.ready += 1
    pool.warm -= 1
    rank(s, slot)


@kernel
def place_lent(s: Any, p: int, t: float) -> None:
    """Place an instance that is lent out from the beginning."""
    slot = _new(s, p, t)
    s.instances[slot].status, s.instances[slot].source = LENT, FROM_LOCAL
    s.pools[p].lent += 1


@kernel
def _donor(s: Any, p: int, closeness: int) -> int:
    """Return the first other pool on the same GPUs and region with a lent instance; -1: none.

    ``closeness`` 2 requires the same model, 1 the same architecture, 0 neither.
    """
    pool = s.pools[p]
    for q in range(s.pools.shape[0]):
        other = s.pools[q]
        if q == p or other.lent == 0 or other.hardware != pool.hardware:
            continue
        close = 1 if other.architecture == pool.architecture and pool.architecture >= 0 else 0
        if other.model == pool.model:
            close = 2
        if close >= closeness:
            return q
    return -1


@kernel
def switch_off(s: Any, slot: int, t: float) -> None:
    """Switch an instance off; the caller updates its pool's counts by status."""
    settle(s, slot, t)
    instance, duration = s.instances[slot], s.clock[0].duration
    s.pools[instance.pool].lifetime_s += min(t, duration) - min(instance.born, duration)
    instance.status = OFF
    schedule(s, slot, np.inf)
    rank(s, slot)


@kernel
def start(s: Any, p: int, t: float) -> tuple[int, float]:
    """Start one instance and return its slot and the seconds that the start takes.

    Instances lent out by the pool come first, then those lent out by other pools, then new ones.
    """
    pool = s.pools[p]
    if pool.lent > 0:
        slot = _lowest(s, p, LENT)
        settle(s, slot, t)
        _begin_life(s, slot, p, t)
        pool.lent -= 1
        source, seconds = FROM_SPOT, pool.reclaim
    else:
        source, seconds = FROM_REMOTE, pool.remote
        donor = _donor(s, p, 2)
        if donor >= 0:
            source, seconds = FROM_SPOT, pool.reclaim
        elif pool.same_architecture < np.inf and _donor(s, p, 1) >= 0:
            donor = _donor(s, p, 1)
            source, seconds = FROM_OTHER, pool.same_architecture
        elif pool.other_model < np.inf and _donor(s, p, 0) >= 0:
            donor = _donor(s, p, 0)
            source, seconds = FROM_OTHER, pool.other_model
        elif pool.warm > 0:
            source, seconds = FROM_LOCAL, pool.startup
            pool.warm -= 1
        if donor >= 0:
            s.pools[donor].lent -= 1
            switch_off(s, _lowest(s, donor, LENT), t)
        slot = _new(s, p, t)
    instance = s.instances[slot]
    instance.status, instance.source, instance.asked = STARTING, source, t
    if s.start_fails.shape[1] > 0:
        instance.fails = 1 if s.start_fails[p, pool.starts % s.start_fails.shape[1]] else 0
    pool.starts += 1
    s.started[p, source] += 1
    pool.starting += 1
    schedule(s, slot, t + seconds)
    return int(slot), float(seconds)


@kernel
def retire(s: Any, slot: int, t: float) -> None:
    """Remove an instance that was cancelled while starting, or that has drained.

    It stays while it may come back (soft scale-in), is lent out, or is switched off.
    """
    instance = s.instances[slot]
    pool = s.pools[instance.pool]
    drained = instance.status == DRAINING
    # Soft scale-in: keep it and look again when the time is over.
    if drained and t < instance.soft_until:
        schedule(s, slot, instance.soft_until)
        return
    if drained:
        pool.draining -= 1
    else:
        pool.starting -= 1
    if instance.lending:
        settle(s, slot, t)
        instance.status = LENT
        pool.lent += 1
        schedule(s, slot, np.inf)
        rank(s, slot)
        return
    # The host of a cancelled start has the weights unless the start was fetching them.
    if drained or instance.source == FROM_SPOT or instance.source == FROM_LOCAL:
        pool.warm += 1
    switch_off(s, slot, t)


@kernel
def take_off_lent(s: Any, p: int, t: float) -> None:
    """Switch a lent instance off; its host keeps the weights."""
    pool = s.pools[p]
    pool.lent -= 1
    pool.warm += 1
    switch_off(s, _lowest(s, p, LENT), t)


@kernel
def _serve(s: Any, slot: int, t: float) -> None:
    """Make a starting instance ready."""
    instance = s.instances[slot]
    pool = s.pools[instance.pool]
    settle(s, slot, t)
    instance.status = READY
    pool.starting -= 1
    pool.ready += 1
    pool.opened = 1
    schedule(s, slot, np.inf)
    rank(s, slot)


@kernel
def started(s: Any, slot: int, t: float) -> None:
    """End a start: the instance serves, waits for registration, or failed to start.

    Pools that gained a ready instance have ``opened`` set afterwards.
    """
    instance = s.instances[slot]
    pool = s.pools[instance.pool]
    if instance.fails:
        pool.starting -= 1
        pool.failed_starts += 1
        pool.failed += 1
        if instance.source == FROM_SPOT or instance.source == FROM_LOCAL:
            pool.warm += 1
        switch_off(s, slot, t)
    elif pool.group < 0:
        _serve(s, slot, t)
    else:
        instance.loaded = 1
        schedule(s, slot, np.inf)
    if pool.group >= 0:
        register(s, pool.group, t)


@kernel
def start_before(s: Any, p: int, t: float) -> None:
    """Start an instance so early that it serves at ``t``, or has failed by then.

    The start is paid in both cases.
    """
    slot, seconds = start(s, p, t)
    pool = s.pools[p]
    pool.before_s += seconds
    if s.instances[slot].fails:
        started(s, slot, t)
    else:
        _serve(s, slot, t)
    pool.opened = 0


# --- registration by ratio -----------------------------------------------------------------------


@kernel
def _numbers(
    ready: tuple[int, int], wait: tuple[int, int], loading: int, low: float, high: float
) -> tuple[int, int]:
    """Return how many waiting instances register, prefill and decode.

    The largest numbers register that keep the ratio of all ready ones between ``low`` and ``high``.
    If there are none, the side that is short registers enough to reach the ratio, or all it has.
    If nothing loads any more, all register.
    """
    if loading == 0:
        return wait
    best, most = (-1, -1), -1
    for a in range(wait[0] + 1):
        least_b = max(int(np.ceil((ready[0] + a) / high - 1e-9)) - ready[1], 0)
        most_b = min(int(np.floor((ready[0] + a) / low + 1e-9)) - ready[1], wait[1])
        if least_b <= most_b and a + most_b > most:
            best, most = (a, most_b), a + most_b
    if most >= 0:
        return best
    a, b = 0, 0
    if ready[0] > high * ready[1]:
        while b < wait[1] and ready[0] > high * (ready[1] + b):
            b += 1
    else:
        while a < wait[0] and ready[0] + a < low * ready[1]:
            a += 1
    return a, b


@kernel
def _standing(s: Any, group: int, side: int) -> tuple[int, int, int]:
    """Return ready, waiting and still loading instances of one side of a group."""
    ready, waiting, starting = 0, 0, 0
    for p in range(s.pools.shape[0]):
        pool = s.pools[p]
        if pool.group == group and pool.side == side:
            ready += pool.ready
            starting += pool.starting
            for slot in range(pool.first, pool.first + pool.top):
                waiting += _waits(s, slot)
    return ready, waiting, starting - waiting


@kernel
def _waits(s: Any, slot: int) -> int:
    """Return 1 if an instance has loaded and waits for registration, otherwise 0."""
    return 1 if s.instances[slot].status == STARTING and s.instances[slot].loaded else 0


@kernel
def _serve_first(s: Any, group: int, side: int, left: int, t: float) -> None:
    """Make the first ``left`` waiting instances of one side of a group ready."""
    for p in range(s.pools.shape[0]):
        pool = s.pools[p]
        if pool.group == group and pool.side == side:
            for slot in range(pool.first, pool.first + pool.top):
                if left > 0 and _waits(s, slot):
                    left -= 1
                    _serve(s, slot, t)


@kernel
def register(s: Any, group: int, t: float) -> None:
    """Make started instances of a model and region ready, by the ratio of prefill to decode."""
    prefill, decode = _standing(s, group, 0), _standing(s, group, 1)
    loading = prefill[2] + decode[2]
    clock = s.clock[0]
    a, b = _numbers(
        (prefill[0], decode[0]), (prefill[1], decode[1]), loading, clock.ratio_low, clock.ratio_high
    )
    _serve_first(s, group, 0, a, t)
    _serve_first(s, group, 1, b, t)
