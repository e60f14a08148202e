"""The event loop: arrivals, deliveries and instance events in order of time.

It can stop and resume at any instant. Order at one instant: control (between calls), arrivals,
deliveries, instances. Within a kind the lower number comes first.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from simulation.compiled import kernel
from simulation.engine.batching import begin_run, finish_run
from simulation.engine.heaps import delivery_pop, delivery_push
from simulation.engine.membership import sent
from simulation.engine.queues import (
    enqueue,
    has_low,
    promote_aged,
)
from simulation.engine.routing import choose_instance, choose_region, releases, takes
from simulation.engine.starts import retire, started
from simulation.engine.state import HEAD, TAIL
from simulation.lifecycle import DRAINING, STARTING
from simulation.results import REJECTED


@kernel
def append(s: Any, queue: Any, r: int) -> None:
    """Append a request to a queue, given as its head and tail."""
    s.requests[r].next = -1
    if queue[0] < 0:
        queue[0] = r
    else:
        s.requests[queue[1]].next = r
    queue[1] = r


@kernel
def _send(s: Any, r: int, region: int, slot: int, t: float) -> None:
    """Send a request to its serving region: at once to ``slot``, or with network latency."""
    request = s.requests[r]
    request.serving = region
    latency = s.latency[request.home, region]
    # A KV cache is already in the region and pays no latency again.
    if latency > 0.0 and not request.carried:
        delivery_push(s, t + latency, r)
    else:
        enqueue(s, slot, r, t)


@kernel
def _route(s: Any, r: int, t: float) -> None:
    """Choose region and instance for a request, or queue it at the router."""
    request = s.requests[r]
    # Its KV cache is already in the region, so the region is fixed.
    if request.carried:
        region = request.serving
        slot = choose_instance(s, request.model, region, t, r)
        region = region if slot >= 0 else -1
    else:
        region, slot = choose_region(s, request.model, request.home, t, r)
    if region >= 0:
        _send(s, r, region, slot, t)
    else:
        append(s, s.router_queue[request.model], r)
        s.router_waiting[request.model, request.home] += 1


@kernel
def _arrive(s: Any, r: int, t: float) -> None:
    """Route a new request, or put it into its NIW queue."""
    request = s.requests[r]
    if request.outcome == REJECTED:
        return
    if not s.deferrable[request.tier]:
        s.asked_tokens[request.model, request.home] += request.isl
    if s.deferrable[request.tier] and s.priority_after[request.tier] > 0.0:
        append(s, s.deferred[request.model, request.home, request.tier], r)
        s.deferred_count[request.model] += 1
        s.deferred_home[request.model, request.home] += 1
    else:
        _route(s, r, t)


@kernel
def _deliver(s: Any, r: int, t: float) -> None:
    """Give a request that reached its region to an instance there."""
    request = s.requests[r]
    if request.sender >= 0:
        sent(s, r, t)
    slot = choose_instance(s, request.model, request.serving, t, r)
    if slot >= 0:
        enqueue(s, slot, r, t)
    else:
        _route(s, r, t)


@kernel
def flush_router(s: Any, model: int, t: float) -> None:
    """Route the requests that wait for any ready instance of ``model``, oldest first."""
    r = s.router_queue[model, HEAD]
    s.router_queue[model, HEAD] = s.router_queue[model, TAIL] = -1
    while r >= 0:
        following = s.requests[r].next
        s.router_waiting[model, s.requests[r].home] -= 1
        _route(s, r, t)
        r = following


@kernel
def flush_opened(s: Any, t: float) -> None:
    """Route the requests that wait for a service of pools that gained a ready instance."""
    for p in range(s.pools.shape[0]):
        pool = s.pools[p]
        if pool.opened:
            pool.opened = 0
            for i in range(pool.services, pool.services + pool.service_count):
                if s.router_queue[s.pool_services[i], HEAD] >= 0:
                    flush_router(s, s.pool_services[i], t)


@kernel
def _pop_deferred(s: Any, model: int, r: int) -> int:
    """Remove the first request of its NIW queue and return it."""
    request = s.requests[r]
    s.deferred[model, request.home, request.tier, HEAD] = request.next
    s.deferred_count[model] -= 1
    s.deferred_home[model, request.home] -= 1
    return r


@kernel
def _most_urgent(s: Any, model: int, region: int) -> int:
    """Return the deferred request that a region may take and that becomes urgent first.

    The earlier arrival wins a tie. The result is -1 if there is none.
    """
    first, least = -1, np.inf
    for home in range(s.latency.shape[0]):
        if s.deferred_home[model, home] == 0 or s.latency[home, region] == np.inf:
            continue
        for tier in range(s.deferrable.shape[0]):
            head = s.deferred[model, home, tier, HEAD]
            if head < 0:
                continue
            urgent = s.requests[head].arrival + s.priority_after[tier]
            if urgent < least or (urgent == least and head < first):
                first, least = head, urgent
    return first


@kernel
def _aged(s: Any, model: int, tier: int, t: float) -> int:
    """Return the earliest deferred request of a tier that is urgent by now; -1: none."""
    first = -1
    for home in range(s.latency.shape[0]):
        head = s.deferred[model, home, tier, HEAD]
        if (
            head >= 0
            and (first < 0 or head < first)
            and t - s.requests[head].arrival >= s.priority_after[tier]
        ):
            first = head
    return first


@kernel
def _release(s: Any, model: int, region: int, t: float) -> None:
    """Release deferred requests of a model to an endpoint that has room.

    The request that becomes urgent first is released first.
    """
    if s.deferred_count[model] == 0:
        return
    for _ in range(releases(s, model, region, t)):
        first = _most_urgent(s, model, region)
        if first < 0:
            return
        slot = choose_instance(s, model, region, t, first)
        if slot < 0 or (s.clock[0].sees_queues and not takes(s, model, region, slot, first, t)):
            return
        _send(s, _pop_deferred(s, model, first), region, slot, t)


@kernel
def tend_deferred(s: Any, t: float) -> None:
    """Route aged deferred requests at once, and let every endpoint release others."""
    for model in range(s.deferred.shape[0]):
        for tier in range(s.deferrable.shape[0]):
            while True:
                r = _aged(s, model, tier, t)
                if r < 0:
                    break
                _route(s, _pop_deferred(s, model, r), t)
        for region in range(s.latency.shape[0]):
            _release(s, model, region, t)
    for p in range(s.pools.shape[0]):
        first = s.pools[p].first
        for slot in range(first, first + s.pools[p].top):
            if has_low(s, slot):
                promote_aged(s, slot, t)


@kernel
def _step(s: Any, slot: int, t: float) -> None:
    """Process the next event of an instance: a start or the end of a run."""
    instance = s.instances[slot]
    pool = s.pools[instance.pool]
    if instance.status == STARTING:
        started(s, slot, t)
        flush_opened(s, t)
        return
    completed = finish_run(s, slot, t)
    begin_run(s, slot, t)
    if instance.status == DRAINING and instance.running == 0 and instance.sending == 0:
        retire(s, slot, t)
    # Every completion lets the endpoint signal room for deferred requests (E4).
    for _ in range(completed):
        for i in range(pool.services, pool.services + pool.service_count):
            _release(s, s.pool_services[i], pool.region, t)


@kernel
def advance_until(s: Any, until: float, most: int) -> bool:
    """Process at most ``most`` events before ``until`` and return whether none is left."""
    clock = s.clock[0]
    total = s.requests.shape[0]
    for _ in range(most):
        arrival = s.requests[clock.arrival].arrival if clock.arrival < total else np.inf
        delivery = s.delivery_time[0] if clock.deliveries > 0 else np.inf
        event = s.event_time[0] if clock.instances > 0 else np.inf
        t = min(arrival, delivery, event)
        if t >= until or t == np.inf:
            return True
        if arrival == t:
            clock.arrival += 1
            _arrive(s, clock.arrival - 1, t)
        elif delivery == t:
            _deliver(s, delivery_pop(s), t)
        else:
            _step(s, s.event_slot[0], t)
    return False
