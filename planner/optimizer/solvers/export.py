"""Convert a program of arrays to PuLP's model, which writes ``.mps`` (for CBC) and ``.lp``."""

import numpy as np
import pulp

from planner.optimizer.solvers.arrays import LinearProgram


def as_pulp(program: LinearProgram) -> pulp.LpProblem:
    """Return the program as a PuLP model with variables ``xi`` and rows ``ri``.

    A row with two different bounds becomes ``ri_least`` and ``ri_most``.
    """
    lp = pulp.LpProblem("plan", pulp.LpMinimize)
    parts = zip(program.lower.tolist(), program.upper.tolist(), program.whole, strict=True)
    x = [
        lp.add_variable(
            f"x{i}",
            None if low == -np.inf else low,
            None if high == np.inf else high,
            pulp.LpInteger if integral else pulp.LpContinuous,
        )
        for i, (low, high, integral) in enumerate(parts)
    ]
    costs = zip(x, program.cost.tolist(), strict=True)
    lp.setObjective(pulp.LpAffineExpression([(v, cost) for v, cost in costs if cost]))
    columns, values = program.columns.tolist(), program.values.tolist()
    limits = zip(program.row_lower.tolist(), program.row_upper.tolist(), strict=True)
    for i, (low, high) in enumerate(limits):
        entries = range(program.begins[i], program.begins[i + 1])
        terms = [(x[columns[entry]], values[entry]) for entry in entries]
        if low == high:
            senses = [(pulp.LpConstraintEQ, low, "")]
        else:
            two_sided = low > -np.inf and high < np.inf
            senses = [
                (pulp.LpConstraintGE, low, "_least" if two_sided else ""),
                (pulp.LpConstraintLE, high, "_most" if two_sided else ""),
            ]
        for sense, limit, suffix in senses:
            if np.isfinite(limit):
                row = pulp.LpConstraint(
                    pulp.LpAffineExpression(terms), sense, f"r{i}{suffix}", limit
                )
                lp.addConstraint(row)
    return lp
