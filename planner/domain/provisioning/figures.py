"""Report a provisioning run in figures and sentences, by phase and in total.

A level is the granularity of scaling: whole replicas ("model"), modules or operators. The last two
are "below the replica". A case is a phase (prefill or decode) of a model in a region on a GPU type.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from planner.domain.provisioning import sources
from planner.domain.provisioning.source_methods import Method
from planner.domain.provisioning.unit import MODEL, OPERATOR, WORDS, Case, groups
from planner.domain.serialise import MERGED, OPTIONAL, gpu_words
from simulation.arrays import IntArray
from simulation.provisioning.level import FALLBACK_METHODS, Level, Savings, saved_shares, savings
from simulation.provisioning.workload import Phase

LEVEL_NAMES = {"operator": "Operators", "module": "Modules", "model": "Whole replicas"}


@dataclass(frozen=True, slots=True)
class Needs:
    """What plans at one level (replicas, modules or operators) need: GPUs, power, memory, latency.

    Latency and limit are those of the phase nearest to its limit. ``mean_gpus`` meet the limit on
    average, before a replay. ``least_gpus`` is a proven lower bound. ``gap`` is the share of
    ``mean_gpus`` above it. Both are None without a bound.
    """

    gpus: int
    energy_w: float
    memory_gb: float
    latency_ms: float
    slo_ms: float
    seconds: float  # time of planning
    gap: float | None
    least_gpus: int | None
    mean_gpus: int
    gap_of: str = "devices"  # what ``gap`` is a share of, for readers of the result

    @property
    def amounts(self) -> tuple[float, float, float]:
        """Return (GPUs, watts, gigabytes), the figures by which levels are compared."""
        return self.gpus, self.energy_w, self.memory_gb


@dataclass(frozen=True, slots=True)
class Total:
    """The needs of all chosen pools together; ``tightest`` names the pool nearest to its limit."""

    needs: Needs = field(metadata={MERGED: True})
    tightest: str


@dataclass(frozen=True, slots=True)
class Replicas:
    """Number and configuration of whole replicas."""

    replicas: int
    batch: int
    parallel: int
    stages: int  # pipeline stages, on ``parallel`` GPUs each


@dataclass(frozen=True, slots=True)
class ReplayedFigures:
    """The result of a plan's replay: SLO attainment, and the latency that the limit is on."""

    attainment: float
    mean_ms: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    requests: int


@dataclass(frozen=True, slots=True)
class Trade:
    """An alternative plan of a level with fewer GPUs, but more power, memory or latency."""

    gpus: int
    energy_w: float
    memory_gb: float
    latency_ms: float


@dataclass(frozen=True, slots=True)
class LevelFigures:
    """The plan of one phase at one level, in figures."""

    needs: Needs = field(metadata={MERGED: True})
    request_j: float  # board energy per request (equation 9)
    method: str
    timing: sources.Timing
    whole: Replicas | None = field(metadata={MERGED: True})  # None below the replica
    bottleneck: str | None = field(metadata={OPTIONAL: True})  # the slowest operator or module
    trade: Trade | None = field(metadata={OPTIONAL: True})
    replayed: ReplayedFigures | None = field(metadata={OPTIONAL: True})


def with_start_time(case: Case, level: Level) -> Level:
    """Return ``level`` with the time before a prompt's first iteration in its latency and limit.

    Plans do not include that time, but results do.
    """
    start = case.service.start_s
    trade = None if level.trade_off is None else with_start_time(case, level.trade_off)
    return replace(
        level, latency_s=level.latency_s + start, slo_s=level.slo_s + start, trade_off=trade
    )


def _nearest_to_limit(levels: Sequence[Level]) -> int:
    """Return the index of the level whose latency is the largest share of its limit."""
    return max(range(len(levels)), key=lambda i: levels[i].latency_s / levels[i].slo_s)


def _total_needs(levels: Sequence[Level]) -> Needs:
    """Return what several plans (``levels``) need together.

    The latency is that of the plan nearest to its limit.
    """
    nearest = levels[_nearest_to_limit(levels)]
    gpus = sum(level.devices for level in levels)
    # A bound on the sum needs a bound on every level.
    bounds = [
        min(level.least_devices, level.mean_devices)
        for level in levels
        if level.least_devices is not None
    ]
    bound = sum(bounds) if len(bounds) == len(levels) else None
    mean_gpus = sum(level.mean_devices for level in levels)
    return Needs(
        gpus=gpus,
        energy_w=sum(level.power_w for level in levels),
        memory_gb=sum(level.memory_bytes for level in levels) / 1e9,
        latency_ms=nearest.latency_s * 1e3,
        slo_ms=nearest.slo_s * 1e3,
        seconds=sum(level.seconds for level in levels),
        gap=None if bound is None else (mean_gpus - bound) / mean_gpus,
        least_gpus=bound,
        mean_gpus=mean_gpus,
    )


