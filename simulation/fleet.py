"""The parts of a fleet: tiers, regions, pools of instances, and routing."""

from dataclasses import dataclass, field
from math import inf

import numpy as np
import numpy.typing as npt

from simulation.arrays import FloatArray
from simulation.errors import SimulationError
from simulation.faults import Fault, check_faults
from simulation.performance.power import PowerAtLoad
from simulation.performance.profile import Profile
from simulation.performance.specs import GpuSpec
from simulation.start_times import Registration, StartUp, check_registration, check_start

HOURS = 24  # per day
HOUR_S = 3600.0
URGENT_SHARE = 10 / 24  # of the deadline; SageServe: ten hours for a deadline of a day
URGENT_S = 36_000.0  # without a deadline


@dataclass(frozen=True, slots=True)
class Tier:
    """A service tier and its limits (methods.md E1, X4); None means no limit."""

    name: str
    ttft_s: float | None = None  # from arrival at the router to the first token
    tbt_s: float | None = None  # mean gap between tokens of the request
    e2e_s: float | None = None  # from arrival at the router to the last token
    attainment: float = 0.95  # share of arrived requests that must meet every limit
    deferrable: bool = False  # waits in the NIW queue until an endpoint has room
    # A deferred request older than this is urgent and routed at once. None: from its deadline.
    priority_after_s: float | None = None
    utility: float = 0.0  # of a request within every limit

    @property
    def urgent_after_s(self) -> float:
        """Return the age in seconds from which a deferred request is urgent."""
        if self.priority_after_s is not None:
            return self.priority_after_s
        return URGENT_S if self.e2e_s is None else URGENT_SHARE * self.e2e_s


