"""Figures of one simulation (methods.md X1, X2, X4), to compare policies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from itertools import pairwise

import numpy as np

from simulation.arrays import Array, BoolArray, FloatArray, IntArray, count_codes
from simulation.energy import PoolEnergy, hours_of, pool_energy
from simulation.fleet import HOUR_S, Pool, Tier
from simulation.percentiles import percentiles
from simulation.results import (
    COMPLETED,
    NOT_DUE,
    SOURCES,
    Replay,
    SimulationResult,
)
from simulation.trace import Trace

COUNTS = (  # fields that add up over groups of requests
    "arrived", "completed", "rejected", "unfinished", "not_due", "input_tokens", "output_tokens",
)  # fmt: skip
POOL_COUNTS = (  # fields of a PoolSummary that totals have too
    "iterations", "preemptions", "failures", "failed_starts", "reinstated", "switches", "diverted",
)  # fmt: skip
TOTAL_FIELDS = (*COUNTS, "ttft_ms", "tbt_ms", "e2e_ms")  # of a Summary and a GroupSummary
SPANS = ("ttft", "tbt", "e2e")  # latencies of a request
NOTHING = np.zeros(0)
HOUR_REQUESTS = 100  # fewest requests of a tier in an hour for a meaningful attainment


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Mean and percentiles in milliseconds over requests with a value; None if there are none."""

    mean: float | None
    p50: float | None
    p95: float | None
    p99: float | None


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """Figures of a group of requests, such as those of a tier, or of a model and home region."""

    arrived: int
    completed: int
    rejected: int
    unfinished: int
    # share of arrived and due requests within every limit; None if none is due
    attainment: float | None
    input_tokens: int  # of completed requests
    output_tokens: int
    ttft_ms: Percentiles
    tbt_ms: Percentiles
    e2e_ms: Percentiles
    not_due: int = 0  # neither done nor late when the simulation ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Hours of instances and GPUs, and their cost.

    The hours cover every starting, ready or draining instance in the window. Before the window they
    cover the starts of instances that are ready at its beginning and did not run earlier. After it
    they cover instances with work, each to the end of its last iteration. wasted + idle + busy is
    ``gpu_hours``.

    Donated hours are counted separately. If lending earns a share of the price, ``cost_usd``
    includes them at the full price, minus the earnings ``lent_usd``.
    """

    instance_hours: float
    gpu_hours: float
    wasted_gpu_hours: float  # starting instances
    idle_gpu_hours: float
    busy_gpu_hours: float
    donated_gpu_hours: float  # lent out as spot, not part of gpu_hours
    energy_kwh: float  # GPUs and hosts, including PUE
    host_energy_kwh: float  # the part of the servers without GPUs
    cost_usd: float
    carbon_kg: float
    before_gpu_hours: float  # part of wasted_gpu_hours, before the window
    after_gpu_hours: float  # part of gpu_hours after the window ...
    after_cost_usd: float  # ... and of cost and energy
    after_energy_kwh: float
    iterations: int
    preemptions: int
    outside_iterations: int  # outside the measured range of the profile
    failures: int  # instances lost to faults
    failed_starts: int
    reinstated: int  # draining instances that became ready again
    lent_usd: float = 0.0
    before_cost_usd: float = 0.0  # part of cost_usd: the starts before the window
    reserved_usd: float = 0.0  # part of cost_usd: reserved GPUs, used or not
    electricity_usd: float = 0.0  # part of cost_usd, if regions state a price of electricity
    embodied_kg: float = 0.0  # CO2e of making the hardware, by GPU-hour; not part of carbon_kg
    switches: int = 0  # instances that switched to the pool from another role
    diverted: int = 0  # prompts that decode instances took over from prefill

    @property
    def recurring_usd(self) -> float:
        """Return the cost that each further day would have too.

        It excludes starts before the window and work after it, which happen once.
        """
        return self.cost_usd - self.before_cost_usd - self.after_cost_usd


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSummary(Usage):
    """Hours, energy, cost and counts of one pool."""

    model: str
    region: str
    gpu: str
    gpus_per_instance: int
    busy_w_per_gpu: float  # at the GPU board while iterations run
    peak_instances: float  # largest mean of ready + starting + draining over an interval
    starts: dict[str, int]  # by source (results.SOURCES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary(Usage):
    """Figures of one policy on one trace; attainments are fractions from 0 to 1."""

    policy: str
    seed: int
    duration_s: float
    arrived: int
    completed: int
    rejected: int
    unfinished: int
    not_due: int
    reject_reasons: dict[str, int]
    input_tokens: int  # of completed requests
    output_tokens: int
    ttft_ms: Percentiles
    tbt_ms: Percentiles
    e2e_ms: Percentiles
    slo_attainment: dict[str, float | None]  # by tier
    worst_hour: dict[str, float | None]  # lowest hourly attainment by tier
    slo_met: dict[str, bool]  # by tier; True for a tier without requests
    starts: dict[str, int]  # by source (results.SOURCES)
    retried: int  # requests that restarted after the loss of an instance
    tokens_in_time: int  # input and output tokens of the requests within every limit
    wall_seconds: float
    tiers: dict[str, GroupSummary]
    models: dict[str, dict[str, GroupSummary]]  # by model, then home region
    pools: tuple[PoolSummary, ...]
    # by region: highest mean power of an interval, servers and PUE included
    peak_kw: dict[str, float] = field(default_factory=dict)
    missed_hours: dict[str, int] = field(default_factory=dict)  # by tier: hours below the target


@dataclass(frozen=True, slots=True)
class HourlyAttainment:
    """Attainment of tiers by hour.

    Only hours with at least HOUR_REQUESTS requests of the tier count. So a few requests at night do
    not decide for the day.
    """

    worst: dict[str, float | None]  # by tier: lowest attainment of an hour; None if no hour counts
    missed: dict[str, int]  # by tier: hours below the target


def meets_slo(result: SimulationResult) -> BoolArray:
    """Return the mask of requests that completed within every limit of their tier.

    A request with a single output token has no gaps and so meets any TBT limit.
    """
    log, trace = result.requests, result.trace
    in_time: BoolArray = np.equal(log.outcome, COMPLETED)
    tiers_by_name = {tier.name: tier for tier in result.fleet.tiers}
    for code, name in enumerate(trace.tiers):
        tier, in_tier = tiers_by_name[name], trace.tier == code
        limits = ((log.ttft_s, tier.ttft_s), (log.tbt_s, tier.tbt_s), (log.e2e_s, tier.e2e_s))
        for latency_s, limit_s in limits:
            if limit_s is not None:
                # A missing latency is NaN, which exceeds no limit.
                in_time &= ~(in_tier & (latency_s > limit_s))
    return in_time


def _count_by_hour(trace: Trace, is_counted: BoolArray) -> IntArray:
    """Return the number of requests in ``is_counted`` by hour and tier, ``[hours, tiers]``."""
    hour_count = int(trace.arrival_s[-1] // HOUR_S) + 1 if len(trace) else 1
    counts = np.zeros((hour_count, len(trace.tiers)), np.int64)
    # Arrivals are sorted, so the edges of hours replace a division per request.
    edges = np.searchsorted(trace.arrival_s, np.arange(hour_count + 1) * HOUR_S)
    for hour, (begin, end) in enumerate(pairwise(edges)):
        for tier in range(len(trace.tiers)):
            of_tier = trace.tier[begin:end] == tier
            counts[hour, tier] = np.count_nonzero(of_tier & is_counted[begin:end])
    return counts


def hourly_attainment(
    arrived: IntArray, met: IntArray, names: Sequence[str], tiers: Sequence[Tier]
) -> HourlyAttainment:
    """Return the attainment by hour from the requests of each hour.

    ``arrived [hours, tiers]`` are all requests, and ``met [hours, tiers]`` those within their
    limits. ``names`` are the names of these tiers, and ``tiers`` have the targets.
    """
    targets = {tier.name: tier.attainment for tier in tiers}
    # An hour with few requests is neither the worst nor missed.
    attainment = np.where(arrived >= HOUR_REQUESTS, met / np.maximum(arrived, 1), np.inf)
    worst: dict[str, float | None] = {}
    missed: dict[str, int] = {}
    for column, name in enumerate(names):
        lowest = float(attainment[:, column].min())
        worst[name] = lowest if lowest < np.inf else None
        missed[name] = int((attainment[:, column] < targets[name]).sum())
    return HourlyAttainment(worst, missed)


def summarise(result: SimulationResult, *, brief: bool = False) -> Summary:
    """Return all figures of one result.

    ``brief`` leaves out figures by model and all percentiles. They take most of the time, and a
    search needs none of them.
    """
    trace = result.trace
    within_limits = meets_slo(result)
    requests = _Requests.of(result, within_limits)
    tier_groups = requests.by_group(trace.tier, len(trace.tiers), () if brief else SPANS)
    total = requests.sum_of(tier_groups) if brief else requests.total
    tiers = dict(zip(trace.tiers, tier_groups, strict=True))
    models: dict[str, dict[str, GroupSummary]] = {}
    if not brief:
        # A group for each model and region, numbered by model, then by region.
        regions = len(trace.regions)
        group_of_request = trace.model.astype(np.int64) * regions + trace.region
        groups = requests.by_group(group_of_request, len(trace.models) * regions)
        for model, name in enumerate(trace.models):
            by_region = groups[model * regions : (model + 1) * regions]
            models[name] = dict(zip(trace.regions, by_region, strict=True))
    tokens_in_time = sum(
        int(tokens[within_limits].sum(dtype=np.int64))
        for tokens in (trace.input_tokens, trace.output_tokens)
    )
    due = np.not_equal(result.requests.outcome, NOT_DUE)
    due_by_hour = _count_by_hour(trace, due)
    met_by_hour = _count_by_hour(trace, due & within_limits)
    hours = hourly_attainment(due_by_hour, met_by_hour, trace.tiers, result.fleet.tiers)
    return summary_of(result, total, tiers, models, hours, result.cells * tokens_in_time)


def summary_of(
    result: Replay,
    total: GroupSummary,
    tiers: dict[str, GroupSummary],
    models: dict[str, dict[str, GroupSummary]],
    hours: HourlyAttainment,
    tokens_in_time: int,
) -> Summary:
    """Return the figures of a replay from the summaries of its requests.

    ``total`` is the summary of all requests. ``tiers`` and ``models`` are those by tier and by
    model, as in ``Summary``. ``tokens_in_time`` are the tokens of requests within every limit.
    """
    attainment = {name: group.attainment for name, group in tiers.items()}
    energies = [pool_energy(result, p) for p in range(len(result.fleet.pools))]
    pools = tuple(pool_summary(result, p, energy) for p, energy in enumerate(energies))
    target = {tier.name: tier.attainment for tier in result.fleet.tiers}
    slo_met = {name: share is None or share >= target[name] for name, share in attainment.items()}
    watts: dict[str, FloatArray] = {}  # by region, [intervals]
    for pool, energy in zip(result.fleet.pools, energies, strict=True):
        watts[pool.region] = watts.get(pool.region, 0.0) + energy.watts
    return Summary(
        policy=result.policy,
        seed=result.seed,
        duration_s=result.duration_s,
        reject_reasons=dict(result.reject_reasons),
        slo_attainment=attainment,
        worst_hour=hours.worst,
        missed_hours=hours.missed,
        slo_met=slo_met,
        starts=starts_by_source(result.totals.starts.sum(axis=0)),
        retried=int(result.totals.retried.sum()),
        tokens_in_time=tokens_in_time,
        wall_seconds=result.wall_seconds,
        tiers=tiers,
        models=models,
        pools=pools,
        peak_kw={name: float(power.max(initial=0.0)) / 1000 for name, power in watts.items()},
        **{name: getattr(total, name) for name in TOTAL_FIELDS},
        **{usage.name: sum(getattr(pool, usage.name) for pool in pools) for usage in fields(Usage)},
    )


@dataclass(frozen=True, eq=False)
class _Requests:
    """Columns of requests and their outcomes, ``[requests]`` each, in order of arrival.

    They are the requests of one of ``cells`` equal cells of the fleet, so counts are multiplied.
    """

    cells: int
    outcome: Array
    in_time: BoolArray  # within every limit
    input_tokens: Array
    output_tokens: Array
    ttft_s: FloatArray
    tbt_s: FloatArray
    e2e_s: FloatArray

    @classmethod
    def of(cls, result: SimulationResult, in_time: BoolArray) -> _Requests:
        """Return the requests of a result; ``in_time`` marks those within their limits."""
        log, trace = result.requests, result.trace
        tokens = trace.input_tokens, trace.output_tokens
        return cls(result.cells, log.outcome, in_time, *tokens, log.ttft_s, log.tbt_s, log.e2e_s)

    def by_group(
        self, group: Array, groups: int, spans: Sequence[str] = SPANS
    ) -> list[GroupSummary]:
        """Return a summary of each group; there are ``groups`` of them.

        ``group [requests]`` is the number of each request's group. ``spans`` names the latencies
        that get percentiles.
        """
        if groups == 1:
            return [self.summary(spans) if spans != SPANS else self.total]
        return [self.summary(spans, np.flatnonzero(group == i)) for i in range(groups)]

    @cached_property
    def total(self) -> GroupSummary:
        """Return the summary of all requests, which is also that of a single tier."""
        return self.summary()

    def summary(
        self, spans: Sequence[str] = SPANS, rows: IntArray | slice = slice(None)
    ) -> GroupSummary:
        """Return the summary of ``rows``, with percentiles of ``spans`` only.

        One of ``cells`` equal parts of the fleet was simulated, so counts are multiplied by it.
        """
        outcome = self.outcome[rows]
        arrived = self.cells * len(outcome)
        completed, rejected, unfinished, not_due = (self.cells * count_codes(outcome, 4)).tolist()
        due = arrived - not_due  # requests not yet due count as neither met nor missed
        is_completed = outcome == COMPLETED
        inputs = int(self.input_tokens[rows][is_completed].sum(dtype=np.int64))
        outputs = int(self.output_tokens[rows][is_completed].sum(dtype=np.int64))
        return GroupSummary(
            arrived=arrived,
            completed=completed,
            rejected=rejected,
            unfinished=unfinished,
            attainment=self.cells * int(self.in_time[rows].sum()) / due if due else None,
            input_tokens=self.cells * inputs,
            output_tokens=self.cells * outputs,
            ttft_ms=_percentiles(self.ttft_s[rows] if "ttft" in spans else NOTHING),
            tbt_ms=_percentiles(self.tbt_s[rows] if "tbt" in spans else NOTHING),
            e2e_ms=_percentiles(self.e2e_s[rows] if "e2e" in spans else NOTHING),
            not_due=not_due,
        )

    def sum_of(self, groups: Sequence[GroupSummary]) -> GroupSummary:
        """Return the summary of all requests as the sum of ``groups``, without percentiles."""
        counts = {name: sum(getattr(group, name) for group in groups) for name in COUNTS}
        due = counts["arrived"] - counts["not_due"]
        attained = self.cells * int(self.in_time.sum()) / due if due else None
        none = _percentiles(NOTHING)
        return GroupSummary(**counts, attainment=attained, ttft_ms=none, tbt_ms=none, e2e_ms=none)


def _percentiles(seconds: FloatArray) -> Percentiles:
    """Return mean and percentiles in milliseconds of the finite ``seconds``."""
    finite_ms = seconds[np.isfinite(seconds)] * 1000.0
    if not len(finite_ms):
        return Percentiles(None, None, None, None)
    return Percentiles(float(finite_ms.mean()), *percentiles(finite_ms, (50, 95, 99)))


def pool_summary(result: Replay, p: int, energy: PoolEnergy) -> PoolSummary:
    """Return hours, energy and cost of the pool with index ``p``, also outside the window."""
    pool, totals, after = result.fleet.pools[p], result.totals, result.after
    # Instance-seconds by status, with those before and after the window. After it, instances are
    # paid until their last work (``kept_s``), idle or not.
    worked_s, kept_s = float(after.prefill_s[p] + after.decode_s[p]), float(after.kept_s[p])
    before_s = float(totals.before_s[p])
    starting_s = float(totals.starting_s[p]) + before_s
    idle_s = float(totals.idle_s[p]) + kept_s - worked_s
    busy_s = float(totals.prefill_s[p] + totals.decode_s[p]) + worked_s
    gpu_hours = pool.gpu_hours(starting_s + idle_s + busy_s)
    before_gpu_hours, after_gpu_hours = pool.gpu_hours(before_s), pool.gpu_hours(kept_s)
    # With a lend share, hours lent out as spot cost the full price and earn that share of it.
    donated_hours = pool.gpu_hours(float(totals.donated_s[p]))
    donated_usd = 0.0 if pool.lend_share is None else donated_hours * pool.usd_per_gpu_hour
    earned_usd = donated_usd * (pool.lend_share or 0.0)
    instances = result.series.ready[p] + result.series.starting[p] + result.series.draining[p]
    fleet_usd = gpu_hours * pool.usd_per_gpu_hour + _above_mean_usd(result, pool, instances)
    return PoolSummary(
        model=pool.model,
        region=pool.region,
        gpu=pool.gpu.name,
        gpus_per_instance=pool.gpus_per_instance,
        instance_hours=(starting_s + idle_s + busy_s) / HOUR_S,
        gpu_hours=gpu_hours,
        wasted_gpu_hours=pool.gpu_hours(starting_s),
        idle_gpu_hours=pool.gpu_hours(idle_s),
        busy_gpu_hours=pool.gpu_hours(busy_s),
        donated_gpu_hours=donated_hours,
        energy_kwh=energy.kwh,
        host_energy_kwh=energy.all_host_kwh,
        busy_w_per_gpu=energy.busy_w,
        cost_usd=fleet_usd + donated_usd - earned_usd + energy.electricity_usd,
        electricity_usd=energy.electricity_usd,
        embodied_kg=gpu_hours * pool.embodied_g_per_gpu_hour / 1000,
        lent_usd=earned_usd,
        carbon_kg=energy.carbon_kg,
        before_gpu_hours=before_gpu_hours,
        before_cost_usd=before_gpu_hours * pool.usd_per_gpu_hour,
        after_gpu_hours=after_gpu_hours,
        after_cost_usd=after_gpu_hours * pool.usd_per_gpu_hour,
        after_energy_kwh=energy.after_kwh,
        peak_instances=float(instances.max()),
        outside_iterations=int(totals.outside[p]),
        starts=starts_by_source(totals.starts[p]),
        **{name: getattr(totals, name)[p].item() for name in POOL_COUNTS},
    )


def _above_mean_usd(result: Replay, pool: Pool, instances: FloatArray) -> float:
    """Return the dollars that the hours of the window cost above the mean price; below 0: less.

    ``instances [intervals]`` are those of the pool. Time outside the window costs the mean price.
    """
    interval_s = result.series.interval_s
    hour_of_day = hours_of(len(instances), result.start_s, interval_s)
    usd_s = float(instances @ pool.usd_above_mean[hour_of_day])
    return usd_s * pool.gpus_per_instance * interval_s / HOUR_S


def starts_by_source(counts: IntArray) -> dict[str, int]:
    """Return the numbers of starts, ``counts [sources]``, by the name of the source."""
    return {source: int(n) for source, n in zip(SOURCES, counts, strict=True)}
