"""Measure the signals of replicas at their rated load (methods.md D7; HeteroScale, Algorithm 1).

A pool is simulated at the capacity C(n) that it was sized for. Prefill and decode replicas
are tested together, in their ratio, at their joint capacity. The readings are the targets of
proportional control.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import log
from threading import RLock

import numpy as np

from planner.domain.pd.plan_ratios import studied_service
from planner.domain.pd.ratio_search import judge_ratios
from planner.domain.pd.service_pools import DEFAULT_INSTANCES, PairColumns, usual_instances
from planner.domain.random_streams import Stream, generator
from planner.domain.study import Study
from planner.policies.context import Pressure
from simulation.arrays import FloatArray, IntArray
from simulation.engine.run import simulate
from simulation.errors import SimulationError
from simulation.fleet import Fleet
from simulation.policies.parts.pool_metrics import Metric, per_instance
from simulation.policies.parts.ratio import BEST_RATIO, FIXED, OBSERVED
from simulation.policies.static import Static
from simulation.policies.wrappers.observation_log import ObservationLog
from simulation.sizing.pd_ratio import RatioCapacity, all_splits
from simulation.sizing.pd_simulation import no_report
from simulation.sizing.pool import curve_capacity
from simulation.sizing.workload import Burstiness, unit_arrivals
from simulation.trace import Trace

REQUESTS_PER_TEST = 4_000  # requests of a test of FEW_REPLICAS replicas
FEW_REPLICAS = 4
WARM_UP = 0.2  # share of the test before the first reading
GAUGES: tuple[Metric, ...] = ("concurrency", "tokens")  # gauges without a published target
SIGNAL_FIELDS = (
    "prefill_tps",
    "decode_tps",
    "busy",
    "sm_activity",
    "ttft_s",
    "tbt_s",
)  # fields of Signals


class PressureTests:
    """The pressure tests of one study; each runs when first used.

    A pressure test simulates pools at their rated capacity, and measures what a policy would
    observe then, such as concurrent requests. Autoscalers use the readings as targets. Threads that
    share ``lock`` wait for each other.
    """

    def __init__(self, study: Study, lock: RLock | None = None) -> None:
        self._study = study
        self._lock = lock or RLock()
        self._made: dict[tuple[str | float, bool], Pressure] = {}

    def at(self, ratio: str | float = FIXED, *, many: bool = False) -> Pressure:
        """Return the signals of replicas at their rated capacity, tested when first needed.

        ``ratio`` of prefill to decode replicas is ``fixed`` (today's), a number, or else the best.
        With ``many``, aggregated pools are tested with many replicas.
        """
        if ratio == OBSERVED:  # both names mean the same test
            ratio = BEST_RATIO
        with self._lock:
            if (ratio, many) not in self._made:
                self._made[ratio, many] = pressure_test(self._study, ratio, many=many)
            return self._made[ratio, many]


def pressure_test(study: Study, ratio: str | float = FIXED, *, many: bool = False) -> Pressure:
    """Simulate each pool at its rated capacity, and return its signals.

    Requests have the lengths and the burstiness of the model. A pool is tested with today's number
    of replicas, at most DEFAULT_INSTANCES. With ``many``, an aggregated pool is tested with
    DEFAULT_INSTANCES replicas. Prefill and decode pools are tested together at their joint
    capacity. ``ratio`` of prefill to decode replicas is ``fixed`` (today's), a number, or else the
    best one (methods.md D2).
    """
    pools = study.hardware.model_region_gpu
    signals = {
        name: np.full(len(pools), np.nan) for name in (*SIGNAL_FIELDS, *GAUGES)
    }  # [pools] each
    # P/D ratio, and input tokens/s of a replica, both [pools].
    ratios, tps_of_replica = np.full(len(pools), np.nan), np.full(len(pools), np.nan)
    tested: dict[tuple[int, ...], dict[str, FloatArray]] = {}
    for group in _pools_tested_together(study):
        model, columns = _model_and_columns(study, group)
        counts, rate = _replicas_and_rate(study, group, ratio, many=many)
        # Replicas are equally fast in all regions, so one test serves them all.
        key = (model, *columns, *counts.tolist())
        if key not in tested:
            tested[key] = _simulated_signals(study, group, counts, rate)
        for name, by_pool in signals.items():
            by_pool[group] = tested[key][name]
        tps_of_replica[group] = rate * _mean_isl(study, model) / counts
        if len(group) > 1:
            prefill, decode = counts
            ratios[group] = prefill / decode
    return Pressure(signals, ratios, tps_of_replica)


def _model_and_columns(study: Study, group: Sequence[int]) -> tuple[int, list[int]]:
    """Return the model of a ``group`` of pools, and the GPU column of each pool, as indices."""
    pools = [study.hardware.model_region_gpu[pool] for pool in group]
    model, _, _ = pools[0]
    return model, [column for _, _, column in pools]


def _mean_isl(study: Study, model: int) -> float:
    """Return the mean input tokens of a model's requests."""
    isl, _ = study.traffic.lengths[model]
    return float(isl.mean())


def _pools_tested_together(study: Study) -> Iterator[list[int]]:
    """Yield groups of pools to test together: aggregated pools alone, prefill with decode pools.

    Pools are paired within a model and region. Each prefill pool is paired with the first decode
    pool, and each other decode pool with the first prefill pool.
    """
    hardware, theta_tps = study.hardware, study.sizes.theta_tps  # [model, GPU column]
    by_place: dict[tuple[int, int], dict[str, list[int]]] = {}  # and by role
    for pool, (model, region, column) in enumerate(hardware.model_region_gpu):
        roles = by_place.setdefault((model, region), {"both": [], "prefill": [], "decode": []})
        if theta_tps[model, column] > 0:
            roles[hardware.columns[column].role].append(pool)
    for roles in by_place.values():
        yield from ([pool] for pool in roles["both"])
        if roles["prefill"] and roles["decode"]:
            first_prefill, first_decode = roles["prefill"][0], roles["decode"][0]
            yield from ([prefill, first_decode] for prefill in roles["prefill"])
            yield from ([first_prefill, decode] for decode in roles["decode"][1:])


def _replicas_and_rate(
    study: Study, group: list[int], ratio: str | float, *, many: bool
) -> tuple[IntArray, float]:
    """Return how many replicas of each pool of ``group`` to test, and the requests/s they serve.

    ``group`` has the index of an aggregated pool, or those of a prefill and a decode pool. An
    aggregated pool has today's replicas, or DEFAULT_INSTANCES with ``many``. Prefill and decode
    pools have the P:D ``ratio``: ``fixed`` (today's), a number, or else the best one.
    """
    model, columns = _model_and_columns(study, group)
    today = study.counts_by_pool(study.today)[group]
    if len(group) == 1:
        counts = [DEFAULT_INSTANCES if many else int(np.clip(today[0], 1, DEFAULT_INSTANCES))]
        return _counts_with_rate(study, model, columns, counts)
    if ratio in (BEST_RATIO, OBSERVED):
        try:
            best = _best_ratio(study, model, PairColumns(*columns))
            return np.array([best.prefill, best.decode], np.int64), best.max_rps
        except SimulationError:  # no split serves the model within its limits
            ratio = FIXED
    if ratio == FIXED:  # today's, as simulation.policies.parts.ratio begins
        ratio = float(today[0] / today[1]) if today.all() else 1.0
    # Of all splits of the replicas into prefill and decode, take the one nearest to the ratio.
    wanted_ratio = float(ratio)
    total = int(np.clip(today.sum(), 2, DEFAULT_INSTANCES))
    splits = all_splits(total)
    distances = [abs(log(prefill / decode / wanted_ratio)) for prefill, decode in splits]
    nearest = splits[distances.index(min(distances))]
    return _counts_with_rate(study, model, columns, nearest)


def _best_ratio(study: Study, model: int, pair: PairColumns) -> RatioCapacity:
    """Return the best P:D ratio of a model; raise SimulationError if none is within its limits."""
    count = usual_instances(study.hardware, model, pair)
    service = studied_service(study, model, pair, count)
    seed, routing = study.settings.seed, study.hardware.routing
    return judge_ratios(service, routing, count, seed, no_report).best.ratio


def _counts_with_rate(
    study: Study, model: int, columns: Sequence[int], counts: Sequence[int]
) -> tuple[IntArray, float]:
    """Return the replicas ``counts`` in pools of GPU ``columns``, and the requests/s they serve.

    The weakest pool limits the rate.
    """
    input_tps = [
        curve_capacity(study.sizes.pool_tps[model, column], count)
        for column, count in zip(columns, counts, strict=True)
    ]
    return np.array(counts, np.int64), min(input_tps) / _mean_isl(study, model)


def _simulated_signals(
    study: Study, group: list[int], counts: IntArray, rate: float
) -> dict[str, FloatArray]:
    """Simulate a group of pools at ``rate`` requests/s, and return the mean of each signal.

    The result maps the name of a signal to its mean in each pool of the group. ``counts`` are the
    replicas of these pools. Throughputs (names with ``_tps``) are per replica.
    """
    fleet = _tested_fleet(study, group, counts)
    model, _ = _model_and_columns(study, group)
    requests = REQUESTS_PER_TEST * max(1, int(counts.sum()) // FEW_REPLICAS)
    trace = _test_requests(study, model, fleet, requests, rate)
    end_s = float(trace.arrival_s[-1])
    policy = ObservationLog(Static(counts, interval_s=end_s * WARM_UP))
    simulate(trace, fleet, policy, seed=study.settings.seed, duration_s=end_s * 1.0001)

    # The first observation is at the start, before any load; the others are every fifth of a test.
    observations = policy.seen[1:]
    read_signals = [observed.signals for observed in observations if observed.signals is not None]
    kv_tokens = np.array([pool.profile.kv_capacity_tokens for pool in fleet.pools], np.float64)
    means = {}
    with np.errstate(invalid="ignore"):
        for name in SIGNAL_FIELDS:
            mean = np.mean([getattr(signals, name) for signals in read_signals], axis=0)
            means[name] = mean / counts if name.endswith("_tps") else mean
        for metric in GAUGES:
            values = [per_instance(metric, observed, kv_tokens) for observed in observations]
            means[metric] = np.mean(values, axis=0) if values else np.full(len(counts), np.nan)
    return means


def _tested_fleet(study: Study, group: list[int], counts: IntArray) -> Fleet:
    """Return a fleet of only the pools in ``group``, with so many replicas, for all tiers."""
    no_replicas = np.zeros(len(study.hardware.model_region_gpu), np.int64)
    all_pools = study.fleet(no_replicas)
    pools = []
    for p, count in zip(group, counts.tolist(), strict=True):
        pool = all_pools.pools[p]
        maximum = max(count, 1)
        pools.append(replace(pool, initial=count, minimum=0, maximum=maximum, tiers=None))
    tiers, regions = all_pools.tiers, all_pools.regions
    return Fleet(tiers, regions, tuple(pools), all_pools.latency_s, all_pools.routing)


def _test_requests(study: Study, m: int, fleet: Fleet, requests: int, rate: float) -> Trace:
    """Return a trace of so many ``requests`` of model ``m``, at ``rate`` requests/s on average.

    Lengths, burstiness and shared prefixes are those of the model. All requests come from the
    region of the fleet's pools, in the model's first tier.
    """
    traffic, pool = study.traffic, fleet.pools[0]
    isl, osl = traffic.lengths[m]
    rng = generator(study.settings.seed, Stream.PRESSURE)
    drawn_indices = rng.integers(0, len(isl), requests)
    isl, osl = isl[drawn_indices], osl[drawn_indices]
    blocks = None
    shared = traffic.shared[m] if traffic.shared else None
    if shared is not None and study.hardware.serving[m].prefix_caching:
        sample = shared.repeat(requests)
        isl, osl, blocks = sample.isl, sample.osl, sample.blocks
    burstiness: Burstiness = traffic.arrivals[m] if traffic.arrivals else 1.0
    regions = tuple(region.name for region in fleet.regions)
    first_tier = fleet.tiers.index(study.hardware.limits_of(m)[0])
    return Trace(
        arrival_s=unit_arrivals(requests, burstiness, rng) / rate,
        input_tokens=isl.astype(np.int32),
        output_tokens=osl.astype(np.int32),
        model=np.zeros(requests, np.int16),
        region=np.full(requests, regions.index(pool.region), np.int16),
        tier=np.full(requests, first_tier, np.int16),
        models=(pool.model,),
        regions=regions,
        tiers=tuple(tier.name for tier in fleet.tiers),
        start_s=0.0,
        provenance="synthesised",
        blocks=blocks,
    )
