"""Queues of one instance and the choice of the next request (``simulation.engine.scheduling``).

The last queue holds deferrable requests until they age. FCFS has one other queue. The other
schedulers have two per tier, and new requests join the second. Under DPA a request moves to
the first of the two when it expires. So the heads of all queues suffice for the choice.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from simulation.compiled import kernel
from simulation.engine.accounting import count_arrival, settle
from simulation.engine.heaps import schedule
from simulation.engine.progress import iteration_end, iterations_done
from simulation.engine.routing_order import rank
from simulation.engine.scheduling import DPA, FCFS, next_change, standing
from simulation.engine.state import HEAD, TAIL


@kernel
def is_low(s: Any, r: int, t: float) -> bool:
    """Return whether a request waits behind interactive ones: deferrable and not aged."""
    request = s.requests[r]
    return bool(s.deferrable[request.tier] and t - request.arrival < s.priority_after[request.tier])


@kernel
def _left(s: Any, r: int, t: float) -> float:
    """Return the seconds left until the TTFT limit."""
    request = s.requests[r]
    return float(request.arrival + s.tier_limit[request.tier] - t)


@kernel
def _queue_of(s: Any, slot: int, r: int, t: float) -> int:
    """Return the queue of an instance that a request belongs to."""
    scheduler = s.pools[s.instances[slot].pool].scheduler
    if is_low(s, r, t):
        return int(s.queues.shape[1] - 1)
    if scheduler == FCFS:
        return 0
    late = scheduler == DPA and _left(s, r, t) < 0.0 and not s.requests[r].preempted
    return int(2 * s.tier_rank[s.requests[r].tier] + (0 if late else 1))


@kernel
def append(s: Any, slot: int, r: int, q: int) -> None:
    """Append a request to queue ``q``."""
    s.requests[r].next = -1
    if s.queues[slot, q, HEAD] < 0:
        s.queues[slot, q, HEAD] = r
    else:
        s.requests[s.queues[slot, q, TAIL]].next = r
    s.queues[slot, q, TAIL] = r


@kernel
def prepend(s: Any, slot: int, r: int, t: float) -> None:
    """Put a preempted request back at the head of its queue."""
    q = _queue_of(s, slot, r, t)
    s.requests[r].next = s.queues[slot, q, HEAD]
    if s.queues[slot, q, HEAD] < 0:
        s.queues[slot, q, TAIL] = r
    s.queues[slot, q, HEAD] = r


@kernel
def take_head(s: Any, slot: int, q: int) -> int:
    """Remove the first request of queue ``q`` and return it."""
    r = s.queues[slot, q, HEAD]
    s.queues[slot, q, HEAD] = s.requests[r].next
    return int(r)


@kernel
def next_queue(s: Any, slot: int, t: float) -> int:
    """Return the queue with the next request; at least one request waits."""
    if s.pools[s.instances[slot].pool].scheduler == FCFS:
        return 0 if s.queues[slot, 0, HEAD] >= 0 else int(s.queues.shape[1] - 1)
    return int(_next_queue(s, slot, t))


@kernel
def _next_queue(s: Any, slot: int, t: float) -> int:
    """Return the next queue under EDF, PF or DPA; DPA first moves expired requests."""
    pool = s.pools[s.instances[slot].pool]
    best, best_class, best_value = s.queues.shape[1] - 1, 9, 0.0
    for q in range(s.queues.shape[1] - 1):
        r = s.queues[slot, q, HEAD]
        if pool.scheduler == DPA and q & 1:
            while r >= 0 and _left(s, r, t) < 0.0 and not s.requests[r].preempted:
                s.queues[slot, q, HEAD] = s.requests[r].next
                append(s, slot, r, q - 1)
                r = s.queues[slot, q, HEAD]
    for q in range(s.queues.shape[1] - 1):
        r = s.queues[slot, q, HEAD]
        if r < 0:
            continue
        if s.requests[r].preempted:
            return q
        its_class, value = standing(pool.scheduler, _left(s, r, t), pool.tau_n, pool.tau_p)
        if its_class < best_class or (its_class == best_class and value < best_value):
            best, best_class, best_value = q, its_class, value
    return int(best)


@kernel
def _order_changes(s: Any, slot: int, t: float) -> float:
    """Return the earliest time at which another waiting request may be next, without arrivals."""
    pool = s.pools[s.instances[slot].pool]
    least = np.inf
    for q in range(s.queues.shape[1] - 1):
        r = s.queues[slot, q, HEAD]
        if r >= 0:
            if s.requests[r].preempted:
                return np.inf
            left = _left(s, r, t)
            expired = q & 1 and left < 0.0  # but not moved yet
            least = 0.0 if expired else min(least, next_change(left, pool.tau_n, pool.tau_p))
    return t + least


@kernel
def steps_in_order(s: Any, slot: int, t: float) -> int:
    """Return how many iterations of the planned run pass until another request may be next."""
    instance = s.instances[slot]
    pool = s.pools[instance.pool]
    if pool.scheduler != DPA or instance.waiting == 0 or instance.running >= pool.max_batch:
        return int(instance.k)
    return int(iterations_done(instance, _order_changes(s, slot, t)) + 1)


@kernel
def interrupt(s: Any, slot: int, t: float) -> None:
    """End the run of iterations at its first boundary not before ``t``."""
    instance = s.instances[slot]
    if instance.k > 1:
        instance.k = iterations_done(instance, t) + 1
        schedule(s, slot, iteration_end(instance, instance.k))


@kernel
def enqueue(s: Any, slot: int, r: int, t: float) -> None:
    """Add a routed request to its instance; it may join at the next iteration boundary."""
    instance, request = s.instances[slot], s.requests[r]
    pool = s.pools[instance.pool]
    q = _queue_of(s, slot, r, t)
    append(s, slot, r, q)
    # Under DPA its effect on the order may appear later in the run, so interrupt in any case.
    first = pool.scheduler == DPA or (s.queues[slot, q, HEAD] == r and next_queue(s, slot, t) == q)
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
    elif instance.running < pool.max_batch and first:
        interrupt(s, slot, t)
    rank(s, slot)


@kernel
def has_low(s: Any, slot: int) -> bool:
    """Return whether deferrable requests that have not aged wait."""
    return bool(s.queues[slot, s.queues.shape[1] - 1, HEAD] >= 0)


@kernel
def promote_aged(s: Any, slot: int, t: float) -> None:
    """Move aged deferrable requests to the end of the queue of the others."""
    last = s.queues.shape[1] - 1
    moved = False
    while has_low(s, slot) and not is_low(s, s.queues[slot, last, HEAD], t):
        r = take_head(s, slot, last)
        append(s, slot, r, _queue_of(s, slot, r, t))
        moved = True
    if moved:
        interrupt(s, slot, t)
