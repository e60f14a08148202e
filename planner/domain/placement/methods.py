"""Place services by each method: the fleet as it is, scaled out (grown), and scaled in (shrunk)."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np

from planner.optimizer.placement import (
    Measures,
    Placement,
    PlacementProblem,
    Units,
    measure_placement,
    measure_units,
    place_blind,
    place_exact,
    run_algorithm4,
)
from planner.optimizer.placement.problem import join_placements
from planner.optimizer.placement.scale_in import placed_replicas

Method = Literal["blind", "algorithm4", "exact"]
METHODS: tuple[str, ...] = get_args(Method)
BLIND, ALGORITHM4, EXACT = METHODS
LABELS = {BLIND: "Topology ignored", ALGORITHM4: "Algorithm 4", EXACT: "Exact"}
START, GROWN, SHRUNK = "start", "grown", "shrunk"


@dataclass(frozen=True, slots=True, eq=False)
class State:
    """A placement by one method: at the start, grown or shrunk.

    ``gap`` and ``bound`` (of the penalty points) are those of the exact method.
    """

    problem: PlacementProblem
    placement: Placement
    measures: Measures
    units: Units
    seconds: float
    gap: float | None = None
    bound: float | None = None


States = dict[str, State]  # START, and also GROWN and SHRUNK if the fleet is to grow


@dataclass(frozen=True, slots=True)
class Placer:
    """One placement method with its parameters."""

    method: str
    seed: int
    shares: Sequence[float]  # share of the link bandwidth left, by lowest common network level
    time_limit_s: float
    alive: Callable[[], None]  # called during the search; may raise to end it

    def states(self, problem: PlacementProblem, grow: float) -> States:
        """Return the placement at the start and, unless ``grow`` is 0, grown and shrunk.

        ``grow`` is the share of replicas of each role, rounded up, that is added and then removed.
        """
        steps = {START: problem}
        if grow > 0:
            grown = []
            for service in problem.services:
                wanted = tuple(math.ceil(count * (1 + grow)) for count in service.wanted)
                grown.append(replace(service, wanted=wanted))
            steps[GROWN] = PlacementProblem(problem.topology, tuple(grown), problem.taken)
            steps[SHRUNK] = problem
        states: States = {}
        placement = Placement.from_rows([])
        for name, to_solve in steps.items():
            began = time.perf_counter()
            placement, gap, bound = self._solve(to_solve, placement)
            seconds = time.perf_counter() - began
            measures = measure_placement(to_solve, placement, self.shares)
            units = measure_units(to_solve, placement, self.shares)
            states[name] = State(to_solve, placement, measures, units, seconds, gap, bound)
        return states

    def _solve(
        self, problem: PlacementProblem, before: Placement
    ) -> tuple[Placement, float | None, float | None]:
        """Return a placement of ``problem`` that changes the one ``before``, its gap and its bound.

        Gap and bound are None unless the method is exact. If a service shrinks, every method uses
        the scale-in of Algorithm 4.
        """
        to_add = _missing(problem, before)  # None: a service shrinks
        if self.method == ALGORITHM4 or to_add is None:
            return run_algorithm4(problem, before), None, None
        # The other methods leave the placed replicas where they are, and place the missing ones.
        if self.method == BLIND:
            return _join_placements(before, place_blind(to_add, self.seed)), None, None
        exact = place_exact(
            to_add, shares=self.shares, time_limit_s=self.time_limit_s, check=self.alive
        )
        return _join_placements(before, exact.placement), exact.gap, exact.bound


def _missing(problem: PlacementProblem, before: Placement) -> PlacementProblem | None:
    """Return the problem to place what ``before`` lacks; None if a service must shrink."""
    services = []
    for s, service in enumerate(problem.services):
        present = placed_replicas(before, s, len(service.roles))
        wanted = tuple(np.subtract(service.wanted, present).tolist())
        if min(wanted) < 0:
            return None
        services.append(replace(service, wanted=wanted))
    used = problem.taken + before.used_gpus(len(problem.topology))
    return PlacementProblem(problem.topology, tuple(services), used)


def _join_placements(before: Placement, new: Placement) -> Placement:
    """Return two placements as one; units and replicas of ``new`` are numbered after the others."""
    services = int(max(before.service.max(initial=-1), new.service.max(initial=-1))) + 1
    next_unit = np.zeros(services, int)  # by service: the first number that no unit has
    np.maximum.at(next_unit, before.service, before.unit + 1)
    next_instance = int(before.instance.max(initial=-1)) + 1
    renumbered = replace(
        new, unit=new.unit + next_unit[new.service], instance=new.instance + next_instance
    )
    return join_placements(before, renumbered)
