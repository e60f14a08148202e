"""Effect of a planned fault (``simulation.faults``) on instances and their requests.

A lost instance stops at once and loses the iteration in progress. Output tokens that it already
returned stay counted. Its requests return to the router at the same instant, in order of admission.
They compute prompt and tokens again elsewhere. A request without a retry left is rejected.
"""

from __future__ import annotations

from typing import Any

from simulation.compiled import kernel
from simulation.engine.accounting import count_tokens, settle
from simulation.engine.heaps import batch_at
from simulation.engine.loop import append, flush_router
from simulation.engine.membership import lose
from simulation.engine.progress import iteration_end, iterations_done
from simulation.engine.queues import (
    interrupt,
    take_head,
)
from simulation.engine.routing_order import rank
from simulation.engine.starts import FROM_LOCAL, FROM_SPOT, register, switch_off
from simulation.engine.state import AGAIN, HEAD, TAIL
from simulation.faults import CRASH, MEND, OUTAGE, RESTORE, SLOW
from simulation.lifecycle import DRAINING, LENT, OFF, READY, STARTING
from simulation.results import INSTANCE_FAILED, REASONS

FAILED = REASONS.index(INSTANCE_FAILED)


@kernel
def _begin_again(s: Any, r: int) -> None:
    """Restart a request after the loss of its KV cache: its prompt is computed again."""
    request = s.requests[r]
    request.carried = 0
    request.model = s.handover[request.model, AGAIN]


@kernel
def _displace(s: Any, r: int, p: int) -> None:
    """Return a request of a lost instance to the router, or reject it without a retry left."""
    request = s.requests[r]
    request.pool = -1
    request.cached = request.held = request.preempted = 0
    if request.tries >= s.clock[0].retries:
        lose(s, r, FAILED)
        return
    request.tries += 1
    s.pools[p].retried += 1
    _begin_again(s, r)
    append(s, s.router_queue[request.model], r)
    s.router_waiting[request.model, request.home] += 1


@kernel
def _cut_run(s: Any, slot: int, t: float) -> None:
    """End the run with the iterations that ended before ``t``; the one in progress is lost."""
    instance = s.instances[slot]
    settle(s, slot, t)
    done = iterations_done(instance, t)
    if done > 0:
        instance.k = done
        instance.counter += done
        s.pools[instance.pool].iterations += done
        s.pools[instance.pool].outside += done * instance.outside
        count_tokens(s, slot, iteration_end(instance, done), done * instance.decodes, 0)
    for i in range(instance.decodes):
        finish, r = batch_at(s, slot, i)
        # The heap stores only the finish number; derive the tokens generated so far.
        s.requests[r].generated = s.requests[r].osl - (finish - instance.counter)
    instance.k = instance.chunk = instance.told = 0


@kernel
def lose_instance(s: Any, slot: int, t: float) -> None:
    """Remove a starting, ready or draining instance and return its requests to the router."""
    instance = s.instances[slot]
    p = instance.pool
    pool = s.pools[p]
    # A host keeps the weights unless the lost instance was still fetching them.
    weights = instance.status != STARTING
    if instance.status == STARTING:
        pool.starting -= 1
        weights = instance.source == FROM_SPOT or instance.source == FROM_LOCAL
    elif instance.status == READY:
        pool.ready -= 1
    else:
        pool.draining -= 1
    pool.failed += 1
    pool.failures += 1
    _cut_run(s, slot, t)
    # Find the oldest running request, so that requests return in order of admission.
    oldest = instance.newest
    while oldest >= 0 and s.requests[oldest].older >= 0:
        oldest = s.requests[oldest].older
    while oldest >= 0:
        following = s.requests[oldest].newer
        _displace(s, oldest, p)
        oldest = following
    for q in range(s.queues.shape[1]):
        while s.queues[slot, q, HEAD] >= 0:
            _displace(s, take_head(s, slot, q), p)
    for i in range(s.clock[0].deliveries):  # transfers already on the link still arrive
        request = s.requests[s.delivery_request[i]]
        if request.sender == slot:
            request.sender, request.held = -1, 0
    pool.waiting -= instance.waiting
    instance.kv = instance.context = instance.work = instance.pending = instance.queued = 0
    instance.running = instance.waiting = instance.decodes = instance.pausing = 0
    instance.sending = 0
    instance.partial = instance.fresh = instance.newest = -1
    if weights:
        pool.warm += 1
    switch_off(s, slot, t)


