"""Find the best P:D ratio of a service, and its sensitivity (methods.md D2, D8)."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import polars as pl
from pydantic import Field

from planner.domain.options import RunOptions
from planner.domain.outcome import Inputs, Outcome
from planner.domain.parallel import run_in_parallel
from planner.domain.pd.figures import (
    AggregatedCapacity,
    BestFigures,
    Limits,
    Pair,
    PairRow,
    PdPool,
    RatioRow,
)
from planner.domain.pd.ratio_drift import (
    Drift,
    Sensitivity,
    best_splits,
    over_time,
    sensitivity,
    sensitivity_calls,
)
from planner.domain.pd.ratio_search import Judgement, judge_ratios
from planner.domain.pd.service_pools import (
    MAX_INSTANCES,
    PairColumns,
    model_index,
    pairs_of,
    strictest_split,
    todays_instances,
    todays_splits,
    usual_instances,
)
from planner.domain.pd.verdict import headline
from planner.domain.progress import Progress, part
from planner.domain.serialise import as_json, milliseconds
from planner.domain.sizing.curves import curve_of
from planner.domain.sources import Fact, facts_of
from planner.domain.traffic.known_lengths import traffic_before_plan
from planner.domain.traffic.traffic import Traffic
from planner.errors import PlannerError
from planner.inputs.scenario.build import Hardware, build_hardware
from planner.inputs.scenario.settings import settings_of
from planner.second_process import begin
from simulation.errors import SimulationError
from simulation.sizing.capacity import SizingCase
from simulation.sizing.pd_simulation import REQUESTS
from simulation.sizing.pool import curve_capacity
from simulation.trace import PrefixBlocks

PRODUCTION = "1P/5D to 9P/1D in HeteroScale's production (section 4.1)"
CACHED = (
    "Prefill replicas cache shared prompts, by the blocks of the trace. Capacities and simulations "
    "include this. Queueing formulas, and so sensitivity, drift and the ranking of pairs, count "
    "every prompt in full."
)


class Options(RunOptions):
    service: str = Field(title="Service", max_length=120)
    """A model of the scenario."""
    instances: int | None = Field(
        None, title="Replicas, prefill plus decode", ge=2, le=MAX_INSTANCES
    )
    """Prefill and decode replicas together. Default: current number, at most 16."""
    prefill: str = Field("", title="Prefill GPU type", max_length=120)
    """GPU type of prefill. Default: best throughput per dollar."""
    decode: str = Field("", title="Decode GPU type", max_length=120)
    """GPU type of decode. Default: best throughput per dollar."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class PdRatioResult:
    """The result of ``pd-ratio``."""

    kind: str = "pd-ratio"
    scenario: str
    service: str
    tier: str
    percentile: float
    limits: Limits
    instances: int
    isl: float
    osl: float
    prefill: PdPool
    decode: PdPool
    link_gb_s: float
    kv_mb: float
    ratios: tuple[RatioRow, ...]
    best: BestFigures
    mixed: AggregatedCapacity | None
    headline: str
    prediction_error: float | None
    judged_by: str
    pairs: tuple[PairRow, ...]
    sensitivity: Sensitivity
    over_time: tuple[Drift, ...]
    clock: str
    production_range: str = PRODUCTION
    provenance: tuple[Fact, ...]
    notes: tuple[str, ...]


