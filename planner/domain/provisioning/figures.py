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


def _share_of_limit(level: Level) -> float:
    """Return the latency of a plan as a share of its limit."""
    return level.latency_s / level.slo_s


def _total_needs(levels: Sequence[Level]) -> Needs:
    """Return what several plans (``levels``) need together.

    The latency is that of the plan nearest to its limit.
    """
    nearest = max(levels, key=_share_of_limit)
    least_gpus = [
        min(level.least_devices, level.mean_devices)
        for level in levels
        if level.least_devices is not None
    ]
    # A bound on the sum needs a bound on every plan.
    bound = sum(least_gpus) if len(least_gpus) == len(levels) else None
    mean_gpus = sum(level.mean_devices for level in levels)
    return Needs(
        gpus=sum(level.devices for level in levels),
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
    shares = [_share_of_limit(level) for level in levels]
    nearest = cases[shares.index(max(shares))]
    return Total(_total_needs(levels), f"{nearest.phase} of {nearest.model} in {nearest.region}")


def total_savings(totals: Mapping[str, Total]) -> dict[str, Savings]:
    """Return the savings of each level below the replica over whole replicas, as shares."""
    amounts = {
        name: (total.needs.gpus, total.needs.energy_w, total.needs.memory_gb)
        for name, total in totals.items()
    }
    whole = amounts.pop(MODEL)
    return {name: saved_shares(whole, finer) for name, finer in amounts.items()}


def level_figures(case: Case, level: Level) -> LevelFigures:
    """Return the figures of ``level``, the plan of a case at one level."""
    level_with_start = with_start_time(case, level)
    replicas, trade, replayed = level.replicas, level_with_start.trade_off, level.replayed
    whole_replicas = bottleneck = trade_figures = replayed_figures = None
    if replicas is not None:
        whole_replicas = Replicas(
            replicas.replicas, replicas.batch, replicas.parallel, replicas.stages
        )
    elif level.plan is not None:
        slowest = int(level.plan.sojourn_s.argmax())
        bottleneck = level.as_planned(case.problem).problem.names[slowest]
    if trade is not None:
        trade_figures = Trade(
            trade.devices, trade.power_w, trade.memory_bytes / 1e9, trade.latency_s * 1e3
        )
    if replayed is not None:
        replayed_figures = ReplayedFigures(
            attainment=replayed.attainment,
            mean_ms=replayed.mean_s * 1e3,
            p50_ms=replayed.p50_s * 1e3,
            p95_ms=replayed.p95_s * 1e3,
            p99_ms=replayed.p99_s * 1e3,
            requests=replayed.requests,
        )
    measured, extrapolated = sources.measured_shares(case.problem, level).tolist()
    return LevelFigures(
        needs=_total_needs([level_with_start]),
        request_j=level.power_w / case.service.requests_s,
        method=level.method,
        timing=sources.Timing(measured, extrapolated, max(0.0, 1.0 - measured - extrapolated)),
        whole=whole_replicas,
        bottleneck=bottleneck,
        trade=trade_figures,
        replayed=replayed_figures,
    )


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
        load, judge, whole = case.service, case.judge, case.levels.get(MODEL)
        saved = {}
        if whole is not None:
            finer = {name: level for name, level in case.levels.items() if name != MODEL}
            saved = {name: savings(whole, level) for name, level in finer.items()}
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
            isl_cv=_variation(judge.isl) if judge else 0.0,
            osl_cv=_variation(judge.osl) if judge else 0.0,
            slo_ms=1e3 * load.slo_s,
            slo_source=case.limit.source,
            attainment=case.limit.attainment,
            start_ms=1e3 * load.start_s,
            order=load.order,
            # Both are 0 for a model without an encoder, whose ``image_tokens`` per request are 0.
            images=load.image_tokens and load.images,
            image_tokens=load.image_tokens and load.image_tokens / load.images,
            capacity=case.capacity,
            times=case.measured.times,
            levels={name: level_figures(case, level) for name, level in case.levels.items()},
            savings=saved,
            methods=case.methods,
        )


def _variation(tokens: IntArray) -> float:
    """Return the coefficient of variation of token counts."""
    return float(tokens.std() / max(tokens.mean(), 1.0))


def headline(cases: list[Case], totals: Mapping[str, Total], saved: Mapping[str, Savings]) -> str:
    """Return which models are left out, then the fewest GPUs, with their savings (``saved``)."""
    gpus = gpu_words(totals[MODEL].needs.gpus)
    if not saved:
        sentence = f"Whole replicas need {gpus}"
    elif not saves_gpus(saved):
        sentence = f"No savings from operator-level provisioning. Whole replicas need {gpus}"
    else:
        needs = {name: (totals[name].needs.gpus, totals[name].needs.energy_w) for name in saved}
        best = min(saved, key=needs.__getitem__)  # by GPUs, then by energy
        sentence = (
            f"{LEVEL_NAMES[best]}: {gpu_words(totals[best].needs.gpus)} instead of "
            f"{totals[MODEL].needs.gpus}, {saved[best].gpus or 0.0:.0%} fewer"
        )
    return " ".join((*_left_out_sentences(cases), sentence))


def _left_out_sentences(cases: list[Case]) -> Iterator[str]:
    """Yield a sentence for each model without a plan in some regions, with the limits it misses."""
    left_out: list[Case] = []
    for same_service in groups(cases, lambda case: (case.model, case.region)):
        if not any(case.chosen for case in same_service):
            left_out += same_service
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


def saves_gpus(saved: Mapping[str, Savings]) -> bool:
    """Return whether modules or operators need fewer GPUs than whole replicas.

    ``saved`` has the savings of these levels over whole replicas.
    """
    return any((share.gpus or 0.0) > 0 for share in saved.values())


def no_savings_notes(saved: Mapping[str, Savings]) -> list[str]:
    """Return a sentence for each level without savings, if at least one level has some."""
    if not saves_gpus(saved):
        return []
    names = [name for name, share in saved.items() if (share.gpus or 0.0) <= 0]
    return [f"{WORDS[name].capitalize()} nothing is saved in GPUs here." for name in names]


def fallback_notes(cases: list[Case]) -> list[str]:
    """Return a sentence, with a count, for each reason why a plan is that of a coarser level.

    A plan by modules or operators is replaced by a coarser one that is better. Its method then
    begins with the reason.
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
    plans = [(case, case.levels[OPERATOR]) for case in cases if OPERATOR in case.levels]
    replayed = [(case, level) for case, level in plans if level.replayed]
    # Without a ``max_sm_slowdown``, operators share all of a GPU.
    better = [case for case, level in replayed if level.max_sm_slowdown is not None]
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
        gpus_by_arrival = case.smallest.fcfs_devices
        if gpus_by_arrival is not None:
            needs += f" instead of {gpus_by_arrival} in order of arrival"
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
    sentences = []
    for case in cases:
        for name, level in case.levels.items():
            replayed = level.replayed
            if name == MODEL or level.is_fallback or replayed is None:
                continue
            if replayed.attainment < case.limit.attainment:
                sentences.append(
                    f"The plan {WORDS[name]} for {case.phase} of {case.where} meets the limit for "
                    f"{replayed.attainment:.1%} of requests, not for {case.limit.attainment:.0%}."
                )
    return sentences


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
    """Return a sentence for each case that misses its limit at any number of whole replicas."""
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
