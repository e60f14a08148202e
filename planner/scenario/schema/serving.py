"""How instances batch what they have, and how requests find them."""

from __future__ import annotations

from typing import Literal

from pydantic import model_validator

from planner.sections import Delay, Name, PeakGb, Section, Share


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
    # In which order waiting requests are taken: as they came, by time left to the TTFT limit, by
    # tier, or both (SageServe section 6.5), where tau_n and tau_p count.
    scheduler: Literal["fcfs", "edf", "pf", "dpa"] = "fcfs"
    tau_n_s: Delay | None = None  # left out: 10; expired longer than this goes first
    tau_p_s: Delay | None = None  # left out: 0.5; urgent from so long before the deadline
    prefix_caching: bool = False  # needs a trace with block hashes to hit anything
    # As KV memory runs out: the request admitted last is computed again later, or given up.
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

    # queues: a region in which the request would wait comes after one where it would not; memory:
    # regions by KV memory alone, as SageServe has it.
    sees: Literal["queues", "memory"] = "queues"
    # Of several pools of a model in a region first the one with the least effective memory, or all
    # instances as one.
    endpoint: Literal["least-memory", "together"] = "least-memory"
    region_threshold: Share = 0.7  # first preferred region under this effective memory utilisation
    release_one_below: Share = 0.6  # of the endpoint: one deferred request is let in
    release_two_below: Share = 0.5
    instance: RouterName = "least-remaining"
    # For what a prefill pool hands over.
    decode: Literal["least-remaining", "least-pending", "round-robin", "least-memory"] = (
        "least-memory"
    )
