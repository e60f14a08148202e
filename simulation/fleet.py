"""What a fleet is made of: tiers, regions, pools of instances, and how requests are routed."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from simulation.errors import SimulationError
from simulation.performance.power import PowerAtLoad
from simulation.performance.profile import Profile
from simulation.performance.specs import GpuSpec

HOURS = 24  # of a day


@dataclass(frozen=True, slots=True)
class Tier:
    """A service tier and its limits (methods.md E1, X4); a limit that is None does not apply."""

    name: str
    ttft_s: float | None = None  # from arrival at the router to the first token
    tbt_s: float | None = None  # the request's mean gap between tokens
    e2e_s: float | None = None  # to the last token
    attainment: float = 0.95  # share of arrived requests that must meet every limit
    deferrable: bool = False  # held in the NIW queue until an endpoint has room (E4)
    priority_after_s: float = 36_000.0  # a deferred request older than this goes at once


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
    initial: int  # instances ready at the start
    minimum: int
    maximum: int
    startup_s: float  # from asked for to serving; burns GPU time (E3)
    usd_per_gpu_hour: float
    max_context: int | None = None  # tokens of the longest request; None: memory alone limits it
    role: str = "both"  # of ROLES; prefill hands over to the decode pools of its model and region
    batching: str = "chunked"  # of BATCHING
    link: KvLink | None = None  # of a prefill pool
    power: PowerAtLoad | None = None  # None: the GPU's watts while it prefills and decodes
    host_w: float = 0.0  # of the server beside the GPU boards, per GPU, all the time

    @property
    def gpus_per_instance(self) -> int:
        return self.profile.tp


# Which ready instance of an endpoint takes a request: the one with the fewest tokens still to
# prefill and to give out; the fewest prompt tokens, a decode counting one; each in turn; the fewest
# KV tokens in use or waiting to be.
ROUTERS = ("least-remaining", "least-pending", "round-robin", "least-memory")
ROLES = ("both", "prefill", "decode")
# chunked: decodes first, prompts in pieces with what is left of the token budget. whole: waiting
# prompts first and unbroken, a longer one than the budget alone; decodes run beside them if all
# fit, else they pause for that iteration. alone: likewise, and they always pause.
BATCHING = ("chunked", "whole", "alone")


@dataclass(frozen=True, slots=True)
class Routing:
    """Thresholds of methods.md E4, on effective memory utilisation (KV in use over KV there is)."""

    region_threshold: float = 0.7  # first preferred region below it, else the least used
    release_one_below: float = 0.6  # a deferred request is released to an endpoint
    release_two_below: float = 0.5
    instance: str = "least-remaining"  # of ROUTERS, for what has its prompt before it
    decode: str = "least-memory"  # likewise, for what a prefill pool hands over


@dataclass(frozen=True, slots=True, eq=False)
class Fleet:
    """Everything the simulator needs to know about the serving side.

    ``latency_s`` has shape ``[regions, regions]``: one-way seconds from home to serving region,
    added to TTFT when a request is served away from home.
    """

    tiers: tuple[Tier, ...]
    regions: tuple[Region, ...]
    pools: tuple[Pool, ...]
    latency_s: npt.NDArray[np.float64]
    routing: Routing = field(default_factory=Routing)

    def __post_init__(self) -> None:
        known = {region.name for region in self.regions}
        for pool in self.pools:
            if pool.region not in known:
                raise SimulationError(f"Pool of {pool.model}: region {pool.region!r} is not known.")
        self._check_roles()
        if self.latency_s.shape != (len(self.regions), len(self.regions)):
            raise SimulationError("Fleet latency must be a square of regions by regions.")
        latency = np.array(self.latency_s, dtype=np.float64)
        latency.setflags(write=False)
        object.__setattr__(self, "latency_s", latency)

    def _check_roles(self) -> None:
        for name in (self.routing.instance, self.routing.decode):
            if name not in ROUTERS:
                raise SimulationError(f"There is no router {name!r}; use {', '.join(ROUTERS)}.")
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
            if pool.link and not min(pool.link.bytes_s, pool.link.shared_bytes_s) > 0:
                raise SimulationError(f"{place}: its link needs a bandwidth above 0.")
