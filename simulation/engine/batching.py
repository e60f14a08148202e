"""One instance: iteration-level continuous batching with chunked prefill and paged KV memory.

An iteration gives one token to every decoding request. It spends the rest of the token budget on
prefill, first come first served. Iterations of an unchanged batch run together as one run. A batch
is unchanged if it only decodes, nothing can join or end, and memory lasts. The first iteration of a
run takes ``iteration_s`` seconds and each further one ``growth_s`` more, within one segment of the
profile's curve.

Tokens are not counted per request. A request stores the number of the iteration that will end it,
and the instance counts iterations. So a step costs O(1) and a completion O(log batch). How requests
join and leave a batch, and their memory, is in ``simulation.engine.membership``.

A pool may use another order (``fleet.BATCHING``). With prompts first, decodes that pause in an
iteration do not count it.
"""

from typing import Any

import numpy as np

from simulation.compiler import kernel
from simulation.engine.accounting import count_tokens, settle
from simulation.engine.heaps import batch_first, batch_pop, batch_push, schedule
from simulation.engine.membership import (
    admit,
    append_ending_prompt,
    complete,
    hand_over,
    make_room,
    record_peak,
    stated_cached_tokens,
)
from simulation.engine.prefix import cache_blocks, evict_for, longest_cached_prefix
from simulation.engine.progress import iteration_end
from simulation.engine.queues import next_queue, steps_in_order
from simulation.engine.routing_order import rank
from simulation.engine.signals import TTFT, count_latency
from simulation.engine.state import HEAD
from simulation.fleet import BATCHING
from simulation.lifecycle import DRAINING, READY
from simulation.performance.curves import decode_growth, is_iteration_measured, iteration_seconds

CHUNKED, PREFILL_FIRST = BATCHING.index("chunked"), BATCHING.index("alone")


@kernel
def _return_first_token(state: Any, p: int, r: int, t: float) -> None:
    """Record the first token of request ``r``, which an instance of pool ``p`` returns at ``t``.

    For a policy that reads signals, its TTFT and whether it is late are counted.
    """
    request, pool = state.requests[r], state.pools[p]
    request.first_token_s = t
    if not state.clock[0].counts_signals:
        return
    ttft = t + state.latency_s[request.home_region, pool.region] + pool.start_s - request.arrival_s
    pool.ttft_sum += ttft
    pool.ttft_n += 1
    count_latency(state, TTFT, p, ttft)
    if ttft > state.ttft_limit_s[request.tier]:
        pool.late_first_tokens += 1


@kernel
def finish_run(state: Any, slot: int, t: float) -> int:
    """End an instance's current run of iterations at ``t``; return how many requests left it.

    They completed, or move to a decode instance. ``remaining_tokens`` of an instance are prompt and
    output tokens to compute, ``pending_tokens`` the prompt tokens among them and one per request.
    ``context_tokens`` are those that its decodes attend to.
    """
    settle(state, slot, t)
    instance = state.instances[slot]
    if instance.run_iterations == 0:
        return 0
    pool = state.pools[instance.pool]
    # Decodes that paused did not advance.
    decode_steps = 0 if instance.decodes_pause else instance.run_iterations
    instance.iterations_ended += decode_steps
    pool.iterations += instance.run_iterations
    decoded_tokens = instance.decodes * decode_steps
    pool.outside += instance.run_iterations * instance.is_unmeasured
    # The tokens of the first iteration were reserved by ``_reserve_decodes``.
    instance.kv_tokens += instance.decodes * (instance.run_iterations - 1)
    instance.context_tokens += decoded_tokens
    if pool.max_cache_blocks > 0:
        evict_for(state, slot, instance.kv_tokens)
    record_peak(state, slot)
    running_before = instance.running
    first_tokens = 0  # prompts that end in this run return one token each
    r = instance.ending_prompts
    while r >= 0:
        first_tokens += 1
        r = state.requests[r].next_in_queue
    count_tokens(state, slot, t, decoded_tokens, first_tokens)
    instance.remaining_tokens -= decoded_tokens + instance.prefill_tokens + first_tokens
    instance.run_iterations = 0
    instance.prefill_tokens = 0

    # Decodes that have returned their last token.
    while instance.decodes > 0 and batch_first(state, slot) <= instance.iterations_ended:
        r = batch_pop(state, slot)
        instance.context_tokens -= state.requests[r].isl + state.requests[r].osl
        complete(state, slot, r, t)
    # Prompts that ended: the request completes, moves to a decode instance, or decodes here.
    r = instance.ending_prompts
    instance.ending_prompts = -1
    while r >= 0:
        request = state.requests[r]
        next_request = request.next_in_queue
        generated_tokens = request.generated_tokens + 1
        instance.pending_tokens -= request.isl + request.generated_tokens - request.cached_tokens
        # A preempted request may already have returned its first token.
        if np.isnan(request.first_token_s):
            _return_first_token(state, instance.pool, r, t)
        if pool.hands_over and generated_tokens < request.osl:
            hand_over(state, slot, r, t)
        elif generated_tokens == request.osl:
            complete(state, slot, r, t)
        else:
            batch_push(state, slot, instance.iterations_ended + request.osl - generated_tokens, r)
            instance.context_tokens += request.isl + generated_tokens
        r = next_request
    return int(running_before - instance.running)


