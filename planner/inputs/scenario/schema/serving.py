"""Sections of the scenario file on batching, KV transfer and routing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from planner.schema_types import CheckedSection, Delay, Name, PeakGb, Section, Share


class KvTransfer(Section):
    """Bandwidth of KV caches from prefill to decode (GB/s = 10^9 bytes/s)."""

    gb_s: PeakGb | None = None  # per prefill replica; default: published network of its GPUs
    shared_gb_s: PeakGb | None = None  # of all prefill replicas of a pool; default: no limit


class Serving(CheckedSection):
    """Batching, order and caches of one model, or of every model without a row."""

    model: Name | None = None  # default: every model without a row
    # How an iteration combines prompts and decodes.
    batching: Literal["chunked", "whole", "alone"] = "chunked"
    # Order of waiting requests.
    scheduler: Literal["fcfs", "edf", "pf", "dpa"] = "fcfs"
    tau_n_s: Delay | None = None  # default: 10; requests expired for longer go first
    tau_p_s: Delay | None = None  # default: 0.5; urgent this long before the deadline
    # Whether prompts are found again, by block hashes or cached tokens of the trace.
    prefix_caching: bool = False
    # What happens to the last admitted request if KV memory runs out.
    when_full: Literal["preempt", "fail"] = "preempt"
    kv_transfer: KvTransfer = KvTransfer()  # bandwidth of KV caches from prefill to decode

    def _faults(self) -> Iterator[str]:
        if self.scheduler != "dpa" and not (self.tau_n_s is None and self.tau_p_s is None):
            yield "tau_n_s and tau_p_s belong to scheduler: dpa"


RouterName = Literal[
    "least-remaining", "least-pending", "round-robin", "least-memory", "prefix-aware"
]


class Routing(Section):
    """Choice of region and replica for a request, and admission of deferred requests (E4)."""

    # queues: regions with a queue come last. memory: by KV memory alone, as SageServe does.
    sees: Literal["queues", "memory"] = "queues"
    # Which pool of a model in a region: the one with the least memory in use, or all as one.
    endpoint: Literal["least-memory", "together"] = "least-memory"
    region_threshold: Share = 0.7  # memory utilization at which the next region is used
    release_one_below: Share = 0.6  # utilization below which one deferred request enters
    release_two_below: Share = 0.5  # utilization below which two enter
    instance: RouterName = "least-remaining"  # how a replica is chosen
    # How a decode replica is chosen.
    decode: Literal["least-remaining", "least-pending", "round-robin", "least-memory"] = (
        "least-memory"
    )