def total(cases: list[Case], name: str) -> Total:
    """Return the needs of all cases planned at level ``name``, and the case nearest to its limit.

    A case without a plan at that level counts as whole replicas (MODEL).
    """
    levels = [with_start_time(case, case.levels.get(name) or case.levels[MODEL]) for case in cases]
    nearest = cases[_nearest_to_limit(levels)]
    return Total(_total_needs(levels), f"{nearest.phase} of {nearest.model} in {nearest.region}")


def total_savings(totals: Mapping[str, Total]) -> dict[str, Savings]:
    """Return the savings of each level below the replica over whole replicas, as shares."""
    whole = totals[MODEL].needs.amounts
    return {
        name: saved_shares(whole, total.needs.amounts)
        for name, total in totals.items()
        if name != MODEL
    }


def level_figures(case: Case, level: Level) -> LevelFigures:
    """Return the figures of ``level``, the plan of a case at one level."""
    replicas, bottleneck, trade = level.replicas, None, with_start_time(case, level).trade_off
    if replicas is None and level.plan is not None:
        slowest = int(level.plan.sojourn_s.argmax())
        bottleneck = level.as_planned(case.problem).problem.names[slowest]
    return LevelFigures(
        needs=_total_needs([with_start_time(case, level)]),
        request_j=level.power_w / case.service.requests_s,
        method=level.method,
        timing=sources.timing_shares(case.problem, level),
        whole=None
        if replicas is None
        else Replicas(replicas.replicas, replicas.batch, replicas.parallel, replicas.stages),
        bottleneck=bottleneck,
        trade=None
        if trade is None
        else Trade(trade.devices, trade.power_w, trade.memory_bytes / 1e9, trade.latency_s * 1e3),
        replayed=_replayed_figures(level),
    )


def _replayed_figures(level: Level) -> ReplayedFigures | None:
    """Return a level's replayed latencies in milliseconds; None without a replay."""
    replayed = level.replayed
    if replayed is None:
        return None
    return ReplayedFigures(
        replayed.attainment, replayed.mean_s * 1e3, replayed.p50_s * 1e3,
        replayed.p95_s * 1e3, replayed.p99_s * 1e3,
        replayed.requests,
    )  # fmt: skip


def _savings(case: Case) -> dict[str, Savings]:
    """Return the savings of each level below the replica over whole replicas, for one case."""
    whole = case.levels.get(MODEL)
    if whole is None:
        return {}
    return {name: savings(whole, level) for name, level in case.levels.items() if name != MODEL}


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolFigures:
    """A case in figures: a phase of a model in a region on a GPU type, with its plans by level."""

    model: str
    region: str
    gpu: str
    phase: Phase
    weights: str  # precision
    chosen: bool  # counts in the totals
    requests_s: float  # requests/s of the busiest hour
    isl: float  # input tokens, for prefill without cached ones
    cached_tokens: float  # cached tokens of a prompt
    osl: float
    isl_cv: float  # standard deviation over mean, of the replayed requests
    osl_cv: float
    slo_ms: float
    slo_source: str  # where the limit comes from, such as a tier
    attainment: float  # share of requests that must meet the limit
    start_ms: float  # time before a prompt's first iteration, part of latency and limit
    order: str  # order of waiting prompts: fcfs or shortest
    images: float  # images per request, for an encoder
    image_tokens: float  # encoder tokens per image
    capacity: int  # GPUs of the type in the region
    times: float  # duration of operators relative to their kernels
    levels: dict[str, LevelFigures]
    savings: dict[str, Savings]  # against whole replicas
    methods: tuple[Method, ...]  # operators planned by the methods of the source

    @classmethod
    def of(cls, case: Case) -> PoolFigures:
        """Return the figures of a case."""
        load = case.service
        return cls(
            model=case.model,
            region=case.region,
            gpu=case.gpu,
            phase=case.phase,
            weights=case.weights,
            chosen=case.chosen,
            requests_s=load.requests_s,
            isl=load.isl,
            cached_tokens=load.cached,
            osl=load.osl,
            isl_cv=_variation(case.judge.isl if case.judge else None),
            osl_cv=_variation(case.judge.osl if case.judge else None),
            slo_ms=1e3 * load.slo_s,
            slo_source=case.limit.source,
            attainment=case.limit.attainment,
            start_ms=1e3 * load.start_s,
            order=load.order,
            # Both are 0 for a model without an encoder.
            images=load.image_tokens and load.images,
            image_tokens=load.image_tokens and load.image_tokens / load.images,
            capacity=case.capacity,
            times=case.measured.times,
            levels={name: level_figures(case, level) for name, level in case.levels.items()},
            savings=_savings(case),
            methods=case.methods,
        )


