"""Replay the requests of several models on one GPU, compiled.

The GPU runs one iteration of one model at a time, with chunked prefill and continuous batching as
``simulation.engine.batching``. A sequence reserves the KV cache of its prompt and its answer.

Models that share by memory (``pinned``) all keep their weights on the GPU, and KV caches share the
rest. Models that share by time move to the host when they must give way, weights and KV cache. A
load takes ``switch_s``, plus the bytes over the bandwidth of the host's link, or of the disk if the
host's memory lacks the weights. The link is duplex. The least recently used model leaves first, on
the GPU and on the host.

If all models with work are on the GPU, they take turns by iteration. Else a model keeps the GPU for
a *turn*. Its length follows Aegaeon's decoding (SOSP 2025, doi 10.1145/3731569.3764815). With c the
seconds of all loads of a round and n the TBT limit over the seconds of an iteration,

    turn = c / (n (alpha - sum 1/n)),   alpha = max(c / (min n * MOST_TURN_S) + sum 1/n, 1/2)

The model with the earliest deadline is next. A prompt that would miss its TTFT otherwise comes at
once. With ``whole_requests``, requests are not interrupted: a model leaves when its batch is done.

With ``overlap``, the model that runs goes on while the weights of the next one load, if the memory
has room for both. One load is under way at a time. It is given up if a prompt needs its memory.
"""

import numpy as np

from simulation.compiler import cached_kernel, kernel
from simulation.performance.curves import decode_growth, iteration_seconds
from simulation.sharing.gpu_state import State
from simulation.sharing.turns import choose, has_work, load_seconds, turn_seconds, yield_time


@kernel
def _evict(state: State, keep: int, only_idle: bool) -> float:
    """Take the least recently used model other than ``keep`` off the GPU.

    With ``only_idle``, it must be a model without work. Return the bytes of KV cache that move to
    the host; -1: no model can leave.
    """
    evicted, oldest_s = -1, np.inf
    for other in range(state.models.size):
        model = state.models[other]
        if other == keep or not model.resident or (only_idle and has_work(state, other)):
            continue
        if model.last_used_s < oldest_s:
            evicted, oldest_s = other, model.last_used_s
    if evicted < 0:
        return -1.0
    model = state.models[evicted]
    model.resident = False
    state.gpu[0].used_bytes -= model.weight_bytes + model.reserved_bytes
    return float(model.context * model.kv_token_bytes)


@kernel
def _keep_on_host(state: State, m: int) -> None:
    """Keep the weights of model ``m`` in the host's memory, if it is large enough for them.

    If it is full, the weights of the least recently used models leave it.
    """
    gpu, model = state.gpu[0], state.models[m]
    if model.hosted or model.weight_bytes > gpu.host_bytes:
        return
    while gpu.hosted_bytes + model.weight_bytes > gpu.host_bytes:
        evicted, oldest_s = -1, np.inf
        for other in range(state.models.size):
            if state.models[other].hosted and state.models[other].last_used_s < oldest_s:
                evicted, oldest_s = other, state.models[other].last_used_s
        state.models[evicted].hosted = False
        gpu.hosted_bytes -= state.models[evicted].weight_bytes
    model.hosted = True
    gpu.hosted_bytes += model.weight_bytes


@kernel
def _make_room(state: State, m: int, keep: int) -> float:
    """Reserve GPU memory for model ``m`` and return the seconds that its load takes.

    The least recently used models leave for it, but not ``keep``, which runs during the load. With
    ``keep`` equal to ``m``, none runs then. If memory does not suffice even without them, the
    result is -1, or ``m`` loads all the same if none runs.
    """
    gpu, model = state.gpu[0], state.models[m]
    seconds = load_seconds(state, m)
    needed_bytes = model.weight_bytes + model.reserved_bytes
    moved_bytes = 0.0  # KV cache that leaves while the weights come
    while gpu.used_bytes + needed_bytes > gpu.memory_bytes:
        kv_bytes = _evict(state, keep, False)
        if kv_bytes < 0.0:
            if keep != m:
                return -1.0
            break
        moved_bytes += kv_bytes
    gpu.used_bytes += needed_bytes
    return float(max(seconds, gpu.switch_s + moved_bytes / gpu.host_bytes_s))


@kernel
def _give_up_load(state: State) -> None:
    """Cancel the load of a model while another one runs, and free its memory."""
    gpu = state.gpu[0]
    if gpu.loading >= 0:
        model = state.models[gpu.loading]
        gpu.used_bytes -= model.weight_bytes + model.reserved_bytes
        gpu.loading = -1


@kernel
def _load(state: State, m: int, now_s: float) -> float:
    """Bring model ``m`` onto the GPU and return the seconds from ``now_s`` until it is there."""
    gpu, model = state.gpu[0], state.models[m]
    if gpu.loading == m:
        seconds = max(0.0, gpu.loaded_at - now_s)
        gpu.loading = -1
    else:
        _give_up_load(state)
        seconds = _make_room(state, m, m)
    model.resident = True
    _keep_on_host(state, m)
    model.loads += 1
    model.load_s += seconds
    return float(seconds)


