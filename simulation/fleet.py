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
    power: PowerAtLoad | None = None  # None: the GPU's watts while it prefills and decodes
    host_w: float = 0.0  # of the server beside the GPU boards, per GPU, all the time

    @property
    def gpus_per_instance(self) -> int:
        return self.profile.tp


@dataclass(frozen=True, slots=True)
class Routing:
    """Thresholds of methods.md E4, on effective memory utilisation (KV in use over KV there is)."""

    region_threshold: float = 0.7  # first preferred region below it, else the least used
    release_one_below: float = 0.6  # a deferred request is released to an endpoint
    release_two_below: float = 0.5


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
        if self.latency_s.shape != (len(self.regions), len(self.regions)):
            raise SimulationError("Fleet latency must be a square of regions by regions.")
        latency = np.array(self.latency_s, dtype=np.float64)
        latency.setflags(write=False)
        object.__setattr__(self, "latency_s", latency)
