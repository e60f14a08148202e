"""Choose which model of a shared GPU runs next, and for how long (see ``shared_gpu``)."""

import numpy as np

from simulation.compiler import kernel
from simulation.performance.curves import iteration_seconds
from simulation.sharing.gpu_state import State

MOST_TURN_S = 4.0  # Aegaeon's QMAX
MOST_LOAD_SHARE = 0.5  # of a round that loads may take; Aegaeon's least alpha


@kernel
def has_work(state: State, m: int) -> bool:
    """Return whether model ``m`` decodes, computes a prompt, or has one that it can admit."""
    return bool(
        state.models[m].running > 0
        or state.models[m].partial >= 0
        or (state.models[m].waiting > 0 and not state.models[m].blocked)
    )


@kernel
def load_seconds(state: State, m: int) -> float:
    """Return the seconds until the weights and KV cache of model ``m`` are on the GPU."""
    if state.models[m].resident:
        return 0.0
    rate = (
        state.gpu[0].host_bytes_s
        if state.models[m].hosted
        else min(state.gpu[0].disk_bytes_s, state.gpu[0].host_bytes_s)
    )
    kv = state.models[m].context * state.models[m].kv
    return float(
        state.gpu[0].switch_s + state.models[m].weights / rate + kv / state.gpu[0].host_bytes_s
    )


@kernel
def _next_prompt(state: State, m: int) -> int:
    """Return the request whose prompt model ``m`` computes next; -1: none waits."""
    return int(
        state.models[m].partial
        if state.models[m].partial >= 0
        else state.models[m].head
        if state.models[m].waiting > 0
        else -1
    )


@kernel
def _due(state: State, m: int) -> float:
    """Return the time by which model ``m`` has to make the next token of one of its requests."""
    due = np.inf
    r = _next_prompt(state, m)
    if r >= 0:
        due = state.requests[r].arrival + min(state.requests[r].ttft, state.requests[r].e2e)
    for i in range(state.models[m].running):
        r = state.batch[m, i]
        due = min(
            due,
            state.requests[r].first
            + (state.requests[r].osl - state.requests[r].left) * state.requests[r].tbt,
            state.requests[r].arrival + state.requests[r].e2e,
        )
    return float(due)


@kernel
def _step_seconds(state: State, m: int) -> float:
    """Return the seconds of an iteration that decodes the sequences of model ``m``.

    Without sequences, it is that of its next request after the prompt.
    """
    sequences, context = state.models[m].running, state.models[m].context
    if sequences == 0:
        r = _next_prompt(state, m)
        sequences, context = 1, state.requests[r].isl if r >= 0 else 1
    curve = state.curves[m]
    return float(iteration_seconds(curve, float(sequences), float(context), 0.0, 0.0))


@kernel
def _latest_start(state: State, m: int) -> float:
    """Return the latest time to switch to model ``m`` that keeps the TTFT of its next prompt.

    inf: no prompt waits.
    """
    r = _next_prompt(state, m)
    if r < 0 or state.models[m].blocked:
        return np.inf
    tokens = float(state.requests[r].prompt)
    pairs = tokens * (state.requests[r].isl - 0.5 * tokens)
    seconds = iteration_seconds(state.curves[m], 0.0, 0.0, tokens, pairs)
    limit = min(state.requests[r].ttft, state.requests[r].e2e)
    return float(state.requests[r].arrival + limit - load_seconds(state, m) - seconds)


@kernel
def turn(state: State, m: int) -> float:
    """Return the seconds that model ``m`` keeps the GPU while others wait, at most ``MOST_TURN_S``.

    With 0 it yields after one iteration. The module ``shared_gpu`` has the formula. ``slack`` is
    its n: the TBT limit of a model divided by the time of its iterations. ``total`` is the sum of
    1 / n, ``loads`` its c.
    """
    loads, total, least, own = 0.0, 0.0, np.inf, 0.0
    for j in range(state.models.size):
        if j != m and not has_work(state, j):
            continue
        seconds = state.gpu[0].switch_s + state.models[j].weights / state.gpu[0].host_bytes_s
        loads += seconds if j == m or not state.models[j].resident else 0.0
        limit = np.inf
        for i in range(state.models[j].running):
            limit = min(limit, state.requests[state.batch[j, i]].tbt)
        r = _next_prompt(state, j)
        if r >= 0:
            limit = min(limit, state.requests[r].tbt)
        if limit == np.inf:
            continue
        slack = limit / _step_seconds(state, j)
        total += 1.0 / slack
        least = min(least, slack)
        own = slack if j == m else own
    if own == 0.0:
        return float(min(loads, MOST_TURN_S))
    alpha = max(loads / (least * MOST_TURN_S) + total, MOST_LOAD_SHARE)
    return float(min(loads / (own * (alpha - total)), MOST_TURN_S))


@kernel
def choose(state: State, t: float) -> int:
    """Return the model that runs next, or -1 if none has work.

    With ``whole``, a model keeps the GPU until its batch is done. If the weights of all models with
    work are on the GPU, the least recently used of them runs. Otherwise ``_most_urgent`` decides.
    """
    now, count, oldest, all_resident = state.gpu[0].current, 0, -1, True
    for j in range(state.models.size):
        if has_work(state, j):
            count += 1
            all_resident = all_resident and state.models[j].resident
            if oldest < 0 or state.models[j].used_at < state.models[oldest].used_at:
                oldest = j
    mine = now >= 0 and has_work(state, now)
    in_batch = now >= 0 and state.models[now].running + (state.models[now].partial >= 0) > 0
    if count <= 1 or (state.gpu[0].whole and in_batch):
        return int(now) if mine else int(oldest)
    return int(oldest) if all_resident else _most_urgent(state, t, mine)


@kernel
def _most_urgent(state: State, t: float, mine: bool) -> int:
    """Return the model that runs next if some model with work is not on the GPU.

    At the end of a turn, it is the model whose next token is due first. During a turn, the present
    model goes on, unless a prompt of another would miss its TTFT after one more iteration. ``mine``
    tells that the present model has work.
    """
    now, best, urgent, due = state.gpu[0].current, -1, -1, np.inf
    if mine and state.gpu[0].open:
        return int(now)
    turn_is_over = not mine or t >= state.gpu[0].turn_end
    step = _step_seconds(state, now) if not turn_is_over else 0.0
    for j in range(state.models.size):
        if j == now or not has_work(state, j):
            continue
        if turn_is_over:
            soon = _due(state, j) - load_seconds(state, j)
            if best < 0 or soon < due:
                best, due = j, soon
        elif t <= _latest_start(state, j) < t + step:
            urgent = j
    if turn_is_over:
        return int(best)
    return int(urgent) if urgent >= 0 and not state.gpu[0].whole else int(now)


@kernel
def wake_time(state: State, m: int, t: float) -> tuple[bool, float]:
    """Return whether other models have work, and the time at which ``m`` may have to give way."""
    others, all_resident = False, True
    for j in range(state.models.size):
        if j != m and has_work(state, j):
            others = True
            all_resident = all_resident and state.models[j].resident
    if all_resident:
        return others, t
    wake = state.gpu[0].turn_end
    for j in range(state.models.size):
        if j != m and has_work(state, j):
            latest = _latest_start(state, j)
            if latest > t:
                wake = min(wake, latest)
    return others, float(wake)
