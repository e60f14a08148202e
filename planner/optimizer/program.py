"""The program under construction: a PuLP problem and its variables by model, region, GPU type."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pulp

from planner.optimizer.problem import PlanningProblem
from planner.optimizer.sides import sides
from simulation.arrays import IntArray

Cell = tuple[int, int, int]  # l, r, g
Terms = list[tuple[pulp.LpVariable, float]]
AT_LEAST, AT_MOST = pulp.LpConstraintGE, pulp.LpConstraintLE


@dataclass(frozen=True, slots=True, eq=False)
class Program:
    """Variables exist only where the model can run on the GPU type; elsewhere the target is 0."""

    problem: PlanningProblem
    lp: pulp.LpProblem
    x: dict[Cell, pulp.LpVariable]  # integer >= 0: instances to hold
    starts: dict[Cell, pulp.LpVariable]  # integer >= 0: instances to start
    # >= 0 by model and region: tokens/s that every side carries; empty where there is one side.
    served: dict[tuple[int, int], pulp.LpVariable]

    @classmethod
    def of(cls, problem: PlanningProblem) -> Program:
        """Variables without constraints or objective."""
        lp = pulp.LpProblem("plan", pulp.LpMinimize)
        cells: list[Cell] = [
            (int(model), region, int(gpu))
            for model, gpu in np.argwhere(problem.theta_tps > 0)
            for region in range(len(problem.regions))
        ]
        x, starts = (
            {cell: lp.add_variable(_name(prefix, cell), 0, None, pulp.LpInteger) for cell in cells}
            for prefix in ("x", "starts")
        )
        joined = sorted({cell[:2] for cell in cells}) if len(sides(problem)) > 1 else []
        served = {at: lp.add_variable("served_{}_{}".format(*at), 0) for at in joined}
        return cls(problem, lp, x, starts, served)

    def serving(self) -> defaultdict[tuple[int, int], Terms]:
        """What adds up to the tokens/s served, by model and region."""
        terms: defaultdict[tuple[int, int], Terms] = defaultdict(list)
        for at, served in self.served.items():
            terms[at].append((served, 1.0))
        if not self.served:
            for (model, region, gpu), x in self.x.items():
                terms[model, region].append((x, float(self.problem.theta_tps[model, gpu])))
        return terms

    def add(
        self,
        name: str,
        terms: Iterable[tuple[pulp.LpVariable, float]],
        sense: int,
        bound: float,
    ) -> None:
        """Add ``sum coefficient * variable  >= or <=  bound`` under ``name``."""
        expression = pulp.LpAffineExpression(list(terms))
        self.lp.addConstraint(pulp.LpConstraint(expression, sense, name, float(bound)))

    def target(self, values: dict[str, float]) -> IntArray:
        """The instances to hold, shape ``[l, r, g]``, from variable values by name."""
        target = np.zeros(self.problem.current.shape, dtype=np.int64)
        for cell, variable in self.x.items():
            target[cell] = round(values[variable.name])
        return target


def _name(prefix: str, cell: Cell) -> str:
    return f"{prefix}_{cell[0]}_{cell[1]}_{cell[2]}"
