"""Where a request goes (methods.md E4): region, then instance, and when deferred ones are let in.

Compiled helpers of the engine; ``s`` is its ``State`` (``simulation.engine.state``). Instances are
only looked at, never changed, and their progress inside a run of equal decode iterations is worked
out for the instant asked about.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from simulation.compiled import kernel, outlined
from simulation.lifecycle import READY
from simulation.progress import iterations_done


@kernel
def _key(pool: Any, instance: Any, done: int) -> int:
    """What the pool's router (``fleet.ROUTERS``) wants least of; ``done`` tokens since t0."""
    if pool.router == 0:
        return int(instance.work - done)
    if pool.router == 1:
        return int(instance.pending)
    if pool.router == 2:
        return int(instance.turn)
    return int(instance.kv + instance.queued + done)


@outlined
def scan_pool(pools: Any, instances: Any, p: int, t: float) -> tuple[int, int, int, int]:
    """Ready instances of a pool: KV tokens in use, KV tokens there are, the instance its router
    takes (-1: none ready) and its key. Ties go to the lowest slot."""
    pool = pools[p]
    used, best, least = 0, -1, 0
    left = pool.ready
    for slot in range(pool.first, pool.first + pool.top):
        if left == 0:
            break
        instance = instances[slot]
        if instance.status != READY:
            continue
        left -= 1
        done = iterations_done(instance, t) * instance.decodes
        used += instance.kv + done
        key = _key(pool, instance, done)
        if best < 0 or key < least:
            best, least = slot, key
    return used, pool.ready * pool.kv_capacity, best, least


@kernel
def choose_instance(s: Any, model: int, region: int, t: float, need: int) -> tuple[int, float]:
    """The instance that the router takes over all pools of an endpoint, among those that can ever
    hold ``need`` tokens (-1: none), and the endpoint's utilisation."""
    endpoint = model * s.latency.shape[0] + region
    used, capacity, best, best_work = 0, 0, -1, 0
    for i in range(s.endpoint_start[endpoint], s.endpoint_start[endpoint + 1]):
        p = s.endpoint_pools[i]
        pool_used, pool_capacity, slot, work = scan_pool(s.pools, s.instances, p, t)
        used += pool_used
        capacity += pool_capacity
        fits = slot >= 0 and need <= s.pools[p].longest
        if fits and (best < 0 or work < best_work):
            best, best_work = slot, work
    return best, used / capacity if capacity > 0 else 1.0


@kernel
def choose_region(s: Any, model: int, home: int, t: float, need: int) -> tuple[int, int]:
    """``(region, instance)``: home first, then by latency from home, the first region under the
    threshold, else the least utilised; (-1, -1) when none has a ready instance."""
    region, instance, least = -1, -1, np.inf
    for i in range(s.latency.shape[0]):
        candidate = s.region_order[home, i]
        slot, utilisation = choose_instance(s, model, candidate, t, need)
        if slot < 0:
            continue
        if utilisation < s.clock[0].region_threshold:
            return candidate, slot
        if utilisation < least:
            region, instance, least = candidate, slot, utilisation
    return region, instance


@kernel
def releases(s: Any, utilisation: float) -> int:
    """How many deferred requests an endpoint at this utilisation takes when it signals."""
    if utilisation < s.clock[0].release_two_below:
        return 2
    return 1 if utilisation < s.clock[0].release_one_below else 0


@kernel
def pool_utilisation(s: Any, t: float, out: Any) -> None:
    """Effective memory utilisation of every pool into ``out[pools]``; 0 without ready instances."""
    for p in range(s.pools.shape[0]):
        used, capacity, _, _ = scan_pool(s.pools, s.instances, p, t)
        out[p] = used / capacity if capacity > 0 else 0.0
