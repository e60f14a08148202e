"""Compiled reading of a policy's observation at a scaling decision.

An observation of a few pools is a few microseconds of arithmetic. In Python, array by array, it
would cost more than the simulated requests between two decisions.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from simulation.compiler import kernel
from simulation.engine.routing_order import pool_used
from simulation.lifecycle import READY

# Rows of ``counts`` and ``amounts``.
COUNTS = _READY, _STARTING, _DRAINING, _SPARE, _WAITING, _DEFERRED = tuple(range(6))
AMOUNTS = _UTILISATION, _LOAD, _INPUT_TPS, _ASKED_TPS = tuple(range(4))


@kernel
def read_observation(
    state: Any,
    t: float,
    since_s: float,
    router_pool: Any,
    requested_model: Any,
    requested_tokens: Any,
    counts: Any,
    amounts: Any,
) -> None:
    """Fill ``counts [COUNTS, pools]`` and ``amounts [AMOUNTS, pools]`` at ``t``.

    ``since_s`` is the time since the last decision. Counters of arrivals restart at 0.

    ``router_pool [services, regions]`` is the pool that answers for requests at a router; -1: none.
    ``requested_model [pools]`` is the model that counts as requested from a pool; -1: none.
    ``requested_tokens [models, regions]`` is scratch memory.
    """
    requested_tokens[:] = 0
    for service in range(state.service_model.shape[0]):
        model = state.service_model[service]
        for region in range(state.asked_tokens.shape[1]):
            if model >= 0:
                # Several services of a model add up, one per set of tiers.
                requested_tokens[model, region] += state.asked_tokens[service, region]
            state.asked_tokens[service, region] = 0
    for p in range(state.pools.shape[0]):
        pool = state.pools[p]
        counts[_READY, p], counts[_STARTING, p] = pool.ready, pool.starting
        counts[_DRAINING, p], counts[_SPARE, p] = pool.draining, pool.lent
        counts[_WAITING, p], counts[_DEFERRED, p] = pool.waiting, 0
        for i in range(pool.services, pool.services + pool.service_count):
            for home in range(state.latency.shape[0]):
                if state.latency[home, pool.region] < np.inf:
                    counts[_DEFERRED, p] += state.deferred_home[state.pool_services[i], home]
        amounts[_UTILISATION, p], amounts[_LOAD, p] = _utilisation_and_load(state, p, t)
        amounts[_INPUT_TPS, p] = pool.arrived_tokens / since_s
        pool.arrived_tokens = 0
        amounts[_ASKED_TPS, p] = 0.0
        if requested_model[p] >= 0:
            amounts[_ASKED_TPS, p] = requested_tokens[requested_model[p], pool.region] / since_s
    for service in range(router_pool.shape[0]):
        for home in range(router_pool.shape[1]):
            if router_pool[service, home] >= 0:
                queue_place = router_pool[service, home]
                counts[_WAITING, queue_place] += state.router_waiting[service, home]
    for p in range(state.pools.shape[0]):  # otherwise no rule would ever start its first instance
        if counts[_READY, p] == 0 and counts[_WAITING, p] > 0:
            amounts[_UTILISATION, p] = amounts[_LOAD, p] = 1.0


@kernel
def _utilisation_and_load(state: Any, p: int, t: float) -> tuple[float, float]:
    """Return KV memory utilization and load (``Observation``) of a pool; 0 if none is ready."""
    pool = state.pools[p]
    if pool.ready == 0:
        return 0.0, 0.0
    used = pool_used(state, p, t)
    pending, queued, sequences = 0, 0, 0
    for slot in range(pool.first, pool.first + pool.top):
        instance = state.instances[slot]
        if instance.status == READY:
            pending += instance.pending
            queued += instance.queued
            sequences += instance.running + instance.waiting
    load = max(
        (used + queued) / (pool.ready * pool.usable),
        pending / (pool.ready * pool.budget),
        sequences / (pool.ready * pool.max_batch),
    )
    return used / (pool.ready * pool.kv_capacity), load
