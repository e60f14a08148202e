"""How requests join and leave the batch of an instance, and the memory that they use.

Memory is reserved at admission for the prompt and the first token. It grows by one token per decode
at the beginning of each iteration. If it runs out, the request admitted last is preempted. Its
memory is freed and it waits at the head of its queue. Prompt and generated tokens are then computed
again, as in vLLM. Under ``fail`` (``fleet.WHEN_FULL``) it is rejected instead. Cached blocks of
prompts (``simulation.engine.prefix``) are neither computed nor counted twice. Cached tokens that a
trace only counts (``trace.CachedTokens``) are not computed, and occupy memory like all others.

An instance of a prefill pool releases its requests after their first token. Their KV caches are
sent one after another, and occupy memory there until they have been sent. The decode instance is
chosen when a cache arrives, and reserves memory at admission.
"""

from typing import Any

import numpy as np

from simulation.compiler import kernel
from simulation.engine.accounting import add_tokens, settle
from simulation.engine.heaps import batch_finish, batch_push, batch_remove, delivery_push, schedule
from simulation.engine.prefix import cache_blocks, evict_for, free_request, hold_blocks
from simulation.engine.queues import prepend, take_head
from simulation.engine.routing_order import rank
from simulation.engine.signals import TENFOLD_TBT, count_latency
from simulation.engine.starts import retire
from simulation.engine.state import DECODE_SERVICE, HEAD, S_HIT, S_LOOKED_UP
from simulation.fleet import WHEN_FULL
from simulation.lifecycle import DRAINING
from simulation.results import COMPLETED, OUT_OF_MEMORY, REASONS, REJECTED

FAIL = WHEN_FULL.index("fail")
MEMORY = REASONS.index(OUT_OF_MEMORY)


@kernel
def _leave_batch(state: Any, slot: int, r: int) -> None:
    """Remove a request from the instance's list of running ones, which is in order of admission."""
    instance, request = state.instances[slot], state.requests[r]
    if request.newer >= 0:
        state.requests[request.newer].older = request.older
    else:
        instance.newest = request.older
    if request.older >= 0:
        state.requests[request.older].newer = request.newer
    instance.running -= 1


@kernel
def send_next_turn(state: Any, r: int, t: float) -> None:
    """Let the turn that follows request ``r`` in its session arrive its think time after ``t``.

    ``t`` is when the answer to ``r`` reached the user. A turn whose own arrival time is later keeps
    that time.
    """
    following = state.turns[r].following
    if following < 0:
        return
    turn = state.turns[following]
    turn.ready = t + turn.think
    if turn.held:
        turn.held = 0
        state.requests[following].arrival = turn.ready
        delivery_push(state, turn.ready, following)


@kernel
def _count_completion(state: Any, p: int, r: int, e2e_s: float) -> None:
    """Count the TBT of a request that completed in pool ``p``, and whether it is late.

    ``e2e_s`` is its end-to-end latency.
    """
    request, pool = state.requests[r], state.pools[p]
    # A single output token has no gap and meets any TBT limit.
    tbt_s = 0.0
    if request.osl > 1:
        tbt_s = (request.last - request.first) / (request.osl - 1)
        pool.tbt_sum += tbt_s
        pool.tbt_n += 1
        count_latency(state, TENFOLD_TBT, p, 10 * tbt_s)
    pool.done += 1
    if tbt_s > state.tier_gap[request.tier] or e2e_s > state.tier_end[request.tier]:
        pool.late_done += 1


@kernel
def complete(state: Any, slot: int, r: int, t: float) -> None:
    """Complete request ``r`` of an instance at ``t``: free its memory and count its latencies.

    If it is a turn of a session, its next turn is sent.
    """
    request = state.requests[r]
    _leave_batch(state, slot, r)
    free_request(state, slot, r, request.isl + request.osl)
    state.instances[slot].pending -= 1
    request.last = t
    request.outcome = COMPLETED
    state.clock[0].unfinished -= 1
    pool = state.pools[state.instances[slot].pool]
    e2e_s = t + state.latency[request.home, pool.region] + pool.start_s - request.arrival
    if state.clock[0].signals:
        _count_completion(state, state.instances[slot].pool, r, e2e_s)
    if state.clock[0].sessions:
        send_next_turn(state, r, e2e_s + request.arrival)


