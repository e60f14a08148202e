"""The state of a simulation before time 0, made from a trace and a fleet."""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from simulation.arrays import Array, FloatArray, IntArray
from simulation.engine.heaps import REQUEST_BITS
from simulation.engine.prefix import allocate_caches
from simulation.engine.request_records import ServiceTables, columns_of, fill_records
from simulation.engine.routing_order import NEVER, PREFIX_AWARE
from simulation.engine.state import (
    CLOCK,
    DECODE_SERVICE,
    FIRST_SERVICE,
    INSTANCE,
    NO_LIMIT,
    POOL,
    RANKED,
    REQUEST,
    ROWS,
    TURN,
    State,
)
from simulation.errors import SimulationError
from simulation.faults import failing_starts
from simulation.fleet import BATCHING, ROUTERS, SCHEDULERS, WHEN_FULL, Fleet, Pool, Tier
from simulation.performance.curves import packed_curves
from simulation.performance.profile import iteration_s
from simulation.policy import LATENCY_BOUNDS_S
from simulation.results import UNFINISHED
from simulation.start_times import StartUp
from simulation.trace import CachedTokens, PrefixBlocks, Trace, previous_turns

UNLIMITED_HOSTS = 1 << 60  # hosts that have the weights, without a limit in the scenario
# most sequences in the batches of all possible instances together, 8 bytes each
MAX_BATCH_PLACES = 1_000_000_000
# prompt tokens of an iteration in which computing binds, unless the token budget is lower
COMPUTE_TOKENS = 2048
WATERMARK = 0.01  # share of KV memory kept free at admission; vLLM's default


class StreamLimits(NamedTuple):
    """Limits over all requests of a stream, including those that are not loaded yet."""

    requests: int  # upper bound of the number of requests
    tokens: int  # input and output tokens of the largest request


def allocate(
    trace: Trace,
    fleet: Fleet,
    duration_s: float,
    interval_s: float,
    seed: int = 0,
    limits: StreamLimits | None = None,
) -> State:
    """Return the state before time 0, without instances.

    Requests that no pool can serve are rejected here. ``duration_s`` is the length of the window,
    ``interval_s`` that of an interval of the series. ``limits`` has the most requests and tokens of
    a stream, if ``trace`` is only its first part. Raises ``SimulationError`` if the batches of all
    possible instances do not fit in memory.
    """
    pools_by_service = services(fleet)
    requests, accepted, largest = request_records(trace, fleet, pools_by_service)
    pools, curves = _pool_records(fleet)
    if limits is None:
        limits = StreamLimits(len(trace), largest)
    pools["min_kv_tokens"] = np.minimum(pools["max_request_tokens"], limits.tokens)
    slots = int(pools["maximum"].sum())
    batch = max(1, min(int(pools["max_batch"].max()), limits.requests))
    # Fail with a remedy here instead of running out of memory below.
    if slots * batch > MAX_BATCH_PLACES:
        raise SimulationError(
            f"The pools may grow to {slots:,} replicas, with up to {batch:,} requests in a batch; "
            f"{MAX_BATCH_PLACES:,} places in batches are allowed: lower the capacity or the "
            "maximum of pools, or max_batch."
        )
    clock = _clock_record(fleet)
    clock["unfinished"], clock["has_sessions"] = accepted, trace.session is not None
    clock["window_s"], clock["interval_s"] = duration_s, interval_s
    clock["registration_groups"] = pools["registration_group"].max(initial=-1) + 1
    intervals = int(np.ceil(duration_s / interval_s - 1e-9))
    all_fcfs = all(pool.scheduler == "fcfs" for pool in fleet.pools)
    # Of an instance: one (FCFS) or two per tier, and one for requests that wait behind all others.
    queues = 2 if all_fcfs else 2 * len(fleet.tiers) + 1
    return State(
        clock=clock,
        requests=requests,
        instances=np.zeros(slots, INSTANCE),
        pools=pools,
        curves=curves,
        series=np.zeros((ROWS, len(pools), intervals + 1)),
        decode_heap=np.zeros((slots, _places_per_instance(batch)), np.int64),
        queues=np.full((slots, queues, 2), -1, np.int32),
        ranking=np.full(int(2 * pools["tree_leaves"].sum()), np.array((NEVER, np.inf), RANKED)),
        event_time=np.zeros(max(slots, 1)),
        event_slot=np.zeros(max(slots, 1), np.int32),
        event_index=np.full(max(slots, 1), -1, np.int32),
        delivery_time=np.zeros(max(len(trace), 1)),
        delivery_request=np.zeros(max(len(trace), 1), np.int64),
        latency_s=np.array(fleet.latency_s, np.float64, order="C"),
        region_order=_regions_by_latency(fleet.latency_s),
        starts_by_source=np.zeros((len(pools), 4), np.int64),
        start_fails=failing_starts(fleet.faults, len(pools), seed),
        latency_bounds=LATENCY_BOUNDS_S.copy(),
        latency_counts=np.zeros((2, len(pools), len(LATENCY_BOUNDS_S) + 1), np.int64),
        turns=_turns(trace),
        **_prefix_tables(trace, fleet, pools),
        **_service_tables(fleet, pools, pools_by_service),
        **_tier_tables(fleet.tiers),
    )


