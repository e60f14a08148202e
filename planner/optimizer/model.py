"""Assemble the SageServe integer program of one window (seed 004, section 5; methods.md E7)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pulp

from planner.optimizer import constraints
from planner.optimizer.objective import price, start_price
from planner.optimizer.problem import PlanningProblem
from planner.optimizer.program import Program
from simulation.arrays import FloatArray

# Start costs are at least this share of the hourly price, so that of two plans that cost the same
# the one that keeps what is running wins. ``true_bound`` takes the hair back out of the bound.
STICKINESS = 1e-6

FAMILIES: tuple[Callable[[Program], None], ...] = (
    constraints.sides,
    constraints.local_coverage,
    constraints.global_coverage,
    constraints.capacity,
    constraints.minimum,
    constraints.maximum,
    constraints.starts,
    constraints.caps,
)


def build(problem: PlanningProblem) -> Program:
    """The program of ``problem``: variables, objective, every constraint family, tight bounds."""
    program = constrained(problem)
    fleet_and_starts(program)
    tighten(program)
    return program


def constrained(problem: PlanningProblem) -> Program:
    """Variables and every constraint family, without objective: what can be feasible or not."""
    program = Program.of(problem)
    for family in FAMILIES:
        family(program)
    return program


def tighten(program: Program) -> None:
    """x[l,r,g]  <=  floor(capacity_gpus[r,t] / gpus_per_instance[l,g])   for every l, r, g of t.

    Implied by ``capacity``; as bounds they let HiGHS prove 0.2% instead of 0.4% on the 50x50x10
    reference instance in 20 s.
    """
    problem, room = program.problem, program.problem.room
    for (model, region, gpu), x in program.x.items():
        size = problem.gpus_per_instance[model, gpu]
        x.upBound = float(room[region, gpu] // size)


def fleet_and_starts(program: Program) -> None:
    """Minimise  sum_lrg price[l,r,g] x[l,r,g] + sum_lrg start_price[l,r,g] starts[l,r,g].

    The fleet form of E7: the seed's objective, sum alpha (x - current) + sum sigma starts, differs
    by the constant sum alpha current, so the optimum is the same and a gap means something.
    """
    usd, start = price(program.problem), start_cost(program.problem)
    terms = [(x, float(usd[cell])) for cell, x in program.x.items()]
    terms += [(starts, float(start[cell])) for cell, starts in program.starts.items()]
    program.lp.setObjective(pulp.LpAffineExpression(terms))


def start_cost(problem: PlanningProblem) -> FloatArray:
    """What a start adds to the objective, with at least the hair of STICKINESS, ``[l, r, g]``."""
    return np.maximum(start_price(problem), STICKINESS * price(problem))


def true_bound(problem: PlanningProblem, bound_usd: float) -> float:
    """Lower bound on the true cost from one on the program's objective.

    The objective adds at most hair * usd * starts <= hair * fleet to the true cost, so true cost
    >= objective / (1 + hair); hair is 0 where every start costs STICKINESS of a price or more.
    """
    hourly, start = price(problem), start_price(problem)
    priced = hourly > 0
    cheapest = (start[priced] / hourly[priced]).min(initial=STICKINESS)
    return max(0.0, bound_usd) / (1.0 + STICKINESS - float(cheapest))
