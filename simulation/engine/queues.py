"""Queues of one instance and the choice of the next request (SageServe, sections 5 and 6.5).

The last queue contains deferrable requests until they become urgent, and prompts that a decode
instance takes over. FCFS has one other queue. The other schedulers have two per tier, and new
requests join the second. Under DPA, a request moves to the first of the two when it expires, which
is when its TTFT limit passes. So the heads of all queues suffice for the choice.

Deferrable requests that are not yet urgent wait behind all others under every scheduler. ``left_s``
is the time until the TTFT limit of a request, d_r in the source. It is negative after the limit and
infinite without one. Tiers rank by how strict this limit is. Within a tier, the order of arrival at
the instance decides. A preempted request goes first, even before other tiers.

- FCFS: in order of arrival at the instance, whatever the tier.
- EDF: the least time left first, so expired requests go before all others.
- PF: all requests of a stricter tier before any of the next.
- DPA: severely expired (left_s < -tau_n), longest expired first. Then urgent (0 <= left_s <= tau_p)
by
  tier, other unexpired by tier, and last the recently expired (-tau_n <= left_s < 0).

The source gives no values for tau_n and tau_p; the defaults of ``fleet.Pool`` are assumed.
"""

from typing import Any

import numpy as np

from simulation.compiler import kernel
from simulation.engine.accounting import add_tokens, settle
from simulation.engine.heaps import schedule
from simulation.engine.progress import iteration_end, iterations_done
from simulation.engine.routing_order import rank
from simulation.engine.state import HEAD, NO_LIMIT, S_ARRIVED, TAIL

FCFS, EDF, PF, DPA = range(4)  # indices into fleet.SCHEDULERS
AFTER_ALL_CLASSES = 4  # above every class of ``scheduling_class``


@kernel
def scheduling_class(
    scheduler: int, left_s: float, tau_n: float, tau_p: float
) -> tuple[int, float]:
    """Return (class, value), by which a scheduler orders waiting requests.

    The lower class goes first, then the lower value, then the stricter tier. ``left_s`` are the
    seconds to the TTFT limit, negative after it. Under DPA the classes are 0: expired for more than
    ``tau_n`` seconds, 1: at most ``tau_p`` seconds left, 2: more left, 3: just expired. EDF has one
    class by ``left_s``. Other schedulers have one class without an order.
    """
    if scheduler == EDF:
        return 0, left_s
    if scheduler != DPA:
        return 0, 0.0
    if left_s < -tau_n:
        return 0, left_s
    if left_s < 0.0:
        return 3, left_s
    return (1, 0.0) if left_s <= tau_p else (2, 0.0)


@kernel
def next_change(left_s: float, tau_n: float, tau_p: float) -> float:
    """Return the seconds until a waiting request may change its class under DPA; inf: never.

    ``left_s`` are its seconds to the TTFT limit.
    """
    if left_s > tau_p:
        return left_s - tau_p
    if left_s >= 0.0:
        return left_s
    return max(left_s + tau_n, 0.0) if left_s >= -tau_n else float("inf")


@kernel
def _waits_behind_others(state: Any, slot: int, r: int, t: float) -> bool:
    """Return whether request ``r`` waits behind the others of instance ``slot``.

    Either it is deferrable and not yet urgent at ``t``, or the instance is one for decode that
    computes its prompt.
    """
    request = state.requests[r]
    not_urgent = t - request.arrival_s < state.urgent_after_s[request.tier]
    limited = state.pools[state.instances[slot].pool].prompt_limit_tokens < NO_LIMIT
    taken_over = limited and not request.kv_transferred and np.isnan(request.first_token_s)
    return bool(taken_over or (state.deferrable[request.tier] and not_urgent))


@kernel
def _seconds_to_ttft_limit(state: Any, r: int, t: float) -> float:
    """Return the seconds until the TTFT limit of request ``r``, negative after it."""
    request = state.requests[r]
    return float(request.arrival_s + state.ttft_limit_s[request.tier] - t)