@kernel
def _preempt_newest(state: Any, slot: int, t: float) -> None:
    """Preempt the instance's request admitted last: free its memory and put it first in its queue.

    Its KV cache is lost. At the next admission its prompt and the tokens generated so far are
    computed again.
    """
    instance = state.instances[slot]
    pool = state.pools[instance.pool]
    r = instance.newest
    request = state.requests[r]
    _leave_batch(state, slot, r)
    if r == instance.partial:
        done = request.isl + request.generated - instance.partial_left
        if pool.blocks > 0:
            cache_blocks(state, slot, r, done)
        free_request(state, slot, r, request.isl + request.generated + 1)
        instance.work += done
        instance.pending += request.cached
        instance.partial = -1
    else:
        request.generated = request.osl - (batch_finish(state, slot, r) - instance.counter)
        # The KV cache is lost with the memory, so the prompt is computed again here.
        request.carried = 0
        instance.pending += request.isl + request.generated
        batch_remove(state, slot, r)
        free_request(state, slot, r, request.isl + request.generated)
        instance.context -= request.isl + request.generated
        instance.work += request.isl + request.generated
    request.cached, request.preempted = 0, 1
    instance.queued += request.isl + request.generated
    prepend(state, slot, r, t)
    instance.waiting += 1
    pool.waiting += 1
    pool.preemptions += 1


@kernel
def take_back(state: Any, slot: int, q: int) -> int:
    """Remove the first request that waits in queue ``q`` of an instance, and return it.

    The instance's counts of waiting work no longer include it.
    """
    instance = state.instances[slot]
    pool = state.pools[instance.pool]
    r = take_head(state, slot, q)
    request = state.requests[r]
    prompt = request.isl + request.generated
    instance.waiting -= 1
    pool.waiting -= 1
    instance.queued -= prompt
    instance.pending -= 1  # ``pending`` counts one for each request, besides its prompt
    instance.work -= 1 if pool.hands_over else request.osl - request.generated
    if not request.carried:  # a carried request comes with its KV cache: its prompt is computed
        instance.pending -= prompt
        instance.work -= prompt
    return int(r)


@kernel
def reject(state: Any, r: int, reason: int, t: float) -> None:
    """Reject a request at ``t``, for a reason of ``results.REASONS``."""
    request = state.requests[r]
    request.outcome, request.reason = REJECTED, reason
    request.pool, request.first = -1, np.nan
    state.clock[0].unfinished -= 1
    if state.clock[0].sessions:
        send_next_turn(state, r, t)


@kernel
def make_room(state: Any, slot: int, t: float) -> None:
    """Free memory of an instance: preempt the request admitted last.

    If the pool does not preempt (``when_full``), reject it instead.
    """
    instance = state.instances[slot]
    pool = state.pools[instance.pool]
    newest = instance.newest
    _preempt_newest(state, slot, t)
    if pool.when_full == FAIL:
        # A rejection is not a preemption.
        pool.preemptions -= 1
        for q in range(state.queues.shape[1]):
            if state.queues[slot, q, HEAD] == newest:
                reject(state, take_back(state, slot, q), MEMORY, t)
                return


@kernel
def add_fresh(state: Any, slot: int, r: int) -> None:
    """Append ``r`` to the instance's list of requests whose prefill ends in this iteration."""
    instance = state.instances[slot]
    state.requests[r].next = -1
    if instance.fresh < 0:
        instance.fresh = r
    else:
        state.requests[instance.fresh_tail].next = r
    instance.fresh_tail = r


