"""The planning problem of several periods together, and the plan that answers it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from planner.errors import ScenarioError
from planner.optimizer.problem import Binding, PlanningProblem, Totals
from planner.optimizer.validation import validate
from simulation.arrays import FloatArray, IntArray


@dataclass(frozen=True, slots=True, eq=False)
class HorizonProblem:
    """A window for every period and what joins them.

    Axes: ``p`` periods, ``k`` tiers, ``l`` models, ``r`` regions, ``g`` columns, ``w`` bins.
    Prices, carbon intensities, limits and demands may differ by period; theta, sizes and columns
    may not.
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

    def name(self, period: int) -> str:
        """Of a period, for sentences."""
        return self.names[period] if self.names else f"period {period + 1}"


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


def validate_horizon(problem: HorizonProblem) -> None:
    """Raise ``ScenarioError`` for what cannot be planned, naming it."""
    if not problem.windows:
        raise ScenarioError("There is no period to plan: give a horizon of one period or more.")
    first = problem.first
    for period, window in enumerate(problem.windows):
        validate(window)
        same = (window.models, window.regions, window.gpus) == (
            *(first.models, first.regions, first.gpus),
        )
        fixed = ("theta_tps", "gpus_per_instance", "types", "stages", "spot")
        if not same or any(
            not np.array_equal(getattr(window, one), getattr(first, one)) for one in fixed
        ):
            raise ScenarioError(
                f"Every period must have the same models, regions and columns, unlike "
                f"{problem.name(period)}."
            )
    if not problem.period_s > 0:
        raise ScenarioError(f"A period lasts {problem.period_s} s: give more than 0.")
    if problem.names and len(problem.names) != len(problem.windows):
        raise ScenarioError("names must hold one name for every period.")
    if problem.lead < 0:
        raise ScenarioError(f"The lead is {problem.lead} periods: give 0 or more.")
    for field in ("budget_usd", "carbon_kg", "churn"):
        if not getattr(problem, field) >= 0:
            raise ScenarioError(f"{field} is {getattr(problem, field)}: give 0 or more.")
    _check_arrays(problem)


def _check_arrays(problem: HorizonProblem) -> None:
    first, periods = problem.first, len(problem.windows)
    regions = len(first.regions)
    shapes: dict[str, tuple[int, ...]] = {
        "lend_usd": first.current.shape,
        "reroute": (regions, regions),
        "priority": (len(problem.demand), len(first.models)),
    }
    for field, shape in shapes.items():
        values: FloatArray | None = getattr(problem, field)
        if values is None:
            continue
        if values.shape != shape:
            raise ScenarioError(f"{field} has shape {values.shape}, not {shape}.")
        if not np.all(np.isfinite(values) & (values >= 0)):
            raise ScenarioError(f"{field} must hold numbers of 0 or more.")
    if problem.priority is not None and not np.all(problem.priority > 0):
        raise ScenarioError("priority must hold one number above 0 for every tier and model.")
    if problem.tier_tps is not None:
        if problem.tier_tps.shape[:2] != (max(1, len(problem.tiers)), periods):
            raise ScenarioError("tier_tps must hold the demand of every tier and period.")
        total = problem.tier_tps.sum(axis=0)
        for period, window in enumerate(problem.windows):
            if total[period].shape != window.demand_tps.shape or not np.allclose(
                total[period], window.demand_tps, rtol=1e-6, atol=1e-6
            ):
                raise ScenarioError("tier_tps must add up to the demand of every period.")
