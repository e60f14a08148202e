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
again, as in vLLM; or it fails (``fleet.WHEN_FULL``). Blocks of prompts that are cached
(``simulation.engine.prefix``) are neither computed nor counted twice.

A pool may batch otherwise (``fleet.BATCHING``). Where prompts come first, decodes that sit out an
iteration do not count it. An instance of a prefill pool lets its requests go after their first
token; their KV cache travels, one after another, and keeps its memory there until it is through,
to a decode instance, which is chosen when it arrives and holds its memory from admission on.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from simulation.compiled import kernel
from simulation.engine.accounting import add_tokens, count_tokens, settle
from simulation.engine.heaps import (
    batch_finish,
    batch_first,
    batch_pop,
    batch_push,
    batch_remove,
    delivery_push,
    schedule,
)
from simulation.engine.prefix import hold, keep, longest, release, trim
from simulation.engine.progress import iteration_end
from simulation.engine.ranking import rank
from simulation.engine.starts import retire
from simulation.engine.state import S_HIT, S_LOOKED_UP
from simulation.engine.waiting import next_queue, prepend, steps_in_order, take_head
from simulation.fleet import BATCHING, WHEN_FULL
from simulation.lifecycle import DRAINING, READY
from simulation.performance.curves import decode_growth, iteration_seconds, measured
from simulation.results import COMPLETED, OUT_OF_MEMORY, REASONS, REJECTED

# --- the batch -----------------------------------------------------------------------------------

CHUNKED, ALONE = BATCHING.index("chunked"), BATCHING.index("alone")
FAIL = WHEN_FULL.index("fail")
MEMORY = REASONS.index(OUT_OF_MEMORY)


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
    release(s, slot, r, request.isl + request.osl)
    s.instances[slot].pending -= 1
    request.last = t
    pool = s.pools[s.instances[slot].pool]
    gap = 0.0
    if request.osl > 1:
        gap = (t - request.first) / (request.osl - 1)
        pool.tbt_sum += gap
        pool.tbt_n += 1
    end = t + s.latency[request.home, pool.region] + pool.start_s - request.arrival
    pool.done += 1
    if gap > s.tier_gap[request.tier] or end > s.tier_end[request.tier]:
        pool.late_done += 1
    request.outcome = COMPLETED
    s.clock[0].open -= 1


@kernel
def _preempt_newest(s: Any, slot: int, t: float) -> None:
    """What the request admitted last had is freed, and it waits at the head of its queue."""
    instance = s.instances[slot]
    pool = s.pools[instance.pool]
    r = instance.newest
    request = s.requests[r]
    _leave_batch(s, slot, r)
    if r == instance.partial:
        done = request.isl + request.generated - instance.partial_left
        if pool.blocks > 0:
            keep(s, slot, r, done)
        release(s, slot, r, request.isl + request.generated + 1)
        instance.work += done
        instance.pending += request.cached
        instance.partial = -1
    else:
        request.generated = request.osl - (batch_finish(s, slot, r) - instance.counter)
        request.carried = 0
        instance.pending += request.isl + request.generated
        batch_remove(s, slot, r)
        release(s, slot, r, request.isl + request.generated)
        instance.context -= request.isl + request.generated
        instance.work += request.isl + request.generated
    request.cached, request.preempted = 0, 1
    instance.queued += request.isl + request.generated
    prepend(s, slot, r, t)
    instance.waiting += 1
    pool.waiting += 1
    pool.preemptions += 1


@kernel
def take_back(s: Any, slot: int, q: int) -> int:
    """The first request of queue ``q`` leaves the instance without having been admitted."""
    instance = s.instances[slot]
    pool = s.pools[instance.pool]
    r = take_head(s, slot, q)
    request = s.requests[r]
    prompt = request.isl + request.generated
    instance.waiting -= 1
    pool.waiting -= 1
    instance.queued -= prompt
    instance.pending -= 1
    instance.work -= 1 if pool.hands else request.osl - request.generated
    if not request.carried:
        instance.pending -= prompt
        instance.work -= prompt
    return int(r)


@kernel
def lose(s: Any, r: int, reason: int) -> None:
    """A request is given up, for a reason of ``results.REASONS``."""
    request = s.requests[r]
    request.outcome, request.reason = REJECTED, reason
    request.pool, request.first = -1, np.nan
    s.clock[0].open -= 1


