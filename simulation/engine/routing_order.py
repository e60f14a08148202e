"""Choice of a router's instance, without examining every instance.

The router compares *keys* of instances, such as their remaining tokens, and the least key wins.
Keys change with every iteration. Within a run of iterations, a key cannot fall below a bound that
is known when the run begins. A tournament tree has such a bound for each ready instance of a pool,
and the time until which it is valid. A pool with few instances has no tree, unless its router looks
for cached prompts. A search computes the present key of the instance with the least bound. If key
and bound are equal, no other instance has a lower key, and the search ends. Otherwise the bound
rises to the key and the search goes on. So the result equals that of comparing all instances.

Remaining tokens fall during a run, so their bounds expire. A new bound lies half-way between the
key of the instance and that of the last search. It is renewed once the instance may have reached
it. So an instance that is close to being chosen is examined more often than others, but only a few
times per run.

Each pool also keeps a lower and an upper limit of the KV tokens in use. They mostly suffice to
compare utilization with a threshold.
"""

from typing import Any

import numpy as np

from simulation.compiler import kernel
from simulation.engine.progress import iteration_end, iterations_done
from simulation.fleet import ROUTERS
from simulation.lifecycle import READY

LEAST_REMAINING, LEAST_PENDING, ROUND_ROBIN, _, PREFIX_AWARE = range(len(ROUTERS))
FEW = 8  # instances that are compared directly, which costs less than keeping a tree
NEVER = 1 << 62  # bound of an instance that takes no requests


@kernel
def _key(router: int, instance: Any, done: int) -> int:
    """Return the number by which a router compares instances; the least wins.

    ``router`` is an index into ``fleet.ROUTERS``. ``done`` are the output tokens of the instance
    since its run of iterations began.
    """
    if router == LEAST_REMAINING:
        return int(instance.work - done)
    if router in (LEAST_PENDING, PREFIX_AWARE):
        return int(instance.pending)
    if router == ROUND_ROBIN:
        return int(instance.turn)
    return int(instance.kv + instance.queued + done)


@kernel
def rank(state: Any, slot: int) -> None:
    """Update the router's data of an instance, after any change except the passing of time.

    They are the bound of its key in the tree, and the limits of its and its pool's KV tokens in
    use.
    """
    instance = state.instances[slot]
    pool = state.pools[instance.pool]
    low = high = 0
    if instance.status == READY:
        # KV memory grows by a token per decode and iteration, from ``low`` to ``high`` in the run.
        low, high = instance.kv, instance.kv + _run_growth(instance)
    pool.kv_low += low - instance.kv_low
    pool.kv_high += high - instance.kv_high
    instance.kv_low, instance.kv_high = low, high
    if pool.ranked:
        bound = _lowest_key(pool.router, instance) if instance.status == READY else NEVER
        _store_bound(state, pool, slot, bound, np.inf)


@kernel
def rank_all(state: Any, p: int) -> None:
    """Begin the tree of a pool once it has more instances than are compared directly."""
    pool = state.pools[p]
    if pool.slots_used > FEW and not pool.ranked:
        pool.ranked = 1
        for slot in range(pool.first_slot, pool.first_slot + pool.slots_used):
            rank(state, slot)


@kernel
def _run_growth(instance: Any) -> int:
    """Return the output tokens of an instance's run of iterations, without its last iteration."""
    return int((instance.iterations - 1) * instance.decodes) if instance.iterations > 1 else 0


@kernel
def _lowest_key(router: int, instance: Any) -> int:
    """Return the lowest routing key of an instance while its present run of iterations lasts."""
    return int(_key(router, instance, _run_growth(instance) if router == LEAST_REMAINING else 0))


