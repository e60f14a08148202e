"""State of a simulation: flat arrays of records that compiled code and Python share.

A slot is the index of an instance in ``State.instances``. Each pool has as many slots as its
maximum of instances. A run of an instance is a series of iterations with an unchanged batch.
"""

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
    S_HIT,  # prompt tokens admitted that were in the prefix cache ...
    S_LOOKED_UP,  # ... of all prompt tokens admitted in pools with a prefix cache
    ROWS,
) = range(14)
NO_LIMIT = 1 << 40  # tokens
HEAD, TAIL = range(2)  # ends of a queue of requests
DECODE_SERVICE, FIRST_SERVICE = range(2)  # columns of State.handover

REQUEST = np.dtype(
    [
        ("arrival_s", "f8"),
        ("first_token_s", "f8"),  # time of the first token; NaN before it
        ("last_token_s", "f8"),
        ("isl", "i4"),
        ("osl", "i4"),
        ("generated_tokens", "i4"),  # output tokens generated before the last preemption
        ("next_in_queue", "i4"),  # next request in the queue that it waits in
        ("next_admitted", "i4"),  # neighbours in order of admission to the instance
        ("previous_admitted", "i4"),
        ("cached_tokens", "i4"),  # prompt tokens that were cached at the last admission
        ("used_blocks", "i4"),  # cached blocks that the request uses
        # prompt tokens that every prefix cache has (trace.CachedTokens)
        ("trace_cached_tokens", "i4"),
        ("sending_slot", "i4"),  # prefill instance that still stores its KV cache; -1: none
        ("service", "i2"),  # index of the pools that it goes to next (allocation.services)
        ("home_region", "i2"),
        ("serving_region", "i2"),  # region that it was sent to
        ("tier", "i2"),
        ("pool", "i2"),
        ("outcome", "i1"),
        ("reason", "i1"),  # index into results.REASONS; -1: not rejected
        ("preempted", "i1"),  # 1 while it waits after a preemption
        ("kv_transferred", "i1"),  # 1 if its KV cache comes from a prefill instance
        ("retries", "i1"),  # instance losses that it survived so far
    ],
    align=True,
)

INSTANCE = np.dtype(
    [
        ("run_start_s", "f8"),  # time at which the current run of iterations began
        ("iteration_s", "f8"),  # duration of the first iteration in seconds
        ("growth_s", "f8"),  # seconds that each further iteration takes longer
        ("run_iterations", "i8"),  # iterations in the run; 0: idle
        ("decodes", "i8"),  # decoding sequences; size of the heap in State.batch
        ("kv_tokens", "i8"),  # KV tokens reserved during the first iteration of the run
        ("context_tokens", "i8"),  # KV tokens that its decodes attend to in that iteration
        ("is_unmeasured", "i8"),  # 1 if the iteration is outside the measured range of the profile
        ("remaining_tokens", "i8"),  # prefill and output tokens left at run_start_s
        ("pending_tokens", "i8"),  # prompt tokens of unfinished prompts, plus one per request
        ("queued_kv_tokens", "i8"),  # KV tokens that its waiting requests need at admission
        ("last_routed", "i8"),  # routing number of its latest request, for round-robin
        ("decodes_pause", "i8"),  # 1 if its decodes pause in the current iteration
        ("link_free_s", "f8"),  # time at which its last KV transfer leaves the link
        ("status", "i8"),
        ("pool", "i8"),
        ("running", "i8"),  # sequences in the batch: decoding, fresh and partial
        ("waiting", "i8"),
        ("iterations_ended", "i8"),  # iterations that have ended
        ("prefill_tokens", "i8"),  # prefill tokens of the current iteration
        # request with a prefill that continues after this iteration; -1: none
        ("partial_prompt", "i8"),
        ("partial_tokens_left", "i8"),
        # head and tail of the requests with a prefill that ends in this iteration
        ("ending_prompts", "i8"),
        ("ending_prompts_tail", "i8"),
        ("newest_request", "i8"),  # most recently admitted request; -1: empty batch
        ("kv_transfers", "i8"),  # requests with a KV cache in transfer to a decode instance
        ("kv_low", "i8"),  # bounds of its KV tokens during the run, while it is ready
        ("kv_high", "i8"),
        # output tokens of the current run that are already in ``output_tokens`` of its pool
        ("tokens_counted", "i8"),
        ("counted_until_s", "f8"),  # time up to which its hours are counted
        ("paid_until_s", "f8"),  # after the window: time up to which it is paid
        ("created_s", "f8"),  # time of its creation
        # time of the latest start request; after ``born`` if it was lent out meanwhile
        ("requested_s", "f8"),
        ("start_source", "i8"),  # source of its start, see engine.starts
        ("loaded", "i8"),  # 1 if it has started and waits for registration
        ("start_will_fail", "i8"),  # 1 if its start will fail
        ("lend_when_removed", "i8"),  # 1 if it moves to the spot pool, not off, when it is removed
        ("next_pool", "i8"),  # 1 + pool whose role it takes once it has drained; 0: none
        ("restorable_until_s", "f8"),  # soft scale-in: it drains until then and may come back
        ("slowdown", "f8"),  # factor on its iteration time ...
        ("slow_until_s", "f8"),  # ... until this time
    ],
    align=True,
)

