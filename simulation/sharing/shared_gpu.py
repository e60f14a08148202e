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
"""

from typing import NamedTuple

import numpy as np

from simulation.arrays import Array, FloatArray, IntArray
from simulation.compiler import cached_kernel, kernel
from simulation.performance.curves import decode_growth, iteration_seconds

MOST_TURN_S = 4.0  # Aegaeon's QMAX
MOST_LOAD_SHARE = 0.5  # of a round that loads may take; Aegaeon's least alpha

REQUEST = np.dtype(
    [
        ("arrival", "f8"),
        ("prompt", "i8"),  # tokens to compute
        ("isl", "i8"),
        ("osl", "i8"),
        ("model", "i8"),
        ("ttft", "f8"),  # limits; inf: none
        ("tbt", "f8"),
        ("e2e", "f8"),
        ("group", "i8"),  # index into ``State.allowed``
        ("first", "f8"),  # time of the first token; NaN: none
        ("end", "f8"),  # time of the last token
        ("left", "i8"),  # tokens to generate
        ("after", "i8"),  # next waiting request of the same model
        ("late", "i8"),  # whether a limit was missed
    ]
)
MODEL = np.dtype(
    [
        ("weights", "f8"),  # bytes
        ("kv", "f8"),  # bytes per token
        ("max_batch", "i8"),
        ("budget", "i8"),  # tokens of an iteration
        ("head", "i8"),  # first waiting request
        ("tail", "i8"),
        ("waiting", "i8"),
        ("running", "i8"),  # decoding sequences
        ("context", "i8"),  # KV tokens of these
        ("partial", "i8"),  # request whose prompt is being computed, or -1
        ("partial_left", "i8"),
        ("reserved", "f8"),  # bytes of KV cache
        ("resident", "i8"),  # whether the weights are on the GPU
        ("hosted", "i8"),  # whether they are in the host's memory
        ("blocked", "i8"),  # whether the next prompt finds no memory until a request ends
        ("used_at", "f8"),
        ("loads", "i8"),
        ("load_s", "f8"),
        ("busy_s", "f8"),
    ]
)
GPU = np.dtype(
    [
        ("room", "f8"),  # bytes for weights and KV cache
        ("host", "f8"),  # bytes of host memory for weights
        ("host_bytes_s", "f8"),
        ("disk_bytes_s", "f8"),
        ("switch_s", "f8"),
        ("pinned", "i8"),
        ("whole", "i8"),
        ("used", "f8"),  # bytes of weights and KV cache on the GPU
        ("hosted", "f8"),  # bytes of weights in the host's memory
        ("current", "i8"),  # model that ran last, or -1
        ("turn_end", "f8"),
        ("open", "i8"),  # whether the turn has not run yet
        ("failed", "i8"),  # whether a group has missed its limits too often
        ("next", "i8"),  # request that arrives next
    ]
)


class State(NamedTuple):
    """Inputs, and what happened and runs. Requests are in order of arrival."""

    requests: Array  # [request] of REQUEST
    models: Array  # [model] of MODEL
    gpu: Array  # [1] of GPU: one GPU, or those of a replica together
    curves: FloatArray  # [model, longest curve], padded
    batch: IntArray  # [model, place] requests of the batch
    missed: IntArray  # [group] requests beyond a limit
    allowed: IntArray  # [group] of these before the replay ends


@kernel
def _has_work(s: State, m: int) -> bool:
    return bool(
        s.models[m].running > 0
        or s.models[m].partial >= 0
        or (s.models[m].waiting > 0 and not s.models[m].blocked)
    )


@kernel
def _load_seconds(s: State, m: int) -> float:
    """Return the seconds until the weights and KV cache of model ``m`` are on the GPU."""
    if s.models[m].resident:
        return 0.0
    rate = (
        s.gpu[0].host_bytes_s
        if s.models[m].hosted
        else min(s.gpu[0].disk_bytes_s, s.gpu[0].host_bytes_s)
    )
    kv = s.models[m].context * s.models[m].kv
    return float(s.gpu[0].switch_s + s.models[m].weights / rate + kv / s.gpu[0].host_bytes_s)


@kernel
def _next_prompt(s: State, m: int) -> int:
    return int(
        s.models[m].partial
        if s.models[m].partial >= 0
        else s.models[m].head
        if s.models[m].waiting > 0
        else -1
    )


@kernel
def _due(s: State, m: int) -> float:
    """Return when model ``m`` has to make its next token for some request."""
    due = np.inf
    r = _next_prompt(s, m)
    if r >= 0:
        due = s.requests[r].arrival + min(s.requests[r].ttft, s.requests[r].e2e)
    for i in range(s.models[m].running):
        r = s.batch[m, i]
        due = min(
            due,
            s.requests[r].first + (s.requests[r].osl - s.requests[r].left) * s.requests[r].tbt,
            s.requests[r].arrival + s.requests[r].e2e,
        )
    return float(due)


@kernel
def _step_seconds(s: State, m: int) -> float:
    """Return the seconds of an iteration that decodes the sequences of model ``m``, or one."""
    b, c = s.models[m].running, s.models[m].context
    if b == 0:
        r = _next_prompt(s, m)
        b, c = 1, s.requests[r].isl if r >= 0 else 1
    return float(iteration_seconds(s.curves[m], float(b), float(c), 0.0, 0.0))


@kernel
def _latest_start(s: State, m: int) -> float:
    """Return the last time at which model ``m`` can begin its next prompt in time; inf: none."""
    r = _next_prompt(s, m)
    if r < 0 or s.models[m].blocked:
        return np.inf
    p = float(s.requests[r].prompt)
    seconds = iteration_seconds(s.curves[m], 0.0, 0.0, p, p * (s.requests[r].isl - 0.5 * p))
    limit = min(s.requests[r].ttft, s.requests[r].e2e)
    return float(s.requests[r].arrival + limit - _load_seconds(s, m) - seconds)


@kernel
def _turn(s: State, m: int) -> float:
    """Return the seconds that model ``m`` keeps the GPU while others wait; 0: one iteration."""
    loads, total, least, mine = 0.0, 0.0, np.inf, 0.0
    for j in range(s.models.size):
        if j != m and not _has_work(s, j):
            continue
        seconds = s.gpu[0].switch_s + s.models[j].weights / s.gpu[0].host_bytes_s
        loads += seconds if j == m or not s.models[j].resident else 0.0
        limit = np.inf
        for i in range(s.models[j].running):
            limit = min(limit, s.requests[s.batch[j, i]].tbt)
        r = _next_prompt(s, j)
        if r >= 0:
            limit = min(limit, s.requests[r].tbt)
        if limit == np.inf:
            continue
        n = limit / _step_seconds(s, j)
        total += 1.0 / n
        least = min(least, n)
        mine = n if j == m else mine
    if mine == 0.0:
        return float(min(loads, MOST_TURN_S))
    alpha = max(loads / (least * MOST_TURN_S) + total, MOST_LOAD_SHARE)
    return float(min(loads / (mine * (alpha - total)), MOST_TURN_S))


@kernel
def _choose(s: State, t: float) -> int:
    """Return the model that runs next, or -1 if none has work."""
    now, count, oldest, all_resident = s.gpu[0].current, 0, -1, True
    for j in range(s.models.size):
        if _has_work(s, j):
            count += 1
            all_resident = all_resident and s.models[j].resident
            if oldest < 0 or s.models[j].used_at < s.models[oldest].used_at:
                oldest = j
    mine = now >= 0 and _has_work(s, now)
    in_batch = now >= 0 and s.models[now].running + (s.models[now].partial >= 0) > 0
    if count <= 1 or (s.gpu[0].whole and in_batch):
        return int(now) if mine else int(oldest)
    return int(oldest) if all_resident else _most_urgent(s, t, mine)


@kernel
def _most_urgent(s: State, t: float, mine: bool) -> int:
    """Return the model that runs next if some model with work is not on the GPU."""
    now, best, urgent, due = s.gpu[0].current, -1, -1, np.inf
    if mine and s.gpu[0].open:
        return int(now)
    over = not mine or t >= s.gpu[0].turn_end
    step = _step_seconds(s, now) if not over else 0.0
    for j in range(s.models.size):
        if j == now or not _has_work(s, j):
            continue
        if over:
            soon = _due(s, j) - _load_seconds(s, j)
            if best < 0 or soon < due:
                best, due = j, soon
        elif t <= _latest_start(s, j) < t + step:
            urgent = j
    if over:
        return int(best)
    return int(urgent) if urgent >= 0 and not s.gpu[0].whole else int(now)


@kernel
def _evict(s: State, keep: int, idle: bool) -> float:
    """Take the least recently used model off the GPU, but not ``keep``.

    With ``idle``, only a model without requests may go. Returns the bytes of KV cache that move to
    the host; -1 if no model can go.
    """
    out = -1
    for j in range(s.models.size):
        may_go = j != keep and s.models[j].resident and not (idle and _has_work(s, j))
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
def _load(s: State, m: int) -> float:
    """Bring model ``m`` onto the GPU and return the seconds that this takes."""
    seconds = _load_seconds(s, m)
    need = s.models[m].weights + s.models[m].reserved
    out = 0.0
    while s.gpu[0].used + need > s.gpu[0].room:
        kv = _evict(s, m, False)
        if kv < 0.0:
            break
        out += kv
    seconds = max(seconds, s.gpu[0].switch_s + out / s.gpu[0].host_bytes_s)
    s.models[m].resident = True
    s.gpu[0].used += need
    _host(s, m)
    s.models[m].loads += 1
    s.models[m].load_s += seconds
    return float(seconds)


@kernel
def _admit(s: State, m: int, alone: bool) -> bool:
    """Reserve memory for the next prompt of model ``m``; return False if there is none."""
    r = s.models[m].head
    need = (s.requests[r].isl + s.requests[r].osl) * s.models[m].kv
    while s.gpu[0].used + need > s.gpu[0].room:
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
def _wake(s: State, m: int, t: float) -> tuple[bool, float]:
    """Return whether other models have work, and when model ``m`` may have to give way."""
    others, all_resident = False, True
    for j in range(s.models.size):
        if j != m and _has_work(s, j):
            others = True
            all_resident = all_resident and s.models[j].resident
    if all_resident:
        return others, t
    wake = s.gpu[0].turn_end
    for j in range(s.models.size):
        if j != m and _has_work(s, j):
            latest = _latest_start(s, j)
            if latest > t:
                wake = min(wake, latest)
    return others, float(wake)


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
    others, wake = _wake(s, m, t)
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
        m = _choose(s, t)
        if m < 0:
            if s.gpu[0].next == n:
                return t
            t = s.requests[s.gpu[0].next].arrival
            continue
        if m != s.gpu[0].current:
            s.gpu[0].current, s.gpu[0].open = m, 1
            if not s.models[m].resident:
                t += _load(s, m)
            s.gpu[0].turn_end = t + _turn(s, m)
            continue  # requests may have arrived during the load
        if not s.models[m].resident:
            t += _load(s, m)
        end = _run(s, m, t)
        s.gpu[0].open = 0
        if end == t and not s.models[m].blocked:
            return t  # an iteration without an end would never stop
        t = end