def _variation(tokens: IntArray | None) -> float:
    """Return the coefficient of variation of token counts; 0 without requests."""
    return 0.0 if tokens is None else float(tokens.std() / max(tokens.mean(), 1.0))


def headline(cases: list[Case], totals: Mapping[str, Total], saved: Mapping[str, Savings]) -> str:
    """Return which models are left out, then the fewest GPUs, with their savings (``saved``)."""
    return " ".join((*_left_out_sentences(cases), _needs_sentence(totals, saved)))


def _left_out_sentences(cases: list[Case]) -> Iterator[str]:
    """Yield a sentence for each model without a plan in some regions, with the limits it misses."""
    pools = groups(cases, lambda case: (case.model, case.region))
    left_out = [case for pool in pools if not any(case.chosen for case in pool) for case in pool]
    for same_model in groups(left_out, lambda case: case.model):
        regions = " and ".join(dict.fromkeys(case.region for case in same_model))
        missed = [case for case in same_model if not case.levels]
        limits = dict.fromkeys(
            f"{case.phase} {case.service.slo_s * 1e3:,.0f} ms" for case in missed
        )
        yield (
            f"{same_model[0].model} is left out in {regions}: no GPU type keeps its limits "
            f"({', '.join(limits)})."
        )


def _needs_sentence(totals: Mapping[str, Total], saved: Mapping[str, Savings]) -> str:
    """Return the GPUs of the level that needs the fewest, with its savings (``saved``)."""
    gpus = totals[MODEL].needs.gpus
    if not saved:
        return f"Whole replicas need {gpu_words(gpus)}"
    if not saves_gpus(saved):
        return f"No savings from operator-level provisioning. Whole replicas need {gpu_words(gpus)}"
    # By GPUs, then by energy.
    best = min(saved, key=lambda name: totals[name].needs.amounts[:2])
    return (
        f"{LEVEL_NAMES[best]}: {gpu_words(totals[best].needs.gpus)} instead of {gpus}, "
        f"{saved[best].gpus or 0.0:.0%} fewer"
    )


def saves_gpus(saved: Mapping[str, Savings]) -> bool:
    """Return whether a level below the replica (modules, operators) needs fewer GPUs than it."""
    return any((share.gpus or 0.0) > 0 for share in saved.values())


def no_savings_notes(saved: Mapping[str, Savings]) -> list[str]:
    """Return a sentence for each level without savings, if at least one level has some."""
    return [
        f"{WORDS[name].capitalize()} nothing is saved in GPUs here."
        for name, share in saved.items()
        if saves_gpus(saved) and (share.gpus or 0.0) <= 0
    ]


def fallback_notes(cases: list[Case]) -> list[str]:
    """Return a sentence, with a count, for each reason why a plan is that of a coarser level.

    A plan below the replica may be replaced so, if the coarser plan is better.
    """
    reasons = [
        level.method.partition(":")[0]
        for case in cases
        for name, level in case.levels.items()
        if name != MODEL
    ]
    return [
        f"{reason[0].upper()}{reason[1:]} in {reasons.count(reason)} of {len(reasons)} "
        "operator-level comparisons."
        for reason in FALLBACK_METHODS.values()
        if reason in reasons
    ]


def trade_notes(cases: list[Case]) -> list[str]:
    """Return a sentence for each level with an alternative plan that needs fewer GPUs."""
    notes = []
    for case in cases:
        for name, level in case.levels.items():
            other = with_start_time(case, level).trade_off
            if other is not None:
                notes.append(
                    f"{case.phase.capitalize()} of {case.where} fits on {gpu_words(other.devices)} "
                    f"{WORDS[name]} instead of {level.devices}, but needs more power, "
                    f"memory or time: {other.power_w:,.0f} W instead of {level.power_w:,.0f}, "
                    f"{other.memory_bytes / 1e9:,.0f} GB instead of {level.memory_bytes / 1e9:,.0f}"
                    f", {other.latency_s * 1e3:,.0f} ms instead of {level.latency_s * 1e3:,.0f}."
                )
    return notes