POOL = np.dtype(
    [
        ("curve", "i8"),  # row of State.curves
        ("max_batch", "i8"),
        ("token_budget", "i8"),
        ("profile_max_batch", "i8"),  # upper limit of max_batch
        ("kv_capacity_tokens", "i8"),
        ("usable_kv_tokens", "i8"),  # KV tokens of the capacity that may be used now
        ("min_kv_tokens", "i8"),  # KV tokens that the largest possible request needs
        ("max_cache_blocks", "i8"),  # most prefix-cache blocks per instance; 0: no prefix cache
        ("block_tokens", "i8"),
        # 1 if its prefix caches have the trace_cached_tokens of requests
        ("trace_states_hits", "i8"),
        ("buckets", "i8"),  # hash buckets per instance, a power of two
        ("first_node", "i8"),  # start of its instances' nodes in State.nodes ...
        ("first_bucket", "i8"),  # ... and of their buckets in State.buckets
        ("scheduler", "i8"),  # index into fleet.SCHEDULERS
        ("tau_n", "f8"),
        ("tau_p", "f8"),
        ("when_full", "i8"),  # index into fleet.WHEN_FULL
        ("max_request_tokens", "i8"),  # most input and output tokens of a request that it can serve
        ("watermark_tokens", "i8"),  # KV tokens kept free at admission
        ("batching", "i8"),  # index into fleet.BATCHING
        ("router", "i8"),  # index into fleet.ROUTERS
        ("kv_bytes_per_token", "f8"),  # bytes per token of a transferred KV cache
        ("link_bytes_s", "f8"),  # bytes/s of the link of one instance
        ("shared_link_bytes_s", "f8"),  # bytes/s of the link that all its instances share
        ("shared_link_free_s", "f8"),  # time at which the shared link has sent everything queued
        ("prompt_limit_tokens", "i8"),  # most prompt tokens of an iteration of a decode pool
        ("takes_prompts", "i8"),  # 1 if its instances compute prompts for the prefill pool
        ("hands_over", "i8"),  # 1 if requests move to a decode pool after their first token
        ("local_start_s", "f8"),  # start time in seconds with the weights on the host
        ("remote_start_s", "f8"),  # start time in seconds without the weights on the host
        ("reclaim_start_s", "f8"),  # start time in seconds of a lent instance of the same model
        # start time from another model of the same architecture; inf: not possible
        ("same_architecture_start_s", "f8"),
        ("other_model_start_s", "f8"),  # start time from any other model; inf: not possible
        ("hosts_with_weights", "i8"),  # hosts without an instance that store the weights
        ("model", "i8"),
        ("architecture", "i8"),  # -1: shared with no other pool
        ("hardware", "i8"),  # code of region, GPU type, spot or owned, and GPUs per instance
        ("lent_at_start", "i8"),  # instances lent out at time 0
        # instances that ran before time 0; -1: all that are ready at time 0
        ("running_before_start", "i8"),
        ("lost_instances", "i8"),  # instances that are lost all the time, at most ...
        ("missing_instances", "i8"),  # ... and those of the present target that are
        ("registration_group", "i8"),  # group of pools that register together; -1: none
        ("side", "i8"),  # 0: prefill side of the group, 1: decode side
        ("slowdown", "f8"),  # iteration time divided by that of the profile
        ("outages", "i8"),  # current outages of its region
        # 1 if it gained a ready instance, so that queued requests can be routed
        ("has_new_ready", "i8"),
        ("first_service", "i8"),  # start of its services in State.pool_services ...
        ("service_count", "i8"),  # ... and their number
        ("region", "i8"),
        ("minimum", "i8"),
        ("maximum", "i8"),
        ("first_slot", "i8"),  # start of its slots in State.instances
        ("slots_used", "i8"),  # slots that have ever had an instance
        ("tree_start", "i8"),  # start of its tree in State.ranking ...
        ("tree_leaves", "i8"),  # ... and number of leaves, a power of two
        ("has_tree", "i8"),  # 1 if its instances are in the tree, which few do not need
        ("last_key", "i8"),  # router key of the instance chosen last
        ("kv_low", "i8"),  # sums of kv_low and kv_high of its ready instances
        ("kv_high", "i8"),
        ("ready", "i8"),
        ("starting", "i8"),
        ("draining", "i8"),
        ("lent", "i8"),
        ("switching_out", "i8"),  # draining instances that switch to another pool
        ("switching_in", "i8"),  # instances that drain in another pool to switch to this one
        ("switches", "i8"),  # instances that switched to this pool
        ("diverted", "i8"),  # prompts taken over from a prefill pool
        ("switch_s", "f8"),  # seconds of the latest switch to this pool
        ("starts", "i8"),  # instances started after time 0
        ("reinstated", "i8"),  # draining instances that became ready again
        ("failed_starts", "i8"),
        ("failures", "i8"),  # lost instances
        ("retried", "i8"),  # requests that restarted after the loss of an instance
        ("waiting", "i8"),
        ("arrived_tokens", "i8"),  # since the last scaling decision
        ("iterations", "i8"),
        ("outside", "i8"),  # iterations outside the measured range of the profile
        ("preemptions", "i8"),
        ("hit_tokens", "i8"),  # admitted prompt tokens found in the prefix cache
        ("looked_up_tokens", "i8"),  # admitted prompt tokens in pools with a prefix cache
        ("evicted_tokens", "i8"),
        ("kv_peak", "i8"),  # most KV tokens ever used by one instance
        ("starting_s", "f8"),
        ("idle_s", "f8"),
        ("prefill_s", "f8"),
        ("decode_s", "f8"),
        ("donated_s", "f8"),
        # counted separately from birth to death, to check the five sums above
        ("lifetime_s", "f8"),
        ("before_s", "f8"),  # seconds of starts that were requested before time 0
        ("kept_s", "f8"),  # after the window: instance-seconds until the last work ...
        ("after_prefill_s", "f8"),  # ... of which in iterations with prefill ...
        ("after_decode_s", "f8"),  # ... and without
        # fixed time before the first iteration; appears only in the request's own times
        ("start_s", "f8"),
        ("too_early", "i8"),  # iterations that began before the instance was ready: must stay 0
        # Sums since the last scaling decision (engine.signals):
        ("ttft_sum", "f8"),  # seconds from arrival to first token, of first tokens produced here
        ("ttft_n", "i8"),
        ("tbt_sum", "f8"),  # seconds of the mean gaps between tokens of completed requests
        ("tbt_n", "i8"),
        ("late_first_tokens", "i8"),  # first tokens after the TTFT limit of their tier
        ("late_completed", "i8"),  # completed requests beyond their TBT or E2E limit
        ("completed", "i8"),  # completed requests
        ("busy_s", "f8"),  # instance-seconds with an iteration running
        ("batch_s", "f8"),  # sequence-seconds in batches
        ("compute_s", "f8"),  # part of busy_s in which computing binds (modelled)
        ("prompt_tokens", "i8"),  # prompt tokens computed
        ("output_tokens", "i8"),  # output tokens generated
        ("hits", "i8"),  # prompt tokens found in the prefix cache ...
        ("lookups", "i8"),  # ... of all prompt tokens admitted
        ("evicted", "i8"),  # tokens evicted from prefix caches
        ("failed", "i8"),  # instances lost to faults
        ("token_s", "f8"),  # seconds per token while computing binds
    ],
    align=True,
)

