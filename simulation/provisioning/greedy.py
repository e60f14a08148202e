"""Greedy operator scaling: Algorithm 1 of the source, made better.

The source's only ever touches the bottleneck of the critical path (as printed it is in
``bench/provision/algorithm1.py``). ``improved`` moves along each operator's frontier, tries
operators other than the bottleneck when it scales down, and exchanges slots between two.
"""

from __future__ import annotations

import numpy as np

from simulation.provisioning.frontier import Frontier, frontiers, in_a_row
from simulation.provisioning.problem import OperatorPlan, OperatorProblem, evaluate
from simulation.provisioning.sojourns import improve


def improved(
    problem: OperatorProblem, options: tuple[Frontier, ...] | None = None
) -> OperatorPlan | None:
    """Our greedy; None exactly when no plan meets the limit (chains), or none was found.

    ``options``: the frontiers to move along, by slots or any other price.
    """
    options = frontiers(problem) if options is None else options
    if any(not option.slots.size for option in options):
        return None
    picks = np.zeros(len(options), np.int64)
    if not improve(in_a_row(options), problem.graph, problem.slo_s, picks):
        return None
    choice = np.array([option.choice[i] for option, i in zip(options, picks, strict=True)])
    return evaluate(problem, "improved greedy", choice)
