"""Plan below the replica: compare needs by operators, by modules and by whole replicas.

Prefill and decode are separate problems for each model, region and GPU type with a profile
(methods.md A8). The load is that of the peak hour of the scenario's window. Limits are the
strictest TTFT and TBT of the interactive tiers with traffic of the model. Devices are counted after
placement. Totals use the GPU type and precision on which whole replicas cost least.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from pydantic import Field

from planner.domain.options import RunOptions
from planner.domain.outcome import Inputs, Outcome
from planner.domain.progress import Progress, part
from planner.domain.provisioning import figures, sharing, sources
from planner.domain.provisioning import window_report as over_time
from planner.domain.provisioning.levels import (
    COUNTED,
    FREE,
    BatchWait,
    Orders,
    Rules,
    Source,
    measured_on,
)
from planner.domain.provisioning.load import Peak, limit_of, peak_hour_lengths, peak_hours
from planner.domain.provisioning.pools import (
    PHASES,
    Images,
    SolveSettings,
    choose_variants,
    solve_variants,
    unknown_models,
    variants,
)
from planner.domain.provisioning.source_methods import methods_of
from planner.domain.provisioning.tables import tables_of
from planner.domain.provisioning.unit import MODEL, OPERATOR, Case
from planner.domain.provisioning.windows import (
    METHOD,
    OFF,
    PlannedOn,
    TrackedTraffic,
    refuse_without_history,
)
from planner.domain.results.basis import WindowFacts, window_facts
from planner.domain.serialise import OPTIONAL
from planner.domain.sources import Fact, facts_of
from planner.domain.traffic.known_lengths import requested_tiers
from planner.domain.traffic.traffic import Traffic, traffic_and_window
from planner.errors import Infeasible
from planner.inputs.scenario.build import Hardware, build_hardware
from planner.inputs.scenario.settings import settings_of
from simulation.provisioning.level import Savings
from simulation.provisioning.levels import LEVELS, LevelName, Method

IMAGE_TOKENS = 1024.0
"""Patches of an image that an encoder reads: 448 x 448 pixels in patches of 14 (assumed)."""


# By option batch wait: (how limits are checked, whether latencies include the filling of a batch).
METHOD_NOTES = {
    FREE: (
        "Planned latency: mean of a queueing model. A replay of that hour checks SLO attainment.",
        "Latency excludes the time to fill a batch, as in Cui et al. (2025). To include it, set "
        "Batch filling time.",
    ),
    COUNTED: (
        "Limits apply to the mean latency of a queueing model (M/M/R), not to a percentile. With "
        "batch filling time, plans are not replayed.",
        "Latency includes the time to fill a batch (half of it on average). Each plan chose its "
        "largest batch.",
    ),
}


class Options(RunOptions):
    over_time: PlannedOn = Field("off", title="Load")
    """Also plan each window, on observed traffic or on a forecast. Default: off."""
    level: Literal[LevelName, "all"] = Field("all", title="Level")
    """Level to plan. Default: all."""
    method: Method = Field("greedy", title="Method")
    """greedy (default); exact: fewest GPUs, with a proven bound; algorithm1: Algorithm 1 of Cui
    et al., corrected or as published."""
    epsilon: float = Field(0.0, title="Greedy tolerance (ε)", ge=0, le=1)
    """Share of the limit at which algorithm1 stops. Default: 0."""
    kernels: Source = Field("auto", title="Operator times")
    """auto (default): your measured kernels, else efficiency factors."""
    interference: Source = Field("auto", title="Interference")
    """auto (default): your measured slowdowns, else ours (H100, H200), else published ones (A100),
    else the physical model."""
    speeds: Literal["operators", "profile"] = Field("profile", title="Speed of a whole pass")
    """profile (default): operators are scaled to the scenario's profile. operators: the sum of
    their kernels."""
    batch_wait: BatchWait = Field("free", title="Batch filling time")
    """free (default): not counted. counted: latency includes the time to fill a batch."""
    order: Orders = Field("fcfs", title="Prompt order")
    """fcfs (default): in order of arrival. shortest: short prompts first. best: the order that
    needs fewer GPUs."""
    images: float = Field(0.0, title="Images per request", ge=0, le=1e6)
    """Images per request, for models with an encoder. Default: 0."""
    image_tokens: float = Field(
        IMAGE_TOKENS,
        title="Encoder tokens per image",
        ge=1,
        le=1e6,
        description=f"Encoder tokens per image. Default: {IMAGE_TOKENS:g} (assumed).",
    )
    single_stream: bool = Field(False, title="One stream per GPU")
    """One operator at a time per GPU, so that operators share no GPU."""

    @property
    def levels(self) -> tuple[str, ...]:
        """Return the levels to plan; whole replicas always, because savings are against them."""
        return LEVELS if self.level == "all" else tuple(dict.fromkeys((self.level, MODEL)))

    @property
    def rules(self) -> Rules:
        """Return these options as ``solve_levels`` takes them."""
        return Rules(
            self.levels, self.method, self.batch_wait, shared=not self.single_stream,
            epsilon=self.epsilon, order=self.order,
        )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class ProvisionResult:
    """The result of ``provision``, as ``bin/manage provision --json`` prints it."""

    kind: str = "provision"
    scenario: str
    method: str
    headline: str
    pays: bool
    warnings: tuple[str, ...]
    levels: dict[str, figures.Total]
    savings: dict[str, Savings]
    pools: tuple[figures.PoolFigures, ...]
    window: WindowFacts
    provenance: tuple[Fact, ...]
    notes: tuple[str, ...]
    sharing: sharing.SharedGpus | None = field(metadata={OPTIONAL: True})
    over_time: over_time.OverTime | None = field(metadata={OPTIONAL: True})
    seconds: float


def run(inputs: Inputs, options: Options, progress: Progress) -> Outcome:
    """Plan whole replicas and finer units for the busiest hour, and compare their GPUs.

    Raises Infeasible if no pool can meet its limits.
    """
    begun, scenario = time.perf_counter(), inputs.scenario
    hardware = build_hardware(scenario, inputs.user_facts)
    progress(0.0, "Reading the traffic")
    traffic, window = traffic_and_window(settings_of(scenario), inputs.traces)
    start_s, _ = window.observed_s
    refuse_without_history(options.over_time, traffic, start_s)
    hardware = replace(hardware, tiers_in_use=requested_tiers(traffic, np.inf))
    peaks = peak_hours(hardware, traffic, window)
    # Sharing puts operators side by side on a GPU, which a single stream excludes.
    with_sharing = OPERATOR in options.levels and not options.single_stream
    # Progress ends first for separate GPUs, then for shared ones, then for the windows.
    shared_end = 0.95 if options.over_time == OFF else 0.5
    separate_end = shared_end - 0.25 if with_sharing else shared_end
    cases = _solved_cases(
        inputs, options, hardware, traffic, peaks, part(progress, 0.1, separate_end)
    )
    chosen = [case for case in cases if case.chosen]
    totals = {level: figures.total(chosen, level) for level in options.levels}
    savings = figures.total_savings(totals)
    shared = None
    if with_sharing:
        shared = sharing.shared_gpus(chosen, part(progress, separate_end, shared_end))
    by_window: over_time.OverTime | None = None
    tables = tables_of(cases)
    if options.over_time != OFF:
        method = METHOD if scenario.forecast.method == "auto" else scenario.forecast.method
        tracked = TrackedTraffic(
            hardware, traffic, *window.observed_s, options.levels, options.over_time, method,
            scenario.fleet.startup_s, scenario.seed,
        )  # fmt: skip
        by_window, tables["courses"] = over_time.plan_windows(
            chosen, tracked, part(progress, shared_end, 0.95)
        )
    on_sharing, on_windows = sharing.sentences(shared), over_time.sentences(by_window)
    notes = [
        *_notes(options, cases, unknown_models(hardware, peaks)),
        *(window.replay_notes if by_window else []),
        *traffic.notes,
    ]
    result = ProvisionResult(
        scenario=scenario.name,
        method=options.method,
        headline=figures.headline(cases, totals, savings),
        pays=figures.saves_gpus(savings),
        warnings=(
            *figures.missed_limits(chosen),
            *figures.capacity_warnings(chosen),
            *on_sharing.without_savings,
            *figures.no_savings_notes(savings),
            *on_windows.without_savings,
        ),
        levels=totals,
        savings=savings,
        pools=tuple(map(figures.PoolFigures.of, cases)),
        window=window_facts(window, traffic),
        # Speeds come from operators here, not from the hardware's profiles.
        provenance=(
            *facts_of(
                (name, source)
                for name, source in hardware.provenance
                if not name.startswith("Speed of")
            ),
            *sources.timing_facts(chosen),
        ),
        notes=(*on_windows.with_savings, *on_sharing.with_savings, *dict.fromkeys(notes)),
        sharing=shared,
        over_time=by_window,
        seconds=time.perf_counter() - begun,
    )
    return Outcome(result, tables)


def _solved_cases(
    inputs: Inputs,
    options: Options,
    hardware: Hardware,
    traffic: Traffic,
    peaks: dict[tuple[int, int], Peak],
    progress: Progress,
) -> list[Case]:
    """Return the plans of each phase, model and region on each GPU type; one type is chosen.

    Operators of chosen cases are also planned by the methods of the source (Cui et al., 2025).
    ``peaks`` are the busiest hours by (model index, region index). Raises Infeasible if no pool
    can meet its limits.
    """
    to_solve = variants(hardware, peaks)
    limits = {(m, phase): limit_of(hardware, m, phase, peaks) for m, _ in peaks for phase in PHASES}
    measured = measured_on(
        inputs.user_facts,
        [variant.gpu.name for variant in to_solve],
        timing=options.kernels,
        interference=options.interference,
    )
    lengths, seed = {}, inputs.scenario.seed
    for (m, r), peak in peaks.items():
        names = hardware.models[m].name, hardware.regions[r].name
        lengths[m, r] = peak_hour_lengths(hardware, traffic, names, peak, seed)
    settings = SolveSettings(
        rules=options.rules,
        images=Images(options.images, options.image_tokens),
        by_profile=options.speeds == "profile",
        seed=seed,
    )
    cases = choose_variants(
        solve_variants(
            hardware, to_solve, limits, measured, lengths, settings, part(progress, 0.0, 0.5)
        )
    )
    if not any(case.chosen for case in cases):
        raise Infeasible(
            "No model meets its limits on any GPU type, at any level: "
            + " ".join(figures.refusal_notes(cases))
        )
    if OPERATOR not in options.levels:
        return cases
    for i, case in enumerate(cases):
        if case.chosen:
            progress(0.5 + 0.5 * i / len(cases), f"Comparing methods: {case.where}")
            methods = methods_of(case.problem, case.judge, options.epsilon)
            cases[i] = replace(case, methods=methods)
    return cases


def _notes(options: Options, cases: list[Case], unknown: tuple[str, ...]) -> Iterator[str]:
    """Yield the notes of the result on methods, options and exceptions.

    ``unknown`` are the names of models whose dimensions are not known.
    """
    limit_note, batch_filling_note = METHOD_NOTES[options.batch_wait]
    yield (
        "Load: busiest hour of the window, all interactive tiers, by region of origin. "
        f"{limit_note}"
    )
    chosen = [case for case in cases if case.chosen]
    yield from figures.short_notes(chosen)
    yield from figures.order_notes(chosen)
    yield "Levels are disaggregated. Aggregated GPU needs have their own table."
    yield batch_filling_note
    if options.single_stream:
        yield "One stream per GPU (option): extra replicas use separate GPUs."
    for name in unknown:
        yield (
            f"{name} is ignored, because its dimensions are not known. Give its shape or config."
        )
    encoders = " and ".join(
        dict.fromkeys(case.model for case in chosen if case.service.shape.encoder)
    )
    if encoders and not options.images:
        yield (
            f"Requests of {encoders} bring no images (the default), so the encoder is not "
            "provisioned. Give images per request to add it."
        )
    elif encoders:
        yield (
            f"Each request of {encoders} brings {options.images:g} images of "
            f"{options.image_tokens:,.0f} tokens for the encoder. The tokens for the language "
            "model are among the input tokens of the trace."
        )
    yield from sources.profile_comparison_notes(chosen)
    yield from figures.trade_notes(chosen)
    if not options.single_stream:
        yield from figures.sm_share_notes(chosen)
    yield from figures.fallback_notes(chosen)
    yield from figures.refusal_notes(cases)
