"""Planning problems of one decision window and of several periods together, and their plans
(methods.md E7, E9)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from simulation.arrays import BoolArray, FloatArray, IntArray

BOTH, PREFILL, DECODE = 0, 1, 2  # what a column does of a request
MEASURES = ("usd", "gpu_hours", "kwh", "kg")
OPTIMAL, FEASIBLE, INFEASIBLE, TIMEOUT = "optimal", "feasible", "infeasible", "timeout"


@dataclass(frozen=True, slots=True)
class Weights:
    """What the objective charges per unit: US dollars as they are, unless told otherwise."""

    usd: float = 1.0
    gpu_hours: float = 0.0
    kwh: float = 0.0
    kg: float = 0.0  # of CO2


@dataclass(frozen=True, slots=True)
class Totals:
    """What a plan takes in an hour, with what its starts burn."""

    usd: float
    gpu_hours: float
    kwh: float
    kg: float  # of CO2
    starts: int
    stops: int


@dataclass(frozen=True, slots=True, eq=False)
class PlanningProblem:
    """How many instances of each model, region and column for the coming window.

    Axes: ``l`` models, ``r`` regions, ``g`` columns, ``w`` forecast windows (bins), ``t`` rows of
    capacity. A column is a GPU type, or one arrangement of it: of so many GPUs, for prefill or
    decode or both, owned or spot. Without ``types`` every column has capacity of its own. A model
    that cannot run on a column has ``theta_tps == 0`` there.
    """

    models: tuple[str, ...]
    regions: tuple[str, ...]
    gpus: tuple[str, ...]
    current: IntArray  # [l, r, g] instances now
    # [l, g] input tokens/s an instance serves within the SLO, in a large pool (see pool_tps)
    theta_tps: FloatArray
    usd_per_hour: FloatArray  # [l, r, g] of one instance
    start_usd: FloatArray  # [l, r, g] sigma: GPU time burnt while one instance starts
    gpus_per_instance: IntArray  # [l, g]
    demand_tps: FloatArray  # [l, r, w] forecast input tokens/s, buffer beta included
    capacity_gpus: IntArray  # [r, t]; [r, g] without ``types``
    minimum: IntArray  # [l, r, g]
    maximum: IntArray  # [l, r, g]
    epsilon: float  # share of a region's peak that must be served locally, (0, 1]
    weights: Weights = Weights()
    kw: FloatArray | None = None  # [l, r, g] kilowatts an instance draws, cooling included
    kg_per_kwh: FloatArray | None = None  # [r] of CO2
    budget_usd: float = math.inf  # per hour, fleet and starts
    carbon_kg: float = math.inf  # per hour, fleet and starts
    churn: float = math.inf  # instances started and stopped in the window
    types: IntArray | None = None  # [g] the row of capacity_gpus that a column draws from
    type_names: tuple[str, ...] = ()  # [t]; left out: the first column that draws from the row
    # [g] 0 both, 1 prefill only, 2 decode only: a region serves what both sides there carry.
    stages: IntArray | None = None
    spot: BoolArray | None = None  # [g] columns that may be taken away at short notice
    spot_share: float = 1.0  # of what a region serves, at most this rests on spot columns
    # [l, g, n] input tokens/s that n + 1 instances carry together in one region, for 1 to N; each
    # further one adds theta_tps, which pool_tps[..., n] / (n + 1) rises to. None: theta_tps each.
    pool_tps: FloatArray | None = None
    # What may be gone: demand is carried without any ``spare`` instances of every pool
    # (``by_pool``), or of all that a model has in a region; with ``lose_region`` the joint demand
    # also without any one region.
    spare: int = 0
    by_pool: bool = True
    lose_region: bool = False

    @property
    def rows(self) -> IntArray:
        """The row of capacity of each column, ``[g]``."""
        return np.arange(len(self.gpus)) if self.types is None else self.types

    @property
    def room(self) -> IntArray:
        """GPUs that each column may draw from, shared with its type's others, ``[r, g]``."""
        return self.capacity_gpus if self.types is None else self.capacity_gpus[:, self.types]

    @property
    def row_names(self) -> tuple[str, ...]:
        """What each row of capacity is called, ``[t]``."""
        if self.types is None or self.type_names:
            return self.type_names or self.gpus
        names = {int(row): self.gpus[g] for g, row in reversed(list(enumerate(self.types)))}
        rows = range(self.capacity_gpus.shape[1])
        return tuple(names.get(row, f"type {row + 1}") for row in rows)


