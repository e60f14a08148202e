"""The prefix cache of an instance: blocks of finished prompts in unused KV memory.

The rules are those of vLLM. The whole blocks of a prompt can be found once its last chunk is
scheduled. A running request is a holder of each block that it uses, and the block counts once. A
block without holders stays until memory is needed. The block that was used least recently is
evicted first. Of one request, the last block goes before the earlier ones. A prompt computes at
least one token, so a block that ends with the prompt is computed again. Generated tokens are not
cached, since traces have no ids for them.

Blocks are records in the instance's range of ``nodes``. They are found through chains from its
range of ``buckets``. Blocks without holders are also in a list by age. ``instance.kv`` counts the
tokens of running requests. ``idle`` blocks are added to it, and ``evict_for`` keeps the sum within
the capacity.
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

    There is a cache for each of the ``slots``. The number of buckets and the start of the ranges of
    nodes and buckets are written to ``pools``, from its ``blocks``: the most blocks per instance. A
    block has ``block_tokens``. Raises ``SimulationError`` if there are too many blocks.
    """
    blocks = pools["blocks"]
    pools["block_tokens"] = block_tokens
    # A power of two, so that a hash needs no division; twice the blocks, so that chains are short.
    pools["buckets"] = [
        1 << int(2 * max_blocks - 1).bit_length() if max_blocks else 0 for max_blocks in blocks
    ]
    for start_name, size_name in (("first_node", "blocks"), ("first_bucket", "buckets")):
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
    if pool.blocks == 0:
        return
    i = slot - pool.first_slot
    first = pool.first_bucket + i * pool.buckets
    for bucket in range(first, first + pool.buckets):
        state.buckets[bucket] = -1
    first = pool.first_node + i * pool.blocks
    for node in range(first, first + pool.blocks):
        state.nodes[node].chain = node + 1
        state.nodes[node].users = 0
    state.nodes[first + pool.blocks - 1].chain = -1
    cache.idle, cache.oldest, cache.newest, cache.free = 0, -1, -1, first


