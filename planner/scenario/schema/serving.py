"""How instances batch what they have, and how requests find them."""

from __future__ import annotations

from typing import Literal

from planner.scenario.schema.types import Name, PeakGb, Section, Share


class KvTransfer(Section):
    """The way of KV caches from prefill to decode instances (GB/s = 10^9 bytes/s)."""

    gb_s: PeakGb | None = None  # of one prefill instance; left out: its GPUs' published network
    shared_gb_s: PeakGb | None = None  # of all prefill instances of a pool; left out: no limit


class Serving(Section):
    """How the instances of one model serve, or of every model that has no row of its own."""

    model: Name | None = None
    # chunked: decodes first, prompts in pieces; whole: prompts first and unbroken, decodes beside
    # them where all fit; alone: likewise, and decodes always pause.
    batching: Literal["chunked", "whole", "alone"] = "chunked"
    kv_transfer: KvTransfer = KvTransfer()


RouterName = Literal["least-remaining", "least-pending", "round-robin", "least-memory"]


class Routing(Section):
    """Which region and instance take a request, and when deferred ones are let in (E4)."""

    region_threshold: Share = 0.7  # first preferred region under this effective memory utilisation
    release_one_below: Share = 0.6  # of the endpoint: one deferred request is let in
    release_two_below: Share = 0.5
    instance: RouterName = "least-remaining"
    decode: RouterName = "least-memory"  # for what a prefill pool hands over
