"""Where a request goes (methods.md E4): region, then instance, and when deferred ones are let in.

Compiled helpers of the engine; ``s`` is its ``State`` (``simulation.engine.state``). Instances are
only looked at, and their progress inside a run of equal decode iterations is worked out for the
instant asked about: also which cached blocks have had to make room since it began.
"""

from __future__ import annotations

from typing import Any

from simulation.compiled import kernel
from simulation.engine.prefix import longest, trim
from simulation.engine.progress import iterations_done
from simulation.engine.ranking import (
    NEVER,
    PREFIX_AWARE,
    best_of_endpoint,
    is_below,
    least_used,
    pool_used,
)


@kernel
def _best(s: Any, endpoint: int, t: float, r: int) -> int:
    first = s.endpoint_start[endpoint]
    if first == s.endpoint_start[endpoint + 1]:
        return -1
    if s.pools[s.endpoint_pools[first]].router == PREFIX_AWARE:
        return int(_best_by_prefix(s, endpoint, t, r))
    need = s.requests[r].isl + s.requests[r].osl
    return int(best_of_endpoint(s, endpoint, t, need))


@kernel
def _best_by_prefix(s: Any, endpoint: int, t: float, r: int) -> int:
    """The instance with the fewest prompt tokens to compute before the first token of request
    ``r``, then with the fewest remaining tokens, then the lowest; -1: none. The tree of pending
    tokens leaves out those that could not win with all blocks of the prompt cached."""
    request = s.requests[r]
    best, least, least_work = -1, 0, 0
    for i in range(s.endpoint_start[endpoint], s.endpoint_start[endpoint + 1]):
        pool = s.pools[s.endpoint_pools[i]]
        if request.isl + request.osl > pool.longest:
            continue
        most = request.isl if pool.blocks > 0 else 0
        node = 1
        while True:
            bound = s.ranking[pool.tree + node].bound
            if bound != NEVER and (best < 0 or bound - most <= least):
                if node < pool.width:
                    node = 2 * node
                    continue
                slot = pool.first + node - pool.width
                instance = s.instances[slot]
                done = iterations_done(instance, t) * instance.decodes
                hit = 0
                if pool.blocks > 0:
                    trim(s, slot, instance.kv + done)
                    found, _ = longest(s, slot, r)
                    hit = found * pool.block_tokens
                key, work = instance.pending - hit, instance.work - done - hit
                if best < 0 or key < least or (key == least and work < least_work):
                    best, least, least_work = slot, key, work
            while node > 1 and node & 1:
                node >>= 1
            if node == 1:
                break
            node += 1
    return best


@kernel
def choose_instance(s: Any, model: int, region: int, t: float, r: int) -> int:
    """The instance that the router takes over all pools of an endpoint for request ``r``, among
    those that can ever hold it; -1: none."""
    return int(_best(s, model * s.latency.shape[0] + region, t, r))


@kernel
def choose_region(s: Any, model: int, home: int, t: float, r: int) -> tuple[int, int]:
    """``(region, instance)``: home first, then by latency from home, the first region under the
    threshold, else the least utilised; (-1, -1) when none has a ready instance."""
    regions = s.latency.shape[0]
    for i in range(regions):
        candidate = s.region_order[home, i]
        endpoint = model * regions + candidate
        if regions > 1 and not is_below(s, endpoint, t, s.clock[0].region_threshold):
            continue
        slot = _best(s, endpoint, t, r)
        if slot >= 0:
            return candidate, slot
    if regions == 1:
        return -1, -1
    need = s.requests[r].isl + s.requests[r].osl
    region, slot = least_used(s, s.region_order[home], model * regions, t, need)
    return region, _best(s, model * regions + region, t, r) if slot >= 0 else -1


@kernel
def releases(s: Any, model: int, region: int, t: float) -> int:
    """How many deferred requests an endpoint takes when it signals."""
    endpoint = model * s.latency.shape[0] + region
    if is_below(s, endpoint, t, s.clock[0].release_two_below):
        return 2
    return 1 if is_below(s, endpoint, t, s.clock[0].release_one_below) else 0


@kernel
def pool_utilisation(s: Any, t: float, out: Any) -> None:
    """Effective memory utilisation of every pool into ``out[pools]``; 0 without ready instances."""
    for p in range(s.pools.shape[0]):
        capacity = s.pools[p].ready * s.pools[p].kv_capacity
        out[p] = pool_used(s, p, t) / capacity if capacity > 0 else 0.0
