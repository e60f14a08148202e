"""Measure the signals of replicas at their rated load (methods.md D7; HeteroScale, Algorithm 1).

A pool is simulated at the capacity C(n) that it was sized for. Prefill and decode replicas
are tested together, in their ratio, at their joint capacity. The readings are the targets of
proportional control.
"""

from __future__ import annotations

from dataclasses import replace
from math import log
from threading import RLock

import numpy as np

from planner.domain.pd.plan_ratios import studied_service
from planner.domain.pd.ratio_search import judge_ratios
from planner.domain.pd.service_pools import USUAL_INSTANCES, PairColumns, usual_instances
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
from simulation.sizing.pd_ratio import all_splits
from simulation.sizing.pd_simulation import no_report
from simulation.sizing.pool import curve_capacity
from simulation.sizing.workload import Burstiness, unit_arrivals
from simulation.trace import Trace

REQUESTS = 4_000  # requests of a test of FEW replicas
FEW = 4
WARM_UP = 0.2  # share of the test before the first reading
GAUGES: tuple[Metric, ...] = ("concurrency", "tokens")  # gauges without a published target
READ = ("prefill_tps", "decode_tps", "busy", "sm_activity", "ttft_s", "tbt_s")  # fields of Signals


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
        """Return the signals at the P:D ``ratio``; see ``pressure_test`` for both arguments."""
        test = BEST_RATIO if ratio == OBSERVED else ratio, many  # both names mean the same test
        with self._lock:
            if test not in self._made:
                self._made[test] = pressure_test(self._study, *test)
            return self._made[test]

    def among_many(self) -> Pressure:
        """Return the signals at the best P:D ratio, in pools of many replicas."""
        return self.at(BEST_RATIO, many=True)


def pressure_test(study: Study, ratio: str | float = FIXED, many: bool = False) -> Pressure:
    """Simulate each pool at its rated capacity, and return its signals.

    Requests have the lengths and the burstiness of the model. A pool is tested with today's number
    of replicas, at most USUAL_INSTANCES. With ``many``, an aggregated pool is tested with
    USUAL_INSTANCES replicas. Prefill and decode pools are tested together at their joint capacity.
    ``ratio`` of prefill to decode replicas is ``fixed`` (today's), a number, or else the best one
    (methods.md D2).
    """
    index = study.hardware.pool_index
    out = {name: np.full(len(index), np.nan) for name in (*READ, *GAUGES)}
    ratios, rates = np.full(len(index), np.nan), np.full(len(index), np.nan)
    tested: dict[tuple[int, ...], dict[str, FloatArray]] = {}
    for m in range(len(study.hardware.models)):
        for r in range(len(study.hardware.regions)):
            pools = [p for p, place in enumerate(index) if place[:2] == (m, r)]
            for group in _pools_tested_together(study, pools):
                counts, rate = _replicas_and_rate(study, group, ratio, many)
                # Replicas are equally fast in all regions, so one test serves them all.
                key = (m, *(index[p][2] for p in group), *counts.tolist())
                if key not in tested:
                    tested[key] = _simulated_signals(study, group, counts, rate)
                for name in out:
                    out[name][group] = tested[key][name]
                rates[group] = rate * float(study.traffic.lengths[m][0].mean()) / counts
                if len(group) > 1:
                    ratios[group] = counts[0] / counts[1]
    return Pressure(out, ratios, rates)


def _pools_tested_together(study: Study, pools: list[int]) -> list[list[int]]:
    """Return groups of pools to test together: aggregated pools alone, prefill with decode pools.

    Each prefill pool is paired with the first decode pool, and each other decode pool with the
    first prefill pool. ``pools`` are indices of the pools of a model in a region.
    """
    index, columns = study.hardware.pool_index, study.hardware.columns
    theta = study.sizes.theta_tps
    serving = [p for p in pools if theta[index[p][0], index[p][2]] > 0]
    by_role = {
        role: [p for p in serving if columns[index[p][2]].role == role]
        for role in ("both", "prefill", "decode")
    }
    pairs = []
    if by_role["prefill"] and by_role["decode"]:
        first = by_role["decode"][0]
        pairs = [[p, first] for p in by_role["prefill"]]
        pairs += [[by_role["prefill"][0], p] for p in by_role["decode"][1:]]
    return [[p] for p in by_role["both"]] + pairs


