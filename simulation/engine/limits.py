"""Limits that a policy may set while a pool runs: the batch, and the share of KV memory in use."""

from __future__ import annotations

from typing import Any

from simulation.compiled import kernel
from simulation.engine.ranking import rank
from simulation.engine.waiting import interrupt
from simulation.lifecycle import OFF, STARTING


@kernel
def apply_limits(s: Any, max_batch: Any, kv_share: Any, t: float) -> None:
    """From each instance's next iteration boundary on, ``max_batch[pools]`` sequences in a batch
    and ``kv_share[pools]`` of its KV memory.

    A batch of 0 and a negative share leave what is. Batches are clipped to what the profile allows,
    and those larger stay until requests end. Memory is clipped to what the largest request of the
    trace needs and to all there is; where more is in use the requests admitted last give way
    (``fleet.WHEN_FULL``).
    """
    for p in range(s.pools.shape[0]):
        pool = s.pools[p]
        batch, usable = pool.max_batch, pool.usable
        if max_batch[p] > 0:
            batch = min(max_batch[p], pool.most_batch)
        if kv_share[p] >= 0.0:
            usable = min(max(int(kv_share[p] * pool.kv_capacity), pool.needed), pool.kv_capacity)
        if batch == pool.max_batch and usable == pool.usable:
            continue
        pool.max_batch, pool.usable = batch, usable
        for slot in range(pool.first, pool.first + pool.top):
            status = s.instances[slot].status
            if status != OFF and status != STARTING:
                interrupt(s, slot, t)
                rank(s, slot)