@kernel
def _queue_of(state: Any, slot: int, r: int, t: float) -> int:
    """Return the index of the instance's queue that request ``r`` belongs to at ``t``."""
    scheduler = state.pools[state.instances[slot].pool].scheduler
    if _waits_behind_others(state, slot, r, t):
        return int(state.queues.shape[1] - 1)
    if scheduler == FCFS:
        return 0
    # A tier has two queues: of expired requests (under DPA), then of all others.
    tier_queue = 2 * state.tier_rank[state.requests[r].tier]
    expired = scheduler == DPA and _seconds_to_ttft_limit(state, r, t) < 0.0
    if expired and not state.requests[r].preempted:
        return int(tier_queue)
    return int(tier_queue + 1)


@kernel
def append(state: Any, slot: int, r: int, q: int) -> None:
    """Append request ``r`` to queue ``q`` of an instance."""
    state.requests[r].next_in_queue = -1
    if state.queues[slot, q, HEAD] < 0:
        state.queues[slot, q, HEAD] = r
    else:
        state.requests[state.queues[slot, q, TAIL]].next_in_queue = r
    state.queues[slot, q, TAIL] = r


@kernel
def prepend(state: Any, slot: int, r: int, t: float) -> None:
    """Put the preempted request ``r`` back at the head of its queue on an instance."""
    q = _queue_of(state, slot, r, t)
    state.requests[r].next_in_queue = state.queues[slot, q, HEAD]
    if state.queues[slot, q, HEAD] < 0:
        state.queues[slot, q, TAIL] = r
    state.queues[slot, q, HEAD] = r


@kernel
def take_head(state: Any, slot: int, q: int) -> int:
    """Remove the first request of queue ``q`` of an instance, and return it."""
    r = state.queues[slot, q, HEAD]
    state.queues[slot, q, HEAD] = state.requests[r].next_in_queue
    return int(r)


@kernel
def next_queue(state: Any, slot: int, t: float) -> int:
    """Return the queue of an instance whose first request is admitted next.

    At least one request must wait there.
    """
    if state.pools[state.instances[slot].pool].scheduler == FCFS:
        return 0 if state.queues[slot, 0, HEAD] >= 0 else int(state.queues.shape[1] - 1)
    return int(_next_queue(state, slot, t))


@kernel
def _next_queue(state: Any, slot: int, t: float) -> int:
    """Return the queue of an instance whose first request is admitted next, under EDF, PF or DPA.

    A preempted request comes first, then the lowest scheduling class, then the lowest value in it,
    then the lowest queue. Tier k has the queues 2 k and 2 k + 1. Under DPA, requests of the second
    move to the first when their TTFT limit has passed. The last queue waits behind all others.
    """
    pool = state.pools[state.instances[slot].pool]
    last = state.queues.shape[1] - 1
    if pool.scheduler == DPA:
        for q in range(1, last, 2):
            r = state.queues[slot, q, HEAD]
            while r >= 0 and not state.requests[r].preempted:
                if _seconds_to_ttft_limit(state, r, t) >= 0.0:
                    break
                state.queues[slot, q, HEAD] = state.requests[r].next_in_queue
                append(state, slot, r, q - 1)
                r = state.queues[slot, q, HEAD]
    best, best_class, best_value = last, AFTER_ALL_CLASSES, 0.0
    for q in range(last):
        r = state.queues[slot, q, HEAD]
        if r < 0:
            continue
        if state.requests[r].preempted:
            return q
        request_class, value = scheduling_class(
            pool.scheduler, _seconds_to_ttft_limit(state, r, t), pool.tau_n, pool.tau_p
        )
        if request_class < best_class or (request_class == best_class and value < best_value):
            best, best_class, best_value = q, request_class, value
    return int(best)


