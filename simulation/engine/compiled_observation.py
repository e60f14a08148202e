"""Compiled reading of a policy's observation at a scaling decision.

An observation of a few pools is a few microseconds of arithmetic. In Python, array by array, it
would cost more than the simulated requests between two decisions.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from simulation.compiler import kernel
from simulation.engine.progress import iterations_done
from simulation.lifecycle import READY

# Rows of ``counts`` and ``amounts``.
COUNTS = _READY, _STARTING, _DRAINING, _SPARE, _WAITING, _DEFERRED = tuple(range(6))
AMOUNTS = (
    _UTILISATION, _LOAD, _INPUT_TPS, _ASKED_TPS, _BACKLOG, _FULLEST, _LONGEST, _SATURATION,
) = tuple(range(8))  # fmt: skip
# Defaults of the utilization detector of llm-d's endpoint picker (github.com/llm-d/llm-d-router,
# pkg/epp/framework/plugins/flowcontrol/saturationdetector/utilization/README.md).
QUEUE_DEPTH, KV_SHARE = 5, 0.8


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
        _read_instances(state, p, t, amounts)
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
def _read_instances(state: Any, p: int, t: float, amounts: Any) -> None:
    """Fill the amounts of a pool that its ready instances give (``Observation``); 0 without any."""
    pool = state.pools[p]
    for row in (_UTILISATION, _LOAD, _BACKLOG, _FULLEST, _LONGEST, _SATURATION):
        amounts[row, p] = 0.0
    if pool.ready == 0:
        return
    used, pending, queued, sequences = 0, 0, 0, 0
    for slot in range(pool.first, pool.first + pool.top):
        instance = state.instances[slot]
        if instance.status == READY:
            kv = instance.kv + iterations_done(instance, t) * instance.decodes
            used += kv
            pending += instance.pending
            queued += instance.queued
            sequences += instance.running + instance.waiting
            full = (kv + instance.queued) / pool.kv_capacity
            amounts[_FULLEST, p] = max(amounts[_FULLEST, p], full)
            amounts[_LONGEST, p] = max(amounts[_LONGEST, p], instance.queued)
            busy = max(instance.waiting / QUEUE_DEPTH, kv / pool.kv_capacity / KV_SHARE)
            amounts[_SATURATION, p] += busy / pool.ready
    amounts[_UTILISATION, p] = used / (pool.ready * pool.kv_capacity)
    # ``pending`` holds one for each request beside its tokens.
    amounts[_BACKLOG, p] = max(pending - sequences, 0)
    amounts[_LOAD, p] = max(
        (used + queued) / (pool.ready * pool.usable),
        pending / (pool.ready * pool.budget),
        sequences / (pool.ready * pool.max_batch),
    )
