"""What a fleet is made of: tiers, regions, pools of instances, and how requests are routed."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from simulation.errors import SimulationError
from simulation.faults import Fault, check_faults
from simulation.performance.power import Power
from simulation.performance.profile import Profile
from simulation.performance.specs import GpuSpec
from simulation.starting import Registration, StartUp, check_registration, check_start

HOURS = 24  # of a day
URGENT_SHARE = 10 / 24  # of its deadline; SageServe: ten hours where the deadline is a day
URGENT_S = 36_000.0  # without a deadline


@dataclass(frozen=True, slots=True)
class Tier:
    """A service tier and its limits (methods.md E1, X4); a limit that is None does not apply."""

    name: str
    ttft_s: float | None = None  # from arrival at the router to the first token
    tbt_s: float | None = None  # the request's mean gap between tokens
    e2e_s: float | None = None  # to the last token
    attainment: float = 0.95  # share of arrived requests that must meet every limit
    deferrable: bool = False  # held in the NIW queue until an endpoint has room (E4)
    # A deferred request older than this is urgent: it goes at once. None: by its own deadline.
    priority_after_s: float | None = None

    @property
    def urgent_after_s(self) -> float:
        """Seconds after its arrival from which on a deferred request is urgent."""
        if self.priority_after_s is not None:
            return self.priority_after_s
        return URGENT_S if self.e2e_s is None else URGENT_SHARE * self.e2e_s


@dataclass(frozen=True, slots=True)
class Region:
    """A region: what a kWh emits there and how much the building adds to it.

    ``carbon_hourly_g_per_kwh`` has one value per hour of the day, UTC, where the grid's daily cycle
    is known: energy of an hour emits at that rate, and ``carbon_g_per_kwh`` is their mean.
    """

    name: str
    carbon_g_per_kwh: float
    pue: float
    carbon_hourly_g_per_kwh: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        hourly = self.carbon_hourly_g_per_kwh
        if hourly is not None and len(hourly) != HOURS:
            raise SimulationError(
                f"Region {self.name}: carbon by hour needs {HOURS} values, not {len(hourly)}."
            )


@dataclass(frozen=True, slots=True)
class KvLink:
    """The way of a KV cache from a prefill to a decode instance. Transfers queue, first come first
    served, at the sender's own link and at the one all instances of its pool share."""

    kv_bytes_per_token: float
    bytes_s: float  # of one instance
    shared_bytes_s: float = float("inf")


@dataclass(frozen=True, slots=True)
class Pool:
    """Identical instances of one model in one region on one GPU arrangement."""

    model: str
    region: str
    profile: Profile
    gpu: GpuSpec
    initial: int  # instances ready at the start, unless the policy wants others
    minimum: int
    maximum: int
    startup_s: float  # from asked for to serving; burns GPU time (E3)
    usd_per_gpu_hour: float
    max_context: int | None = None  # tokens of the longest request; None: memory alone limits it
    role: str = "both"  # of ROLES; prefill hands over to the decode pools of its model and region
    batching: str = "chunked"  # of BATCHING
    link: KvLink | None = None  # of a prefill pool
    power: Power | None = None  # None: the GPU's watts while it prefills and decodes
    host_w: float = 0.0  # of the server beside the GPU boards, per GPU, all the time
    prefix_cache: bool = False  # keep the blocks of prompts that are done, least recently used go
    scheduler: str = "fcfs"  # of SCHEDULERS
    tau_n_s: float = 10.0  # DPA: expired longer than this goes first
    tau_p_s: float = 0.5  # DPA: urgent from so long before the deadline
    when_full: str = "preempt"  # of WHEN_FULL: what happens as KV memory runs out while decoding
    # Whose requests it takes; None: all. None at all: GPUs held for what others put on them.
    tiers: tuple[str, ...] | None = None
    start_up: StartUp | None = None  # None: ``startup_s``, a minute for what was lent out
    spot: bool = False  # rented as spot: not its own to lend out
    # Of its price, what an instance earns while it is lent out; it is held, and paid, meanwhile.
    # None: lent out it is somebody else's, and costs and earns nothing.
    lend_share: float | None = None
    reclaims_per_hour: float = 0.0  # of a spot instance: its provider takes it back
    # Ran up to time 0: what is ready then beyond them was asked for before, and its starts are
    # paid. None: as many as are ready.
    today: int | None = None
    architecture: str = ""  # models of the same one swap weights faster; empty: like no other

    @property
    def gpus_per_instance(self) -> int:
        return self.profile.tp

    @property
    def lends(self) -> bool:
        """It serves nobody itself: others put their modules on its GPUs."""
        return self.tiers == ()

    def takes(self, tier: str) -> bool:
        """Whether requests of a tier may go to this pool."""
        return self.tiers is None or tier in self.tiers


