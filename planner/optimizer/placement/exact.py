"""Find the exact placement with a proven gap, by a program over classes of switches.

If time is left, find better switches for a few subgroups at a time (large neighbourhood search).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter

import numpy as np

from planner.optimizer.highs import throttled
from planner.optimizer.placement.algorithm4 import run_algorithm4
from planner.optimizer.placement.classes import SwitchClasses, Where, switch_classes
from planner.optimizer.placement.free_slots import FreeSlots
from planner.optimizer.placement.measures import Measures, measure_placement
from planner.optimizer.placement.node_assignment import assign_switches, placement_of
from planner.optimizer.placement.problem import Placement, PlacementProblem, Unplaced
from planner.optimizer.placement.program import build_program, solve_placement
from planner.optimizer.placement.topology_blind import place_blind
from simulation.topology import KV_SHARE

ENOUGH = 1e-6  # share of the penalty within the solver's rounding
WHOLE_UP_TO = 24  # S1 switches: up to this number, the program with single switches finishes
SOLVING = 0.9  # share of the time limit; the rest turns the solver's counts into switches and nodes
AT_ONCE = 3  # initial number of subgroups that are placed again together
EACH_S = 1.0  # time limit of one such step
LEAST_S = 0.05  # with less time left, no step begins
GAP = 1e-3  # relative to their part of the objective


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

    First, identical subtrees are merged into classes. That gives a bound, and counts of units for
    each class. Not all units of a class may find a single switch, so small networks are then solved
    again with every switch separate. In large networks, ``improve_counts`` improves a few subgroups
    at a time until time runs out. In both cases the gap refers to the bound.

    The result is never worse than Algorithm 4 or the topology-blind baseline. ``check`` is called
    about twice a second; an exception from it ends the search.
    """
    began = perf_counter()
    check = throttled(check)
    free_slots, is_large = FreeSlots.from_problem(problem), len(problem.tiers) > WHOLE_UP_TO

    def points(placement: Placement) -> float:
        """Return the penalty points of a placement."""
        return measure_placement(problem, placement, shares).penalty

    best = min(run_algorithm4(problem), place_blind(problem), key=points)
    until = began + SOLVING * time_limit_s
    bound, counts = 0.0, None
    # Solve with identical switches merged, and then a small network with every switch separate.
    for together in (True, False):
        seconds_left, penalty = until - perf_counter(), points(best)
        if seconds_left <= 0 or penalty - bound <= max(gap, ENOUGH) * penalty:
            break
        kinds = switch_classes(problem, together=together)
        program = build_program(problem, kinds, free_slots, shares)
        begin = None if counts is None else kinds.counts_by_class(problem.subgroup, counts)[0]
        answer = solve_placement(
            program, gap=gap, time_limit_s=seconds_left, check=check, begin=begin
        )
        bound = max(bound, answer.bound)
        if answer.counts is not None:
            counts = assign_switches(problem, kinds, free_slots, answer.counts)
            best = min(best, placement_of(problem, counts), key=points)
        if kinds.are_single or is_large:
            break
    if counts is not None and is_large:
        before = points(placement_of(problem, counts))
        counts = improve_counts(
            problem,
            free_slots,
            counts,
            shares,
            enough=lambda gained: before - gained - bound <= gap * bound,
            until=until,
            check=check,
        )
        best = min(best, placement_of(problem, counts), key=points)

    best = replace(best, unplaced=_merge_unplaced(best.unplaced))
    measures = measure_placement(problem, best, shares)
    penalty = measures.penalty
    return ExactPlacement(
        best,
        measures,
        bound=min(bound, penalty),
        gap=max(0.0, penalty - bound) / penalty if penalty > 0 else 0.0,
        seconds=perf_counter() - began,
    )


def _merge_unplaced(unplaced: tuple[Unplaced, ...]) -> tuple[Unplaced, ...]:
    """Return ``unplaced`` with one entry per service and unit shape, counts added."""
    by_shape: dict[tuple[int, tuple[int, ...]], Unplaced] = {}
    for gap in unplaced:
        key = (gap.service, gap.shape)
        number = gap.number + (by_shape[key].number if key in by_shape else 0)
        by_shape[key] = replace(gap, number=number)
    return tuple(by_shape.values())


def improve_counts(
    problem: PlacementProblem,
    free_slots: FreeSlots,
    counts: Where,
    shares: Sequence[float],
    *,
    enough: Callable[[float], bool],
    until: float,
    check: Callable[[], None],
) -> Where:
    """Return ``counts`` improved by placing again the units of a few subgroups at a time.

    Each step solves the program over those subgroups alone, with all unplaced units. Every round
    groups them differently. A round without gain makes the groups larger, up to all subgroups at
    once. The search ends when ``enough(points gained)`` returns True, or when ``perf_counter()``
    passes ``until``. The result is never worse than ``counts``. ``shares`` are the shares of
    bandwidth by level of switches. ``check`` raises if the run has been cancelled.
    """
    groups: dict[int, list[int]] = {}
    for s1 in np.unique(problem.topology.s1).tolist():
        groups.setdefault(int(problem.subgroup[s1]), []).append(s1)
    order, random = sorted(groups), np.random.default_rng(0)
    gained, at_once = 0.0, AT_ONCE
    while at_once < len(order) + AT_ONCE:  # the last size is the first with all subgroups
        before = gained
        for start in range(0, len(order), at_once):
            seconds_left = until - perf_counter()
            if seconds_left <= LEAST_S or enough(gained):
                return counts
            chosen_groups = {number: groups[number] for number in order[start : start + at_once]}
            better = _place_again(
                problem, free_slots, counts, chosen_groups, shares, min(seconds_left, EACH_S), check
            )
            if better is not None:
                counts, points = better
                gained += points
        order = [order[i] for i in random.permutation(len(order))]
        if gained == before:
            at_once += AT_ONCE
    return counts


def _place_again(
    problem: PlacementProblem,
    free_slots: FreeSlots,
    counts: Where,
    groups: dict[int, list[int]],
    shares: Sequence[float],
    limit_s: float,
    check: Callable[[], None],
) -> tuple[Where, float] | None:
    """Return ``counts`` with units of the subgroups ``groups`` placed again, and the points saved.

    Returns None without a gain.
    """
    # Each switch and each subgroup is a class of its own.
    kinds = SwitchClasses(
        switches=tuple((s1,) for members in groups.values() for s1 in members),
        pool=tuple(p for p, members in enumerate(groups.values()) for _ in members),
        pools=tuple((tuple(members),) for members in groups.values()),
    )
    begin, unchanged = kinds.counts_by_class(problem.subgroup, counts)
    units: dict[tuple[int, int], int] = {}  # to place, by service and shape
    for key, n in begin.items():
        if key.kind != "part":
            unit = key.service, key.shape
            units[unit] = units.get(unit, 0) + n
    program = build_program(problem, kinds, free_slots, shares, units)
    answer = solve_placement(program, gap=GAP, time_limit_s=limit_s, check=check, begin=begin)
    if answer.counts is None:
        return None
    points = dict(zip(program.keys, program.cost, strict=True))
    before, after = (
        sum(points[key] * n for key, n in unit_counts.items())
        for unit_counts in (begin, answer.counts)
    )
    if after >= before - 1e-6 * abs(before):
        return None
    return unchanged | kinds.counts_by_switch(problem.subgroup, answer.counts), before - after