def _prefix_tables(trace: Trace, fleet: Fleet, pools: Array) -> dict[str, Array]:
    """Return the tables of ``State`` for prefix caches, and fill their columns of ``pools``."""
    cached = np.array([pool.prefix_cache for pool in fleet.pools])
    pools["trace_states_hits"] = cached & isinstance(trace.blocks, CachedTokens)
    block_tokens, starts, ids = 1, np.zeros(1, np.int64), np.zeros(0, np.int32)
    if isinstance(trace.blocks, PrefixBlocks):
        block_tokens = trace.blocks.block_tokens
        if cached.any():  # else no pool keeps prompt blocks
            max_blocks = pools["kv_capacity_tokens"] // block_tokens + 1
            pools["max_cache_blocks"] = np.where(cached, max_blocks, 0)
            starts, ids = trace.blocks.start, trace.blocks.ids
    caches, nodes, buckets = allocate_caches(pools, int(pools["maximum"].sum()), block_tokens)
    return {
        "caches": caches,
        "nodes": nodes,
        "buckets": buckets,
        "prefix_start": np.array(starts, np.int64),
        "prefix_ids": np.array(ids, np.int32),
    }


def _tier_tables(tiers: Sequence[Tier]) -> dict[str, Array]:
    """Return the tables of ``State`` by tier."""
    limit = _limits_by_tier(tier.ttft_s for tier in tiers)
    rank = np.empty(len(tiers), np.int64)  # by TTFT limit; 0: the strictest
    rank[np.argsort(limit, kind="stable")] = np.arange(len(tiers))
    return {
        "deferrable": np.array([tier.deferrable for tier in tiers], bool),
        "urgent_after_s": np.array([tier.urgent_after_s for tier in tiers], np.float64),
        "tier_rank": rank,
        "ttft_limit_s": limit,
        "tbt_limit_s": _limits_by_tier(tier.tbt_s for tier in tiers),
        "e2e_limit_s": _limits_by_tier(tier.e2e_s for tier in tiers),
    }


def _clock_record(fleet: Fleet) -> Array:
    """Return ``State.clock``, a table with one record: counters, and rules of the router."""
    clock = np.zeros(1, CLOCK)
    if fleet.registration is not None:
        ratio, tolerance = fleet.registration.ratio, fleet.registration.tolerance
        # Bounds of prefill instances per decode instance, for the registration of new instances.
        # Keep the lower one above 0: registration divides by it.
        clock["ratio_low"] = ratio * max(1.0 - tolerance, 1e-9)
        clock["ratio_high"] = ratio * (1.0 + tolerance)
    for name in ("region_threshold", "release_one_below", "release_two_below"):
        clock[name] = getattr(fleet.routing, name)
    clock["max_retries"] = fleet.retries
    clock["overflow_s"] = np.inf  # no overflow until the policy sets a limit
    clock["sees_queues"] = fleet.routing.sees == "queues"
    # "least-memory" first chooses a pool, then an instance in it.
    clock["chooses_pool_first"] = fleet.routing.endpoint == "least-memory"
    return clock


