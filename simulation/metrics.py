"""The figures of one simulation (methods.md X1, X2, X4): what users compare policies by."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from simulation.arrays import Array, BoolArray, FloatArray, IntArray
from simulation.energy import pool_energy
from simulation.fleet import Tier
from simulation.percentiles import percentiles
from simulation.results import (
    COMPLETED,
    NOT_DUE,
    REJECTED,
    SOURCES,
    UNFINISHED,
    Replay,
    RequestLog,
    SimulationResult,
)
from simulation.trace import Trace

HOUR_S = 3600.0
COUNTS = (  # what adds up over groups of requests
    "arrived", "completed", "rejected", "unfinished", "not_due", "input_tokens", "output_tokens",
)  # fmt: skip
WHOLE = (*COUNTS, "ttft_ms", "tbt_ms", "e2e_ms")  # of all together, as of each group of them
SPANS = ("ttft", "tbt", "e2e")  # that a request has, and of them ...
BRIEF = ("ttft", "e2e")  # ... those that a search goes by
NOTHING = np.zeros(0)
HOUR_REQUESTS = 100  # of a tier, for its attainment in an hour to mean something


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Milliseconds over the requests that have a value; None when none has."""

    mean: float | None
    p50: float | None
    p95: float | None
    p99: float | None


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """Requests of one tier, or of one model entering in one region."""

    arrived: int
    completed: int
    rejected: int
    unfinished: int
    attainment: float | None  # X4: of those that arrived and are due; None when none is
    input_tokens: int  # of completed requests
    output_tokens: int
    ttft_ms: Percentiles
    tbt_ms: Percentiles
    e2e_ms: Percentiles
    not_due: int = 0  # neither done nor late when the simulation ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Hours and what they cost: every instance that is starting, ready or draining in the window,
    before it the starts of what is ready as it begins and did not run already, and after it
    those that still have work, each to its last. wasted + idle + busy =
    ``gpu_hours``. Donated hours are counted beside them; where lending earns a share of the price,
    ``cost_usd`` has them at that price, less ``lent_usd``, what they earn."""

    instance_hours: float
    gpu_hours: float
    wasted_gpu_hours: float  # starting
    idle_gpu_hours: float
    busy_gpu_hours: float
    donated_gpu_hours: float  # lent out as spot, not among gpu_hours
    energy_kwh: float  # GPUs and hosts, with PUE
    host_energy_kwh: float  # of it, the servers around the GPUs
    cost_usd: float
    carbon_kg: float
    before_gpu_hours: float  # of wasted_gpu_hours, before the window
    after_gpu_hours: float  # of gpu_hours, after the window ...
    after_cost_usd: float  # ... and of the others
    after_energy_kwh: float
    iterations: int
    preemptions: int
    outside_iterations: int  # outside what the profile was measured on
    failures: int  # instances lost to faults
    failed_starts: int
    reinstated: int  # instances taken out that came back before they were gone
    lent_usd: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSummary(Usage):
    """Of one pool."""

    model: str
    region: str
    gpu: str
    gpus_per_instance: int
    busy_w_per_gpu: float  # while iterations run, at the board
    peak_instances: float  # largest mean of ready + starting + draining over an interval
    starts: dict[str, int]  # by where the instance came from (results.SOURCES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary(Usage):
    """One policy on one trace. Shares are fractions."""

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
    worst_hour: dict[str, float | None]  # by tier, attainment in its worst hour
    slo_met: dict[str, bool]  # by tier; a tier without requests is met
    starts: dict[str, int]  # by where the instance came from
    retried: int  # requests that began again as an instance was lost
    tokens_in_time: int  # prompts and answers of the requests within every limit
    wall_seconds: float
    tiers: dict[str, GroupSummary]
    models: dict[str, dict[str, GroupSummary]]  # by model, then home region
    pools: tuple[PoolSummary, ...]


def meets_slo(result: SimulationResult) -> BoolArray:
    """Per request, whether it completed within every limit of its tier (X4). A one-token answer
    has no gaps and so meets any TBT limit."""
    return in_time(result.requests, result.trace, result.fleet.tiers)


def in_time(log: RequestLog, trace: Trace, tiers: Sequence[Tier]) -> BoolArray:
    """The same of the requests of ``trace`` with what came of them."""
    ok: BoolArray = np.equal(log.outcome, COMPLETED)
    known = {tier.name: tier for tier in tiers}
    for code, name in enumerate(trace.tiers):
        ok &= ~(trace.tier == code) | within_limits(log, known[name])
    return ok


def attainment(result: SimulationResult) -> dict[str, float | None]:
    """By tier, the share of arrived requests that met every limit (X4), those aside that are not
    due yet; None where there is none."""
    ok, due = meets_slo(result), np.not_equal(result.requests.outcome, NOT_DUE)
    return {
        name: float(ok[rows].mean()) if (rows := due & (result.trace.tier == code)).any() else None
        for code, name in enumerate(result.trace.tiers)
    }


def worst_hour(result: SimulationResult) -> dict[str, float | None]:
    """By tier, the least attainment over the hours of the window, by hour of arrival.

    An hour counts with at least HOUR_REQUESTS requests of the tier, so that a handful at night does
    not speak for the day; None where no hour has so many.
    """
    return _worst_hour(result, meets_slo(result))


def _worst_hour(result: SimulationResult, ok: BoolArray) -> dict[str, float | None]:
    trace, tiers = result.trace, len(result.trace.tiers)
    due = np.not_equal(result.requests.outcome, NOT_DUE)
    hours = int(trace.arrival_s[-1] // HOUR_S) + 1 if len(trace) else 1
    edges = np.searchsorted(trace.arrival_s, np.arange(hours + 1) * HOUR_S)
    place = np.repeat(np.arange(hours) * tiers, np.diff(edges)) + trace.tier
    arrived, met = (
        np.bincount(place, rows, hours * tiers).reshape(hours, tiers).astype(np.int64)
        for rows in (due, due & ok)
    )
    return least_hour(arrived, met, trace.tiers)


def least_hour(arrived: IntArray, met: IntArray, tiers: Sequence[str]) -> dict[str, float | None]:
    """By tier the least share of ``met`` over hours, of ``[hours, tiers]`` requests due."""
    share = np.where(arrived >= HOUR_REQUESTS, met / np.maximum(arrived, 1), np.inf)
    least = share.min(axis=0).tolist()
    return {
        name: lowest if lowest < np.inf else None for name, lowest in zip(tiers, least, strict=True)
    }


def reached(tiers: Sequence[Tier], shares: dict[str, float | None]) -> dict[str, bool]:
    """By tier, whether its share reaches its target."""
    target = {tier.name: tier.attainment for tier in tiers}
    return {name: share is None or share >= target[name] for name, share in shares.items()}


def within_limits(log: RequestLog, tier: Tier) -> BoolArray:
    """Per request, whether no limit of ``tier`` was exceeded; requests not served exceed none."""
    ok = np.ones(len(log.outcome), bool)
    limits = ((log.ttft_s, tier.ttft_s), (log.tbt_s, tier.tbt_s), (log.e2e_s, tier.e2e_s))
    for value, limit in limits:
        if limit is not None:
            ok &= ~(value > limit)
    return ok


def summarise(result: SimulationResult, *, brief: bool = False) -> Summary:
    """All figures of X1 and X2 for one result; ``brief``, what a search goes by, which is most of
    its time with so many requests: nothing by model, and no percentiles but TTFT and E2E of tiers
    that wait for nobody, of all requests where there is none."""
    trace = result.trace
    ok = meets_slo(result)
    requests = _Requests.of(result, ok)
    known, every = {tier.name: tier for tier in result.fleet.tiers}, len(trace.tiers)
    prompt = [not known[name].deferrable for name in trace.tiers]
    spans = [SPANS if not brief else BRIEF if its else () for its in prompt]
    of_tiers = requests.by(trace.tier, every, spans)
    of_all = requests.together(of_tiers) if brief and any(prompt) else requests.summary()
    tiers = dict(zip(trace.tiers, of_tiers, strict=True))
    models = {} if brief else _by_model(requests, trace)
    in_time = sum(
        int(tokens[ok].sum(dtype=np.int64)) for tokens in (trace.input_tokens, trace.output_tokens)
    )
    return summary_of(
        result, of_all, tiers, models, _worst_hour(result, ok), result.cells * in_time
    )


def _by_model(requests: _Requests, trace: Trace) -> dict[str, dict[str, GroupSummary]]:
    regions = len(trace.regions)
    places = requests.by(
        trace.model.astype(np.int64) * regions + trace.region, len(trace.models) * regions
    )
    return {
        model: dict(zip(trace.regions, places[m * regions : (m + 1) * regions], strict=True))
        for m, model in enumerate(trace.models)
    }


def summary_of(
    result: Replay,
    of_all: GroupSummary,
    tiers: dict[str, GroupSummary],
    models: dict[str, dict[str, GroupSummary]],
    worst_hour: dict[str, float | None],
    tokens_in_time: int,
) -> Summary:
    """The figures of a replay, of whose requests those are known that are given."""
    shares = {name: group.attainment for name, group in tiers.items()}
    pools = tuple(pool_summary(result, p) for p in range(len(result.fleet.pools)))
    return Summary(
        policy=result.policy,
        seed=result.seed,
        duration_s=result.duration_s,
        reject_reasons=dict(result.reject_reasons),
        slo_attainment=shares,
        worst_hour=worst_hour,
        slo_met=reached(result.fleet.tiers, shares),
        starts=starts_by_source(result.totals.starts.sum(axis=0)),
        retried=int(result.totals.retried.sum()),
        tokens_in_time=tokens_in_time,
        wall_seconds=result.wall_seconds,
        tiers=tiers,
        models=models,
        pools=pools,
        **{name: getattr(of_all, name) for name in WHOLE},
        **{field.name: sum(getattr(pool, field.name) for pool in pools) for field in fields(Usage)},
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Requests:
    """Requests with what is told of them, in the order of arrival, of one of ``cells`` that are
    alike; every array ``[requests]``."""

    cells: int
    outcome: Array
    ok: BoolArray
    input_tokens: Array
    output_tokens: Array
    ttft_s: FloatArray
    tbt_s: FloatArray
    e2e_s: FloatArray

    @classmethod
    def of(cls, result: SimulationResult, ok: BoolArray) -> _Requests:
        log, trace = result.requests, result.trace
        tokens = trace.input_tokens, trace.output_tokens
        return cls(result.cells, log.outcome, ok, *tokens, log.ttft_s, log.tbt_s, log.e2e_s)

    def by(
        self, group: Array, groups: int, spans: Sequence[Sequence[str]] = ()
    ) -> list[GroupSummary]:
        """Of each of ``groups``, by the number of the ``group`` ``[requests]`` that it is of, with
        percentiles of its ``spans``, of all where none are given."""
        spans = spans or [SPANS] * groups
        if groups == 1:
            return [self.summary(spans[0])]
        return [self.summary(spans[i], np.flatnonzero(group == i)) for i in range(groups)]

    def summary(
        self, spans: Sequence[str] = SPANS, rows: IntArray | slice = slice(None)
    ) -> GroupSummary:
        outcome = self.outcome[rows]
        counts = self.cells * np.bincount(outcome, minlength=4)
        done = outcome == COMPLETED
        due = int(counts.sum() - counts[NOT_DUE])  # and what is not is not in time either
        return GroupSummary(
            arrived=int(counts.sum()),
            completed=int(counts[COMPLETED]),
            rejected=int(counts[REJECTED]),
            unfinished=int(counts[UNFINISHED]),
            attainment=self.cells * int(self.ok[rows].sum()) / due if due else None,
            input_tokens=self.cells * int(self.input_tokens[rows][done].sum(dtype=np.int64)),
            output_tokens=self.cells * int(self.output_tokens[rows][done].sum(dtype=np.int64)),
            ttft_ms=_percentiles(self.ttft_s[rows] if "ttft" in spans else NOTHING),
            tbt_ms=_percentiles(self.tbt_s[rows] if "tbt" in spans else NOTHING),
            e2e_ms=_percentiles(self.e2e_s[rows] if "e2e" in spans else NOTHING),
            not_due=int(counts[NOT_DUE]),
        )

    def together(self, groups: Sequence[GroupSummary]) -> GroupSummary:
        """Of all requests, each in one of ``groups``, without percentiles."""
        counts = {name: sum(getattr(group, name) for group in groups) for name in COUNTS}
        due = counts["arrived"] - counts["not_due"]
        attained = self.cells * int(self.ok.sum()) / due if due else None
        none = _percentiles(NOTHING)
        return GroupSummary(**counts, attainment=attained, ttft_ms=none, tbt_ms=none, e2e_ms=none)


def _percentiles(seconds: FloatArray) -> Percentiles:
    known = seconds[np.isfinite(seconds)] * 1000.0
    if not len(known):
        return Percentiles(None, None, None, None)
    return Percentiles(float(known.mean()), *percentiles(known, (50, 95, 99)))


def pool_summary(result: Replay, p: int) -> PoolSummary:
    """Hours, energy and cost of pool ``p``."""
    pool, totals, series = result.fleet.pools[p], result.totals, result.series
    after = result.after
    gpus = pool.gpus_per_instance
    worked_s, kept_s = float(after.prefill_s[p] + after.decode_s[p]), float(after.kept_s[p])
    before_s = float(totals.before_s[p])
    starting_s = float(totals.starting_s[p]) + before_s
    idle_s = float(totals.idle_s[p]) + kept_s - worked_s
    busy_s = float(totals.prefill_s[p] + totals.decode_s[p]) + worked_s
    hours = (starting_s + idle_s + busy_s) / HOUR_S
    energy = pool_energy(result, p)
    donated = float(totals.donated_s[p]) / HOUR_S * gpus
    donated_usd = 0.0 if pool.lend_share is None else donated * pool.usd_per_gpu_hour
    earned = donated_usd * (pool.lend_share or 0.0)
    instances = series.ready[p] + series.starting[p] + series.draining[p]
    return PoolSummary(
        model=pool.model,
        region=pool.region,
        gpu=pool.gpu.name,
        gpus_per_instance=gpus,
        instance_hours=hours,
        gpu_hours=hours * gpus,
        wasted_gpu_hours=starting_s / HOUR_S * gpus,
        idle_gpu_hours=idle_s / HOUR_S * gpus,
        busy_gpu_hours=busy_s / HOUR_S * gpus,
        donated_gpu_hours=donated,
        energy_kwh=energy.kwh,
        host_energy_kwh=energy.all_host_kwh,
        busy_w_per_gpu=energy.busy_w,
        cost_usd=hours * gpus * pool.usd_per_gpu_hour + donated_usd - earned,
        lent_usd=earned,
        carbon_kg=energy.carbon_kg,
        before_gpu_hours=before_s / HOUR_S * gpus,
        after_gpu_hours=kept_s / HOUR_S * gpus,
        after_cost_usd=kept_s / HOUR_S * gpus * pool.usd_per_gpu_hour,
        after_energy_kwh=energy.after_kwh,
        peak_instances=float(instances.max()),
        iterations=int(totals.iterations[p]),
        preemptions=int(totals.preemptions[p]),
        outside_iterations=int(totals.outside[p]),
        starts=starts_by_source(totals.starts[p]),
        failures=int(totals.failures[p]),
        failed_starts=int(totals.failed_starts[p]),
        reinstated=int(totals.reinstated[p]),
    )


def starts_by_source(counts: IntArray) -> dict[str, int]:
    """Of ``counts [sources]``."""
    return {source: int(n) for source, n in zip(SOURCES, counts, strict=True)}
