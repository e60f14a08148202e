"""Move deferrable work to the periods and regions of the lowest cost, within its deadlines.

It is the program of all periods, with the work as variables. Replicas, starts, reserved GPUs and
the times of work are chosen together. The optimum of its linear relaxation is a lower bound on the
cost of any plan that serves the same demand.
"""

from dataclasses import dataclass, replace

import highspy
import numpy as np

from planner.optimizer.problem import HorizonProblem, Shift
from planner.optimizer.program.search import SOLVERS, draft_program
from planner.optimizer.program.variables import Draft
from planner.optimizer.solvers.arrays import INF, LinearProgram
from planner.optimizer.solvers.highs import loaded_highs, run
from simulation.arrays import BoolArray, FloatArray, IntArray

ZERO = 1e-6  # replicas: tolerance of the solver
SOONER = 1e-7  # share of the price of a token by which a later period costs more: decides ties


@dataclass(frozen=True, slots=True, eq=False)
class Work:
    """Deferrable work in parts, ``[part]``.

    A part is the work of a model that arrives in one region and period and has one deadline.
    """

    tokens: FloatArray  # input tokens
    model: IntArray
    home: IntArray  # region where the tokens arrive
    arrival: IntArray  # period in which they arrive, and the first in which they can be processed
    last: IntArray  # last period in which they can be processed


def cheapest_shift(
    problem: HorizonProblem,
    work: Work,
    can_serve: BoolArray,
    *,
    solver: str = "highs",
    gap: float = 1e-4,
    time_limit_s: float = 30.0,
) -> Shift | None:
    """Return when and where to do ``work`` on top of the demand of ``problem`` at the lowest cost.

    ``can_serve [home region, serving region]`` states which regions may serve the work of a home
    region. Within a period, work fills the capacity below the peak of the other demand. The times
    are those of the best fleet of whole replicas that the solver finds within ``time_limit_s``. If
    it finds none, they are those of a fractional fleet. None: not even a fractional fleet does all
    work by its deadlines.
    """
    fractional = _fractional_fleet(problem, work, can_serve)
    if fractional is None:
        return None
    # The fleet of whole replicas, from the rounded fractional one as the starting solution.
    draft, flows = _program_with_work(problem, work, can_serve)
    program = draft.builder.program()
    start = _rounded_up(draft, program, fractional.counts, flows.variable, fractional.rates)
    solution = SOLVERS[solver](
        program, gap=gap, time_limit_s=time_limit_s, check=lambda: None, start=start
    )
    values = start if solution.values is None else solution.values
    rates, target = fractional.rates, None
    if values is not None:
        rates, target = values[flows.variable], draft.round_counts(values, draft.x)
    # Tokens of work done and arrived, [period, model, region].
    shape = (len(problem.windows), *problem.first.current.shape[:2])
    tokens, arrived = np.zeros(shape), np.zeros(shape)
    work_tokens = np.maximum(0.0, rates) * problem.period_s
    np.add.at(tokens, (flows.period, work.model[flows.part], flows.region), work_tokens)
    np.add.at(arrived, (work.arrival, work.model, work.home), work.tokens)
    other_tps = np.stack([window.demand_tps for window in problem.windows])
    return Shift(tokens, arrived, other_tps, fractional.bound, target)


@dataclass(frozen=True, slots=True, eq=False)
class _FractionalFleet:
    """The cheapest fleet that may have fractions of replicas."""

    counts: FloatArray  # [period, cell] replicas
    rates: FloatArray  # [variable] tokens/s of work
    bound: float  # lowest cost of any fleet


def _fractional_fleet(
    problem: HorizonProblem, work: Work, can_serve: BoolArray
) -> _FractionalFleet | None:
    """Return the cheapest fractional fleet, at the capacity of large pools.

    None: no fleet does all work by its deadlines. The cost leaves out what only breaks ties.
    """
    windows = tuple(replace(window, pool_tps=None) for window in problem.windows)
    draft, flows = _program_with_work(replace(problem, windows=windows), work, can_serve)
    highs = loaded_highs(draft.builder.program(), time_limit_s=np.inf, relaxed=True)
    run(highs, lambda: None)
    if highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return None
    values = np.array(highs.getSolution().col_value)
    rates = values[flows.variable]
    cost = float(highs.getObjectiveValue()) - float(flows.ties @ rates)
    return _FractionalFleet(values[draft.x], rates, max(0.0, cost))


