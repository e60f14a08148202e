"""Turn a fleet's replica counts into services to place; disaggregate them if requested.

A GPU column is a GPU type with its number of GPUs and role.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.errors import ScenarioError
from planner.inputs.scenario.build import Hardware
from planner.inputs.scenario.columns import SHOWN
from planner.inputs.scenario.schema import PlacedService, Replicas, Scenario
from planner.inputs.scenario.topology import rules_of
from planner.optimizer.placement import Part, Role, Service
from planner.optimizer.problem import BOTH, DECODE, PREFILL
from simulation.arrays import IntArray


@dataclass(frozen=True, slots=True)
class ServiceColumns:
    """A service to place, with its pools: a model, a region and one GPU column per role."""

    service: Service
    model: int
    region: int
    columns: tuple[int, ...]  # [role]

    @property
    def has_kv_transfers(self) -> bool:
        """Return whether prefill replicas transfer KV caches to decode replicas."""
        return len(self.columns) > 1


def placed_services(
    scenario: Scenario, hardware: Hardware, counts: IntArray
) -> tuple[ServiceColumns, ...]:
    """Return the services of the replicas ``counts [model, region, GPU column]``.

    The prefill and decode pools of a model and region are one service, and each mixed pool is one.
    Raises ScenarioError if there are no replicas, or only those of prefill or of decode.
    """
    rules = tuple(rules_of(scenario, model.name) for model in hardware.models)
    services = services_by(rules, hardware, counts)
    if not services:
        raise ScenarioError("There are no replicas to place. Give fleet.today or more traffic.")
    return services


def services_by(
    rules_by_model: Sequence[PlacedService], hardware: Hardware, counts: IntArray
) -> tuple[ServiceColumns, ...]:
    """Return the services of the replicas ``counts [model, region, GPU column]``.

    The prefill and decode pools of a model and region are one service, and each mixed pool is one.
    ``rules_by_model`` has the placement rules of each model. Raises ScenarioError if prefill
    replicas have no decode replicas, or vice versa.
    """
    services = []
    for m, r in np.argwhere(counts.any(axis=2)).tolist():
        rules, wanted = rules_by_model[m], counts[m, r]
        name = f"{hardware.models[m].name} / {hardware.regions[r].name}"
        groups = _columns_of_services(hardware, wanted, name)
        for columns in groups:
            label = name
            if len(groups) > 1:
                label = f"{name} / {', '.join(hardware.arrangement(m, g) for g in columns)}"
            service = Service(
                name=label,
                centre=r,
                roles=tuple(_role(hardware, rules, m, g, label) for g in columns),
                wanted=tuple(int(wanted[g]) for g in columns),
                ratio=tuple(rules.ratio) if rules.ratio and len(columns) == 2 else (),
                affinity=rules.affinity if len(columns) > 1 else "none",
                priority=rules.priority,
            )
            services.append(ServiceColumns(service, m, r, columns))
    return tuple(services)


def _columns_of_services(hardware: Hardware, wanted: IntArray, name: str) -> list[tuple[int, ...]]:
    """Return the GPU columns of each service of a model and region, with ``wanted`` replicas.

    ``name`` is that of the model and region, for errors.
    """
    used: dict[int, list[int]] = {BOTH: [], PREFILL: [], DECODE: []}  # GPU columns by stage
    for g in np.flatnonzero(wanted).tolist():
        used[int(hardware.stages[g])].append(g)
    if bool(used[PREFILL]) != bool(used[DECODE]):
        raise ScenarioError(
            f"{name} has prefill replicas without decode replicas, or the other way round. "
            "Give both in fleet.today."
        )
    services: list[tuple[int, ...]] = [(g,) for g in used[BOTH]]
    if used[PREFILL]:
        services.insert(0, (*used[PREFILL], *used[DECODE]))
    return services


def disaggregated_scenario(
    scenario: Scenario, ratio: tuple[int, int], today: list[Replicas]
) -> Scenario:
    """Return the scenario with disaggregated in place of aggregated serving.

    Every mixed profile becomes a prefill and a decode profile. The rows ``today`` become the
    current fleet, with their mixed replicas divided by ``ratio``. Raises ScenarioError if there is
    only one replica to divide.
    """
    profiles = []
    for profile in scenario.profiles:
        roles = ("prefill", "decode") if profile.role == "mixed" else (profile.role,)
        profiles += [profile.model_copy(update={"role": role}) for role in roles]
    rows: list[Replicas] = []
    for row in today:
        rows += _divided(row, ratio) if row.role in (None, "mixed") else [row]
    fleet = scenario.fleet.model_copy(update={"today": rows})
    return scenario.model_copy(update={"profiles": profiles, "fleet": fleet})


def _divided(row: Replicas, ratio: tuple[int, int]) -> list[Replicas]:
    """Return mixed replicas divided by ``ratio`` (prefill, decode), at least one of each role.

    Raises ScenarioError if there is only one replica.
    """
    if row.replicas == 1:
        raise ScenarioError(
            f"{row.model} in {row.region} has one replica on {row.gpu}, too few for separate "
            "prefill and decode. Leave the ratio out."
        )
    prefill_part, decode_part = ratio
    by_ratio = round(row.replicas * prefill_part / (prefill_part + decode_part))
    prefill = min(row.replicas - 1, max(1, by_ratio))
    counts = {"prefill": prefill, "decode": row.replicas - prefill}
    # Limits of the mixed pool do not apply to its parts.
    without_limits = row.model_copy(update={"minimum": None, "maximum": None, "lent": None})
    return [
        without_limits.model_copy(update={"role": role, "replicas": count})
        for role, count in counts.items()
    ]


def current_fleet_rows(hardware: Hardware, counts: IntArray) -> list[Replicas]:
    """Return ``counts [model, region, GPU column]`` as rows of the section ``fleet.today``."""
    rows = []
    for m, r, g in np.argwhere(counts > 0).tolist():
        section = hardware.sections[m, g]
        rows.append(
            Replicas(
                model=hardware.models[m].name,
                region=hardware.regions[r].name,
                gpu=hardware.gpus[g].name,
                tp=hardware.profiles[m, g].tp,
                precision=section.precision,
                role=SHOWN[hardware.columns[g].role],
                replicas=int(counts[m, r, g]),
            )
        )
    return rows


def _role(hardware: Hardware, rules: PlacedService, m: int, g: int, name: str) -> Role:
    """Return the role of replicas of model ``m`` on GPU column ``g``, with parts and GPU types.

    A replica is one part, unless the rules divide a prefill replica's GPUs between attention and
    FFN. ``name`` is that of the service, for errors.
    """
    column = hardware.columns[g]
    role, gpus = column.role, hardware.profiles[m, g].tp
    type_names = [gpu.name for gpu in hardware.gpu_types]
    fallbacks = [type_names.index(fallback) for fallback in rules.fallbacks]
    gpu_types = tuple(dict.fromkeys([column.gpu, *fallbacks]))  # the preferred type first
    if role != "prefill" or rules.attention_to_ffn is None:
        return Role(role, (Part(role, gpus, gpu_types),))
    attention, ffn = rules.attention_to_ffn
    if gpus % (attention + ffn):
        raise ScenarioError(
            f"placement.services: a prefill replica of {name} has {gpus} GPUs, which "
            f"{attention} attention and {ffn} FFN replicas cannot share evenly. Choose an "
            "attention_to_ffn with a sum that divides it."
        )
    part_gpus = gpus // (attention + ffn)
    parts = ("attention", attention), ("ffn", ffn)
    return Role(role, tuple(Part(part, part_gpus, gpu_types, count) for part, count in parts))
