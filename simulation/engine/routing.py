"""Routing of requests (methods.md E4): region, then instance, and release of deferred ones.

The router may see queues (``fleet.SEES``). A request then waits only if no region has an instance
that takes it at its next iteration.

These are compiled helpers of the engine; ``s`` is its ``State`` (``simulation.engine.state``). They
do not change instances, except for evictions that are already due. Progress inside a run of equal
decode iterations, and cached blocks evicted since it began, are computed for the given instant.
"""

from __future__ import annotations

from typing import Any

from simulation.compiled import kernel
from simulation.engine.prefix import longest, trim
from simulation.engine.progress import iterations_done
from simulation.engine.routing_order import (
    NEVER,
    PREFIX_AWARE,
    best_of_endpoint,
    best_of_pool,
    is_below,
    least_used,
    pool_used,
)
from simulation.engine.state import THEN


@kernel
def _has_room(s: Any, slot: int, r: int, t: float) -> bool:
    """Return whether an instance takes request ``r`` at its next iteration.

    Token budget, batch and KV memory must have room after running and waiting requests.
    """
    instance = s.instances[slot]
    pool = s.pools[instance.pool]
    kv = instance.kv + iterations_done(instance, t) * instance.decodes
    return bool(
        instance.pending < pool.budget
        and instance.running + instance.waiting < pool.max_batch
        and kv + instance.queued + s.requests[r].isl + s.requests[r].generated < pool.usable
    )


@kernel
def _best(s: Any, endpoint: int, t: float, r: int) -> int:
    """Return the router's choice of an instance of an endpoint; -1: none."""
    first = s.endpoint_start[endpoint]
    if first == s.endpoint_start[endpoint + 1]:
        return -1
    if s.pools[s.endpoint_pools[first]].router == PREFIX_AWARE:
        return int(_best_by_prefix(s, endpoint, t, r))
    if s.clock[0].by_pool and s.endpoint_start[endpoint + 1] > first + 1:
        return int(_best_of_pools(s, endpoint, t, r))
    need = s.requests[r].isl + s.requests[r].osl
    return int(best_of_endpoint(s, endpoint, t, need))


@kernel
def _best_of_pools(s: Any, endpoint: int, t: float, r: int) -> int:
    """Return the instance of the pool with the least KV memory utilization; the first of several.

    If the router sees queues, pools that take the request at their next iteration come first. If no
    pool does, the one with the fewest seconds of prompts ahead wins.
    """
    need = s.requests[r].isl + s.requests[r].osl
    best, least, its_room = -1, 0.0, False
    for i in range(s.endpoint_start[endpoint], s.endpoint_start[endpoint + 1]):
        p = s.endpoint_pools[i]
        pool = s.pools[p]
        if need > pool.longest:
            continue
        slot, _ = best_of_pool(s, p, t)
        if slot < 0:
            continue
        room = not s.clock[0].sees_queues or _has_room(s, slot, r, t)
        if room:
            value = pool_used(s, p, t) / (pool.ready * pool.kv_capacity)
        else:
            value = s.instances[slot].pending * pool.token_s * pool.pace
        if best < 0 or (room and not its_room) or (room == its_room and value < least):
            best, least, its_room = slot, value, room
    return best


@kernel
def _best_by_prefix(s: Any, endpoint: int, t: float, r: int) -> int:
    """Return the instance with the fewest prompt tokens to compute before the first token of ``r``.

    Ties go to the fewest remaining tokens, then to the lowest slot. -1: none. The tree of pending
    tokens excludes instances that could not win even with every block of the prompt cached.
    """
    request = s.requests[r]
    best, least, least_work = -1, 0, 0
    for i in range(s.endpoint_start[endpoint], s.endpoint_start[endpoint + 1]):
        pool = s.pools[s.endpoint_pools[i]]
        if request.isl + request.osl > pool.longest:
            continue
        most = request.isl if pool.blocks > 0 else 0
        node = 1
        while True:
            # Depth-first search; a subtree is skipped if its bound cannot win.
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
                    # First carry out the evictions due to decodes since the run began.
                    trim(s, slot, instance.kv + done)
                    cached, _ = longest(s, slot, r)
                    hit = cached * pool.block_tokens
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
    """Return the router's choice over all pools of an endpoint for request ``r``; -1: none.

    Only pools with room for the request count.
    """
    return int(_best(s, model * s.latency.shape[0] + region, t, r))