@kernel
def _model_to_run(state: State, m: int, now_s: float) -> int:
    """Return the model to run at ``now_s`` if model ``m`` is to be next.

    It is ``m``, or with ``overlap`` the present model while ``m`` loads. If a load has ended, it is
    the model that was loaded.
    """
    gpu = state.gpu[0]
    if gpu.loading >= 0 and now_s >= gpu.loaded_at:
        return int(gpu.loading)
    current = gpu.current
    may_go_on = gpu.overlap and current >= 0 and not state.models[m].resident
    if m == current or not may_go_on or not has_work(state, current):
        return int(m)
    if gpu.loading < 0 and state.models[current].resident:
        seconds = _make_room(state, m, current)
        if seconds >= 0.0:
            gpu.loading, gpu.loaded_at = m, now_s + seconds
    if gpu.loading < 0 or now_s >= gpu.loaded_at:
        return int(m)
    gpu.turn_end_s = gpu.loaded_at
    return int(current)


@kernel
def _admit(state: State, m: int, alone: bool) -> bool:
    """Admit the next prompt of model ``m``; return False if there is no memory for it.

    Memory is reserved for its prompt and answer. Other models without work are evicted for it. With
    ``alone`` (no other request of model ``m`` runs), models with work are evicted too.
    """
    gpu, model = state.gpu[0], state.models[m]
    number = model.head
    request = state.requests[number]
    needed_bytes = (request.isl + request.osl) * model.kv_token_bytes
    while gpu.used_bytes + needed_bytes > gpu.memory_bytes:
        if gpu.loading >= 0:
            _give_up_load(state)
            continue
        # A model with work gives way only if nothing of model ``m`` could run otherwise. Below 0:
        # no model could be evicted.
        if gpu.pinned or _evict(state, m, not alone) < 0.0:
            model.blocked = alone
            return False
    gpu.used_bytes += needed_bytes
    model.reserved_bytes += needed_bytes
    model.head = request.next_waiting
    model.waiting -= 1
    model.prefilling = number
    model.prompt_left = request.prompt
    return True


@kernel
def _count_late(state: State, number: int) -> None:
    """Count request ``number`` as late, once. The replay fails if its group then has too many."""
    request = state.requests[number]
    if not request.late:
        request.late = True
        group = request.group
        state.missed[group] += 1
        if state.missed[group] > state.allowed[group]:
            state.gpu[0].failed = 1


@kernel
def _complete(state: State, m: int, number: int, now_s: float) -> None:
    """End request ``number`` of model ``m`` at ``now_s`` and free its memory.

    Prompts of all models may be admitted again.
    """
    model, request = state.models[m], state.requests[number]
    request.end_s = now_s
    reserved_bytes = (request.isl + request.osl) * model.kv_token_bytes
    model.reserved_bytes -= reserved_bytes
    state.gpu[0].used_bytes -= reserved_bytes
    for other in state.models:
        other.blocked = False
    gaps = request.osl - 1
    too_late = now_s - request.arrival_s > request.e2e
    mean_gap_s = (now_s - request.first_s) / gaps if gaps > 0 else 0.0
    if too_late or (gaps > 0 and mean_gap_s > request.tbt):
        _count_late(state, number)


@kernel
def _count_iterations_until(
    first_s: float, growth_s: float, most: int, until_s: float, to_first_after: bool
) -> int:
    """Return how many of ``most`` iterations end by ``until_s`` seconds from now, at least one.

    The first iteration takes ``first_s``. Each further one takes ``growth_s`` more than the one
    before. With ``to_first_after``, the first that ends at or after ``until_s`` counts too.
    """
    # The end rises with the number of iterations, so bisection finds it.
    low, high = 0, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        end_s = middle * first_s + 0.5 * growth_s * middle * (middle - 1)
        if end_s < until_s or (end_s == until_s and not to_first_after):
            low = middle
        else:
            high = middle
    return int(max(1, min(most, low + to_first_after)))


@kernel
def _fill_with_prompts(state: State, m: int, others: bool) -> tuple[int, int, float]:
    """Spend the token budget of an iteration on prompts of model ``m``.

    ``others`` states that other models have work. With ``whole_requests``, a batch that runs
    already then admits no more. Return the number of prompts that end, the prompt tokens, and the
    token pairs of their attention.
    """
    gpu, model = state.gpu[0], state.models[m]
    budget_left, chunk, pairs, ended = model.budget - model.running, 0, 0.0, 0
    admits_no_more = gpu.whole_requests and others and gpu.turn_begins == 0
    while budget_left > 0:
        if model.prefilling < 0:
            in_batch = model.running + ended
            if in_batch >= model.max_batch or model.waiting == 0:
                break
            if admits_no_more and in_batch > 0:
                break
            if not _admit(state, m, in_batch == 0):
                break
        number = model.prefilling
        tokens = min(budget_left, model.prompt_left)
        pairs += tokens * (state.requests[number].isl - model.prompt_left + 0.5 * tokens)
        model.prompt_left -= tokens
        chunk += tokens
        budget_left -= tokens
        if model.prompt_left == 0:
            state.batch[m, model.running + ended] = number
            ended += 1
            model.prefilling = -1
    return ended, chunk, pairs