def _turns(trace: Trace) -> Array:
    """Return each request as a turn of its session, ``[request]``.

    If the trace has no sessions, it is one unused record.
    """
    if trace.session is None:
        return np.zeros(1, TURN)
    turns = np.zeros(max(len(trace), 1), TURN)
    turns["previous"] = turns["following"] = -1
    previous = previous_turns(trace.session)
    turns["previous"][: len(trace)] = previous
    later_turns = np.flatnonzero(previous >= 0)
    turns["following"][previous[later_turns]] = later_turns
    if trace.think_s is not None:
        turns["think_s"][: len(trace)] = trace.think_s
    return turns


def _regions_by_latency(latency_s: FloatArray) -> IntArray:
    """Return the regions in order of latency from each home region, ``[home region, place]``.

    The home region is first. -1 at the end of a row stands for regions that cannot be reached.
    """
    home_first = np.where(np.eye(len(latency_s), dtype=bool), -np.inf, latency_s)
    order = np.argsort(home_first, axis=1, kind="stable")
    sorted_s = np.take_along_axis(latency_s, order, axis=1)
    return np.array(np.where(np.isinf(sorted_s), -1, order), np.int64, order="C")


def _places_per_instance(max_batch: int) -> int:
    """Return the length of an instance's row in ``State.decode_heap``, at least ``max_batch``.

    It is an odd number of cache lines (of 8 entries). With an even number, the first entries of all
    instances would compete for the same few lines of the processor's cache.
    """
    cache_lines = -(-max_batch // 8)
    return 8 * (cache_lines + 1 - cache_lines % 2)


def _limits_by_tier(seconds: Iterable[float | None]) -> Array:
    """Return the limits as an array ``[tier]``, with inf for None (no limit)."""
    return np.array([np.inf if limit is None else limit for limit in seconds], np.float64)


class Service(NamedTuple):
    """The requests of a model and of the ``tiers`` that the same pools accept.

    With prefill and decode pools there are two such services. The one with ``takes_over`` has the
    decode pools, which continue the requests of the other.
    """

    model: str
    takes_over: bool
    tiers: tuple[str, ...]


def services(fleet: Fleet) -> dict[Service, tuple[int, ...]]:
    """Return every service of a fleet with the indices of the pools that provide it."""
    tier_sets = {model: _tier_sets(fleet, model) for model in fleet.models}
    pools_by_service: dict[Service, tuple[int, ...]] = {}
    for p, pool in enumerate(fleet.pools):
        for tiers in tier_sets[pool.model]:
            if pool.takes(tiers[0]):
                service = Service(pool.model, pool.role == "decode", tiers)
                pools_by_service[service] = (*pools_by_service.get(service, ()), p)
    return pools_by_service


def _tier_sets(fleet: Fleet, model: str) -> list[tuple[str, ...]]:
    """Return the sets of tiers that the same pools of a model accept."""
    pools = [pool for pool in fleet.pools if pool.model == model]
    tiers_by_pools: dict[tuple[bool, ...], tuple[str, ...]] = {}
    for tier in fleet.tiers:
        accepting = tuple(pool.takes(tier.name) for pool in pools)
        tiers_by_pools[accepting] = (*tiers_by_pools.get(accepting, ()), tier.name)
    return list(tiers_by_pools.values())


def _service_tables(
    fleet: Fleet, pools: Array, pools_by_service: dict[Service, tuple[int, ...]]
) -> dict[str, Array]:
    """Return the tables of ``State`` by service, and fill their columns of ``pools``.

    An endpoint is the pools of a service in one region. Endpoints are numbered by service, then by
    region. Lists of different lengths are stored one behind the other, with the start of each.
    """
    count, regions, tiers = len(pools_by_service), len(fleet.regions), len(fleet.tiers)
    endpoints = [  # pools of each
        [p for p in service_pools if pools["region"][p] == region]
        for service_pools in pools_by_service.values()
        for region in range(regions)
    ]
    services_by_pool = [
        [i for i, service_pools in enumerate(pools_by_service.values()) if p in service_pools]
        for p in range(len(pools))
    ]
    pools["service_count"] = [len(indices) for indices in services_by_pool]
    pools["first_service"] = np.cumsum(pools["service_count"]) - pools["service_count"]
    models = [
        -1 if service.takes_over else fleet.models.index(service.model)
        for service in pools_by_service
    ]
    return {
        "endpoint_start": np.cumsum([0, *map(len, endpoints)], dtype=np.int64),
        "endpoint_pools": np.array(list(chain(*endpoints)), np.int64),
        "pool_services": np.array(list(chain(*services_by_pool)), np.int64),
        "service_model": np.array(models, np.int64),
        "shares": np.zeros((count, regions, regions)),
        "owed_tokens": np.zeros((count, regions, regions)),
        "asked_tokens": np.zeros((count, regions), np.int64),
        "related_service": _handover_services(pools_by_service),
        "router_queue": np.full((count, 2), -1, np.int64),
        "router_waiting": np.zeros((count, regions), np.int64),
        "deferred_queues": np.full((count, regions, tiers, 2), -1, np.int64),
        "deferred_count": np.zeros(count, np.int64),
        "deferred_by_home": np.zeros((count, regions), np.int64),
        "releasable_tokens": np.full((count, regions), np.inf),
        "released_tokens": np.zeros((count, regions)),
    }


def _handover_services(pools_by_service: dict[Service, tuple[int, ...]]) -> Array:
    """Return two related services for each service, ``[service, 2]``; -1: none.

    Column DECODE_SERVICE is the service that takes over after the prefill. Column FIRST_SERVICE is
    the one to which a request returns after the loss of its instance.
    """
    all_services = list(pools_by_service)
    related = np.full((len(all_services), 2), -1, np.int64)
    for index, service in enumerate(all_services):
        for column, takes_over in ((DECODE_SERVICE, True), (FIRST_SERVICE, False)):
            other = service._replace(takes_over=takes_over)
            is_last = service.takes_over and takes_over  # no service takes over from a decode pool
            if other in pools_by_service and not is_last:
                related[index, column] = all_services.index(other)
    return related


def check_count(n: int) -> None:
    """Raise ``SimulationError`` if the engine cannot number ``n`` requests at once."""
    if n >= 1 << REQUEST_BITS:
        raise SimulationError(
            f"The trace has {n:,} requests and {(1 << REQUEST_BITS) - 1:,} can be simulated at "
            "once: choose a shorter window, or scale the traffic down."
        )


def request_records(
    trace: Trace, fleet: Fleet, pools_by_service: dict[Service, tuple[int, ...]]
) -> tuple[Array, int, int]:
    """Return the records of requests before they arrive, and two figures of them.

    Requests that no pool can serve are rejected, with their reason. The figures are the number of
    other requests, and the input and output tokens of the largest of them. ``pools_by_service`` is
    ``services(fleet)``.
    """
    check_count(len(trace))
    longest, context = _service_limits(fleet, pools_by_service)
    tables = ServiceTables(
        first=_first_services(trace, pools_by_service),
        homes=_indices(trace.regions, [region.name for region in fleet.regions]),
        tiers=_indices(trace.tiers, [tier.name for tier in fleet.tiers]),
        has_pools=np.array([name in fleet.models for name in trace.models], np.bool_),
        context=context,
        longest=longest,
    )
    requests, empty_words = np.empty(len(trace), REQUEST), _empty_record().view(np.uint64)
    # Compiled code copies the empty record in words of 8 bytes.
    words = requests.view(np.uint64).reshape(len(trace), empty_words.size)
    accepted, largest = fill_records(requests, words, empty_words, columns_of(trace), tables)
    if isinstance(trace.blocks, CachedTokens):
        requests["trace_cached_tokens"] = trace.blocks.tokens
    return requests, accepted, largest


def _first_services(trace: Trace, pools_by_service: Iterable[Service]) -> Array:
    """Return the index of the service that a request gets first, ``[model, tier]``; -1: none."""
    first_service = np.full((len(trace.models), len(trace.tiers)), -1, np.int16)
    for index, service in enumerate(pools_by_service):
        if not service.takes_over:
            has_model = [name == service.model for name in trace.models]
            has_tier = [name in service.tiers for name in trace.tiers]
            first_service[np.ix_(has_model, has_tier)] = index
    return first_service


def _service_limits(
    fleet: Fleet, pools_by_service: dict[Service, tuple[int, ...]]
) -> tuple[IntArray, IntArray]:
    """Return the largest requests that fit by KV memory and by context, in tokens.

    Both are ``[service + 1, home region]``: the largest that any pool of the service can serve that
    the home region can reach; 0: none. The last row is for requests without a service (-1).
    """
    kv_limit, context_limit = np.zeros((2, len(pools_by_service) + 1, len(fleet.regions)), np.int64)
    region_names = [region.name for region in fleet.regions]
    for i, pools in enumerate(pools_by_service.values()):
        for p in pools:
            pool = fleet.pools[p]
            # [home region]: whether its requests may go to the pool's region
            can_reach = np.isfinite(fleet.latency_s[:, region_names.index(pool.region)])
            max_context = pool.max_context or NO_LIMIT
            kv_limit[i, can_reach] = np.maximum(kv_limit[i, can_reach], _longest_request(pool))
            context_limit[i, can_reach] = np.maximum(context_limit[i, can_reach], max_context)
    decode_service = _handover_services(pools_by_service)[:, DECODE_SERVICE]
    for i, pools in enumerate(pools_by_service.values()):
        if any(fleet.pools[p].role == "prefill" for p in pools):
            # A request must also fit into the decode pool that takes over.
            kv_limit[i] = np.minimum(kv_limit[i], kv_limit[decode_service[i]])
            context_limit[i] = np.minimum(context_limit[i], context_limit[decode_service[i]])
    return kv_limit, context_limit


def _empty_record() -> Array:
    """Return a table with one record, that of a request which has not arrived."""
    record = np.zeros(1, REQUEST)
    record["first_token_s"] = record["last_token_s"] = np.nan
    # -1: none
    record["next_in_queue"] = record["next_admitted"] = record["previous_admitted"] = -1
    record["pool"] = record["serving_region"] = record["sending_slot"] = record["reason"] = -1
    record["outcome"] = UNFINISHED
    return record


def _indices(names: tuple[str, ...], known_names: Sequence[str | None]) -> npt.NDArray[np.int16]:
    """Return the index of each name in ``known_names``; -1: unknown.

    Without names it is one -1, since compiled code needs an array with a first element.
    """
    return np.array(
        [known_names.index(name) if name in known_names else -1 for name in names] or [-1],
        np.int16,
    )


def _longest_request(pool: Pool) -> int:
    """Return the tokens of the largest request that fits in an instance of a pool."""
    return min(pool.profile.kv_capacity_tokens, pool.max_context or NO_LIMIT)


def _start_s(fleet: Fleet, pool: Pool) -> float:
    """Return the seconds that the serving stack adds to every TTFT of the pool's requests.

    They are the profile's ``start_s``. A decode pool has those of the slowest prefill pool of its
    model, where its requests began.
    """
    prefill_start_s = [
        other.profile.start_s
        for other in fleet.pools
        if other.role == "prefill" and other.model == pool.model
    ]
    if pool.role == "decode" and prefill_start_s:
        return max(prefill_start_s)
    return pool.profile.start_s


def _pool_records(fleet: Fleet) -> tuple[Array, Array]:
    """Return the records of the pools, and the distinct curves of their profiles.

    A curve is a row of numbers, padded to the longest.
    """
    regions = [region.name for region in fleet.regions]
    pools = np.zeros(len(fleet.pools), POOL)
    curves: dict[bytes, Array] = {}
    for record, pool in zip(pools, fleet.pools, strict=True):
        curve = pool.profile.curve.values
        curves.setdefault(curve.tobytes(), curve)
        record["curve"] = list(curves).index(curve.tobytes())
        _set_profile(record, pool)
        router = fleet.routing.decode if pool.role == "decode" else fleet.routing.instance
        record["router"], record["start_s"] = ROUTERS.index(router), _start_s(fleet, pool)
        _set_starts(record, pool)
        record["region"] = regions.index(pool.region)
        record["minimum"], record["maximum"] = pool.minimum, pool.maximum
    pools["slowdown"], pools["prompt_limit_tokens"] = 1.0, NO_LIMIT
    # Codes that are equal for pools with the same model, hardware or architecture. An unnamed
    # architecture must not match another unnamed one.
    models = [pool.model for pool in fleet.pools]
    architectures = [pool.architecture for pool in fleet.pools]
    hardware = [(p.region, p.gpu.name, p.spot, p.gpus_per_instance) for p in fleet.pools]
    pools["model"] = [models.index(model) for model in models]
    pools["hardware"] = [hardware.index(pool_hardware) for pool_hardware in hardware]
    pools["architecture"] = [architectures.index(name) if name else -1 for name in architectures]
    _set_groups(pools, fleet)
    # A power of two, at least the maximum of instances. A binary tree takes two entries per leaf.
    pools["tree_leaves"] = [1 << max(int(count) - 1, 0).bit_length() for count in pools["maximum"]]
    pools["tree_start"] = 2 * (np.cumsum(pools["tree_leaves"]) - pools["tree_leaves"])
    pools["has_tree"] = pools["router"] == PREFIX_AWARE
    pools["first_slot"] = np.cumsum(pools["maximum"]) - pools["maximum"]
    return pools, packed_curves(list(curves.values()))


def _set_profile(record: Any, pool: Pool) -> None:
    """Fill the record of a pool with the limits and rules of its engine, and its KV link."""
    profile = pool.profile
    # Every decode takes a token of the budget, so the batch can never exceed it.
    max_batch = min(profile.max_batch, profile.max_batch_tokens)
    record["max_batch"] = record["profile_max_batch"] = max_batch
    record["token_budget"] = profile.max_batch_tokens
    record["kv_capacity_tokens"] = record["usable_kv_tokens"] = profile.kv_capacity_tokens
    record["scheduler"] = SCHEDULERS.index(pool.scheduler)
    record["when_full"] = WHEN_FULL.index(pool.when_full)
    record["batching"] = BATCHING.index(pool.batching)
    record["tau_n"], record["tau_p"] = pool.tau_n_s, pool.tau_p_s
    record["max_request_tokens"] = _longest_request(pool)
    record["watermark_tokens"] = int(WATERMARK * profile.kv_capacity_tokens)
    # Seconds per token of a large prefill iteration. Tokens attend to half of the chunk on average.
    chunk_tokens = min(profile.max_batch_tokens, COMPUTE_TOKENS)
    record["token_s"] = iteration_s(profile, 0, 0, chunk_tokens, chunk_tokens**2 / 2) / chunk_tokens
    if pool.role == "prefill" and pool.link is not None:
        record["hands_over"] = 1
        record["kv_bytes_per_token"] = pool.link.kv_bytes_per_token
        record["link_bytes_s"] = pool.link.bytes_s
        record["shared_link_bytes_s"] = pool.link.shared_bytes_s


def _set_starts(record: Any, pool: Pool) -> None:
    """Fill the record of a pool with start times, lent instances and hosts with the weights."""
    start = pool.start_up or StartUp(local_s=pool.startup_s, remote_s=pool.startup_s)
    record["local_start_s"], record["remote_start_s"] = start.local_s, start.remote_s
    record["reclaim_start_s"] = start.reclaim_s
    other_model = np.inf if start.other_model_s is None else start.other_model_s
    record["other_model_start_s"] = other_model
    same_architecture = start.same_architecture_s
    if same_architecture is None:
        same_architecture = other_model
    record["same_architecture_start_s"] = same_architecture
    record["hosts_with_weights"] = UNLIMITED_HOSTS if start.warm_hosts is None else start.warm_hosts
    record["lent_at_start"] = start.lent
    record["running_before_start"] = -1 if pool.today is None else pool.today
    record["lost_instances"] = pool.lost


def _set_groups(pools: Array, fleet: Fleet) -> None:
    """Put the prefill and decode pools of a model and region into one registration group.

    Instances of a group register together, in the ratio of ``fleet.registration``.
    """
    pools["registration_group"] = -1
    if fleet.registration is None:
        return
    groups: dict[tuple[str, str], int] = {}
    for record, pool in zip(pools, fleet.pools, strict=True):
        if pool.role != "both":
            record["registration_group"] = groups.setdefault((pool.model, pool.region), len(groups))
            record["side"] = int(pool.role == "decode")
