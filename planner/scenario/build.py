"""From the scenario to the core: built-in facts looked up, the user's own taken over."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from planner import catalogue
from planner.errors import ScenarioError
from planner.scenario.known import NOTHING, Known
from planner.scenario.schema import Profile, Scenario
from planner.scenario.schema import Region as RegionSection
from simulation.fleet import Fleet, Pool, Region, Tier
from simulation.performance.linear import LinearProfile
from simulation.performance.memory import kv_capacity_tokens
from simulation.performance.profile import Profile as Speed
from simulation.performance.specs import GpuSpec, ModelSpec, Provenance

T = TypeVar("T")
GB = 1e9
IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
FAR_S = 0.030  # between regions that state no latency: continental, SageServe section 7.1 has < 0.5
MAX_BATCH, MAX_BATCH_TOKENS = 256, 2048  # of a profile given in full: vLLM's own defaults
DEFAULT_PUE = 1.2  # where neither the scenario nor the catalogue says


@dataclass(frozen=True, slots=True, eq=False)
class Hardware:
    """The serving side of a scenario. Axes ``l`` models, ``r`` regions, ``g`` GPU types."""

    models: tuple[ModelSpec, ...]
    gpus: tuple[GpuSpec, ...]
    regions: tuple[Region, ...]
    tiers: tuple[Tier, ...]
    profiles: dict[tuple[int, int], Speed]  # by (l, g); absent: does not run there
    capacity_gpus: IntArray  # [r, g]
    usd_per_gpu_hour: FloatArray  # [r, g]
    latency_s: FloatArray  # [r, r]
    minimum: IntArray  # [l, r, g]
    maximum: IntArray  # [l, r, g]
    today: IntArray | None  # [l, r, g]; None where the scenario does not say
    startup_s: float
    provenance: tuple[tuple[str, Provenance], ...]  # what, where from

    @property
    def pool_index(self) -> list[tuple[int, int, int]]:
        """(l, r, g) of each pool of ``fleet``, in its order."""
        return [
            (m, r, g)
            for m in range(len(self.models))
            for r in range(len(self.regions))
            for g in range(len(self.gpus))
            if (m, g) in self.profiles and self.maximum[m, r, g] > 0
        ]

    def fleet(self, initial: IntArray) -> Fleet:
        """A fleet with ``initial`` instances, shape ``[l, r, g]``."""
        pools = tuple(
            Pool(
                model=self.models[m].name,
                region=self.regions[r].name,
                profile=self.profiles[m, g],
                gpu=self.gpus[g],
                initial=int(initial[m, r, g]),
                minimum=int(self.minimum[m, r, g]),
                maximum=int(self.maximum[m, r, g]),
                startup_s=self.startup_s,
                usd_per_gpu_hour=float(self.usd_per_gpu_hour[r, g]),
                max_context=self.models[m].max_context,
            )
            for m, r, g in self.pool_index
        )
        return Fleet(tiers=self.tiers, regions=self.regions, pools=pools, latency_s=self.latency_s)


def build_hardware(scenario: Scenario, known: Known = NOTHING) -> Hardware:
    """Everything but the traffic; ``known`` are the user's own facts that the scenario names.

    Raises ScenarioError naming what is unknown and what is known.
    """
    facts: list[tuple[str, Provenance]] = []
    models = tuple(_model(scenario, m.name, known, facts) for m in scenario.models)
    names = list(dict.fromkeys(profile.gpu for profile in scenario.profiles))
    gpus = tuple(_gpu(scenario, name, known, facts) for name in names)
    profiles: dict[tuple[int, int], Speed] = {}
    for section in scenario.profiles:
        m = next(i for i, model in enumerate(models) if model.name == section.model)
        g = names.index(section.gpu)
        profiles[m, g] = _profile(section, models[m], gpus[g], known)
        what = f"Speed of {section.model} on {profiles[m, g].tp} x {section.gpu}"
        facts.append((what, profiles[m, g].provenance))
    regions, capacity, price = [], [], []
    for part in scenario.regions:
        regions.append(_region(part, facts))
        capacity.append([part.capacity.get(name, 0) for name in names])
        price.append([_price(part, name, facts) for name in names])
    capacity_gpus = np.array(capacity, dtype=np.int64)
    minimum, maximum, today = _bounds(scenario, names, profiles, capacity_gpus, np.array(price))
    return Hardware(
        models=models,
        gpus=gpus,
        regions=tuple(regions),
        tiers=tuple(
            Tier(
                name=tier.name,
                ttft_s=_seconds(tier.ttft_ms),
                tbt_s=_seconds(tier.tbt_ms),
                e2e_s=_seconds(tier.e2e_ms),
                attainment=tier.percentile / 100,
                deferrable=tier.deferrable,
            )
            for tier in scenario.tiers
        ),
        profiles=profiles,
        capacity_gpus=capacity_gpus,
        usd_per_gpu_hour=np.array(price, dtype=np.float64),
        latency_s=_latency(scenario),
        minimum=minimum,
        maximum=maximum,
        today=today,
        startup_s=scenario.fleet.startup_s,
        provenance=tuple(facts),
    )


def _seconds(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


def _model(
    scenario: Scenario, name: str, known: Known, facts: list[tuple[str, Provenance]]
) -> ModelSpec:
    section = next(m for m in scenario.models if m.name == name)
    if section.weight_gb and section.kv_bytes_per_token and section.max_context:
        spec = ModelSpec(
            name=name,
            weight_bytes=section.weight_gb * GB,
            kv_bytes_per_token=section.kv_bytes_per_token,
            max_context=section.max_context,
            provenance=Provenance("assumed", section.source),
        )
    else:
        spec = _known("models", "model", name, {**known.models, **catalogue.models()})
    facts.append((f"Memory of {name}", spec.provenance))
    return spec


def _gpu(
    scenario: Scenario, name: str, known: Known, facts: list[tuple[str, Provenance]]
) -> GpuSpec:
    section = next((g for g in scenario.gpus if g.name == name and g.in_full), None)
    if section is None:
        spec = _known("gpus", "GPU", name, {**known.gpus, **catalogue.gpus()})
    else:
        spec = GpuSpec(
            name=name,
            memory_bytes=(section.memory_gb or 0) * GB,
            idle_w=section.idle_w or 0,
            prefill_w=section.prefill_w or 0,
            decode_w=section.decode_w or 0,
            provenance=Provenance("assumed", section.source),
        )
    facts.append((f"Memory and power of {name}", spec.provenance))
    return spec


def _known(section: str, what: str, name: str, built_in: dict[str, T]) -> T:
    if name not in built_in:
        raise ScenarioError(
            f"{section}: {what} {name!r} is not built in; give it in full, or use one of "
            f"{', '.join(sorted(built_in))}."
        )
    return built_in[name]


def _profile(section: Profile, model: ModelSpec, gpu: GpuSpec, known: Known) -> Speed:
    if section.name is not None:
        return _kept(section, known)
    if not section.in_full:
        built_in = catalogue.profiles()
        key = (section.model, section.gpu, section.tp)
        if key not in built_in:
            have = ", ".join(
                f"{m} on {tp} x {g}" for m, g, tp in sorted(built_in) if m == section.model
            )
            raise ScenarioError(
                f"profiles: there is no built-in profile of {section.model} on {section.tp} x "
                f"{section.gpu}; give alpha_ms, beta_ms, gamma_ms and delta_ms"
                + (f", or use {have}." if have else ".")
            )
        profile = built_in[key]
        return replace(
            profile,
            max_batch=section.max_batch or profile.max_batch,
            max_batch_tokens=section.max_batch_tokens or profile.max_batch_tokens,
        )
    return LinearProfile(
        model=section.model,
        gpu=section.gpu,
        tp=section.tp,
        alpha_s=(section.alpha_ms or 0) / 1000,
        beta_s=(section.beta_ms or 0) / 1000,
        gamma_s=(section.gamma_ms or 0) / 1000,
        delta_s=(section.delta_ms or 0) / 1000,
        max_batch=section.max_batch or MAX_BATCH,
        max_batch_tokens=section.max_batch_tokens or MAX_BATCH_TOKENS,
        kv_capacity_tokens=kv_capacity_tokens(model, gpu, section.tp),
        provenance=Provenance("assumed", section.source),
    )


def _kept(section: Profile, known: Known) -> Speed:
    """The profile of this installation that the section names; ``tp`` may be left out."""
    name = section.name or ""
    if name not in known.profiles:
        raise ScenarioError(
            f"profiles: {name!r} is kept in no database here; give model, gpu and tp of a built-in "
            "profile, or alpha_ms to delta_ms."
        )
    profile = known.profiles[name]
    said = (section.model, section.gpu, section.tp if section.tp > 1 else profile.tp)
    if said != (profile.model, profile.gpu, profile.tp):
        raise ScenarioError(
            f"profiles: {name} is of {profile.model} on {profile.tp} x {profile.gpu}, not of "
            f"{said[0]} on {said[2]} x {said[1]}; correct model, gpu and tp."
        )
    return profile


def _like(section: RegionSection) -> catalogue.CatalogueRegion | None:
    return _known("regions", "region", section.like, catalogue.regions()) if section.like else None


def _region(section: RegionSection, facts: list[tuple[str, Provenance]]) -> Region:
    like = _like(section)
    given = Provenance("assumed", "scenario")
    carbon, pue = section.carbon_g_per_kwh, section.pue
    if carbon is None:
        if like is None:
            raise ScenarioError(
                f"regions: {section.name} has no carbon_g_per_kwh; give it, or 'like' with one of "
                f"{', '.join(sorted(catalogue.regions()))}."
            )
        carbon = like.carbon_g_per_kwh
        facts.append((f"Carbon intensity in {section.name}", like.sources["carbon_g_per_kwh"]))
    else:
        facts.append((f"Carbon intensity in {section.name}", given))
    if pue is None:
        pue = like.pue if like else DEFAULT_PUE
        source = like.sources["pue"] if like else Provenance("assumed", "no PUE given")
        facts.append((f"PUE in {section.name}", source))
    else:
        facts.append((f"PUE in {section.name}", given))
    return Region(name=section.name, carbon_g_per_kwh=carbon, pue=pue)


def _price(section: RegionSection, gpu: str, facts: list[tuple[str, Provenance]]) -> float:
    what = f"Price of {gpu} in {section.name}"
    if gpu in section.usd_per_gpu_hour:
        facts.append((what, Provenance("assumed", "scenario")))
        return section.usd_per_gpu_hour[gpu]
    like = _like(section)
    if like is not None and gpu in like.usd_per_gpu_hour:
        facts.append((what, like.sources[gpu]))
        return like.usd_per_gpu_hour[gpu]
    if not section.capacity.get(gpu):
        return 0.0  # none there to pay for
    raise ScenarioError(
        f"regions: {section.name} has no price for {gpu}; add usd_per_gpu_hour: {{{gpu}: ...}}, "
        "or 'like' with a built-in region that has one."
    )


def _latency(scenario: Scenario) -> FloatArray:
    names = [region.name for region in scenario.regions]
    latency = np.full((len(names), len(names)), FAR_S)
    np.fill_diagonal(latency, 0.0)
    for i, region in enumerate(scenario.regions):
        for other, value in region.latency_ms.items():
            j = names.index(other)
            latency[i, j] = value / 1000
            if names[i] not in scenario.regions[j].latency_ms:
                latency[j, i] = value / 1000
    return latency


def _bounds(
    scenario: Scenario,
    gpus: list[str],
    profiles: dict[tuple[int, int], Speed],
    capacity_gpus: IntArray,
    price: FloatArray,
) -> tuple[IntArray, IntArray, IntArray | None]:
    """Minimum, maximum and present instances, each ``[l, r, g]``.

    The scenario's minimum per model and region falls to the cheapest arrangement there.
    """
    models = [model.name for model in scenario.models]
    regions = [region.name for region in scenario.regions]
    shape = (len(models), len(regions), len(gpus))
    minimum, maximum = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    for (m, g), profile in profiles.items():
        maximum[m, :, g] = capacity_gpus[:, g] // profile.tp
    for m in range(shape[0]):
        for r in range(shape[1]):
            able = [g for g in range(shape[2]) if maximum[m, r, g] > 0]
            if able:
                cheapest = min(able, key=lambda g: price[r, g] * profiles[m, g].tp)
                minimum[m, r, cheapest] = min(scenario.fleet.minimum, maximum[m, r, cheapest])
    if not scenario.fleet.today:
        return minimum, maximum, None
    today = np.zeros(shape, np.int64)
    for row in scenario.fleet.today:
        at = (models.index(row.model), regions.index(row.region), gpus.index(row.gpu))
        if row.replicas > maximum[at]:
            raise ScenarioError(
                f"fleet.today: {row.replicas} replicas of {row.model} on {row.gpu} in {row.region} "
                f"are more than the {maximum[at]} that fit; raise the region's capacity."
            )
        today[at] = row.replicas
        if row.maximum is not None:
            maximum[at] = min(maximum[at], row.maximum)
        wanted = minimum[at] if row.minimum is None else row.minimum
        minimum[at] = min(wanted, maximum[at])
    return minimum, maximum, today
