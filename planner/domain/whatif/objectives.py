"""Trade two objectives of a stored plan off: a grid over the bound of one of them."""

import math
from dataclasses import dataclass
from typing import Any

from planner.domain.progress import Progress
from planner.domain.whatif.answer import StoredPlan, answer_what_if
from planner.domain.whatif.figures import WhatIf
from planner.domain.whatif.settings import Variation
from planner.errors import PlannerError
from planner.inputs.scenario.settings import ALL, MEASURE
from planner.optimizer.pareto_front import TIE, FrontPoint, pareto_front
from planner.optimizer.problem import FEASIBLE, OPTIMAL

NAMES = tuple(MEASURE)  # cost, gpu-hours, energy, carbon
TOTALS = {"cost": "usd", "gpu-hours": "gpu_hours", "energy": "kwh", "carbon": "carbon_kg"}
# Limits on the whole window. One of the two objectives has one; the other is minimised.
BOUNDS = {"cost": "objective.limits.usd", "carbon": "objective.limits.carbon_kg"}
MIN_SOLVER_GAP = 1e-3  # of the solver, so that a front takes seconds
Point = FrontPoint[tuple[WhatIf, Variation]]


def pair_of(pair: str) -> tuple[str, str]:
    """Return (objective to minimise, objective with a bound) of a pair such as ``cost,carbon``.

    Raises ValueError for an unknown name, or if neither objective can have a bound.
    """
    names = [name.strip() for name in pair.split(",")]
    are_known = set(names) <= set(NAMES)
    if not are_known or len(names) != 2 or len(set(names)) != 2:
        raise ValueError(f"give two different ones of {', '.join(NAMES)}, such as cost,carbon")
    first, second = names
    if second in BOUNDS:
        return first, second
    if first in BOUNDS:
        return second, first
    raise ValueError(f"one objective must be {' or '.join(BOUNDS)}")


def total(answer: WhatIf, objective: str) -> float:
    """Return the total of an objective over the window, such as dollars for "cost".

    The answer must have a plan.
    """
    return float(getattr(answer.totals, TOTALS[objective]))


@dataclass(eq=False)
class _Tradeoff:
    """The search for plans of ``base`` that trade two objectives off."""

    base: StoredPlan
    pair: tuple[str, str]  # objective to minimise, objective with a bound
    scale: dict[str, float]  # total of each objective in the stored plan
    bound: float  # the scenario's bound on the second objective; infinite: none
    plans: int
    progress: Progress
    solved: int = 0  # plans so far

    def minimise(self, main: str, second_limit: float) -> Point | None:
        """Return the plan with the least ``main``, one of the pair of objectives.

        The second objective of the pair is at most ``second_limit``. Among equal plans, it is the
        one with the least of the other objective. None: no plan keeps the limit.
        """
        first, second = self.pair
        other = second if main == first else first
        tie_weight = TIE * self.scale[main] / self.scale[other]
        variation: dict[str, Any] = {
            "objective.weights": {MEASURE[main]: 1.0, MEASURE[other]: tie_weight},
            "objective.gap": max(MIN_SOLVER_GAP, self.base.scenario.objective.gap),
            "objective.limited": None,  # every point serves all demand
        }
        limit = min(second_limit, self.bound)
        if limit < math.inf:
            variation[BOUNDS[second]] = limit
        answer = answer_what_if(self.base, variation, self._report)
        self.solved += 1
        if answer.totals is None or answer.status not in (OPTIMAL, FEASIBLE):
            return None
        # The solver's bound is on the weighted sum of both objectives: subtract the other.
        lower_bound = (answer.bound or 0.0) - tie_weight * total(answer, other)
        main_bound = min(total(answer, main), max(0.0, lower_bound))
        totals = total(answer, first), total(answer, second)
        return FrontPoint(*totals, main_bound, (answer, variation))

    def _report(self, done: float, _stage: str) -> None:
        """Report the progress of this plan as a part of all plans."""
        share_done = min(1.0, (self.solved + done) / self.plans)
        self.progress(share_done, f"Plan {min(self.solved + 1, self.plans)} of {self.plans}")


def front(
    base: StoredPlan, pair: tuple[str, str], points: int, progress: Progress
) -> tuple[Point, ...]:
    """Return the Pareto front of two objectives of a stored plan, with at most ``points`` plans.

    ``pair`` is (objective to minimise, objective with a bound). Each point has its answer and its
    variation. Raises PlannerError unless all periods are planned in one program, because bounds are
    on the whole window.
    """
    first, second = pair
    objective = base.scenario.objective
    if objective.periods != ALL:
        raise PlannerError("objective.periods: a trade-off needs all. Change it, or run pareto.")
    plan = answer_what_if(base, {})
    if plan.totals is None:
        return ()
    limit = getattr(objective.limits, TOTALS[second])
    bound = math.inf if limit is None else float(limit)
    scale = {name: total(plan, name) or 1.0 for name in pair}  # makes the objectives comparable
    search = _Tradeoff(base, pair, scale, bound, points + 1, progress)
    return pareto_front(
        least_first=lambda second_limit: search.minimise(first, second_limit),
        least_second=lambda: search.minimise(second, math.inf),
        points=points,
    )
