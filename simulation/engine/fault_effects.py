"""Effect of a planned fault (``simulation.faults``) on instances and their requests.

A lost instance stops at once and loses the iteration in progress. Output tokens that it already
returned stay counted. Its requests return to the router at the same instant, in order of admission.
They compute prompt and tokens again elsewhere. A request without a retry left is rejected.
"""

from typing import Any

from simulation.compiler import kernel
from simulation.engine.accounting import count_tokens, settle
from simulation.engine.heaps import batch_at
from simulation.engine.loop import append, flush_router
from simulation.engine.membership import reject
from simulation.engine.progress import iteration_end, iterations_done
from simulation.engine.queues import interrupt, take_head
from simulation.engine.routing_order import rank
from simulation.engine.starts import FROM_LOCAL, FROM_SPOT, forget_switch, register, switch_off
from simulation.engine.state import FIRST_SERVICE, HEAD, TAIL
from simulation.faults import CRASH, OUTAGE, RECOVER, RESTORE, SLOW
from simulation.lifecycle import DRAINING, LENT, OFF, READY, STARTING
from simulation.results import INSTANCE_FAILED, REASONS

FAILED = REASONS.index(INSTANCE_FAILED)


@kernel
def _restart_request(state: Any, r: int) -> None:
    """Send request ``r`` back to its first service, as its KV cache is lost.

    Its prompt must be computed again.
    """
    request = state.requests[r]
    request.kv_transferred = 0
    request.service = state.related_service[request.service, FIRST_SERVICE]


@kernel
def _requeue_or_reject(state: Any, r: int, p: int, t: float) -> None:
    """Return request ``r`` of a lost instance to the router; without a retry left, reject it.

    ``p`` is the pool of the instance.
    """
    request = state.requests[r]
    request.pool = -1
    request.cached_tokens = request.used_blocks = request.preempted = 0
    if request.retries >= state.clock[0].max_retries:
        reject(state, r, FAILED, t)
        return
    request.retries += 1
    state.pools[p].retried += 1
    _restart_request(state, r)
    append(state, state.router_queue[request.service], r)
    state.router_waiting[request.service, request.home_region] += 1


@kernel
def _cut_run(state: Any, slot: int, t: float) -> None:
    """End an instance's current run of iterations at ``t``. The iteration in progress is lost."""
    instance = state.instances[slot]
    settle(state, slot, t)
    ended = iterations_done(instance, t)
    if ended > 0:
        instance.run_iterations = ended
        instance.iterations_ended += ended
        state.pools[instance.pool].iterations += ended
        state.pools[instance.pool].outside += ended * instance.is_unmeasured
        count_tokens(state, slot, iteration_end(instance, ended), ended * instance.decodes, 0)
    for i in range(instance.decodes):
        finish, r = batch_at(state, slot, i)
        # The heap stores only the finish number; derive the tokens generated so far.
        tokens_left = finish - instance.iterations_ended
        state.requests[r].generated_tokens = state.requests[r].osl - tokens_left
    instance.run_iterations = instance.prefill_tokens = instance.tokens_counted = 0


@kernel
def lose_instance(state: Any, slot: int, t: float) -> None:
    """Remove a starting, ready or draining instance and return its requests to the router."""
    instance = state.instances[slot]
    pool_index = instance.pool
    pool = state.pools[pool_index]
    # A host keeps the weights unless the lost instance was still fetching them.
    host_has_weights = instance.status != STARTING
    if instance.status == STARTING:
        pool.starting -= 1
        host_has_weights = instance.start_source == FROM_SPOT or instance.start_source == FROM_LOCAL
    elif instance.status == READY:
        pool.ready -= 1
    else:
        pool.draining -= 1
    forget_switch(state, slot)
    pool.failed += 1
    pool.failures += 1
    _cut_run(state, slot, t)
    # Find the oldest running request, so that requests return in order of admission.
    oldest = instance.newest_request
    while oldest >= 0 and state.requests[oldest].previous_admitted >= 0:
        oldest = state.requests[oldest].previous_admitted
    while oldest >= 0:
        next_request = state.requests[oldest].next_admitted
        _requeue_or_reject(state, oldest, pool_index, t)
        oldest = next_request
    for queue in range(state.queues.shape[1]):  # then the requests that wait here
        while state.queues[slot, queue, HEAD] >= 0:
            _requeue_or_reject(state, take_head(state, slot, queue), pool_index, t)
    for i in range(state.clock[0].deliveries):  # transfers already on the link still arrive
        request = state.requests[state.delivery_request[i]]
        if request.sending_slot == slot:
            request.sending_slot, request.used_blocks = -1, 0
    pool.waiting -= instance.waiting
    instance.kv_tokens = instance.context_tokens = instance.queued_kv_tokens = 0
    instance.remaining_tokens = instance.pending_tokens = 0
    instance.running = instance.waiting = instance.decodes = instance.decodes_pause = 0
    instance.kv_transfers = 0
    instance.partial_prompt = instance.ending_prompts = instance.newest_request = -1
    if host_has_weights:
        pool.hosts_with_weights += 1
    switch_off(state, slot, t)


