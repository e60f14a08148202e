"""Signals that a policy may read: figures of each pool since the last scaling decision.

They are computed from sums in the records of pools, which are then reset.
"""

from dataclasses import fields
from typing import Any

import numpy as np

from simulation.compiler import kernel
from simulation.engine.accounting import settle
from simulation.engine.progress import iterations_done
from simulation.lifecycle import LENT, OFF
from simulation.policy import Signals

TTFT, TENFOLD_TBT = range(2)  # rows of State.latency_counts
# Rows of the table that ``read_signals`` fills, in the order of the fields of Signals.
COUNT = len(fields(Signals))
BUSY, SM_ACTIVITY, PREFILL_TPS, DECODE_TPS, BATCH, MEAN_TTFT, MEAN_TBT = range(7)
LATE_FIRST, LATE_DONE, HIT_RATE, EVICTED_TPS, PREEMPTIONS, FAILURES = range(7, COUNT)


@kernel
def count_latency(state: Any, kind: int, p: int, seconds: float) -> None:
    """Count a latency of pool ``p`` in its bucket; ``kind`` is TTFT or TENFOLD_TBT."""
    bucket = 0
    for i in range(state.latency_bounds.shape[0]):  # without branches, unlike a binary search
        bucket += seconds > state.latency_bounds[i]
    state.latency_counts[kind, p, bucket] += 1


@kernel
def forget_latencies(state: Any) -> None:
    """Reset the counts of latencies of all pools to 0."""
    for kind in range(state.latency_counts.shape[0]):
        for p in range(state.latency_counts.shape[1]):
            for bucket in range(state.latency_counts.shape[2]):
                state.latency_counts[kind, p, bucket] = 0


@kernel
def read_signals(state: Any, t: float, since_s: float, last_totals: Any, signals: Any) -> None:
    """Fill ``signals [COUNT, pool]`` with the signals of the last ``since_s`` seconds before ``t``.

    The sums in the records of pools are reset to 0. ``last_totals [2, pool]`` has two counters as
    they were at the last decision: the seconds that instances served, and the preemptions. It is
    set to their present values.
    """
    _update_sums(state, t)
    for p in range(state.pools.shape[0]):
        pool = state.pools[p]
        served_s = pool.idle_s + pool.prefill_s + pool.decode_s
        ready_s, last_totals[0, p] = served_s - last_totals[0, p], served_s
        signals[BUSY, p] = _at_most_one(_share(pool.busy_s, ready_s))
        signals[SM_ACTIVITY, p] = _at_most_one(_share(pool.compute_s, ready_s))
        signals[PREFILL_TPS, p] = pool.prompt_tokens / since_s
        signals[DECODE_TPS, p] = pool.output_tokens / since_s
        signals[BATCH, p] = _share(pool.batch_s, ready_s)
        signals[MEAN_TTFT, p] = _share(pool.ttft_sum, pool.ttft_n)
        signals[MEAN_TBT, p] = _share(pool.tbt_sum, pool.tbt_n)
        signals[LATE_FIRST, p] = _share(pool.late_first_tokens, pool.ttft_n)
        signals[LATE_DONE, p] = _share(pool.late_completed, pool.completed)
        signals[HIT_RATE, p] = _share(pool.hits, pool.lookups)
        signals[EVICTED_TPS, p] = pool.evicted / since_s
        signals[PREEMPTIONS, p] = pool.preemptions - last_totals[1, p]
        last_totals[1, p] = pool.preemptions
        signals[FAILURES, p] = pool.failed
        pool.ttft_sum = pool.tbt_sum = pool.busy_s = pool.batch_s = pool.compute_s = 0.0
        pool.ttft_n = pool.tbt_n = pool.late_first_tokens = pool.late_completed = pool.completed = 0
        pool.prompt_tokens = pool.output_tokens = pool.hits = pool.lookups = pool.evicted = (
            pool.failed
        ) = 0


@kernel
def _share(amount: float, divisor: float) -> float:
    """Return ``amount`` over ``divisor``, or NaN if the divisor is not positive."""
    return float(amount / divisor) if divisor > 0 else np.nan


@kernel
def _at_most_one(share: float) -> float:
    """Return ``share``, but at most 1, which rounding may exceed."""
    return 1.0 if share > 1.0 else share


@kernel
def _update_sums(state: Any, t: float) -> None:
    """Bring the sums in the records of pools up to ``t``.

    ``settle`` adds the busy time, and this function the output tokens of the runs in progress.
    ``compute_s`` is the SM-activity proxy (modelled): the time that the computed tokens would take
    at the rate of a full prefill iteration, and at most the busy time. Decodes mostly read memory.
    So a decoding batch is busy with little activity, like the multiprocessors of a GPU.
    """
    for p in range(state.pools.shape[0]):
        pool = state.pools[p]
        for slot in range(pool.first_slot, pool.first_slot + pool.slots_used):
            instance = state.instances[slot]
            if instance.status == OFF or instance.status == LENT:  # neither serves
                continue
            settle(state, slot, t)
            run_tokens = iterations_done(instance, t) * instance.decodes  # since the run began
            pool.output_tokens += run_tokens - instance.tokens_counted
            instance.tokens_counted = run_tokens
        pool.compute_s = min(pool.busy_s, pool.token_s * (pool.prompt_tokens + pool.output_tokens))
