"""Limits that a policy may change while a pool runs: batch size and usable KV memory."""

from typing import Any

from simulation.compiler import kernel
from simulation.engine.queues import interrupt
from simulation.engine.routing_order import rank
from simulation.lifecycle import OFF, STARTING


@kernel
def apply_limits(state: Any, max_batch: Any, kv_share: Any, t: float) -> None:
    """Apply new limits from each instance's next iteration boundary on.

    ``max_batch[pools]`` is the largest number of sequences in a batch; 0 keeps the present limit.
    ``kv_share[pools]`` is the usable share of KV memory; a negative share keeps the present one.

    Batches are clipped to the limit of the profile. A larger running batch shrinks as requests end.
    Memory is clipped to at least the need of the largest request, and at most all of it. If more is
    in use, the requests admitted last are preempted (``fleet.WHEN_FULL``).
    """
    for p in range(state.pools.shape[0]):
        pool = state.pools[p]
        batch, usable = pool.max_batch, pool.usable
        if max_batch[p] > 0:
            batch = min(max_batch[p], pool.most_batch)
        if kv_share[p] >= 0.0:
            usable = min(max(int(kv_share[p] * pool.kv_capacity), pool.needed), pool.kv_capacity)
        if batch == pool.max_batch and usable == pool.usable:
            continue
        pool.max_batch, pool.usable = batch, usable
        for slot in range(pool.first, pool.first + pool.top):
            status = state.instances[slot].status
            if status != OFF and status != STARTING:
                interrupt(state, slot, t)
                rank(state, slot)
