"""Compiled reading of a policy's observation at a scaling decision.

An observation of a few pools is a few microseconds of arithmetic. In Python, array by array, it
would cost more than the simulated requests between two decisions.
"""

from typing import Any, NamedTuple

import numpy as np

from simulation.arrays import FloatArray, IntArray
from simulation.compiler import kernel
from simulation.engine.progress import iterations_done
from simulation.engine.signals import read_signals
from simulation.lifecycle import READY
from simulation.policy import KV_SHARE, QUEUE_DEPTH

# Rows of ``counts`` and ``amounts``.
COUNTS = _READY, _STARTING, _DRAINING, _SPARE, WAITING, _DEFERRED = tuple(range(6))
AMOUNTS = (
    UTILISATION, LOAD, _INPUT_TPS, _ASKED_TPS, _BACKLOG, _FULLEST, _LONGEST, _SATURATION,
) = tuple(range(8))  # fmt: skip


class Reading(NamedTuple):
    """Arrays that ``read_observation`` needs, and arrays that it fills."""

    router_pool: IntArray  # [service, region] pool that shows a router's queue; -1: none
    requested_model: IntArray  # [pool] model whose requests count for the pool; -1: none
    requested_tokens: IntArray  # [model, region] work array
    observed_s: FloatArray  # [1] time of the last decision
    last_totals: FloatArray  # [2, pool] work array of ``read_signals``
    counts: IntArray  # [COUNTS, pool]
    amounts: FloatArray  # [AMOUNTS, pool]
    measured: FloatArray  # [signals.COUNT, pool], or no rows if no signals are read


@kernel
def read_observation(state: Any, t: float, reading: Any) -> None:
    """Fill ``reading`` with the observation of every pool at ``t``.

    Amounts cover the time since the last decision; their counters restart at 0. A deferred request
    counts in each pool that may serve it. One at a router counts in one pool (``router_pools``).
    """
    since_s, reading.observed_s[0] = t - reading.observed_s[0], t
    counts, amounts, requested_tokens = reading.counts, reading.amounts, reading.requested_tokens
    requested_model, router_pool = reading.requested_model, reading.router_pool
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
        counts[_READY, p] = pool.ready + pool.missing_instances
        counts[_STARTING, p] = pool.starting + pool.switching_in
        counts[_DRAINING, p], counts[_SPARE, p] = pool.draining - pool.switching_out, pool.lent
        counts[WAITING, p], counts[_DEFERRED, p] = pool.waiting, 0
        for place in range(pool.first_service, pool.first_service + pool.service_count):
            for home in range(state.latency_s.shape[0]):
                if state.latency_s[home, pool.region] < np.inf:
                    counts[_DEFERRED, p] += state.deferred_by_home[state.pool_services[place], home]
        _read_instances(state, p, t, amounts)
        amounts[_INPUT_TPS, p] = pool.arrived_tokens / since_s
        pool.arrived_tokens = 0
        amounts[_ASKED_TPS, p] = 0.0
        if requested_model[p] >= 0:
            amounts[_ASKED_TPS, p] = requested_tokens[requested_model[p], pool.region] / since_s
    for service in range(router_pool.shape[0]):
        for home in range(router_pool.shape[1]):
            if router_pool[service, home] >= 0:
                shown_at = router_pool[service, home]  # the pool that shows the router's queue
                counts[WAITING, shown_at] += state.router_waiting[service, home]
    # A pool without ready instances counts as fully used while requests wait for it. Otherwise no
    # rule would ever start its first instance.
    for p in range(state.pools.shape[0]):
        if state.pools[p].ready == 0 and counts[WAITING, p] > 0:
            amounts[UTILISATION, p] = amounts[LOAD, p] = 1.0
    if reading.measured.shape[0]:
        read_signals(state, t, since_s, reading.last_totals, reading.measured)


@kernel
def _read_instances(state: Any, p: int, t: float, amounts: Any) -> None:
    """Fill column ``p`` of ``amounts`` with what a policy sees of pool ``p`` at ``t``.

    Only ready instances count. Without any, all amounts are 0. For the amounts see ``Observation``.
    """
    pool = state.pools[p]
    for row in (UTILISATION, LOAD, _BACKLOG, _FULLEST, _LONGEST, _SATURATION):
        amounts[row, p] = 0.0
    if pool.ready == 0:
        return
    kv_tokens = pending_tokens = queued_tokens = 0  # tokens
    sequences = 0
    for slot in range(pool.first_slot, pool.first_slot + pool.slots_used):
        instance = state.instances[slot]
        if instance.status == READY:
            kv = instance.kv_tokens + iterations_done(instance, t) * instance.decodes
            kv_tokens += kv
            pending_tokens += instance.pending_tokens
            queued_tokens += instance.queued_kv_tokens
            sequences += instance.running + instance.waiting
            needed_share = (kv + instance.queued_kv_tokens) / pool.kv_capacity_tokens
            amounts[_FULLEST, p] = max(amounts[_FULLEST, p], needed_share)
            amounts[_LONGEST, p] = max(amounts[_LONGEST, p], instance.queued_kv_tokens)
            kv_saturation = kv / pool.kv_capacity_tokens / KV_SHARE
            saturation = max(instance.waiting / QUEUE_DEPTH, kv_saturation)
            amounts[_SATURATION, p] += saturation / pool.ready
    amounts[UTILISATION, p] = kv_tokens / (pool.ready * pool.kv_capacity_tokens)
    # ``pending_tokens`` counts one more for each request than its tokens.
    amounts[_BACKLOG, p] = max(pending_tokens - sequences, 0)
    amounts[LOAD, p] = max(
        (kv_tokens + queued_tokens) / (pool.ready * pool.usable_kv_tokens),
        pending_tokens / (pool.ready * pool.token_budget),
        sequences / (pool.ready * pool.max_batch),
    )