# Which ready instance of an endpoint takes a request: the one with the fewest tokens still to
# prefill and to give out; the fewest prompt tokens, a decode counting one; each in turn; the fewest
# KV tokens in use or waiting to be. prefix-aware: the fewest prompt tokens to compute before the
# request's first token, those waiting there and those of its own that the prefix cache lacks, which
# is Mooncake's algorithm 1 (FAST 2025) in tokens instead of predicted seconds; of several the one
# with the fewest remaining tokens.
ROUTERS = ("least-remaining", "least-pending", "round-robin", "least-memory", "prefix-aware")
ROLES = ("both", "prefill", "decode")
# chunked: decodes first, prompts in pieces with what is left of the token budget. whole: waiting
# prompts first and unbroken, a longer one than the budget alone; decodes run beside them if all
# fit, else they pause for that iteration. alone: likewise, and they always pause.
BATCHING = ("chunked", "whole", "alone")
# preempt: the request admitted last is computed again later. fail: it is given up and counted.
WHEN_FULL = ("preempt", "fail")
SCHEDULERS = ("fcfs", "edf", "pf", "dpa")  # numbered so in engine.scheduling
# What a region is chosen by. queues: one whose instance takes the request at its next iteration
# goes before one where it would wait. memory: by KV memory alone, as SageServe has it.
SEES = ("queues", "memory")
# Of several pools of a service in a region: first the one with the least effective memory, as among
# SageServe's endpoints, then its instance; or all their instances as one.
ENDPOINTS = ("least-memory", "together")


@dataclass(frozen=True, slots=True)
class Routing:
    """Where requests go (methods.md E4). Thresholds are on effective memory utilisation (KV in use
    over KV there is)."""

    region_threshold: float = 0.7  # first preferred region below it, else the least used
    release_one_below: float = 0.6  # a deferred request is released to an endpoint
    release_two_below: float = 0.5
    instance: str = "least-remaining"  # of ROUTERS, for what has its prompt before it
    decode: str = "least-memory"  # likewise, for what a prefill pool hands over
    sees: str = "queues"  # of SEES
    endpoint: str = "least-memory"  # of ENDPOINTS


