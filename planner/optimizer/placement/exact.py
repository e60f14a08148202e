"""Find the exact placement with a proven gap, by a program over classes of switches."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter

from planner.optimizer.highs import throttled
from planner.optimizer.placement.algorithm4 import run_algorithm4
from planner.optimizer.placement.classes import Where, switch_classes
from planner.optimizer.placement.free_slots import FreeSlots
from planner.optimizer.placement.improve import improve_counts
from planner.optimizer.placement.measures import Measures, measure_placement
from planner.optimizer.placement.node_assignment import assign_switches, placement_of
from planner.optimizer.placement.problem import Placement, PlacementProblem, Unplaced
from planner.optimizer.placement.program import build_program, solve_placement
from planner.optimizer.placement.topology_blind import place_blind
from simulation.topology import KV_SHARE

ENOUGH = 1e-6  # share of the penalty within the solver's rounding
WHOLE_UP_TO = 24  # S1 switches: up to this number, the program with single switches finishes
SOLVING = 0.9  # share of the time limit; the rest turns the solver's counts into switches and nodes


@dataclass(frozen=True, slots=True, eq=False)
class ExactPlacement:
    """A placement with a proven lower bound on the penalty points of any placement.

    ``gap`` = (penalty - bound) / penalty.
    """

    placement: Placement
    measures: Measures
    bound: float
    gap: float
    seconds: float


def place_exact(
    problem: PlacementProblem,
    *,
    shares: Sequence[float] = KV_SHARE,
    gap: float = 1e-4,
    time_limit_s: float = 10.0,
    check: Callable[[], None] = lambda: None,
) -> ExactPlacement:
    """Return the placement with the fewest penalty points, starting empty, with a proven gap.

    First, identical subtrees are merged. That gives a bound, and unit counts for each class. Units
    of a class may not all find single switches. Small networks are then solved again with every
    switch separate. In large ones, ``improve_counts`` improves a few subgroups at a time until time
    runs out. The gap refers to the bound in both cases.

    The result is never worse than Algorithm 4 or the topology-blind baseline. ``check`` is called
    about twice a second; an exception from it ends the search.
    """
    began = perf_counter()
    check = throttled(check)
    room = FreeSlots.of(problem)

    def scored(counts: Where) -> tuple[float, Placement]:
        placement = placement_of(problem, counts)
        return measure_placement(problem, placement, shares).penalty, placement

    candidates = [run_algorithm4(problem), place_blind(problem)]
    best = min(
        (
            (measure_placement(problem, candidate, shares).penalty, candidate)
            for candidate in candidates
        ),
        key=_sum_points,
    )
    until = began + SOLVING * time_limit_s
    bound, counts = 0.0, None
    for together in (True, False):
        left = until - perf_counter()
        if left <= 0 or best[0] - bound <= max(gap, ENOUGH) * best[0]:
            break
        kinds = switch_classes(problem, together=together)
        program = build_program(problem, kinds, room, shares)
        begin = None if counts is None else kinds.counts_by_class(problem.subgroup, counts)[0]
        answer = solve_placement(program, gap=gap, time_limit_s=left, check=check, begin=begin)
        bound = max(bound, answer.bound)
        if answer.counts is not None:
            counts = assign_switches(problem, kinds, room, answer.counts)
            best = min(best, scored(counts), key=_sum_points)
        if kinds.alone or len(problem.tiers) > WHOLE_UP_TO:
            break
    if counts is not None and len(problem.tiers) > WHOLE_UP_TO:
        points = scored(counts)[0]
        counts = improve_counts(
            problem,
            room,
            counts,
            shares,
            enough=lambda gained: points - gained - bound <= gap * bound,
            until=until,
            check=check,
        )
        best = min(best, scored(counts), key=_sum_points)
    penalty = best[0]
    placement = replace(best[1], unplaced=_merge_unplaced(best[1].unplaced))
    return ExactPlacement(
        placement,
        measure_placement(problem, placement, shares),
        min(bound, penalty),
        max(0.0, penalty - bound) / penalty if penalty > 0 else 0.0,
        perf_counter() - began,
    )


def _sum_points(scored: tuple[float, Placement]) -> float:
    return scored[0]


def _merge_unplaced(unplaced: tuple[Unplaced, ...]) -> tuple[Unplaced, ...]:
    """Return ``unplaced`` with one entry per service and unit shape, counts added."""
    by_shape: dict[tuple[int, tuple[int, ...]], Unplaced] = {}
    for gap in unplaced:
        key = (gap.service, gap.shape)
        number = gap.number + (by_shape[key].number if key in by_shape else 0)
        by_shape[key] = replace(gap, number=number)
    return tuple(by_shape.values())