@kernel
def _reserve_decodes(state: Any, slot: int, t: float) -> bool:
    """Reserve KV memory for the next token of every decode of an instance.

    Return whether requests were preempted for it.
    """
    instance = state.instances[slot]
    pool = state.pools[instance.pool]
    preempted = False
    while instance.decodes > pool.usable_kv_tokens - instance.kv_tokens and instance.running > 0:
        make_room(state, slot, t)
        preempted = True
    instance.kv_tokens += instance.decodes
    if pool.max_cache_blocks > 0:
        evict_for(state, slot, instance.kv_tokens)
    return preempted


@kernel
def _next_to_join(
    state: Any, slot: int, planned_tokens: int, budget_left: int, t: float
) -> tuple[int, int]:
    """Return the queue whose first request joins the batch now, and its number of cached blocks.

    The result is (-1, 0) if that request does not fit. ``planned_tokens`` prompt tokens are already
    in the iteration, and ``budget_left`` tokens of the budget remain. Cached blocks need no
    computation. Those that a running request uses need no more memory either. Unused ones count as
    free memory.
    """
    instance = state.instances[slot]
    pool = state.pools[instance.pool]
    q = next_queue(state, slot, t)
    r = state.queues[slot, q, HEAD]
    request = state.requests[r]
    prompt_tokens = request.isl + request.generated_tokens
    free_tokens = pool.usable_kv_tokens - instance.kv_tokens
    # An empty instance may use the watermark too, or a very large request would never fit.
    if instance.running > 0:
        free_tokens -= pool.watermark_tokens
    cached_blocks, needed_tokens = 0, prompt_tokens + 1
    uncached_tokens = prompt_tokens
    if pool.max_cache_blocks > 0:
        cached_blocks, used_blocks = longest_cached_prefix(state, slot, r)
        needed_tokens -= used_blocks * pool.block_tokens
        uncached_tokens -= cached_blocks * pool.block_tokens
    elif pool.trace_states_hits:
        uncached_tokens -= stated_cached_tokens(state, r)
    # A prompt that is not divided joins others only if the budget suffices for all of it.
    undivided = pool.batching != CHUNKED and not request.kv_transferred
    exceeds_budget = undivided and planned_tokens > 0 and uncached_tokens > budget_left
    if needed_tokens > free_tokens or exceeds_budget:
        return -1, 0
    return int(q), int(cached_blocks)


@kernel
def _prefill(state: Any, slot: int, tokens: int) -> float:
    """Compute the next ``tokens`` of the instance's current prompt.

    Return the pairs of tokens that attend to each other, which set the cost of attention.
    """
    instance = state.instances[slot]
    r = instance.partial_prompt
    request = state.requests[r]
    computed_tokens = request.isl + request.generated_tokens - instance.partial_tokens_left
    instance.partial_tokens_left -= tokens
    if instance.partial_tokens_left == 0:
        if state.pools[instance.pool].max_cache_blocks > 0:
            cache_blocks(state, slot, r, request.isl)
        append_ending_prompt(state, slot, r)
        instance.partial_prompt = -1
    # Each token attends to those before the chunk, and on average to half of the chunk.
    return float(tokens * (computed_tokens + 0.5 * tokens))


