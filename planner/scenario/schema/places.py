"""Where GPUs are."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema, model_validator

from planner.scenario.schema.topology import Topology
from planner.sections import (
    Count,
    Grams,
    LatencyMs,
    Name,
    Section,
    Usd,
)

UNLIMITED = "unlimited"
UNLIMITED_GPUS = 8192  # of a type in a region: more than a plan takes, and still so many to replay


def _counted(count: Any) -> Any:
    return UNLIMITED_GPUS if count == UNLIMITED else count


# As many as are asked for (the WVA's unlimited mode), or so many.
Gpus = Annotated[
    Count,
    BeforeValidator(_counted),
    WithJsonSchema(
        {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 1_000_000}, {"const": UNLIMITED}]}
    ),
]


class Spot(Section):
    """GPUs of one type on offer as spot, beside the region's own: cheaper, and taken back when
    their provider wants them."""

    capacity: Count  # GPUs
    usd_per_gpu_hour: Usd | None = None  # left out: the spot price of the region it is like
    # In the replay an instance is lost at this rate, without notice; left out: none is.
    reclaims_per_instance_hour: Annotated[float, Field(ge=0, le=100)] = 0


class Committed(Section):
    """USD per hour of a GPU that is paid whether it is used or not, by how long one commits."""

    one_year: Usd | None = None
    three_years: Usd | None = None

    @model_validator(mode="after")
    def _some(self) -> Committed:
        if self.one_year is None and self.three_years is None:
            raise ValueError("give a price for one_year, three_years or both")
        return self


class Region(Section):
    """Where GPUs are. ``like`` takes price, carbon and PUE from a built-in region."""

    name: Name
    like: str | None = None
    capacity: dict[Name, Gpus]  # GPUs by type; unlimited: as many as are asked for
    usd_per_gpu_hour: dict[Name, Usd] = {}
    spot: dict[Name, Spot] = {}  # by type
    committed: dict[Name, Committed] = {}  # by type; what to commit to is for an outlook to say
    # Yearly mean, or 24 values by UTC hour.
    carbon_g_per_kwh: Grams | Annotated[list[Grams], Field(min_length=24, max_length=24)] | None = (
        None
    )
    pue: Annotated[float, Field(ge=1, le=10)] | None = None
    latency_ms: dict[Name, LatencyMs] = {}  # one way, to other regions
    topology: Topology | None = None  # left out: it follows from the capacity
