"""The prefix cache of an instance: blocks of finished prompts in unused KV memory.

The rules are those of vLLM. The whole blocks of a prompt can be found once its last chunk is
scheduled. A running request is a holder of each block that it uses, and the block counts once. A
block without holders stays until memory is needed. The block that was used least recently is
evicted first. Of one request, the last block goes before the earlier ones. A prompt computes at
least one token, so a block that ends with the prompt is computed again. Generated tokens are not
cached, since traces have no ids for them.

Blocks are records in the instance's range of ``nodes``. They are found through chains from its
range of ``buckets``. Blocks without holders are also in a list by age. ``instance.kv_tokens``
counts the tokens of running requests. Idle blocks are added to it, and ``evict_for`` keeps the sum
within the capacity.
"""

from typing import Any

import numpy as np

from simulation.arrays import Array
from simulation.compiler import kernel
from simulation.engine.state import CACHE, NODE
from simulation.errors import SimulationError

MAX_BLOCKS = 200_000_000  # most blocks over all instances, 28 bytes each


def allocate_caches(pools: Array, slots: int, block_tokens: int) -> tuple[Array, Array, Array]:
    """Return the tables (caches, nodes, buckets) of the prefix caches of all possible instances.

    There is a cache for each of the ``slots``, with one node per block, and buckets to find blocks
    by their id. The columns of ``pools`` for them are filled here: the buckets of an instance, and
    the first node and bucket of the pool. A block has ``block_tokens``. Raises ``SimulationError``
    if there are too many blocks.
    """
    blocks = pools["max_cache_blocks"]
    pools["block_tokens"] = block_tokens
    # A power of two, so that a hash needs no division; twice the blocks, so that chains are short.
    pools["buckets"] = [
        1 << int(2 * max_blocks - 1).bit_length() if max_blocks else 0 for max_blocks in blocks
    ]
    for start_name, size_name in (("first_node", "max_cache_blocks"), ("first_bucket", "buckets")):
        sizes = pools[size_name] * pools["maximum"]
        pools[start_name] = np.cumsum(sizes) - sizes
    total_blocks = int((blocks * pools["maximum"]).sum())
    if total_blocks > MAX_BLOCKS:
        raise SimulationError(
            f"The replicas' KV memory holds {total_blocks:,} blocks of {block_tokens} tokens; "
            f"prefix caches of {MAX_BLOCKS:,} are allowed. Lower the maximum of pools, or use "
            "larger blocks."
        )
    caches = np.zeros(slots if total_blocks else 1, CACHE)
    nodes = np.zeros(max(total_blocks, 1), NODE)
    buckets = np.zeros(max(int((pools["buckets"] * pools["maximum"]).sum()), 1), np.int32)
    return caches, nodes, buckets


@kernel
def clear_cache(state: Any, slot: int) -> None:
    """Empty the prefix cache of a new instance."""
    pool, cache = state.pools[state.instances[slot].pool], state.caches[slot]
    if pool.max_cache_blocks == 0:
        return
    instance_index = slot - pool.first_slot
    first = pool.first_bucket + instance_index * pool.buckets
    for bucket in range(first, first + pool.buckets):
        state.buckets[bucket] = -1
    first = pool.first_node + instance_index * pool.max_cache_blocks
    for node in range(first, first + pool.max_cache_blocks):
        state.nodes[node].next_node = node + 1
        state.nodes[node].users = 0
    state.nodes[first + pool.max_cache_blocks - 1].next_node = -1
    cache.idle_blocks, cache.oldest_idle, cache.newest_idle, cache.free_node = 0, -1, -1, first