@kernel
def _make_room(s: Any, slot: int, t: float) -> None:
    instance = s.instances[slot]
    pool = s.pools[instance.pool]
    newest = instance.newest
    _preempt_newest(s, slot, t)
    if pool.when_full == FAIL:
        pool.preemptions -= 1
        for q in range(s.queues.shape[1]):
            if s.queues[slot, q, 0] == newest:
                lose(s, take_back(s, slot, q), MEMORY)
                return


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
    instance.kv -= 1
    instance.pending -= 1
    instance.sending += 1
    request.sender = slot
    request.generated += 1
    request.carried = 1
    request.cached = 0
    request.model = s.handover[request.model, 0]
    size = tokens * pool.kv_bytes
    start = max(t, instance.link_free, pool.shared_free)
    instance.link_free = start + size / pool.link
    pool.shared_free = start + size / pool.shared_link
    delivery_push(s, max(instance.link_free, pool.shared_free), r)


@kernel
def sent(s: Any, r: int, t: float) -> None:
    """A KV cache is through: its prefill instance has the memory back."""
    request = s.requests[r]
    slot = request.sender
    request.sender = -1
    instance = s.instances[slot]
    settle(s, slot, t)
    release(s, slot, r, request.isl + request.generated - 1)
    instance.sending -= 1
    if instance.k == 0 and instance.waiting > 0:
        schedule(s, slot, t)
    elif instance.status == DRAINING and instance.running == 0 and instance.sending == 0:
        retire(s, slot, t)
    rank(s, slot)


@kernel
def _admit(s: Any, slot: int, q: int, found: int, t: float) -> None:
    """The first request of queue ``q`` joins the batch, ``found`` blocks of its prompt cached."""
    instance = s.instances[slot]
    pool = s.pools[instance.pool]
    r = take_head(s, slot, q)
    request = s.requests[r]
    prompt = request.isl + request.generated
    instance.waiting -= 1
    pool.waiting -= 1
    instance.queued -= prompt
    instance.kv += prompt + 1
    request.preempted = 0
    request.older, request.newer = instance.newest, -1
    if instance.newest >= 0:
        s.requests[instance.newest].newer = r
    instance.newest = r
    instance.running += 1
    if request.carried:
        batch_push(s, slot, instance.counter + request.osl - request.generated, r)
        instance.context += prompt
        return
    if pool.blocks > 0:
        request.cached = found * pool.block_tokens
        instance.kv -= request.cached
        hold(s, slot, r, found)
        trim(s, slot, instance.kv)
        instance.work -= request.cached
        instance.pending -= request.cached
        pool.hit_tokens += request.cached
        pool.looked_up_tokens += prompt
        pool.hits += request.cached
        pool.lookups += prompt
        add_tokens(s, S_HIT, instance.pool, t, request.cached)
        add_tokens(s, S_LOOKED_UP, instance.pool, t, prompt)
    instance.partial, instance.partial_left = r, prompt - request.cached


@kernel
def _note_peak(s: Any, slot: int) -> None:
    instance = s.instances[slot]
    pool = s.pools[instance.pool]
    used = instance.kv
    if pool.blocks > 0:
        used += s.caches[slot].idle * pool.block_tokens
    pool.kv_peak = max(pool.kv_peak, used)


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
    trim(s, slot, instance.kv)
    _note_peak(s, slot)
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

    while instance.decodes > 0 and batch_first(s, slot) <= instance.counter:
        r = batch_pop(s, slot)
        instance.context -= s.requests[r].isl + s.requests[r].osl
        _complete(s, slot, r, t)
    r = instance.fresh
    instance.fresh = -1
    while r >= 0:
        request = s.requests[r]
        following = request.next
        generated = request.generated + 1
        instance.pending -= request.isl + request.generated - request.cached
        if np.isnan(request.first):
            request.first = t
            ttft = t + s.latency[request.home, pool.region] + pool.start_s - request.arrival
            pool.ttft_sum += ttft
            pool.ttft_n += 1
            if ttft > s.tier_limit[request.tier]:
                pool.late_first += 1
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
def _grow(s: Any, slot: int, t: float) -> bool:
    """A token more for every decode; whether requests had to give way for them."""
    instance = s.instances[slot]
    pool = s.pools[instance.pool]
    preempted = False
    while instance.decodes > pool.usable - instance.kv and instance.running > 0:
        _make_room(s, slot, t)
        preempted = True
    instance.kv += instance.decodes
    trim(s, slot, instance.kv)
    return preempted


