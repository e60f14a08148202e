"""Choose which model of a shared GPU runs next, and for how long (see ``shared_gpu``).

A turn is the time for which a model keeps the GPU while others wait.
"""

import numpy as np

from simulation.compiler import kernel
from simulation.performance.curves import iteration_seconds
from simulation.sharing.gpu_state import State

MOST_TURN_S = 4.0  # Aegaeon's QMAX
MOST_LOAD_SHARE = 0.5  # largest share of a round for loads; Aegaeon's least alpha


@kernel
def has_work(state: State, m: int) -> bool:
    """Return whether model ``m`` decodes, computes a prompt, or has one that it can admit."""
    model = state.models[m]
    return bool(
        model.running > 0 or model.prefilling >= 0 or (model.waiting > 0 and not model.blocked)
    )


@kernel
def load_seconds(state: State, m: int) -> float:
    """Return the seconds to bring the weights and KV cache of model ``m`` onto the GPU."""
    gpu, model = state.gpu[0], state.models[m]
    if model.resident:
        return 0.0
    bytes_s = gpu.host_bytes_s
    weights_bytes_s = bytes_s if model.hosted else min(gpu.disk_bytes_s, bytes_s)
    weights_s = model.weight_bytes / weights_bytes_s
    kv_bytes = model.context * model.kv_token_bytes
    return float(gpu.switch_s + weights_s + kv_bytes / bytes_s)


@kernel
def _next_prompt(state: State, m: int) -> int:
    """Return the request whose prompt model ``m`` computes now or next; -1: none waits."""
    model = state.models[m]
    if model.prefilling >= 0:
        return int(model.prefilling)
    return int(model.head) if model.waiting > 0 else -1


@kernel
def _next_deadline(state: State, m: int) -> float:
    """Return the earliest time by which a request of model ``m`` needs its next token.

    It follows from the limits of TTFT, TBT and E2E; inf: no request.
    """
    due_s = np.inf
    number = _next_prompt(state, m)
    if number >= 0:
        request = state.requests[number]
        due_s = request.arrival_s + min(request.ttft, request.e2e)
    for i in range(state.models[m].running):
        request = state.requests[state.batch[m, i]]
        generated = request.osl - request.tokens_left
        next_token_due_s = request.first_s + generated * request.tbt
        due_s = min(due_s, next_token_due_s, request.arrival_s + request.e2e)
    return float(due_s)


@kernel
def _step_seconds(state: State, m: int) -> float:
    """Return the seconds of a decode iteration of model ``m`` with its present sequences.

    Without any, it is that of its next request after the prompt.
    """
    model = state.models[m]
    sequences, context = model.running, model.context
    if sequences == 0:
        number = _next_prompt(state, m)
        sequences, context = 1, state.requests[number].isl if number >= 0 else 1
    curve = state.curves[m]
    return float(iteration_seconds(curve, float(sequences), float(context), 0.0, 0.0))


@kernel
def _latest_start(state: State, m: int) -> float:
    """Return the latest time to switch to model ``m`` so that its next prompt keeps its TTFT.

    inf: no prompt can be admitted.
    """
    number = _next_prompt(state, m)
    if number < 0 or state.models[m].blocked:
        return np.inf
    request = state.requests[number]
    tokens = float(request.prompt)
    pairs = tokens * (request.isl - 0.5 * tokens)
    seconds = iteration_seconds(state.curves[m], 0.0, 0.0, tokens, pairs)
    limit = min(request.ttft, request.e2e)
    return float(request.arrival_s + limit - load_seconds(state, m) - seconds)