@kernel
def _fill_with_prompts(state: Any, slot: int, preempted: bool, t: float) -> tuple[int, int, float]:
    """Spend the token budget of an instance's next iteration on prompts, and admit requests.

    Return the remaining budget, the prompt tokens, and the token pairs of their attention. If a
    request was just ``preempted``, none is admitted.
    """
    instance = state.instances[slot]
    pool = state.pools[instance.pool]
    undivided = pool.batching != CHUNKED
    prompt_tokens, attention_pairs = 0, 0.0
    budget_left = pool.token_budget if undivided else pool.token_budget - instance.decodes
    while budget_left > 0:
        if instance.partial_prompt < 0 or prompt_tokens >= pool.prompt_limit_tokens:
            if preempted or instance.running >= pool.max_batch or instance.waiting == 0:
                break
            queue, cached_blocks = _next_to_join(state, slot, prompt_tokens, budget_left, t)
            if queue < 0:
                break
            kv_transferred = state.requests[state.queues[slot, queue, HEAD]].kv_transferred
            if prompt_tokens >= pool.prompt_limit_tokens and not kv_transferred:
                break
            admit(state, slot, queue, cached_blocks, t)
            if kv_transferred:  # the prompt was computed on a prefill instance
                budget_left -= 1
                continue
        tokens = instance.partial_tokens_left
        if not undivided:
            tokens = min(budget_left, tokens, pool.prompt_limit_tokens - prompt_tokens)
        attention_pairs += _prefill(state, slot, tokens)
        prompt_tokens += tokens
        budget_left -= tokens
    return int(budget_left), int(prompt_tokens), attention_pairs


@kernel
def _plan_run(
    state: Any,
    slot: int,
    decodes: int,
    prefill_tokens: int,
    pairs: float,
    preempted: bool,
    t: float,
) -> None:
    """Plan the run of iterations that an instance begins at ``t``: their number and durations.

    The first iteration has ``decodes`` decoding sequences and ``prefill_tokens``, which attend to
    each other in ``pairs`` of tokens. Without prompts, the run goes on with the same
    batch until the batch, memory, curve segment or queue order changes. A run with prompts, or
    after a preemption (``preempted``), has one iteration.
    """
    instance = state.instances[slot]
    pool = state.pools[instance.pool]
    curve = state.curves[pool.curve]
    sequences, prompt = float(decodes), float(prefill_tokens)
    context = float(instance.context_tokens) if decodes > 0 else 0.0
    slowdown = instance.slowdown * pool.slowdown
    instance.run_start_s = t
    instance.iteration_s = slowdown * iteration_seconds(curve, sequences, context, prompt, pairs)
    instance.growth_s = 0.0
    instance.is_unmeasured = not is_iteration_measured(curve, sequences, context, prompt, pairs)
    instance.prefill_tokens = prefill_tokens
    instance.run_iterations = 1
    if prefill_tokens == 0 and not preempted:
        # A run must end before the batch, memory, curve segment or queue order changes.
        to_finish = batch_first(state, slot) - instance.iterations_ended
        # Each iteration takes a token per decode. That of the first is reserved already.
        memory_lasts = (pool.usable_kv_tokens - instance.kv_tokens) // decodes + 1
        growth, segment_lasts = decode_growth(curve, sequences, context)
        instance.growth_s = slowdown * growth
        instance.run_iterations = min(to_finish, memory_lasts, segment_lasts)
        instance.run_iterations = min(instance.run_iterations, steps_in_order(state, slot, t))


@kernel
def begin_run(state: Any, slot: int, t: float) -> None:
    """Reserve memory, admit requests, and start an instance's next run of iterations, or go idle.

    Decodes pause in an iteration with prompts if the pool computes prompts alone, or if the budget
    does not suffice for both.
    """
    instance = state.instances[slot]
    pool = state.pools[instance.pool]
    preempted = _reserve_decodes(state, slot, t)
    budget_left, prompt_tokens, attention_pairs = _fill_with_prompts(state, slot, preempted, t)
    decodes = instance.decodes
    mixed = prompt_tokens > 0 and decodes > 0
    prompts_go_first = pool.batching == PREFILL_FIRST or decodes > budget_left
    instance.decodes_pause = pool.batching != CHUNKED and mixed and prompts_go_first
    if instance.decodes_pause:
        # Return the tokens that ``_reserve_decodes`` reserved for the paused decodes.
        instance.kv_tokens -= decodes
        decodes = 0
    record_peak(state, slot)
    if decodes == 0 and prompt_tokens == 0:
        instance.run_iterations = 0
        schedule(state, slot, np.inf)
    else:
        _plan_run(state, slot, decodes, prompt_tokens, attention_pairs, preempted, t)
        # ``invariants`` checks that no iteration runs on an instance that is not ready.
        if (instance.status != READY and instance.status != DRAINING) or pool.outages:
            pool.too_early += 1
        schedule(state, slot, iteration_end(instance, instance.run_iterations))
    rank(state, slot)
