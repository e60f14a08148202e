"""Routing of requests (methods.md E4): region, then instance, and release of deferred ones.

The router may see queues (``fleet.ROUTER_INPUTS``). A request then waits only if no region has an
instance that admits it at its next iteration.

``service`` is an index of ``allocation.services``, ``r`` one of a request, ``slot`` one of an
instance. An endpoint is a service in a region; its number is service * regions + region. The
functions do not change instances, except for evictions that are already due. Progress inside a run
of decode iterations, and cached blocks evicted since it began, are computed for the instant ``t``.
"""

from typing import Any

import numpy as np

from simulation.compiler import kernel
from simulation.engine.prefix import evict_for, longest_cached_prefix
from simulation.engine.progress import iterations_done
from simulation.engine.routing_order import (
    NEVER,
    PREFIX_AWARE,
    best_of_endpoint,
    best_of_pool,
    is_utilization_below,
    least_utilised_instance,
    pool_kv_tokens,
)
from simulation.engine.state import DECODE_SERVICE
from simulation.lifecycle import READY
from simulation.performance.curves import iteration_seconds


@kernel
def _has_room(state: Any, slot: int, r: int, t: float) -> bool:
    """Return whether an instance can admit request ``r`` at its next iteration.

    Token budget, batch and KV memory must have room after running and waiting requests.
    """
    instance = state.instances[slot]
    pool = state.pools[instance.pool]
    kv_tokens = instance.kv_tokens + iterations_done(instance, t) * instance.decodes
    prompt_tokens = state.requests[r].isl + state.requests[r].generated_tokens
    return bool(
        instance.pending_tokens < pool.token_budget
        and instance.running + instance.waiting < pool.max_batch
        and kv_tokens + instance.queued_kv_tokens + prompt_tokens < pool.usable_kv_tokens
    )


@kernel
def _best_instance(state: Any, endpoint: int, t: float, r: int) -> int:
    """Return the instance that the router chooses for request ``r``; -1: none.

    ``endpoint`` is the number of a service in a region, which has one pool or more.
    """
    first = state.endpoint_start[endpoint]
    if first == state.endpoint_start[endpoint + 1]:
        return -1
    if state.pools[state.endpoint_pools[first]].router == PREFIX_AWARE:
        return int(_best_by_prefix(state, endpoint, t, r))
    if state.clock[0].chooses_pool_first and state.endpoint_start[endpoint + 1] > first + 1:
        return int(_best_of_pools(state, endpoint, t, r))
    request_tokens = state.requests[r].isl + state.requests[r].osl
    return int(best_of_endpoint(state, endpoint, t, request_tokens))


@kernel
def _best_of_pools(state: Any, endpoint: int, t: float, r: int) -> int:
    """Choose the pool of an endpoint for ``r``, and return the pool's best instance; -1: none.

    The pool with the least KV memory utilization wins, then the first. If the router sees queues,
    pools that admit the request at their next iteration come first. If no pool does, the one with
    the fewest seconds of prompts ahead wins.
    """
    request_tokens = state.requests[r].isl + state.requests[r].osl
    best_slot, best_value, best_has_room = -1, 0.0, False
    for i in range(state.endpoint_start[endpoint], state.endpoint_start[endpoint + 1]):
        p = state.endpoint_pools[i]
        pool = state.pools[p]
        if request_tokens > pool.max_request_tokens:
            continue
        slot, _ = best_of_pool(state, p, t)
        if slot < 0:
            continue
        has_room = not state.clock[0].sees_queues or _has_room(state, slot, r, t)
        if has_room:  # utilization; else seconds of prompts ahead
            value = pool_kv_tokens(state, p, t) / (pool.ready * pool.kv_capacity_tokens)
        else:
            value = state.instances[slot].pending_tokens * pool.token_s * pool.slowdown
        is_better = value < best_value if has_room == best_has_room else has_room
        if best_slot < 0 or is_better:
            best_slot, best_value, best_has_room = slot, value, has_room
    return best_slot


