"""Sums since the last scaling decision, in the records of pools, and signals computed from them."""

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


@kernel
def count_latency(state: Any, kind: int, p: int, seconds: float) -> None:
    """Count a latency of pool ``p`` in its bucket; ``kind`` is TTFT or TENFOLD_TBT."""
    bucket = 0
    for i in range(state.latency_bounds.shape[0]):  # without branches, unlike a binary search
        bucket += seconds > state.latency_bounds[i]
    state.latency_counts[kind, p, bucket] += 1


@kernel
def forget_latencies(state: Any) -> None:
    """Reset the counts of latencies to 0."""
    for kind in range(state.latency_counts.shape[0]):
        for p in range(state.latency_counts.shape[1]):
            for bucket in range(state.latency_counts.shape[2]):
                state.latency_counts[kind, p, bucket] = 0


@kernel
def read_signals(state: Any, t: float, since_s: float, before: Any, out: Any) -> None:
    """Fill ``out [COUNT, pools]`` with the signals of the last ``since_s`` seconds.

    The sums in the records of pools are reset to 0. ``before [2, pools]`` has two counters as they
    were at the last decision: the seconds that instances were ready, and the preemptions. It is
    set to their present values.
    """
    _update_sums(state, t)
    for p in range(state.pools.shape[0]):
        pool = state.pools[p]
        served_s = pool.idle_s + pool.prefill_s + pool.decode_s
        ready_s, before[0, p] = served_s - before[0, p], served_s
        # In the order of the fields of ``Signals``: shares of busy time and activity, tokens/s,
        # mean batch, mean TTFT and TBT, late shares, hit rate, evictions/s, preemptions, failures
        out[0, p] = _at_most_one(_share(pool.busy_s, ready_s))
        out[1, p] = _at_most_one(_share(pool.compute_s, ready_s))
        out[2, p], out[3, p] = pool.prompt_tokens / since_s, pool.output_tokens / since_s
        out[4, p] = _share(pool.batch_s, ready_s)
        out[5, p] = _share(pool.ttft_sum, pool.ttft_n)
        out[6, p] = _share(pool.tbt_sum, pool.tbt_n)
        out[7, p] = _share(pool.late_first, pool.ttft_n)
        out[8, p] = _share(pool.late_done, pool.done)
        out[9, p] = _share(pool.hits, pool.lookups)
        out[10, p] = pool.evicted / since_s
        out[11, p], before[1, p] = pool.preemptions - before[1, p], pool.preemptions
        out[12, p] = pool.failed
        pool.ttft_sum = pool.tbt_sum = pool.busy_s = pool.batch_s = pool.compute_s = 0.0
        pool.ttft_n = pool.tbt_n = pool.late_first = pool.late_done = pool.done = 0
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

    ``compute_s`` is the SM-activity proxy (modelled): the time that the computed tokens would take
    at the rate of a full prefill iteration, and at most the busy time. Decodes mostly read memory.
    So a decoding batch is busy with little activity, like the multiprocessors of a GPU.
    """
    for p in range(state.pools.shape[0]):
        pool = state.pools[p]
        for slot in range(pool.first, pool.first + pool.top):
            instance = state.instances[slot]
            if instance.status == OFF or instance.status == LENT:
                continue
            settle(state, slot, t)
            done = iterations_done(instance, t) * instance.decodes
            pool.output_tokens += done - instance.tokens_counted
            instance.tokens_counted = done
        pool.compute_s = min(pool.busy_s, pool.token_s * (pool.prompt_tokens + pool.output_tokens))