@kernel
def _joining(s: Any, slot: int, chunk: int, left: int, t: float) -> tuple[int, int]:
    """The queue whose first request joins now, beside ``chunk`` prompt tokens and with ``left`` of
    the budget, and how many of its blocks are cached; (-1, 0): it does not fit."""
    instance = s.instances[slot]
    pool = s.pools[instance.pool]
    q = next_queue(s, slot, t)
    r = s.queues[slot, q, 0]
    head = s.requests[r]
    prompt = head.isl + head.generated
    room = pool.usable - instance.kv
    if instance.running > 0:
        room -= pool.watermark
    found, need = 0, prompt + 1
    if pool.blocks > 0:
        found, held = longest(s, slot, r)
        need -= held * pool.block_tokens
    whole = pool.batching != CHUNKED and not head.carried
    if need > room or (whole and chunk > 0 and prompt - found * pool.block_tokens > left):
        return -1, 0
    return int(q), int(found)


@kernel
def _prefill(s: Any, slot: int, tokens: int) -> float:
    """The next ``tokens`` of the prompt being computed; pairs of tokens in its attention."""
    instance = s.instances[slot]
    r = instance.partial
    request = s.requests[r]
    before = request.isl + request.generated - instance.partial_left
    instance.partial_left -= tokens
    if instance.partial_left == 0:
        if s.pools[instance.pool].blocks > 0:
            keep(s, slot, r, request.isl)
        _add_fresh(s, slot, r)
        instance.partial = -1
    return float(tokens * (before + 0.5 * tokens))


@kernel
def _fill(s: Any, slot: int, preempted: bool, t: float) -> tuple[int, int, float]:
    """Spend the budget on prompts; what is left of it, the tokens, and pairs in their attention."""
    instance = s.instances[slot]
    pool = s.pools[instance.pool]
    whole = pool.batching != CHUNKED
    chunk, pairs = 0, 0.0
    left = pool.budget if whole else pool.budget - instance.decodes
    while left > 0:
        if instance.partial < 0:
            if preempted or instance.running >= pool.max_batch or instance.waiting == 0:
                break
            q, found = _joining(s, slot, chunk, left, t)
            if q < 0:
                break
            _admit(s, slot, q, found, t)
            if instance.partial < 0:  # its prompt was computed elsewhere
                left -= 1
                continue
        tokens = instance.partial_left if whole else min(left, instance.partial_left)
        pairs += _prefill(s, slot, tokens)
        chunk += tokens
        left -= tokens
    return int(left), int(chunk), pairs


@kernel
def _plan(
    s: Any, slot: int, decodes: int, chunk: int, pairs: float, preempted: bool, t: float
) -> None:
    """The run of iterations that begins at ``t``: how long each takes, and how many alike."""
    instance = s.instances[slot]
    pool = s.pools[instance.pool]
    curve = s.curves[pool.curve]
    b, c, p = float(decodes), float(instance.context) if decodes > 0 else 0.0, float(chunk)
    pace = instance.slow * pool.pace
    instance.t0 = t
    instance.dt = pace * iteration_seconds(curve, b, c, p, pairs)
    instance.growth = 0.0
    instance.outside = not measured(curve, b, c, p, pairs)
    instance.chunk = chunk
    instance.k = 1
    if chunk == 0 and not preempted:
        to_finish = batch_first(s, slot) - instance.counter
        memory_lasts = (pool.usable - instance.kv) // decodes + 1
        growth, same_segment = decode_growth(curve, b, c)
        instance.growth = pace * growth
        instance.k = min(to_finish, memory_lasts, same_segment)
        instance.k = min(instance.k, steps_in_order(s, slot, t))


@kernel
def begin_run(s: Any, slot: int, t: float) -> None:
    """Make room, admit, plan and start the next run of equal iterations, or go idle."""
    instance = s.instances[slot]
    pool = s.pools[instance.pool]
    preempted = _grow(s, slot, t)
    left, chunk, pairs = _fill(s, slot, preempted, t)
    decodes = instance.decodes
    alone = pool.batching == ALONE or decodes > left
    instance.pausing = pool.batching != CHUNKED and chunk > 0 and decodes > 0 and alone
    if instance.pausing:
        instance.kv -= decodes
        decodes = 0
    _note_peak(s, slot)
    if decodes == 0 and chunk == 0:
        instance.k = 0
        schedule(s, slot, np.inf)
    else:
        _plan(s, slot, decodes, chunk, pairs, preempted, t)
        if (instance.status != READY and instance.status != DRAINING) or pool.down:
            pool.early += 1
        schedule(s, slot, iteration_end(instance, instance.k))
    rank(s, slot)
