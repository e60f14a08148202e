"""Choose which model of a shared GPU runs next, and for how long (see ``shared_gpu``)."""

import numpy as np

from simulation.compiler import kernel
from simulation.performance.curves import iteration_seconds
from simulation.sharing.gpu_state import State

MOST_TURN_S = 4.0  # Aegaeon's QMAX
MOST_LOAD_SHARE = 0.5  # of a round that loads may take; Aegaeon's least alpha


@kernel
def has_work(s: State, m: int) -> bool:
    return bool(
        s.models[m].running > 0
        or s.models[m].partial >= 0
        or (s.models[m].waiting > 0 and not s.models[m].blocked)
    )


@kernel
def load_seconds(s: State, m: int) -> float:
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
    return float(s.requests[r].arrival + limit - load_seconds(s, m) - seconds)


@kernel
def turn(s: State, m: int) -> float:
    """Return the seconds that model ``m`` keeps the GPU while others wait.

    With 0 it yields after one iteration. Each model gets a share of a round of turns that follows
    from its slack: its TBT limit over the time of its iterations. ``MOST_TURN_S`` limits a turn.
    """
    loads, total, least, own = 0.0, 0.0, np.inf, 0.0
    for j in range(s.models.size):
        if j != m and not has_work(s, j):
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
        slack = limit / _step_seconds(s, j)
        total += 1.0 / slack
        least = min(least, slack)
        own = slack if j == m else own
    if own == 0.0:
        return float(min(loads, MOST_TURN_S))
    alpha = max(loads / (least * MOST_TURN_S) + total, MOST_LOAD_SHARE)
    return float(min(loads / (own * (alpha - total)), MOST_TURN_S))


@kernel
def choose(s: State, t: float) -> int:
    """Return the model that runs next, or -1 if none has work."""
    now, count, oldest, all_resident = s.gpu[0].current, 0, -1, True
    for j in range(s.models.size):
        if has_work(s, j):
            count += 1
            all_resident = all_resident and s.models[j].resident
            if oldest < 0 or s.models[j].used_at < s.models[oldest].used_at:
                oldest = j
    mine = now >= 0 and has_work(s, now)
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
        if j == now or not has_work(s, j):
            continue
        if over:
            soon = _due(s, j) - load_seconds(s, j)
            if best < 0 or soon < due:
                best, due = j, soon
        elif t <= _latest_start(s, j) < t + step:
            urgent = j
    if over:
        return int(best)
    return int(urgent) if urgent >= 0 and not s.gpu[0].whole else int(now)


@kernel
def wake_time(s: State, m: int, t: float) -> tuple[bool, float]:
    """Return whether other models have work, and when model ``m`` may have to give way."""
    others, all_resident = False, True
    for j in range(s.models.size):
        if j != m and has_work(s, j):
            others = True
            all_resident = all_resident and s.models[j].resident
    if all_resident:
        return others, t
    wake = s.gpu[0].turn_end
    for j in range(s.models.size):
        if j != m and has_work(s, j):
            latest = _latest_start(s, j)
            if latest > t:
                wake = min(wake, latest)
    return others, float(wake)
