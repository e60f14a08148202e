"""Refuse a planning problem that makes no sense, in one sentence that names the field."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from planner.errors import ScenarioError
from planner.optimizer.objective import price
from planner.optimizer.problem import MEASURES, PlanningProblem

AXES = {  # field -> its axes: l models, r regions, g GPU types, w windows
    "current": "lrg",
    "theta_tps": "lg",
    "usd_per_hour": "lrg",
    "start_usd": "lrg",
    "gpus_per_instance": "lg",
    "demand_tps": "lrw",
    "capacity_gpus": "rg",
    "minimum": "lrg",
    "maximum": "lrg",
}
OPTIONAL = {"kw": "lrg", "kg_per_kwh": "r"}
WHOLE = ("current", "gpus_per_instance", "capacity_gpus", "minimum", "maximum")


def validate(problem: PlanningProblem) -> None:
    """Raise ``ScenarioError`` naming the first field, place and value that cannot be planned."""
    for axis, names in _axes(problem).items():
        if not names or len(set(names)) < len(names):
            raise ScenarioError(f"The planning problem needs {axis} with different names: {names}.")
    if not 0.0 < problem.epsilon <= 1.0:
        raise ScenarioError(
            f"epsilon is {problem.epsilon}: the share served locally must be above 0, at most 1."
        )
    for field, axes in AXES.items():
        values: npt.NDArray[np.generic] = getattr(problem, field)
        _check_shape(problem, field, axes, values)
        whole = np.issubdtype(values.dtype, np.integer)
        if field in WHOLE and not whole:
            raise ScenarioError(f"{field} must hold whole numbers, not {values.dtype}.")
        _refuse(problem, field, values, ~np.isfinite(values.astype(float)), "give a number")
        _refuse(problem, field, values, values.astype(float) < 0, "give 0 or more")
    _check_optional(problem)
    _check_sense(problem)


def _check_optional(problem: PlanningProblem) -> None:
    for field, axes in OPTIONAL.items():
        values: npt.NDArray[np.generic] | None = getattr(problem, field)
        if values is not None:
            _check_shape(problem, field, axes, values)
            _refuse(problem, field, values, ~np.isfinite(values.astype(float)), "give a number")
            _refuse(problem, field, values, values.astype(float) < 0, "give 0 or more")
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
    carbon = problem.weights.kg > 0 or np.isfinite(problem.carbon_kg)
    if (problem.weights.kwh > 0 or carbon) and problem.kw is None:
        raise ScenarioError("Energy and carbon need kw: give the kilowatts an instance draws.")
    if carbon and problem.kg_per_kwh is None:
        raise ScenarioError("Carbon needs kg_per_kwh: give the carbon intensity of every region.")


def _check_sense(problem: PlanningProblem) -> None:
    can_run = problem.theta_tps > 0
    in_region = np.broadcast_to(can_run[:, None, :], problem.minimum.shape)
    gpus, usd, charged = problem.gpus_per_instance, problem.usd_per_hour, price(problem)
    _refuse(problem, "gpus_per_instance", gpus, can_run & (gpus < 1), "give 1 or more")
    could_be_bought = in_region & (problem.capacity_gpus > 0)
    _refuse(
        problem,
        "usd_per_hour",
        usd,
        could_be_bought & (charged <= 0),
        "give a price, a nominal one for GPUs you own, since what costs nothing is never saved",
    )
    minimum = problem.minimum
    _refuse(
        problem,
        "minimum",
        minimum,
        (minimum > 0) & ~in_region,
        "set it to 0, or give the model a profile on that GPU type",
    )
    _refuse(problem, "minimum", minimum, minimum > problem.maximum, "keep it within the maximum")


def _axes(problem: PlanningProblem) -> dict[str, tuple[str, ...]]:
    return {"models": problem.models, "regions": problem.regions, "gpus": problem.gpus}


def _check_shape(
    problem: PlanningProblem, field: str, axes: str, values: npt.NDArray[np.generic]
) -> None:
    windows = problem.demand_tps.shape[-1] if problem.demand_tps.ndim == 3 else 0
    size = {
        "l": len(problem.models),
        "r": len(problem.regions),
        "g": len(problem.gpus),
        "w": max(1, windows),
    }
    expected = tuple(size[axis] for axis in axes)
    if values.shape != expected:
        raise ScenarioError(
            f"{field} has shape {values.shape}, but {size['l']} models, {size['r']} regions, "
            f"{size['g']} GPU types and at least one window need {expected}."
        )


def _refuse(
    problem: PlanningProblem,
    field: str,
    values: npt.NDArray[np.generic],
    wrong: npt.NDArray[np.bool_],
    remedy: str,
) -> None:
    if not wrong.any():
        return
    index = tuple(int(i) for i in np.argwhere(wrong)[0])
    named = {"l": problem.models, "r": problem.regions, "g": problem.gpus}
    where = ", ".join(
        named[axis][i] if axis in named else f"window {i}"
        for axis, i in zip((AXES | OPTIONAL)[field], index, strict=True)
    )
    raise ScenarioError(f"{field} of {where} is {values[index]}: {remedy}.")
