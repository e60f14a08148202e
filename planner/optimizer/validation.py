"""Validate the arrays of planning problems, with a message that names field and place.

Scenarios are validated when they are read. These checks find an error of the code in between,
before a solver turns it into a wrong plan.
"""

import numpy as np

from planner.errors import ScenarioError
from planner.optimizer.problem import PlanningProblem
from planner.optimizer.roles import role_sides
from simulation.arrays import BoolArray, FloatArray

# Axes of each field: l models, r regions, g GPU columns, w windows, t capacity rows, n replicas.
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
    "kw": "lrg",
    "kg_per_kwh": "r",
    "types": "g",
    "stages": "g",
    "spot": "g",
    "pool_tps": "lgn",
}
MOST_WAYS = 100  # limit on the number of ways to lose spare instances of a region
SLACK = 1e-9  # share by which the rules of ``pool_tps`` may be violated


def validate(problem: PlanningProblem) -> None:
    """Raise ``ScenarioError`` for the first array of a wrong shape, or with a wrong value."""
    pool_tps = problem.pool_tps
    size = {
        "l": len(problem.models),
        "r": len(problem.regions),
        "g": len(problem.gpus),
        "w": max(1, problem.demand_tps.shape[-1]),
        "t": len(problem.gpus) if problem.types is None else problem.capacity_gpus.shape[-1],
        "n": 0 if pool_tps is None else pool_tps.shape[-1],
    }
    for field, axes in AXES.items():
        values = getattr(problem, field)
        if values is None:
            continue
        expected = tuple(size[axis] for axis in axes)
        if values.shape != expected:
            raise ScenarioError(f"{field} has shape {values.shape}, not {expected}.")
        _raise_for(problem, field, ~(np.isfinite(values) & (values >= 0)), "give 0 or more")
    if len(role_sides(problem)) > MOST_WAYS:
        raise ScenarioError(
            f"{problem.spare} spare replicas by region can fail in more than {MOST_WAYS} ways: "
            "keep fewer, or keep them by pool."
        )
    if pool_tps is not None:
        _check_curves(problem, pool_tps)


def _check_curves(problem: PlanningProblem, pool_tps: FloatArray) -> None:
    """Raise ``ScenarioError`` unless the capacity curves have what bounds and cuts rely on."""
    per_instance = pool_tps / np.arange(1, pool_tps.shape[2] + 1)
    falls = np.diff(per_instance, axis=2, prepend=0.0) < -SLACK * per_instance
    _raise_for(problem, "pool_tps", falls, "let what each replica carries never fall with more")
    too_low = problem.theta_tps < per_instance[:, :, -1] * (1 - SLACK)
    can_run = problem.theta_tps > 0
    remedy = "give what each replica of the largest pool of pool_tps carries, or more"
    wrong = too_low | (can_run != (pool_tps[:, :, -1] > 0))
    _raise_for(problem, "theta_tps", wrong, remedy)


def _raise_for(problem: PlanningProblem, field: str, wrong: BoolArray, remedy: str) -> None:
    """Raise ``ScenarioError`` for the first ``wrong`` value of a field, with its place."""
    if not wrong.any():
        return
    index = tuple(np.argwhere(wrong)[0].tolist())
    names_of_axis = {
        "l": problem.models,
        "r": problem.regions,
        "g": problem.gpus,
        "t": problem.row_names,
    }
    where = []
    for axis, i in zip(AXES[field], index, strict=True):
        if axis in names_of_axis:
            where.append(names_of_axis[axis][i])
        else:
            where.append(f"window {i}" if axis == "w" else f"{i + 1} replicas")
    value = getattr(problem, field)[index]
    raise ScenarioError(f"{field} of {', '.join(where)} is {value}: {remedy}.")
