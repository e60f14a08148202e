"""Below the replica: what a model needs in a region by operators, by layers, by whole replicas.

Per model and region, on every GPU type it has a profile for, prefill and decode as separate
problems (methods.md A8): the traffic of the peak hour of the scenario's window, the strictest TTFT
and TBT of the interactive tiers, devices counted after placement. Totals take the GPU type on which
whole replicas cost least.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from planner.catalogue.efficiency import efficiencies
from planner.catalogue.power import power_model
from planner.errors import Infeasible, ScenarioError
from planner.pipeline import provisioning_tables as tables
from planner.pipeline.forecasts import interactive
from planner.pipeline.progress import Progress
from planner.pipeline.sources import StoredTrace
from planner.pipeline.study import Outcome
from planner.pipeline.traffic import Traffic, build_traffic
from planner.pipeline.window import Window, resolve_window
from planner.scenario.build import Hardware, build_hardware
from planner.scenario.known import NOTHING, Known
from planner.scenario.schema import Scenario
from simulation.errors import SimulationError
from simulation.performance.memory import MEMORY_SHARE
from simulation.performance.roofline import estimated_s
from simulation.performance.specs import GpuSpec, ModelShape
from simulation.provisioning.levels import LEVELS, Level, at_level, model_level
from simulation.provisioning.workload import Phase, PhaseProblem, Service, phase_problem

HOUR_S = 3600.0
PHASES: tuple[Phase, ...] = ("prefill", "decode")
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)
PARALLEL = (1, 2, 4, 8)
REPLICAS = (64, 512)  # most of one operator; the second where the first are too few
ASSUMED_SLO_S = {"prefill": 2.0, "decode": 0.2}
"""Where no tier bounds the phase: two seconds to begin, and tokens as fast as people read."""


@dataclass(frozen=True, slots=True)
class Peak:
    """Demand of one model in one region in the busiest hour of the window."""

    requests_s: float
    isl: float
    osl: float


@dataclass(frozen=True, slots=True)
class Limit:
    """The bound on a phase and where it comes from."""

    seconds: float
    source: str


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
    chosen: bool = False


def provision(
    scenario: Scenario,
    traces: dict[str, StoredTrace],
    *,
    level: str = "all",
    method: str = "greedy",
    known: Known = NOTHING,
    progress: Progress,
) -> Outcome:
    """The levels side by side; raises Infeasible where no pool can meet its limits at all."""
    begun = time.perf_counter()
    wanted = LEVELS if level == "all" else (level,)
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
    cases: list[Case] = []
    for done, (m, r, g) in enumerate(pools):
        name = f"{hardware.models[m].name} on {hardware.gpus[g].name}"
        progress(0.1 + 0.85 * done / len(pools), f"Provisioning {name}")
        for phase in PHASES:
            service, weights = service_of(scenario, hardware, m, g, phase, peaks[m, r], limits)
            problem, levels = solve(service, weights, wanted, method)
            cases.append(
                Case(
                    hardware.models[m].name, hardware.regions[r].name, hardware.gpus[g].name, phase,
                    service, limits[phase], weights, problem, levels,
                    float(hardware.usd_per_gpu_hour[r, g]),
                )
            )  # fmt: skip
    cases = choose(cases)
    if not any(case.chosen for case in cases):
        raise Infeasible(
            "No model meets its limits on any GPU type, whatever the granularity: "
            + " ".join(tables.refusals(cases))
        )
    document = tables.document(
        scenario, hardware, traffic, window, cases, wanted, method, dict.fromkeys(unknown)
    )
    return Outcome(
        {**document, "seconds": time.perf_counter() - begun},
        {
            "operators": tables.operators_table(cases),
            "devices": tables.devices_table(cases),
            "shards": tables.shards_table(cases),
        },
    )


def peak_hours(hardware: Hardware, traffic: Traffic, window: Window) -> dict[tuple[int, int], Peak]:
    """By (model, region) with any: the mean rate and lengths of the busiest hour of the window
    (ahead of the trace, of the window before), interactive tiers together, where requests arise."""
    demand, tiers = traffic.demand, interactive(hardware)
    end_s = window.start_s if window.ahead else window.end_s
    edges = demand.start_s + demand.bin_s * np.arange(demand.bins)
    inside = (edges > end_s - window.duration_s - 1e-6) & (edges < end_s - 1e-6)
    width = max(1, min(int(inside.sum()), round(HOUR_S / demand.bin_s)))
    found = {}
    for m, model in enumerate(hardware.models):
        for r, region in enumerate(hardware.regions):
            rows = [
                i
                for i, key in enumerate(demand.keys)
                if (key.model, key.region) == (model.name, region.name) and key.tier in tiers
            ]
            if not rows:
                continue
            amounts = np.stack(
                [
                    values[rows][:, inside].sum(axis=0)
                    for values in (demand.requests, demand.input_tokens, demand.output_tokens)
                ]
            )
            seen = np.isfinite(amounts).all(axis=0)
            sums = np.cumsum(np.pad(np.where(seen, amounts, 0.0), ((0, 0), (1, 0))), axis=1)
            bins = np.cumsum(np.r_[0, seen])
            over = sums[:, width:] - sums[:, :-width]
            counted = bins[width:] - bins[:-width]
            rate = over[0] / np.maximum(counted, 1) / demand.bin_s
            at = int(rate.argmax()) if rate.size else -1
            if at >= 0 and rate[at] > 0:
                requests, inputs, outputs = over[:, at]
                found[m, r] = Peak(float(rate[at]), inputs / requests, max(1.0, outputs / requests))
    return found


def limit_of(hardware: Hardware, phase: Phase, peaks: dict[tuple[int, int], Peak]) -> Limit:
    """The strictest TTFT (prefill) or TBT (decode) of the interactive tiers.

    A tier with a limit on the whole request alone leaves half of it to each phase (assumed).
    """
    name = "TTFT" if phase == "prefill" else "TBT"
    found: list[Limit] = []
    longest = max((peak.osl for peak in peaks.values()), default=1.0)
    for tier in hardware.tiers:
        if tier.deferrable:
            continue
        own = tier.ttft_s if phase == "prefill" else tier.tbt_s
        if own is not None:
            found.append(Limit(own, f"{name} of tier {tier.name}"))
        elif tier.e2e_s is not None:
            half = tier.e2e_s / 2 / (1.0 if phase == "prefill" else longest)
            found.append(Limit(half, f"half of the end-to-end limit of tier {tier.name} (assumed)"))
    if not found:
        return Limit(ASSUMED_SLO_S[phase], f"no tier bounds {name}; assumed")
    return min(found, key=lambda limit: limit.seconds)


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


def solve(
    service: Service,
    weights: str,
    wanted: Sequence[str],
    method: str,
    *,
    proofs: bool = True,
) -> tuple[PhaseProblem, dict[str, Level]]:
    """The levels of one service; none where whole replicas cannot meet the limit either."""
    device_bytes = MEMORY_SHARE * service.gpu.memory_bytes
    for most in REPLICAS:
        phase = problem_of(service, weights, max_replicas=most)
        whole = model_level(phase, device_bytes)
        found = {}
        for level in wanted:
            one = at_level(level, phase, device_bytes, method=method, whole=whole, proofs=proofs)
            if one is not None:
                found[level] = one
        if whole is not None:
            return phase, {**found, "model": whole}
    return phase, found


def problem_of(service: Service, weights: str, *, max_replicas: int = REPLICAS[0]) -> PhaseProblem:
    """The arrays of a service with the catalogue's efficiency factors and power by load."""
    gpu = service.gpu
    spread = [p for p in PARALLEL if p <= gpu.gpus_per_node and fits(service.shape, p)]
    try:
        return phase_problem(
            service,
            timing_of(gpu),
            batches=BATCHES,
            parallel=spread,
            weights=weights,
            max_replicas=max_replicas,
            power=power_model(gpu) if gpu.tdp_w else None,
        )
    except SimulationError as error:
        raise ScenarioError(f"gpus: {error}") from None


def timing_of(gpu: GpuSpec) -> Callable[..., tables.FloatArray]:
    """Seconds of an operator: published peaks times the shares of them that kernels reach."""
    return partial(estimated_s, gpu=gpu, efficiencies=efficiencies())


def fits(shape: ModelShape, parallel: int) -> bool:
    """Whether the heads divide among so many GPUs."""
    return shape.heads % parallel == 0


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
