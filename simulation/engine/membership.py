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
    """Remove request ``r`` from the instance's list of running ones, in order of admission."""
    instance, request = state.instances[slot], state.requests[r]
    if request.next_admitted >= 0:
        state.requests[request.next_admitted].previous_admitted = request.previous_admitted
    else:
        instance.newest_request = request.previous_admitted
    if request.previous_admitted >= 0:
        state.requests[request.previous_admitted].next_admitted = request.next_admitted
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
    turn.ready_s = t + turn.think_s
    if turn.awaits_answer:
        turn.awaits_answer = 0
        state.requests[following].arrival_s = turn.ready_s
        delivery_push(state, turn.ready_s, following)


@kernel
def _count_completion(state: Any, p: int, r: int, e2e_s: float) -> None:
    """Count the TBT of request ``r``, which completed in pool ``p``, and whether it is late.

    ``e2e_s`` is its end-to-end latency.
    """
    request, pool = state.requests[r], state.pools[p]
    # A single output token has no gap and meets any TBT limit.
    tbt_s = 0.0
    if request.osl > 1:
        tbt_s = (request.last_token_s - request.first_token_s) / (request.osl - 1)
        pool.tbt_sum += tbt_s
        pool.tbt_n += 1
        count_latency(state, TENFOLD_TBT, p, 10 * tbt_s)  # tenfold, to use the buckets of TTFT
    pool.completed += 1
    if tbt_s > state.tbt_limit_s[request.tier] or e2e_s > state.e2e_limit_s[request.tier]:
        pool.late_completed += 1


@kernel
def complete(state: Any, slot: int, r: int, t: float) -> None:
    """Complete request ``r`` of an instance at ``t``: free its memory and count its latencies.

    If it is a turn of a session, its next turn is sent.
    """
    request = state.requests[r]
    _leave_batch(state, slot, r)
    free_request(state, slot, r, request.isl + request.osl)
    state.instances[slot].pending_tokens -= 1
    request.last_token_s = t
    request.outcome = COMPLETED
    state.clock[0].unfinished -= 1
    pool = state.pools[state.instances[slot].pool]
    e2e_s = t + state.latency_s[request.home_region, pool.region] + pool.start_s - request.arrival_s
    if state.clock[0].counts_signals:
        _count_completion(state, state.instances[slot].pool, r, e2e_s)
    if state.clock[0].has_sessions:
        send_next_turn(state, r, e2e_s + request.arrival_s)


@kernel
def _preempt_newest(state: Any, slot: int, t: float) -> None:
    """Preempt the instance's request admitted last: free its memory and put it first in its queue.

    Its KV cache is lost. At the next admission its prompt and the tokens generated so far are
    computed again.
    """
    instance = state.instances[slot]
    pool = state.pools[instance.pool]
    r = instance.newest_request
    request = state.requests[r]
    _leave_batch(state, slot, r)
    if r == instance.partial_prompt:  # its prompt is not complete yet
        computed_tokens = request.isl + request.generated_tokens - instance.partial_tokens_left
        if pool.max_cache_blocks > 0:
            cache_blocks(state, slot, r, computed_tokens)
        free_request(state, slot, r, request.isl + request.generated_tokens + 1)
        instance.remaining_tokens += computed_tokens
        instance.pending_tokens += request.cached_tokens
        instance.partial_prompt = -1
    else:  # it decodes
        tokens_left = batch_finish(state, slot, r) - instance.iterations_ended
        request.generated_tokens = request.osl - tokens_left
        # The KV cache is lost with the memory, so the prompt is computed again here.
        request.kv_transferred = 0
        instance.pending_tokens += request.isl + request.generated_tokens
        batch_remove(state, slot, r)
        free_request(state, slot, r, request.isl + request.generated_tokens)
        instance.context_tokens -= request.isl + request.generated_tokens
        instance.remaining_tokens += request.isl + request.generated_tokens
    request.cached_tokens, request.preempted = 0, 1
    instance.queued_kv_tokens += request.isl + request.generated_tokens
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
    prompt_tokens = request.isl + request.generated_tokens
    instance.waiting -= 1
    pool.waiting -= 1
    instance.queued_kv_tokens -= prompt_tokens
    instance.pending_tokens -= 1  # they count one for each request, besides its prompt
    instance.remaining_tokens -= 1 if pool.hands_over else request.osl - request.generated_tokens
    if not request.kv_transferred:  # else its prompt is computed already
        instance.pending_tokens -= prompt_tokens
        instance.remaining_tokens -= prompt_tokens
    return int(r)


