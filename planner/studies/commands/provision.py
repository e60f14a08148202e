"""Below the replica: what a model needs in a region by operators, by layers, by whole replicas.

Per model and region, on every GPU type it has a profile for, prefill and decode as separate
problems (methods.md A8): the traffic of the peak hour of the scenario's window, the strictest TTFT
and TBT of the interactive tiers, devices counted after placement. Totals take the GPU type on which
whole replicas cost least.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, replace

from planner.errors import Infeasible, ScenarioError
from planner.scenario.build import Hardware, build_hardware
from planner.scenario.known import NOTHING, Known
from planner.scenario.schema import Scenario
from planner.studies.outcome import Outcome
from planner.studies.progress import Progress, part
from planner.studies.provisioning import over_time as courses
from planner.studies.provisioning import sharing, tables
from planner.studies.provisioning.load import Limit, Peak, limit_of, peak_hours
from planner.studies.provisioning.problems import AUTO, FREE, Measured, measured_on, solve
from planner.studies.traffic.sources import StoredTrace
from planner.studies.traffic.traffic import build_traffic
from planner.studies.traffic.window import resolve_window
from simulation.provisioning.levels import LEVELS, Level
from simulation.provisioning.workload import Phase, PhaseProblem, Service

PHASES: tuple[Phase, ...] = ("prefill", "decode")
IMAGE_TOKENS = 1024.0
"""Patches of an image that an encoder reads: 448 x 448 pixels in patches of 14 (assumed)."""


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
    over_time: str = courses.OFF  # or what plans of windows are made from: observed, forecast

    @property
    def levels(self) -> tuple[str, ...]:
        return LEVELS if self.level == "all" else (self.level,)


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """One phase of one model in one region on one GPU type, at every level that was asked for.

    ``chosen``: in the totals. ``levels`` is empty where no number of replicas meets the limit.
    """

    model: str
    region: str
    gpu: str
    phase: Phase
    service: Service
    limit: Limit
    weights: str
    problem: PhaseProblem
    levels: dict[str, Level]
    usd_per_hour: float
    measured: Measured
    chosen: bool = False


def run(
    scenario: Scenario,
    traces: dict[str, StoredTrace],
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
    limits = {phase: limit_of(hardware, phase, peaks) for phase in PHASES}
    if not peaks:
        raise ScenarioError("traffic: no request of an interactive tier falls into the window.")
    pools = [(m, r, g) for m, r, g in hardware.pool_index if (m, r) in peaks]
    unknown = [hardware.models[m].name for m, _ in peaks if hardware.models[m].shape is None]
    pools = [(m, r, g) for m, r, g in pools if hardware.models[m].shape is not None]
    if not pools:
        raise ScenarioError(
            "models: provisioning below the replica needs to know what "
            f"{' and '.join(dict.fromkeys(unknown))} computes; give it by shape or config instead "
            "of weight_gb, or use a built-in model."
        )
    measured = measured_on(
        known,
        [hardware.gpus[g].name for _, _, g in pools],
        timing=asked.kernels,
        interference=asked.interference,
    )
    share = 0.85 if asked.over_time == courses.OFF else 0.3
    cases: list[Case] = []
    for done, (m, r, g) in enumerate(pools):
        name = f"{hardware.models[m].name} on {hardware.gpus[g].name}"
        progress(0.1 + share * done / len(pools), f"Provisioning {name}")
        of_gpu = measured[hardware.gpus[g].name]
        for phase in PHASES:
            service, weights = service_of(scenario, hardware, m, g, phase, peaks[m, r], limits)
            service = with_images(service, asked)
            problem, levels = solve(
                service, weights, asked.levels, asked.method, measured=of_gpu,
                batch_wait=asked.batch_wait, shared=not asked.single_stream,
            )  # fmt: skip
            cases.append(
                Case(
                    hardware.models[m].name, hardware.regions[r].name, hardware.gpus[g].name, phase,
                    service, limits[phase], weights, problem, levels,
                    float(hardware.usd_per_gpu_hour[r, g]), of_gpu,
                )
            )  # fmt: skip
    cases = choose(cases)
    if not any(case.chosen for case in cases):
        raise Infeasible(
            "No model meets its limits on any GPU type, whatever the granularity: "
            + " ".join(tables.refusals(cases))
        )
    document = tables.document(
        scenario, hardware, traffic, window, cases, asked, dict.fromkeys(unknown)
    )
    if "operator" in asked.levels and not asked.single_stream:
        progress(0.1 + share, "Placing services together")
        document["sharing"] = sharing.document([case for case in cases if case.chosen])
        lost, won = sharing.words(document["sharing"])
        document["warnings"] = [*lost, *document["warnings"]]
        document["notes"] = [*won, *document["notes"]]
    found = {
        "operators": tables.operators_table(cases),
        "devices": tables.devices_table(cases),
        "shards": tables.shards_table(cases),
    }
    if asked.over_time != courses.OFF:
        method = scenario.forecast.method
        journeys = courses.journeys(
            [case for case in cases if case.chosen],
            hardware,
            traffic,
            window,
            levels=(*[level for level in asked.levels if level != "model"], "model"),
            known=asked.over_time,
            method=courses.METHOD if method == "auto" else method,
            startup_s=scenario.fleet.startup_s,
            seed=scenario.seed,
            progress=part(progress, 0.45, 0.95),
        )
        document["over_time"] = courses.document(journeys, scenario.fleet.startup_s)
        lost, won = courses.words(document["over_time"])
        document["warnings"] = [*document["warnings"], *lost]
        document["notes"] = [*won, *document["notes"]]
        end_s = window.start_s if window.ahead else window.end_s
        found["courses"] = courses.table(journeys, end_s - window.duration_s)
    return Outcome({**document, "seconds": time.perf_counter() - begun}, found)


def service_of(
    scenario: Scenario,
    hardware: Hardware,
    m: int,
    g: int,
    phase: Phase,
    peak: Peak,
    limits: dict[Phase, Limit],
) -> tuple[Service, str]:
    """The phase under its peak, and the precision of its weights."""
    model, gpu = hardware.models[m], hardware.gpus[g]
    assert model.shape is not None  # left out before
    section = next(s for s in scenario.profiles if (s.model, s.gpu) == (model.name, gpu.name))
    service = Service(
        shape=model.shape,
        gpu=gpu,
        phase=phase,
        requests_s=peak.requests_s,
        isl=peak.isl,
        osl=peak.osl,
        slo_s=limits[phase].seconds,
    )
    return service, section.precision


def with_images(service: Service, asked: Asked) -> Service:
    """``service`` with what its requests bring for the encoder, where its model has one."""
    if not service.shape.encoder or not asked.images:
        return service
    return replace(service, images=asked.images, image_tokens=asked.images * asked.image_tokens)


def choose(cases: list[Case]) -> list[Case]:
    """Per model and region the GPU type that whole replicas cost least on, all phases feasible."""
    cost: dict[tuple[str, str], dict[str, float]] = {}
    for case in cases:
        by_gpu = cost.setdefault((case.model, case.region), {})
        whole = case.levels.get("model") or next(iter(case.levels.values()), None)
        price = whole.devices * case.usd_per_hour if whole else float("inf")
        by_gpu[case.gpu] = by_gpu.get(case.gpu, 0.0) + price
    best = {place: min(by_gpu, key=lambda gpu: by_gpu[gpu]) for place, by_gpu in cost.items()}
    return [
        replace(
            case,
            chosen=best[case.model, case.region] == case.gpu
            and math.isfinite(cost[case.model, case.region][case.gpu]),
        )
        for case in cases
    ]