@kernel
def _order_changes(state: Any, slot: int, t: float) -> float:
    """Return the time at which DPA may first choose another of the instance's waiting requests.

    Later arrivals are not considered. It is inf if a preempted request is next.
    """
    pool = state.pools[state.instances[slot].pool]
    earliest = np.inf
    for q in range(state.queues.shape[1] - 1):
        r = state.queues[slot, q, HEAD]
        if r >= 0:
            if state.requests[r].preempted:
                return np.inf
            left_s = _seconds_to_ttft_limit(state, r, t)
            # An expired request that is still in an odd queue (unexpired) moves at the next choice.
            moves_now = q & 1 and left_s < 0.0
            next_s = 0.0 if moves_now else next_change(left_s, pool.tau_n, pool.tau_p)
            earliest = min(earliest, next_s)
    return t + earliest


@kernel
def steps_in_order(state: Any, slot: int, t: float) -> int:
    """Return how many iterations of an instance's planned run keep the same request next.

    Only DPA changes the order while requests wait.
    """
    instance = state.instances[slot]
    pool = state.pools[instance.pool]
    if pool.scheduler != DPA or instance.waiting == 0 or instance.running >= pool.max_batch:
        return int(instance.run_iterations)
    return int(iterations_done(instance, _order_changes(state, slot, t)) + 1)


@kernel
def interrupt(state: Any, slot: int, t: float) -> None:
    """Shorten an instance's run to end at the first iteration boundary not before ``t``."""
    instance = state.instances[slot]
    if instance.run_iterations > 1:
        instance.run_iterations = iterations_done(instance, t) + 1
        schedule(state, slot, iteration_end(instance, instance.run_iterations))


@kernel
def enqueue(state: Any, slot: int, r: int, t: float) -> None:
    """Add the routed request ``r`` to a queue of instance ``slot``.

    It may join the batch at the next iteration boundary.
    """
    instance, request = state.instances[slot], state.requests[r]
    pool = state.pools[instance.pool]
    q = _queue_of(state, slot, r, t)
    append(state, slot, r, q)
    # Interrupt the run if the request would be admitted next. Under DPA it may be so only later in
    # the run, so interrupt in any case.
    is_next = state.queues[slot, q, HEAD] == r and next_queue(state, slot, t) == q
    may_join = pool.scheduler == DPA or is_next
    instance.waiting += 1
    pool.waiting += 1
    state.clock[0].routed += 1
    instance.last_routed = state.clock[0].routed
    instance.pending_tokens += 1
    instance.queued_kv_tokens += request.isl + request.generated_tokens
    if request.kv_transferred:
        instance.remaining_tokens += request.osl - request.generated_tokens
    else:
        pool.arrived_tokens += request.isl
        add_tokens(state, S_ARRIVED, instance.pool, t, request.isl)
        outputs_here = request.generated_tokens + 1 if pool.hands_over else request.osl
        instance.remaining_tokens += request.isl + outputs_here
        instance.pending_tokens += request.isl + request.generated_tokens
    request.pool = instance.pool
    if instance.run_iterations == 0:
        settle(state, slot, t)
        schedule(state, slot, t)
    elif instance.running < pool.max_batch and may_join:
        interrupt(state, slot, t)
    rank(state, slot)


@kernel
def has_low(state: Any, slot: int) -> bool:
    """Return whether an instance has waiting requests that are deferrable or taken over."""
    return bool(state.queues[slot, state.queues.shape[1] - 1, HEAD] >= 0)


@kernel
def promote_aged(state: Any, slot: int, t: float) -> None:
    """Move deferrable requests that became urgent from the instance's last queue to the others."""
    last = state.queues.shape[1] - 1
    moved = False
    while has_low(state, slot) and not _waits_behind_others(
        state, slot, state.queues[slot, last, HEAD], t
    ):
        r = take_head(state, slot, last)
        append(state, slot, r, _queue_of(state, slot, r, t))
        moved = True
    if moved:
        interrupt(state, slot, t)
