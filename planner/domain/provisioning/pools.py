"""Plan both phases of every model and region on each possible GPU type, and choose one type."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from planner.domain.progress import Progress
from planner.domain.provisioning.levels import Judge, Measurements, Rules, problem_of, solve_levels
from planner.domain.provisioning.load import Limit, Peak
from planner.domain.provisioning.speeds import longest_start_s, profile_ratio
from planner.domain.provisioning.unit import MODEL, Case
from planner.errors import ScenarioError
from planner.inputs.scenario.build import Hardware
from simulation.arrays import IntArray
from simulation.performance.profile import Profile
from simulation.performance.specs import GpuSpec
from simulation.provisioning.workload import Phase, PhaseLoad

PHASES: tuple[Phase, ...] = ("prefill", "decode")


@dataclass(frozen=True, slots=True)
class Variant:
    """A model in a region on a GPU type in a precision: all pools of these, whatever their role."""

    m: int
    r: int
    gpu: GpuSpec
    weights: str
    usd_per_hour: float  # lowest price of a GPU
    peak: Peak
    capacity: int  # GPUs of the type in the region
    profiles: tuple[Profile, ...]  # of the pools


@dataclass(frozen=True, slots=True)
class Images:
    """The images in requests, which only models with an image encoder process."""

    per_request: float
    tokens: float  # encoder tokens per image

    def added_to(self, service: PhaseLoad) -> PhaseLoad:
        """Return ``service`` with these images, if its model has an encoder."""
        if not service.shape.encoder or not self.per_request:
            return service
        image_tokens = self.per_request * self.tokens
        return replace(service, images=self.per_request, image_tokens=image_tokens)


def unknown_models(hardware: Hardware, peaks: dict[tuple[int, int], Peak]) -> tuple[str, ...]:
    """Return the names of models that have requests but no known shape, so no operators."""
    names = [hardware.models[m].name for m, _ in peaks if hardware.models[m].shape is None]
    return tuple(dict.fromkeys(names))


def variants(hardware: Hardware, peaks: dict[tuple[int, int], Peak]) -> tuple[Variant, ...]:
    """Return the variants to plan; raise ScenarioError if there are none.

    ``peaks`` is by model and region. If several pools have one GPU type and precision, the cheapest
    gives the price.
    """
    if not peaks:
        raise ScenarioError("traffic: no request of an interactive tier falls into the window.")
    cheapest: dict[tuple[int, int, str, str], Variant] = {}
    profiles: dict[tuple[int, int, str, str], list[Profile]] = {}
    for m, r, g in hardware.pool_index:
        if (m, r) not in peaks or hardware.models[m].shape is None:
            continue
        gpu, weights = hardware.gpus[g], hardware.sections[m, g].precision
        price = float(hardware.usd_per_gpu_hour[r, g])
        key = (m, r, gpu.name, weights)
        profiles.setdefault(key, []).append(hardware.profiles[m, g])
        capacity = int(hardware.capacity_gpus[r, hardware.columns[g].gpu])
        if key not in cheapest or price < cheapest[key].usd_per_hour:
            cheapest[key] = Variant(
                m, r, gpu, weights, price, peaks[m, r], capacity, ()
            )  # fmt: skip
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
    """Plan both phases of each variant for its peak, within the limits of its model.

    ``limits`` are by model index and phase, ``measured`` by GPU type. ``lengths``, by model and
    region, are the input, output and cached tokens of the requests that replays draw from.
    """
    rules = settings.rules
    cases = []
    for done, variant in enumerate(variants):
        model, gpu = hardware.models[variant.m], variant.gpu
        progress(done / len(variants), f"Provisioning {model.name} on {gpu.name}")
        peak = variant.peak
        assert model.shape is not None  # see variants
        isl, osl, cached_tokens = lengths[variant.m, variant.r]
        for phase in PHASES:
            # Prefill skips cached tokens. Decode reads whole prompts, whoever computed them.
            skipped = cached_tokens * (phase == "prefill")
            cached = peak.isl * float(skipped.sum() / max(isl.sum(), 1))
            limit = limits[variant.m, phase]
            service = settings.images.added_to(
                PhaseLoad(
                    shape=model.shape,
                    gpu=gpu,
                    phase=phase,
                    requests_s=peak.requests_s,
                    isl=peak.isl - cached,
                    cached=cached,
                    osl=peak.osl,
                    slo_s=limit.seconds,
                    start_s=longest_start_s(phase, variant.profiles),
                )
            )
            judge = Judge(isl - skipped, osl, limit.attainment, settings.seed) if isl.size else None
            measurements = measured[gpu.name]
            if settings.by_profile:
                unscaled = problem_of(service, variant.weights, measured=measurements)
                ratio = profile_ratio(unscaled, variant.profiles)
                measurements = replace(measurements, times=ratio)
            problem, levels = solve_levels(service, variant.weights, rules, measurements, judge)
            cases.append(
                Case(
                    model=model.name,
                    region=hardware.regions[variant.r].name,
                    gpu=gpu.name,
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
            )
    return cases


def choose_variants(cases: list[Case]) -> list[Case]:
    """Mark, for each model and region, the cases of one GPU type and precision as chosen.

    Chosen is the cheapest as whole replicas for which all phases are feasible. Types with enough
    GPUs in the region are preferred.
    """
    # GPUs and dollars per hour of all phases, by model and region, then by GPU type and precision.
    sums: dict[tuple[str, str], dict[tuple[str, str], tuple[float, float]]] = {}
    for case in cases:
        by_variant = sums.setdefault((case.model, case.region), {})
        coarsest = case.levels.get(MODEL) or next(iter(case.levels.values()), None)
        gpus, usd = by_variant.get((case.gpu, case.weights), (0.0, 0.0))
        phase_gpus = math.inf if coarsest is None else coarsest.devices  # inf: not feasible
        by_variant[case.gpu, case.weights] = gpus + phase_gpus, usd + phase_gpus * case.usd_per_hour

    def chosen(case: Case) -> bool:
        """Return whether the case is of the cheapest feasible variant that fits the region."""
        by_variant = sums[case.model, case.region]
        capacity = {(case.gpu, case.weights): case.capacity for case in cases}

        def order(variant: tuple[str, str]) -> tuple[bool, float]:
            """Return the sort key of a variant: those that fit first, then by cost."""
            gpus, usd = by_variant[variant]
            return gpus > capacity[variant], usd

        best = min(by_variant, key=order)
        return best == (case.gpu, case.weights) and math.isfinite(by_variant[best][1])

    return [replace(case, chosen=chosen(case)) for case in cases]
