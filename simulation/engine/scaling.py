"""Scaling actions: targets of a policy turned into instances that start, drain and come back."""

from __future__ import annotations

from typing import Any

from simulation.compiled import kernel
from simulation.engine.accounting import settle
from simulation.engine.batching import retire
from simulation.engine.heaps import schedule
from simulation.engine.loop import flush_pool
from simulation.lifecycle import DRAINING, OFF, READY, STARTING
from simulation.progress import iterations_done
from simulation.ranking import rank


@kernel
def _least_work(s: Any, p: int, status: int, t: float) -> int:
    best, best_work = -1, 0
    for slot in range(s.pools[p].first, s.pools[p].first + s.pools[p].top):
        instance = s.instances[slot]
        if instance.status != status:
            continue
        work = instance.work - iterations_done(instance, t) * instance.decodes
        if best < 0 or work < best_work:
            best, best_work = slot, work
    return best


@kernel
def _newest_starting(s: Any, p: int) -> int:
    best = -1
    for slot in range(s.pools[p].first, s.pools[p].first + s.pools[p].top):
        instance = s.instances[slot]
        if instance.status == STARTING and (best < 0 or instance.born >= s.instances[best].born):
            best = slot
    return best


@kernel
def _start(s: Any, p: int, t: float, ready_now: bool) -> None:
    pool = s.pools[p]
    slot = pool.first
    while slot < pool.first + pool.top and s.instances[slot].status != OFF:
        slot += 1
    pool.top = max(pool.top, slot + 1 - pool.first)
    instance = s.instances[slot]
    instance.pool, instance.born, instance.settled = p, t, t
    instance.partial = instance.fresh = instance.newest = -1
    instance.urgent = instance.low = -1
    instance.place = -1
    if ready_now:
        instance.status = READY
        pool.ready += 1
        rank(s, slot)
    else:
        instance.status = STARTING
        pool.starting += 1
        schedule(s, slot, t + pool.startup)


@kernel
def apply_targets(s: Any, targets: Any, t: float, ready_now: bool) -> None:
    """Bring ready + starting instances of every pool to ``targets[pools]``, clipped to its limits.

    Scale-out first takes draining instances back (fewest remaining tokens first), then starts new
    ones; scale-in first cancels starting ones (newest first), then drains ready ones (fewest
    remaining tokens first). So draining and starting never coexist in a pool, and instances never
    outnumber its maximum.
    """
    for p in range(s.pools.shape[0]):
        pool = s.pools[p]
        target = min(max(targets[p], pool.minimum), pool.maximum)
        reinstated = False
        while pool.ready + pool.starting < target:
            if pool.draining > 0:
                slot = _least_work(s, p, DRAINING, t)
                settle(s, slot, t)
                s.instances[slot].status = READY
                rank(s, slot)
                pool.draining -= 1
                pool.ready += 1
                reinstated = True
            else:
                _start(s, p, t, ready_now)
        while pool.ready + pool.starting > target:
            if pool.starting > 0:
                retire(s, _newest_starting(s, p), t)
                continue
            slot = _least_work(s, p, READY, t)
            settle(s, slot, t)
            instance = s.instances[slot]
            instance.status = DRAINING
            rank(s, slot)
            pool.ready -= 1
            pool.draining += 1
            if instance.running == 0 and instance.waiting == 0:
                retire(s, slot, t)
        if reinstated:
            flush_pool(s, pool, t)


@kernel
def close_books(s: Any) -> None:
    """Count every living instance's hours up to the end of the window."""
    duration = s.clock[0].duration
    for p in range(s.pools.shape[0]):
        pool = s.pools[p]
        for slot in range(pool.first, pool.first + pool.top):
            instance = s.instances[slot]
            if instance.status != OFF:
                settle(s, slot, duration)
                pool.lifetime_s += duration - min(instance.born, duration)
