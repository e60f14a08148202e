"""The exact placement: the program over classes of switches, switches for its units, and a gap."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter

from planner.optimizer.highs import now_and_then
from planner.optimizer.placement.algorithm4 import schedule
from planner.optimizer.placement.blind import place_blind
from planner.optimizer.placement.classes import classes
from planner.optimizer.placement.measures import POINTS, Measures, Weights, measure
from planner.optimizer.placement.problem import Placement, PlacementProblem, Unplaced
from planner.optimizer.placement.program import build, solve
from planner.optimizer.placement.realise import realise
from planner.optimizer.placement.room import Room
from simulation.topology import KV_SHARE

ENOUGH = 1e-6  # of the penalty: rounding of the solver
SOLVING = 0.9  # of the time limit; the rest finds switches and nodes for what the solver counted


@dataclass(frozen=True, slots=True, eq=False)
class Exact:
    """``bound``: no placement has fewer points; ``gap`` = (penalty - bound) / penalty."""

    placement: Placement
    measures: Measures
    bound: float
    gap: float
    seconds: float

    @property
    def proven(self) -> bool:
        return self.gap <= ENOUGH


def place_exact(
    problem: PlacementProblem,
    *,
    weights: Weights = POINTS,
    shares: Sequence[float] = KV_SHARE,
    gap: float = 1e-4,
    time_limit_s: float = 10.0,
    check: Callable[[], None] = lambda: None,
) -> Exact:
    """The placement with the fewest penalty points, from nothing, with a proven gap.

    First with identical subtrees as one; where that leaves more than ``gap`` (their units did not
    find switches of their own) and time is left, every switch by itself. Never worse than
    Algorithm 4 or the blind baseline: the best of all is returned. ``check`` is asked about twice
    a second; what it raises ends the search.
    """
    began = perf_counter()
    check = now_and_then(check)
    room = Room.of(problem)
    tried = [schedule(problem)[0], place_blind(problem)]
    best = min(((measure(problem, p, weights, shares).penalty, p) for p in tried), key=_points)
    bound, begin = 0.0, None
    for together in (True, False):
        left = SOLVING * time_limit_s - (perf_counter() - began)
        if left <= 0 or best[0] - bound <= max(gap, ENOUGH) * best[0]:
            break
        kinds = classes(problem, together=together)
        made = build(problem, kinds, room, weights, shares)
        left = SOLVING * time_limit_s - (perf_counter() - began)
        answer = solve(made, gap=gap, time_limit_s=max(0.1, left), check=check, begin=begin)
        bound = max(bound, answer.bound)
        if answer.counts is not None:
            placement, begin = realise(problem, kinds, room, answer.counts)
            points = measure(problem, placement, weights, shares).penalty
            best = min(best, (points, placement), key=_points)
        if kinds.alone:
            break
    penalty = best[0]
    placement = replace(best[1], unplaced=_named(best[1].unplaced))
    return Exact(
        placement,
        measure(problem, placement, weights, shares),
        min(bound, penalty),
        max(0.0, penalty - bound) / penalty if penalty > 0 else 0.0,
        perf_counter() - began,
    )


def _points(scored: tuple[float, Placement]) -> float:
    return scored[0]


def _named(unplaced: tuple[Unplaced, ...]) -> tuple[Unplaced, ...]:
    """The gaps of one service and shape together."""
    found: dict[tuple[int, tuple[int, ...]], Unplaced] = {}
    for gap in unplaced:
        at = (gap.service, gap.shape)
        number = gap.number + (found[at].number if at in found else 0)
        found[at] = replace(gap, number=number)
    return tuple(found.values())
