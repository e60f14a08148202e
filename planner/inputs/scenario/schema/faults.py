"""Sections of the scenario file on faults. Times are seconds from the start of the window."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from planner.schema_types import Count, Name, Role, Section

At = Annotated[float, Field(ge=0, le=366 * 86_400)]


class _PoolSelector(Section):
    """The pools that a fault selects."""

    model: Name | None = None  # default: all models
    region: Name | None = None  # default: all regions
    gpu: Name | None = None  # default: all GPU types
    role: Role | None = None  # default: all roles


class Crash(_PoolSelector):
    """One replica of each selected pool is lost."""

    kind: Literal["crash"]
    at_s: At  # second of the window
    instance: Count = 0  # index among the instances that serve then, modulo their number


class Crashes(_PoolSelector):
    """Replicas are lost at random."""

    kind: Literal["crashes"]
    per_instance_hour: Annotated[float, Field(gt=0, le=100)]  # rate per replica


def _in_order(fault: Any) -> Any:
    """Return a fault that ends after its begin; raise ValueError for another."""
    if fault.to_s <= fault.from_s:
        raise ValueError("to_s must be after from_s")
    return fault


class Slow(_PoolSelector):
    """One replica of each selected pool takes ``factor`` times as long for a while."""

    kind: Literal["slow"]
    from_s: At  # first second
    to_s: At  # last second
    factor: Annotated[float, Field(gt=0, le=1000)]  # factor on the time of an iteration
    instance: Count = 0  # index of the replica

    _ordered = model_validator(mode="after")(_in_order)


class Outage(Section):
    """A region loses all replicas and starts none until the end."""

    kind: Literal["outage"]
    region: Name  # the failed region
    from_s: At  # first second
    to_s: At  # last second

    _ordered = model_validator(mode="after")(_in_order)


class FailedStarts(_PoolSelector):
    """Starts take their time and then fail: by probability, or by number."""

    kind: Literal["failed-starts"]
    probability: Annotated[float, Field(ge=0, le=1)] = 0.0  # share of failed starts
    # Numbers of the starts that fail.
    nth: Annotated[list[Annotated[int, Field(ge=1, le=4096)]], Field(max_length=1000)] = []

    @model_validator(mode="after")
    def _require_a_failure(self) -> FailedStarts:
        """Return the fault; raise ValueError if no start fails."""
        if not self.probability and not self.nth:
            raise ValueError("give a probability above 0, or nth, the starts that fail")
        return self


class Controller(Section):
    """Nobody scales for a while. Then the policy continues or starts again."""

    kind: Literal["controller"]
    from_s: At  # first second
    to_s: At  # last second
    state: Literal["kept", "lost"] = "kept"  # whether the policy keeps its state

    _ordered = model_validator(mode="after")(_in_order)


Fault = Annotated[
    Crash | Crashes | Slow | Outage | FailedStarts | Controller, Field(discriminator="kind")
]
FAULT_KINDS = ("crash", "crashes", "slow", "outage", "failed-starts", "controller")
