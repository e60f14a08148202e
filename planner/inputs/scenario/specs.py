"""Find models and GPU types: built-in ones by any name, the user's own, or stated in full."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypeVar

from planner.errors import CatalogueError, ScenarioError
from planner.inputs import catalogue
from planner.inputs.catalogue import user_hardware
from planner.inputs.catalogue.huggingface import shape_of
from planner.inputs.catalogue.names import UnknownName
from planner.inputs.scenario.schema import Model, Scenario
from planner.inputs.scenario.user_facts import UserFacts
from simulation.errors import SimulationError
from simulation.performance.specs import GpuSpec, ModelShape, ModelSpec, Provenance

T = TypeVar("T", GpuSpec, ModelSpec)
GB = 1e9


def model_of(section: Model, user_facts: UserFacts) -> ModelSpec:
    """Return the model that a row of ``models`` describes or names, with its name in the scenario.

    Raise ScenarioError if there is no such model, or if the row is faulty.
    """
    provenance = Provenance("assumed", section.source)
    if section.weight_gb and section.kv_bytes_per_token and section.max_context:
        return ModelSpec(
            name=section.name,
            weight_bytes=section.weight_gb * GB,
            kv_bytes_per_token=section.kv_bytes_per_token,
            max_context=section.max_context,
            provenance=provenance,
        )
    shape = _shape(section)
    if shape is not None:
        return catalogue.model_of_shape(shape, provenance)
    spec = _find(
        "models", "model", section.name, catalogue.models(), user_facts.models, catalogue.model
    )
    return replace(spec, name=section.name)


def _shape(section: Model) -> ModelShape | None:
    """Return the shape in the section's ``config`` or ``shape``; None without either."""
    try:
        if section.config is not None:
            return shape_of(section.config, section.name)
        if section.shape is not None:
            return ModelShape(name=section.name, **section.shape.model_dump())
    except (CatalogueError, SimulationError) as error:
        raise ScenarioError(f"models: {error}") from None
    return None


def gpu_of(scenario: Scenario, name: str, user_facts: UserFacts) -> GpuSpec:
    """Return the GPU type ``name``: in full, the user's or built in; or raise ScenarioError."""
    section = next((gpu for gpu in scenario.gpus if gpu.name == name and gpu.in_full), None)
    if section is None:
        spec = _find("gpus", "GPU", name, catalogue.gpus(), user_facts.gpus, catalogue.gpu)
        return replace(spec, name=name)
    values = section.model_dump(exclude={"name", "source", "power_sweep"}, exclude_none=True)
    try:
        return user_hardware.gpu_spec(name, values, Provenance("assumed", section.source))
    except CatalogueError as error:
        raise ScenarioError(f"gpus: {error}") from None


def _find(
    section: str,
    what: str,
    name: str,
    built_in: Mapping[str, T],
    own_facts: Mapping[str, T],
    by_alias: Callable[[str], T],
) -> T:
    """Return the GPU type or model ``name``.

    The catalogue's own names (``built_in``) are tried first, then the user's facts, then other
    names of the catalogue (``by_alias``). Raise ScenarioError with the most similar names if there
    is none; ``section`` and ``what`` are words for it.
    """
    for facts in (built_in, own_facts):
        if name in facts:
            return facts[name]
    try:
        return by_alias(name)
    except UnknownName as error:
        raise ScenarioError(
            f"{section}: {what} {name!r} is not built in. Give it in full, or use one of "
            f"{error.nearest}."
        ) from None