@kernel
def reject(state: Any, r: int, reason: int, t: float) -> None:
    """Reject request ``r`` at ``t``. ``reason`` is an index into ``results.REASONS``."""
    request = state.requests[r]
    request.outcome, request.reason = REJECTED, reason
    request.pool, request.first_token_s = -1, np.nan
    state.clock[0].unfinished -= 1
    if state.clock[0].has_sessions:
        send_next_turn(state, r, t)


@kernel
def make_room(state: Any, slot: int, t: float) -> None:
    """Free memory of an instance: preempt the request admitted last.

    If the pool does not preempt (``when_full``), reject it instead: take it out of the queue that
    the preemption put it into.
    """
    instance = state.instances[slot]
    pool = state.pools[instance.pool]
    newest = instance.newest_request
    _preempt_newest(state, slot, t)
    if pool.when_full == FAIL:
        # A rejection is not a preemption.
        pool.preemptions -= 1
        for q in range(state.queues.shape[1]):
            if state.queues[slot, q, HEAD] == newest:
                reject(state, take_back(state, slot, q), MEMORY, t)
                return


@kernel
def append_ending_prompt(state: Any, slot: int, r: int) -> None:
    """Append ``r`` to the instance's list of requests whose prefill ends in this iteration."""
    instance = state.instances[slot]
    state.requests[r].next_in_queue = -1
    if instance.ending_prompts < 0:
        instance.ending_prompts = r
    else:
        state.requests[instance.ending_prompts_tail].next_in_queue = r
    instance.ending_prompts_tail = r


@kernel
def hand_over(state: Any, slot: int, r: int, t: float) -> None:
    """Queue the KV cache of request ``r`` on prefill instance ``slot``, for a decode instance.

    It passes the instance's own link and the link that the pool's instances share. The request
    leaves the batch now. Its memory is freed after the transfer.
    """
    instance, request = state.instances[slot], state.requests[r]
    pool = state.pools[instance.pool]
    _leave_batch(state, slot, r)
    tokens = request.isl + request.generated_tokens
    instance.kv_tokens -= 1  # reserved for an output token, which has no KV cache here
    instance.pending_tokens -= 1
    instance.kv_transfers += 1
    request.sending_slot = slot
    request.generated_tokens += 1
    request.kv_transferred = 1
    request.cached_tokens = 0
    request.service = state.related_service[request.service, DECODE_SERVICE]
    cache_bytes = tokens * pool.kv_bytes_per_token
    # Both links send first come first served; the later one decides.
    start_s = max(t, instance.link_free_s, pool.shared_link_free_s)
    instance.link_free_s = start_s + cache_bytes / pool.link_bytes_s
    pool.shared_link_free_s = start_s + cache_bytes / pool.shared_link_bytes_s
    delivery_push(state, max(instance.link_free_s, pool.shared_link_free_s), r)


@kernel
def free_after_transfer(state: Any, r: int, t: float) -> None:
    """Free the memory of the KV cache of ``r`` on its prefill instance after the transfer."""
    request = state.requests[r]
    slot = request.sending_slot
    request.sending_slot = -1
    instance = state.instances[slot]
    settle(state, slot, t)
    # The token generated at the hand-over has no KV cache here.
    free_request(state, slot, r, request.isl + request.generated_tokens - 1)
    instance.kv_transfers -= 1
    # The freed memory may let a waiting request start on an idle instance.
    if instance.run_iterations == 0 and instance.waiting > 0:
        schedule(state, slot, t)
    elif instance.status == DRAINING and instance.running == 0 and instance.kv_transfers == 0:
        retire(state, slot, t)
    rank(state, slot)


