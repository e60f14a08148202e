"""The state of a simulation: flat arrays of records that compiled code and Python both read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, get_type_hints

import numpy as np

from simulation.arrays import Array
from simulation.engine.tables import Layout, Tables, handle, opener

# Rows of State.series, each [pools, intervals]
(
    S_READY,
    S_STARTING,
    S_DRAINING,
    S_BUSY,
    S_KV,
    S_INPUT,
    S_OUTPUT,
    S_BATCH,  # sequence-seconds in batches
    S_ITERATIONS,
    S_ARRIVED,  # input tokens
    S_LENT,
    S_HIT,  # prompt tokens admitted that the prefix cache held, of ...
    S_LOOKED_UP,  # ... the prompt tokens admitted where there is one
    ROWS,
) = range(14)
HEAD, TAIL = range(2)  # of a queue of requests
THEN, AGAIN = range(2)  # of State.handover

REQUEST = np.dtype(
    [
        ("arrival", "f8"),
        ("first", "f8"),  # first token, NaN before
        ("last", "f8"),
        ("isl", "i4"),
        ("osl", "i4"),
        ("generated", "i4"),  # tokens it had when it was last preempted
        ("next", "i4"),  # in the one queue it waits in
        ("newer", "i4"),  # neighbours in order of admission to its instance
        ("older", "i4"),
        ("cached", "i4"),  # tokens of its prompt that were cached when it was last admitted
        ("held", "i4"),  # cached blocks that it holds
        ("sender", "i4"),  # prefill instance whose memory its KV cache is in, -1: none
        ("model", "i2"),  # service: a model, by the role of the pools it goes to next
        ("home", "i2"),
        ("serving", "i2"),  # region it was sent to
        ("tier", "i2"),
        ("pool", "i2"),
        ("outcome", "i1"),
        ("reason", "i1"),  # why it was rejected, a place in results.REASONS; -1: it was not
        ("preempted", "i1"),  # and waiting since
        ("carried", "i1"),  # its KV cache comes from a prefill instance
        ("tries", "i1"),  # instances lost under it
    ],
    align=True,
)

INSTANCE = np.dtype(
    [
        ("t0", "f8"),  # when the current run of equal iterations began
        ("dt", "f8"),  # seconds of its first iteration
        ("growth", "f8"),  # by which each further one takes longer
        ("k", "i8"),  # iterations in the run; 0: none running
        ("decodes", "i8"),  # sequences decoding; the size of the heap
        ("kv", "i8"),  # KV tokens reserved during the first iteration of the run
        ("context", "i8"),  # KV tokens its decodes attend to in that iteration
        ("outside", "i8"),  # whether it lies outside what the profile was measured on
        ("work", "i8"),  # prefill and output tokens still to do, at t0
        ("pending", "i8"),  # prompt tokens of unfinished prompts, and one per request
        ("queued", "i8"),  # KV tokens its waiting requests will need at once
        ("turn", "i8"),  # number of the request it took last
        ("pausing", "i8"),  # whether its decodes sit out the current iteration
        ("link_free", "f8"),  # when the last KV cache it sends is through
        ("status", "i8"),
        ("pool", "i8"),
        ("running", "i8"),  # sequences in the batch: decoding, fresh and partial
        ("waiting", "i8"),
        ("counter", "i8"),  # iterations ended so far
        ("chunk", "i8"),  # prefill tokens of the current iteration
        ("partial", "i8"),  # request whose prefill goes on after this iteration, -1: none
        ("partial_left", "i8"),
        ("fresh", "i8"),  # requests whose prefill ends with this iteration: head and tail
        ("fresh_tail", "i8"),
        ("newest", "i8"),  # most recently admitted, -1: batch empty
        ("sending", "i8"),  # requests whose KV cache leaves for a decode instance
        ("kv_low", "i8"),  # between these its KV tokens stay during the run, while it is ready
        ("kv_high", "i8"),
        ("told", "i8"),  # output tokens of the current run already among ``given`` of its pool
        ("settled", "f8"),  # time up to which hours are counted
        ("kept", "f8"),  # after the window: time up to which it is paid
        ("born", "f8"),  # asked for
        ("asked", "f8"),  # the last time; later than born where it was lent out in between
        ("source", "i8"),  # where its start took it from: engine.starting
        ("loaded", "i8"),  # started, and waits to be registered
        ("fails", "i8"),  # its start will
        ("lending", "i8"),  # goes to the spot pool, not off, when it is taken out
        ("soft_until", "f8"),  # draining: stays so long, and may come back
        ("slow", "f8"),  # how many times as long its iterations take ...
        ("slow_until", "f8"),  # ... and until when
    ],
    align=True,
)

POOL = np.dtype(
    [
        ("curve", "i8"),  # row of State.curves
        ("max_batch", "i8"),
        ("budget", "i8"),
        ("most_batch", "i8"),  # what max_batch may be raised to
        ("kv_capacity", "i8"),
        ("usable", "i8"),  # of that, now
        ("needed", "i8"),  # by the largest request that may come
        ("blocks", "i8"),  # of the prefix cache of an instance at most, 0: it has none
        ("block_tokens", "i8"),
        ("buckets", "i8"),  # of an instance, a power of two
        ("first_node", "i8"),  # those of its instances in State.nodes begin here ...
        ("first_bucket", "i8"),  # ... and in State.buckets here
        ("scheduler", "i8"),  # place in fleet.SCHEDULERS
        ("tau_n", "f8"),
        ("tau_p", "f8"),
        ("when_full", "i8"),  # place in fleet.WHEN_FULL
        ("longest", "i8"),  # input and output of a request that can be served, tokens
        ("watermark", "i8"),
        ("batching", "i8"),  # place in fleet.BATCHING
        ("router", "i8"),  # place in fleet.ROUTERS
        ("kv_bytes", "f8"),  # per token sent
        ("link", "f8"),  # bytes/s of an instance
        ("shared_link", "f8"),  # bytes/s of all of them
        ("shared_free", "f8"),  # when it is through with what it was given
        ("hands", "i8"),  # whether requests go on to a decode pool after their first token
        ("startup", "f8"),  # of a new instance with the weights on its host
        ("remote", "f8"),  # of one without
        ("reclaim", "f8"),  # of a lent one of the model
        ("same_architecture", "f8"),  # of one that another model lent out, inf: not done
        ("other_model", "f8"),
        ("warm", "i8"),  # hosts without an instance that have the weights
        ("model", "i8"),
        ("architecture", "i8"),  # -1: like no other
        ("hardware", "i8"),  # region, GPU type, owned or spot, and how many of them
        ("lent_first", "i8"),  # lent out at time 0
        ("today", "i8"),  # ran up to time 0, -1: as many as are ready then
        ("group", "i8"),  # pools that register together, -1: none
        ("side", "i8"),  # of the group: prefill 0, decode 1
        ("pace", "f8"),  # seconds of an iteration over those of the profile
        ("down", "i8"),  # outages of its region going on
        ("opened", "i8"),  # it has an instance more, and requests may wait for it
        ("services", "i8"),  # its services in State.pool_services begin here ...
        ("service_count", "i8"),  # ... and are so many
        ("region", "i8"),
        ("minimum", "i8"),
        ("maximum", "i8"),
        ("first", "i8"),  # its slots in State.instances begin here
        ("top", "i8"),  # slots ever used
        ("tree", "i8"),  # its tree in State.ranking begins here ...
        ("width", "i8"),  # ... and has so many leaves, a power of two
        ("least", "i8"),  # what the router compares, of the instance that it took last
        ("kv_low", "i8"),  # sums of those of its ready instances
        ("kv_high", "i8"),
        ("ready", "i8"),
        ("starting", "i8"),
        ("draining", "i8"),
        ("lent", "i8"),
        ("starts", "i8"),  # asked for after time 0
        ("reinstated", "i8"),  # draining ones taken back
        ("failed_starts", "i8"),
        ("failures", "i8"),  # instances lost
        ("retried", "i8"),  # requests that began again
        ("waiting", "i8"),
        ("arrived_tokens", "i8"),  # since the last control instant
        ("iterations", "i8"),
        ("outside", "i8"),  # of those, outside what the profile was measured on
        ("preemptions", "i8"),
        ("hit_tokens", "i8"),  # of prompts admitted, found in the prefix cache
        ("looked_up_tokens", "i8"),  # of prompts admitted, where there is one
        ("evicted_tokens", "i8"),
        ("kv_peak", "i8"),  # most KV tokens ever held by one instance
        ("starting_s", "f8"),
        ("idle_s", "f8"),
        ("prefill_s", "f8"),
        ("decode_s", "f8"),
        ("donated_s", "f8"),
        ("lifetime_s", "f8"),  # counted apart, from birth to death, to check the five above
        ("before_s", "f8"),  # of starts asked for before time 0
        ("kept_s", "f8"),  # after the window, of instances up to their last work ...
        ("after_prefill_s", "f8"),  # ... and of that in iterations
        ("after_decode_s", "f8"),
        ("start_s", "f8"),  # before a request's first iteration, which only its own times show
        ("early", "i8"),  # iterations begun before the instance was ready: must stay 0
        # What happened since the last control instant (engine.signals):
        ("ttft_sum", "f8"),  # seconds from arrival to first token, of those that came here
        ("ttft_n", "i8"),
        ("tbt_sum", "f8"),  # mean gaps between tokens of the requests that completed
        ("tbt_n", "i8"),
        ("late_first", "i8"),  # of the first tokens, those after their tier's limit
        ("late_done", "i8"),  # requests that completed beyond a limit on gaps or end to end
        ("done", "i8"),  # requests that completed
        ("busy_s", "f8"),  # instance-seconds with an iteration running
        ("batch_s", "f8"),  # sequence-seconds in batches
        ("compute_s", "f8"),  # of busy_s, what the tokens take where computing binds
        ("computed", "i8"),  # prompt tokens computed
        ("given", "i8"),  # output tokens
        ("hits", "i8"),  # prompt tokens that the prefix cache held, of ...
        ("lookups", "i8"),  # ... the prompt tokens admitted
        ("evicted", "i8"),  # tokens that left the prefix cache
        ("failed", "i8"),  # instances lost to faults
        ("token_s", "f8"),  # seconds of a token where computing binds
    ],
    align=True,
)

RANKED = np.dtype(
    [
        ("bound", "i8"),  # of what the router compares: ready instances below have no less ...
        ("until", "f8"),  # ... so long
    ],
    align=True,
)

CACHE = np.dtype(
    [
        ("idle", "i4"),  # blocks that nobody holds
        ("oldest", "i4"),  # of them, -1: none
        ("newest", "i4"),
        ("free", "i4"),  # first record not in use, chained
    ],
    align=True,
)

NODE = np.dtype(
    [
        ("id", "i4"),
        ("users", "i4"),  # running requests that hold it
        ("chain", "i4"),  # next in its bucket, or in the list of free ones
        ("newer", "i4"),  # neighbours by age, while nobody holds it
        ("older", "i4"),
    ],
    align=True,
)

CLOCK = np.dtype(
    [
        ("arrival", "i8"),  # next request of the trace
        ("instances", "i8"),  # size of the heap of instances
        ("deliveries", "i8"),  # size of the heap of requests on the wire
        ("open", "i8"),  # requests neither completed nor rejected
        ("routed", "i8"),  # requests given to an instance so far
        ("duration", "f8"),
        ("interval", "f8"),
        ("groups", "i8"),  # of pools that register together
        ("ratio_low", "f8"),  # prefill over decode instances
        ("ratio_high", "f8"),
        ("retries", "i8"),
        ("region_threshold", "f8"),
        ("sees_queues", "i8"),  # regions are chosen by them too
        ("by_pool", "i8"),  # of several pools of an endpoint first one is chosen
        ("planned", "i8"),  # some requests have shares of regions to keep
        ("release_one_below", "f8"),
        ("release_two_below", "f8"),
    ],
    align=True,
)


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """Everything compiled code works on, handed over as ``handle``. Shapes: n requests, S slots,
    P pools, M services (see ``services``), R regions, T tiers. An endpoint is a service in a
    region."""

    clock: Annotated[Array, CLOCK, "1"]
    requests: Annotated[Array, REQUEST, "n"]
    instances: Annotated[Array, INSTANCE, "S"]  # those of a pool side by side
    pools: Annotated[Array, POOL, "P"]
    curves: Annotated[Array, "f8", "curves, longest"]  # Curve.values of different ones, padded
    # Instance-seconds or tokens; the last place is what came after the window.
    series: Annotated[Array, "f8", "ROWS, P, intervals + 1"]
    batch: Annotated[Array, "i8", "S, batch"]  # heaps of finish numbers and whose they are
    queues: Annotated[Array, "i4", "S, queues, 2"]  # head, tail of who waits: engine.waiting
    ranking: Annotated[Array, RANKED, "nodes"]  # see engine.ranking
    event_time: Annotated[Array, "f8", "S"]  # heap of instances by next event ...
    event_slot: Annotated[Array, "i4", "S"]  # ... whose it is ...
    event_place: Annotated[Array, "i4", "S"]  # ... and where an instance is in it, -1: nowhere
    delivery_time: Annotated[Array, "f8", "n"]  # heap of requests on the wire
    delivery_request: Annotated[Array, "i8", "n"]
    latency: Annotated[Array, "f8", "R, R"]  # inf: the way is closed
    # Regions by latency from home, home first; -1 in place of those that the way to is closed.
    region_order: Annotated[Array, "i8", "R, R"]
    endpoint_start: Annotated[Array, "i8", "M * R + 1"]  # pools of (service, region) ...
    endpoint_pools: Annotated[Array, "i8", "sum"]  # ... lie here, one once for each of its services
    pool_services: Annotated[Array, "i8", "sum"]  # the services of pools
    service_model: Annotated[Array, "i8", "M"]  # place in Fleet.models, -1: it takes over
    shares: Annotated[Array, "f8", "M, R, R"]  # of home regions' tokens, by where they are served
    owed: Annotated[Array, "f8", "M, R, R"]  # of these, tokens not sent there yet
    asked_tokens: Annotated[Array, "i8", "M, R"]  # not deferrable, since the last control instant
    handover: Annotated[Array, "i8", "M, 2"]  # services: after the first token, to start again
    router_queue: Annotated[Array, "i8", "M, 2"]  # head, tail of requests without an instance
    router_waiting: Annotated[Array, "i8", "M, R"]  # how many of them, by home
    deferred: Annotated[Array, "i8", "M, R, T, 2"]  # head, tail of the NIW queues, by home
    deferred_count: Annotated[Array, "i8", "M"]
    deferred_home: Annotated[Array, "i8", "M, R"]  # likewise, by home
    deferrable: Annotated[Array, "?", "T"]
    priority_after: Annotated[Array, "f8", "T"]
    started: Annotated[Array, "i8", "P, 4"]  # starts by source (engine.starts)
    start_fails: Annotated[Array, "?", "P, STARTS"]  # which starts fail; [P, 0]: none
    tier_rank: Annotated[Array, "i8", "T"]  # 0 for the strictest TTFT limit
    tier_limit: Annotated[Array, "f8", "T"]  # that limit in seconds
    tier_gap: Annotated[Array, "f8", "T"]  # of the mean gap between tokens, inf without one
    tier_end: Annotated[Array, "f8", "T"]  # of the last token, likewise
    caches: Annotated[Array, CACHE, "S"]  # see engine.prefix
    nodes: Annotated[Array, NODE, "nodes"]
    buckets: Annotated[Array, "i4", "buckets"]
    prefix_start: Annotated[Array, "i8", "n + 1"]  # as in Trace.blocks
    prefix_ids: Annotated[Array, "i4", "ids"]
    handle: Array = field(init=False)  # by which compiled code knows it (``engine.tables``)

    def __post_init__(self) -> None:
        arrays = {name: getattr(self, name) for name in LAYOUT}
        object.__setattr__(self, "handle", handle(LAYOUT, arrays))

    def refill(self, requests: Array, prefix_start: Array, prefix_ids: Array) -> None:
        """Another table of requests, with room for as many on the wire."""
        n, waiting = max(len(requests), 1), int(self.clock[0]["deliveries"])
        new = {"requests": requests, "prefix_start": prefix_start, "prefix_ids": prefix_ids}
        for name in ("delivery_time", "delivery_request"):
            old: Array = getattr(self, name)
            new[name] = np.zeros(n, old.dtype)
            new[name][:waiting] = old[:waiting]
        for name, array in new.items():
            object.__setattr__(self, name, array)
        self.handle[:] = handle(LAYOUT, {name: getattr(self, name) for name in LAYOUT})


LAYOUT: Layout = {
    name: (np.dtype(kind.__metadata__[0]), kind.__metadata__[1].count(",") + 1)
    for name, kind in get_type_hints(State, include_extras=True).items()
    if name != "handle"
}
opened = opener(Tables("State", LAYOUT))
"""A state by its handle, in compiled code."""