@kernel
def longest_cached_prefix(state: Any, slot: int, r: int) -> tuple[int, int]:
    """Return how many leading blocks of the prompt of ``r`` an instance has cached.

    The second value is how many of these blocks running requests use. One token of the prompt must
    be computed, so not all of it counts as cached.
    """
    request, block_tokens = state.requests[r], state.pools[state.instances[slot].pool].block_tokens
    first_id = state.prefix_start[r]
    max_tokens = min(request.isl, request.isl + request.generated_tokens - 1)
    max_blocks = min(max_tokens // block_tokens, state.prefix_start[r + 1] - first_id)
    used_blocks = 0
    for i in range(max_blocks):
        node = _find(state, slot, state.prefix_ids[first_id + i])
        if node < 0:
            return i, used_blocks
        if state.nodes[node].users > 0:
            used_blocks += 1
    return max_blocks, used_blocks


@kernel
def hold_blocks(state: Any, slot: int, r: int, blocks: int) -> None:
    """Add request ``r`` as holder of the first ``blocks`` blocks of its prompt, all cached."""
    first_id = state.prefix_start[r]
    block_tokens = state.pools[state.instances[slot].pool].block_tokens
    for i in range(blocks):
        node = _find(state, slot, state.prefix_ids[first_id + i])
        if _add_holder(state, slot, node) == 0:  # no request held the block before
            state.instances[slot].kv_tokens += block_tokens
    state.requests[r].used_blocks = blocks


@kernel
def cache_blocks(state: Any, slot: int, r: int, tokens: int) -> None:
    """Add the whole blocks of the first ``tokens`` of a prompt to the instance's prefix cache.

    They were just computed. The request ``r`` holds them until it ends. A new block takes a free
    node and becomes the first of its bucket's chain.
    """
    request, instance, cache = state.requests[r], state.instances[slot], state.caches[slot]
    block_tokens = state.pools[instance.pool].block_tokens
    first_id = state.prefix_start[r]
    max_blocks = min(min(request.isl, tokens) // block_tokens, state.prefix_start[r + 1] - first_id)
    for i in range(request.used_blocks, max_blocks):
        block_id = state.prefix_ids[first_id + i]
        node = _find(state, slot, block_id)
        if node >= 0:
            # The block was computed twice: drop this copy and hold the other.
            if _add_holder(state, slot, node) > 0:
                instance.kv_tokens -= block_tokens
            continue
        node = cache.free_node
        cache.free_node = state.nodes[node].next_node
        bucket = _bucket(state, slot, block_id)
        state.nodes[node].block_id, state.nodes[node].users = block_id, 1
        state.nodes[node].next_node = state.buckets[bucket]
        state.buckets[bucket] = node
    request.used_blocks = max(request.used_blocks, max_blocks)


@kernel
def free_request(state: Any, slot: int, r: int, tokens: int) -> None:
    """Free the KV memory of request ``r``, which has ``tokens`` tokens on the instance.

    Blocks that it holds in the prefix cache stay cached, but may be evicted.
    """
    if state.requests[r].used_blocks > 0:
        _free_own_tokens(state, slot, r, tokens)
    else:
        state.instances[slot].kv_tokens -= tokens


@kernel
def evict_for(state: Any, slot: int, kv_tokens: int) -> None:
    """Evict unused blocks of an instance until the rest fits with ``kv_tokens`` in use."""
    pool = state.pools[state.instances[slot].pool]
    idle_tokens = state.caches[slot].idle_blocks * pool.block_tokens
    if pool.max_cache_blocks > 0 and idle_tokens > pool.usable_kv_tokens - kv_tokens:
        _evict_oldest(state, slot, kv_tokens)


@kernel
def _bucket(state: Any, slot: int, block_id: int) -> int:
    """Return the index in ``State.buckets`` of the hash bucket of a block on an instance."""
    pool = state.pools[state.instances[slot].pool]
    # Knuth's multiplicative hash; the number of buckets is a power of two.
    hash_value = ((block_id * 2_654_435_761) >> 15) & (pool.buckets - 1)
    return int(pool.first_bucket + (slot - pool.first_slot) * pool.buckets + hash_value)


@kernel
def _find(state: Any, slot: int, block_id: int) -> int:
    """Return the index in ``State.nodes`` of a block in an instance's cache; -1: not cached."""
    node = state.buckets[_bucket(state, slot, block_id)]
    while node >= 0 and state.nodes[node].block_id != block_id:
        node = state.nodes[node].next_node
    return int(node)


@kernel
def _add_holder(state: Any, slot: int, node: int) -> int:
    """Add a holder (a running request) to a cached block; return how many it had before."""
    block, cache = state.nodes[node], state.caches[slot]
    if block.users == 0:  # it leaves the list of idle blocks
        if block.older_idle >= 0:
            state.nodes[block.older_idle].newer_idle = block.newer_idle
        else:
            cache.oldest_idle = block.newer_idle
        if block.newer_idle >= 0:
            state.nodes[block.newer_idle].older_idle = block.older_idle
        else:
            cache.newest_idle = block.older_idle
        cache.idle_blocks -= 1
    block.users += 1
    return int(block.users - 1)


@kernel
def _free_own_tokens(state: Any, slot: int, r: int, tokens: int) -> None:
    """Free the ``tokens`` KV tokens of request ``r``, including cached blocks that it holds.

    Blocks that no other request holds stay cached as idle blocks. They no longer count as KV tokens
    in use, and may be evicted.
    """
    request, instance, cache = state.requests[r], state.instances[slot], state.caches[slot]
    block_tokens = state.pools[instance.pool].block_tokens
    first_id = state.prefix_start[r]
    instance.kv_tokens -= tokens - request.used_blocks * block_tokens
    # Last block first, so that it is evicted before the blocks ahead of it.
    for i in range(request.used_blocks - 1, -1, -1):
        node = _find(state, slot, state.prefix_ids[first_id + i])
        block = state.nodes[node]
        block.users -= 1
        if block.users == 0:
            instance.kv_tokens -= block_tokens
            cache.idle_blocks += 1
            # Append it to the list of idle blocks.
            block.older_idle, block.newer_idle = cache.newest_idle, -1
            if cache.newest_idle >= 0:
                state.nodes[cache.newest_idle].newer_idle = node
            else:
                cache.oldest_idle = node
            cache.newest_idle = node
    request.used_blocks = 0


@kernel
def _evict_oldest(state: Any, slot: int, kv_tokens: int) -> None:
    """Evict an instance's oldest idle blocks until the others fit with ``kv_tokens`` in use."""
    pool, cache = state.pools[state.instances[slot].pool], state.caches[slot]
    free_tokens = pool.usable_kv_tokens - kv_tokens
    while cache.idle_blocks > 0 and cache.idle_blocks * pool.block_tokens > free_tokens:
        oldest = cache.oldest_idle
        _add_holder(state, slot, oldest)  # which takes it off the list of idle blocks
        # Remove it from the chain of its bucket, so that it is no longer found.
        bucket = _bucket(state, slot, state.nodes[oldest].block_id)
        if state.buckets[bucket] == oldest:
            state.buckets[bucket] = state.nodes[oldest].next_node
        else:
            previous = state.buckets[bucket]
            while state.nodes[previous].next_node != oldest:
                previous = state.nodes[previous].next_node
            state.nodes[previous].next_node = state.nodes[oldest].next_node
        state.nodes[oldest].next_node = cache.free_node
        state.nodes[oldest].users = 0
        cache.free_node = oldest
        pool.evicted_tokens += pool.block_tokens
        pool.evicted += pool.block_tokens
