"""Plan both phases of every model and region on each possible GPU type, and choose one type."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from planner.domain.progress import Progress
from planner.domain.provisioning.levels import Judge, Measurements, Rules, problem_of, solve_levels
from planner.domain.provisioning.load import Limit, Peak
from planner.domain.provisioning.speeds import longest_start_s, profile_ratio
from planner.domain.provisioning.unit import MODEL, Case, groups
from planner.errors import ScenarioError
from planner.inputs.scenario.build import Hardware
from simulation.arrays import IntArray
from simulation.performance.profile import Profile
from simulation.performance.specs import GpuSpec
from simulation.provisioning.workload import Phase, PhaseLoad

PHASES: tuple[Phase, ...] = ("prefill", "decode")


@dataclass(frozen=True, slots=True)
class Variant:
    """A model in a region on a GPU type in a precision, over all its pools of any role."""

    m: int  # index of the model
    r: int  # index of the region
    gpu: GpuSpec
    weights: str
    usd_per_hour: float  # lowest price of a GPU
    peak: Peak
    capacity: int  # GPUs of the type in the region
    profiles: tuple[Profile, ...] = ()  # one for each pool


@dataclass(frozen=True, slots=True)
class Images:
    """The images in requests, which only models with an image encoder process."""

    per_request: float
    tokens: float  # encoder tokens per image

    def added_to(self, service: PhaseLoad) -> PhaseLoad:
        """Return ``service`` with the work of encoding images, if its model has an encoder."""
        if not service.shape.encoder or not self.per_request:
            return service
        image_tokens = self.per_request * self.tokens
        return replace(service, images=self.per_request, image_tokens=image_tokens)


def unknown_models(hardware: Hardware, peaks: dict[tuple[int, int], Peak]) -> tuple[str, ...]:
    """Return the names of the models in ``peaks`` whose shape, and so operators, are unknown."""
    names = [hardware.models[m].name for m, _ in peaks if hardware.models[m].shape is None]
    return tuple(dict.fromkeys(names))


def variants(hardware: Hardware, peaks: dict[tuple[int, int], Peak]) -> tuple[Variant, ...]:
    """Return the variants (GPU type and precision) to plan for each model and region in ``peaks``.

    The price of a variant is that of its cheapest pool. Raises ScenarioError if there is nothing to
    plan.
    """
    if not peaks:
        raise ScenarioError("traffic: no request of an interactive tier falls into the window.")
    # By model index, region index, GPU type and precision.
    cheapest: dict[tuple[int, int, str, str], Variant] = {}
    profiles: dict[tuple[int, int, str, str], list[Profile]] = {}
    for m, r, g in hardware.model_region_gpu:
        if (m, r) not in peaks or hardware.models[m].shape is None:
            continue
        gpu, weights = hardware.gpus[g], hardware.sections[m, g].precision
        price = float(hardware.usd_per_gpu_hour[r, g])
        key = (m, r, gpu.name, weights)
        profiles.setdefault(key, []).append(hardware.profiles[m, g])
        capacity = int(hardware.capacity_gpus[r, hardware.columns[g].gpu])
        if key not in cheapest or price < cheapest[key].usd_per_hour:
            cheapest[key] = Variant(m, r, gpu, weights, price, peaks[m, r], capacity)
    if not cheapest:
        raise ScenarioError(
            "models: provisioning below the replica needs to know what "
            f"{' and '.join(unknown_models(hardware, peaks))} computes. Give it by shape or config "
            "instead of weight_gb, or use a built-in model."
        )
    return tuple(
        replace(variant, profiles=tuple(profiles[key])) for key, variant in cheapest.items()
    )


@dataclass(frozen=True, slots=True)
class SolveSettings:
    """How the cases of a run are planned."""

    rules: Rules
    images: Images
    by_profile: bool  # operator times are scaled to match the scenario's own profiles
    seed: int  # of replays


def solve_variants(
    hardware: Hardware,
    variants: tuple[Variant, ...],
    limits: Mapping[tuple[int, Phase], Limit],
    measured: dict[str, Measurements],
    lengths: Mapping[tuple[int, int], tuple[IntArray, IntArray, IntArray]],
    settings: SolveSettings,
    progress: Progress,
) -> list[Case]:
    """Return the plans of both phases of each variant for its peak hour, one case per phase.

    ``limits`` are by model index and phase, ``measured`` by GPU type. ``lengths`` has (input,
    output, cached) tokens of requests by model and region index, from which replays draw.
    """
    cases = []
    for done, variant in enumerate(variants):
        model, gpu = hardware.models[variant.m].name, variant.gpu.name
        progress(done / len(variants), f"Provisioning {model} on {gpu}")
        for phase in PHASES:
            limit, tokens = limits[variant.m, phase], lengths[variant.m, variant.r]
            cases.append(
                _solve_phase(hardware, variant, phase, limit, measured[gpu], tokens, settings)
            )
    return cases


def _solve_phase(
    hardware: Hardware,
    variant: Variant,
    phase: Phase,
    limit: Limit,
    measurements: Measurements,
    tokens: tuple[IntArray, IntArray, IntArray],
    settings: SolveSettings,
) -> Case:
    """Return the plans of one phase of a variant for its peak hour.

    ``tokens`` are (input, output, cached) tokens of the requests from which replays draw.
    """
    model, peak = hardware.models[variant.m], variant.peak
    assert model.shape is not None  # see ``variants``
    isl, osl, cached_tokens = tokens
    # Prefill skips cached tokens. Decode reads the whole context.
    skipped = cached_tokens if phase == "prefill" else np.zeros_like(cached_tokens)
    mean_skipped = peak.isl * float(skipped.sum() / max(isl.sum(), 1))
    service = settings.images.added_to(
        PhaseLoad(
            shape=model.shape,
            gpu=variant.gpu,
            phase=phase,
            requests_s=peak.requests_s,
            isl=peak.isl - mean_skipped,
            cached=mean_skipped,
            osl=peak.osl,
            slo_s=limit.seconds,
            start_s=longest_start_s(phase, variant.profiles),
        )
    )
    judge = Judge(isl - skipped, osl, limit.attainment, settings.seed) if isl.size else None
    if settings.by_profile:
        # Scale operator times so that a whole replica is as fast as its profile.
        unscaled = problem_of(service, variant.weights, measured=measurements)
        measurements = replace(measurements, times=profile_ratio(unscaled, variant.profiles))
    problem, levels = solve_levels(service, variant.weights, settings.rules, measurements, judge)
    return Case(
        model=model.name,
        region=hardware.regions[variant.r].name,
        gpu=variant.gpu.name,
        phase=phase,
        service=problem.service,
        limit=limit,
        weights=variant.weights,
        problem=problem,
        levels=levels,
        usd_per_hour=variant.usd_per_hour,
        measured=measurements,
        capacity=variant.capacity,
        profiles=variant.profiles,
        judge=judge,
    )


def choose_variants(cases: list[Case]) -> list[Case]:
    """Return ``cases``, of which those of one variant per model and region are marked as chosen.

    It is the variant (GPU type and precision) on which whole replicas cost least. Variants with
    enough GPUs in the region are preferred. Without a variant on which all phases are feasible,
    none is chosen.
    """
    chosen: set[int] = set()  # ids of cases

    def lacks_gpus_and_usd(variant: list[Case]) -> tuple[bool, float]:
        """Return whether the region has too few GPUs for both phases, and their USD per hour.

        The price is infinite if a phase is infeasible.
        """
        gpus = 0.0
        for case in variant:
            # The first plan of a case is that of its coarsest level.
            coarsest = case.levels.get(MODEL) or next(iter(case.levels.values()), None)
            gpus += math.inf if coarsest is None else coarsest.devices
        return gpus > variant[0].capacity, gpus * variant[0].usd_per_hour

    for same_service in groups(cases, lambda case: (case.model, case.region)):
        same_variant = groups(same_service, lambda case: (case.gpu, case.weights))
        cheapest = min(same_variant, key=lacks_gpus_and_usd)
        _, usd_per_hour = lacks_gpus_and_usd(cheapest)
        if math.isfinite(usd_per_hour):
            chosen.update(map(id, cheapest))
    return [replace(case, chosen=id(case) in chosen) for case in cases]
