"""Validate planning problems, with a message that names the field."""

import numpy as np
import numpy.typing as npt

from planner.errors import ScenarioError
from planner.optimizer.objective import price
from planner.optimizer.problem import DECODE, MEASURES, HorizonProblem, PlanningProblem
from planner.optimizer.roles import role_sides
from simulation.arrays import BoolArray, FloatArray

# Axes of each field: l models, r regions, g GPU columns, w windows, t capacity rows, n instances.
AXES = {
    "current": "lrg",
    "theta_tps": "lg",
    "usd_per_hour": "lrg",
    "start_usd": "lrg",
    "gpus_per_instance": "lg",
    "demand_tps": "lrw",
    "capacity_gpus": "rt",
    "minimum": "lrg",
    "maximum": "lrg",
}
MOST_WAYS = 100  # limit on the number of ways to lose spare instances of a region
SLACK = 1e-9  # share by which the rules of ``pool_tps`` may be violated
OPTIONAL = {
    "kw": "lrg", "kg_per_kwh": "r", "types": "g", "stages": "g", "spot": "g", "pool_tps": "lgn"
}  # fmt: skip
WHOLE = {  # fields of whole numbers
    "current", "gpus_per_instance", "capacity_gpus", "minimum", "maximum", "types", "stages"
}  # fmt: skip


def validate(problem: PlanningProblem) -> None:
    """Raise ``ScenarioError`` naming the first invalid field, place and value."""
    for axis in ("models", "regions", "gpus"):
        names = getattr(problem, axis)
        if not names or len(set(names)) < len(names):
            raise ScenarioError(f"The planning problem needs {axis} with different names: {names}.")
    if not 0.0 < problem.epsilon <= 1.0:
        raise ScenarioError(
            f"epsilon is {problem.epsilon}: the share served locally must be above 0, at most 1."
        )
    for field, axes in (AXES | OPTIONAL).items():
        values: npt.NDArray[np.generic] | None = getattr(problem, field)
        if values is None:
            continue
        _check_shape(problem, field, axes, values)
        if field in WHOLE and not np.issubdtype(values.dtype, np.integer):
            raise ScenarioError(f"{field} must hold whole numbers, not {values.dtype}.")
        _raise_for(problem, field, values, ~np.isfinite(values.astype(float)), "give a number")
        _raise_for(problem, field, values, values.astype(float) < 0, "give 0 or more")
    _check_columns(problem)
    _check_pools(problem)
    _check_objective(problem)
    _check_feasibility(problem)


def validate_horizon(problem: HorizonProblem) -> None:
    """Raise ``ScenarioError`` for the first invalid field of a horizon.

    A period that differs from the first in models, regions, columns or capacities is invalid too.
    """
    if not problem.windows:
        raise ScenarioError("There is no period to plan: give a horizon of one period or more.")
    first = problem.first
    for period, window in enumerate(problem.windows):
        validate(window)
        same_names = all(
            getattr(window, field) == getattr(first, field)
            for field in ("models", "regions", "gpus", "spare", "by_pool", "lose_region")
        )
        same_arrays = all(
            np.array_equal(getattr(window, field), getattr(first, field))
            for field in ("theta_tps", "pool_tps", "gpus_per_instance", "types", "stages", "spot")
        )
        if not (same_names and same_arrays):
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
    """Check shapes and values of a horizon's optional arrays: lending, rerouting and tiers."""
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
    if problem.traded and problem.priority is None:
        raise ScenarioError("traded needs priority, the value of demand.")
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


def _check_objective(problem: PlanningProblem) -> None:
    """Check the weights and limits, and that energy and carbon figures exist if needed."""
    for measure in MEASURES:
        weight = getattr(problem.weights, measure)
        if not (np.isfinite(weight) and weight >= 0):
            raise ScenarioError(f"The weight of {measure} is {weight}: give 0 or more.")
    if not any(getattr(problem.weights, measure) for measure in MEASURES):
        raise ScenarioError(
            "The objective weighs nothing: give usd, gpu_hours, kwh or kg a weight."
        )
    for field in ("budget_usd", "carbon_kg", "churn"):
        limit = getattr(problem, field)
        if not limit >= 0:
            raise ScenarioError(f"{field} is {limit}: give 0 or more, or no limit.")
    if problem.power_kw is not None:
        rows = (len(problem.regions), problem.capacity_gpus.shape[1] + 1)
        if problem.power_kw.shape != rows or not np.all(problem.power_kw >= 0):
            raise ScenarioError(f"power_kw must hold limits of 0 or more of shape {rows}.")
        if problem.kw is None:
            raise ScenarioError("Power limits need kw: give the kilowatts a replica draws.")
    carbon = problem.weights.kg > 0 or np.isfinite(problem.carbon_kg)
    if (problem.weights.kwh > 0 or carbon) and problem.kw is None:
        raise ScenarioError("Energy and carbon need kw: give the kilowatts a replica draws.")
    if carbon and problem.kg_per_kwh is None:
        raise ScenarioError("Carbon needs kg_per_kwh: give the carbon intensity of every region.")


