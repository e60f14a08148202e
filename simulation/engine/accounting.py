"""Hours and tokens of instances, spread over the intervals of the series.

The last column of the series counts everything after the end of the window.
"""

from typing import Any

import numpy as np

from simulation.compiler import kernel
from simulation.engine.progress import iteration_end, iterations_done
from simulation.engine.state import (
    S_BATCH,
    S_BUSY,
    S_DRAINING,
    S_INPUT,
    S_ITERATIONS,
    S_KV,
    S_LENT,
    S_OUTPUT,
    S_READY,
    S_STARTING,
)
from simulation.lifecycle import LENT, OFF, READY, STARTING


@kernel
def _kv_token_seconds(instance: Any, t: float) -> float:
    """Return the KV token-seconds that an instance occupied from the start of its run to ``t``.

    A run is a series of iterations with an unchanged batch. The KV tokens in use rise by
    ``decodes`` at the end of each iteration.
    """
    elapsed_s = t - instance.run_start  # iteration j takes iteration_s + growth (j - 1) seconds
    if elapsed_s == 0.0 or instance.iterations == 1:  # no iteration ended: half of the calls
        return float(instance.kv * elapsed_s)
    ended = 0.0  # iterations of the run that ended by t
    if instance.growth != 0.0:
        last = instance.iterations - 1  # most calls end with their run, so try that first
        ended = float(last if iteration_end(instance, last) < t else iterations_done(instance, t))
    elif instance.iteration_s > 0.0:
        ended = min(np.floor(elapsed_s / instance.iteration_s), float(instance.iterations - 1))
    # Seconds since the end of each ended iteration, summed: each decode has one more token from
    # then on.
    pairs = ended * (ended - 1.0) / 2.0
    since_last_s = elapsed_s - ended * instance.iteration_s
    token_s = instance.iteration_s * ended * (ended - 1.0) / 2.0 + ended * since_last_s
    # Growing iterations end later than equal ones: by growth j (j - 1) / 2 for the j-th.
    token_s -= instance.growth * pairs * (ended + 1.0) / 3.0
    return float(instance.kv * elapsed_s + instance.decodes * token_s)


@kernel
def _settle_after(state: Any, slot: int, start: float, t: float) -> None:
    """Count the time from ``start`` to ``t`` of an iteration that lies after the window.

    An instance with work is paid from the end of the window to the end of its last iteration. Idle
    time between iterations is included, and time after the last one is not.
    """
    instance, after = state.instances[slot], state.series.shape[2] - 1
    pool = state.pools[instance.pool]
    pool.kept_s += t - max(instance.kept, state.clock[0].duration)
    instance.kept = t
    if instance.chunk > 0:
        pool.after_prefill_s += t - start
    else:
        pool.after_decode_s += t - start
    state.series[S_BUSY, instance.pool, after] += t - start
    state.series[S_BATCH, instance.pool, after] += (t - start) * instance.running


@kernel
def settle(state: Any, slot: int, t: float) -> None:
    """Count the seconds of an instance by status and work, from the last call up to ``t``.

    After the end of the window, only time up to the end of the last iteration counts.
    """
    instance, clock = state.instances[slot], state.clock[0]
    start, end = instance.settled, min(t, clock.duration)
    if t <= start:
        return
    instance.settled = t
    if instance.status == OFF:
        return
    pool = state.pools[instance.pool]
    busy = instance.iterations > 0
    if busy and t > clock.duration:
        _settle_after(state, slot, max(start, clock.duration), t)
    if end <= start:
        return
    if instance.status == STARTING:
        row = S_STARTING
        pool.starting_s += end - start
    elif instance.status == LENT:
        row = S_LENT
        pool.donated_s += end - start
    else:
        row = S_READY if instance.status == READY else S_DRAINING
        if not busy:
            pool.idle_s += end - start
        else:
            pool.busy_s += end - start
            pool.batch_s += (end - start) * instance.running
            if instance.chunk > 0:
                pool.prefill_s += end - start
            else:
                pool.decode_s += end - start
    _add_to_series(state, slot, row, start, end)


@kernel
def _add_to_series(state: Any, slot: int, row: int, start: float, end: float) -> None:
    """Add the time of an instance from ``start`` to ``end`` to the series, split by interval.

    ``row`` is the row for its status, such as ``S_READY``. Busy time, batch and KV use are added to
    their rows.
    """
    instance, interval = state.instances[slot], state.clock[0].interval
    last_interval = state.series.shape[2] - 2
    i = min(int(start / interval), last_interval)
    while start < end:
        stop = end if i == last_interval else min(end, (i + 1) * interval)
        if stop > start:
            state.series[row, instance.pool, i] += stop - start
            if instance.iterations > 0:
                state.series[S_BUSY, instance.pool, i] += stop - start
                state.series[S_BATCH, instance.pool, i] += (stop - start) * instance.running
                # Utilization covers ready instances only, in use and in capacity.
                if instance.status == READY:
                    until_stop = _kv_token_seconds(instance, stop)
                    until_start = _kv_token_seconds(instance, start)
                    state.series[S_KV, instance.pool, i] += until_stop - until_start
            start = stop
        i += 1


@kernel
def add_tokens(state: Any, row: int, pool: int, t: float, tokens: float) -> None:
    """Add ``tokens`` to ``row`` of a pool's series, in the interval that contains ``t``."""
    clock, after = state.clock[0], state.series.shape[2] - 1
    i = min(int(t / clock.interval), after - 1) if t <= clock.duration else after
    state.series[row, pool, i] += tokens


@kernel
def count_tokens(state: Any, slot: int, t: float, decoded: int, first_tokens: int) -> None:
    """Count the tokens of an instance's run of iterations that ended at ``t``.

    They are added to the pool's totals and to the series. ``decoded`` are output tokens of decodes,
    ``first_tokens`` those of finished prompts. Prefill tokens count at ``t``, output tokens at the
    end of each iteration.
    """
    instance, clock = state.instances[slot], state.clock[0]
    pool = state.pools[instance.pool]
    pool.prompt_tokens += instance.chunk
    pool.output_tokens += decoded + first_tokens - instance.tokens_counted
    instance.tokens_counted = 0
    if instance.chunk > 0:
        add_tokens(state, S_INPUT, instance.pool, t, instance.chunk)
    first_end = instance.run_start + instance.iteration_s
    # Common case: all iterations of the run end in one interval, or after the window.
    is_same = t <= clock.duration and int(first_end / clock.interval) == int(t / clock.interval)
    if is_same or first_end > clock.duration:
        add_tokens(state, S_OUTPUT, instance.pool, t, decoded + first_tokens)
        add_tokens(state, S_ITERATIONS, instance.pool, t, instance.iterations)
        return
    # Fused decode iterations never carry prefills, so several iterations have no first tokens.
    add_tokens(state, S_OUTPUT, instance.pool, t, first_tokens)
    j = 1
    # Add all iterations that end in the same interval at once.
    while j <= instance.iterations:
        end = iteration_end(instance, j)
        count = instance.iterations - j + 1  # iterations that end in the same interval as j
        if end <= clock.duration:
            interval_end = min((int(end / clock.interval) + 1) * clock.interval, clock.duration)
            count = max(iterations_done(instance, interval_end) - j + 1, 1)
        add_tokens(state, S_OUTPUT, instance.pool, end, instance.decodes * count)
        add_tokens(state, S_ITERATIONS, instance.pool, end, count)
        j += count
