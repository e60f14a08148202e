"""Where a request goes (methods.md E4): region, then instance, and when deferred ones are let in.

Where the router sees queues (``fleet.SEES``) no request waits in one region while another has an
instance that takes it at its next iteration.

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
    best_of_pool,
    is_below,
    least_used,
    pool_used,
)
from simulation.engine.state import THEN


@kernel
def _has_room(s: Any, slot: int, r: int, t: float) -> bool:
    """Whether an instance takes request ``r`` at its next iteration: whether its token budget, its
    batch and its KV memory leave room behind what it has and what waits there."""
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
    """The instance of the pool with the least effective memory, the first of several. Where the
    router sees queues of those that take the request at their next iteration; where none does, of
    the pool with the fewest seconds of prompts before it."""
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
    """The instance that the router takes over all pools of an endpoint for request ``r``, among
    those that can ever hold it; -1: none."""
    return int(_best(s, model * s.latency.shape[0] + region, t, r))


@kernel
def takes(s: Any, model: int, region: int, slot: int, r: int, t: float) -> bool:
    """Whether request ``r`` need not wait at ``slot`` of an endpoint, nor, where prompts are handed
    over, at the instance that would take it from there."""
    if not _has_room(s, slot, r, t):
        return False
    then = s.handover[model, THEN]
    if then < 0:
        return True
    other = _best(s, then * s.latency.shape[0] + region, t, r)
    return bool(other >= 0 and _has_room(s, other, r, t))


@kernel
def _below(s: Any, model: int, region: int, t: float, threshold: float) -> bool:
    """Whether the memory of an endpoint is below, and where prompts are handed over that of the
    endpoint which takes them."""
    regions, then = s.latency.shape[0], s.handover[model, THEN]
    return bool(
        is_below(s, model * regions + region, t, threshold)
        and (then < 0 or is_below(s, then * regions + region, t, threshold))
    )


@kernel
def _planned(s: Any, model: int, home: int, r: int) -> int:
    """The region that a request goes to by the shares planned for its home, the one that is owed
    the most tokens; -1: there are none. None ever owes or is owed more than a few prompts."""
    best, most, isl = -1, 0.0, s.requests[r].isl
    for region in range(s.latency.shape[0]):
        share = s.shares[model, home, region]
        if share > 0.0:
            s.owed[model, home, region] += share * isl
            if best < 0 or s.owed[model, home, region] > most:
                best, most = region, s.owed[model, home, region]
    if best >= 0:
        s.owed[model, home, best] -= isl
    return best


@kernel
def _soonest(s: Any, model: int, home: int, t: float, r: int) -> tuple[int, int]:
    """``(region, instance)`` of those that take the request without a wait, else of all, with the
    fewest seconds of prompts before it and on the way; the earlier in order of latency of several;
    (-1, -1): no instance is ready."""
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
    """``(region, instance)``: as planned, where shares are; else home first, then by latency from
    home, the first region under the threshold, else the least utilised; (-1, -1) when none has a
    ready instance. Where the router sees queues a region in which the request would wait is passed
    over, and where it would wait in each it goes where it is served the soonest. Regions that the
    way to is closed are not in the order, nor in the shares."""
    regions = s.latency.shape[0]
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
    """How many deferred requests an endpoint takes when it signals."""
    if _below(s, model, region, t, s.clock[0].release_two_below):
        return 2
    return 1 if _below(s, model, region, t, s.clock[0].release_one_below) else 0
