"""Sections of the scenario file on the present fleet, and on batching, KV transfer and routing."""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from planner.inputs.scenario.schema.hardware import PowerCap
from planner.schema_types import (
    CheckedSection,
    Count,
    Delay,
    Grams,
    Name,
    PeakGb,
    Precision,
    Role,
    Section,
    Share,
)

RouterName = Literal[
    "least-remaining", "least-pending", "round-robin", "least-memory", "prefix-aware"
]


class KvTransfer(Section):
    """Bandwidth of KV caches from prefill to decode (GB/s = 10^9 bytes/s)."""

    gb_s: PeakGb | None = None  # per prefill replica; default: network of its GPUs
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


class Replicas(Section):
    """Replicas of one pool today, and their limits."""

    model: Name  # model of the pool
    region: Name  # region of the pool
    gpu: Name  # GPU type of the pool
    # GPUs of a replica, if the model has several profiles on this GPU type.
    tp: Annotated[int, Field(ge=1, le=1024)] | None = None
    precision: Precision | None = None  # the same for precisions
    role: Role | None = None  # the same for roles
    power_cap: PowerCap | None = None  # the same for power caps; default: the first profile
    spot: bool = False  # whether it uses spot GPUs
    replicas: Count  # replicas that run now
    lent: Count | None = None  # further replicas lent as spot; needs fleet.starts
    minimum: Count | None = None  # default: fleet.minimum, on the cheapest arrangement
    maximum: Count | None = None  # default: as the region's GPUs allow


class Starts(Section):
    """Seconds until a replica serves, by location of the weights (SageServe section 3).

    A start takes the first source available: a replica that the pool lent, one that another model
    lent, a host with the weights (``startup_s``), a host without.
    """

    reclaim_s: Delay = 60  # start of a replica lent out as spot
    same_architecture_s: Delay | None = None  # start from another model of the same architecture
    other_model_s: Delay | None = None  # start from any other model; default: never
    remote_s: Delay = 7200  # start with weights from remote storage
    warm_hosts: Count | None = None  # hosts with the weights per pool; default: all


class ScaleIn(Section):
    """What happens to replicas that a policy removes."""

    soft_s: Delay = 0  # seconds that removed replicas stay and can return
    lend: bool = False  # whether they are lent as spot


class RatioGate(Section):
    """Prefill and decode replicas start to serve in numbers that keep their ratio (D4)."""

    ratio: Annotated[float, Field(gt=0, le=1000)]  # prefill replicas per decode replica
    tolerance: Annotated[float, Field(ge=0, le=100)] = 0.25  # allowed deviation from the ratio


class Sharing(Section):
    """How weights come onto a GPU that several models share. Values are per GPU."""

    # Host memory for weights.
    host_memory_gb: Annotated[float, Field(ge=0, le=1_000_000)] = 200
    # Bandwidth from host to GPU. Default: 86% of the GPU type's link.
    host_gb_s: PeakGb | None = None
    disk_gb_s: PeakGb = 5  # bandwidth from disk, for weights that are not in host memory
    switch_s: Delay = 0.1  # time of a switch besides the loads
    # Whether a model computes while the next one loads. It needs memory for both.
    overlap: bool = False


class Fleet(Section):
    """The current fleet. Without ``today``, a static fleet sized for the peak is assumed."""

    # The current fleet; savings compare with it.
    today: Annotated[list[Replicas], Field(max_length=10_000)] = []
    startup_s: Delay = 600  # cold start with the weights on the host
    starts: Starts | None = None  # default: every start takes startup_s
    scale_in: ScaleIn = ScaleIn()  # what happens to removed replicas
    # Ratio at which prefill and decode replicas start to serve; default: at once.
    registration: RatioGate | None = None
    # Retries of a request after its replica fails.
    retries: Annotated[int, Field(ge=0, le=100)] = 1
    routing: Routing = Routing()  # how requests find a replica
    sharing: Sharing = Sharing()  # how models come onto GPUs that they share
    # Embodied carbon in g CO2e per GPU-hour. Default: 318 kg of an A100 with its share of the
    # server (Chien et al., HotCarbon 2023), over five years.
    embodied_g_per_gpu_hour: Grams = 7.3
    minimum: Count = 1  # replicas per model and region, if today states none