@dataclass(frozen=True, slots=True, eq=False)
class Fleet:
    """Everything the simulator needs to know about the serving side.

    ``latency_s`` has shape ``[regions, regions]``: one-way seconds from home to serving region,
    added to TTFT when a request is served away from home; inf: the way is closed, and no request
    goes there.
    """

    tiers: tuple[Tier, ...]
    regions: tuple[Region, ...]
    pools: tuple[Pool, ...]
    latency_s: npt.NDArray[np.float64]
    routing: Routing = field(default_factory=Routing)
    registration: Registration | None = None  # of prefill and decode pools; None: as they come
    faults: tuple[Fault, ...] = ()
    retries: int = 1  # of a request whose instance fails; 0: what was in flight there is lost

    def __post_init__(self) -> None:
        known = {region.name for region in self.regions}
        for pool in self.pools:
            if pool.region not in known:
                raise SimulationError(f"Pool of {pool.model}: region {pool.region!r} is not known.")
        self._check_roles()
        self._check_tiers()
        for pool in self.pools:
            check_start(f"Pool of {pool.model} in {pool.region}", pool.start_up)
        check_registration(self.registration)
        regions = tuple(region.name for region in self.regions)
        check_faults(self.faults, self.retries, len(self.pools), regions)
        if self.latency_s.shape != (len(self.regions), len(self.regions)):
            raise SimulationError("Fleet latency must be a square of regions by regions.")
        latency = np.array(self.latency_s, dtype=np.float64)
        latency.setflags(write=False)
        object.__setattr__(self, "latency_s", latency)

    @property
    def models(self) -> tuple[str, ...]:
        """Those that have pools, in their order."""
        return tuple(dict.fromkeys(pool.model for pool in self.pools))

    @property
    def islands(self) -> npt.NDArray[np.int64]:
        """``[pools]``: the same number for pools of regions between which requests go, by ways that
        are open or over other regions, so that what one lacks another may have to spare."""
        names = [region.name for region in self.regions]
        linked = np.isfinite(self.latency_s) | np.isfinite(self.latency_s.T)
        for _ in names:
            linked = linked @ linked
        first: npt.NDArray[np.int64] = linked.argmax(axis=1)
        return np.array([first[names.index(pool.region)] for pool in self.pools], np.int64)

    def _check_roles(self) -> None:
        for value, which in ((self.routing.sees, SEES), (self.routing.endpoint, ENDPOINTS)):
            if value not in which:
                raise SimulationError(f"Routing cannot go by {value!r}; use {' or '.join(which)}.")
        for name in (self.routing.instance, self.routing.decode):
            if name not in ROUTERS:
                raise SimulationError(f"There is no router {name!r}; use {', '.join(ROUTERS)}.")
        if self.routing.decode == "prefix-aware":
            raise SimulationError(
                "Routing to decode instances: prompts are computed before; choose another router "
                "than prefix-aware."
            )
        roles = {(pool.model, pool.region, pool.role) for pool in self.pools}
        for pool in self.pools:
            place = f"Pool of {pool.model} in {pool.region}"
            if pool.role not in ROLES or pool.batching not in BATCHING:
                raise SimulationError(
                    f"{place}: role is one of {', '.join(ROLES)}, "
                    f"batching one of {', '.join(BATCHING)}."
                )
            other = {"prefill": "decode", "decode": "prefill"}.get(pool.role)
            if other and (pool.model, pool.region, other) not in roles:
                raise SimulationError(f"{place}: a {pool.role} pool needs a {other} one beside it.")
            if (pool.role == "prefill") != (pool.link is not None):
                raise SimulationError(f"{place}: a prefill pool needs a link, others have none.")
            self._check_serving(pool, place)
            if pool.link and not min(pool.link.bytes_s, pool.link.shared_bytes_s) > 0:
                raise SimulationError(f"{place}: its link needs a bandwidth above 0.")

    @staticmethod
    def _check_serving(pool: Pool, place: str) -> None:
        for value, known in ((pool.scheduler, SCHEDULERS), (pool.when_full, WHEN_FULL)):
            if value not in known:
                raise SimulationError(f"{place}: there is no {value!r}; use {', '.join(known)}.")
        if not min(pool.tau_n_s, pool.tau_p_s) >= 0:
            raise SimulationError(f"{place}: tau_n_s and tau_p_s must be seconds >= 0.")
        if pool.role == "decode" and pool.scheduler in ("edf", "dpa"):
            raise SimulationError(
                f"{place}: requests come there after their first token, so deadlines for it do not "
                "order them; use fcfs or pf."
            )
        if pool.role == "decode" and pool.prefix_cache:
            raise SimulationError(
                f"{place}: no prompts are computed there; set prefix_cache on the prefill pool."
            )

    def _check_tiers(self) -> None:
        known = [tier.name for tier in self.tiers]
        for pool in self.pools:
            place = f"Pool of {pool.model} in {pool.region}"
            if pool.tiers is None:
                continue
            if not set(pool.tiers) <= set(known):
                raise SimulationError(
                    f"{place}: tiers names some of {', '.join(known)}, not {', '.join(pool.tiers)}."
                )
        for pool in self.pools:
            other = {"prefill": "decode", "decode": "prefill"}.get(pool.role)
            beside = [
                p
                for p in self.pools
                if (p.model, p.region, p.role) == (pool.model, pool.region, other)
            ]
            for tier in known if other else ():
                if pool.takes(tier) and not any(p.takes(tier) for p in beside):
                    raise SimulationError(
                        f"Pool of {pool.model} in {pool.region}: it takes tier {tier}, but no "
                        f"{other} pool beside it does."
                    )
