"""The fleet as it is."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from planner.scenario.schema.serving import Routing
from planner.scenario.schema.types import (
    Count,
    Delay,
    Name,
    Precision,
    Role,
    Section,
)


class Replicas(Section):
    """What one pool of the fleet is today and how far it may move."""

    model: Name
    region: Name
    gpu: Name
    # Needed only where the model has several profiles on this GPU type.
    tp: Annotated[int, Field(ge=1, le=1024)] | None = None  # GPUs of an instance
    precision: Precision | None = None
    role: Role | None = None
    replicas: Count
    minimum: Count | None = None  # left out: fleet.minimum, on the cheapest arrangement
    maximum: Count | None = None  # left out: as many as the region's GPUs allow


class Fleet(Section):
    """The fleet as it is. Without ``today`` a flat fleet sized for the peak is assumed."""

    today: Annotated[list[Replicas], Field(max_length=10_000)] = []
    startup_s: Delay = 600  # weights local, SageServe section 4
    routing: Routing = Routing()
    minimum: Count = 1  # instances per model and region, where ``today`` does not say