@kernel
def stated_cached_tokens(state: Any, r: int) -> int:
    """Return the cached tokens of ``r`` that its trace states, at most all but one of its tokens.

    An engine computes at least the last token of a prompt, even if all of it is cached.
    """
    request = state.requests[r]
    return int(min(request.trace_cached_tokens, request.isl + request.generated_tokens - 1))


@kernel
def _count_hit(state: Any, slot: int, r: int, t: float) -> None:
    """Subtract the cached tokens of the admitted request ``r`` from the instance's work.

    They are also counted as cache hits: in the pool's totals, in its sums since the last decision
    (``hits`` and ``lookups``), and in the series.
    """
    instance, request = state.instances[slot], state.requests[r]
    pool = state.pools[instance.pool]
    prompt_tokens = request.isl + request.generated_tokens
    instance.remaining_tokens -= request.cached_tokens
    instance.pending_tokens -= request.cached_tokens
    pool.hit_tokens += request.cached_tokens
    pool.looked_up_tokens += prompt_tokens
    pool.hits += request.cached_tokens
    pool.lookups += prompt_tokens
    add_tokens(state, S_HIT, instance.pool, t, request.cached_tokens)
    add_tokens(state, S_LOOKED_UP, instance.pool, t, prompt_tokens)


@kernel
def admit(state: Any, slot: int, q: int, cached_blocks: int, t: float) -> None:
    """Move the first request of queue ``q`` of an instance into its batch, at time ``t``.

    ``cached_blocks`` is the number of blocks of its prompt in the prefix cache. Its prompt is
    computed next, or it decodes at once if a prefill instance computed the prompt. Memory is
    reserved for the prompt and one output token.
    """
    instance = state.instances[slot]
    pool = state.pools[instance.pool]
    r = take_head(state, slot, q)
    request = state.requests[r]
    prompt_tokens = request.isl + request.generated_tokens
    instance.waiting -= 1
    pool.waiting -= 1
    instance.queued_kv_tokens -= prompt_tokens
    instance.kv_tokens += prompt_tokens + 1
    request.preempted = 0
    request.previous_admitted, request.next_admitted = instance.newest_request, -1
    if instance.newest_request >= 0:
        state.requests[instance.newest_request].next_admitted = r
    instance.newest_request = r
    instance.running += 1
    if request.kv_transferred:
        last_iteration = instance.iterations_ended + request.osl - request.generated_tokens
        batch_push(state, slot, last_iteration, r)
        instance.context_tokens += prompt_tokens
        return
    if pool.max_cache_blocks > 0:
        request.cached_tokens = cached_blocks * pool.block_tokens
        instance.kv_tokens -= request.cached_tokens
        hold_blocks(state, slot, r, cached_blocks)
        evict_for(state, slot, instance.kv_tokens)
        _count_hit(state, slot, r, t)
    elif pool.trace_states_hits:
        request.cached_tokens = stated_cached_tokens(state, r)
        _count_hit(state, slot, r, t)
    instance.partial_prompt, instance.partial_tokens_left = r, prompt_tokens - request.cached_tokens


@kernel
def record_peak(state: Any, slot: int) -> None:
    """Raise the pool's peak of KV tokens on one instance to those of ``slot``, if they are more.

    ``invariants`` checks the peak.
    """
    instance = state.instances[slot]
    pool = state.pools[instance.pool]
    used = instance.kv_tokens
    if pool.max_cache_blocks > 0:
        used += state.caches[slot].idle_blocks * pool.block_tokens
    pool.kv_peak = max(pool.kv_peak, used)
