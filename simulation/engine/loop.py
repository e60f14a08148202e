"""The event loop: arrivals, deliveries and instance events in order of time.

It can stop and resume at any instant. Order at one instant: control (between calls), arrivals,
deliveries, instances. Within a kind the lower number comes first. A NIW queue has deferrable
requests that wait at the router until an instance has room or they become urgent.
"""

from typing import Any

import numpy as np

from simulation.compiler import kernel
from simulation.engine.batching import begin_run, finish_run
from simulation.engine.heaps import delivery_pop, delivery_push
from simulation.engine.membership import free_after_transfer
from simulation.engine.queues import enqueue, has_low, promote_aged
from simulation.engine.routing import (
    admits_at_once,
    choose_instance,
    choose_region,
    divert_prompt,
    releasable_count,
)
from simulation.engine.starts import finish_start, retire
from simulation.engine.state import HEAD, TAIL
from simulation.lifecycle import DRAINING, STARTING
from simulation.results import REJECTED, UNFINISHED


@kernel
def append(state: Any, queue: Any, r: int) -> None:
    """Append request ``r`` to ``queue``, an array of its HEAD and TAIL."""
    state.requests[r].next_in_queue = -1
    if queue[HEAD] < 0:
        queue[HEAD] = r
    else:
        state.requests[queue[TAIL]].next_in_queue = r
    queue[TAIL] = r


@kernel
def _send(state: Any, r: int, region: int, slot: int, t: float) -> None:
    """Send request ``r`` to ``region``: at once to instance ``slot``, or with network latency.

    After network latency, an instance is chosen again.
    """
    request = state.requests[r]
    request.serving_region = region
    latency = state.latency_s[request.home_region, region]
    # A KV cache is already in the region and pays no latency again.
    if latency > 0.0 and not request.kv_transferred:
        delivery_push(state, t + latency, r)
    else:
        enqueue(state, divert_prompt(state, slot, r, t), r, t)


@kernel
def _route(state: Any, r: int, t: float) -> None:
    """Choose region and instance for request ``r`` and send it there, or queue it at the router."""
    request = state.requests[r]
    # Its KV cache is already in the region, so the region is fixed.
    if request.kv_transferred:
        region = request.serving_region
        slot = choose_instance(state, request.service, region, t, r)
        region = region if slot >= 0 else -1
    else:
        region, slot = choose_region(state, request.service, request.home_region, t, r)
    if region >= 0:
        _send(state, r, region, slot, t)
    else:
        append(state, state.router_queue[request.service], r)
        state.router_waiting[request.service, request.home_region] += 1


@kernel
def _postpone_turn(state: Any, r: int, t: float) -> bool:
    """Postpone ``r``, a turn of a session, until its think time after the previous answer is over.

    Return False if that time has passed already. If the previous answer is not complete, the
    arrival is set to infinity, and ``send_next_turn`` sets it later.
    """
    turn = state.turns[r]
    if turn.previous < 0:
        return False
    if state.requests[turn.previous].outcome != UNFINISHED:
        if turn.ready_s <= t:
            return False
        state.requests[r].arrival_s = turn.ready_s
        delivery_push(state, turn.ready_s, r)
        return True
    turn.awaits_answer = 1
    # Its latencies count from when it is sent. Without the answer before, it never is.
    state.requests[r].arrival_s = np.inf
    return True


@kernel
def _arrive(state: Any, r: int, t: float) -> None:
    """Route a new request ``r``, or put it into the router's queue of deferrable requests (NIW).

    A deferrable request that is urgent at once is routed. A rejected request is skipped, and so is
    a turn of a session that is postponed.
    """
    request = state.requests[r]
    if request.outcome == REJECTED:
        return
    if state.clock[0].has_sessions and _postpone_turn(state, r, t):
        return
    if not state.deferrable[request.tier]:
        state.asked_tokens[request.service, request.home_region] += request.isl
    if state.deferrable[request.tier] and state.urgent_after_s[request.tier] > 0.0:
        append(state, state.deferred_queues[request.service, request.home_region, request.tier], r)
        state.deferred_count[request.service] += 1
        state.deferred_by_home[request.service, request.home_region] += 1
    else:
        _route(state, r, t)


@kernel
def _deliver(state: Any, r: int, t: float) -> None:
    """Give ``r``, which reached its serving region, to an instance there, or route it again.

    A postponed turn of a session has no serving region (-1) yet, and counts as a new arrival.
    """
    request = state.requests[r]
    if request.serving_region < 0:
        _arrive(state, r, t)
        return
    if request.sending_slot >= 0:  # a prefill instance, which held the KV cache until now
        free_after_transfer(state, r, t)
    slot = choose_instance(state, request.service, request.serving_region, t, r)
    if slot >= 0:
        enqueue(state, divert_prompt(state, slot, r, t), r, t)
    else:
        _route(state, r, t)


@kernel
def flush_router(state: Any, service: int, t: float) -> None:
    """Route the requests of ``service``, such as those of one model, that wait at the router.

    The oldest comes first.
    """
    r = state.router_queue[service, HEAD]
    state.router_queue[service, HEAD] = state.router_queue[service, TAIL] = -1
    while r >= 0:
        next_request = state.requests[r].next_in_queue
        state.router_waiting[service, state.requests[r].home_region] -= 1
        _route(state, r, t)
        r = next_request


@kernel
def flush_opened(state: Any, t: float) -> None:
    """Route the requests that wait at the router for pools with a new ready instance.

    Pools that gained one since the last call have ``opened`` set.
    """
    for p in range(state.pools.shape[0]):
        pool = state.pools[p]
        if pool.has_new_ready:
            pool.has_new_ready = 0
            for place in range(pool.first_service, pool.first_service + pool.service_count):
                if state.router_queue[state.pool_services[place], HEAD] >= 0:
                    flush_router(state, state.pool_services[place], t)


