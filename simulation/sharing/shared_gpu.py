"""Replay the requests of several models on one GPU, compiled.

The GPU runs one iteration of one model at a time, with chunked prefill and continuous batching as
``simulation.engine.batching``. A sequence reserves the KV cache of its prompt and its answer.

By memory (``pinned``), all weights stay on the GPU and KV caches share the rest. By time, weights
and KV caches of models that must give way move to the host. A load takes ``switch_s``, plus the
bytes over the bandwidth of the host's link, or of the disk if the host's memory lacks the weights.
The link is duplex. What waits longest leaves first, on the GPU and on the host.

If all models with work are on the GPU, they take turns by iteration. Else a model keeps the GPU for
a turn. Its length follows Aegaeon's decoding (SOSP 2025, doi 10.1145/3731569.3764815). With c the
seconds of all loads of a round and n the TBT limit over the seconds of an iteration,

    turn = c / (n (alpha - sum 1/n)),   alpha = max(c / (min n * MOST_TURN_S) + sum 1/n, 1/2)

The model with the earliest deadline is next. A prompt that would miss its TTFT otherwise comes at
once. With ``whole``, requests are not interrupted: a model leaves when its batch is done.

With ``overlap``, the model that runs goes on while the weights of the next one load, if the memory
has room for both. One load is under way at a time. It is given up if a prompt needs its memory.
"""

import numpy as np

from simulation.compiler import cached_kernel, kernel
from simulation.performance.curves import decode_growth, iteration_seconds
from simulation.sharing.gpu_state import State
from simulation.sharing.turns import choose, has_work, load_seconds, turn, wake_time


@kernel
def _evict(state: State, keep: int, idle: bool) -> float:
    """Take the least recently used model other than ``keep`` off the GPU.

    With ``idle``, only a model without requests may go. Returns the bytes of KV cache that move to
    the host; -1 if no model can go.
    """
    evicted = -1
    for j in range(state.models.size):
        may_go = j != keep and state.models[j].resident and not (idle and has_work(state, j))
        if may_go and (evicted < 0 or state.models[j].used_at < state.models[evicted].used_at):
            evicted = j
    if evicted < 0:
        return -1.0
    state.models[evicted].resident = False
    state.gpu[0].used -= state.models[evicted].weights + state.models[evicted].reserved
    return float(state.models[evicted].context * state.models[evicted].kv)


@kernel
def _keep_on_host(state: State, m: int) -> None:
    """Keep the weights of model ``m`` in the host's memory, if it is large enough for them.

    If it is full, the weights of the least recently used models leave it.
    """
    if state.models[m].hosted or state.models[m].weights > state.gpu[0].host:
        return
    while state.gpu[0].hosted + state.models[m].weights > state.gpu[0].host:
        evicted = -1
        for j in range(state.models.size):
            if state.models[j].hosted and (
                evicted < 0 or state.models[j].used_at < state.models[evicted].used_at
            ):
                evicted = j
        state.models[evicted].hosted = False
        state.gpu[0].hosted -= state.models[evicted].weights
    state.models[m].hosted = True
    state.gpu[0].hosted += state.models[m].weights


@kernel
def _make_room(state: State, m: int, keep: int) -> float:
    """Reserve GPU memory for model ``m`` and return the seconds that its load takes.

    The least recently used models leave, but not ``keep``. -1: there is not enough memory even so.
    """
    seconds = load_seconds(state, m)
    need = state.models[m].weights + state.models[m].reserved
    evicted = 0.0
    while state.gpu[0].used + need > state.gpu[0].room:
        kv = _evict(state, keep, False)
        if kv < 0.0:
            if keep != m:
                return -1.0
            break
        evicted += kv
    state.gpu[0].used += need
    return float(max(seconds, state.gpu[0].switch_s + evicted / state.gpu[0].host_bytes_s))


@kernel
def _give_up_load(state: State) -> None:
    """Cancel the load of a model while another one runs, and free its memory."""
    m = state.gpu[0].coming
    if m >= 0:
        state.gpu[0].used -= state.models[m].weights + state.models[m].reserved
        state.gpu[0].coming = -1


@kernel
def _load(state: State, m: int, t: float) -> float:
    """Bring model ``m`` onto the GPU and return the seconds from ``t`` until it is there."""
    if state.gpu[0].coming == m:
        seconds = max(0.0, state.gpu[0].coming_at - t)
        state.gpu[0].coming = -1
    else:
        _give_up_load(state)
        seconds = _make_room(state, m, m)
    state.models[m].resident = True
    _keep_on_host(state, m)
    state.models[m].loads += 1
    state.models[m].load_s += seconds
    return float(seconds)


