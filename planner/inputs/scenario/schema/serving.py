"""Sections of the scenario file on batching, KV transfer and routing."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from planner.schema_types import Delay, Name, PeakGb, Section, Share


class KvTransfer(Section):
    """The way of KV caches from prefill to decode instances (GB/s = 10^9 bytes/s)."""

    gb_s: PeakGb | None = None  # per prefill instance; default: published network of its GPUs
    shared_gb_s: PeakGb | None = None  # of all prefill instances of a pool; default: no limit


class Serving(Section):
    """How the instances of one model serve, or of every model that has no row of its own."""

    model: Name | None = None
    # chunked: decodes first, prompts in chunks. whole: unbroken prompts first, with decodes in the
    # same iteration if all fit. alone: as whole, but decodes always pause.
    batching: Literal["chunked", "whole", "alone"] = "chunked"
    # Order of waiting requests: arrival, time left to the TTFT limit, tier, or both of the latter
    # (SageServe section 6.5, with tau_n and tau_p).
    scheduler: Literal["fcfs", "edf", "pf", "dpa"] = "fcfs"
    tau_n_s: Delay | None = None  # default: 10; requests expired for longer go first
    tau_p_s: Delay | None = None  # default: 0.5; urgent this long before the deadline
    # It finds what the trace tells: block hashes, or cached tokens (also cached_share of a source).
    prefix_caching: bool = False
    # If KV memory runs out, the request admitted last is recomputed later, or it fails.
    when_full: Literal["preempt", "fail"] = "preempt"
    kv_transfer: KvTransfer = KvTransfer()

    @model_validator(mode="after")
    def _taus(self) -> Serving:
        if self.scheduler != "dpa" and not (self.tau_n_s is None and self.tau_p_s is None):
            raise ValueError("tau_n_s and tau_p_s belong to scheduler: dpa")
        return self


RouterName = Literal[
    "least-remaining", "least-pending", "round-robin", "least-memory", "prefix-aware"
]


class Routing(Section):
    """Which region and instance take a request, and when deferred ones are let in (E4)."""

    # queues: regions in which the request would wait come last. memory: order regions by KV memory
    # alone, as SageServe does.
    sees: Literal["queues", "memory"] = "queues"
    # If a model has several pools in a region: the pool with the least effective memory utilisation
    # first, or all instances as one pool.
    endpoint: Literal["least-memory", "together"] = "least-memory"
    region_threshold: Share = 0.7  # of the first preferred region: effective memory utilisation
    release_one_below: Share = 0.6  # utilisation of the endpoint: admit one deferred request
    release_two_below: Share = 0.5
    instance: RouterName = "least-remaining"
    # Router for the sequences that a prefill pool hands over.
    decode: Literal["least-remaining", "least-pending", "round-robin", "least-memory"] = (
        "least-memory"
    )