TURN = np.dtype(
    [
        ("previous", "i4"),  # request before it in its session; -1: none
        ("following", "i4"),  # request after it in its session; -1: none
        ("awaits_answer", "i4"),  # 1 while it waits for the answer to the one before
        ("think_s", "f8"),  # seconds from that answer to the request
        ("ready_s", "f8"),  # time from which it can be sent
    ],
    align=True,
)

RANKED = np.dtype(
    [
        ("bound", "i8"),  # lower bound of the router keys of the ready instances below ...
        ("valid_until_s", "f8"),  # ... valid until this time
    ],
    align=True,
)

CACHE = np.dtype(
    [
        ("idle_blocks", "i4"),  # blocks that no running request uses
        ("oldest_idle", "i4"),  # least recently used idle block; -1: none
        ("newest_idle", "i4"),
        ("free_node", "i4"),  # first unused record of a chain
    ],
    align=True,
)

NODE = np.dtype(
    [
        ("block_id", "i4"),
        ("users", "i4"),  # running requests that use the block
        ("next_node", "i4"),  # next node of the bucket, or of the list of free nodes
        ("newer_idle", "i4"),  # neighbours by age, while no request uses the block
        ("older_idle", "i4"),
    ],
    align=True,
)

CLOCK = np.dtype(
    [
        ("next_arrival", "i8"),  # index of the next request of the trace
        ("scheduled_instances", "i8"),  # size of the heap of instances
        ("deliveries", "i8"),  # size of the heap of requests in transit
        ("unfinished", "i8"),  # requests that are neither completed nor rejected
        ("routed", "i8"),  # requests given to an instance so far
        ("window_s", "f8"),
        ("interval_s", "f8"),
        ("registration_groups", "i8"),  # groups of pools that register together
        ("ratio_low", "f8"),  # bounds of prefill instances per decode instance
        ("ratio_high", "f8"),
        ("max_retries", "i8"),
        ("region_threshold", "f8"),
        ("sees_queues", "i8"),  # 1 if regions are also chosen by queue (fleet.ROUTER_INPUTS)
        # 1 if the router chooses a pool before an instance (fleet.ENDPOINTS)
        ("chooses_pool_first", "i8"),
        ("has_region_shares", "i8"),  # 1 if the policy set shares of regions
        ("has_sessions", "i8"),  # 1 if requests are turns of sessions
        # 1 if the policy reads sums since the last decision (engine.signals)
        ("counts_signals", "i8"),
        ("release_one_below", "f8"),
        ("release_two_below", "f8"),
        # seconds of prompts ahead at a prefill instance from which decode instances take prompts
        ("overflow_s", "f8"),
    ],
    align=True,
)


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """All arrays that compiled code reads and writes; it gets them through ``handle``.

    Shapes: n requests, S instance slots, P pools, M services (``allocation.services``), R regions,
    T tiers. An endpoint is a service in a region.
    """

    clock: Annotated[Array, CLOCK, "1"]
    requests: Annotated[Array, REQUEST, "n"]
    instances: Annotated[Array, INSTANCE, "S"]  # the slots of a pool are adjacent
    pools: Annotated[Array, POOL, "P"]
    curves: Annotated[Array, "f8", "curves, longest"]  # Curve.values of distinct curves, padded
    # Instance-seconds or tokens. The last column counts everything after the window.
    series: Annotated[Array, "f8", "ROWS, P, intervals + 1"]
    decode_heap: Annotated[Array, "i8", "S, batch"]  # heaps of finish number and request, packed
    # head and tail of each queue, see engine.queues
    queues: Annotated[Array, "i4", "S, queues, 2"]
    ranking: Annotated[Array, RANKED, "nodes"]  # tournament trees, see engine.routing_order
    event_time: Annotated[Array, "f8", "S"]  # heap of instances by next event ...
    event_slot: Annotated[Array, "i4", "S"]  # ... its slots ...
    # ... and the position of each slot in it; -1: not in the heap
    event_index: Annotated[Array, "i4", "S"]
    delivery_time: Annotated[Array, "f8", "n"]  # heap of requests in transit, by delivery time
    delivery_request: Annotated[Array, "i8", "n"]
    latency_s: Annotated[Array, "f8", "R, R"]  # inf: closed path
    # Regions by latency from home, home first; -1 for every region behind a closed path.
    region_order: Annotated[Array, "i8", "R, R"]
    endpoint_start: Annotated[Array, "i8", "M * R + 1"]  # first pool of each (service, region) ...
    # ... in this list; a pool appears once per service
    endpoint_pools: Annotated[Array, "i8", "sum"]
    pool_services: Annotated[Array, "i8", "sum"]  # services of each pool
    # index into Fleet.models; -1: a service that takes over after the first token
    service_model: Annotated[Array, "i8", "M"]
    # planned share of each home region's tokens by serving region
    shares: Annotated[Array, "f8", "M, R, R"]
    owed_tokens: Annotated[Array, "f8", "M, R, R"]  # planned tokens that were not sent there yet
    # since the last scaling decision, without deferrable requests
    asked_tokens: Annotated[Array, "i8", "M, R"]
    # columns DECODE_SERVICE (after the first token) and FIRST_SERVICE (after a restart)
    related_service: Annotated[Array, "i8", "M, 2"]
    # head and tail of requests that wait for a ready instance
    router_queue: Annotated[Array, "i8", "M, 2"]
    router_waiting: Annotated[Array, "i8", "M, R"]  # their number by home region
    # head and tail of the NIW queues by home region
    deferred_queues: Annotated[Array, "i8", "M, R, T, 2"]
    deferred_count: Annotated[Array, "i8", "M"]
    deferred_by_home: Annotated[Array, "i8", "M, R"]  # by home region
    # input tokens of deferred requests that each region may release in all, and has released
    releasable_tokens: Annotated[Array, "f8", "M, R"]
    released_tokens: Annotated[Array, "f8", "M, R"]
    deferrable: Annotated[Array, "?", "T"]
    urgent_after_s: Annotated[Array, "f8", "T"]
    starts_by_source: Annotated[Array, "i8", "P, 4"]  # starts by source (engine.starts)
    start_fails: Annotated[Array, "?", "P, STARTS"]  # whether each start fails; [P, 0]: none fails
    tier_rank: Annotated[Array, "i8", "T"]  # 0 for the strictest TTFT limit
    ttft_limit_s: Annotated[Array, "f8", "T"]  # TTFT limit in seconds; inf: none
    tbt_limit_s: Annotated[Array, "f8", "T"]  # TBT limit in seconds; inf: none
    e2e_limit_s: Annotated[Array, "f8", "T"]  # E2E limit in seconds; inf: none
    latency_bounds: Annotated[Array, "f8", "bounds"]  # upper bounds of buckets, seconds
    # TTFT, and ten times TBT, since the last scaling decision (engine.signals)
    latency_counts: Annotated[Array, "i8", "2, P, bounds + 1"]
    caches: Annotated[Array, CACHE, "S"]  # prefix caches, see engine.prefix
    nodes: Annotated[Array, NODE, "nodes"]
    buckets: Annotated[Array, "i4", "buckets"]
    prefix_start: Annotated[Array, "i8", "n + 1"]  # as in Trace.blocks
    prefix_ids: Annotated[Array, "i4", "ids"]
    turns: Annotated[Array, TURN, "n"]  # one row without sessions
    handle: Array = field(init=False)  # pointers for compiled code (engine.tables)

    def __post_init__(self) -> None:
        arrays = {name: getattr(self, name) for name in LAYOUT}
        object.__setattr__(self, "handle", handle(LAYOUT, arrays))

    def refill(self, requests: Array, prefix_start: Array, prefix_ids: Array) -> None:
        """Replace the requests and their prompt blocks, and resize the heap of deliveries."""
        n, in_transit = max(len(requests), 1), int(self.clock[0]["deliveries"])
        new = {"requests": requests, "prefix_start": prefix_start, "prefix_ids": prefix_ids}
        for name in ("delivery_time", "delivery_request"):
            old: Array = getattr(self, name)
            new[name] = np.zeros(n, old.dtype)
            new[name][:in_transit] = old[:in_transit]
        for name, array in new.items():
            object.__setattr__(self, name, array)
        self.handle[:] = handle(LAYOUT, {name: getattr(self, name) for name in LAYOUT})


LAYOUT: Layout = {
    name: (np.dtype(kind.__metadata__[0]), kind.__metadata__[1].count(",") + 1)
    for name, kind in get_type_hints(State, include_extras=True).items()
    if name != "handle"
}
open_state = opener(Tables("State", LAYOUT))
"""Open a state from its handle, in compiled code."""