@kernel
def _decode_iterations(
    state: State, m: int, now_s: float, iteration_s: float, until_s: float
) -> tuple[int, float]:
    """Return how many decode iterations of model ``m`` run with an unchanged batch from ``now_s``.

    The second value is by how many seconds each takes longer than the one before; the first takes
    ``iteration_s``. The batch is unchanged until a sequence ends, a request arrives, or the GPU
    changes models at time ``until_s``. Nor may the growth change, which holds within a segment of
    the profile's curve.
    """
    gpu, model = state.gpu[0], state.models[m]
    iterations = state.requests[state.batch[m, 0]].tokens_left
    for i in range(1, model.running):
        iterations = min(iterations, state.requests[state.batch[m, i]].tokens_left)
    growth_s, with_equal_growth = decode_growth(
        state.curves[m], float(model.running), float(model.context)
    )
    iterations = min(iterations, with_equal_growth)
    if gpu.next < state.requests.size:
        # A request may join after the iteration in which it arrives.
        arrives_in_s = state.requests[gpu.next].arrival_s - now_s
        iterations = _count_iterations_until(iteration_s, growth_s, iterations, arrives_in_s, True)
    # Models change at the last boundary before ``until_s``.
    iterations = _count_iterations_until(iteration_s, growth_s, iterations, until_s - now_s, False)
    return iterations, growth_s


@kernel
def _finish_iterations(state: State, m: int, prompts: int, iterations: int, end_s: float) -> None:
    """Count the tokens of the ``iterations`` that model ``m`` ran until time ``end_s``.

    ``prompts`` requests got their first token. Requests with all their tokens leave the batch.
    """
    model = state.models[m]
    decodes, unfinished = model.running, 0
    model.context += iterations * decodes
    # The batch has the decoding requests first, then those with a first token.
    for i in range(decodes + prompts):
        number = state.batch[m, i]
        request = state.requests[number]
        if i < decodes:
            request.tokens_left -= iterations
        else:
            request.first_s = end_s
            request.tokens_left = request.osl - 1
            model.context += request.isl + 1
            if end_s - request.arrival_s > request.ttft:
                _count_late(state, number)
        if request.tokens_left == 0:
            model.context -= request.isl + request.osl
            _complete(state, m, number, end_s)
        else:
            state.batch[m, unfinished] = number
            unfinished += 1
    model.running = unfinished


@kernel
def _run(state: State, m: int, now_s: float) -> float:
    """Run iterations of model ``m`` from ``now_s`` on; return their end (``now_s`` if none ran)."""
    model = state.models[m]
    others, gives_way_s = yield_time(state, m, now_s)
    prompts, chunk, pairs = _fill_with_prompts(state, m, others)
    decodes, context = float(model.running), float(model.context)
    if decodes == 0 and chunk == 0:
        return now_s
    iteration_s = iteration_seconds(state.curves[m], decodes, context, float(chunk), pairs)
    iterations, growth_s = 1, 0.0
    if chunk == 0:
        until_s = gives_way_s if others and not state.gpu[0].whole_requests else np.inf
        iterations, growth_s = _decode_iterations(state, m, now_s, iteration_s, until_s)
    seconds = iterations * iteration_s + 0.5 * growth_s * iterations * (iterations - 1)
    model.busy_s += seconds
    model.last_used_s = now_s + seconds
    _finish_iterations(state, m, prompts, iterations, now_s + seconds)
    return float(now_s + seconds)


@kernel
def _queue_arrivals(state: State, now_s: float) -> None:
    """Append the requests that arrived by ``now_s`` to their models' queues (linked lists)."""
    gpu = state.gpu[0]
    while gpu.next < state.requests.size and state.requests[gpu.next].arrival_s <= now_s:
        number = gpu.next
        gpu.next += 1
        model = state.models[state.requests[number].model]
        state.requests[number].next_waiting = -1
        if model.waiting == 0:
            model.head = number
        else:
            state.requests[model.tail].next_waiting = number
        model.tail = number
        model.waiting += 1


@cached_kernel
def replay(state: State) -> float:
    """Replay all requests and return the time of the last event.

    The replay ends early once a group has missed its limits more often than ``allowed``.
    """
    gpu = state.gpu[0]
    now_s = 0.0
    while True:
        _queue_arrivals(state, now_s)
        if gpu.failed:
            return now_s
        m = choose(state, now_s)
        if m < 0:
            if gpu.next == state.requests.size:
                return now_s
            now_s = state.requests[gpu.next].arrival_s
            continue
        m = _model_to_run(state, m, now_s)
        if m != gpu.current:
            gpu.current, gpu.turn_begins = m, 1
            if not state.models[m].resident:
                now_s += _load(state, m, now_s)
            gpu.turn_end_s = now_s + turn_seconds(state, m)
            continue  # requests may have arrived during the load
        if not state.models[m].resident:
            now_s += _load(state, m, now_s)
        end_s = _run(state, m, now_s)
        gpu.turn_begins = 0
        if end_s == now_s and not state.models[m].blocked:
            return now_s  # an iteration without an end would never stop
        now_s = end_s
