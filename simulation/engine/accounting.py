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
    elapsed_s = t - instance.run_start_s  # iteration j takes iteration_s + growth_s (j - 1)
    if elapsed_s == 0.0 or instance.run_iterations == 1:  # no iteration ended: half of the calls
        return float(instance.kv_tokens * elapsed_s)
    ended = 0.0  # iterations of the run that ended by t
    if instance.growth_s != 0.0:
        last = instance.run_iterations - 1  # most calls end with their run, so try that first
        ended = float(last if iteration_end(instance, last) < t else iterations_done(instance, t))
    elif instance.iteration_s > 0.0:
        ended = min(np.floor(elapsed_s / instance.iteration_s), float(instance.run_iterations - 1))
    # From the end of each iteration on, each decode has one more token. Sum the seconds from those
    # ends to ``t``, at first as if all iterations were as long as the first: iteration j ended
    # (ended - j) iterations and ``since_last_s`` ago.
    iteration_pairs = ended * (ended - 1.0) / 2.0
    since_last_s = elapsed_s - ended * instance.iteration_s
    decode_token_s = instance.iteration_s * ended * (ended - 1.0) / 2.0 + ended * since_last_s
    # Growing iterations end later than equal ones: by growth_s j (j - 1) / 2 for the j-th.
    decode_token_s -= instance.growth_s * iteration_pairs * (ended + 1.0) / 3.0
    return float(instance.kv_tokens * elapsed_s + instance.decodes * decode_token_s)


@kernel
def _settle_after(state: Any, slot: int, start_s: float, t: float) -> None:
    """Count the time from ``start_s`` to ``t`` of an iteration that lies after the window.

    An instance with work is paid from the end of the window to the end of its last iteration. Idle
    time between iterations is included, and time after the last one is not.
    """
    instance, after_window = state.instances[slot], state.series.shape[2] - 1
    pool = state.pools[instance.pool]
    pool.kept_s += t - max(instance.paid_until_s, state.clock[0].window_s)
    instance.paid_until_s = t
    if instance.prefill_tokens > 0:
        pool.after_prefill_s += t - start_s
    else:
        pool.after_decode_s += t - start_s
    state.series[S_BUSY, instance.pool, after_window] += t - start_s
    state.series[S_BATCH, instance.pool, after_window] += (t - start_s) * instance.running


@kernel
def settle(state: Any, slot: int, t: float) -> None:
    """Count the seconds of an instance by status and work, from the last call up to ``t``.

    Seconds in the window go to the totals of the pool and to the series. After the window, only
    time up to the end of the last iteration counts, and goes to the totals of ``AfterWindow``.
    """
    instance, clock = state.instances[slot], state.clock[0]
    start_s = instance.counted_until_s
    end_s = min(t, clock.window_s)
    if t <= start_s:
        return
    instance.counted_until_s = t
    if instance.status == OFF:
        return
    pool = state.pools[instance.pool]
    busy = instance.run_iterations > 0
    if busy and t > clock.window_s:
        _settle_after(state, slot, max(start_s, clock.window_s), t)
    if end_s <= start_s:
        return
    if instance.status == STARTING:
        status_row = S_STARTING
        pool.starting_s += end_s - start_s
    elif instance.status == LENT:
        status_row = S_LENT
        pool.donated_s += end_s - start_s
    else:
        status_row = S_READY if instance.status == READY else S_DRAINING
        if not busy:
            pool.idle_s += end_s - start_s
        else:
            pool.busy_s += end_s - start_s
            pool.batch_s += (end_s - start_s) * instance.running
            if instance.prefill_tokens > 0:
                pool.prefill_s += end_s - start_s
            else:
                pool.decode_s += end_s - start_s
    _add_to_series(state, slot, status_row, start_s, end_s)