def _rounded_up(
    draft: Draft, program: LinearProgram, counts: FloatArray, variable: IntArray, rates: FloatArray
) -> FloatArray | None:
    """Return a feasible solution with the fractional replicas ``counts`` rounded up, or None.

    ``counts`` are ``[period, cell]``, a cell being a model, region and GPU column. ``rates`` are
    the tokens/s of work, the values of the variables ``variable``. A replica of a small pool serves
    less, so up to two more replicas of each pool are tried. None: no try is feasible.
    """
    target = np.zeros((len(counts), *draft.problem.first.current.shape), np.int64)
    for extra in range(3):  # more replicas of each pool
        rounded = np.where(counts > ZERO, np.ceil(counts - ZERO) + extra, 0)
        target[(slice(None), *draft.cell)] = rounded
        values = draft.values_of(target)
        values[variable] = rates
        if program.is_feasible(values):
            return values
    return None


@dataclass(frozen=True, slots=True, eq=False)
class _Flows:
    """The variables for the tokens/s of work by part, period and serving region, ``[variable]``."""

    part: IntArray
    period: IntArray
    region: IntArray
    variable: IntArray  # index in the program
    ties: FloatArray  # a small cost that rises with the period, so that equal plans work early


def _program_with_work(
    problem: HorizonProblem, work: Work, can_serve: BoolArray
) -> tuple[Draft, _Flows]:
    """Return the program of all periods, with the rates of ``work`` in tokens/s as variables.

    There is a variable for each part of the work, each period from its arrival to its deadline, and
    each region in ``can_serve [home region, serving region]``.
    """
    draft = draft_program(problem, cuts=False)
    periods = np.arange(len(problem.windows))
    in_time = (periods >= work.arrival[:, None]) & (periods <= work.last[:, None])  # [part, period]
    may_serve = can_serve[work.home]  # [part, region]
    part, period, region = np.nonzero(in_time[:, :, None] & may_serve[:, None, :])
    full_rate = work.tokens / problem.period_s  # tokens/s if all is done in one period
    # A small cost that rises with the period breaks ties: of equal plans, the sooner one wins. It
    # is the share SOONER of the highest price of one token/s over a period, in dollars.
    highest_usd = max(float(window.usd_per_hour.max(initial=0.0)) for window in problem.windows)
    highest_tps = float(problem.first.theta_tps.max(initial=0.0))
    tie_usd = SOONER * highest_usd / max(1e-12, highest_tps) * problem.hours
    ties: FloatArray = np.asarray(tie_usd * (1.0 + period), np.float64)
    variables = draft.builder.grid(part.shape, cost=ties)
    draft.builder.add("work", [(part, variables, 1.0)], full_rate, full_rate, len(full_rate))
    flows = _Flows(part, period, region, variables, ties)
    _add_coverage_of_work(draft, work.model[part], flows)
    return draft, flows


def _add_coverage_of_work(draft: Draft, model: IntArray, flows: _Flows) -> None:
    """Require capacity for the mean demand and the work, in each region and in all together.

    sum_g C(x) >= epsilon (mean_w rho + work)  for each region, and without epsilon for all regions.
    Here C(x) is the capacity of x instances of a GPU column, and rho the demand in bin w. The
    program also requires capacity for the peak demand, so work fits below the peak or raises
    capacity. If a region may be lost, the others do all work. ``model [variable]`` is that of each
    flow.
    """
    problem, pairs = draft.problem, np.arange(draft.pairs)  # a pair: model * regions + region
    models, regions = len(problem.first.models), len(problem.first.regions)
    for period, window in enumerate(problem.windows):
        in_period = flows.period == period
        # The variables of the period's flows, with the row of each: its pair, or its model.
        variables, model_rows = flows.variable[in_period], model[in_period]
        pair_rows = model_rows * regions + flows.region[in_period]
        mean_tps = window.demand_tps.mean(axis=2)  # [model, region]
        local = [*draft.served_tps(period, pairs), (pair_rows, variables, -window.epsilon)]
        draft.builder.add("local", local, window.epsilon * mean_tps.ravel(), INF, draft.pairs)
        lost_regions = range(regions) if window.lose_region else ()
        for lost in (None, *lost_regions):  # None: no region is lost
            is_left = (pairs % regions != lost).astype(float)
            served = draft.served_tps(period, draft.model_of_pair, is_left)
            joint = [*served, (model_rows, variables, -1.0)]
            draft.builder.add("global", joint, mean_tps.sum(axis=1), INF, models)
