"""Where a request goes (methods.md E4): region, then instance, and when deferred ones are let in.

Compiled helpers of the engine; ``s`` is its ``State`` (``simulation.engine.state``). Instances are
only looked at, never changed, and their progress inside a run of equal decode iterations is worked
out for the instant asked about.
"""

from __future__ import annotations

from typing import Any

from simulation.compiled import kernel
from simulation.ranking import best_of_endpoint, is_below, least_used, pool_used, ranks


@kernel
def choose_instance(s: Any, model: int, region: int, t: float, need: int) -> int:
    """The instance that the router takes over all pools of an endpoint, among those that can ever
    hold ``need`` tokens; -1: none."""
    return int(best_of_endpoint(ranks(s), model * s.latency.shape[0] + region, t, need))


@kernel
def choose_region(s: Any, model: int, home: int, t: float, need: int) -> tuple[int, int]:
    """``(region, instance)``: home first, then by latency from home, the first region under the
    threshold, else the least utilised; (-1, -1) when none has a ready instance."""
    regions = s.latency.shape[0]
    for i in range(regions):
        candidate = s.region_order[home, i]
        endpoint = model * regions + candidate
        if regions > 1 and not is_below(ranks(s), endpoint, t, s.clock[0].region_threshold):
            continue
        slot = best_of_endpoint(ranks(s), endpoint, t, need)
        if slot >= 0:
            return candidate, slot
    if regions == 1:
        return -1, -1
    region, slot = least_used(ranks(s), s.region_order[home], model * regions, t, need)
    return region, slot


@kernel
def releases(s: Any, model: int, region: int, t: float) -> int:
    """How many deferred requests an endpoint takes when it signals."""
    endpoint = model * s.latency.shape[0] + region
    if is_below(ranks(s), endpoint, t, s.clock[0].release_two_below):
        return 2
    return 1 if is_below(ranks(s), endpoint, t, s.clock[0].release_one_below) else 0


@kernel
def pool_utilisation(s: Any, t: float, out: Any) -> None:
    """Effective memory utilisation of every pool into ``out[pools]``; 0 without ready instances."""
    for p in range(s.pools.shape[0]):
        capacity = s.pools[p].ready * s.pools[p].kv_capacity
        out[p] = pool_used(ranks(s), p, t) / capacity if capacity > 0 else 0.0
