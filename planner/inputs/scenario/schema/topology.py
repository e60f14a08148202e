"""Sections on the network and on the placement of services (HeteroScale, methods.md D5, D6)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from planner.schema_types import Name, Section, Share

Parts = Annotated[int, Field(ge=1, le=10_000)]


class Topology(Section):
    """A region's tree: S2 switches, S1 switches, racks (S0), nodes. Left out, it follows from the
    capacity. GPUs fill it type by type: racks of an S1 switch differ under ``mixed_s1`` of the S2
    switches (high priority), S1 switches differ under ``mixed_s2`` of them (medium), the others
    have one type as far as it goes (low)."""

    s2: Parts
    s1_per_s2: Parts = 4
    racks_per_s1: Parts = 2
    nodes_per_rack: Parts = 4
    gpus_per_node: dict[Name, Annotated[int, Field(ge=1, le=1024)]] = {}  # default: the type's own
    mixed_s1: Annotated[int, Field(ge=0, le=10_000)] = 0
    mixed_s2: Annotated[int, Field(ge=0, le=10_000)] | None = None  # default: all others


class PlacedService(Section):
    """What the service of one model asks of the network, in every region; of all models without a
    row of their own where ``model`` is left out."""

    model: Name | None = None
    # The prefill and decode instances of a unit share an S1 switch, an S2 switch, or nothing.
    affinity: Literal["s1", "s2", "none"] = "s2"
    priority: Annotated[int, Field(ge=0, le=100)] = 0  # the largest is placed first
    # Prefill and decode instances of a unit. Default: the smallest unit with both.
    ratio: Annotated[list[Parts], Field(min_length=2, max_length=2)] | None = None
    fallbacks: Annotated[list[Name], Field(max_length=10)] = []  # GPU types in order of preference
    # Attention and FFN instances of a prefill instance, under one S1 switch (D6).
    attention_to_ffn: Annotated[list[Parts], Field(min_length=2, max_length=2)] | None = None


class Placement(Section):
    """Where instances are placed, and what a KV cache loses on the way."""

    services: Annotated[list[PlacedService], Field(max_length=200)] = []
    # Share of an instance's network bandwidth for KV caches. HeteroScale: about 20% less across
    # switches. A second tier of switches costs another 20% (assumed).
    across_s1: Share = 0.8
    across_s2: Share = 0.64