@kernel
def longest_cached_prefix(state: Any, slot: int, r: int) -> tuple[int, int]:
    """Return how many leading blocks of the prompt of ``r`` an instance has cached.

    The second value is how many of these blocks running requests use.
    """
    request, size = state.requests[r], state.pools[state.instances[slot].pool].block_tokens
    first = state.prefix_start[r]
    # At least one token of the prompt must be computed, hence the - 1.
    max_blocks = min(request.isl // size, (request.isl + request.generated - 1) // size)
    max_blocks = min(max_blocks, state.prefix_start[r + 1] - first)
    held = 0
    for i in range(max_blocks):
        node = _find(state, slot, state.prefix_ids[first + i])
        if node < 0:
            return i, held
        if state.nodes[node].users > 0:
            held += 1
    return max_blocks, held


@kernel
def hold_blocks(state: Any, slot: int, r: int, blocks: int) -> None:
    """Add an admitted request as holder of the first ``blocks`` cached blocks of its prompt."""
    first = state.prefix_start[r]
    size = state.pools[state.instances[slot].pool].block_tokens
    for i in range(blocks):
        if _add_holder(state, slot, _find(state, slot, state.prefix_ids[first + i])) == 0:
            state.instances[slot].kv += size
    state.requests[r].held = blocks


@kernel
def cache_blocks(state: Any, slot: int, r: int, tokens: int) -> None:
    """Add the whole blocks of the first ``tokens`` of a prompt to the instance's prefix cache.

    They were just computed. The request ``r`` holds them until it ends.
    """
    request, instance, cache = state.requests[r], state.instances[slot], state.caches[slot]
    size = state.pools[instance.pool].block_tokens
    first = state.prefix_start[r]
    max_blocks = min(min(request.isl, tokens) // size, state.prefix_start[r + 1] - first)
    for i in range(request.held, max_blocks):
        block = state.prefix_ids[first + i]
        node = _find(state, slot, block)
        if node >= 0:
            # The block was computed twice: drop this copy and hold the other.
            if _add_holder(state, slot, node) > 0:
                instance.kv -= size
            continue
        node = cache.free
        cache.free = state.nodes[node].chain
        bucket = _bucket(state, slot, block)
        state.nodes[node].id, state.nodes[node].users = block, 1
        state.nodes[node].chain = state.buckets[bucket]
        state.buckets[bucket] = node
    request.held = max(request.held, max_blocks)


@kernel
def free_request(state: Any, slot: int, r: int, tokens: int) -> None:
    """Free the KV memory of request ``r``, which has ``tokens`` tokens on the instance.

    Blocks that it holds in the prefix cache stay cached, but may be evicted.
    """
    if state.requests[r].held > 0:
        _free_own_tokens(state, slot, r, tokens)
    else:
        state.instances[slot].kv -= tokens


@kernel
def evict_for(state: Any, slot: int, kv: int) -> None:
    """Evict unused blocks of an instance until the rest fits together with ``kv`` tokens in use."""
    pool = state.pools[state.instances[slot].pool]
    if pool.blocks > 0 and state.caches[slot].idle * pool.block_tokens > pool.usable - kv:
        _evict_oldest(state, slot, kv)


@kernel
def _bucket(state: Any, slot: int, block: int) -> int:
    """Return the index in ``State.buckets`` of the hash bucket of a block on an instance."""
    pool = state.pools[state.instances[slot].pool]
    # Knuth's multiplicative hash; the number of buckets is a power of two.
    index = ((block * 2_654_435_761) >> 15) & (pool.buckets - 1)
    return int(pool.first_bucket + (slot - pool.first_slot) * pool.buckets + index)


@kernel
def _find(state: Any, slot: int, block: int) -> int:
    """Return the index in ``State.nodes`` of a block in an instance's cache; -1: not cached."""
    node = state.buckets[_bucket(state, slot, block)]
    while node >= 0 and state.nodes[node].id != block:
        node = state.nodes[node].chain
    return int(node)


@kernel
def _add_holder(state: Any, slot: int, node: int) -> int:
    """Add a holder (a running request) to a cached block; return how many it had before."""
    block, cache = state.nodes[node], state.caches[slot]
    if block.users == 0:  # it leaves the list of blocks without holders
        if block.older >= 0:
            state.nodes[block.older].newer = block.newer
        else:
            cache.oldest = block.newer
        if block.newer >= 0:
            state.nodes[block.newer].older = block.older
        else:
            cache.newest = block.older
        cache.idle -= 1
    block.users += 1
    return int(block.users - 1)


@kernel
def _free_own_tokens(state: Any, slot: int, r: int, tokens: int) -> None:
    """Free the ``tokens`` KV tokens of a request, including the cached blocks that it holds.

    Blocks that no other request holds stay cached. They count as idle and no longer as KV tokens in
    use, so that they may be evicted.
    """
    request, instance, cache = state.requests[r], state.instances[slot], state.caches[slot]
    size = state.pools[instance.pool].block_tokens
    first = state.prefix_start[r]
    instance.kv -= tokens - request.held * size
    # Last block first, so that it is evicted before the blocks ahead of it.
    for i in range(request.held - 1, -1, -1):
        node = _find(state, slot, state.prefix_ids[first + i])
        block = state.nodes[node]
        block.users -= 1
        if block.users == 0:
            instance.kv -= size
            cache.idle += 1
            # Append it to the list of blocks without holders.
            block.older, block.newer = cache.newest, -1
            if cache.newest >= 0:
                state.nodes[cache.newest].newer = node
            else:
                cache.oldest = node
            cache.newest = node
    request.held = 0


@kernel
def _evict_oldest(state: Any, slot: int, kv: int) -> None:
    """Evict an instance's least recently used blocks until the rest fits with ``kv`` tokens."""
    pool, cache = state.pools[state.instances[slot].pool], state.caches[slot]
    while cache.idle > 0 and cache.idle * pool.block_tokens > pool.usable - kv:
        node = cache.oldest
        _add_holder(state, slot, node)  # removes it from the list of blocks without holders
        # Remove it from the chain of its bucket, so that it is no longer found.
        bucket = _bucket(state, slot, state.nodes[node].id)
        if state.buckets[bucket] == node:
            state.buckets[bucket] = state.nodes[node].chain
        else:
            before = state.buckets[bucket]
            while state.nodes[before].chain != node:
                before = state.nodes[before].chain
            state.nodes[before].chain = state.nodes[node].chain
        state.nodes[node].chain = cache.free
        state.nodes[node].users = 0
        cache.free = node
        pool.evicted_tokens += pool.block_tokens
        pool.evicted += pool.block_tokens
