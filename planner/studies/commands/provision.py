"""Below the replica: what a model needs in a region by operators, by layers, by whole replicas.

Per model and region, on every GPU type it has a profile for, prefill and decode as separate
problems (methods.md A8): the traffic of the peak hour of the scenario's window, the strictest TTFT
and TBT of the interactive tiers, devices counted after placement. Totals take the GPU type on which
whole replicas cost least.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from planner.errors import Infeasible
from planner.scenario.build import build_hardware
from planner.scenario.known import NOTHING, Known
from planner.scenario.schema import Scenario
from planner.studies.facts import Fact, facts_of
from planner.studies.outcome import Outcome, Traces
from planner.studies.plain import OPTIONAL
from planner.studies.progress import Progress, part
from planner.studies.provisioning import basis, figures, over_time, sharing
from planner.studies.provisioning.cases import (
    PHASES,
    Images,
    choose,
    solved,
    unknown_models,
    variants,
)
from planner.studies.provisioning.load import limit_of, peak_hours
from planner.studies.provisioning.over_time import OFF, Following
from planner.studies.provisioning.problems import AUTO, COUNTED, FREE, Rules, measured_on
from planner.studies.provisioning.tables import tables_of
from planner.studies.provisioning.values import MODEL, OPERATOR, Case, Sentences
from planner.studies.results.frame import WindowFacts, window_facts
from planner.studies.traffic.traffic import build_traffic
from planner.studies.traffic.window import resolve_window
from simulation.provisioning.levels import LEVELS, Savings

IMAGE_TOKENS = 1024.0
"""Patches of an image that an encoder reads: 448 x 448 pixels in patches of 14 (assumed)."""


FILLING = {
    FREE: "How long a batch takes to fill is not in the latency, as in the source; count it with "
    "the option batch wait.",
    COUNTED: "The time that batches take to fill is in the latency (half of it on average), and "
    "the largest batch was chosen with each plan.",
}


@dataclass(frozen=True, slots=True)
class Asked:
    """What a run was asked for."""

    level: str = "all"
    method: str = "greedy"
    kernels: str = AUTO  # or modelled: leave out kernels that were imported
    interference: str = AUTO  # or modelled
    images: float = 0.0  # per request, of models with an encoder
    image_tokens: float = IMAGE_TOKENS  # that the encoder reads per image
    single_stream: bool = False  # GPUs that cannot run several streams: nothing extra beside others
    batch_wait: str = FREE  # or counted: the time that batches take to fill
    over_time: str = OFF  # or what plans of windows are made from: observed, forecast

    @property
    def levels(self) -> tuple[str, ...]:
        return LEVELS if self.level == "all" else (self.level,)

    @property
    def rules(self) -> Rules:
        return Rules(self.levels, self.method, self.batch_wait, shared=not self.single_stream)


@dataclass(frozen=True, slots=True)
class ProvisionResult:
    """What ``bin/manage provision --json`` prints."""

    kind: str
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


def run(
    scenario: Scenario,
    traces: Traces,
    *,
    asked: Asked | None = None,
    known: Known = NOTHING,
    progress: Progress,
) -> Outcome:
    """The levels side by side; raises Infeasible where no pool can meet its limits at all."""
    begun = time.perf_counter()
    asked = asked or Asked()
    hardware = build_hardware(scenario, known)
    progress(0.0, "Reading the traffic")
    traffic = build_traffic(scenario, traces)
    window = resolve_window(scenario, traffic.demand, traffic.clock)
    peaks = peak_hours(hardware, traffic, window)
    to_solve = variants(hardware, peaks)
    share = 0.85 if asked.over_time == OFF else 0.3
    cases = choose(
        solved(
            hardware,
            to_solve,
            {phase: limit_of(hardware, phase, peaks) for phase in PHASES},
            measured_on(
                known,
                [variant.gpu.name for variant in to_solve],
                timing=asked.kernels,
                interference=asked.interference,
            ),
            asked.rules,
            Images(asked.images, asked.image_tokens),
            part(progress, 0.1, 0.1 + share),
        )
    )
    chosen = [case for case in cases if case.chosen]
    if not chosen:
        raise Infeasible(
            "No model meets its limits on any GPU type, whatever the granularity: "
            + " ".join(figures.refusals(cases))
        )
    tables = tables_of(cases)
    shared = courses = None
    shared_words = course_words = Sentences()
    if OPERATOR in asked.levels and not asked.single_stream:
        progress(0.1 + share, "Placing services together")
        shared = sharing.on_common_gpus(chosen)
        shared_words = sharing.sentences(shared)
    if asked.over_time != OFF:
        start_s, end_s = window.observed_s
        method = scenario.forecast.method
        following = Following(
            hardware=hardware,
            traffic=traffic,
            start_s=start_s,
            end_s=end_s,
            levels=(*[level for level in asked.levels if level != MODEL], MODEL),
            known=asked.over_time,
            method=over_time.METHOD if method == "auto" else method,
            startup_s=scenario.fleet.startup_s,
            seed=scenario.seed,
        )
        journeys = over_time.journeys(chosen, following, part(progress, 0.45, 0.95))
        courses = over_time.figures(journeys, following.startup_s)
        course_words = over_time.sentences(courses)
        tables["courses"] = over_time.table(journeys, start_s)
    totals = {level: figures.total(chosen, level) for level in (*asked.levels, MODEL)}
    saved = figures.total_savings(totals)
    notes = [
        *_notes(asked, cases, unknown_models(hardware, peaks)),
        *traffic.notes,
    ]
    provenance = facts_of(
        fact for fact in hardware.provenance if not fact[0].startswith("Speed of")
    )
    result = ProvisionResult(
        kind="provision",
        scenario=scenario.name,
        method=asked.method,
        headline=figures.headline(totals, saved),
        pays=figures.pays(saved),
        warnings=(*shared_words.lost, *figures.without_savings(saved), *course_words.lost),
        levels={level: totals[level] for level in asked.levels},
        savings=saved,
        pools=tuple(figures.pool_figures(case) for case in cases),
        window=window_facts(window, traffic),
        provenance=(*provenance, *basis.facts(chosen)),
        notes=(*course_words.won, *shared_words.won, *dict.fromkeys(notes)),
        sharing=shared,
        over_time=courses,
        seconds=time.perf_counter() - begun,
    )
    return Outcome(result, tables)


def _notes(asked: Asked, cases: list[Case], unknown: tuple[str, ...]) -> Iterator[str]:
    yield (
        "The load is that of the busiest hour of the window, interactive tiers together, in the "
        "region where requests arise; limits are kept by the mean latency of queueing (M/M/R), "
        "not by a percentile."
    )
    yield (
        "In the levels prefill and decode stand on devices of their own; what they need together "
        "is beside them."
    )
    yield FILLING[asked.batch_wait]
    if asked.single_stream:
        yield "GPUs run one stream (as asked): extra replicas stand on GPUs of their own."
    for name in unknown:
        yield (
            f"{name} is left out: its memory is known but not what it computes; give it by shape "
            "or config."
        )
    chosen = [case for case in cases if case.chosen]
    encoders = dict.fromkeys(case.model for case in chosen if case.service.shape.encoder)
    if encoders and not asked.images:
        yield (
            f"Requests of {' and '.join(encoders)} bring no images (the default), so the encoder "
            "is not provisioned; give images per request to add it."
        )
    elif encoders:
        yield (
            f"Each request of {' and '.join(encoders)} brings {asked.images:g} images of "
            f"{asked.image_tokens:,.0f} tokens for the encoder (as asked); what the language model "
            "reads of them is among the input tokens of the trace."
        )
    yield from figures.fallen(chosen)
    yield from figures.refusals(cases)
