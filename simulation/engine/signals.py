"""Sums since the last scaling decision, kept in the records of pools.

Sums grow with events. ``measure`` adds the part of the runs still in progress. ``reset`` sets the
sums to zero.
"""

from __future__ import annotations

from typing import Any

from simulation.compiler import kernel
from simulation.engine.accounting import settle
from simulation.engine.progress import iterations_done
from simulation.lifecycle import LENT, OFF

FIELDS = (
    "ttft_sum",
    "ttft_n",
    "tbt_sum",
    "tbt_n",
    "late_first",
    "late_done",
    "done",
    "busy_s",
    "batch_s",
    "compute_s",
    "computed",
    "given",
    "hits",
    "lookups",
    "evicted",
    "failed",
)


@kernel
def measure(state: Any, t: float) -> None:
    """Bring the sums of every pool up to ``t``.

    ``compute_s`` is the SM-activity proxy (modelled): the time in which computing binds. It is the
    time that the computed tokens would take at the pace of a full prefill iteration, and at most
    the busy time. Decodes mostly read memory. So a decoding batch is busy with little activity,
    like the multiprocessors of a GPU.
    """
    for p in range(state.pools.shape[0]):
        pool = state.pools[p]
        for slot in range(pool.first, pool.first + pool.top):
            instance = state.instances[slot]
            if instance.status == OFF or instance.status == LENT:
                continue
            settle(state, slot, t)
            done = iterations_done(instance, t) * instance.decodes
            pool.given += done - instance.told
            instance.told = done
        pool.compute_s = min(pool.busy_s, pool.token_s * (pool.computed + pool.given))


def reset(pools: Any) -> None:
    """Set the sums in every record of ``pools`` to zero."""
    for name in FIELDS:
        pools[name] = 0