def sm_share_notes(cases: Sequence[Case]) -> Iterator[str]:
    """Yield sentences on whether fixed shares of a GPU's multiprocessors helped in a replay."""
    planned = [case for case in cases if OPERATOR in case.levels]
    replayed = [case for case in planned if case.levels[OPERATOR].replayed]
    better = [case for case in replayed if case.levels[OPERATOR].max_sm_slowdown is not None]
    if replayed and not better:
        yield (
            "Shares of a GPU's multiprocessors for each operator (equation 6) were tried too. "
            "Two sizes were simulated: operators at full speed, and up to 1.5 times slower. "
            "Neither is better here."
        )
    for case in better:
        yield (
            f"{case.phase.capitalize()} of {case.where}: operators are confined to shares of the "
            "multiprocessors (equation 6, MPS). In a replay this is better than sharing all of "
            "them."
        )


def order_notes(cases: Iterable[Case]) -> Iterator[str]:
    """Yield a sentence for each case that serves short prompts first.

    It states the savings in GPUs, and the p99 latency of prompts, which long ones raise.
    """
    for case in cases:
        replayed = case.smallest.replayed if case.levels else None
        if case.service.order == "fcfs" or replayed is None:
            continue
        needs = gpu_words(case.smallest.devices)
        if case.smallest.fcfs_devices is not None:
            needs += f" instead of {case.smallest.fcfs_devices} in order of arrival"
        yield (
            f"Prefill of {case.where} takes short prompts first, if the engine has a priority for "
            f"them: {needs}. Long ones wait for them: p99 is {replayed.p99_s * 1e3:,.0f} ms, of a "
            f"limit of {case.service.slo_s * 1e3:,.0f}. Plans and comparisons have no scheduler by "
            "length. Only this replay tests it."
        )


def short_notes(cases: Iterable[Case]) -> Iterator[str]:
    """Yield a sentence for each case in which whole replicas miss the target attainment."""
    for case in cases:
        replayed = case.levels[MODEL].replayed if MODEL in case.levels else None
        if replayed is not None and replayed.attainment < case.limit.attainment:
            yield (
                f"{case.phase.capitalize()} of {case.where} keeps {case.service.slo_s * 1e3:,.0f} "
                f"ms for {replayed.attainment:.1%} of requests at most, not for "
                f"{case.limit.attainment:.0%}: the longest prompts exceed the limit even on idle "
                "GPUs."
            )


def missed_limits(cases: Iterable[Case]) -> list[str]:
    """Return a sentence for each plan below the replica whose replay misses the attainment.

    Only plans by Algorithm 1 of the source can: other methods use whole replicas instead.
    """
    return [
        f"The plan {WORDS[name]} for {case.phase} of {case.where} meets the limit for "
        f"{level.replayed.attainment:.1%} of requests, not for {case.limit.attainment:.0%}."
        for case in cases
        for name, level in case.levels.items()
        if name != MODEL
        and not level.is_fallback
        and level.replayed is not None
        and level.replayed.attainment < case.limit.attainment
    ]


def capacity_warnings(cases: list[Case]) -> list[str]:
    """Return a sentence for each region and GPU type with fewer GPUs than some level needs."""
    sentences = []
    for group in groups(cases, lambda case: (case.region, case.gpu)):
        first = group[0]
        too_large = []
        for name in dict.fromkeys(name for case in group for name in case.levels):
            levels = [case.levels.get(name) or case.levels[MODEL] for case in group]
            gpus = sum(level.devices for level in levels)
            if gpus > first.capacity:
                too_large.append(f"{WORDS[name]} {gpus}")
        if too_large:
            sentences.append(
                f"{first.region} has {first.capacity} {first.gpu}; this load needs "
                f"{', '.join(too_large)}. Give the region more, or plan another GPU type."
            )
    return sentences


def refusal_notes(cases: list[Case]) -> list[str]:
    """Return a sentence for each phase that misses its limit at any number of replicas."""
    return [
        f"{case.phase.capitalize()} of {case.model} in {case.region} does not keep "
        f"{case.service.slo_s * 1e3:,.0f} ms on {case.gpu} by whole replicas: {_why_not(case)}."
        for case in cases
        if MODEL not in case.levels  # no number of whole replicas meets the limit
    ]


def _why_not(case: Case) -> str:
    """Return a clause on why whole replicas cannot meet the limit of a case."""
    service = case.service
    if service.start_s >= service.slo_s:
        return f"{service.start_s * 1e3:,.0f} ms go by before its first iteration"
    fastest_s = service.start_s + float(case.problem.replica_s.min())
    if fastest_s > service.slo_s:
        return f"one pass of {service.isl:,.0f} tokens takes {fastest_s * 1e3:,.0f} ms at best"
    return "no number of replicas is enough within memory and limit"