@kernel
def takes(s: Any, model: int, region: int, slot: int, r: int, t: float) -> bool:
    """Return whether request ``r`` need not wait at ``slot`` of an endpoint.

    With prefill and decode pools the decode instance must not let it wait either.
    """
    if not _has_room(s, slot, r, t):
        return False
    then = s.handover[model, THEN]
    if then < 0:
        return True
    other = _best(s, then * s.latency.shape[0] + region, t, r)
    return bool(other >= 0 and _has_room(s, other, r, t))


@kernel
def _below(s: Any, model: int, region: int, t: float, threshold: float) -> bool:
    """Return whether the memory utilization of an endpoint is below a threshold.

    With prefill and decode pools both endpoints must be below it.
    """
    regions, then = s.latency.shape[0], s.handover[model, THEN]
    return bool(
        is_below(s, model * regions + region, t, threshold)
        and (then < 0 or is_below(s, then * regions + region, t, threshold))
    )


@kernel
def _planned(s: Any, model: int, home: int, r: int) -> int:
    """Return the region by the planned shares of the home region; -1: there are none.

    The region that is owed the most tokens wins. The debt never exceeds a few prompts.
    """
    best, most, isl = -1, 0.0, s.requests[r].isl
    for region in range(s.latency.shape[0]):
        share = s.shares[model, home, region]
        if share > 0.0:
            # Every share gains tokens, and the chosen region pays for the request. So over time
            # the tokens follow the shares.
            s.owed[model, home, region] += share * isl
            if best < 0 or s.owed[model, home, region] > most:
                best, most = region, s.owed[model, home, region]
    if best >= 0:
        s.owed[model, home, best] -= isl
    return best


@kernel
def _soonest(s: Any, model: int, home: int, t: float, r: int) -> tuple[int, int]:
    """Return ``(region, instance)`` that serves the request soonest; (-1, -1): none is ready.

    Instances that take it without a wait come first. Then the fewest seconds of prompts ahead plus
    latency win. The nearer region wins a tie.
    """
    regions = s.latency.shape[0]
    best, its_slot, its_wait, its_takes = -1, -1, 0.0, False
    for i in range(regions):
        region = s.region_order[home, i]
        if region < 0:
            break
        slot = _best(s, model * regions + region, t, r)
        if slot < 0:
            continue
        its = takes(s, model, region, slot, r, t)
        pool = s.pools[s.instances[slot].pool]
        wait = s.latency[home, region] + s.instances[slot].pending * pool.token_s * pool.pace
        if best < 0 or (its and not its_takes) or (its == its_takes and wait < its_wait):
            best, its_slot, its_wait, its_takes = region, slot, wait, its
    return best, its_slot


@kernel
def choose_region(s: Any, model: int, home: int, t: float, r: int) -> tuple[int, int]:
    """Return ``(region, instance)`` for a request; (-1, -1): no instance is ready.

    1. The region by planned shares, if there are any.
    2. From home, by latency: the first region with utilization below the threshold.
    3. The region with the least utilization.

    If the router sees queues, steps 1 and 2 skip regions in which the request would wait. If it
    would wait in the region of step 3, the region that serves it soonest is taken. Regions behind a
    closed path are neither in the order nor in the shares.
    """
    regions = s.latency.shape[0]
    # Common case, without the cost of comparing regions.
    if regions == 1:
        slot = _best(s, model, t, r)
        return 0 if slot >= 0 else -1, slot
    queues = s.clock[0].sees_queues
    if s.clock[0].planned:
        region = _planned(s, model, home, r)
        slot = _best(s, model * regions + region, t, r) if region >= 0 else -1
        if slot >= 0 and (not queues or takes(s, model, region, slot, r, t)):
            return region, slot
    for i in range(regions):
        region = s.region_order[home, i]
        if region < 0:
            break
        if not _below(s, model, region, t, s.clock[0].region_threshold):
            continue
        slot = _best(s, model * regions + region, t, r)
        if slot >= 0 and (not queues or takes(s, model, region, slot, r, t)):
            return region, slot
    need = s.requests[r].isl + s.requests[r].osl
    region, slot = least_used(s, s.region_order[home], model * regions, t, need)
    slot = _best(s, model * regions + region, t, r) if slot >= 0 else -1
    if slot >= 0 and queues and not takes(s, model, region, slot, r, t):
        region, slot = _soonest(s, model, home, t, r)
    return int(region), int(slot)


@kernel
def releases(s: Any, model: int, region: int, t: float) -> int:
    """Return how many deferred requests an endpoint takes when it has room."""
    if _below(s, model, region, t, s.clock[0].release_two_below):
        return 2
    return 1 if _below(s, model, region, t, s.clock[0].release_one_below) else 0