@kernel
def _add_to_series(state: Any, slot: int, status_row: int, start_s: float, end_s: float) -> None:
    """Add the time of an instance from ``start_s`` to ``end_s`` to the series, split by interval.

    ``status_row`` is the row for the status, such as ``S_READY``. Busy time, batch and KV use are
    added to their rows. The last column of the series, after the window, gets nothing here.
    """
    instance, interval_s = state.instances[slot], state.clock[0].interval_s
    last_interval = state.series.shape[2] - 2
    interval = min(int(start_s / interval_s), last_interval)
    while start_s < end_s:
        part_end_s = end_s if interval == last_interval else min(end_s, (interval + 1) * interval_s)
        if part_end_s > start_s:
            part_s = part_end_s - start_s
            state.series[status_row, instance.pool, interval] += part_s
            if instance.run_iterations > 0:
                state.series[S_BUSY, instance.pool, interval] += part_s
                state.series[S_BATCH, instance.pool, interval] += part_s * instance.running
                # Utilization covers ready instances only, in use and in capacity.
                if instance.status == READY:
                    until_stop = _kv_token_seconds(instance, part_end_s)
                    until_start = _kv_token_seconds(instance, start_s)
                    state.series[S_KV, instance.pool, interval] += until_stop - until_start
            start_s = part_end_s
        interval += 1


@kernel
def add_tokens(state: Any, row: int, pool: int, t: float, tokens: float) -> None:
    """Add ``tokens`` to ``row`` of a pool's series, in the interval that contains ``t``."""
    clock, after_window = state.clock[0], state.series.shape[2] - 1
    interval = after_window
    if t <= clock.window_s:
        interval = min(int(t / clock.interval_s), after_window - 1)
    state.series[row, pool, interval] += tokens


@kernel
def count_tokens(state: Any, slot: int, t: float, decoded: int, first_tokens: int) -> None:
    """Count the tokens of an instance's run of iterations that ended at ``t``.

    They are added to the pool's totals and to the series. ``decoded`` are output tokens of decodes,
    ``first_tokens`` those of finished prompts. Prefill tokens count at ``t``, output tokens at the
    end of each iteration. ``tokens_counted`` of them are in the pool's totals already.
    """
    instance, clock = state.instances[slot], state.clock[0]
    pool = state.pools[instance.pool]
    pool.prompt_tokens += instance.prefill_tokens
    pool.output_tokens += decoded + first_tokens - instance.tokens_counted
    instance.tokens_counted = 0
    if instance.prefill_tokens > 0:
        add_tokens(state, S_INPUT, instance.pool, t, instance.prefill_tokens)
    first_end_s = instance.run_start_s + instance.iteration_s
    # Common case: all iterations of the run end in one interval, or after the window.
    first_interval = int(first_end_s / clock.interval_s)
    ends_together = t <= clock.window_s and first_interval == int(t / clock.interval_s)
    if ends_together or first_end_s > clock.window_s:
        add_tokens(state, S_OUTPUT, instance.pool, t, decoded + first_tokens)
        add_tokens(state, S_ITERATIONS, instance.pool, t, instance.run_iterations)
        return
    # Fused decode iterations never carry prefills, so several iterations have no first tokens.
    add_tokens(state, S_OUTPUT, instance.pool, t, first_tokens)
    first_left = 1  # number of the first iteration that is not added yet
    # Add all iterations that end in the same interval at once.
    while first_left <= instance.run_iterations:
        end_s = iteration_end(instance, first_left)
        # Iterations that end in the same interval as the first one left.
        same_interval = instance.run_iterations - first_left + 1
        if end_s <= clock.window_s:
            interval = int(end_s / clock.interval_s)
            interval_end_s = min((interval + 1) * clock.interval_s, clock.window_s)
            same_interval = max(iterations_done(instance, interval_end_s) - first_left + 1, 1)
        add_tokens(state, S_OUTPUT, instance.pool, end_s, instance.decodes * same_interval)
        add_tokens(state, S_ITERATIONS, instance.pool, end_s, same_interval)
        first_left += same_interval
