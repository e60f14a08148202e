"""From the scenario to the core: built-in facts looked up, the user's own taken over."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from planner.errors import ScenarioError
from planner.scenario.known import NOTHING, Known
from planner.scenario.places import price_of, region_of
from planner.scenario.power import host_of, power_at_load, power_facts
from planner.scenario.schema import Scenario
from planner.scenario.specs import gpu_of, model_of
from planner.scenario.speeds import speed_of
from simulation.fleet import Fleet, Pool, Region, Tier
from simulation.performance.profile import Profile as Speed
from simulation.performance.specs import GpuSpec, ModelSpec, Provenance

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]
FAR_S = 0.030  # between regions that state no latency: continental, SageServe section 7.1 has < 0.5


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
                power=power_at_load(self.models[m], self.gpus[g], self.profiles[m, g]),
                host_w=host_of(self.gpus[g])[0],
            )
            for m, r, g in self.pool_index
        )
        return Fleet(tiers=self.tiers, regions=self.regions, pools=pools, latency_s=self.latency_s)


def build_hardware(scenario: Scenario, known: Known = NOTHING) -> Hardware:
    """Everything but the traffic; ``known`` are the user's own facts that the scenario names.

    Raises ScenarioError naming what is unknown and what is known.
    """
    facts: list[tuple[str, Provenance]] = []
    models = tuple(model_of(section, known) for section in scenario.models)
    facts += [(f"Memory of {model.name}", model.provenance) for model in models]
    names = list(dict.fromkeys(profile.gpu for profile in scenario.profiles))
    gpus = tuple(gpu_of(scenario, name, known) for name in names)
    facts += [(f"Memory and power of {gpu.name}", gpu.provenance) for gpu in gpus]
    profiles: dict[tuple[int, int], Speed] = {}
    for section in scenario.profiles:
        m = next(i for i, model in enumerate(models) if model.name == section.model)
        g = names.index(section.gpu)
        profiles[m, g] = speed_of(section, models[m], gpus[g], known)
        what = f"Speed of {section.model} on {profiles[m, g].tp} x {section.gpu}"
        facts.append((what, profiles[m, g].provenance))
        load = power_at_load(models[m], gpus[g], profiles[m, g])
        facts += [fact for fact in power_facts(gpus[g], load) if fact not in facts]
    regions, capacity, price = [], [], []
    for part in scenario.regions:
        regions.append(region_of(part, facts))
        capacity.append([part.capacity.get(name, 0) for name in names])
        price.append([price_of(part, name, facts) for name in names])
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
