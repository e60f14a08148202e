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
def _evict(s: State, keep: int, idle: bool) -> float:
    """Take the least recently used model off the GPU, but not ``keep``.

    With ``idle``, only a model without requests may go. Returns the bytes of KV cache that move to
    the host; -1 if no model can go.
    """
    out = -1
    for j in range(s.models.size):
        may_go = j != keep and s.models[j].resident and not (idle and has_work(s, j))
        if may_go and (out < 0 or s.models[j].used_at < s.models[out].used_at):
            out = j
    if out < 0:
        return -1.0
    s.models[out].resident = False
    s.gpu[0].used -= s.models[out].weights + s.models[out].reserved
    return float(s.models[out].context * s.models[out].kv)


@kernel
def _host(s: State, m: int) -> None:
    """Keep the weights of model ``m`` in the host's memory, if they fit."""
    if s.models[m].hosted or s.models[m].weights > s.gpu[0].host:
        return
    while s.gpu[0].hosted + s.models[m].weights > s.gpu[0].host:
        out = -1
        for j in range(s.models.size):
            if s.models[j].hosted and (out < 0 or s.models[j].used_at < s.models[out].used_at):
                out = j
        s.models[out].hosted = False
        s.gpu[0].hosted -= s.models[out].weights
    s.models[m].hosted = True
    s.gpu[0].hosted += s.models[m].weights


@kernel
def _make_room(s: State, m: int, keep: int) -> float:
    """Reserve memory for model ``m`` and return the seconds that its load takes.

    The least recently used models leave, but not ``keep``. -1: that does not give enough memory.
    """
    seconds = load_seconds(s, m)
    need = s.models[m].weights + s.models[m].reserved
    out = 0.0
    while s.gpu[0].used + need > s.gpu[0].room:
        kv = _evict(s, keep, False)
        if kv < 0.0:
            if keep != m:
                return -1.0
            break
        out += kv
    s.gpu[0].used += need
    return float(max(seconds, s.gpu[0].switch_s + out / s.gpu[0].host_bytes_s))


@kernel
def _give_up_load(s: State) -> None:
    """Free the memory of the model that loads while another one runs."""
    m = s.gpu[0].coming
    if m >= 0:
        s.gpu[0].used -= s.models[m].weights + s.models[m].reserved
        s.gpu[0].coming = -1


@kernel
def _load(s: State, m: int, t: float) -> float:
    """Bring model ``m`` onto the GPU and return the seconds from ``t`` until it is there."""
    if s.gpu[0].coming == m:
        seconds = max(0.0, s.gpu[0].coming_at - t)
        s.gpu[0].coming = -1
    else:
        _give_up_load(s)
        seconds = _make_room(s, m, m)
    s.models[m].resident = True
    _host(s, m)
    s.models[m].loads += 1
    s.models[m].load_s += seconds
    return float(seconds)


@kernel
def _during_loads(s: State, m: int, t: float) -> int:
    """Return the model that runs if model ``m`` is next: with ``overlap``, after its load."""
    if s.gpu[0].coming >= 0 and t >= s.gpu[0].coming_at:
        return int(s.gpu[0].coming)
    now = s.gpu[0].current
    may_go_on = s.gpu[0].overlap and now >= 0 and not s.models[m].resident
    if m == now or not may_go_on or not has_work(s, now):
        return int(m)
    if s.gpu[0].coming < 0 and s.models[now].resident:
        seconds = _make_room(s, m, now)
        if seconds >= 0.0:
            s.gpu[0].coming, s.gpu[0].coming_at = m, t + seconds
    if s.gpu[0].coming < 0 or t >= s.gpu[0].coming_at:
        return int(m)
    s.gpu[0].turn_end = s.gpu[0].coming_at
    return int(now)


@kernel
def _admit(s: State, m: int, alone: bool) -> bool:
    """Reserve memory for the next prompt of model ``m``; return False if there is none."""
    r = s.models[m].head
    need = (s.requests[r].isl + s.requests[r].osl) * s.models[m].kv
    while s.gpu[0].used + need > s.gpu[0].room:
        if s.gpu[0].coming >= 0:
            _give_up_load(s)
            continue
        # A model with work gives way only if nothing of model ``m`` could run otherwise.
        if s.gpu[0].pinned or _evict(s, m, not alone) < 0.0:
            s.models[m].blocked = alone
            return False
    s.gpu[0].used += need
    s.models[m].reserved += need
    s.models[m].head = s.requests[r].after
    s.models[m].waiting -= 1
    s.models[m].partial = r
    s.models[m].partial_left = s.requests[r].prompt
    return True


@kernel
def _miss(s: State, r: int) -> None:
    if not s.requests[r].late:
        s.requests[r].late = True
        group = s.requests[r].group
        s.missed[group] += 1
        if s.missed[group] > s.allowed[group]:
            s.gpu[0].failed = 1


@kernel
def _complete(s: State, m: int, r: int, t: float) -> None:
    """End request ``r`` and free its memory, which may admit prompts of any model."""
    s.requests[r].end = t
    need = (s.requests[r].isl + s.requests[r].osl) * s.models[m].kv
    s.models[m].reserved -= need
    s.gpu[0].used -= need
    for j in range(s.models.size):
        s.models[j].blocked = False
    gaps = s.requests[r].osl - 1
    if t - s.requests[r].arrival > s.requests[r].e2e or (
        gaps > 0 and (t - s.requests[r].first) / gaps > s.requests[r].tbt
    ):
        _miss(s, r)


