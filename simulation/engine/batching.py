"""One instance: iteration-level continuous batching with chunked prefill and paged KV memory.

An iteration gives one token to every decoding request. It spends the rest of the token budget on
prefill, first come first served. Iterations of an unchanged batch run together as one run. A batch
is unchanged if it only decodes, nothing can join or end, and memory lasts. The first iteration of a
run takes ``iteration_s`` seconds and each further one ``growth`` more, within one segment of the
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
    add_fresh,
    admit,
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
    request.first = t
    if not state.clock[0].signals:
        return
    ttft = t + state.latency[request.home, pool.region] + pool.start_s - request.arrival
    pool.ttft_sum += ttft
    pool.ttft_n += 1
    count_latency(state, TTFT, p, ttft)
    if ttft > state.tier_limit[request.tier]:
        pool.late_first += 1


@kernel
def finish_run(state: Any, slot: int, t: float) -> int:
    """End an instance's current run of iterations at ``t``; return how many requests left it.

    They completed, or move to a decode instance.
    """
    settle(state, slot, t)
    instance = state.instances[slot]
    if instance.iterations == 0:
        return 0
    pool = state.pools[instance.pool]
    # Decodes that paused did not advance.
    steps = 0 if instance.pausing else instance.iterations
    instance.counter += steps
    pool.iterations += instance.iterations
    decoded = instance.decodes * steps
    pool.outside += instance.iterations * instance.outside
    # The tokens of the first iteration were reserved by ``_reserve_decodes``.
    instance.kv += instance.decodes * (instance.iterations - 1)
    instance.context += decoded
    if pool.blocks > 0:
        evict_for(state, slot, instance.kv)
    record_peak(state, slot)
    running = instance.running  # before any request leaves
    first_tokens = 0  # prompts that end in this run return one token each
    r = instance.fresh
    while r >= 0:
        first_tokens += 1
        r = state.requests[r].next
    count_tokens(state, slot, t, decoded, first_tokens)
    instance.work -= decoded + instance.chunk + first_tokens
    instance.iterations = 0
    instance.chunk = 0

    # Decodes that have returned their last token.
    while instance.decodes > 0 and batch_first(state, slot) <= instance.counter:
        r = batch_pop(state, slot)
        instance.context -= state.requests[r].isl + state.requests[r].osl
        complete(state, slot, r, t)
    # Prompts that ended: the request completes, moves to a decode instance, or decodes here.
    r = instance.fresh
    instance.fresh = -1
    while r >= 0:
        request = state.requests[r]
        following = request.next
        generated = request.generated + 1
        instance.pending -= request.isl + request.generated - request.cached
        # A preempted request may already have returned its first token.
        if np.isnan(request.first):
            _return_first_token(state, instance.pool, r, t)
        if pool.hands_over and generated < request.osl:
            hand_over(state, slot, r, t)
        elif generated == request.osl:
            complete(state, slot, r, t)
        else:
            batch_push(state, slot, instance.counter + request.osl - generated, r)
            instance.context += request.isl + generated
        r = following
    return int(running - instance.running)


@kernel
def _reserve_decodes(state: Any, slot: int, t: float) -> bool:
    """Reserve KV memory for the next token of every decode of an instance.

    Return whether requests were preempted for it.
    """
    instance = state.instances[slot]
    pool = state.pools[instance.pool]
    preempted = False
    while instance.decodes > pool.usable - instance.kv and instance.running > 0:
        make_room(state, slot, t)
        preempted = True
    instance.kv += instance.decodes
    if pool.blocks > 0:
        evict_for(state, slot, instance.kv)
    return preempted


@kernel
def _next_to_join(state: Any, slot: int, chunk: int, left: int, t: float) -> tuple[int, int]:
    """Return the queue whose first request joins the batch now, and its number of cached blocks.

    The result is (-1, 0) if that request does not fit. ``chunk`` prompt tokens are already in the
    iteration and ``left`` tokens of the budget remain. Cached blocks need no computation. Those
    that a running request uses need no more memory either. Unused ones count as free memory.
    """
    instance = state.instances[slot]
    pool = state.pools[instance.pool]
    q = next_queue(state, slot, t)
    r = state.queues[slot, q, HEAD]
    request = state.requests[r]
    prompt = request.isl + request.generated
    free_tokens = pool.usable - instance.kv
    # An empty instance may use the watermark too, or a very large request would never fit.
    if instance.running > 0:
        free_tokens -= pool.watermark
    cached, need = 0, prompt + 1
    tokens = prompt
    if pool.blocks > 0:
        cached, held = longest_cached_prefix(state, slot, r)
        need -= held * pool.block_tokens
        tokens -= cached * pool.block_tokens
    elif pool.counted_hits:
        tokens -= stated_cached_tokens(state, r)
    undivided = pool.batching != CHUNKED and not request.carried
    if need > free_tokens or (undivided and chunk > 0 and tokens > left):
        return -1, 0
    return int(q), int(cached)


@kernel
def _prefill(state: Any, slot: int, tokens: int) -> float:
    """Compute the next ``tokens`` of the instance's current prompt.

    Return the pairs of tokens that attend to each other, which set the cost of attention.
    """
    instance = state.instances[slot]
    r = instance.partial
    request = state.requests[r]
    before = request.isl + request.generated - instance.partial_left
    instance.partial_left -= tokens
    if instance.partial_left == 0:
        if state.pools[instance.pool].blocks > 0:
            cache_blocks(state, slot, r, request.isl)
        add_fresh(state, slot, r)
        instance.partial = -1
    # Each token attends to those before the chunk, and on average to half of the chunk.
    return float(tokens * (before + 0.5 * tokens))


@kernel
def _fill_with_prompts(state: Any, slot: int, preempted: bool, t: float) -> tuple[int, int, float]:
    """Spend the token budget of an instance's next iteration on prompts, and admit requests.

    Return the remaining budget, the prompt tokens, and the token pairs of their attention. If a
    request was just ``preempted``, none is admitted.
    """
    instance = state.instances[slot]
    pool = state.pools[instance.pool]
    undivided = pool.batching != CHUNKED
    chunk, pairs = 0, 0.0
    left = pool.budget if undivided else pool.budget - instance.decodes
    while left > 0:
        if instance.partial < 0 or chunk >= pool.prompt_limit:
            if preempted or instance.running >= pool.max_batch or instance.waiting == 0:
                break
            q, cached = _next_to_join(state, slot, chunk, left, t)
            carried = q >= 0 and state.requests[state.queues[slot, q, HEAD]].carried == 1
            if q < 0 or (chunk >= pool.prompt_limit and not carried):
                break
            admit(state, slot, q, cached, t)
            if carried:  # the prompt was computed on a prefill instance
                left -= 1
                continue
        tokens = instance.partial_left
        if not undivided:
            tokens = min(left, tokens, pool.prompt_limit - chunk)
        pairs += _prefill(state, slot, tokens)
        chunk += tokens
        left -= tokens
    return int(left), int(chunk), pairs


@kernel
def _plan_run(
    state: Any, slot: int, decodes: int, chunk: int, pairs: float, preempted: bool, t: float
) -> None:
    """Plan the run of iterations that an instance begins at ``t``: their number and durations.

    The first iteration has ``decodes`` decoding sequences, ``chunk`` prompt tokens, and ``pairs``
    of tokens in their attention. Without prompts, the run goes on with the same batch until the
    batch, memory, curve segment or queue order changes. A run with prompts, or after a preemption
    (``preempted``), has one iteration.
    """
    instance = state.instances[slot]
    pool = state.pools[instance.pool]
    curve = state.curves[pool.curve]
    sequences, prompt = float(decodes), float(chunk)
    context = float(instance.context) if decodes > 0 else 0.0
    pace = instance.slowdown * pool.slowdown
    instance.run_start = t
    instance.iteration_s = pace * iteration_seconds(curve, sequences, context, prompt, pairs)
    instance.growth = 0.0
    instance.outside = not is_iteration_measured(curve, sequences, context, prompt, pairs)
    instance.chunk = chunk
    instance.iterations = 1
    if chunk == 0 and not preempted:
        # A run must end before the batch, memory, curve segment or queue order changes.
        to_finish = batch_first(state, slot) - instance.counter
        # Each iteration takes a token per decode. That of the first is reserved already.
        memory_lasts = (pool.usable - instance.kv) // decodes + 1
        growth, same_segment = decode_growth(curve, sequences, context)
        instance.growth = pace * growth
        instance.iterations = min(to_finish, memory_lasts, same_segment)
        instance.iterations = min(instance.iterations, steps_in_order(state, slot, t))


@kernel
def begin_run(state: Any, slot: int, t: float) -> None:
    """Reserve memory, admit requests, and start an instance's next run of iterations, or go idle.

    Decodes pause in an iteration with prompts if the pool computes prompts alone, or if the budget
    does not suffice for both.
    """
    instance = state.instances[slot]
    pool = state.pools[instance.pool]
    preempted = _reserve_decodes(state, slot, t)
    budget_left, prompt_tokens, pairs = _fill_with_prompts(state, slot, preempted, t)
    decodes = instance.decodes
    mixed = prompt_tokens > 0 and decodes > 0
    prompts_go_first = pool.batching == PREFILL_FIRST or decodes > budget_left
    instance.pausing = pool.batching != CHUNKED and mixed and prompts_go_first
    if instance.pausing:
        # Return the tokens that ``_reserve_decodes`` reserved for the paused decodes.
        instance.kv -= decodes
        decodes = 0
    record_peak(state, slot)
    if decodes == 0 and prompt_tokens == 0:
        instance.iterations = 0
        schedule(state, slot, np.inf)
    else:
        _plan_run(state, slot, decodes, prompt_tokens, pairs, preempted, t)
        # ``invariants`` checks that no iteration runs on an instance that is not ready.
        if (instance.status != READY and instance.status != DRAINING) or pool.down:
            pool.too_early += 1
        schedule(state, slot, iteration_end(instance, instance.iterations))
    rank(state, slot)
