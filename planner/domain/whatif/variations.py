"""Define what-ifs: a variation changes values of a scenario, and a grid has many variations."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

from pydantic import ValidationError

from planner.errors import PlannerError, ScenarioError
from planner.inputs.scenario import document as text
from planner.inputs.scenario.address import with_values
from planner.inputs.scenario.schema import Scenario

Variation = Mapping[str, Any]  # addresses of a scenario to values; None removes a value
MOST_AXES, MOST_CELLS = 2, 256


@dataclass(frozen=True, slots=True)
class Axis:
    """A setting, or the address of a value, with the values that it takes."""

    key: str
    values: tuple[Any, ...]


def cells_of(axes: Sequence[Axis]) -> list[tuple[Any, ...]]:
    """Return the values of every cell, row by row; raise PlannerError if the grid is not valid."""
    if not 1 <= len(axes) <= MOST_AXES:
        raise PlannerError(f"vary: {len(axes)} settings. Choose one or two.")
    if len({axis.key for axis in axes}) < len(axes):
        raise PlannerError(f"vary: {axes[0].key} appears twice. Choose another second setting.")
    for axis in axes:
        if not axis.values:
            raise PlannerError(f"vary: {axis.key} has no values. Separate values with commas.")
        if len({repr(value) for value in axis.values}) < len(axis.values):
            raise PlannerError(f"vary: {axis.key} has a value twice. Give each value once.")
    count = prod(len(axis.values) for axis in axes)
    if count > MOST_CELLS:
        raise PlannerError(f"vary: {count} cells. Use at most {MOST_CELLS}.")
    return list(product(*(axis.values for axis in axes)))


def with_variation(scenario: Scenario, variation: Variation) -> Scenario:
    """Return ``scenario`` with a variation; raise ScenarioError if it is not valid then."""
    if not variation:
        return scenario
    try:
        return Scenario.model_validate(with_values(scenario, variation))
    except ValidationError:  # parse the text for a message with the line and the field
        return text.parse(text.edit(text.dump(scenario), variation), "what if")


def varied_document(document: str, variation: Variation) -> str:
    """Return the text of a scenario with a variation, comments kept, after checking it."""
    assigned = ", ".join(f"{key} = {value}" for key, value in variation.items())
    try:
        changed = text.edit(document, variation)
        text.parse(changed)
    except ScenarioError as problem:
        raise ScenarioError(f"vary: with {assigned}: {problem}") from None
    return changed