@kernel
def turn_seconds(state: State, m: int) -> float:
    """Return the seconds that model ``m`` keeps the GPU while others wait, at most ``MOST_TURN_S``.

    With 0 it yields after one iteration. The module ``shared_gpu`` has the formula: ``loads_s`` is
    its c, and a model's ``slack`` its n (the TBT limit over the time of an iteration).
    """
    gpu = state.gpu[0]
    loads_s, sum_of_inverses, least_slack, own_slack = 0.0, 0.0, np.inf, 0.0
    for other in range(state.models.size):
        if other != m and not has_work(state, other):
            continue
        model = state.models[other]
        if other == m or not model.resident:
            loads_s += gpu.switch_s + model.weight_bytes / gpu.host_bytes_s
        tbt_limit_s = np.inf
        for i in range(model.running):
            tbt_limit_s = min(tbt_limit_s, state.requests[state.batch[other, i]].tbt)
        number = _next_prompt(state, other)
        if number >= 0:
            tbt_limit_s = min(tbt_limit_s, state.requests[number].tbt)
        if tbt_limit_s == np.inf:
            continue
        slack = tbt_limit_s / _step_seconds(state, other)
        sum_of_inverses += 1.0 / slack
        least_slack = min(least_slack, slack)
        if other == m:
            own_slack = slack
    if own_slack == 0.0:  # no limit, so the formula does not apply
        return float(min(loads_s, MOST_TURN_S))
    # turn = c / (n (alpha - sum 1/n)), with the least alpha that keeps all turns short enough
    alpha = max(loads_s / (least_slack * MOST_TURN_S) + sum_of_inverses, MOST_LOAD_SHARE)
    return float(min(loads_s / (own_slack * (alpha - sum_of_inverses)), MOST_TURN_S))


@kernel
def choose(state: State, now_s: float) -> int:
    """Return the model that runs next at ``now_s``; -1: none has work.

    With ``whole_requests``, a model keeps the GPU until its batch is done. If the weights of all
    models with work are on the GPU, the least recently used of them runs. Otherwise
    ``_next_if_not_all_fit`` decides.
    """
    gpu = state.gpu[0]
    current, count, all_resident = gpu.current, 0, True
    oldest, oldest_s = -1, np.inf  # the least recently used model with work
    for other in range(state.models.size):
        if has_work(state, other):
            model = state.models[other]
            count += 1
            all_resident = all_resident and model.resident
            if model.last_used_s < oldest_s:
                oldest, oldest_s = other, model.last_used_s
    current_has_work = current >= 0 and has_work(state, current)
    has_batch = current >= 0 and (
        state.models[current].running > 0 or state.models[current].prefilling >= 0
    )
    if count <= 1 or (gpu.whole_requests and has_batch):
        return int(current) if current_has_work else int(oldest)
    return int(oldest) if all_resident else _next_if_not_all_fit(state, now_s, current_has_work)


@kernel
def _next_if_not_all_fit(state: State, now_s: float, current_has_work: bool) -> int:
    """Return the model that runs next at ``now_s`` if some model with work is not on the GPU.

    - A turn that has not begun to run yet begins.
    - At the end of a turn, the model that has to start first is next: its next token is due at the
      earliest time, less the time of its load.
    - During a turn, the current model goes on. With ``whole_requests`` there is no exception.
      Otherwise a prompt that would miss its TTFT after one more iteration comes at once. Of
      several, the one that has to start first is next.
    """
    gpu = state.gpu[0]
    current = gpu.current
    if current_has_work and gpu.turn_begins:
        return int(current)
    turn_is_over = not current_has_work or now_s >= gpu.turn_end_s
    if not turn_is_over and gpu.whole_requests:
        return int(current)
    next_model, earliest_s = -1, np.inf
    if not turn_is_over:
        next_model, earliest_s = current, now_s + _step_seconds(state, current)
    for other in range(state.models.size):
        if other == current or not has_work(state, other):
            continue
        if turn_is_over:
            start_by_s = _next_deadline(state, other) - load_seconds(state, other)
        else:
            start_by_s = _latest_start(state, other)
        if (next_model < 0 or start_by_s < earliest_s) and (turn_is_over or start_by_s >= now_s):
            next_model, earliest_s = other, start_by_s
    return int(next_model)


@kernel
def yield_time(state: State, m: int, now_s: float) -> tuple[bool, float]:
    """Return whether other models have work, and the time at which ``m`` may have to give way.

    If all models with work are on the GPU, the time is now (``now_s``), because they take turns by
    iteration. Otherwise it is the end of the turn, or earlier if a prompt must start to keep its
    TTFT.
    """
    others, all_resident = False, True
    for other in range(state.models.size):
        if other != m and has_work(state, other):
            others = True
            all_resident = all_resident and state.models[other].resident
    if all_resident:
        return others, now_s
    gives_way_s = state.gpu[0].turn_end_s
    for other in range(state.models.size):
        if other != m and has_work(state, other):
            latest_s = _latest_start(state, other)
            if latest_s > now_s:
                gives_way_s = min(gives_way_s, latest_s)
    return others, float(gives_way_s)