def run(inputs: Inputs, options: Options, progress: Progress) -> Outcome:
    """Find the ratio of prefill to decode replicas of a model that serves the most requests.

    Each ratio is evaluated by the capacity of its two pools. The best ratio and its neighbours are
    also simulated with both pools together. Closed forms are included for comparison. Raises
    PlannerError for invalid options, and SimulationError if no pair of pools meets the SLO.
    """
    scenario = inputs.scenario
    hardware = build_hardware(scenario, inputs.user_facts)
    m = model_index(hardware, options.service)
    progress(0.0, "Reading the traffic")
    traffic = traffic_before_plan(settings_of(scenario), inputs.traces)
    hardware = replace(hardware, tiers_in_use=traffic.tiers_in_use)
    pairs, notes = _pairs(hardware, traffic, m, options, part(progress, 0.05, 0.3))
    # Pairs are sorted by cost. Only the cheapest is simulated.
    pair = pairs[0]
    service, count, tier = pair.service, pair.instances, pair.service.tier
    judged, drift, other_cases, aggregated = _evaluate(
        pair, traffic, m, scenario.seed, part(progress, 0.3, 1.0)
    )
    best = BestFigures.of(judged.best)
    simulated = {(ratio.prefill, ratio.decode): ratio for ratio in judged.simulated}
    rows = tuple(
        RatioRow.of(closed, pools, simulated.get((closed.prefill, closed.decode)))
        for closed, pools in zip(judged.closed, judged.pools, strict=True)
    )
    errors = [row.prediction_error for row in rows if row.prediction_error is not None]
    cached = [CACHED] if isinstance(service.blocks, PrefixBlocks) else []
    result = PdRatioResult(
        scenario=scenario.name,
        service=options.service,
        tier=tier.name,
        percentile=100 * tier.attainment,
        limits=Limits(*map(milliseconds, (tier.ttft_s, tier.tbt_s, tier.e2e_s))),
        instances=count,
        isl=service.workload.facts.mean_isl,
        osl=service.workload.facts.mean_osl,
        prefill=_pool(hardware, m, pair.columns.prefill),
        decode=_pool(hardware, m, pair.columns.decode),
        link_gb_s=service.link.bytes_s / 1e9,
        kv_mb=service.link.kv_bytes_per_token * service.workload.facts.mean_isl / 1e6,
        ratios=rows,
        best=best,
        mixed=aggregated,
        headline=headline(best.figures, aggregated, rows, todays_splits(hardware, m, pair.columns)),
        prediction_error=max(errors, key=abs) if errors else None,
        judged_by="Every ratio: pools simulated separately. Best ratio and neighbours: simulated "
        f"together, first with {REQUESTS:,} bursty requests, then with {2 * REQUESTS:,}",
        pairs=tuple(map(PairRow.of, pairs)),
        sensitivity=other_cases,
        over_time=drift,
        clock=traffic.clock,
        provenance=facts_of(hardware.provenance),
        notes=(*notes, *cached, *traffic.notes),
    )
    return Outcome(result, {"ratios": pl.DataFrame([as_json(row) for row in rows])})


def _evaluate(
    pair: Pair, traffic: Traffic, m: int, seed: int, progress: Progress
) -> tuple[Judgement, tuple[Drift, ...], Sensitivity, AggregatedCapacity | None]:
    """Evaluate all ratios of one pair of pools of model number ``m``.

    Return (ratios, best ratio over time, best ratio at other lengths and limits, capacity of
    aggregated replicas or None).
    """
    service, count = pair.service, pair.instances
    # Closed forms that the sensitivity needs begin now, if there is a second process.
    for call in sensitivity_calls(service, count):
        begin(best_splits, *call)
    progress(0.0, "Both pools by simulation")

    # Simulations release Python's lock and closed forms do not, so each parallel step has both.
    def ratios_and_drift(report: Progress) -> tuple[Judgement, tuple[Drift, ...]]:
        """Return the evaluated ratios, and how the best one changes over time."""
        simulation_progress = part(report, 0.0, 0.5)
        judged = judge_ratios(
            service, pair.hardware.routing, count, seed,
            lambda done: simulation_progress(done, "Simulating the best"),
        )  # fmt: skip
        ratio = judged.best.ratio
        return judged, over_time(traffic, m, service, count, ratio, part(report, 0.5, 1.0))

    def sensitivity_and_aggregated(
        report: Progress,
    ) -> tuple[Sensitivity, AggregatedCapacity | None]:
        """Return the best ratios at other lengths and limits, and the aggregated capacity."""
        other_cases = sensitivity(service, count, part(report, 0.0, 0.7))
        return other_cases, _simulate_aggregated(pair, seed)

    steps: list[Callable[[Progress], Any]] = [ratios_and_drift, sensitivity_and_aggregated]
    (judged, drift), (other_cases, aggregated) = run_in_parallel(steps, progress)
    return judged, drift, other_cases, aggregated