@kernel
def _during_loads(state: State, m: int, t: float) -> int:
    """Return the model to run at ``t`` if model ``m`` is to be next.

    It is ``m``, or with ``overlap`` the present model while ``m`` loads. A load that is done
    decides first: its model runs.
    """
    if state.gpu[0].coming >= 0 and t >= state.gpu[0].coming_at:
        return int(state.gpu[0].coming)
    now = state.gpu[0].current
    may_go_on = state.gpu[0].overlap and now >= 0 and not state.models[m].resident
    if m == now or not may_go_on or not has_work(state, now):
        return int(m)
    if state.gpu[0].coming < 0 and state.models[now].resident:
        seconds = _make_room(state, m, now)
        if seconds >= 0.0:
            state.gpu[0].coming, state.gpu[0].coming_at = m, t + seconds
    if state.gpu[0].coming < 0 or t >= state.gpu[0].coming_at:
        return int(m)
    state.gpu[0].turn_end = state.gpu[0].coming_at
    return int(now)


@kernel
def _admit(state: State, m: int, alone: bool) -> bool:
    """Admit the next prompt of model ``m``; return False if there is no memory for it.

    Memory is reserved for its prompt and answer. Other models are evicted for it: those without
    work, or any if ``alone``, which means that nothing of model ``m`` runs.
    """
    r = state.models[m].head
    need = (state.requests[r].isl + state.requests[r].osl) * state.models[m].kv
    while state.gpu[0].used + need > state.gpu[0].room:
        if state.gpu[0].coming >= 0:
            _give_up_load(state)
            continue
        # A model with work gives way only if nothing of model ``m`` could run otherwise.
        if state.gpu[0].pinned or _evict(state, m, not alone) < 0.0:
            state.models[m].blocked = alone
            return False
    state.gpu[0].used += need
    state.models[m].reserved += need
    state.models[m].head = state.requests[r].after
    state.models[m].waiting -= 1
    state.models[m].partial = r
    state.models[m].partial_left = state.requests[r].prompt
    return True


@kernel
def _miss(state: State, r: int) -> None:
    """Count request ``r`` as late, once; the replay fails if its group has too many late ones."""
    if not state.requests[r].late:
        state.requests[r].late = True
        group = state.requests[r].group
        state.missed[group] += 1
        if state.missed[group] > state.allowed[group]:
            state.gpu[0].failed = 1


@kernel
def _complete(state: State, m: int, r: int, t: float) -> None:
    """End request ``r`` of model ``m`` at ``t`` and free its memory, for prompts of any model."""
    state.requests[r].end = t
    need = (state.requests[r].isl + state.requests[r].osl) * state.models[m].kv
    state.models[m].reserved -= need
    state.gpu[0].used -= need
    for j in range(state.models.size):
        state.models[j].blocked = False
    gaps = state.requests[r].osl - 1
    if t - state.requests[r].arrival > state.requests[r].e2e or (
        gaps > 0 and (t - state.requests[r].first) / gaps > state.requests[r].tbt
    ):
        _miss(state, r)


@kernel
def _iterations(dt: float, growth: float, most: int, until: float, pass_over: bool) -> int:
    """Return how many of ``most`` iterations end by ``until`` (seconds from now), at least one.

    The first takes ``dt`` seconds, each further one ``growth`` more. With ``pass_over``, the first
    that ends at or after ``until`` counts too.
    """
    low, high = 0, most + 1
    while high - low > 1:
        k = (low + high) // 2
        end = k * dt + 0.5 * growth * k * (k - 1)
        if end < until or (end == until and not pass_over):
            low = k
        else:
            high = k
    return int(max(1, min(most, low + pass_over)))


@kernel
def _fill_with_prompts(state: State, m: int, others: bool) -> tuple[int, int, float]:
    """Spend the token budget of an iteration on prompts of model ``m``.

    ``others`` tells that other models have work. Then, with ``whole``, a batch that runs already
    admits no more. Returns the number of prompts that end, the prompt tokens, and the token pairs
    of their attention.
    """
    left, chunk, pairs, fresh = state.models[m].budget - state.models[m].running, 0, 0.0, 0
    while left > 0:
        if state.models[m].partial < 0:
            in_batch = state.models[m].running + fresh
            closed = state.gpu[0].whole and others and state.gpu[0].open == 0 and in_batch > 0
            if closed or in_batch >= state.models[m].max_batch or state.models[m].waiting == 0:
                break
            if not _admit(state, m, in_batch == 0):
                break
        r = state.models[m].partial
        tokens = min(left, state.models[m].partial_left)
        pairs += tokens * (state.requests[r].isl - state.models[m].partial_left + 0.5 * tokens)
        state.models[m].partial_left -= tokens
        chunk += tokens
        left -= tokens
        if state.models[m].partial_left == 0:
            state.batch[m, state.models[m].running + fresh] = r
            fresh += 1
            state.models[m].partial = -1
    return fresh, chunk, pairs


