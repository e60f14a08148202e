"""What happened since the last control instant, kept in the records of pools.

Sums grow as things happen; ``measure`` brings those of time and of tokens up to an instant in the
middle of runs of iterations, ``reset`` begins anew.
"""

from __future__ import annotations

from typing import Any

from simulation.compiled import kernel
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
def measure(s: Any, t: float) -> None:
    """Bring the sums of every pool up to ``t``.

    ``compute_s`` is the SM-activity proxy (modelled): the time in which computing binds, taken as
    what the tokens computed would take at the pace of a full iteration of prompts, and at most the
    busy time. Decodes read memory most of the time, so that a batch that decodes is busy with
    little activity, as the multiprocessors of a GPU are.
    """
    for p in range(s.pools.shape[0]):
        pool = s.pools[p]
        for slot in range(pool.first, pool.first + pool.top):
            instance = s.instances[slot]
            if instance.status == OFF or instance.status == LENT:
                continue
            settle(s, slot, t)
            done = iterations_done(instance, t) * instance.decodes
            pool.given += done - instance.told
            instance.told = done
        pool.compute_s = min(pool.busy_s, pool.token_s * (pool.computed + pool.given))


def reset(pools: Any) -> None:
    """Begin anew: zero in every record of ``pools``."""
    for name in FIELDS:
        pools[name] = 0
