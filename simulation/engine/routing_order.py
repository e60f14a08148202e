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
def _key(router: int, instance: Any, run_tokens: int) -> int:
    """Return the number by which a router compares instances; the least wins.

    ``router`` is an index into ``fleet.ROUTERS``. ``run_tokens`` are the output tokens of the
    instance since its run of iterations began.
    """
    if router == LEAST_REMAINING:
        return int(instance.remaining_tokens - run_tokens)
    if router in (LEAST_PENDING, PREFIX_AWARE):
        return int(instance.pending_tokens)
    if router == ROUND_ROBIN:
        return int(instance.last_routed)
    return int(instance.kv_tokens + instance.queued_kv_tokens + run_tokens)


@kernel
def rank(state: Any, slot: int) -> None:
    """Update the router's data of an instance, after any change except the passing of time.

    The data are the lower bound of the instance's key in the tree, and the lowest and highest
    numbers of KV tokens in use during its run, which are also summed over the pool.
    """
    instance = state.instances[slot]
    pool = state.pools[instance.pool]
    low = high = 0
    if instance.status == READY:
        # KV memory grows by a token per decode and iteration, from ``low`` to ``high`` in the run.
        low, high = instance.kv_tokens, instance.kv_tokens + _run_growth(instance)
    pool.kv_low += low - instance.kv_low
    pool.kv_high += high - instance.kv_high
    instance.kv_low, instance.kv_high = low, high
    if pool.has_tree:
        bound = _lowest_key(pool.router, instance) if instance.status == READY else NEVER
        _store_bound(state, pool, slot, bound, np.inf)


@kernel
def rank_all(state: Any, p: int) -> None:
    """Begin the tree of pool ``p`` once it has more instances than are compared directly."""
    pool = state.pools[p]
    if pool.slots_used > FEW and not pool.has_tree:
        pool.has_tree = 1
        for slot in range(pool.first_slot, pool.first_slot + pool.slots_used):
            rank(state, slot)


@kernel
def _run_growth(instance: Any) -> int:
    """Return the output tokens of an instance's run of iterations, without its last iteration."""
    return int(max(instance.run_iterations - 1, 0) * instance.decodes)


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
        run_tokens = iterations_done(instance, t) * instance.decodes
        key = _key(pool.router, instance, run_tokens)
        if best < 0 or key < lowest:
            best, lowest = slot, key
    return best, lowest


@kernel
def _store_bound(state: Any, pool: Any, slot: int, bound: int, until: float) -> None:
    """Store the bound of an instance's key in the tree of its pool, valid until ``until``.

    Each node above has the least bound and the earliest end of its two children.
    """
    node = pool.tree_leaves + slot - pool.first_slot
    leaf = state.ranking[pool.tree_start + node]
    leaf.bound, leaf.valid_until_s = bound, until
    while node > 1:
        node >>= 1
        above = state.ranking[pool.tree_start + node]
        left = state.ranking[pool.tree_start + 2 * node]
        right = state.ranking[pool.tree_start + 2 * node + 1]
        bound, until = min(left.bound, right.bound), min(left.valid_until_s, right.valid_until_s)
        if above.bound == bound and above.valid_until_s == until:
            break
        above.bound, above.valid_until_s = bound, until


@kernel
def _raise_bound(
    state: Any, pool: Any, slot: int, key: int, iterations: int, old_bound: int
) -> None:
    """Store a lower bound of an instance's routing key, above ``old_bound``, and its end time.

    ``key`` is the key after ``iterations`` iterations of the present run. Each further iteration
    lowers it by the number of decodes, so a lower bound holds for longer. The new bound lies
    half-way between ``key`` and the last key that won in the pool. If that is not above
    ``old_bound``, it is ``key`` itself.
    """
    instance = state.instances[slot]
    if pool.router != LEAST_REMAINING:  # only this key falls within a run
        _store_bound(state, pool, slot, key, np.inf)
        return
    # Further iterations for which the bound holds.
    further = max(key - pool.last_key, 0) // (2 * max(instance.decodes, 1))
    further = min(further, instance.run_iterations - 1 - iterations)
    if key - further * instance.decodes <= old_bound:
        further = 0
    last_iteration = iterations + further
    until = np.inf
    if last_iteration < instance.run_iterations - 1:
        until = iteration_end(instance, last_iteration + 1)
    _store_bound(state, pool, slot, key - further * instance.decodes, until)


@kernel
def _renew_bounds(state: Any, pool: Any, t: float) -> None:
    """Renew the bounds of a pool's tree that have expired by ``t``."""
    while state.ranking[pool.tree_start + 1].valid_until_s < t:
        node = 1
        while node < pool.tree_leaves:
            node = 2 * node
            if state.ranking[pool.tree_start + node].valid_until_s >= t:
                node += 1
        slot = pool.first_slot + node - pool.tree_leaves
        instance = state.instances[slot]
        iterations = iterations_done(instance, t)
        key = _key(pool.router, instance, iterations * instance.decodes)
        _raise_bound(state, pool, slot, key, iterations, -NEVER)


@kernel
def best_of_pool(state: Any, p: int, t: float) -> tuple[int, int]:
    """Return the ready instance of pool ``p`` with the least routing key at ``t``, and that key.

    The lowest slot wins a tie. The instance is -1 if none is ready. The tree has lower bounds of
    keys. While the lowest bound is below the present key of its instance, it is raised.
    """
    pool = state.pools[p]
    if not pool.has_tree:
        best, lowest = _best_of_few(state, pool, t)
        return int(best), int(lowest)
    _renew_bounds(state, pool, t)
    while True:
        bound = state.ranking[pool.tree_start + 1].bound
        if bound == NEVER:
            return -1, 0
        node = 1
        while node < pool.tree_leaves:
            node = 2 * node
            if state.ranking[pool.tree_start + node].bound != bound:
                node += 1
        slot = pool.first_slot + node - pool.tree_leaves
        instance = state.instances[slot]
        iterations = iterations_done(instance, t)
        key = _key(pool.router, instance, iterations * instance.decodes)
        # All other bounds are at least as high, so no other instance has a lower key.
        if key == bound:
            pool.last_key = key
            return slot, key
        _raise_bound(state, pool, slot, key, iterations, bound)


