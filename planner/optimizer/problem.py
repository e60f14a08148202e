"""Define planning problems of one window and of several periods, and their plans.

See methods.md E7, E9.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypedDict

import numpy as np

from simulation.arrays import BoolArray, FloatArray, IntArray
from simulation.fleet import ROLES

BOTH, PREFILL, DECODE = 0, 1, 2  # part of a request that a column serves
MEASURES = ("usd", "gpu_hours", "kwh", "kg")
OPTIMAL, FEASIBLE, INFEASIBLE, TIMEOUT = "optimal", "feasible", "infeasible", "timeout"


class SolverOptions(TypedDict, total=False):
    """Keyword arguments of ``solve_window`` and ``solve_horizon`` that control the solver."""

    solver: str
    gap: float  # share of the fleet's cost within which a plan counts as optimal
    time_limit_s: float


@dataclass(frozen=True, slots=True)
class Weights:
    """Weight of each measure (USD, GPU-hour, kWh, kg CO2e) in the objective; default: only USD."""

    usd: float = 1.0
    gpu_hours: float = 0.0
    kwh: float = 0.0
    kg: float = 0.0  # CO2e


@dataclass(frozen=True, slots=True)
class Totals:
    """What a plan uses in an hour, including its starts."""

    usd: float
    gpu_hours: float
    kwh: float
    kg: float  # CO2e
    starts: int
    stops: int


@dataclass(frozen=True, slots=True, eq=False)
class PlanningProblem:
    """The choice of instances of each model, region and GPU column for the coming window.

    Axes: ``l`` models, ``r`` regions, ``g`` GPU columns, ``w`` forecast windows (bins), ``t``
    capacity rows.

    A GPU column is a GPU type in one arrangement: number of GPUs per instance, prefill, decode or
    both, owned or spot. A capacity row is a stock of GPUs that several columns share, such as all
    GPUs of a type. Without ``types``, every column has its own row. A model that cannot run on a
    column has ``theta_tps == 0`` there.
    """

    models: tuple[str, ...]
    regions: tuple[str, ...]
    gpus: tuple[str, ...]
    current: IntArray  # [l, r, g] instances now
    # [l, g] input tokens/s that an instance of a large pool serves within the SLO (see pool_tps)
    theta_tps: FloatArray
    usd_per_hour: FloatArray  # [l, r, g] per instance
    start_usd: FloatArray  # [l, r, g] sigma: cost of the GPU time of one start
    gpus_per_instance: IntArray  # [l, g]
    demand_tps: FloatArray  # [l, r, w] forecast input tokens/s, buffer beta included
    capacity_gpus: IntArray  # [r, t]; [r, g] without ``types``
    minimum: IntArray  # [l, r, g]
    maximum: IntArray  # [l, r, g]
    epsilon: float  # share of a region's peak that must be served locally, (0, 1]
    weights: Weights = Weights()
    kw: FloatArray | None = None  # [l, r, g] power of an instance in kW, cooling included
    kg_per_kwh: FloatArray | None = None  # [r] CO2e
    # [r, t + 1] power limits in kW: first of the racks of each capacity row, last of the whole
    # site of the region. inf: no limit.
    power_kw: FloatArray | None = None
    budget_usd: float = math.inf  # per hour, for fleet and starts
    carbon_kg: float = math.inf  # per hour, for fleet and starts
    churn: float = math.inf  # instances started and stopped in the window
    types: IntArray | None = None  # [g] capacity row that a column takes its GPUs from
    type_names: tuple[str, ...] = ()  # [t]; default: the first column of each capacity row
    # [g] 0 both, 1 prefill only, 2 decode only: the weaker side limits a region.
    stages: IntArray | None = None
    spot: BoolArray | None = None  # [g] True for columns that may be reclaimed at short notice
    spot_share: float = 1.0  # largest share of a region's traffic that may rely on spot columns
    # [l, g, n] joint input tokens/s of a pool of n + 1 instances. Each instance beyond the end adds
    # theta_tps. pool_tps[..., n] / (n + 1) rises with n, to theta_tps at most. None: every
    # instance adds theta_tps.
    pool_tps: FloatArray | None = None
    # Redundancy: the plan must serve the demand after the loss of any ``spare`` instances of every
    # pool (``by_pool``), or of a model in a region. With ``lose_region``, it must also serve the
    # joint demand after the loss of any one region.
    spare: int = 0
    by_pool: bool = True
    lose_region: bool = False

    @property
    def rows(self) -> IntArray:
        """Return the capacity row that each column takes its GPUs from, ``[GPU column]``."""
        return np.arange(len(self.gpus)) if self.types is None else self.types

    @property
    def usable_gpus(self) -> IntArray:
        """Return the GPUs that each column may use in each region, ``[region, GPU column]``.

        Columns of one capacity row share the same GPUs, so the numbers must not be added.
        """
        return self.capacity_gpus if self.types is None else self.capacity_gpus[:, self.types]

    def under_power_limit(self, row: int) -> BoolArray:
        """Return True for GPU columns whose power counts for ``power_kw[:, row]``, ``[column]``.

        The last ``row`` has the limits of whole sites, for which every column counts.
        """
        is_site = row == self.capacity_gpus.shape[1]
        return np.full(len(self.gpus), True) if is_site else self.rows == row

    def power_limit_name(self, region: int, row: int) -> str:
        """Return the name of ``power_kw[region, row]``, such as "racks of A100-80GB in us-east"."""
        if row == self.capacity_gpus.shape[1]:
            return f"site {self.regions[region]}"
        return f"racks of {self.row_names[row]} in {self.regions[region]}"

    @property
    def row_names(self) -> tuple[str, ...]:
        """Return the name of each capacity row, such as its GPU type, ``[capacity row]``."""
        if self.types is None or self.type_names:
            return self.type_names or self.gpus
        # In reverse, so that the first column of a row gives it its name.
        names = {int(row): self.gpus[g] for g, row in reversed(list(enumerate(self.types)))}
        rows = range(self.capacity_gpus.shape[1])
        return tuple(names.get(row, f"type {row + 1}") for row in rows)


@dataclass(frozen=True, slots=True)
class Binding:
    """A constraint that the plan meets with less than one instance to spare.

    ``family`` is local, global, regions (the joint demand without one region), capacity, power,
    minimum, maximum, budget, carbon or churn. ``model`` is that of the pools that it limits; None:
    pools of several models. ``region`` is None for several regions. ``role`` is prefill, decode or
    both.
    """

    family: str
    where: str  # e.g. "llama-3.1-8b in us-east"
    sentence: str  # with the figures that hold in every window
    # Only of a demand to serve (local, global, regions), in this window.
    replicas: int | None = None
    need_tps: float | None = None
    served_tps: float | None = None
    model: str | None = None
    region: str | None = None
    role: str = ROLES[BOTH]


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """The result of a search for the plan of a window, by any method.

    ``target`` is None unless the status is optimal or feasible.
    """

    status: str  # optimal, feasible, infeasible or timeout
    target: IntArray | None  # [l, r, g]
    bound: float  # lower bound on the objective; 0 if nothing was proven
    died: str = ""  # message if the solver ended unexpectedly
    build_s: float = 0.0  # seconds to build the program
    solve_s: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class WindowPlan:
    """The plan of one window.

    ``objective_usd``, ``fleet_usd`` and ``bound_usd`` are in the units of the problem's weights: US
    dollars by default. ``totals`` is the use of each measure. If the solver gave no plan
    (infeasible, timeout), the figures are those of the greedy target and ``gap`` has no meaning.
    """

    status: str
    target: IntArray  # [l, r, g]; the greedy target if the solver gave none
    objective_usd: float  # per hour: fleet + starts (the fleet form of E7, same optimum)
    fleet_usd: float  # per hour, of the resulting fleet
    bound_usd: float  # proven lower bound on objective_usd
    gap: float  # (objective - bound) / fleet cost
    solver: str
    build_seconds: float
    solve_seconds: float
    binding: tuple[Binding, ...]
    conflict: str  # why it is infeasible, or the unserved demand after a timeout; else ""
    totals: Totals


@dataclass(frozen=True, slots=True, eq=False)
class Shift:
    """When and where deferrable work is done, in input tokens ``[period, model, region]``."""

    tokens: FloatArray  # work to do, by period and serving region
    arrived: FloatArray  # expected arrivals of work, by period and home region
    other_tps: FloatArray  # [p, l, r, w] demand of other tiers
    bound: float  # lower bound on the cost of any plan that does the work in time
    target: IntArray | None = None  # [p, l, r, g] instances that do the work

    def scaled(self, factor: float) -> Shift:
        """Return the shift with all work, demand and the cost bound multiplied by ``factor``.

        ``target`` is left out, since those instances are not for the new demand.
        """
        return Shift(
            factor * self.tokens,
            factor * self.arrived,
            factor * self.other_tps,
            factor * self.bound,
        )


@dataclass(frozen=True, slots=True, eq=False)
class ScalingPlan:
    """Consecutive window plans: the replicas over time.

    Axes: ``p`` periods, ``k`` tiers, ``l`` models, ``r`` regions, ``g`` GPU columns, ``t`` capacity
    rows (see ``PlanningProblem``).
    """

    models: tuple[str, ...]
    regions: tuple[str, ...]
    gpus: tuple[str, ...]
    gpus_per_instance: IntArray  # [l, g]
    period_start_s: FloatArray  # [p] UTC epoch seconds
    period_s: float
    initial: IntArray  # [l, r, g] before the first period
    demand_tps: FloatArray  # [p, l, r] planned peak, buffer included
    windows: tuple[WindowPlan, ...]  # [p]
    # If all windows are planned together, each bound is a share of the bound on all of them.
    together: bool = False
    lent: IntArray | None = None  # [p, l, r, g] instances of the targets that are lent
    rerouted_tps: FloatArray | None = None  # [p, r, r] from home region to serving region
    # [p, l, r, r] share of the traffic of each home region that each serving region gets. All
    # zeros for a home region: it is served at home.
    shares: FloatArray | None = None
    tiers: tuple[str, ...] = ()  # [k] of ``unserved_tps``
    unserved_tps: FloatArray | None = None  # [p, k, l] if capacity does not suffice
    policy: str = ""  # limited-mode policy, if one was needed
    reserved: IntArray | None = None  # [r, t] GPUs paid in every period; None: not asked for
    shift: Shift | None = None  # when deferrable work is done; None: as soon as there is room

    @property
    def target(self) -> IntArray:
        """Return the instances per period, shape ``[period, model, region, GPU column]``."""
        return np.stack([window.target for window in self.windows])


@dataclass(frozen=True, slots=True, eq=False)
class HorizonProblem:
    """A window for every period, with the limits and the start-up time that join periods.

    Axes: ``p`` periods, ``k`` tiers, ``l`` models, ``r`` regions, ``g`` GPU columns, ``w`` bins,
    ``t`` capacity rows (see ``PlanningProblem``). Prices, carbon intensities, limits and demands
    may differ by period. Capacities of instances, sizes and columns may not.
    ``windows[0].current`` is the present fleet; later ``current`` are ignored. Limits in a window
    (budget, carbon, churn) apply to that period. Limits here apply to all periods together.
    """

    windows: tuple[PlanningProblem, ...]  # [p]
    period_s: float
    names: tuple[str, ...] = ()  # [p] as in "the period from 14:00"; default: "period 1"
    # Whole periods from a start request until the instance serves. The instance is paid for and
    # occupies its GPUs meanwhile. The rest of the cold start is in start_usd.
    lead: int = 0
    lend_usd: FloatArray | None = None  # [l, r, g] hourly income from lending an instance
    start: IntArray | None = None  # [p, l, r, g] a plan to begin the search from
    # [r, t] price of a GPU-hour that is reserved for all periods, used or not. inf: no offer.
    reserved_usd: FloatArray | None = None
    on_demand_usd: FloatArray | None = None  # [p, r, t] or [r, t] price without a reservation
    # [home region, serving region] largest share of the home region's demand that the serving
    # region may take at the moment of the joint peak. None: any share, within epsilon.
    reroute: FloatArray | None = None
    budget_usd: float = math.inf
    carbon_kg: float = math.inf
    churn: float = math.inf  # instances started and stopped
    tiers: tuple[str, ...] = ()  # [k]
    tier_tps: FloatArray | None = None  # [k, p, l, r, w], with the windows' demand as sum
    # [k, l] value of a token/s of each tier and model. With it, the least valuable demand may stay
    # unserved where capacity is short.
    priority: FloatArray | None = None
    # True: ``priority`` is in dollars per token/s and hour, and demand is served only where its
    # value exceeds its cost.
    traded: bool = False

    @property
    def hours(self) -> float:
        """Return the length of a period in hours."""
        return self.period_s / 3600

    @property
    def first(self) -> PlanningProblem:
        """Return the first window, which has the present fleet and the data common to all."""
        return self.windows[0]

    @property
    def demand(self) -> FloatArray:
        """Return the demand ``[tier, period, model, region, bin]``, input tokens/s.

        Without tiers, all demand counts as one tier.
        """
        if self.tier_tps is not None:
            return self.tier_tps
        return np.stack([window.demand_tps for window in self.windows])[None]

    @property
    def own_demand(self) -> FloatArray:
        """Return the local needs, ``[tier, period, model, region]`` in tokens/s.

        A region must itself serve the share ``epsilon`` of its peak demand.
        """
        epsilon = np.array([window.epsilon for window in self.windows])
        regional: FloatArray = self.demand.max(axis=4) * epsilon[None, :, None, None]
        return regional

    @property
    def joint_demand(self) -> FloatArray:
        """Return the peak of the demand summed over regions, ``[tier, period, model]`` tokens/s."""
        joint: FloatArray = self.demand.sum(axis=3).max(axis=3)
        return joint

    def name(self, period: int) -> str:
        """Return the name of a period for use in sentences."""
        return self.names[period] if self.names else f"period {period + 1}"

    def period_suffix(self, period: int) -> str:
        """Return " in period 2" for sentences, or "" for a single period without a name."""
        is_single = len(self.windows) == 1 and not self.names
        return "" if is_single else f" in {self.name(period)}"

    def changes(self, target: IntArray) -> IntArray:
        """Return the change from the period before, ``[period, model, region, GPU column]``."""
        before = np.concatenate([self.first.current[None], target[:-1]])
        change: IntArray = target - before
        return change

    def requested_starts(self, target: IntArray) -> IntArray:
        """Return the starts to request in each period, ``[period, model, region, GPU column]``.

        They are requested ``lead`` periods early, so that the instances are up when needed. In the
        first ``lead`` periods, no instance can be added.
        """
        increases = np.maximum(0, self.changes(target))
        requests = np.zeros_like(increases)
        requests[: len(increases) - self.lead] = increases[self.lead :]
        return requests


def single_period(window: PlanningProblem) -> HorizonProblem:
    """Return a window as a horizon of an hour, whose sums are the window's figures per hour."""
    return HorizonProblem((window,), period_s=3600.0)


@dataclass(frozen=True, slots=True, eq=False)
class HorizonPlan:
    """The plan of a horizon. Money is in the units of the weights, over all periods.

    Without a solution of the solver, the targets are those of the greedy plan, period by period.
    Axes as in ``HorizonProblem``.
    """

    status: str
    target: IntArray  # [p, l, r, g] instances up, including lent ones
    lent: IntArray  # [p, l, r, g] lent instances among these
    # [p, r, r] from home region (row) to serving region, at the joint peak
    rerouted_tps: FloatArray
    unserved_tps: FloatArray  # [p, k, l]
    reserved: IntArray  # [r, t] GPUs
    objective: float
    fleet: float  # part of the objective for instances that are up
    bound: float  # lower bound on the cost of any plan
    gap: float  # (objective - bound) / fleet
    solver: str
    build_seconds: float
    solve_seconds: float
    totals: tuple[Totals, ...]  # [p] use in each period
    binding: tuple[Binding, ...]
    conflict: str  # why there is no plan, or how the solver failed; else ""
