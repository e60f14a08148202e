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

A pool may batch otherwise (``fleet.BATCHING``). Where prompts come first, decodes that sit out an
iteration do not count it. An instance of a prefill pool lets its requests go after their first
token; their KV cache travels, one after another, to a decode instance, which is chosen when it
arrives and holds its memory from admission on.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from simulation.compiled import kernel
from simulation.engine.accounting import count_tokens, settle
from simulation.engine.heaps import batch_push, batch_remove, delivery_push, schedule
from simulation.engine.waiting import is_low, prepend
from simulation.fleet import BATCHING
from simulation.lifecycle import DRAINING, READY
from simulation.performance.curves import decode_growth, iteration_seconds, measured
from simulation.progress import iteration_end
from simulation.ranking import rank
from simulation.results import COMPLETED

# --- the batch -----------------------------------------------------------------------------------

CHUNKED, ALONE = BATCHING.index("chunked"), BATCHING.index("alone")


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
    s.instances[slot].pending -= 1
    request.last = t
    if request.osl > 1:
        pool = s.pools[s.instances[slot].pool]
        pool.tbt_sum += (t - request.first) / (request.osl - 1)
        pool.tbt_n += 1
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
        request.carried = 0
        instance.pending += request.isl + request.generated
        batch_remove(s, slot, r)
        instance.kv -= request.isl + request.generated
        instance.context -= request.isl + request.generated
        instance.work += request.isl + request.generated
    instance.queued += request.isl + request.generated
    prepend(s, slot, r, is_low(s, r, t))
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
def _hand_over(s: Any, slot: int, r: int, t: float) -> None:
    """The KV cache leaves once those before it are through, at the pace of the slower link."""
    instance, request = s.instances[slot], s.requests[r]
    pool = s.pools[instance.pool]
    _leave_batch(s, slot, r)
    tokens = request.isl + request.generated
    instance.kv -= tokens + 1
    instance.pending -= 1
    request.generated += 1
    request.carried = 1
    request.model = s.handover[request.model, 0]
    size = tokens * pool.kv_bytes
    start = max(t, instance.link_free, pool.shared_free)
    instance.link_free = start + size / pool.link
    pool.shared_free = start + size / pool.shared_link
    delivery_push(s, max(instance.link_free, pool.shared_free), r)


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
    instance.queued -= request.isl + request.generated
    instance.kv += request.isl + request.generated + 1
    request.older, request.newer = instance.newest, -1
    if instance.newest >= 0:
        s.requests[instance.newest].newer = r
    instance.newest = r
    instance.running += 1
    if request.carried:
        batch_push(s, slot, instance.counter + request.osl - request.generated, r)
        instance.context += request.isl + request.generated
    else:
        instance.partial, instance.partial_left = r, request.isl + request.generated


@kernel
def finish_run(s: Any, slot: int, t: float) -> int:
    """End the current run of iterations at ``t``; how many requests completed."""
    settle(s, slot, t)
    instance = s.instances[slot]
    if instance.k == 0:
        return 0
    pool = s.pools[instance.pool]
    steps = 0 if instance.pausing else instance.k
    instance.counter += steps
    pool.iterations += instance.k
    decoded = instance.decodes * steps
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
    count_tokens(s, slot, t, decoded, first_tokens)
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
        instance.pending -= request.isl + request.generated
        if np.isnan(request.first):
            request.first = t
            pool.ttft_sum += t + s.latency[request.home, pool.region] - request.arrival
            pool.ttft_n += 1
        if pool.hands and generated < request.osl:
            _hand_over(s, slot, r, t)
        elif generated == request.osl:
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
    instance.kv += instance.decodes
    whole = pool.batching != CHUNKED
    chunk, pairs = 0, 0.0
    left = pool.budget if whole else pool.budget - instance.decodes
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
            if head.carried:
                left -= 1
                _admit(s, slot, low)
                continue
            if whole and chunk > 0 and head.isl + head.generated > left:
                break
            _admit(s, slot, low)
        tokens = instance.partial_left if whole else min(left, instance.partial_left)
        request = s.requests[instance.partial]
        before = request.isl + request.generated - instance.partial_left
        pairs += tokens * (before + 0.5 * tokens)
        chunk += tokens
        left -= tokens
        instance.partial_left -= tokens
        if instance.partial_left == 0:
            _add_fresh(s, slot, instance.partial)
            instance.partial = -1
    decodes = instance.decodes
    alone = pool.batching == ALONE or decodes > left
    instance.pausing = whole and chunk > 0 and decodes > 0 and alone
    if instance.pausing:
        instance.kv -= decodes
        decodes = 0
    pool.kv_peak = max(pool.kv_peak, instance.kv)
    if decodes == 0 and chunk == 0:
        instance.k = 0
        schedule(s, slot, np.inf)
        rank(s, slot)
        return

    curve = s.curves[pool.curve]
    b, c, p = float(decodes), float(instance.context) if decodes > 0 else 0.0, float(chunk)
    instance.t0 = t
    pace = instance.slow * pool.pace
    instance.dt = pace * iteration_seconds(curve, b, c, p, pairs)
    instance.growth = 0.0
    instance.outside = not measured(curve, b, c, p, pairs)
    instance.chunk = chunk
    instance.k = 1
    if chunk == 0 and not preempted:
        to_finish = s.batch_finish[slot, 0] - instance.counter
        memory_lasts = (pool.kv_capacity - instance.kv) // decodes + 1
        growth, same_segment = decode_growth(curve, b, c)
        instance.growth = pace * growth
        instance.k = min(to_finish, memory_lasts, same_segment)
    if (instance.status != READY and instance.status != DRAINING) or pool.down:
        pool.early += 1
    schedule(s, slot, iteration_end(instance, instance.k))
    rank(s, slot)
