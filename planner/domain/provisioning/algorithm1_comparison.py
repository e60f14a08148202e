"""Compare Algorithm 1 of the source, in both readings, with our method and the exact optimum."""

from __future__ import annotations

from dataclasses import dataclass

from simulation.provisioning.exact import exact_plan
from simulation.provisioning.frontier import frontiers
from simulation.provisioning.greedy import greedy_plan
from simulation.provisioning.levels import PRINTED, by_algorithm1
from simulation.provisioning.problem import OperatorPlan
from simulation.provisioning.workload import PhaseProblem

MOST_REPLICAS = 512  # per operator: Algorithm 1 moves by one replica at a time
WORDS = {
    "algorithm1": "algorithm 1, as read here",
    PRINTED: "algorithm 1, as printed",
    "greedy": "greedy",
    "exact": "exact",
}


@dataclass(frozen=True, slots=True)
class Method:
    """Plan of one method that meets the limit on average; None: the method found no plan."""

    method: str
    slots: int | None  # equation 8
    latency_ms: float | None
    above: float | None  # excess slots over the exact plan, as a share


def methods_of(phase: PhaseProblem, epsilon: float) -> tuple[Method, ...]:
    """Return the plans of all methods within the limit, before placement and replay.

    Returns nothing if an operator has no option within the limit. Algorithm 1 is omitted if the
    problem allows more than ``MOST_REPLICAS`` replicas of an operator.
    """
    problem = phase.problem
    options = frontiers(problem)
    if any(not option.slots.size for option in options):
        return ()
    fewest = exact_plan(problem, options)
    plan_by: dict[str, OperatorPlan | None] = {}
    for name in ("algorithm1", PRINTED):
        if problem.max_replicas <= MOST_REPLICAS:
            plans = by_algorithm1(problem, name, epsilon)
            plan_by[name] = min(plans, key=lambda plan: plan.slots, default=None)
    plan_by |= {"greedy": greedy_plan(problem, options), "exact": fewest}
    return tuple(_method(WORDS[name], plan, fewest) for name, plan in plan_by.items())


def _method(name: str, plan: OperatorPlan | None, fewest: OperatorPlan | None) -> Method:
    if plan is None or not plan.feasible:
        return Method(name, None, None, None)
    above = None if fewest is None else plan.slots / fewest.slots - 1.0
    return Method(name, plan.slots, plan.latency_s * 1e3, above)
