"""Define the scenario file: one set of types for checks, JSON Schema and readers.

Sections and names are the contract of docs/scenario.md. Units are part of the names. GPUs, models
and profiles are named from the built-in catalogue or stated in full. Every number and list has a
largest value, far above any real one, so that a typing error cannot keep a worker busy for days.
"""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from planner.inputs.scenario.schema.faults import Fault
from planner.inputs.scenario.schema.fleet import Fleet, KvTransfer, Replicas, Serving, Starts
from planner.inputs.scenario.schema.hardware import Gpu, Model, Profile, SweepRow
from planner.inputs.scenario.schema.planning import Forecast, Horizon, Objective
from planner.inputs.scenario.schema.regions import PlacedService, Placement, Region, Spot
from planner.inputs.scenario.schema.test_days import USUAL as USUAL_DAYS
from planner.inputs.scenario.schema.test_days import Assurance, TestDay
from planner.inputs.scenario.schema.traffic import Growth, Launch, Lengths, Source, Tier, Traffic
from planner.policies.choice import USUAL, AnyPolicy, policy_of
from planner.schema_types import Name, Section, expand_name


class Scenario(Section):
    """Everything that a run needs, except traces."""

    version: Literal[1]  # always 1
    # Unique name; not digits alone, which would look like an id.
    name: Annotated[str, Field(min_length=1, max_length=120, pattern=r"\D")] = "Scenario"
    description: str = ""  # free text
    seed: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0  # seed of everything random
    # Your own GPU types; built-in ones need no row.
    gpus: Annotated[list[Annotated[Gpu, BeforeValidator(expand_name)]], Field(max_length=100)] = []
    # Built-in models by name, or your own.
    models: Annotated[
        list[Annotated[Model, BeforeValidator(expand_name)]], Field(min_length=1, max_length=200)
    ]
    # How fast each model runs on which GPUs.
    profiles: Annotated[list[Profile], Field(min_length=1, max_length=500)]
    # Stored price list; comes before built-in prices and after a region's own.
    price_list: Name | None = None
    # Regions with their GPUs and prices.
    regions: Annotated[list[Region], Field(min_length=1, max_length=100)]
    # Classes of requests with their SLOs.
    tiers: Annotated[list[Tier], Field(min_length=1, max_length=100)]
    traffic: Traffic  # what arrives
    # Batching, order and caches, per model or for all.
    serving: Annotated[list[Serving], Field(max_length=200)] = []
    fleet: Fleet = Fleet()  # the current fleet, and its starts
    placement: Placement = Placement()  # what services ask of the network
    # Failures to simulate; default: none.
    faults: Annotated[list[Fault], Field(max_length=1000)] = []
    # Policies to compare, by name or with parameters.
    policies: Annotated[
        list[Annotated[AnyPolicy, BeforeValidator(expand_name)]],
        Field(min_length=1, max_length=100),
    ] = [policy_of(name) for name in USUAL]
    # What a policy has to pass.
    test_days: Annotated[
        list[Annotated[TestDay, Field(discriminator="kind")]], Field(max_length=50)
    ] = list(USUAL_DAYS)
    assurance: Assurance = "balanced"  # which test days are required
    forecast: Forecast = Forecast()  # how demand is forecast
    objective: Objective = Objective()  # what the plan minimizes, within which limits
    horizon: Horizon = Horizon()  # window of the plan
