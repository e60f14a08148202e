"""Enumerate every choice of every operator: the oracle of section 4.2.3 for small cases."""

from typing import Any

import numpy as np

from simulation.arrays import FloatArray
from simulation.compiler import cached_kernel
from simulation.provisioning.frontier import Frontier, concatenated_choices
from simulation.provisioning.problem import OperatorPlan, OperatorProblem, evaluate, sojourns
from simulation.provisioning.sojourns import Choices, Graph, longest_path


def brute(problem: OperatorProblem, table: FloatArray | None = None) -> OperatorPlan | None:
    """Return the plan with the fewest slots, or None if no plan meets the limit."""
    table = sojourns(problem) if table is None else table
    count = len(problem.names)
    options = []
    for v in range(count):
        b, p, r = np.nonzero(np.isfinite(table[v]))
        choice = np.stack([b, p, r + 1], axis=1)
        options.append(Frontier(problem.parallel[p] * (r + 1), table[v, b, p, r], choice))
    picks = np.full(count, -1, np.int64)
    enumerate_plans(concatenated_choices(options), problem.graph, problem.slo_s, picks)
    if (picks < 0).any():
        return None
    choice = np.array([option.choice[i] for option, i in zip(options, picks, strict=True)])
    return evaluate(problem, "brute", choice)


@cached_kernel
def enumerate_plans(choices: Choices, graph: Graph, slo: float, picks: Any) -> None:
    """Enumerate all choices; ``picks`` becomes the cheapest combination that meets the limit."""
    first, slots, sojourn_s = choices.first, choices.slots, choices.sojourn_s
    count = picks.size
    digits = np.zeros(count, np.int64)
    s, ends = np.empty(count), np.empty(count)
    for v in range(count):
        if first[v] == first[v + 1]:
            return
    fewest_slots = -1
    while True:
        total = 0
        for v in range(count):
            total += slots[first[v] + digits[v]]
            s[v] = sojourn_s[first[v] + digits[v]]
        if (fewest_slots < 0 or total < fewest_slots) and longest_path(s, graph, ends) <= slo:
            fewest_slots = total
            picks[:] = digits
        v = 0
        while v < count:
            digits[v] += 1
            if digits[v] < first[v + 1] - first[v]:
                break
            digits[v] = 0
            v += 1
        if v == count:
            return
