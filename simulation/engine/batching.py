"""One instance: iteration-level continuous batching with chunked prefill and paged KV memory.

An iteration gives one token to every decoding request and spends what is left of the token budget
on prefill, first come first served. Iterations of an unchanged batch (decodes only, nothing can
join, none ends, memory lasts) are run together: ``k`` of them, the first ``dt`` seconds long, each
further one ``growth`` more, as far as one segment of the profile's curve goes. Tokens are not
counted per request: a request joins with the number of the iteration that will end it, and the
instance counts iterations, so a step costs O(1) and a completion O(log batch).

Memory is reserved at admission (prompt and the first token) and grows by a token per decode at the
beginning of each iteration; when it runs short the most recently admitted request is preempted: its
memory is freed and it waits at the head of its queue to have prompt and generated tokens computed
again, as in vLLM.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from simulation.compiled import kernel
from simulation.engine.accounting import count_tokens, settle
from simulation.engine.heaps import batch_push, batch_remove, schedule
from simulation.lifecycle import DRAINING, OFF, READY
from simulation.performance.curves import decode_growth, iteration_seconds, measured
from simulation.progress import iteration_end, iterations_done
from simulation.results import COMPLETED

# --- waiting -------------------------------------------------------------------------------------


@kernel
def _is_low(s: Any, r: int, t: float) -> bool:
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
def _prepend(s: Any, slot: int, r: int, low: bool) -> None:
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
    low = _is_low(s, r, t)
    blocked = instance.urgent >= 0 or (low and instance.low >= 0)
    _append(s, slot, r, low)
    instance.waiting += 1
    pool.waiting += 1
    pool.arrived_tokens += request.isl
    instance.work += request.isl + request.osl
    request.pool = instance.pool
    if instance.k == 0:
        settle(s, slot, t)
        schedule(s, slot, t)
    elif instance.running < pool.max_batch and not blocked:
        interrupt(s, slot, t)


@kernel
def promote_aged(s: Any, slot: int, t: float) -> None:
    """Waiting deferrable requests past their age go to the end of the interactive queue."""
    instance = s.instances[slot]
    moved = False
    while instance.low >= 0 and not _is_low(s, instance.low, t):
        r = instance.low
        instance.low = s.requests[r].next
        _append(s, slot, r, False)
        moved = True
    if moved:
        interrupt(s, slot, t)


# --- the batch -----------------------------------------------------------------------------------


@kernel
def _leave_batch(s: Any, slot: int, r: int) -> None:
    instance, request = s.instances[slot], s.requests[r]
    if request.newer >= 0:
        s.requests[request.newer].older = request.older
    else:
        instance.newest = request.older
    if request.older >= 0:
        s.requests[request.older].newer = request.newer
    instance.running -= 1


@kernel
def _complete(s: Any, slot: int, r: int, t: float) -> None:
    request = s.requests[r]
    _leave_batch(s, slot, r)
    s.instances[slot].kv -= request.isl + request.osl
    request.last = t
    request.outcome = COMPLETED
    s.clock[0].open -= 1


@kernel
def _preempt_newest(s: Any, slot: int, t: float) -> None:
    instance = s.instances[slot]
    r = instance.newest
    request = s.requests[r]
    _leave_batch(s, slot, r)
    if r == instance.partial:
        instance.kv -= request.isl + request.generated + 1
        instance.work += request.isl + request.generated - instance.partial_left
        instance.partial = -1
    else:
        request.generated = request.osl - (request.finish - instance.counter)
        batch_remove(s, slot, r)
        instance.kv -= request.isl + request.generated
        instance.context -= request.isl + request.generated
        instance.work += request.isl + request.generated
    _prepend(s, slot, r, _is_low(s, r, t))
    instance.waiting += 1
    s.pools[instance.pool].waiting += 1
    s.pools[instance.pool].preemptions += 1


@kernel
def _add_fresh(s: Any, slot: int, r: int) -> None:
    instance = s.instances[slot]
    s.requests[r].next = -1
    if instance.fresh < 0:
        instance.fresh = r
    else:
        s.requests[instance.fresh_tail].next = r
    instance.fresh_tail = r


@kernel
def _admit(s: Any, slot: int, low: bool) -> None:
    instance = s.instances[slot]
    r = instance.low if low else instance.urgent
    request = s.requests[r]
    if low:
        instance.low = request.next
    else:
        instance.urgent = request.next
    instance.waiting -= 1
    s.pools[instance.pool].waiting -= 1
    instance.kv += request.isl + request.generated + 1
    request.older, request.newer = instance.newest, -1
    if instance.newest >= 0:
        s.requests[instance.newest].newer = r
    instance.newest = r
    instance.running += 1
    instance.partial, instance.partial_left = r, request.isl + request.generated


@kernel
def finish_run(s: Any, slot: int, t: float) -> int:
    """End the current run of iterations at ``t``; how many requests completed."""
    settle(s, slot, t)
    instance = s.instances[slot]
    if instance.k == 0:
        return 0
    pool = s.pools[instance.pool]
    instance.counter += instance.k
    pool.iterations += instance.k
    decoded = instance.decodes * instance.k
    pool.outside += instance.k * instance.outside
    instance.kv += instance.decodes * (instance.k - 1)
    instance.context += decoded
    pool.kv_peak = max(pool.kv_peak, instance.kv)
    running = instance.running
    first_tokens = 0
    r = instance.fresh
    while r >= 0:
        first_tokens += 1
        r = s.requests[r].next
    count_tokens(s, slot, t, first_tokens)
    instance.work -= decoded + instance.chunk + first_tokens
    instance.k = 0
    instance.chunk = 0

    while instance.decodes > 0 and s.batch_finish[slot, 0] <= instance.counter:
        r = s.batch_request[slot, 0]
        batch_remove(s, slot, r)
        instance.context -= s.requests[r].isl + s.requests[r].osl
        _complete(s, slot, r, t)
    r = instance.fresh
    instance.fresh = -1
    while r >= 0:
        request = s.requests[r]
        following = request.next
        generated = request.generated + 1
        if np.isnan(request.first):
            request.first = t
        if generated == request.osl:
            _complete(s, slot, r, t)
        else:
            batch_push(s, slot, instance.counter + request.osl - generated, r)
            instance.context += request.isl + generated
        r = following
    return int(running - instance.running)


@kernel
def begin_run(s: Any, slot: int, t: float) -> None:
    """Make room, admit, plan and start the next run of equal iterations, or go idle."""
    instance = s.instances[slot]
    pool = s.pools[instance.pool]
    preempted = False
    while instance.decodes > pool.kv_capacity - instance.kv:
        _preempt_newest(s, slot, t)
        preempted = True
    decodes = instance.decodes
    instance.kv += decodes
    chunk, pairs, left = 0, 0.0, pool.budget - decodes
    while left > 0:
        if instance.partial < 0:
            if preempted or instance.running >= pool.max_batch or instance.waiting == 0:
                break
            low = instance.urgent < 0
            head = s.requests[instance.low if low else instance.urgent]
            room = pool.kv_capacity - instance.kv
            if instance.running > 0:
                room -= pool.watermark
            if head.isl + head.generated + 1 > room:
                break
            _admit(s, slot, low)
        tokens = min(left, instance.partial_left)
        request = s.requests[instance.partial]
        before = request.isl + request.generated - instance.partial_left
        pairs += tokens * (before + 0.5 * tokens)
        chunk += tokens
        left -= tokens
        instance.partial_left -= tokens
        if instance.partial_left == 0:
            _add_fresh(s, slot, instance.partial)
            instance.partial = -1
    pool.kv_peak = max(pool.kv_peak, instance.kv)
    if decodes == 0 and chunk == 0:
        instance.k = 0
        schedule(s, slot, np.inf)
        return

    curve = s.curves[pool.curve]
    b, c, p = float(decodes), float(instance.context), float(chunk)
    instance.t0 = t
    instance.dt = iteration_seconds(curve, b, c, p, pairs)
    instance.growth = 0.0
    instance.outside = not measured(curve, b, c, p, pairs)
    instance.chunk = chunk
    instance.k = 1
    if chunk == 0 and not preempted:
        to_finish = s.batch_finish[slot, 0] - instance.counter
        memory_lasts = (pool.kv_capacity - instance.kv) // decodes + 1
        growth, same_segment = decode_growth(curve, b, c)
        instance.growth = growth
        instance.k = min(to_finish, memory_lasts, same_segment)
    if instance.status != READY and instance.status != DRAINING:
        pool.early += 1
    schedule(s, slot, iteration_end(instance, instance.k))


@kernel
def retire(s: Any, slot: int, t: float) -> None:
    """Switch an instance off: cancelled while starting, or drained."""
    settle(s, slot, t)
    instance, duration = s.instances[slot], s.clock[0].duration
    pool = s.pools[instance.pool]
    pool.lifetime_s += min(t, duration) - min(instance.born, duration)
    if instance.status == DRAINING:
        pool.draining -= 1
    else:
        pool.starting -= 1
    instance.status = OFF
    schedule(s, slot, np.inf)