def mean_over(by_hour: FloatArray, start_s: float, period_s: float) -> FloatArray:
    """Return the mean of hourly values over a period of ``period_s`` from ``start_s`` (epoch).

    ``by_hour [24, ...]`` are the values by UTC hour. The weight of an hour is its seconds within
    the period. If all values are equal, the result is exactly that value.
    """
    end_s = start_s + period_s
    first = int(start_s // HOUR_S)
    last = max(int(np.ceil(end_s / HOUR_S)), first + 1)  # at least one hour, despite rounding
    edges = np.arange(first, last + 1)  # of hours since the epoch
    seconds = np.diff(np.clip(edges * HOUR_S, start_s, end_s))
    values = by_hour[edges[:-1] % HOURS]
    # As the first value plus differences, so that equal values have no rounding.
    mean: FloatArray = values[0] + np.tensordot(seconds / seconds.sum(), values - values[0], 1)
    return mean


@dataclass(frozen=True, slots=True)
class Region:
    """A region with the carbon intensity of its grid and the overhead of its buildings.

    ``carbon_hourly_g_per_kwh`` has one value per hour of the day, UTC, if the daily cycle of the
    grid is known. Energy of an hour then emits at that rate, and ``carbon_g_per_kwh`` is the mean.
    """

    name: str
    carbon_g_per_kwh: float
    pue: float
    carbon_hourly_g_per_kwh: tuple[float, ...] | None = None
    site_kw: float = inf  # power limit of its replicas at rated load, servers and PUE included
    # USD per kWh by UTC hour, on top of the price of GPUs
    electricity_usd_per_kwh: tuple[float, ...] = (0.0,) * HOURS

    def __post_init__(self) -> None:
        hourly = self.carbon_hourly_g_per_kwh
        if hourly is not None and len(hourly) != HOURS:
            raise SimulationError(
                f"Region {self.name}: carbon by hour needs {HOURS} values, not {len(hourly)}."
            )


@dataclass(frozen=True, slots=True)
class KvLink:
    """The path of a KV cache from a prefill to a decode instance.

    Transfers queue, first come first served, at two links: that of the sending instance, and one
    that all instances of its pool share.
    """

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
    initial: int  # instances ready at the start, unless the policy sets another number
    minimum: int
    maximum: int
    startup_s: float  # from request to ready; uses GPU time
    usd_per_gpu_hour: float  # mean of a day
    # input and output tokens of a request at most; None: only memory limits it
    max_context: int | None = None
    # one of ROLES; prefill hands requests to decode pools of the same model and region
    role: str = "both"
    batching: str = "chunked"  # one of BATCHING
    link: KvLink | None = None  # for a prefill pool
    power: PowerAtLoad | None = None  # None: the GPU's constant watts for prefill and decode
    host_w: float = 0.0  # of the server without GPU boards, per GPU, at all times
    prefix_cache: bool = False  # keep blocks of finished prompts, evict the least recently used
    scheduler: str = "fcfs"  # one of SCHEDULERS
    tau_n_s: float = 10.0  # DPA: requests expired longer than this go first
    tau_p_s: float = 0.5  # DPA: requests are urgent this long before their deadline
    when_full: str = "preempt"  # one of WHEN_FULL: action if KV memory runs out during decoding
    # Tiers that it serves; None: all. Empty: it only provides GPUs for modules of other pools.
    tiers: tuple[str, ...] | None = None
    start_up: StartUp | None = None  # None: ``startup_s``, or a minute for a lent instance
    spot: bool = False  # rented as spot, so it cannot be lent out
    # Share of its price that a lent instance earns; the instance is kept and paid meanwhile.
    # None: a lent instance belongs to others, and costs and earns nothing.
    lend_share: float | None = None
    reclaims_per_hour: float = 0.0  # rate at which the provider takes a spot instance back
    embodied_g_per_gpu_hour: float = 0.0  # CO2e of making a GPU and its share of the server
    # Instances that ran before time 0. Those ready beyond them were started earlier, and their
    # starts are paid. None: all that are ready.
    today: int | None = None
    # Instances that are lost all the time and that nothing replaces. Policies see them as ready.
    lost: int = 0
    # price of a GPU by UTC hour; empty: the mean in every hour
    usd_by_hour: tuple[float, ...] = ()
    # models of the same architecture swap weights faster; empty: shared with no other
    architecture: str = ""

    @property
    def gpus_per_instance(self) -> int:
        return self.profile.tp

    def gpu_hours(self, instance_s: float) -> float:
        """Return the GPU-hours of ``instance_s`` seconds of an instance."""
        return instance_s / HOUR_S * self.gpus_per_instance

    @property
    def usd_above_mean(self) -> FloatArray:
        """Return the price of a GPU by UTC hour less its mean, ``[24]``."""
        by_hour = np.array(self.usd_by_hour or (self.usd_per_gpu_hour,) * HOURS)
        above: FloatArray = by_hour - self.usd_per_gpu_hour
        return above

    @property
    def lowest_usd(self) -> float:
        """Return the lowest price of a GPU in a day, in dollars per hour."""
        return float(self.usd_per_gpu_hour + self.usd_above_mean.min())

    @property
    def lends(self) -> bool:
        """Return whether the pool serves no requests and only provides GPUs for modules."""
        return self.tiers == ()

    def takes(self, tier: str) -> bool:
        """Return whether requests of ``tier`` may go to this pool."""
        return self.tiers is None or tier in self.tiers


def replica_switch_key(pool: Pool) -> tuple[str, str, str, bool, int]:
    """Return a key that is equal for pools whose instances may switch between them.

    It has the model, region, GPU type, spot or not, and GPUs per instance.
    """
    return pool.model, pool.region, pool.gpu.name, pool.spot, pool.gpus_per_instance


# Rule that selects the ready instance of an endpoint for a request:
# least-remaining: fewest tokens still to prefill and to generate.
# least-pending: fewest prompt tokens, with one per decode.
# round-robin: each in turn.
# least-memory: fewest KV tokens in use or needed by waiting requests.
# prefix-aware: fewest prompt tokens to compute before the first token. These are the waiting ones,
# and those of the request that the prefix cache lacks. Ties go to the fewest remaining tokens.
# This is Mooncake's algorithm 1 (FAST 2025) in tokens instead of predicted seconds.
ROUTERS = ("least-remaining", "least-pending", "round-robin", "least-memory", "prefix-aware")
ROLES = ("both", "prefill", "decode")
OTHER_ROLE = {"prefill": "decode", "decode": "prefill"}
# chunked: decodes first, then prompts in pieces within the rest of the token budget.
# whole: waiting prompts first and undivided, one longer than the budget alone. Decodes run in the
# same iteration if all fit, and pause otherwise.
# alone: as whole, but decodes always pause.
BATCHING = ("chunked", "whole", "alone")
# preempt: the request admitted last is computed again later. fail: it is rejected and counted.
WHEN_FULL = ("preempt", "fail")
SCHEDULERS = ("fcfs", "edf", "pf", "dpa")  # engine.queues uses these indices
# Criterion for a region. queues: prefer a region with an instance that takes the request at its
# next iteration. memory: by KV memory alone, as in SageServe.
ROUTER_INPUTS = ("queues", "memory")
# Choice among several pools of a service in a region. least-memory: first the pool with the least
# KV memory utilization, as among SageServe's endpoints, then its instance. together: among all
# their instances at once.
ENDPOINTS = ("least-memory", "together")


@dataclass(frozen=True, slots=True)
class Routing:
    """Routing rules (methods.md E4); thresholds are on KV memory utilization."""

    # nearest region below it, else the region with the least utilization
    region_threshold: float = 0.7
    release_one_below: float = 0.6  # utilization below which an endpoint gets one deferred request
    release_two_below: float = 0.5  # two deferred requests
    instance: str = "least-remaining"  # one of ROUTERS, for requests with their prompt to compute
    decode: str = "least-memory"  # one of ROUTERS, for requests from a prefill pool
    sees: str = "queues"  # one of ROUTER_INPUTS
    endpoint: str = "least-memory"  # one of ENDPOINTS


@dataclass(frozen=True, slots=True, eq=False)
class Fleet:
    """The fleet of a simulation: tiers, regions, pools and routing.

    ``latency_s`` has shape ``[regions, regions]``: one-way seconds from home to serving region.
    They are added to TTFT for a request served away from home. inf: the path is closed, and no
    request uses it.
    """

    tiers: tuple[Tier, ...]
    regions: tuple[Region, ...]
    pools: tuple[Pool, ...]
    latency_s: npt.NDArray[np.float64]
    routing: Routing = field(default_factory=Routing)
    registration: Registration | None = None  # of prefill and decode pools; None: at once
    faults: tuple[Fault, ...] = ()
    # most restarts of a request after losses of its instance; 0: such a request is rejected
    retries: int = 1

    def __post_init__(self) -> None:
        """Raise ``SimulationError`` for an invalid fleet, and make the latency read-only."""
        regions = tuple(region.name for region in self.regions)
        for pool in self.pools:
            if pool.region not in regions:
                raise SimulationError(f"Pool of {pool.model}: region {pool.region!r} is not known.")
        self._check_roles()
        self._check_tiers()
        for pool in self.pools:
            check_start(f"Pool of {pool.model} in {pool.region}", pool.start_up)
        check_registration(self.registration)
        check_faults(self.faults, self.retries, len(self.pools), regions)
        if self.latency_s.shape != (len(regions), len(regions)):
            raise SimulationError("Fleet latency must be a square of regions by regions.")
        latency = np.array(self.latency_s, dtype=np.float64)
        # A frozen dataclass does not protect its arrays.
        latency.setflags(write=False)
        object.__setattr__(self, "latency_s", latency)

    @property
    def models(self) -> tuple[str, ...]:
        """Return the models that have pools, in the order of the pools."""
        return tuple(dict.fromkeys(pool.model for pool in self.pools))

    @property
    def islands(self) -> npt.NDArray[np.int64]:
        """Return a group number per pool, ``[pools]``, equal if regions can exchange requests.

        Regions also belong to one group if a path is open in one direction only, or leads through
        other regions.
        """
        region_names = [region.name for region in self.regions]
        connected = np.isfinite(self.latency_s) | np.isfinite(self.latency_s.T)
        # Squaring the boolean matrix joins paths of twice the length, up to all paths.
        for _ in region_names:
            connected = connected @ connected
        # ``argmax`` gives the first True: the first region of each group.
        first_region: npt.NDArray[np.int64] = connected.argmax(axis=1)
        regions = [region_names.index(pool.region) for pool in self.pools]
        return np.array(first_region[regions], np.int64)

    def _check_roles(self) -> None:
        """Raise ``SimulationError`` for invalid routing, roles or links."""
        self._check_routing()
        existing_roles = {(pool.model, pool.region, pool.role) for pool in self.pools}
        for pool in self.pools:
            pool_name = f"Pool of {pool.model} in {pool.region}"
            if pool.role not in ROLES or pool.batching not in BATCHING:
                raise SimulationError(
                    f"{pool_name}: role is one of {', '.join(ROLES)}, "
                    f"batching one of {', '.join(BATCHING)}."
                )
            partner_role = OTHER_ROLE.get(pool.role)
            if partner_role and (pool.model, pool.region, partner_role) not in existing_roles:
                raise SimulationError(
                    f"{pool_name}: a {pool.role} pool needs a {partner_role} pool too."
                )
            if (pool.role == "prefill") != (pool.link is not None):
                raise SimulationError(
                    f"{pool_name}: a prefill pool needs a link, others have none."
                )
            self._check_serving(pool, pool_name)
            if pool.link and not min(pool.link.bytes_s, pool.link.shared_bytes_s) > 0:
                raise SimulationError(f"{pool_name}: its link needs a bandwidth above 0.")

    def _check_routing(self) -> None:
        """Raise ``SimulationError`` for invalid routing."""
        routing = self.routing
        for value, allowed in ((routing.sees, ROUTER_INPUTS), (routing.endpoint, ENDPOINTS)):
            if value not in allowed:
                choices = " or ".join(allowed)
                raise SimulationError(f"Routing cannot go by {value!r}. Use {choices}.")
        for name in (routing.instance, routing.decode):
            if name not in ROUTERS:
                raise SimulationError(f"There is no router {name!r}. Use {', '.join(ROUTERS)}.")
        if routing.decode == "prefix-aware":
            raise SimulationError(
                "Routing to decode replicas: prompts are computed before. Choose another router "
                "than prefix-aware."
            )

    @staticmethod
    def _check_serving(pool: Pool, pool_name: str) -> None:
        """Raise ``SimulationError`` for an invalid scheduler, limit or prefix cache of a pool."""
        for value, allowed in ((pool.scheduler, SCHEDULERS), (pool.when_full, WHEN_FULL)):
            if value not in allowed:
                raise SimulationError(
                    f"{pool_name}: there is no {value!r}. Use {', '.join(allowed)}."
                )
        if not min(pool.tau_n_s, pool.tau_p_s) >= 0:
            raise SimulationError(f"{pool_name}: tau_n_s and tau_p_s must be seconds >= 0.")
        if pool.role == "decode" and pool.scheduler in ("edf", "dpa"):
            raise SimulationError(
                f"{pool_name}: requests come there after their first token, so deadlines for it "
                "do not order them. Use fcfs or pf."
            )
        if pool.role == "decode" and pool.prefix_cache:
            raise SimulationError(
                f"{pool_name}: no prompts are computed there. Set prefix_cache on the prefill pool."
            )

    def _check_tiers(self) -> None:
        """Raise ``SimulationError`` for unknown tiers, or tiers that only one role takes."""
        tier_names = [tier.name for tier in self.tiers]
        for pool in self.pools:
            pool_name = f"Pool of {pool.model} in {pool.region}"
            if not set(pool.tiers or ()) <= set(tier_names):
                raise SimulationError(
                    f"{pool_name}: tiers names some of {', '.join(tier_names)}, not "
                    f"{', '.join(pool.tiers or ())}."
                )
            partner_role = OTHER_ROLE.get(pool.role)
            if partner_role is None:
                continue
            # A pool and its partners, of the other role, serve requests together.
            partner_key = pool.model, pool.region, partner_role
            partners = [p for p in self.pools if (p.model, p.region, p.role) == partner_key]
            for tier in tier_names:
                if pool.takes(tier) and not any(partner.takes(tier) for partner in partners):
                    raise SimulationError(
                        f"{pool_name}: it takes tier {tier}, but no {partner_role} pool does."
                    )
