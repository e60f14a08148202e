"""Define the scenario file: one set of types for checks, JSON Schema and readers.

Sections and names are the contract of docs/scenario.md. Units are part of the names. GPUs, models
and profiles are named from the built-in catalogue or stated in full. Every number and list has a
largest value, far above any real one, so that a typing error cannot keep a worker busy for days.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from planner.inputs.scenario.schema.faults import Fault
from planner.inputs.scenario.schema.fleet import Fleet, Replicas, Starts
from planner.inputs.scenario.schema.hardware import Gpu, Model, Profile, Shape
from planner.inputs.scenario.schema.planning import Forecast, Horizon, Objective
from planner.inputs.scenario.schema.regions import Committed, Region, Spot
from planner.inputs.scenario.schema.serving import KvTransfer, Routing, Serving
from planner.inputs.scenario.schema.test_days import USUAL as USUAL_DAYS
from planner.inputs.scenario.schema.test_days import Assurance, TestDay
from planner.inputs.scenario.schema.topology import PlacedService, Placement, Topology
from planner.inputs.scenario.schema.traffic import Growth, Launch, Lengths, Source, Tier, Traffic
from planner.policies.choice import USUAL, AnyPolicy, policy_of
from planner.schema_types import Name, Section, named

__all__ = [
    "Committed",
    "Fault",
    "Fleet",
    "Forecast",
    "Gpu",
    "Growth",
    "Horizon",
    "KvTransfer",
    "Launch",
    "Lengths",
    "Model",
    "Objective",
    "PlacedService",
    "Placement",
    "Profile",
    "Region",
    "Replicas",
    "Routing",
    "Scenario",
    "Serving",
    "Shape",
    "Source",
    "Spot",
    "Starts",
    "TestDay",
    "Tier",
    "Topology",
    "Traffic",
]


class Scenario(Section):
    """Everything a study needs besides the traces themselves."""

    version: Literal[1]
    # Digits alone would look like the id of a scenario.
    name: Annotated[str, Field(min_length=1, max_length=120, pattern=r"\D")] = "Scenario"
    description: str = ""
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    # Built-in GPUs need not be listed.
    gpus: Annotated[list[Annotated[Gpu, BeforeValidator(named)]], Field(max_length=100)] = []
    models: Annotated[
        list[Annotated[Model, BeforeValidator(named)]], Field(min_length=1, max_length=200)
    ]
    profiles: Annotated[list[Profile], Field(min_length=1, max_length=500)]
    # A stored price list. It comes before built-in prices and after a region's own.
    price_list: Name | None = None
    regions: Annotated[list[Region], Field(min_length=1, max_length=100)]
    tiers: Annotated[list[Tier], Field(min_length=1, max_length=100)]
    traffic: Traffic
    serving: Annotated[list[Serving], Field(max_length=200)] = []
    fleet: Fleet = Fleet()
    placement: Placement = Placement()
    faults: Annotated[list[Fault], Field(max_length=1000)] = []
    policies: Annotated[
        list[Annotated[AnyPolicy, BeforeValidator(named)]], Field(min_length=1, max_length=100)
    ] = [policy_of(name) for name in USUAL]
    # What a policy has to pass. Each kind of day has its default level of assurance.
    test_days: Annotated[
        list[Annotated[TestDay, Field(discriminator="kind")]], Field(max_length=50)
    ] = list(USUAL_DAYS)
    # Which of the days are required. economy: past and drawn days. balanced: also a slower profile
    # and the loss of a replica. safe: all days.
    assurance: Assurance = "balanced"
    forecast: Forecast = Forecast()
    objective: Objective = Objective()
    horizon: Horizon = Horizon()
