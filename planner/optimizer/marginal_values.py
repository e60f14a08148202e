"""Value a change of a limit by planning again with the limit moved.

Solving again is exact for whole instances, up to the gaps of both plans. The duals of the linear
relaxation are a quick figure for small fractions of a move.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from operator import attrgetter

import highspy
import numpy as np

from planner.optimizer.figures import cap_use, gpus_used
from planner.optimizer.objective import POWER, power_caps, price
from planner.optimizer.problem import (
    FEASIBLE,
    OPTIMAL,
    PlanningProblem,
    SolverOptions,
    WindowPlan,
    single_period,
)
from planner.optimizer.program.search import draft_program
from planner.optimizer.solvers.highs import loaded_highs, run
from planner.optimizer.window import solve_window
from simulation.arrays import FloatArray, IntArray

CAPACITY = "capacity"
RELAXATION_LIMIT_S = 10.0  # limit for one linear relaxation


@dataclass(frozen=True, slots=True)
class Move:
    """A limit of the problem and the ``step`` by which it is raised or lowered, to value it."""

    family: str  # kind of limit, such as "capacity" or "power"
    what: str  # for sentences: "8 more H100-SXM in us-east"
    step: float
    unit: str


@dataclass(frozen=True, slots=True)
class MarginalValue(Move):
    """The hourly saving if a limit moves by its step, in the units of the objective."""

    saves: float | None  # None if no plan was found
    doubt: float  # half the width of the interval in which ``saves`` is proven
    # The saving in the linear relaxation; for capacity and power, from its duals. None: unknown.
    relaxed: float | None


def capacity_values(
    problem: PlanningProblem, plan: WindowPlan, *, options: SolverOptions, count: int = 6
) -> tuple[MarginalValue, ...]:
    """Return the hourly saving if GPUs or kilowatts are added, enough for one more instance.

    Candidates are the GPU capacities and the power limits that leave no room for another instance.
    The problem is solved again for the ``count`` capacities and the ``count`` power limits with the
    highest values in the linear relaxation. ``options`` apply to each solve.
    """
    optimum, gpu_duals, power_duals = _relaxation_duals(problem)
    return tuple(
        solve_moved(
            limit.problem,
            plan,
            limit.move,
            relaxed=None if optimum is None else limit.dual,
            options=options,
        )
        for limits in (
            _scarce_gpus(problem, plan.target, gpu_duals),
            _scarce_power(problem, plan.target, power_duals),
        )
        for limit in sorted(limits, key=attrgetter("dual"), reverse=True)[:count]
    )


@dataclass(frozen=True, slots=True, eq=False)
class _ScarceLimit:
    """A limit that does not allow another instance, and the problem in which it is raised."""

    dual: float  # hourly value of the step in the linear relaxation
    move: Move
    problem: PlanningProblem  # with the limit raised


def _scarce_gpus(
    problem: PlanningProblem, target: IntArray, duals: FloatArray
) -> Iterator[_ScarceLimit]:
    """Yield the GPU types and regions that have too few GPUs left for another instance.

    ``duals [region, capacity row]`` are values of one more GPU in the linear relaxation.
    """
    free = problem.capacity_gpus - gpus_used(problem, target)
    for region, row in np.ndindex(free.shape):
        usable = (problem.theta_tps > 0) & (problem.rows == row)
        # Without a price, the region does not have the type.
        if not usable.any() or not np.all(price(problem)[:, region][usable] > 0):
            continue
        step = int(problem.gpus_per_instance[usable].max())
        if free[region, row] < step:
            more_gpus = problem.capacity_gpus.copy()
            more_gpus[region, row] += step
            what = f"{step} more {problem.row_names[row]} in {problem.regions[region]}"
            yield _ScarceLimit(
                float(duals[region, row]) * step,
                Move(CAPACITY, what, float(step), "GPUs"),
                _with_more_capacity(problem, more_gpus),
            )


def _scarce_power(
    problem: PlanningProblem, target: IntArray, duals: FloatArray
) -> Iterator[_ScarceLimit]:
    """Yield the power limits that have too few kilowatts left for another instance.

    ``duals`` are the values of one more kilowatt of each limit.
    """
    if problem.power_kw is None or problem.kw is None:
        return
    limits = np.argwhere(np.isfinite(problem.power_kw))
    usable = problem.theta_tps[:, None, :].repeat(target.shape[1], 1) > 0  # as target
    for cap, (region, row), dual in zip(power_caps(problem), limits, duals, strict=True):
        step = float(cap.per_instance[usable].max(initial=0.0))
        if step <= 0 or cap.limit - cap_use(problem, target, cap) >= step:
            continue
        more_kw = problem.power_kw.copy()
        more_kw[region, row] += step
        yield _ScarceLimit(
            float(dual) * step,
            Move(POWER, f"{step:,.1f} kW more for the {cap.where}", step, "kW"),
            replace(problem, power_kw=more_kw),
        )


def _with_more_capacity(problem: PlanningProblem, capacity_gpus: IntArray) -> PlanningProblem:
    """Return ``problem`` with the larger ``capacity_gpus [region, capacity row]``.

    Maximums that the old capacity set grow as well.
    """
    larger = replace(problem, capacity_gpus=capacity_gpus)
    gpus_each = np.maximum(1, problem.gpus_per_instance)[:, None, :]
    fit_before = problem.usable_gpus[None] // gpus_each
    fit_now = larger.usable_gpus[None] // gpus_each
    is_set_by_capacity = problem.maximum >= fit_before
    return replace(larger, maximum=problem.maximum + is_set_by_capacity * (fit_now - fit_before))


def solve_moved(
    moved: PlanningProblem,
    plan: WindowPlan,
    move: Move,
    *,
    options: SolverOptions,
    relaxed: float | None = None,
    before: PlanningProblem | None = None,
) -> MarginalValue:
    """Solve the problem ``moved``, in which one limit is changed, and return the saving.

    ``plan`` is the plan without the change, and ``move`` says which limit was changed. ``relaxed``
    is the saving in the linear relaxation, which shows a value that is too small to save a whole
    instance; None: not known. With ``before``, the problem of ``plan``, it is computed here.
    """
    if before is not None:
        optimum, _, _ = _relaxation_duals(before)
        moved_optimum, _, _ = _relaxation_duals(moved)
        relaxed = None
        if optimum is not None and moved_optimum is not None:
            relaxed = optimum - moved_optimum
    limit = move.family, move.what, move.step, move.unit
    moved_plan = solve_window(moved, **options)
    if moved_plan.status not in (OPTIMAL, FEASIBLE):
        return MarginalValue(*limit, None, 0.0, relaxed)  # no plan: the saving is unknown
    saves = plan.objective_usd - moved_plan.objective_usd
    uncertainty = (plan.objective_usd - plan.bound_usd) + (
        moved_plan.objective_usd - moved_plan.bound_usd
    )
    return MarginalValue(*limit, saves, uncertainty / 2, relaxed)


def _relaxation_duals(problem: PlanningProblem) -> tuple[float | None, FloatArray, FloatArray]:
    """Return the optimum of the linear relaxation, and the dual values of GPUs and of kilowatts.

    A dual value is what one more GPU, ``[region, capacity row]``, or one more kW of a power limit,
    ``[limit]``, would save. The optimum is None, and the values 0, if the relaxation was not
    solved.
    """
    draft = draft_program(single_period(problem), cuts=False)
    gpu_duals = np.zeros(problem.capacity_gpus.shape)
    power_duals = np.zeros(len(tuple(power_caps(problem))))
    if not draft.builder.count:
        return None, gpu_duals, power_duals
    highs = loaded_highs(draft.builder.program(), time_limit_s=RELAXATION_LIMIT_S, relaxed=True)
    run(highs, lambda: None)
    if highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return None, gpu_duals, power_duals
    values = np.maximum(0.0, -np.array(highs.getSolution().row_dual))
    for family in draft.builder.families:
        family_duals = values[family.first : family.beyond]
        if family.name == CAPACITY:
            gpu_duals = family_duals.reshape(gpu_duals.shape)
        elif family.name == POWER:
            power_duals = family_duals
    return float(highs.getInfo().objective_function_value), gpu_duals, power_duals