@dataclass(frozen=True, slots=True)
class Binding:
    """A constraint with no slack: ``family`` is local, global, regions (the joint demand without
    one of them), capacity, minimum, maximum, budget, carbon or churn."""

    family: str
    where: str  # e.g. "llama-3.1-8b in us-east"
    sentence: str  # in words, with figures and units


@dataclass(frozen=True, slots=True, eq=False)
class WindowPlan:
    """The answer for one window.

    ``objective_usd``, ``fleet_usd`` and ``bound_usd`` are in what the problem's weights charge:
    US dollars by default. ``totals`` says what the plan takes of each measure. Without a plan of
    the solver's (infeasible, timeout) the figures are those of the greedy target, and ``gap`` says
    nothing.
    """

    status: str
    target: IntArray  # [l, r, g]; the greedy answer's when the solver gave none
    objective_usd: float  # per hour: fleet + starts (the fleet form of E7, same optimum)
    fleet_usd: float  # per hour, of the resulting fleet
    bound_usd: float  # proven lower bound on objective_usd
    gap: float  # (objective - bound) / fleet cost
    solver: str
    build_seconds: float
    solve_seconds: float
    binding: tuple[Binding, ...]
    conflict: str  # why infeasible, or what a timed-out target leaves unserved; "" otherwise
    totals: Totals


@dataclass(frozen=True, slots=True, eq=False)
class ScalingPlan:
    """Window plans one after the other: the replicas to hold over time."""

    models: tuple[str, ...]
    regions: tuple[str, ...]
    gpus: tuple[str, ...]
    gpus_per_instance: IntArray  # [l, g]
    period_start_s: FloatArray  # [p] UTC epoch seconds
    period_s: float
    initial: IntArray  # [l, r, g] before the first period
    demand_tps: FloatArray  # [p, l, r] planned-for peak, buffer included
    windows: tuple[WindowPlan, ...]  # [p]
    # Planned all at once, each window's bound is its share of the one on all of them together.
    together: bool = False
    lent: IntArray | None = None  # [p, l, r, g] of the targets
    rerouted_tps: FloatArray | None = None  # [p, r, r] from home to where served
    # [p, l, r, r] of each model's tokens of a home region, where they are served; a row of zeros:
    # none are sent elsewhere
    shares: FloatArray | None = None
    tiers: tuple[str, ...] = ()  # [k] of the next
    unserved_tps: FloatArray | None = None  # [p, k, l] where not all can be served
    policy: str = ""  # of limited mode, where it was needed

    @property
    def target(self) -> IntArray:
        """Instances per period, shape ``[p, l, r, g]``."""
        return np.stack([window.target for window in self.windows])


