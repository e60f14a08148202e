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
    of_service = np.flatnonzero(placed.service == s)
    priority = problem.tiers[problem.topology.s1[placed.node]]
    highest = {
        unit: int(priority[of_service[placed.unit[of_service] == unit]].max())
        for unit in np.unique(placed.unit[of_service]).tolist()
    }
    order = sorted(highest, key=lambda unit: (-highest[unit], -unit))
    count = {unit: placed_replicas(placed.rows(placed.unit == unit), s, roles) for unit in order}
    to_remove = np.array(less)  # replicas by role
    removed = np.zeros(len(placed), bool)
    kept_units = []
    for unit in order:
        if (np.array(count[unit]) <= to_remove).all():
            to_remove = to_remove - count[unit]
            removed |= (placed.service == s) & (placed.unit == unit)
        else:
            kept_units.append(unit)
    # First down to one replica of each role, then to none.
    for replicas_left in (1, 0):
        for unit in kept_units:
            for role in range(roles):
                members = (
                    (placed.service == s) & (placed.unit == unit) & (placed.role == role) & ~removed
                )
                replicas = np.unique(placed.replica[members])
                remaining = max(replicas_left, len(replicas) - int(to_remove[role]))
                newest = replicas[remaining:]  # replicas are numbered by age
                removed |= members & np.isin(placed.replica, newest)
                to_remove[role] -= len(newest)
    return placed.rows(~removed)