def _replicas_and_rate(
    study: Study, group: list[int], ratio: str | float, many: bool
) -> tuple[IntArray, float]:
    """Return how many replicas of each pool of ``group`` to test, and the requests/s they serve.

    ``group`` has the index of an aggregated pool, or those of a prefill and a decode pool. For
    ``ratio`` and ``many`` see ``pressure_test``.
    """
    index, hardware = study.hardware.pool_index, study.hardware
    m = index[group[0]][0]
    mean_isl = float(study.traffic.lengths[m][0].mean())
    today = study.pools(study.today)[group]
    if len(group) == 1:
        n = USUAL_INSTANCES if many else int(np.clip(today[0], 1, USUAL_INSTANCES))
        return np.array([n], np.int64), _pool_capacity(study, m, index[group[0]][2], n) / mean_isl
    columns = PairColumns(*(index[p][2] for p in group))
    try:
        if ratio in (BEST_RATIO, OBSERVED):
            count = usual_instances(hardware, m, columns)
            service = studied_service(study, m, columns, count)
            judged = judge_ratios(service, hardware.routing, count, study.settings.seed, no_report)
            best = judged.best.ratio
            return np.array([best.prefill, best.decode], np.int64), best.max_rps
    except SimulationError:  # no split serves the model within its limits
        ratio = FIXED
    if ratio == FIXED:  # as simulation.policies.parts.ratio begins
        ratio = float(today[0] / today[1]) if today.all() else 1.0
    total = int(np.clip(today.sum(), 2, USUAL_INSTANCES))
    pair = min(all_splits(total), key=lambda pair: abs(log(pair[0] / pair[1] / float(ratio))))
    sides = zip((columns.prefill, columns.decode), pair, strict=True)
    rate = min(_pool_capacity(study, m, g, n) for g, n in sides) / mean_isl
    return np.array(pair, np.int64), rate


def _pool_capacity(study: Study, m: int, g: int, instances: int) -> float:
    """Return the capacity of ``instances`` replicas in one pool, in input tokens/s.

    ``m`` and ``g`` are the indices of the model and the GPU column.
    """
    return curve_capacity(study.sizes.pool_tps[m, g], instances)


def _simulated_signals(
    study: Study, group: list[int], counts: IntArray, rate: float
) -> dict[str, FloatArray]:
    """Simulate a group of pools at ``rate`` requests/s, and return the mean of each signal.

    The result maps the name of a signal to its mean in each pool of the group. ``counts`` are the
    replicas of these pools. Throughputs (names with ``_tps``) are per replica.
    """
    index = study.hardware.pool_index
    m = index[group[0]][0]
    all_pools = study.fleet(np.zeros(len(index), np.int64))
    pools = tuple(
        replace(all_pools.pools[p], initial=int(n), minimum=0, maximum=max(int(n), 1), tiers=None)
        for p, n in zip(group, counts, strict=True)
    )
    fleet = Fleet(all_pools.tiers, all_pools.regions, pools, all_pools.latency_s, all_pools.routing)
    trace = _test_requests(study, m, fleet, REQUESTS * max(1, int(counts.sum()) // FEW), rate)
    end_s = float(trace.arrival_s[-1])
    # The first observation is at the start, before any load; the others are every fifth of a test.
    policy = ObservationLog(Static(counts, interval_s=end_s * WARM_UP))
    simulate(trace, fleet, policy, seed=study.settings.seed, duration_s=end_s * 1.0001)
    signals = [
        observation.signals for observation in policy.seen[1:] if observation.signals is not None
    ]
    kv = np.array([pool.profile.kv_capacity_tokens for pool in pools], np.float64)
    with np.errstate(invalid="ignore"):
        means = {name: np.mean([getattr(s, name) for s in signals], axis=0) for name in READ}
        for metric in GAUGES:
            each = [per_instance(metric, observation, kv) for observation in policy.seen[1:]]
            means[metric] = np.mean(each, axis=0) if each else np.full(len(counts), np.nan)
    return {
        name: value / counts if name.endswith("_tps") else value for name, value in means.items()
    }


def _test_requests(study: Study, m: int, fleet: Fleet, requests: int, rate: float) -> Trace:
    """Return a trace of so many ``requests`` of model ``m``, at ``rate`` requests/s on average.

    Lengths, burstiness and shared prefixes are those of the model. All requests come from the
    region of the fleet's pools, in the model's first tier.
    """
    traffic = study.traffic
    isl, osl = traffic.lengths[m]
    rng = generator(study.settings.seed, Stream.PRESSURE)
    drawn = rng.integers(0, len(isl), requests)
    isl, osl, blocks = isl[drawn], osl[drawn], None
    shared = traffic.shared[m] if traffic.shared else None
    if shared is not None and study.hardware.serving[m].prefix_caching:
        sample = shared.repeat(requests)
        isl, osl, blocks = sample.isl, sample.osl, sample.blocks
    burstiness: Burstiness = traffic.arrivals[m] if traffic.arrivals else 1.0
    regions = tuple(region.name for region in fleet.regions)
    return Trace(
        arrival_s=unit_arrivals(requests, burstiness, rng) / rate,
        input_tokens=isl.astype(np.int32),
        output_tokens=osl.astype(np.int32),
        model=np.zeros(requests, np.int16),
        region=np.full(requests, regions.index(fleet.pools[0].region), np.int16),
        tier=np.full(requests, fleet.tiers.index(study.hardware.limits_of(m)[0]), np.int16),
        models=(fleet.pools[0].model,),
        regions=regions,
        tiers=tuple(tier.name for tier in fleet.tiers),
        start_s=0.0,
        provenance="synthesised",
        blocks=blocks,
    )
