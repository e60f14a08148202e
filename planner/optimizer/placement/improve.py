"""Find better switches for units, a few subgroups at a time (large neighbourhood search)."""

from collections.abc import Callable, Sequence
from time import perf_counter

import numpy as np

from planner.optimizer.placement.classes import SwitchClasses, Where
from planner.optimizer.placement.free_slots import FreeSlots
from planner.optimizer.placement.problem import PlacementProblem
from planner.optimizer.placement.program import build_program, solve_placement

AT_ONCE = 3  # initial number of subgroups that are placed again together
EACH_S = 1.0  # time limit of one such step
LEAST_S = 0.05  # with less time left, no step begins
GAP = 1e-3  # relative to their part of the objective


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