@kernel
def best_of_endpoint(state: Any, endpoint: int, t: float, request_tokens: int) -> int:
    """Return the instance with the least routing key at ``t``; -1: none is ready.

    It is of any pool of ``endpoint``, a service in a region. Only pools that can ever serve a
    request of ``request_tokens`` tokens count.
    """
    best_slot, lowest_key = -1, 0
    for i in range(state.endpoint_start[endpoint], state.endpoint_start[endpoint + 1]):
        p = state.endpoint_pools[i]
        if request_tokens > state.pools[p].max_request_tokens:
            continue
        slot, key = best_of_pool(state, p, t)
        if slot >= 0 and (best_slot < 0 or key < lowest_key):
            best_slot, lowest_key = slot, key
    return best_slot


@kernel
def pool_kv_tokens(state: Any, p: int, t: float) -> int:
    """Return the KV tokens that the ready instances of pool ``p`` use at ``t``."""
    pool = state.pools[p]
    used_tokens, ready_left = 0, pool.ready
    for slot in range(pool.first_slot, pool.first_slot + pool.slots_used):
        if ready_left == 0:
            break
        instance = state.instances[slot]
        if instance.status == READY:
            ready_left -= 1
            used_tokens += instance.kv_tokens + iterations_done(instance, t) * instance.decodes
    return int(used_tokens)


@kernel
def endpoint_utilization(state: Any, endpoint: int, t: float) -> float:
    """Return the KV memory utilization of an endpoint's ready instances at ``t``; 1 without any.

    An endpoint is the pools of a service in a region.
    """
    used_tokens, capacity_tokens = 0, 0
    for i in range(state.endpoint_start[endpoint], state.endpoint_start[endpoint + 1]):
        p = state.endpoint_pools[i]
        used_tokens += pool_kv_tokens(state, p, t)
        capacity_tokens += state.pools[p].ready * state.pools[p].kv_capacity_tokens
    return used_tokens / capacity_tokens if capacity_tokens > 0 else 1.0


@kernel
def _utilization_bounds(state: Any, endpoint: int) -> tuple[float, float]:
    """Return limits between which ``endpoint_utilization`` lies; (1, 1) without ready instances.

    ``endpoint`` is the number of a service in a region.
    """
    low_tokens, high_tokens, capacity_tokens = 0, 0, 0
    for i in range(state.endpoint_start[endpoint], state.endpoint_start[endpoint + 1]):
        pool = state.pools[state.endpoint_pools[i]]
        low_tokens += pool.kv_low
        high_tokens += pool.kv_high
        capacity_tokens += pool.ready * pool.kv_capacity_tokens
    if capacity_tokens == 0:
        return 1.0, 1.0
    return low_tokens / capacity_tokens, high_tokens / capacity_tokens


@kernel
def least_utilised_instance(
    state: Any, region_order: Any, first_endpoint: int, t: float, request_tokens: int
) -> tuple[int, int]:
    """Return the region with the least KV memory utilization, and its best instance.

    (-1, -1): no instance is ready. Only pools that can ever serve a request of ``request_tokens``
    tokens count. ``region_order`` lists the regions, and ends with -1; the earlier one wins a tie.
    The endpoint in region r is number ``first_endpoint + r``. The first pass finds the ceiling, the
    lowest upper limit of utilization. The second compares the regions whose lower limit is not
    above it, and computes utilization only if several are left.
    """
    best_region, best_slot, ceiling = -1, -1, np.inf
    for i in range(region_order.shape[0]):
        candidate = region_order[i]
        if candidate < 0:
            break
        # A region whose lower limit is above the ceiling cannot be the least used.
        if best_of_endpoint(state, first_endpoint + candidate, t, request_tokens) >= 0:
            ceiling = min(ceiling, _utilization_bounds(state, first_endpoint + candidate)[1])
    best_utilization = -1.0  # utilization of the region found; -1: not computed yet
    for i in range(region_order.shape[0]):
        candidate = region_order[i]
        if candidate < 0:
            break
        lowest_possible = _utilization_bounds(state, first_endpoint + candidate)[0]
        is_worse = best_utilization >= 0.0 and lowest_possible >= best_utilization
        if lowest_possible > ceiling or is_worse:
            continue
        slot = best_of_endpoint(state, first_endpoint + candidate, t, request_tokens)
        if slot < 0:
            continue
        if best_region >= 0:
            if best_utilization < 0.0:
                best_utilization = endpoint_utilization(state, first_endpoint + best_region, t)
            utilization = endpoint_utilization(state, first_endpoint + candidate, t)
            if utilization >= best_utilization:
                continue
            best_utilization = utilization
        best_region, best_slot = candidate, slot
    return best_region, best_slot


@kernel
def is_utilization_below(state: Any, endpoint: int, t: float, threshold: float) -> bool:
    """Return whether the KV memory utilization of ``endpoint`` at ``t`` is below ``threshold``.

    An endpoint is a service in a region.
    """
    # Try the limits of the pools first: reading every instance is slow.
    low, high = _utilization_bounds(state, endpoint)
    if high < threshold:
        return True
    if low >= threshold:
        return False
    return bool(endpoint_utilization(state, endpoint, t) < threshold)