@kernel
def _iterations(dt: float, growth: float, most: int, until: float, pass_over: bool) -> int:
    """Return how many of ``most`` iterations end by ``until``, at least one.

    With ``pass_over``, the first that ends at or after ``until`` counts too.
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
def _fill_with_prompts(s: State, m: int, others: bool) -> tuple[int, int, float]:
    """Spend the token budget on prompts; return how many end, prompt tokens and pairs."""
    left, chunk, pairs, fresh = s.models[m].budget - s.models[m].running, 0, 0.0, 0
    while left > 0:
        if s.models[m].partial < 0:
            in_batch = s.models[m].running + fresh
            closed = s.gpu[0].whole and others and s.gpu[0].open == 0 and in_batch > 0
            if closed or in_batch >= s.models[m].max_batch or s.models[m].waiting == 0:
                break
            if not _admit(s, m, in_batch == 0):
                break
        r = s.models[m].partial
        tokens = min(left, s.models[m].partial_left)
        pairs += tokens * (s.requests[r].isl - s.models[m].partial_left + 0.5 * tokens)
        s.models[m].partial_left -= tokens
        chunk += tokens
        left -= tokens
        if s.models[m].partial_left == 0:
            s.batch[m, s.models[m].running + fresh] = r
            fresh += 1
            s.models[m].partial = -1
    return fresh, chunk, pairs


@kernel
def _decodes(s: State, m: int, t: float, dt: float, until: float) -> tuple[int, float]:
    """Return the iterations of an unchanged batch of decodes, and their growth in seconds.

    The batch is unchanged until a sequence ends, a request arrives, or the GPU changes at
    ``until``.
    """
    k = s.requests[s.batch[m, 0]].left
    for i in range(1, s.models[m].running):
        k = min(k, s.requests[s.batch[m, i]].left)
    growth, same = decode_growth(
        s.curves[m], float(s.models[m].running), float(s.models[m].context)
    )
    k = min(k, same)
    if s.gpu[0].next < s.requests.size:
        k = _iterations(dt, growth, k, s.requests[s.gpu[0].next].arrival - t, True)
    return _iterations(dt, growth, k, until - t, False), growth


@kernel
def _finish(s: State, m: int, fresh: int, k: int, end: float) -> None:
    """Count ``k`` iterations of model ``m`` that end at ``end``, and ``fresh`` first tokens."""
    b, kept = s.models[m].running, 0
    s.models[m].context += k * b
    for i in range(b + fresh):
        r = s.batch[m, i]
        if i < b:
            s.requests[r].left -= k
        else:
            s.requests[r].first = end
            s.requests[r].left = s.requests[r].osl - 1
            s.models[m].context += s.requests[r].isl + 1
            if end - s.requests[r].arrival > s.requests[r].ttft:
                _miss(s, r)
        if s.requests[r].left == 0:
            s.models[m].context -= s.requests[r].isl + s.requests[r].osl
            _complete(s, m, r, end)
        else:
            s.batch[m, kept] = r
            kept += 1
    s.models[m].running = kept


@kernel
def _run(s: State, m: int, t: float) -> float:
    """Run iterations of model ``m`` from ``t`` and return when they end; ``t``: none could run."""
    others, wake = wake_time(s, m, t)
    fresh, chunk, pairs = _fill_with_prompts(s, m, others)
    b, c = float(s.models[m].running), float(s.models[m].context)
    if b == 0 and chunk == 0:
        return t
    dt = iteration_seconds(s.curves[m], b, c, float(chunk), pairs)
    k, growth = 1, 0.0
    if chunk == 0:
        until = wake if others and not s.gpu[0].whole else np.inf
        k, growth = _decodes(s, m, t, dt, until)
    seconds = k * dt + 0.5 * growth * k * (k - 1)
    s.models[m].busy_s += seconds
    s.models[m].used_at = t + seconds
    _finish(s, m, fresh, k, t + seconds)
    return float(t + seconds)


@cached_kernel
def replay(s: State) -> float:
    """Replay all requests and return the time of the end.

    The replay ends early once a group has missed its limits more often than ``allowed``.
    """
    t, n = 0.0, s.requests.size
    while True:
        while s.gpu[0].next < n and s.requests[s.gpu[0].next].arrival <= t:
            r = s.gpu[0].next
            s.gpu[0].next += 1
            m = s.requests[r].model
            s.requests[r].after = -1
            if s.models[m].waiting == 0:
                s.models[m].head = r
            else:
                s.requests[s.models[m].tail].after = r
            s.models[m].tail = r
            s.models[m].waiting += 1
        if s.gpu[0].failed:
            return t
        m = choose(s, t)
        if m < 0:
            if s.gpu[0].next == n:
                return t
            t = s.requests[s.gpu[0].next].arrival
            continue
        m = _during_loads(s, m, t)
        if m != s.gpu[0].current:
            s.gpu[0].current, s.gpu[0].open = m, 1
            if not s.models[m].resident:
                t += _load(s, m, t)
            s.gpu[0].turn_end = t + turn(s, m)
            continue  # requests may have arrived during the load
        if not s.models[m].resident:
            t += _load(s, m, t)
        end = _run(s, m, t)
        s.gpu[0].open = 0
        if end == t and not s.models[m].blocked:
            return t  # an iteration without an end would never stop
        t = end