@kernel
def hand_over(state: Any, slot: int, r: int, t: float) -> None:
    """Queue the KV cache of request ``r`` on prefill instance ``slot``, for a decode instance.

    It passes the instance's own link and the link that the pool's instances share. The request
    leaves the batch now. Its memory is freed after the transfer.
    """
    instance, request = state.instances[slot], state.requests[r]
    pool = state.pools[instance.pool]
    _leave_batch(state, slot, r)
    tokens = request.isl + request.generated
    instance.kv -= 1
    instance.pending -= 1
    instance.sending += 1
    request.sender = slot
    request.generated += 1
    request.carried = 1
    request.cached = 0
    request.service = state.handover[request.service, DECODE_SERVICE]
    size = tokens * pool.kv_bytes
    # Both links send first come first served; the later one decides.
    start = max(t, instance.link_free, pool.shared_free)
    instance.link_free = start + size / pool.link
    pool.shared_free = start + size / pool.shared_link
    delivery_push(state, max(instance.link_free, pool.shared_free), r)


@kernel
def free_after_transfer(state: Any, r: int, t: float) -> None:
    """Free the memory of a KV cache on its prefill instance after the transfer."""
    request = state.requests[r]
    slot = request.sender
    request.sender = -1
    instance = state.instances[slot]
    settle(state, slot, t)
    free_request(state, slot, r, request.isl + request.generated - 1)
    instance.sending -= 1
    # The freed memory may let a waiting request start on an idle instance.
    if instance.iterations == 0 and instance.waiting > 0:
        schedule(state, slot, t)
    elif instance.status == DRAINING and instance.running == 0 and instance.sending == 0:
        retire(state, slot, t)
    rank(state, slot)


@kernel
def stated_cached_tokens(state: Any, r: int) -> int:
    """Return the cached tokens of ``r`` that its trace states, at most all but one of its tokens.

    An engine computes at least the last token of a prompt, even if all of it is cached.
    """
    request = state.requests[r]
    return int(min(request.known_cached, request.isl + request.generated - 1))


@kernel
def _count_hit(state: Any, slot: int, r: int, t: float) -> None:
    """Subtract the cached tokens of an admitted request from the instance's work.

    They are also counted as cache hits.
    """
    instance, request = state.instances[slot], state.requests[r]
    pool = state.pools[instance.pool]
    prompt = request.isl + request.generated
    instance.work -= request.cached
    instance.pending -= request.cached
    pool.hit_tokens += request.cached
    pool.looked_up_tokens += prompt
    pool.hits += request.cached
    pool.lookups += prompt
    add_tokens(state, S_HIT, instance.pool, t, request.cached)
    add_tokens(state, S_LOOKED_UP, instance.pool, t, prompt)


@kernel
def admit(state: Any, slot: int, q: int, cached: int, t: float) -> None:
    """Move the first request of queue ``q`` of an instance into its batch, at time ``t``.

    ``cached`` is the number of blocks of its prompt in the prefix cache. Its prompt is computed
    next, or it decodes at once if a prefill instance computed the prompt.
    """
    instance = state.instances[slot]
    pool = state.pools[instance.pool]
    r = take_head(state, slot, q)
    request = state.requests[r]
    prompt = request.isl + request.generated
    instance.waiting -= 1
    pool.waiting -= 1
    instance.queued -= prompt
    instance.kv += prompt + 1
    request.preempted = 0
    request.older, request.newer = instance.newest, -1
    if instance.newest >= 0:
        state.requests[instance.newest].newer = r
    instance.newest = r
    instance.running += 1
    # Its prompt was computed on a prefill instance, so it decodes at once.
    if request.carried:
        last_iteration = instance.counter + request.osl - request.generated
        batch_push(state, slot, last_iteration, r)
        instance.context += prompt
        return
    if pool.blocks > 0:
        request.cached = cached * pool.block_tokens
        instance.kv -= request.cached
        hold_blocks(state, slot, r, cached)
        evict_for(state, slot, instance.kv)
        _count_hit(state, slot, r, t)
    elif pool.counted_hits:
        request.cached = stated_cached_tokens(state, r)
        _count_hit(state, slot, r, t)
    instance.partial, instance.partial_left = r, prompt - request.cached


@kernel
def record_peak(state: Any, slot: int) -> None:
    """Raise the pool's peak of KV tokens on one instance to those of ``slot``, if they are more.

    ``invariants`` checks the peak.
    """
    instance = state.instances[slot]
    pool = state.pools[instance.pool]
    used = instance.kv
    if pool.blocks > 0:
        used += state.caches[slot].idle * pool.block_tokens
    pool.kv_peak = max(pool.kv_peak, used)
