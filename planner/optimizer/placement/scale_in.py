"""Choose units to remove in scale-in, high-priority subgroups first (seed 003, section 3.5)."""

import numpy as np

from planner.optimizer.placement.problem import Placement, PlacementProblem


def placed_replicas(placed: Placement, s: int, roles: int) -> tuple[int, ...]:
    """Return the number of placed replicas of service ``s``, by role; ``roles`` is their number."""
    of_service = placed.service == s
    keys = np.unique(np.stack([placed.role, placed.unit, placed.replica])[:, of_service], axis=1)
    return tuple(int((keys[0] == r).sum()) for r in range(roles))


def scale_in(
    problem: PlacementProblem, placed: Placement, s: int, less: tuple[int, ...]
) -> Placement:
    """Return ``placed`` with ``less[role]`` fewer replicas of service ``s``.

    Whole units are removed first, as long as no more replicas are removed than asked for. Units on
    subgroups of the highest priority go first, then the newest units. Further replicas come from
    single units in the same order, which keep one replica of each role. The last replicas go only
    if the service ends.
    """
    roles = len(problem.services[s].roles)
    to_remove = np.array(less)  # replicas by role
    removed = np.zeros(len(placed), bool)
    kept_units = []
    for unit in _removal_order(problem, placed, s):
        of_unit = (placed.service == s) & (placed.unit == unit)
        replicas = np.array(placed_replicas(placed.rows(of_unit), s, roles))
        if (replicas <= to_remove).all():
            to_remove -= replicas
            removed |= of_unit
        else:
            kept_units.append(of_unit)
    # First down to one replica of each role, then to none.
    for replicas_left in (1, 0):
        for of_unit in kept_units:
            for role in range(roles):
                members = of_unit & (placed.role == role) & ~removed
                replicas = np.unique(placed.replica[members])
                remaining = max(replicas_left, len(replicas) - int(to_remove[role]))
                newest = replicas[remaining:]  # replicas are numbered by age
                removed |= members & np.isin(placed.replica, newest)
                to_remove[role] -= len(newest)
    return placed.rows(~removed)


def _removal_order(problem: PlacementProblem, placed: Placement, s: int) -> list[int]:
    """Return the units of service ``s``, those to remove first at the front."""
    rows = placed.rows(placed.service == s)
    priority = problem.tiers[problem.topology.s1[rows.node]]
    units = np.unique(rows.unit).tolist()
    return sorted(units, key=lambda unit: (-int(priority[rows.unit == unit].max()), -unit))