@kernel
def _pop_deferred(state: Any, service: int, r: int) -> int:
    """Remove request ``r``, the first of a NIW queue of a service, and return it."""
    request = state.requests[r]
    state.deferred_queues[service, request.home_region, request.tier, HEAD] = request.next_in_queue
    state.deferred_count[service] -= 1
    state.deferred_by_home[service, request.home_region] -= 1
    return r


@kernel
def _most_urgent_deferred(state: Any, service: int, region: int) -> int:
    """Return the deferred request for ``region`` that becomes urgent first; -1: none.

    It is of ``service``, from any home region that ``region`` may serve. The earlier arrival wins a
    tie.
    """
    most_urgent, earliest_s = -1, np.inf
    for home in range(state.latency_s.shape[0]):
        if state.deferred_by_home[service, home] == 0 or state.latency_s[home, region] == np.inf:
            continue
        for tier in range(state.deferrable.shape[0]):
            candidate = state.deferred_queues[service, home, tier, HEAD]
            if candidate < 0:
                continue
            candidate_s = state.requests[candidate].arrival_s + state.urgent_after_s[tier]
            if candidate_s < earliest_s or (candidate_s == earliest_s and candidate < most_urgent):
                most_urgent, earliest_s = candidate, candidate_s
    return most_urgent


@kernel
def _earliest_urgent(state: Any, service: int, tier: int, t: float) -> int:
    """Return the request of ``tier`` that is urgent at ``t`` and arrived first; -1: none.

    Only deferred requests of ``service`` count.
    """
    earliest = -1
    for home in range(state.latency_s.shape[0]):
        candidate = state.deferred_queues[service, home, tier, HEAD]
        if candidate < 0 or (earliest >= 0 and earliest < candidate):
            continue
        if t - state.requests[candidate].arrival_s >= state.urgent_after_s[tier]:
            earliest = candidate
    return earliest


@kernel
def _release_deferred(state: Any, service: int, region: int, t: float) -> None:
    """Send deferred requests of ``service`` to instances in ``region`` while they have room.

    The request that becomes urgent first is released first. A plan may limit the tokens that a
    region has released by now (``Actions.release_tokens``).
    """
    if state.deferred_count[service] == 0:
        return
    for _ in range(releasable_count(state, service, region, t)):
        if state.released_tokens[service, region] >= state.releasable_tokens[service, region]:
            return
        deferred = _most_urgent_deferred(state, service, region)
        if deferred < 0:
            return
        slot = choose_instance(state, service, region, t, deferred)
        if slot < 0:
            return
        # A router that sees no queues sends the request although it may have to wait there.
        if state.clock[0].sees_queues and not admits_at_once(
            state, service, region, slot, deferred, t
        ):
            return
        state.released_tokens[service, region] += state.requests[deferred].isl
        _send(state, _pop_deferred(state, service, deferred), region, slot, t)


@kernel
def route_deferred_requests(state: Any, t: float) -> None:
    """Route deferred requests that are urgent at ``t``, and release others where there is room.

    Also promote deferrable requests that became urgent while they waited at an instance. Urgency
    depends on the tier. Requests of all tiers compete for the room in a region.
    """
    for service in range(state.deferred_queues.shape[0]):
        for tier in range(state.deferrable.shape[0]):
            while True:
                r = _earliest_urgent(state, service, tier, t)
                if r < 0:
                    break
                _route(state, _pop_deferred(state, service, r), t)
        for region in range(state.latency_s.shape[0]):
            _release_deferred(state, service, region, t)
    for p in range(state.pools.shape[0]):
        first = state.pools[p].first_slot
        for slot in range(first, first + state.pools[p].slots_used):
            if has_low(state, slot):
                promote_aged(state, slot, t)


@kernel
def _process_instance_event(state: Any, slot: int, t: float) -> None:
    """Process the next event of an instance: the end of its start, or of a run of iterations."""
    instance = state.instances[slot]
    pool = state.pools[instance.pool]
    if instance.status == STARTING:
        finish_start(state, slot, t)
        flush_opened(state, t)
        return
    completed = finish_run(state, slot, t)
    begin_run(state, slot, t)
    if instance.status == DRAINING and instance.running == 0 and instance.kv_transfers == 0:
        retire(state, slot, t)
    # Every completion lets the endpoint signal room for deferred requests.
    for _ in range(completed):
        for i in range(pool.first_service, pool.first_service + pool.service_count):
            _release_deferred(state, state.pool_services[i], pool.region, t)


@kernel
def advance_until(state: Any, until_s: float) -> None:
    """Process every event before ``until_s``."""
    clock = state.clock[0]
    request_count = state.requests.shape[0]
    while True:
        arrival_s = np.inf
        if clock.next_arrival < request_count:
            arrival_s = state.requests[clock.next_arrival].arrival_s
        delivery_s = state.delivery_time[0] if clock.deliveries > 0 else np.inf
        event_s = state.event_time[0] if clock.scheduled_instances > 0 else np.inf
        t = min(arrival_s, delivery_s, event_s)
        if t >= until_s or t == np.inf:
            return
        if arrival_s == t:
            clock.next_arrival += 1
            _arrive(state, clock.next_arrival - 1, t)
        elif delivery_s == t:
            _deliver(state, delivery_pop(state), t)
        else:
            _process_instance_event(state, state.event_slot[0], t)
