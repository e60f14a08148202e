"""Scale operators greedily: an improved version of the source's Algorithm 1.

The source's algorithm only changes the bottleneck of the critical path (``algorithm1``).
``greedy_plan`` moves along each operator's frontier. When it scales down, it also tries operators
that are not the bottleneck. It can also exchange slots between two operators.
"""

import numpy as np

from simulation.provisioning.frontier import Frontier, concatenated_choices, frontiers
from simulation.provisioning.problem import OperatorPlan, OperatorProblem, evaluate
from simulation.provisioning.sojourns import improve_choices


def greedy_plan(
    problem: OperatorProblem, options: tuple[Frontier, ...] | None = None
) -> OperatorPlan | None:
    """Return a plan by our greedy method; None if it finds none within the latency limit.

    For chains of operators, None proves that no plan exists. ``options`` are the frontiers to move
    along, by slots or another price.
    """
    options = frontiers(problem) if options is None else options
    if any(not option.slots.size for option in options):
        return None
    picks = np.zeros(len(options), np.int64)
    if not improve_choices(concatenated_choices(options), problem.graph, problem.slo_s, picks):
        return None
    choice = np.array([option.choice[i] for option, i in zip(options, picks, strict=True)])
    return evaluate(problem, "improved greedy", choice)
