"""Sections of the scenario file on the present fleet."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from planner.inputs.scenario.schema.serving import Routing
from planner.schema_types import Count, Delay, Name, Precision, Role, Section


class Replicas(Section):
    """What one pool of the fleet is today and how far it may move."""

    model: Name
    region: Name
    gpu: Name
    # Needed only if the model has several profiles on this GPU type.
    tp: Annotated[int, Field(ge=1, le=1024)] | None = None  # GPUs of an instance
    precision: Precision | None = None
    role: Role | None = None
    spot: bool = False  # runs on the region's spot GPUs
    replicas: Count
    lent: Count | None = None  # additional replicas lent out as spot; needs fleet.starts
    minimum: Count | None = None  # default: fleet.minimum, on the cheapest arrangement
    maximum: Count | None = None  # default: as the region's GPUs allow


class Starts(Section):
    """Seconds from asked for to serving, where weights are elsewhere than on the host, which takes
    ``startup_s`` (SageServe section 3). A start takes, in this order: an instance that the pool
    lent out, one that another model lent out there, a host with the weights, a host without."""

    reclaim_s: Delay = 60  # of an instance lent out as spot
    same_architecture_s: Delay | None = None  # of another model of the same architecture
    other_model_s: Delay | None = None  # of any other model; default: never
    remote_s: Delay = 7200  # weights fetched from remote storage
    warm_hosts: Count | None = None  # hosts with the weights, per pool; default: all


class ScaleIn(Section):
    """What becomes of instances that a policy takes out, where it does not say itself."""

    soft_s: Delay = 0  # drained instances stay for this time and can return at once
    lend: bool = False  # lend them as spot and reclaim them when needed


class RatioGate(Section):
    """Started prefill and decode instances serve in numbers that keep their ratio (D4)."""

    ratio: Annotated[float, Field(gt=0, le=1000)]  # prefill instances per decode instance
    tolerance: Annotated[float, Field(ge=0, le=100)] = 0.25  # fraction of the ratio


class Fleet(Section):
    """The fleet as it is. Without ``today`` a flat fleet sized for the peak is assumed."""

    today: Annotated[list[Replicas], Field(max_length=10_000)] = []
    startup_s: Delay = 600  # weights local, SageServe section 4
    starts: Starts | None = None  # default: every start takes startup_s
    scale_in: ScaleIn = ScaleIn()
    registration: RatioGate | None = None  # default: every started instance serves at once
    # Retries of a request after its instance fails. 0: the request is lost.
    retries: Annotated[int, Field(ge=0, le=100)] = 1
    routing: Routing = Routing()
    minimum: Count = 1  # instances per model and region, if ``today`` states none