@kernel
def _best_of_few(state: Any, pool: Any, t: float) -> tuple[int, int]:
    """Return the ready instance of a pool without a tree that has the least key, and that key."""
    best, lowest = -1, 0
    for slot in range(pool.first_slot, pool.first_slot + pool.slots_used):
        instance = state.instances[slot]
        if instance.status != READY:
            continue
        # Its key cannot fall below this while its run of iterations lasts.
        if best >= 0 and _lowest_key(pool.router, instance) >= lowest:
            continue
        done = iterations_done(instance, t) * instance.decodes
        key = _key(pool.router, instance, done)
        if best < 0 or key < lowest:
            best, lowest = slot, key
    return best, lowest


@kernel
def _store_bound(state: Any, pool: Any, slot: int, bound: int, until: float) -> None:
    """Store the bound of an instance's key in the tree of its pool, valid until ``until``."""
    node = pool.width + slot - pool.first_slot
    leaf = state.ranking[pool.tree + node]
    leaf.bound, leaf.until = bound, until
    while node > 1:
        node >>= 1
        above = state.ranking[pool.tree + node]
        left, right = state.ranking[pool.tree + 2 * node], state.ranking[pool.tree + 2 * node + 1]
        bound, until = min(left.bound, right.bound), min(left.until, right.until)
        if above.bound == bound and above.until == until:
            break
        above.bound, above.until = bound, until


@kernel
def _raise_bound(state: Any, pool: Any, slot: int, key: int, done: int, old: int) -> None:
    """Store a lower bound of an instance's routing key, above the bound ``old``, and its end time.

    ``key`` is the key after ``done`` iterations of the present run. Each further iteration lowers
    it by the number of decodes, until it is below the bound. A lower bound therefore holds for
    longer. It is chosen if the instance is unlikely to be next: its key is far above the last one
    that won in the pool.
    """
    instance = state.instances[slot]
    if pool.router != LEAST_REMAINING:  # only this key falls within a run
        _store_bound(state, pool, slot, key, np.inf)
        return
    # Further iterations for which the bound holds: half-way to the last lowest key.
    further = max(key - pool.last_key, 0) // (2 * max(instance.decodes, 1))
    further = min(further, instance.iterations - 1 - done)
    if key - further * instance.decodes <= old:
        further = 0
    last = done + further
    until = iteration_end(instance, last + 1) if last < instance.iterations - 1 else np.inf
    _store_bound(state, pool, slot, key - further * instance.decodes, until)


@kernel
def _renew_bounds(state: Any, pool: Any, t: float) -> None:
    """Renew the bounds of a pool's tree that have expired by ``t``."""
    while state.ranking[pool.tree + 1].until < t:
        node = 1
        while node < pool.width:
            node = 2 * node
            if state.ranking[pool.tree + node].until >= t:
                node += 1
        slot = pool.first_slot + node - pool.width
        instance = state.instances[slot]
        done = iterations_done(instance, t)
        _raise_bound(
            state, pool, slot, _key(pool.router, instance, done * instance.decodes), done, -NEVER
        )


@kernel
def best_of_pool(state: Any, p: int, t: float) -> tuple[int, int]:
    """Return the ready instance of a pool with the least key at ``t``, and that key.

    The lowest slot wins a tie. The instance is -1 if none is ready.
    """
    pool = state.pools[p]
    if not pool.ranked:
        best, lowest = _best_of_few(state, pool, t)
        return int(best), int(lowest)
    _renew_bounds(state, pool, t)
    while True:
        bound = state.ranking[pool.tree + 1].bound
        if bound == NEVER:
            return -1, 0
        node = 1
        while node < pool.width:
            node = 2 * node
            if state.ranking[pool.tree + node].bound != bound:
                node += 1
        slot = pool.first_slot + node - pool.width
        instance = state.instances[slot]
        done = iterations_done(instance, t)
        key = _key(pool.router, instance, done * instance.decodes)
        # All other bounds are at least as high, so no other instance has a lower key.
        if key == bound:
            pool.last_key = key
            return slot, key
        _raise_bound(state, pool, slot, key, done, bound)


