"""Solve the integer program for graphs that are neither chains nor nested branches."""

from __future__ import annotations

import numpy as np
import scipy

from simulation.arrays import FloatArray
from simulation.errors import SimulationError
from simulation.provisioning.frontier import Frontier
from simulation.provisioning.problem import OperatorPlan, OperatorProblem, evaluate


def solve_program(problem: OperatorProblem, options: tuple[Frontier, ...]) -> OperatorPlan | None:
    """Return the plan of least slots, with a binary per frontier choice and a start per operator.

    For an edge (u, v): start_v >= start_u + sojourn_u. Every start + sojourn is within the limit.
    Times are in units of the limit, so that the solver's tolerance is meaningful.
    """
    sizes = np.array([option.slots.size for option in options])
    first = np.r_[0, np.cumsum(sizes)]
    binaries, count = int(first[-1]), len(options)
    sojourn = [option.sojourn_s / problem.slo_s for option in options]
    entries: list[tuple[int, int, float]] = []
    low: list[float] = []
    high: list[float] = []

    def chosen(v: int, row: int, weights: FloatArray) -> None:
        entries.extend((row, int(first[v]) + i, float(w)) for i, w in enumerate(weights))

    for v in range(count):
        chosen(v, len(low), np.ones(sizes[v]))
        low.append(1.0)
        high.append(1.0)
    for v in range(count):  # start + sojourn <= 1
        entries.append((len(low), binaries + v, 1.0))
        chosen(v, len(low), sojourn[v])
        low.append(-np.inf)
        high.append(1.0)
    for u, v in problem.edges:  # start_u + sojourn_u - start_v <= 0
        entries.append((len(low), binaries + u, 1.0))
        entries.append((len(low), binaries + v, -1.0))
        chosen(u, len(low), sojourn[u])
        low.append(-np.inf)
        high.append(0.0)

    rows, columns, values = zip(*entries, strict=True)
    matrix = scipy.sparse.coo_array(
        (values, (rows, columns)), shape=(len(low), binaries + count)
    ).tocsr()
    result = scipy.optimize.milp(
        np.r_[np.concatenate([option.slots for option in options]), np.zeros(count)],
        constraints=scipy.optimize.LinearConstraint(matrix, np.array(low), np.array(high)),
        integrality=np.r_[np.ones(binaries), np.zeros(count)],
        bounds=scipy.optimize.Bounds(0.0, 1.0),
        # The exact method needs a proof, so no gap is allowed.
        options={"mip_rel_gap": 0.0},
    )
    if result.status == 2:
        return None
    if result.x is None:
        raise SimulationError(f"The operator program found no answer: {result.message}")
    picks = [int(result.x[first[v] : first[v + 1]].argmax()) for v in range(count)]
    choice = np.array([options[v].choice[picks[v]] for v in range(count)])
    bound = int(np.ceil(result.mip_dual_bound - 1e-6))
    return evaluate(problem, "exact", choice, bound=bound)