@kernel
def _instance_of_event(state: Any, p: int, slot_or_rank: int) -> int:
    """Return the instance of pool ``p`` that an event of a fault refers to; -1: there is none.

    A ``slot_or_rank`` of at least 0 is a slot, counted from the pool's first one. A negative one is
    -1 - rank: the instance of that rank among the ready and draining ones, modulo their number.
    """
    pool = state.pools[p]
    if slot_or_rank >= 0:
        status = state.instances[pool.first_slot + slot_or_rank].status
        return -1 if status in (OFF, LENT) else int(pool.first_slot + slot_or_rank)
    alive = pool.ready + pool.draining
    if alive == 0:
        return -1
    rank = (-1 - slot_or_rank) % alive
    for slot in range(pool.first_slot, pool.first_slot + pool.slots_used):
        status = state.instances[slot].status
        if status in (READY, DRAINING):
            if rank == 0:
                return int(slot)
            rank -= 1
    return -1


@kernel
def _slow_down(state: Any, slot: int, factor: float, until_s: float, t: float) -> None:
    """Slow an instance down by ``factor`` from its next iteration until the time ``until_s``."""
    instance = state.instances[slot]
    instance.slowdown, instance.slow_until_s = factor, until_s
    if instance.run_iterations > 1:
        interrupt(state, slot, t)
        rank(state, slot)


@kernel
def _lose_region(state: Any, region: int, t: float) -> None:
    """Remove all instances of a region, and restart requests with KV caches sent there."""
    for p in range(state.pools.shape[0]):
        pool = state.pools[p]
        if pool.region != region:
            continue
        pool.outages += 1
        for slot in range(pool.first_slot, pool.first_slot + pool.slots_used):
            if state.instances[slot].status == LENT:
                pool.lent -= 1
                pool.hosts_with_weights += 1
                switch_off(state, slot, t)
            elif state.instances[slot].status != OFF:
                lose_instance(state, slot, t)
    # KV caches on their way to a decode instance there, or waiting for one, are lost too.
    for i in range(state.clock[0].deliveries):
        r = state.delivery_request[i]
        if state.requests[r].kv_transferred and state.requests[r].serving_region == region:
            _restart_request(state, r)
    for service in range(state.router_queue.shape[0]):
        r = state.router_queue[service, HEAD]
        state.router_queue[service, HEAD] = state.router_queue[service, TAIL] = -1
        while r >= 0:
            request = state.requests[r]
            following = request.next_in_queue
            state.router_waiting[service, request.home_region] -= 1
            if request.kv_transferred and request.serving_region == region:
                _restart_request(state, r)
            append(state, state.router_queue[request.service], r)
            state.router_waiting[request.service, request.home_region] += 1
            r = following


@kernel
def apply_fault(
    state: Any, kind: int, target: int, slot_or_rank: int, until_s: float, factor: float, t: float
) -> None:
    """Apply one planned event of a fault at ``t``, then route the requests that it sent back.

    ``target`` is a region for an outage and its end, else a pool. ``slot_or_rank`` chooses an
    instance of the pool. A slow instance takes ``factor`` times as long until the time ``until_s``.
    """
    if kind == OUTAGE:
        _lose_region(state, target, t)
    elif kind == RESTORE:
        for p in range(state.pools.shape[0]):
            if state.pools[p].region == target:
                state.pools[p].outages -= 1
    elif kind == RECOVER:
        pool = state.pools[target]
        for slot in range(pool.first_slot, pool.first_slot + pool.slots_used):
            if state.instances[slot].slowdown != 1.0 and state.instances[slot].slow_until_s <= t:
                _slow_down(state, slot, 1.0, 0.0, t)
    else:
        slot = _instance_of_event(state, target, slot_or_rank)
        if slot >= 0 and kind == CRASH:
            lose_instance(state, slot, t)
        elif slot >= 0 and kind == SLOW:
            _slow_down(state, slot, factor, until_s, t)
    # A loss changes the ratio of prefill and decode, so waiting instances may register now.
    for group in range(state.clock[0].registration_groups):
        register(state, group, t)
    for service in range(state.router_queue.shape[0]):
        if state.router_queue[service, HEAD] >= 0:
            flush_router(state, service, t)
    for p in range(state.pools.shape[0]):
        state.pools[p].has_new_ready = 0
