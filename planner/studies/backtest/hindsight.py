"""The least that the plan's own program could have served as much for, had it known what came."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from planner.errors import PlannerError
from planner.optimizer.horizon import HorizonProblem, solve_horizon
from planner.optimizer.horizon.figures import costs
from planner.optimizer.problem import INFEASIBLE, PlanningProblem
from planner.optimizer.sides import carried_tps
from planner.studies.backtest.driver import Driver
from planner.studies.planning.inputs import PlanInput, Planned
from planner.studies.planning.solving import Periods
from planner.studies.progress import Progress
from simulation.arrays import FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class Hindsight:
    """What a plan costs by its program, and the least at which that program serves as much of what
    came: ``bound_usd`` is proven, ``least_usd`` was found. Money is what the objective charges."""

    plan_usd: float
    least_usd: float
    bound_usd: float
    served: float  # share of what came, in bins that the plan has room for

    @property
    def regret(self) -> float | None:
        """Of the least, what the plan costs more."""
        return self.plan_usd / self.least_usd - 1.0 if self.least_usd > 0 else None


def hindsight(driver: Driver, planned: Planned, progress: Progress) -> Hindsight | None:
    """None where the objective bars a horizon, or no plan was found in its time."""
    inputs, target = driver.given, planned.plan.target
    came, served = _served(driver, planned)
    problems = Periods.of(inputs, planned.load).problems
    problem = HorizonProblem(
        tuple(
            replace(window_problem, demand_tps=served[p])
            for p, window_problem in enumerate(problems)
        ),
        inputs.window.period_s,
        reroute=inputs.settings.reroute,
    )
    nothing = np.zeros_like(target)
    plan_usd, _ = costs(problem, target, nothing)
    try:
        best = solve_horizon(
            problem,
            solver=inputs.settings.solver,
            gap=inputs.settings.gap,
            time_limit_s=inputs.settings.time_limit_s,
            stable=False,
            check=lambda: progress(0.5, "The least in hindsight"),
        )
    except PlannerError:
        return None
    if best.status == INFEASIBLE or best.conflict:
        return None
    all_of_it = float(came.sum())
    return Hindsight(
        plan_usd=plan_usd,
        least_usd=min(best.objective, plan_usd),  # the plan itself serves it too
        bound_usd=best.bound,
        served=float(served.sum()) / all_of_it if all_of_it > 0 else 1.0,
    )


def came_tps(inputs: PlanInput, driver: Driver) -> FloatArray:
    """Interactive input tokens/s that came, ``[p, l, r, w]``; nothing where nobody looked."""
    window, traffic = inputs.window, inputs.traffic
    shape = (len(window.period_starts_s), *inputs.current.shape[:2], window.bins_per_period)
    out = np.zeros(shape)
    for _, rolling in driver.rolled:
        m, r = traffic.models.index(rolling.series.key.model), traffic.regions.index(
            rolling.series.key.region
        )  # fmt: skip
        rate = np.nan_to_num(rolling.actual).reshape(shape[0], shape[3]) / window.bin_s
        out[:, m, r] += rate
    return out


def served_tps(
    problem: PlanningProblem, target: IntArray, came: FloatArray, *, elsewhere: bool
) -> FloatArray:
    """Of what ``came`` in a period ``[l, r, w]`` what ``target`` has room for: of each region what
    fits there, and all of a bin in which other regions (``elsewhere``) have room for the rest."""
    room = carried_tps(problem, target).min(axis=0)[:, :, None]  # [l, r, 1]
    at_home = np.minimum(came, room)
    if not elsewhere:
        return np.asarray(at_home, np.float64)
    joint = (came.sum(axis=1) <= room.sum(axis=1) * (1 + 1e-9))[:, None]
    local = (came * problem.epsilon <= room * (1 + 1e-9)).all(axis=1)[:, None]
    return np.asarray(np.where(joint & local, came, at_home), np.float64)


def covered(driver: Driver, planned: Planned) -> float:
    """Share of what came in bins that the plan has room for."""
    came, served = _served(driver, planned)
    total = float(came.sum())
    return float(came[served >= came * (1 - 1e-9)].sum()) / total if total > 0 else 1.0


def _served(driver: Driver, planned: Planned) -> tuple[FloatArray, FloatArray]:
    """What came and what of it the plan has room for, ``[p, l, r, w]``."""
    inputs = driver.given
    came, target = came_tps(inputs, driver), planned.plan.target
    problems = Periods.of(inputs, planned.load).problems
    elsewhere = inputs.settings.reroute is None and len(inputs.traffic.regions) > 1
    served = [
        served_tps(problem, target[p], came[p], elsewhere=elsewhere)
        for p, problem in enumerate(problems)
    ]
    return came, np.stack(served)