@kernel
def _best_by_prefix(state: Any, endpoint: int, t: float, r: int) -> int:
    """Return the instance that computes the fewest prompt tokens before the first token of ``r``.

    -1: no instance of the endpoint can serve it. Ties go to the fewest remaining tokens, then to
    the lowest slot. The tree of a pool has lower bounds of pending tokens (``routing_order``). Its
    root is node 1, the children of node i are 2 i and 2 i + 1, and leaves are instances. A subtree
    is skipped if its instances could not win even with the whole prompt cached.
    """
    request = state.requests[r]
    best_slot, fewest_pending, fewest_remaining = -1, 0, 0
    for i in range(state.endpoint_start[endpoint], state.endpoint_start[endpoint + 1]):
        pool = state.pools[state.endpoint_pools[i]]
        if request.isl + request.osl > pool.max_request_tokens:
            continue
        max_saved = request.isl if pool.max_cache_blocks > 0 else 0  # tokens, by the cache
        node = 1
        while True:
            # Depth-first search.
            bound = state.ranking[pool.tree_start + node].bound
            if bound != NEVER and (best_slot < 0 or bound - max_saved <= fewest_pending):
                if node < pool.tree_leaves:
                    node = 2 * node
                    continue
                slot = pool.first_slot + node - pool.tree_leaves
                instance = state.instances[slot]
                run_tokens = iterations_done(instance, t) * instance.decodes
                saved_tokens = 0
                if pool.max_cache_blocks > 0:
                    # First carry out the evictions due to decodes since the run began.
                    evict_for(state, slot, instance.kv_tokens + run_tokens)
                    cached, _ = longest_cached_prefix(state, slot, r)
                    saved_tokens = cached * pool.block_tokens
                pending = instance.pending_tokens - saved_tokens
                remaining = instance.remaining_tokens - run_tokens - saved_tokens
                wins_tie = pending == fewest_pending and remaining < fewest_remaining
                if best_slot < 0 or pending < fewest_pending or wins_tie:
                    best_slot, fewest_pending, fewest_remaining = slot, pending, remaining
            # On to the next subtree on the right: climb from right children, then take the sibling.
            while node > 1 and node & 1:
                node >>= 1
            if node == 1:
                break
            node += 1
    return best_slot


@kernel
def choose_instance(state: Any, service: int, region: int, t: float, r: int) -> int:
    """Return the instance that the router of a service in a region chooses for ``r``; -1: none.

    Only pools in which the request fits, by memory and context limit, are considered.
    """
    return int(_best_instance(state, service * state.latency_s.shape[0] + region, t, r))


@kernel
def admits_at_once(state: Any, service: int, region: int, slot: int, r: int, t: float) -> bool:
    """Return whether instance ``slot`` admits request ``r`` at its next iteration.

    With prefill and decode pools, a decode instance of the region must admit it at once too.
    """
    if not _has_room(state, slot, r, t):
        return False
    decode_service = state.related_service[service, DECODE_SERVICE]
    if decode_service < 0:
        return True
    other = _best_instance(state, decode_service * state.latency_s.shape[0] + region, t, r)
    return bool(other >= 0 and _has_room(state, other, r, t))


@kernel
def _prompt_seconds(state: Any, slot: int, r: int) -> float:
    """Return the seconds until decode instance ``slot`` has computed the prompt of ``r``.

    inf: never. The prompts ahead and that of ``r`` are computed in chunks, together with the
    present decodes.
    """
    instance, request = state.instances[slot], state.requests[r]
    pool = state.pools[instance.pool]
    chunk_tokens = min(pool.prompt_limit_tokens, pool.token_budget - instance.decodes)
    if chunk_tokens < 1:
        return np.inf
    # ``pending_tokens`` counts one more for each request than its tokens.
    tokens_ahead = instance.pending_tokens - instance.running - instance.waiting
    decodes, tokens = float(instance.decodes), float(chunk_tokens)
    context = float(instance.context_tokens) if instance.decodes > 0 else 0.0
    attention_pairs = tokens * 0.5 * request.isl  # a token attends to half of the prompt on average
    chunk_s = iteration_seconds(state.curves[pool.curve], decodes, context, tokens, attention_pairs)
    chunk_count = np.ceil((tokens_ahead + request.isl + request.generated_tokens) / chunk_tokens)
    return float(chunk_count * chunk_s * pool.slowdown * instance.slowdown)


@kernel
def divert_prompt(state: Any, slot: int, r: int, t: float) -> int:
    """Return the instance that computes the prompt of ``r``: ``slot`` or a decode instance.

    A decode instance takes the prompt over if more than ``overflow_s`` seconds of prompts are ahead
    of it at ``slot``. It must have room for the prompt, and compute it sooner. The soonest wins,
    then the lowest slot.
    """
    pool = state.pools[state.instances[slot].pool]
    ahead_s = state.instances[slot].pending_tokens * pool.token_s * pool.slowdown
    if ahead_s <= state.clock[0].overflow_s or not pool.hands_over:
        return slot
    request = state.requests[r]
    own_s = (request.isl + request.generated_tokens) * pool.token_s * pool.slowdown
    best_slot, soonest_s = slot, ahead_s + own_s
    decode_service = state.related_service[request.service, DECODE_SERVICE]
    regions = state.latency_s.shape[0]
    endpoint = decode_service * regions + pool.region
    for i in range(state.endpoint_start[endpoint], state.endpoint_start[endpoint + 1]):
        p = state.endpoint_pools[i]
        other = state.pools[p]
        if not other.takes_prompts or request.isl + request.osl > other.max_request_tokens:
            continue
        for candidate in range(other.first_slot, other.first_slot + other.slots_used):
            if state.instances[candidate].status == READY:
                candidate_s = _prompt_seconds(state, candidate, r)
                if candidate_s < soonest_s and _has_room(state, candidate, r, t):
                    best_slot, soonest_s = candidate, candidate_s
    if best_slot != slot:
        state.pools[state.instances[best_slot].pool].diverted += 1
    return int(best_slot)


