"""The queues of one instance: interactive requests first, deferrable ones behind until they age."""

from __future__ import annotations

from typing import Any

from simulation.compiled import kernel
from simulation.engine.accounting import count_arrival, settle
from simulation.engine.heaps import schedule
from simulation.progress import iteration_end, iterations_done
from simulation.ranking import rank


@kernel
def is_low(s: Any, r: int, t: float) -> bool:
    """Whether a request waits behind interactive ones: deferrable, and not aged."""
    request = s.requests[r]
    return bool(s.deferrable[request.tier] and t - request.arrival < s.priority_after[request.tier])


@kernel
def _append(s: Any, slot: int, r: int, low: bool) -> None:
    instance = s.instances[slot]
    s.requests[r].next = -1
    if low:
        if instance.low < 0:
            instance.low = r
        else:
            s.requests[instance.low_tail].next = r
        instance.low_tail = r
    else:
        if instance.urgent < 0:
            instance.urgent = r
        else:
            s.requests[instance.urgent_tail].next = r
        instance.urgent_tail = r


@kernel
def prepend(s: Any, slot: int, r: int, low: bool) -> None:
    """A request goes, or comes back, to the head of a queue."""
    instance = s.instances[slot]
    if low:
        s.requests[r].next = instance.low
        if instance.low < 0:
            instance.low_tail = r
        instance.low = r
    else:
        s.requests[r].next = instance.urgent
        if instance.urgent < 0:
            instance.urgent_tail = r
        instance.urgent = r


@kernel
def interrupt(s: Any, slot: int, t: float) -> None:
    """Let the run of iterations end at the first boundary not before ``t``."""
    instance = s.instances[slot]
    if instance.k > 1:
        instance.k = iterations_done(instance, t) + 1
        schedule(s, slot, iteration_end(instance, instance.k))


@kernel
def enqueue(s: Any, slot: int, r: int, t: float) -> None:
    """A routed request arrives at its instance and joins at the next iteration boundary."""
    instance, request = s.instances[slot], s.requests[r]
    pool = s.pools[instance.pool]
    low = is_low(s, r, t)
    blocked = instance.urgent >= 0 or (low and instance.low >= 0)
    _append(s, slot, r, low)
    instance.waiting += 1
    pool.waiting += 1
    s.clock[0].routed += 1
    instance.turn = s.clock[0].routed
    instance.pending += 1
    instance.queued += request.isl + request.generated
    if request.carried:
        instance.work += request.osl - request.generated
    else:
        pool.arrived_tokens += request.isl
        count_arrival(s, instance.pool, t, request.isl)
        instance.work += request.isl + (request.generated + 1 if pool.hands else request.osl)
        instance.pending += request.isl + request.generated
    request.pool = instance.pool
    if instance.k == 0:
        settle(s, slot, t)
        schedule(s, slot, t)
    elif instance.running < pool.max_batch and not blocked:
        interrupt(s, slot, t)
    rank(s, slot)


@kernel
def promote_aged(s: Any, slot: int, t: float) -> None:
    """Waiting deferrable requests past their age go to the end of the interactive queue."""
    instance = s.instances[slot]
    moved = False
    while instance.low >= 0 and not is_low(s, instance.low, t):
        r = instance.low
        instance.low = s.requests[r].next
        _append(s, slot, r, False)
        moved = True
    if moved:
        interrupt(s, slot, t)
