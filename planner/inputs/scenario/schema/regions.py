"""Sections of the scenario file on regions, their networks and the placement of services.

Networks and placement: HeteroScale, methods.md D5 and D6.
"""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from planner.schema_types import CheckedSection, Count, Grams, LatencyMs, Name, Section, Share, Usd

Parts = Annotated[int, Field(ge=1, le=10_000)]
UNLIMITED = "unlimited"
# GPUs of a type in an unlimited region: above any plan, and still small enough to replay.
UNLIMITED_GPUS = 8192
# One value, or one for each UTC hour of the day.
HourlyUsd = Usd | Annotated[list[Usd], Field(min_length=24, max_length=24)]
Kilowatts = Annotated[float, Field(gt=0, le=10_000_000)]


class Topology(Section):
    """A region's tree of switches: S2, below each several S1, below each several racks of nodes.

    GPUs fill it type by type. Under ``mixed_s1`` S2 switches, the racks of an S1 switch have
    different GPU types (high priority). Under ``mixed_s2`` S2 switches, each S1 switch has one GPU
    type, but not all the same (medium priority). All other S2 switches have one type. Default: the
    tree follows from the capacity.
    """

    s2: Parts  # S2 switches of the region
    s1_per_s2: Parts = 4  # S1 switches of an S2 switch
    racks_per_s1: Parts = 2  # racks of an S1 switch
    nodes_per_rack: Parts = 4  # nodes of a rack
    gpus_per_node: dict[Name, Annotated[int, Field(ge=1, le=1024)]] = {}  # default: the type's own
    # S2 switches with several GPU types per S1 switch (high priority).
    mixed_s1: Annotated[int, Field(ge=0, le=10_000)] = 0
    # S2 switches with several types of S1 switches (medium); default: all others.
    mixed_s2: Annotated[int, Field(ge=0, le=10_000)] | None = None


class PlacedService(Section):
    """Network requirements of the service of one model, in every region."""

    model: Name | None = None  # default: every model without a row
    # What prefill and decode of a unit share: an S1 switch, an S2 switch, or nothing.
    affinity: Literal["s1", "s2", "none"] = "s2"
    priority: Annotated[int, Field(ge=0, le=100)] = 0  # larger is placed earlier
    # Prefill and decode replicas of a unit. Default: the smallest unit with both.
    ratio: Annotated[list[Parts], Field(min_length=2, max_length=2)] | None = None
    fallbacks: Annotated[list[Name], Field(max_length=10)] = []  # GPU types in order of preference
    # Attention and FFN instances of a prefill replica.
    attention_to_ffn: Annotated[list[Parts], Field(min_length=2, max_length=2)] | None = None


class Placement(Section):
    """Placement of replicas, and bandwidth of KV caches across switches."""

    services: Annotated[list[PlacedService], Field(max_length=200)] = []  # requirements by model
    # Share of the network bandwidth for KV caches across S1 switches (HeteroScale).
    across_s1: Share = 0.8
    across_s2: Share = 0.64  # the same across S2 switches (assumed)


# A number of GPUs, or no limit (the WVA's unlimited mode).
Gpus = Annotated[
    Count,
    BeforeValidator(lambda count: UNLIMITED_GPUS if count == UNLIMITED else count),
    WithJsonSchema(
        {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 1_000_000}, {"const": UNLIMITED}]}
    ),
]


class Spot(Section):
    """Spot GPUs of one type: cheaper, and taken back by the provider at any time."""

    capacity: Count  # number of GPUs
    # One price, or 24 by UTC hour. Default: the spot price of the region in like.
    usd_per_gpu_hour: HourlyUsd | None = None
    # Rate at which a simulation loses a replica without notice. Default: never.
    reclaims_per_instance_hour: Annotated[float, Field(ge=0, le=100)] = 0


class Committed(CheckedSection):
    """Price of a GPU that is paid whether it is used or not."""

    one_year: Usd | None = None  # USD per GPU-hour
    three_years: Usd | None = None  # USD per GPU-hour

    def _faults(self) -> Iterator[str]:
        if self.one_year is None and self.three_years is None:
            yield "give a price for one_year, three_years or both"


class RegionPower(CheckedSection):
    """Limits on the electric power of a region's replicas at rated load."""

    site_kw: Kilowatts | None = None  # of the site: GPUs and servers, times the PUE
    rack_kw: Kilowatts | None = None  # of a rack: GPUs and servers, without the PUE
    # GPUs of a rack. Default: as the topology states, else four servers.
    gpus_per_rack: Annotated[int, Field(ge=1, le=10_000)] | None = None

    def _faults(self) -> Iterator[str]:
        if self.site_kw is None and self.rack_kw is None:
            yield "give site_kw, rack_kw or both"


class Region(Section):
    """A region with its GPUs. ``like`` takes price, carbon and PUE of a built-in region."""

    name: Name  # name of the region
    like: str | None = None  # built-in region for prices, carbon and PUE
    capacity: dict[Name, Gpus]  # GPUs by type; unlimited: no limit
    usd_per_gpu_hour: dict[Name, HourlyUsd] = {}  # price by GPU type, or 24 by UTC hour
    spot: dict[Name, Spot] = {}  # spot GPUs by type
    committed: dict[Name, Committed] = {}  # committed prices by type, for an outlook
    # Yearly mean, or 24 values by UTC hour, in g CO2e per kWh.
    carbon_g_per_kwh: Grams | Annotated[list[Grams], Field(min_length=24, max_length=24)] | None = (
        None
    )
    # Electricity in USD per kWh, or 24 values by UTC hour. Default: in the GPU price.
    electricity_usd_per_kwh: HourlyUsd = 0.0
    pue: Annotated[float, Field(ge=1, le=10)] | None = None  # power usage effectiveness
    latency_ms: dict[Name, LatencyMs] = {}  # latency one way, to other regions
    topology: Topology | None = None  # tree of switches; default: derived from the capacity
    power: RegionPower | None = None  # power limits; default: none