@kernel
def _is_below_threshold(state: Any, service: int, region: int, t: float, threshold: float) -> bool:
    """Return whether the KV memory utilization of a service in a region is below ``threshold``.

    With prefill and decode pools both must be below it.
    """
    regions = state.latency_s.shape[0]
    decode_service = state.related_service[service, DECODE_SERVICE]
    if not is_utilization_below(state, service * regions + region, t, threshold):
        return False
    if decode_service < 0:
        return True
    return bool(is_utilization_below(state, decode_service * regions + region, t, threshold))


@kernel
def _region_by_shares(state: Any, service: int, home: int, r: int) -> int:
    """Return the region to serve ``r`` by the planned shares of its home region; -1: none planned.

    The region furthest below its planned tokens wins, so that over time the tokens follow the
    shares.
    """
    best_region, most_owed, isl = -1, 0.0, state.requests[r].isl
    for region in range(state.latency_s.shape[0]):
        share = state.shares[service, home, region]
        if share > 0.0:
            # Each region is owed its share of the tokens. The chosen region gets all of them.
            state.owed_tokens[service, home, region] += share * isl
            if best_region < 0 or state.owed_tokens[service, home, region] > most_owed:
                best_region, most_owed = region, state.owed_tokens[service, home, region]
    if best_region >= 0:
        state.owed_tokens[service, home, best_region] -= isl
    return best_region


@kernel
def _soonest_region(state: Any, service: int, home: int, t: float, r: int) -> tuple[int, int]:
    """Return the (region, instance) that serves ``r`` of ``home`` soonest; (-1, -1): none is ready.

    Instances that admit it without a wait come first. Among equals, the fewest seconds of prompts
    ahead plus network latency win, then the nearer region.
    """
    regions = state.latency_s.shape[0]
    best_region, best_slot, best_wait_s, best_admits = -1, -1, 0.0, False
    for i in range(regions):
        region = state.region_order[home, i]
        if region < 0:
            break
        slot = _best_instance(state, service * regions + region, t, r)
        if slot < 0:
            continue
        admits = admits_at_once(state, service, region, slot, r, t)
        pool = state.pools[state.instances[slot].pool]
        prompts_s = state.instances[slot].pending_tokens * pool.token_s * pool.slowdown
        wait_s = state.latency_s[home, region] + prompts_s
        is_better = wait_s < best_wait_s if admits == best_admits else admits
        if best_region < 0 or is_better:
            best_region, best_slot, best_wait_s, best_admits = region, slot, wait_s, admits
    return best_region, best_slot


@kernel
def choose_region(state: Any, service: int, home: int, t: float, r: int) -> tuple[int, int]:
    """Return the (region, instance) for request ``r`` of region ``home``; (-1, -1): none is ready.

    1. The region by planned shares, if there are any.
    2. From home, by latency: the first region with utilization below the threshold.
    3. The region with the least utilization.

    If the router sees queues, steps 1 and 2 skip regions in which the request would wait. If it
    would wait in the region of step 3, the region that serves it soonest is chosen. Regions behind
    a closed path are neither in the order nor in the shares.
    """
    regions = state.latency_s.shape[0]
    # Common case, without the cost of comparing regions.
    if regions == 1:
        slot = _best_instance(state, service, t, r)
        return 0 if slot >= 0 else -1, slot
    sees_queues = state.clock[0].sees_queues
    if state.clock[0].has_region_shares:
        region = _region_by_shares(state, service, home, r)
        slot = _best_instance(state, service * regions + region, t, r) if region >= 0 else -1
        if slot >= 0 and (not sees_queues or admits_at_once(state, service, region, slot, r, t)):
            return region, slot
    for i in range(regions):
        region = state.region_order[home, i]
        if region < 0:
            break
        if not _is_below_threshold(state, service, region, t, state.clock[0].region_threshold):
            continue
        slot = _best_instance(state, service * regions + region, t, r)
        if slot >= 0 and (not sees_queues or admits_at_once(state, service, region, slot, r, t)):
            return region, slot
    request_tokens = state.requests[r].isl + state.requests[r].osl
    region, slot = least_utilised_instance(
        state, state.region_order[home], service * regions, t, request_tokens
    )
    slot = _best_instance(state, service * regions + region, t, r) if slot >= 0 else -1
    if slot >= 0 and sees_queues and not admits_at_once(state, service, region, slot, r, t):
        region, slot = _soonest_region(state, service, home, t, r)
    return int(region), int(slot)


@kernel
def releasable_count(state: Any, service: int, region: int, t: float) -> int:
    """Return how many deferred requests ``service`` may release in ``region`` now: 0, 1 or 2.

    The lower the KV memory utilization, the more.
    """
    clock = state.clock[0]
    if _is_below_threshold(state, service, region, t, clock.release_two_below):
        return 2
    return 1 if _is_below_threshold(state, service, region, t, clock.release_one_below) else 0
