"""Sections on the network and on the placement of services (HeteroScale, methods.md D5, D6)."""

from typing import Annotated, Literal

from pydantic import Field

from planner.schema_types import Name, Section, Share

Parts = Annotated[int, Field(ge=1, le=10_000)]


class Topology(Section):
    """A region's tree: S2 switches, S1 switches, racks (S0), nodes. Default: from the capacity.

    GPUs fill it type by type. Under ``mixed_s1`` S2 switches, the racks of an S1 switch have
    different GPU types (high priority). Under ``mixed_s2`` S2 switches, each S1 switch has one GPU
    type, but not all the same (medium priority). All other S2 switches have one type.
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
