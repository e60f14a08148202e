"""Define the base class of all policies: parameters, traits, and how to build the policy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Self

import numpy as np
from pydantic import Field, PrivateAttr

from planner.policies.context import BuiltPolicy, Plan, PolicyContext
from planner.schema_types import Name, Section

Factor = Annotated[float, Field(ge=0, le=1000)]
Above = Annotated[float, Field(gt=0, le=1000)]
Interval = Annotated[float, Field(ge=1, le=86_400)]  # s between scaling decisions
LoadFactor = Annotated[float, Field(gt=0, le=100)]  # the plan is for this factor times the forecast
Step = Annotated[float, Field(ge=1, le=10)]  # factor on the number of instances
TARGETS = ("target", "target_ms")  # optional fields: a policy with a set target is not tuned
SEPARATOR = ":"  # between a policy's name and its label
TODAY = "today"  # policy of the fleet that the scenario states; label of today's autoscaler


class Group(StrEnum):
    """Headings of policy lists, in their order."""

    FIXED = "Fixed"
    REACTIVE = "Reactive"
    PLANNED = "Planned on a forecast"
    COORDINATED = "Coordinated prefill and decode"
    ROLES = "Replicas that change roles"
    OPPONENT = "Autoscalers of other systems"
    OWN = "This installation's own"


@dataclass(frozen=True, slots=True)
class Style:
    """How charts draw a policy: a colour of the palette, a Plotly dash and a line width."""

    colour: str
    dash: str = "solid"
    width: float = 1.5


@dataclass(frozen=True, slots=True)
class TunedParameter:
    """The parameter of a policy that backtests tune, and the values to try (methods.md X5).

    ``values`` go from the cheapest to the safest. A policy that meets the SLO at one value is
    assumed to meet it at all later values.
    """

    field: str
    values: tuple[float, ...]


def factors(lowest: float, highest: float, count: int = 15) -> tuple[float, ...]:
    """Return ``count`` values from ``lowest`` to ``highest`` in equal ratios, to three digits.

    They are values to try of a tuned parameter. ``lowest`` may be above ``highest``.
    """
    steps = np.geomspace(lowest, highest, count)
    return tuple(float(f"{value:.3g}") for value in steps)


@dataclass(frozen=True, slots=True)
class Traits:
    """Properties of a policy that pages, comparisons and recommendations use."""

    label: str  # name in tables
    line: str  # description in lists
    group: Group
    # Rank by moving parts: static fleets, clocks, one threshold, several readings, a forecast with
    # a solver, several controllers. Of equally good policies the simplest is recommended.
    complexity: int
    plan: Plan | None = None  # the plan that it follows
    may_exceed_plan: bool = False  # may run more instances than its plan
    flat: bool = False  # a static fleet
    hindsight: bool = False  # sized on the demand of the window (oracle)
    reads_future: bool = False  # reads the future demand, so it cannot be deployed
    needs_current_fleet: bool = False  # needs the fleet that runs now
    always: bool = False  # in every comparison, even if the scenario does not list it
    style: Style | None = None

    @property
    def uses_future_data(self) -> bool:
        """Return whether the policy uses future data (oracle baseline)."""
        return self.hindsight or self.reads_future

    @property
    def list_order(self) -> tuple[int, bool, int]:
        """Return the sort key for lists: group, whether its plan sets a forecaster, complexity."""
        sets_forecaster = self.plan is not None and self.plan.method is not None
        return list(Group).index(self.group), sets_forecaster, self.complexity


class Policy(Section):
    """A policy with its parameters.

    A subclass declares its names as a Literal, and the traits of each name in ``kinds``. Its
    parameters have the defaults of its class in ``simulation.policies``.
    """

    kinds: ClassVar[dict[str, Traits]] = {}

    label: Name | None = None  # distinguishes policies of one name, and is shown in tables
    name: str
    _shares_label: bool = PrivateAttr(default=False)  # a policy of another name has the same label

    @property
    def key(self) -> str:
        """Return the identifier in a comparison: ``name``, or ``name:label`` with a label."""
        return self.name if self.label is None else f"{self.name}{SEPARATOR}{self.label}"

    @property
    def traits(self) -> Traits:
        """Return the traits of this policy's name."""
        return self.kinds[self.name]

    @property
    def title(self) -> str:
        """Return the title for tables: the label, or else that of the policy's name."""
        if self.label and self._shares_label:
            return f"{self.label} ({self.traits.label})"
        return self.label or self.traits.label

    @property
    def arguments(self) -> dict[str, Any]:
        """Return the parameters by name, defaults included, without name and label."""
        return self.model_dump(exclude={"name", "label"})

    @property
    def tuned_parameter(self) -> TunedParameter | None:
        """Return the parameter that backtests tune; None: none."""
        return None

    @property
    def parameter_to_tune(self) -> TunedParameter | None:
        """Return the parameter to tune, or None.

        A policy has none if the scenario sets the parameter itself, or a target that it scales.
        """
        parameter, fields = self.tuned_parameter, type(self).model_fields
        if parameter is None:
            return None
        names = [parameter.field]
        names += [name for name in TARGETS if name in fields and fields[name].default is None]
        is_set = any(getattr(self, name) != fields[name].default for name in names)
        return None if is_set else parameter

    def with_unique_title(self, others: Iterable[Policy]) -> Self:
        """Return the policy with a title that differs from those of ``others``.

        If another policy has the same label under another name, the title has the name too.
        """
        ambiguous = self.label and any(
            other.label == self.label and other.name != self.name for other in others
        )
        if not ambiguous:
            return self
        copy = self.model_copy()
        copy._shares_label = True
        return copy

    def with_value(self, value: float) -> Self:
        """Return a copy with the tuned parameter set to ``value``."""
        assert self.tuned_parameter is not None
        return self.model_copy(update={self.tuned_parameter.field: value})

    def fields_for(self, rule: Any) -> dict[str, Any]:
        """Return those parameters that are fields of the dataclass ``rule``, to construct it."""
        arguments = self.arguments
        return {
            field.name: arguments[field.name] for field in fields(rule) if field.name in arguments
        }

    def build(self, context: PolicyContext) -> BuiltPolicy:
        """Return the policy for a study, with its initial fleet.

        Raises ScenarioError or SimulationError if the study lacks an input.
        """
        raise NotImplementedError