@dataclass(frozen=True, slots=True, eq=False)
class HorizonProblem:
    """A window for every period and what joins them.

    Axes: ``p`` periods, ``k`` tiers, ``l`` models, ``r`` regions, ``g`` columns, ``w`` bins.
    Prices, carbon intensities, limits and demands may differ by period; what instances carry, sizes
    and columns may not.
    ``windows[0].current`` is the present fleet, the others' ``current`` is not looked at. Limits in
    a window (budget, carbon, churn) are of that period, those here of all periods together.
    """

    windows: tuple[PlanningProblem, ...]  # [p]
    period_s: float
    names: tuple[str, ...] = ()  # [p] as in "the period from 14:00"; left out: "period 1"
    # Whole periods from asking for an instance to its serving: it is paid and takes up its GPUs
    # while it starts. What remains of a start-up is in start_usd.
    lead: int = 0
    lend_usd: FloatArray | None = None  # [l, r, g] what lending an instance earns in an hour
    # [r, r] share of a region's demand (row) that may be served in another (column) at the moment
    # of the joint peak; None: any, within epsilon.
    reroute: FloatArray | None = None
    budget_usd: float = math.inf
    carbon_kg: float = math.inf
    churn: float = math.inf  # instances started and stopped
    tiers: tuple[str, ...] = ()  # [k]
    tier_tps: FloatArray | None = None  # [k, p, l, r, w], adding up to the windows' demand
    # [k, l] worth of a token/s of each tier and model: with it some demand may stay unserved where
    # capacity is short, the least worth possible.
    priority: FloatArray | None = None

    @property
    def hours(self) -> float:
        """Of one period."""
        return self.period_s / 3600

    @property
    def first(self) -> PlanningProblem:
        """The window with the present fleet, and what does not change."""
        return self.windows[0]

    @property
    def demand(self) -> FloatArray:
        """By tier, ``[k, p, l, r, w]``; one tier where they are not told apart."""
        if self.tier_tps is not None:
            return self.tier_tps
        return np.stack([window.demand_tps for window in self.windows])[None]

    @property
    def own_demand(self) -> FloatArray:
        """What of a tier's own peak a region must serve itself, ``[k, p, l, r]``."""
        epsilon = np.array([window.epsilon for window in self.windows])
        regional: FloatArray = self.demand.max(axis=4) * epsilon[None, :, None, None]
        return regional

    @property
    def joint_demand(self) -> FloatArray:
        """The peak of a tier in all regions together, ``[k, p, l]``."""
        joint: FloatArray = self.demand.sum(axis=3).max(axis=3)
        return joint

    def name(self, period: int) -> str:
        """Of a period, for sentences."""
        return self.names[period] if self.names else f"period {period + 1}"

    def within(self, period: int) -> str:
        """`` in period 2``; nothing for a single period without a name."""
        alone = len(self.windows) == 1 and not self.names
        return "" if alone else f" in {self.name(period)}"

    def changes(self, target: IntArray) -> IntArray:
        """Instances more (above 0) or fewer than the period before, ``[p, l, r, g]``."""
        before = np.concatenate([self.first.current[None], target[:-1]])
        more: IntArray = target - before
        return more

    def asked_for(self, target: IntArray) -> IntArray:
        """Instances asked for in each period so that they are up in time, ``[p, l, r, g]``."""
        up = np.maximum(0, self.changes(target))
        begun = np.zeros_like(up)
        begun[: len(up) - self.lead] = up[self.lead :]
        return begun


def alone(window: PlanningProblem) -> HorizonProblem:
    """A window by itself: a horizon of one period, whose figures by the hour are its own."""
    return HorizonProblem((window,), 3600.0)


@dataclass(frozen=True, slots=True, eq=False)
class HorizonPlan:
    """The answer. Money is in what the weights charge, of all periods together.

    Without an answer of the solver's the targets are those of the greedy plan, period by period.
    """

    status: str
    target: IntArray  # [p, l, r, g] instances up, lent ones included
    lent: IntArray  # [p, l, r, g] of these
    asked: IntArray  # [p, l, r, g] asked for in the period; they serve ``lead`` periods later
    rerouted_tps: FloatArray  # [p, r, r] from home (row) to where served, at the joint peak
    unserved_tps: FloatArray  # [p, k, l]
    objective: float
    fleet: float  # of it, for instances that are up
    bound: float  # no plan costs less
    gap: float  # (objective - bound) / fleet
    solver: str
    build_seconds: float
    solve_seconds: float
    totals: tuple[Totals, ...]  # [p] taken in each period
    binding: tuple[Binding, ...]
    conflict: str  # why there is none, or what happened to the solver; "" otherwise