@kernel
def _chosen(s: Any, p: int, place: int) -> int:
    """Return the slot that an event refers to; -1: there is no instance.

    A ``place`` of at least 0 is a slot. A negative one counts ready and draining instances from 0,
    as ``-1 - place``, modulo their number.
    """
    pool = s.pools[p]
    if place >= 0:
        status = s.instances[pool.first + place].status
        return -1 if status in (OFF, LENT) else int(pool.first + place)
    alive = pool.ready + pool.draining
    if alive == 0:
        return -1
    left = (-1 - place) % alive
    for slot in range(pool.first, pool.first + pool.top):
        status = s.instances[slot].status
        if status in (READY, DRAINING):
            if left == 0:
                return int(slot)
            left -= 1
    return -1


@kernel
def _set_pace(s: Any, slot: int, factor: float, until: float, t: float) -> None:
    """Slow an instance down by ``factor`` until a time, from its next iteration on."""
    instance = s.instances[slot]
    instance.slow, instance.slow_until = factor, until
    if instance.k > 1:
        interrupt(s, slot, t)
        rank(s, slot)


@kernel
def _lose_region(s: Any, region: int, t: float) -> None:
    """Remove all instances of a region, and restart requests with KV caches sent there."""
    for p in range(s.pools.shape[0]):
        pool = s.pools[p]
        if pool.region != region:
            continue
        pool.down += 1
        for slot in range(pool.first, pool.first + pool.top):
            if s.instances[slot].status == LENT:
                pool.lent -= 1
                pool.warm += 1
                switch_off(s, slot, t)
            elif s.instances[slot].status != OFF:
                lose_instance(s, slot, t)
    # KV caches on their way to a decode instance there, or waiting for one, are lost too.
    for i in range(s.clock[0].deliveries):
        r = s.delivery_request[i]
        if s.requests[r].carried and s.requests[r].serving == region:
            _begin_again(s, r)
    for service in range(s.router_queue.shape[0]):
        r = s.router_queue[service, HEAD]
        s.router_queue[service, HEAD] = s.router_queue[service, TAIL] = -1
        while r >= 0:
            request = s.requests[r]
            following = request.next
            s.router_waiting[service, request.home] -= 1
            if request.carried and request.serving == region:
                _begin_again(s, r)
            append(s, s.router_queue[request.model], r)
            s.router_waiting[request.model, request.home] += 1
            r = following


@kernel
def strike(
    s: Any, kind: int, where: int, place: int, until: float, factor: float, t: float
) -> None:
    """Apply one planned event at ``t``."""
    if kind == OUTAGE:
        _lose_region(s, where, t)
    elif kind == RESTORE:
        for p in range(s.pools.shape[0]):
            if s.pools[p].region == where:
                s.pools[p].down -= 1
    elif kind == MEND:
        pool = s.pools[where]
        for slot in range(pool.first, pool.first + pool.top):
            if s.instances[slot].slow != 1.0 and s.instances[slot].slow_until <= t:
                _set_pace(s, slot, 1.0, 0.0, t)
    else:
        slot = _chosen(s, where, place)
        if slot >= 0 and kind == CRASH:
            lose_instance(s, slot, t)
        elif slot >= 0 and kind == SLOW:
            _set_pace(s, slot, factor, until, t)
    # A loss may change the ratio, so that waiting instances can register now.
    for group in range(s.clock[0].groups):
        register(s, group, t)
    for service in range(s.router_queue.shape[0]):
        if s.router_queue[service, HEAD] >= 0:
            flush_router(s, service, t)
    for p in range(s.pools.shape[0]):
        s.pools[p].opened = 0
