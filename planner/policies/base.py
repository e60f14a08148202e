"""What every policy says of itself: its words in a scenario, its traits, and how it is made."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Annotated, Any, ClassVar, Self

import numpy as np
from pydantic import Field, PrivateAttr

from planner.policies.making import Making, Plan, Ready
from planner.sections import Name, Section

Factor = Annotated[float, Field(ge=0, le=1000)]
Above = Annotated[float, Field(gt=0, le=1000)]
Interval = Annotated[float, Field(ge=1, le=86_400)]  # s between looks
LoadFactor = Annotated[float, Field(gt=0, le=100)]  # times the forecast that is planned for
Step = Annotated[float, Field(ge=1, le=10)]  # times as many instances
SEPARATOR = ":"  # between a policy's name and its label


class Group(StrEnum):
    """Under which title lists show it, in their order."""

    FIXED = "Fixed"
    REACTIVE = "Reactive"
    PLANNED = "Planned on a forecast"
    COORDINATED = "Coordinated prefill and decode"
    OWN = "This installation's own"


@dataclass(frozen=True, slots=True)
class Style:
    """Its line in charts: a colour of their palette, a dash of Plotly's, a width."""

    colour: str
    dash: str = "solid"
    width: float = 1.5


@dataclass(frozen=True, slots=True)
class Knob:
    """The one parameter of a policy that is chosen on the days before (methods.md X5):
    ``values`` from the cheapest to the safest, so that what meets the SLO at one of them is taken
    to meet it at those after it."""

    field: str
    values: tuple[float, ...]


def factors(least: float, most: float, count: int = 15) -> tuple[float, ...]:
    """``count`` values in equal ratios, both ends among them, to three digits."""
    steps = np.geomspace(least, most, count)
    return tuple(float(f"{value:.3g}") for value in steps)


@dataclass(frozen=True, slots=True)
class Traits:
    """What pages, comparisons and recommendations need to know of a policy."""

    label: str  # what tables show
    line: str  # on it, in lists
    group: Group
    # Moving parts: fixed fleets first, then clocks, one threshold, more readings, a forecast and a
    # solver, and several controllers at once. Of equals the simplest is recommended.
    complexity: int
    plan: Plan | None = None  # that it follows
    beyond: bool = False  # has more than its plan where a rule of its own says so
    flat: bool = False  # the same fleet all the time
    hindsight: bool = False  # sized knowing what came
    clairvoyant: bool = False  # told what came, so that nobody can run it
    needs_today: bool = False  # a scenario that says what runs now
    always: bool = False  # stands in every comparison, whatever its list says (methods.md X1)
    style: Style | None = None

    @property
    def knows_what_came(self) -> bool:
        return self.hindsight or self.clairvoyant

    @property
    def place(self) -> tuple[int, bool, int]:
        """By group; in it those on the scenario's own forecast first, and the simple ones."""
        other = self.plan is not None and self.plan.method is not None
        return list(Group).index(self.group), other, self.complexity


class Policy(Section):
    """A policy with its parameters. A subclass has its names as a Literal, the traits of each in
    ``kinds``, and its parameters with the defaults of its class in ``simulation.policies``."""

    kinds: ClassVar[dict[str, Traits]] = {}

    label: Name | None = None  # tells several of one name apart, and is what tables show
    name: str
    _shares_label: bool = PrivateAttr(default=False)  # with one of another name

    @property
    def key(self) -> str:
        """What tells it apart in a comparison."""
        return self.name if self.label is None else f"{self.name}{SEPARATOR}{self.label}"

    @property
    def traits(self) -> Traits:
        return self.kinds[self.name]

    @property
    def title(self) -> str:
        """What tables show."""
        if self.label and self._shares_label:
            return f"{self.label} ({self.traits.label})"
        return self.label or self.traits.label

    @property
    def arguments(self) -> dict[str, Any]:
        """Its parameters: as given, else by default."""
        return {k: v for k, v in self.model_dump().items() if k not in ("name", "label")}

    @property
    def knob(self) -> Knob | None:
        """What is chosen on the days before where the scenario leaves it as it is; None: nothing
        is."""
        return None

    @property
    def free(self) -> Knob | None:
        """Its knob, where the scenario does not say another value than the default."""
        knob = self.knob
        if knob is None or getattr(self, knob.field) != type(self).model_fields[knob.field].default:
            return None
        return knob

    def told_apart(self, others: Iterable[Policy]) -> Self:
        """The same, its title with the policy's own where one of ``others`` has its label too."""
        same = self.label and any(
            other.label == self.label and other.name != self.name for other in others
        )
        if not same:
            return self
        copy = self.model_copy()
        copy._shares_label = True
        return copy

    def turned(self, value: float) -> Self:
        """The same with its knob at ``value``."""
        assert self.knob is not None
        return self.model_copy(update={self.knob.field: value})

    def told(self, rule: Any) -> dict[str, Any]:
        """Those of its parameters that are fields of the dataclass ``rule``."""
        words = self.arguments
        return {field.name: words[field.name] for field in fields(rule) if field.name in words}

    def ready(self, making: Making) -> Ready:
        """The policy on the fleet it begins with. Raises ScenarioError or SimulationError in one
        sentence where the study lacks what it needs."""
        raise NotImplementedError