@kernel
def best_of_endpoint(state: Any, endpoint: int, t: float, need: int) -> int:
    """Return the instance with the least key over all pools of an endpoint; -1: none is ready.

    Only pools that can ever serve a request of ``need`` tokens count.
    """
    best, lowest = -1, 0
    for i in range(state.endpoint_start[endpoint], state.endpoint_start[endpoint + 1]):
        p = state.endpoint_pools[i]
        if need > state.pools[p].longest:
            continue
        slot, key = best_of_pool(state, p, t)
        if slot >= 0 and (best < 0 or key < lowest):
            best, lowest = slot, key
    return best


@kernel
def pool_used(state: Any, p: int, t: float) -> int:
    """Return the KV tokens that the ready instances of a pool use at ``t``."""
    pool = state.pools[p]
    used, ready_left = 0, pool.ready
    for slot in range(pool.first_slot, pool.first_slot + pool.slots_used):
        if ready_left == 0:
            break
        instance = state.instances[slot]
        if instance.status == READY:
            ready_left -= 1
            used += instance.kv + iterations_done(instance, t) * instance.decodes
    return int(used)


@kernel
def endpoint_used(state: Any, endpoint: int, t: float) -> float:
    """Return the KV memory utilization of an endpoint's ready instances at ``t``; 1 without any.

    An endpoint is the pools of a service in a region.
    """
    used, capacity = 0, 0
    for i in range(state.endpoint_start[endpoint], state.endpoint_start[endpoint + 1]):
        p = state.endpoint_pools[i]
        used += pool_used(state, p, t)
        capacity += state.pools[p].ready * state.pools[p].kv_capacity
    return used / capacity if capacity > 0 else 1.0


@kernel
def _bounds_of_used(state: Any, endpoint: int) -> tuple[float, float]:
    """Return limits between which ``endpoint_used`` lies; (1, 1) without ready instances."""
    low, high, capacity = 0, 0, 0
    for i in range(state.endpoint_start[endpoint], state.endpoint_start[endpoint + 1]):
        pool = state.pools[state.endpoint_pools[i]]
        low += pool.kv_low
        high += pool.kv_high
        capacity += pool.ready * pool.kv_capacity
    if capacity == 0:
        return 1.0, 1.0
    return low / capacity, high / capacity


@kernel
def least_utilised_instance(
    state: Any, order: Any, first: int, t: float, need: int
) -> tuple[int, int]:
    """Return the region with the least KV memory utilization, and its best instance.

    (-1, -1): no instance is ready. Only pools that can ever serve a request of ``need`` tokens
    count. ``order`` lists the regions, and ends with -1; the earlier one wins a tie. The endpoint
    in region r is number ``first + r``. Instances are examined only if the limits of the pools do
    not decide.
    """
    region, instance, ceiling = -1, -1, np.inf
    for i in range(order.shape[0]):
        r = order[i]
        if r < 0:
            break
        # A region whose lower limit is above the ceiling cannot be the least used.
        if best_of_endpoint(state, first + r, t, need) >= 0:
            ceiling = min(ceiling, _bounds_of_used(state, first + r)[1])
    lowest_use = -1.0  # utilization of the region found; -1: not computed yet
    for i in range(order.shape[0]):
        r = order[i]
        if r < 0:
            break
        low = _bounds_of_used(state, first + r)[0]
        if low > ceiling or (lowest_use >= 0.0 and low >= lowest_use):
            continue
        slot = best_of_endpoint(state, first + r, t, need)
        if slot < 0:
            continue
        if region >= 0:
            if lowest_use < 0.0:
                lowest_use = endpoint_used(state, first + region, t)
            used = endpoint_used(state, first + r, t)
            if used >= lowest_use:
                continue
            lowest_use = used
        region, instance = r, slot
    return region, instance


@kernel
def is_below(state: Any, endpoint: int, t: float, threshold: float) -> bool:
    """Return whether the KV memory utilization of an endpoint at ``t`` is below ``threshold``."""
    # Try the limits of the pools first: reading every instance is slow.
    low, high = _bounds_of_used(state, endpoint)
    if high < threshold:
        return True
    if low >= threshold:
        return False
    return bool(endpoint_used(state, endpoint, t) < threshold)