def _check_columns(problem: PlanningProblem) -> None:
    """Check the arrays that describe GPU columns: types, stages and spot."""
    if problem.types is not None:
        rows = problem.capacity_gpus.shape[1]
        _raise_for(problem, "types", problem.types, problem.types >= rows, f"give 0 to {rows - 1}")
    if problem.type_names and len(problem.type_names) != problem.capacity_gpus.shape[1]:
        raise ScenarioError("type_names must hold one name for every row of capacity_gpus.")
    if problem.stages is not None:
        _raise_for(problem, "stages", problem.stages, problem.stages > DECODE, "give 0, 1 or 2")
    if problem.spot is not None and problem.spot.dtype != np.bool_:
        raise ScenarioError(f"spot must hold true or false, not {problem.spot.dtype}.")
    if not 0 <= problem.spot_share <= 1:
        raise ScenarioError(f"spot_share is {problem.spot_share}: give a share from 0 to 1.")


def _check_pools(problem: PlanningProblem) -> None:
    """Check spare instances, and the properties of ``pool_tps`` that bounds and cuts rely on."""
    pool = problem.pool_tps
    if not problem.spare >= 0:
        raise ScenarioError(f"spare is {problem.spare}: give 0 or more replicas.")
    if len(role_sides(problem)) > MOST_WAYS:
        raise ScenarioError(
            f"{problem.spare} spare replicas by region can fail in more than {MOST_WAYS} ways: "
            "keep fewer, or keep them by pool."
        )
    if problem.lose_region and len(problem.regions) < 2:
        raise ScenarioError(
            "There is one region, and its loss leaves no fleet. Add a region, or let "
            "no region be lost."
        )
    if pool is None:
        return
    per_instance = pool / np.arange(1, pool.shape[2] + 1)
    falls = np.zeros(pool.shape, bool)
    falls[:, :, 0] = per_instance[:, :, 0] < 0
    falls[:, :, 1:] = per_instance[:, :, 1:] < per_instance[:, :, :-1] * (1 - SLACK)
    _raise_for(
        problem, "pool_tps", pool, falls, "let what each replica carries never fall with more"
    )
    has_capacity, can_run = pool[:, :, -1] > 0, problem.theta_tps > 0
    too_low = has_capacity & (problem.theta_tps < per_instance[:, :, -1] * (1 - SLACK))
    _raise_for(
        problem,
        "theta_tps",
        problem.theta_tps,
        too_low | (has_capacity != can_run),
        "give what each replica of the largest pool of pool_tps carries, or more",
    )


def _check_feasibility(problem: PlanningProblem) -> None:
    """Check that each instance has GPUs and a price, and minimums at most the maximums."""
    can_run = problem.theta_tps > 0
    in_region = np.broadcast_to(can_run[:, None, :], problem.minimum.shape)
    gpus, usd, charged = problem.gpus_per_instance, problem.usd_per_hour, price(problem)
    _raise_for(problem, "gpus_per_instance", gpus, can_run & (gpus < 1), "give 1 or more")
    could_be_bought = in_region & (problem.usable_gpus > 0)
    _raise_for(
        problem,
        "usd_per_hour",
        usd,
        could_be_bought & (charged <= 0),
        "give a price, a nominal one for GPUs you own, because free GPUs are never saved",
    )
    minimum = problem.minimum
    _raise_for(
        problem,
        "minimum",
        minimum,
        (minimum > 0) & ~in_region,
        "set it to 0, or give the model a profile on that GPU type",
    )
    _raise_for(problem, "minimum", minimum, minimum > problem.maximum, "keep it within the maximum")


def _check_shape(
    problem: PlanningProblem, field: str, axes: str, values: npt.NDArray[np.generic]
) -> None:
    """Raise ``ScenarioError`` unless ``values`` have the shape of ``axes``.

    Axes are letters: l models, r regions, g GPU columns, w windows, t capacity rows, n replicas.
    """
    windows = problem.demand_tps.shape[-1] if problem.demand_tps.ndim == 3 else 0
    size = {
        "l": len(problem.models),
        "r": len(problem.regions),
        "g": len(problem.gpus),
        "w": max(1, windows),
        "t": len(problem.gpus),
        "n": max(1, 0 if problem.pool_tps is None else problem.pool_tps.shape[-1]),
    }
    if problem.types is not None and problem.capacity_gpus.ndim == 2:
        size["t"] = max(1, problem.capacity_gpus.shape[1])
    expected = tuple(size[axis] for axis in axes)
    if values.shape != expected:
        raise ScenarioError(
            f"{field} has shape {values.shape}, but {size['l']} models, {size['r']} regions, "
            f"{size['g']} GPU types and at least one window need {expected}."
        )


def _raise_for(
    problem: PlanningProblem,
    field: str,
    values: npt.NDArray[np.generic],
    wrong: BoolArray,
    remedy: str,
) -> None:
    """Raise ``ScenarioError`` for the first ``wrong`` value, with its place and a ``remedy``."""
    if not wrong.any():
        return
    index = tuple(int(i) for i in np.argwhere(wrong)[0])
    names_of_axis = {
        "l": problem.models,
        "r": problem.regions,
        "g": problem.gpus,
        "t": problem.row_names,
    }
    where = []
    for axis, i in zip((AXES | OPTIONAL)[field], index, strict=True):
        if axis in names_of_axis:
            where.append(names_of_axis[axis][i])
        else:
            where.append(f"window {i}" if axis == "w" else f"{i + 1} replicas")
    raise ScenarioError(f"{field} of {', '.join(where)} is {values[index]}: {remedy}.")