def _pairs(
    hardware: Hardware, traffic: Traffic, m: int, options: Options, progress: Progress
) -> tuple[list[Pair], list[str]]:
    """Find the best ratio of model number ``m`` by closed forms, for each pair of GPU types.

    Return (pairs, notes): the pairs, sorted by cost per token, and a sentence on each pair that is
    left out. Raises SimulationError if no pair meets the SLO.
    """
    columns_of_pairs = _allowed_pairs(hardware, m, options)
    shared_prompts = traffic.shared[m] if traffic.shared else None
    pairs: list[Pair] = []
    notes: list[str] = []
    for done, columns in enumerate(columns_of_pairs):
        progress(done / len(columns_of_pairs), "Pairs of GPU types")
        count = (
            options.instances
            or todays_instances(hardware, m, columns)
            or usual_instances(hardware, m, columns)
        )
        try:
            service, best = strictest_split(
                hardware, m, columns, traffic.lengths[m], count, shared_prompts, traffic.arrivals[m]
            )
        except SimulationError as problem:
            # One pair that cannot meet the limits must not end the run.
            notes.append(f"Left out: {problem}.")
            continue
        pairs.append(Pair(hardware, columns, service, count, best))
    if not pairs:
        raise SimulationError(f"{hardware.models[m].name}: {notes[0].removeprefix('Left out: ')}")
    return sorted(pairs, key=lambda pair: pair.usd_per_million_tokens), notes


def _allowed_pairs(hardware: Hardware, m: int, options: Options) -> list[PairColumns]:
    """Return the pairs of GPU columns for prefill and decode that the options allow.

    A GPU column is a GPU type with its number of GPUs and role. Options name it by its label or GPU
    type. Raises PlannerError if no pair is left.
    """
    pairs = pairs_of(hardware, m)
    for side, name in (("prefill", options.prefill), ("decode", options.decode)):
        columns = [getattr(pair, side) for pair in pairs]
        labels = {hardware.columns[g].label for g in columns}
        pairs = [
            pair
            for pair, g in zip(pairs, columns, strict=True)
            if name in ("", hardware.columns[g].label, hardware.gpus[g].name)
        ]
        if not pairs:
            raise PlannerError(
                f"{side} {name}: {hardware.models[m].name} has no such pool. Choose from "
                f"{', '.join(sorted(labels))}."
            )
    return pairs


def _simulate_aggregated(pair: Pair, seed: int) -> AggregatedCapacity | None:
    """Return the simulated capacity of aggregated replicas on the same GPUs as the pair.

    It is 0 if they meet the SLO at no rate. None if prefill and decode use different GPU types or
    tensor parallelism.
    """
    service = pair.service
    if service.prefill.gpu != service.decode.gpu or service.prefill.tp != service.decode.tp:
        return None
    lengths = (service.workload.isl, service.workload.osl)
    # GPU type and parallelism are equal, so the decode profile also describes such a replica.
    try:
        curve = curve_of(
            SizingCase(
                service.decode, lengths, service.tier, seed, batching=service.batching,
                burstiness=service.burstiness, routing=pair.hardware.routing, blocks=service.blocks,
            )
        )  # fmt: skip
    except SimulationError as problem:
        return AggregatedCapacity(0.0, 0.0, "slo", str(problem))
    rate = curve_capacity(curve.max_rps, pair.instances)
    return AggregatedCapacity(rate * service.tokens, rate, curve.alone.bound_by)


def _pool(hardware: Hardware, m: int, g: int) -> PdPool:
    """Return the facts on the pool of model number ``m`` on GPU column number ``g``."""
    profile = hardware.profiles[m, g]
    return PdPool(
        gpu=hardware.gpus[g].name,
        tp=profile.tp,
        arrangement=hardware.arrangement(m, g),
        profile=profile.kind,
        provenance=profile.provenance.kind,
        source=profile.provenance.source,
    )