@kernel
def _decodes(state: State, m: int, t: float, iteration_s: float, until: float) -> tuple[int, float]:
    """Return how many iterations keep the same batch of decodes, and their growth in seconds.

    The batch is the same until a sequence ends, a request arrives, or the GPU changes models at
    ``until``. An iteration takes ``iteration_s`` at first, and grows by the growth each time.
    """
    iterations = state.requests[state.batch[m, 0]].left
    for i in range(1, state.models[m].running):
        iterations = min(iterations, state.requests[state.batch[m, i]].left)
    growth, same = decode_growth(
        state.curves[m], float(state.models[m].running), float(state.models[m].context)
    )
    iterations = min(iterations, same)
    if state.gpu[0].next < state.requests.size:
        iterations = _iterations(
            iteration_s, growth, iterations, state.requests[state.gpu[0].next].arrival - t, True
        )
    return _iterations(iteration_s, growth, iterations, until - t, False), growth


@kernel
def _finish(state: State, m: int, fresh: int, iterations: int, end: float) -> None:
    """Count ``iterations`` of model ``m`` that end at ``end``, and ``fresh`` first tokens."""
    decodes, kept = state.models[m].running, 0
    state.models[m].context += iterations * decodes
    # The batch has the decoding requests first, then those with a first token.
    for i in range(decodes + fresh):
        r = state.batch[m, i]
        if i < decodes:
            state.requests[r].left -= iterations
        else:
            state.requests[r].first = end
            state.requests[r].left = state.requests[r].osl - 1
            state.models[m].context += state.requests[r].isl + 1
            if end - state.requests[r].arrival > state.requests[r].ttft:
                _miss(state, r)
        if state.requests[r].left == 0:
            state.models[m].context -= state.requests[r].isl + state.requests[r].osl
            _complete(state, m, r, end)
        else:
            state.batch[m, kept] = r
            kept += 1
    state.models[m].running = kept


@kernel
def _run(state: State, m: int, t: float) -> float:
    """Run iterations of model ``m`` from ``t``; return when they end, or ``t`` if none ran."""
    others, wake = wake_time(state, m, t)
    fresh, chunk, pairs = _fill_with_prompts(state, m, others)
    decodes, context = float(state.models[m].running), float(state.models[m].context)
    if decodes == 0 and chunk == 0:
        return t
    iteration_s = iteration_seconds(state.curves[m], decodes, context, float(chunk), pairs)
    iterations, growth = 1, 0.0
    if chunk == 0:
        until = wake if others and not state.gpu[0].whole else np.inf
        iterations, growth = _decodes(state, m, t, iteration_s, until)
    seconds = iterations * iteration_s + 0.5 * growth * iterations * (iterations - 1)
    state.models[m].busy_s += seconds
    state.models[m].used_at = t + seconds
    _finish(state, m, fresh, iterations, t + seconds)
    return float(t + seconds)


@cached_kernel
def replay(state: State) -> float:
    """Replay all requests and return the time of the last event.

    The replay ends early once a group has missed its limits more often than ``allowed``.
    """
    t, n = 0.0, state.requests.size
    while True:
        while state.gpu[0].next < n and state.requests[state.gpu[0].next].arrival <= t:
            r = state.gpu[0].next
            state.gpu[0].next += 1
            m = state.requests[r].model
            state.requests[r].after = -1
            if state.models[m].waiting == 0:
                state.models[m].head = r
            else:
                state.requests[state.models[m].tail].after = r
            state.models[m].tail = r
            state.models[m].waiting += 1
        if state.gpu[0].failed:
            return t
        m = choose(state, t)
        if m < 0:
            if state.gpu[0].next == n:
                return t
            t = state.requests[state.gpu[0].next].arrival
            continue
        m = _during_loads(state, m, t)
        if m != state.gpu[0].current:
            state.gpu[0].current, state.gpu[0].open = m, 1
            if not state.models[m].resident:
                t += _load(state, m, t)
            state.gpu[0].turn_end = t + turn(state, m)
            continue  # requests may have arrived during the load
        if not state.models[m].resident:
            t += _load(state, m, t)
        end = _run(state, m, t)
        state.gpu[0].open = 0
        if end == t and not state.models[m].blocked:
            return t  # an iteration without an end would never stop
        t = end
