"""The state of a simulation: flat arrays of records that compiled code and Python both read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from simulation.compiled import borrow, kernel
from simulation.errors import SimulationError
from simulation.faults import failing_starts
from simulation.fleet import BATCHING, ROUTERS, WHEN_FULL, Fleet, Pool, Tier
from simulation.performance.profile import iteration_s
from simulation.prefix import allocate_caches
from simulation.ranking import NEVER
from simulation.results import INSTANCE_FAILED, LOST, OUT_OF_MEMORY, REJECTED, UNFINISHED
from simulation.scheduling import SCHEDULERS
from simulation.starting import StartUp
from simulation.trace import Trace

Array = npt.NDArray[Any]

NO_POOL = "no pool serves the model"
NO_TIER = "no pool of the model takes the tier"
TOO_LONG = "input and output exceed the KV capacity of every pool of the model"
BEYOND_CONTEXT = "input and output exceed the model's maximum context"

L_FAILED = LOST.index(INSTANCE_FAILED)  # place in State.lost

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

L_MEMORY = LOST.index(OUT_OF_MEMORY)  # places in State.lost

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
        ("scheduler", "i8"),  # place in scheduling.SCHEDULERS
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
        ("early", "i8"),  # iterations begun before the instance was ready: must stay 0
        # What happened since the last control instant (engine.signals):
        ("ttft_sum", "f8"),  # seconds from arrival to first token, of those that came here
        ("ttft_n", "i8"),
        ("tbt_sum", "f8"),  # mean gaps between tokens of the requests that completed
        ("tbt_n", "i8"),
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
        ("release_one_below", "f8"),
        ("release_two_below", "f8"),
    ],
    align=True,
)


class State(NamedTuple):
    """Everything compiled code works on. Shapes: n requests, S slots, P pools, M services (see
    ``services``), R regions, T tiers. An endpoint is a service in a region."""

    clock: Array  # CLOCK[1]
    requests: Array  # REQUEST[n]
    instances: Array  # INSTANCE[S], those of a pool side by side
    pools: Array  # POOL[P]
    curves: Array  # float64[different curves, longest]: Curve.values, padded
    series: Array  # float64[ROWS, P, intervals], instance-seconds or tokens
    batch: Array  # int64[S, batch]: per instance a heap of finish numbers and whose they are
    queues: Array  # int32[S, Q, 2]: head and tail of its waiting requests, see engine.waiting
    ranking: Array  # int64: see simulation.ranking
    event_time: Array  # float64[S]: heap of instances by next event ...
    event_slot: Array  # int32[S]: ... whose it is ...
    event_place: Array  # int32[S]: ... and where an instance is in it, -1: nowhere
    delivery_time: Array  # float64[n]: heap of requests on the wire
    delivery_request: Array  # int64[n]
    latency: Array  # float64[R, R]
    region_order: Array  # int64[R, R]: regions by latency from home, home first
    endpoint_start: Array  # int64[M * R + 1]: pools of (service, region) ...
    endpoint_pools: Array  # int64: ... lie here, a pool once for each of its services
    pool_services: Array  # int64: the services of pools
    handover: Array  # int64[M, 2]: service after the first token, and where it starts again
    router_queue: Array  # int64[M, 2]: head, tail of requests without a ready instance
    router_waiting: Array  # int64[M, R]: how many of them, by home
    deferred: Array  # int64[M, T, 2]: head, tail of the NIW queues
    deferred_count: Array  # int64[M]
    deferred_home: Array  # int64[M, R]: likewise, by home
    deferrable: Array  # bool[T]
    priority_after: Array  # float64[T]
    started: Array  # int64[P, 4]: starts by source (engine.starting)
    start_fails: Array  # bool[P, STARTS or 0]: which starts fail
    lost: Array  # int64: requests given up, by results.LOST
    tier_rank: Array  # int64[T]: 0 for the strictest TTFT limit
    tier_limit: Array  # float64[T]: that limit in seconds
    caches: Array  # see simulation.prefix
    nodes: Array
    buckets: Array
    prefix_start: Array  # int64[n + 1]; as in Trace.blocks
    prefix_ids: Array  # int32


@kernel
def borrowed(s: Any) -> Any:
    """The state without ownership of its arrays (``simulation.compiled.borrow``)."""
    return State(
        borrow(s.clock),
        borrow(s.requests),
        borrow(s.instances),
        borrow(s.pools),
        borrow(s.curves),
        borrow(s.series),
        borrow(s.batch),
        borrow(s.queues),
        borrow(s.ranking),
        borrow(s.event_time),
        borrow(s.event_slot),
        borrow(s.event_place),
        borrow(s.delivery_time),
        borrow(s.delivery_request),
        borrow(s.latency),
        borrow(s.region_order),
        borrow(s.endpoint_start),
        borrow(s.endpoint_pools),
        borrow(s.pool_services),
        borrow(s.handover),
        borrow(s.router_queue),
        borrow(s.router_waiting),
        borrow(s.deferred),
        borrow(s.deferred_count),
        borrow(s.deferred_home),
        borrow(s.deferrable),
        borrow(s.priority_after),
        borrow(s.started),
        borrow(s.start_fails),
        borrow(s.lost),
        borrow(s.tier_rank),
        borrow(s.tier_limit),
        borrow(s.caches),
        borrow(s.nodes),
        borrow(s.buckets),
        borrow(s.prefix_start),
        borrow(s.prefix_ids),
    )


NO_LIMIT = 1 << 40  # tokens
MANY = 1 << 60  # hosts
MOST_PLACES = 1_000_000_000  # in the batches of all instances there may be, 8 bytes each
COMPUTE_TOKENS = 2048  # prompt tokens of an iteration in which computing binds, at most the budget
WATERMARK = 0.01  # share of KV kept free at admission; vLLM's default


def allocate(
    trace: Trace, fleet: Fleet, duration_s: float, interval_s: float, seed: int = 0
) -> tuple[State, dict[str, int]]:
    """The state before time 0 (no instance yet) and the requests refused by reason."""
    takers = services(fleet)
    regions = [region.name for region in fleet.regions]
    requests, reasons = _requests(trace, fleet, takers)
    n = len(trace)
    pools, curves = _pools(fleet)
    slots = int(pools["maximum"].sum())
    batch = max(1, min(int(pools["max_batch"].max()), n))
    if slots * batch > MOST_PLACES:
        raise SimulationError(
            f"The pools may grow to {slots:,} instances, with up to {batch:,} requests in a batch; "
            f"{MOST_PLACES:,} places in batches are allowed: lower the capacity or the maximum of "
            "pools, or max_batch."
        )
    blocks = trace.blocks
    caching = blocks is not None and any(pool.prefix_cache for pool in fleet.pools)
    if blocks is not None and caching:
        cached = np.array([pool.prefix_cache for pool in fleet.pools])
        pools["blocks"] = np.where(cached, pools["kv_capacity"] // blocks.block_tokens + 1, 0)
    caches, nodes, buckets = allocate_caches(pools, slots, blocks.block_tokens if blocks else 1)
    tier_rank, tier_limit = _tiers(fleet.tiers)
    first_come = all(pool.scheduler == "fcfs" for pool in fleet.pools)
    needs = (trace.input_tokens.astype(np.int64) + trace.output_tokens)[
        requests["outcome"] != REJECTED
    ]
    pools["needed"] = np.minimum(pools["longest"], needs.max(initial=1))
    clock = np.zeros(1, CLOCK)
    clock["open"] = int((requests["outcome"] != REJECTED).sum())
    clock["duration"], clock["interval"] = duration_s, interval_s
    clock["groups"], clock["retries"] = pools["group"].max(initial=-1) + 1, fleet.retries
    if fleet.registration is not None:
        ratio, tolerance = fleet.registration.ratio, fleet.registration.tolerance
        clock["ratio_low"] = ratio * max(1.0 - tolerance, 1e-9)
        clock["ratio_high"] = ratio * (1.0 + tolerance)
    for name in ("region_threshold", "release_one_below", "release_two_below"):
        clock[name] = getattr(fleet.routing, name)

    r, m, t = len(regions), len(takers), len(fleet.tiers)
    endpoints = _endpoints(takers, pools["region"], r)
    of_pool = [
        [i for i, found in enumerate(takers.values()) if p in found] for p in range(len(pools))
    ]
    pools["service_count"] = [len(found) for found in of_pool]
    pools["services"] = np.cumsum(pools["service_count"]) - pools["service_count"]
    away = fleet.latency_s + np.where(np.eye(r, dtype=bool), -np.inf, 0.0)
    state = State(
        clock=clock,
        requests=requests,
        instances=np.zeros(slots, INSTANCE),
        pools=pools,
        curves=curves,
        series=np.zeros((ROWS, len(pools), int(np.ceil(duration_s / interval_s - 1e-9)))),
        batch=np.zeros((slots, _apart(batch)), np.int64),
        queues=np.full((slots, 2 if first_come else 2 * t + 1, 2), -1, np.int32),
        ranking=np.full(int(2 * pools["width"].sum()), NEVER),
        event_time=np.zeros(max(slots, 1)),
        event_slot=np.zeros(max(slots, 1), np.int32),
        event_place=np.full(max(slots, 1), -1, np.int32),
        delivery_time=np.zeros(max(n, 1)),
        delivery_request=np.zeros(max(n, 1), np.int64),
        latency=np.array(fleet.latency_s, np.float64, order="C"),
        region_order=np.array(np.argsort(away, axis=1, kind="stable"), np.int64, order="C"),
        endpoint_start=np.cumsum([0] + [len(found) for found in endpoints], dtype=np.int64),
        endpoint_pools=np.array([p for found in endpoints for p in found], np.int64),
        pool_services=np.array([i for found in of_pool for i in found], np.int64),
        handover=_handover(takers),
        router_queue=np.full((m, 2), -1, np.int64),
        router_waiting=np.zeros((m, r), np.int64),
        deferred=np.full((m, t, 2), -1, np.int64),
        deferred_count=np.zeros(m, np.int64),
        deferred_home=np.zeros((m, r), np.int64),
        deferrable=np.array([tier.deferrable for tier in fleet.tiers], bool),
        priority_after=np.array([tier.priority_after_s for tier in fleet.tiers], np.float64),
        started=np.zeros((len(pools), 4), np.int64),
        start_fails=failing_starts(fleet.faults, len(pools), seed),
        lost=np.zeros(len(LOST), np.int64),
        tier_rank=tier_rank,
        tier_limit=tier_limit,
        caches=caches,
        nodes=nodes,
        buckets=buckets,
        prefix_start=np.array(blocks.start if blocks and caching else [0], np.int64),
        prefix_ids=np.array(blocks.ids if blocks and caching else [], np.int32),
    )
    return state, reasons


def _apart(batch: int) -> int:
    """Places kept per instance: an odd number of cache lines, or the first places of all instances
    would share the same few lines of the processor's cache."""
    lines = -(-batch // 8)
    return 8 * (lines + 1 - lines % 2)


def _tiers(tiers: tuple[Tier, ...]) -> tuple[Array, Array]:
    """Ranks of the tiers, 0 for the strictest TTFT limit, and the limits, inf without one."""
    limit = np.array([np.inf if t.ttft_s is None else t.ttft_s for t in tiers], np.float64)
    rank = np.empty(len(tiers), np.int64)
    rank[np.argsort(limit, kind="stable")] = np.arange(len(tiers))
    return rank, limit


class Service(NamedTuple):
    """What is done for whom: a model, for the tiers that all the same pools of it take, once by
    the pools that requests go to first and once by those that they are handed to."""

    model: str
    takes_over: bool
    tiers: tuple[str, ...]


def services(fleet: Fleet) -> dict[Service, tuple[int, ...]]:
    """Every service of a fleet with the pools that do it."""
    groups: dict[str, dict[tuple[int, ...], tuple[str, ...]]] = {}
    for tier in fleet.tiers:
        for model in dict.fromkeys(pool.model for pool in fleet.pools):
            found = groups.setdefault(model, {})
            taking = tuple(
                p
                for p, pool in enumerate(fleet.pools)
                if pool.model == model and pool.takes(tier.name)
            )
            found[taking] = (*found.get(taking, ()), tier.name)
    out: dict[Service, tuple[int, ...]] = {}
    for p, pool in enumerate(fleet.pools):
        for taking, tiers in groups.get(pool.model, {}).items():
            if p in taking:
                service = Service(pool.model, pool.role == "decode", tiers)
                out[service] = (*out.get(service, ()), p)
    return out


def _endpoints(
    takers: dict[Service, tuple[int, ...]], region: Array, regions: int
) -> list[list[int]]:
    return [
        [p for p in found if region[p] == r] for found in takers.values() for r in range(regions)
    ]


def _handover(takers: dict[Service, tuple[int, ...]]) -> Array:
    """``[services, 2]``: the service that takes over from each, and the one its requests start
    with; -1: none."""
    known = list(takers)
    out = np.full((len(known), 2), -1, np.int64)
    for i, service in enumerate(known):
        for column, takes_over in enumerate((True, False)):
            other = service._replace(takes_over=takes_over)
            if other in takers and not (service.takes_over and takes_over):
                out[i, column] = known.index(other)
    return out


def _requests(
    trace: Trace, fleet: Fleet, takers: dict[Service, tuple[int, ...]]
) -> tuple[Array, dict[str, int]]:
    requests = np.zeros(len(trace), REQUEST)
    requests["arrival"] = trace.arrival_s
    requests["isl"], requests["osl"] = trace.input_tokens, trace.output_tokens
    requests["first"] = requests["last"] = np.nan
    requests["next"] = requests["newer"] = requests["older"] = requests["pool"] = -1
    requests["serving"] = requests["sender"] = -1
    requests["outcome"] = UNFINISHED
    first = np.full((len(trace.models), len(trace.tiers)), -1, np.int16)
    for i, service in enumerate(takers):
        if not service.takes_over:
            tiers = [name in service.tiers for name in trace.tiers]
            first[np.ix_([name == service.model for name in trace.models], tiers)] = i
    requests["model"] = first[trace.model, trace.tier]
    requests["home"] = _codes(trace.regions, [r.name for r in fleet.regions])[trace.region]
    requests["tier"] = _codes(trace.tiers, [t.name for t in fleet.tiers])[trace.tier]

    longest, context = np.zeros((2, len(takers) + 1), np.int64)
    for i, found in enumerate(takers.values()):
        longest[i] = max(_longest(fleet.pools[p]) for p in found)
        context[i] = max(fleet.pools[p].max_context or NO_LIMIT for p in found)
    for i, (then, found) in enumerate(zip(_handover(takers)[:, 0], takers.values(), strict=True)):
        if any(fleet.pools[p].role == "prefill" for p in found):
            longest[i] = min(longest[i], longest[then])
            context[i] = min(context[i], context[then])
    unserved = requests["model"] < 0
    served = [any(pool.model == name for pool in fleet.pools) for name in trace.models]
    known = np.array(served or [False])[trace.model]
    need = trace.input_tokens.astype(np.int64) + trace.output_tokens
    beyond = ~unserved & (need > context[requests["model"]])
    too_long = ~unserved & ~beyond & (need > longest[requests["model"]])
    requests["outcome"][unserved | beyond | too_long] = REJECTED
    reasons = {
        NO_POOL: int((unserved & ~known).sum()),
        NO_TIER: int((unserved & known).sum()),
        BEYOND_CONTEXT: int(beyond.sum()),
        TOO_LONG: int(too_long.sum()),
    }
    return requests, {reason: count for reason, count in reasons.items() if count}


def _codes(names: tuple[str, ...], known: Sequence[str | None]) -> npt.NDArray[np.int16]:
    return np.array([known.index(n) if n in known else -1 for n in names] or [-1], np.int16)


def _longest(pool: Pool) -> int:
    return min(pool.profile.kv_capacity_tokens, pool.max_context or NO_LIMIT)


def _pools(fleet: Fleet) -> tuple[Array, Array]:
    """Their records, and the different curves of their profiles."""
    regions = [region.name for region in fleet.regions]
    pools = np.zeros(len(fleet.pools), POOL)
    curves: dict[bytes, Array] = {}
    for row, pool in zip(pools, fleet.pools, strict=True):
        profile = pool.profile
        values = profile.curve.values
        curves.setdefault(values.tobytes(), values)
        row["curve"] = list(curves).index(values.tobytes())
        # Every decode takes a token of the budget, so the batch can never exceed it.
        row["max_batch"] = min(profile.max_batch, profile.max_batch_tokens)
        row["budget"] = profile.max_batch_tokens
        row["most_batch"] = row["max_batch"]
        row["kv_capacity"] = row["usable"] = profile.kv_capacity_tokens
        row["scheduler"], row["when_full"] = (
            SCHEDULERS.index(pool.scheduler),
            WHEN_FULL.index(pool.when_full),
        )
        row["tau_n"], row["tau_p"] = pool.tau_n_s, pool.tau_p_s
        row["longest"] = _longest(pool)
        row["watermark"] = int(WATERMARK * profile.kv_capacity_tokens)
        router = fleet.routing.decode if pool.role == "decode" else fleet.routing.instance
        row["router"], row["batching"] = ROUTERS.index(router), BATCHING.index(pool.batching)
        tokens = min(profile.max_batch_tokens, COMPUTE_TOKENS)
        row["token_s"] = iteration_s(profile, 0, 0, tokens, tokens**2 / 2) / tokens
        if pool.role == "prefill" and pool.link is not None:
            row["hands"] = 1
            row["kv_bytes"], row["link"] = pool.link.kv_bytes_per_token, pool.link.bytes_s
            row["shared_link"] = pool.link.shared_bytes_s
        _set_starts(row, pool)
        row["region"] = regions.index(pool.region)
        row["minimum"], row["maximum"] = pool.minimum, pool.maximum
    pools["pace"] = 1.0
    for name, kind in (
        ("model", [pool.model for pool in fleet.pools]),
        ("architecture", [pool.architecture for pool in fleet.pools]),
        ("hardware", [(p.region, p.gpu.name, p.spot, p.gpus_per_instance) for p in fleet.pools]),
    ):
        pools[name] = [list(kind).index(value) for value in kind]
    pools["architecture"][[not pool.architecture for pool in fleet.pools]] = -1
    _set_groups(pools, fleet)
    pools["width"] = [1 << max(int(maximum) - 1, 0).bit_length() for maximum in pools["maximum"]]
    pools["tree"] = 2 * (np.cumsum(pools["width"]) - pools["width"])
    pools["first"] = np.cumsum(pools["maximum"]) - pools["maximum"]
    packed = np.zeros((len(curves), max(len(values) for values in curves.values())))
    for packed_row, values in zip(packed, curves.values(), strict=True):
        packed_row[: len(values)] = values
    return pools, packed


def _set_starts(row: Any, pool: Pool) -> None:
    start = pool.start_up or StartUp(local_s=pool.startup_s, remote_s=pool.startup_s)
    row["startup"], row["remote"], row["reclaim"] = start.local_s, start.remote_s, start.reclaim_s
    other = np.inf if start.other_model_s is None else start.other_model_s
    row["other_model"] = other
    same = start.same_architecture_s
    row["same_architecture"] = other if same is None else same
    row["warm"] = MANY if start.warm_hosts is None else start.warm_hosts
    row["lent_first"] = start.lent


def _set_groups(pools: Array, fleet: Fleet) -> None:
    """Prefill and decode pools of one model and region register together."""
    pools["group"] = -1
    if fleet.registration is None:
        return
    known: dict[tuple[str, str], int] = {}
    for row, pool in zip(pools, fleet.pools, strict=True):
        if pool.role != "both":
            row["group"] = known.setdefault((pool.model, pool.region), len(known))
            row["side"] = int(pool.role == "decode")
