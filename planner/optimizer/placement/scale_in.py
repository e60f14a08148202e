"""Choose units to remove in scale-in, high-priority subgroups first (seed 003, section 3.5)."""

import numpy as np

from planner.optimizer.placement.problem import Placement, PlacementProblem


def placed_replicas(placed: Placement, service_id: int, roles: int) -> tuple[int, ...]:
    """Return the number of placed replicas of a service for each of its ``roles`` roles."""
    of_service = placed.service == service_id
    columns = np.stack([placed.role, placed.unit, placed.replica])[:, of_service]
    role_of_replica = np.unique(columns, axis=1)[0]
    return tuple(int((role_of_replica == role).sum()) for role in range(roles))


def scale_in(
    problem: PlacementProblem,
    placed: Placement,
    service_id: int,
    to_remove_by_role: tuple[int, ...],
) -> Placement:
    """Return ``placed`` with ``to_remove_by_role[role]`` fewer replicas of a service.

    Whole units are removed first, as long as no more replicas are removed than asked for. Units on
    subgroups of the highest priority go first, then the newest units. Further replicas come from
    single units in the same order, which keep one replica of each role. The last replicas go only
    if the service ends.
    """
    roles = len(problem.services[service_id].roles)
    to_remove = np.array(to_remove_by_role)  # replicas by role
    removed = np.zeros(len(placed), bool)
    kept_units = []
    rows = placed.rows(placed.service == service_id)
    tier = problem.tiers[problem.topology.s1[rows.node]]
    units = np.unique(rows.unit).tolist()
    units.sort(key=lambda unit: (-int(tier[rows.unit == unit].max()), -unit))
    for unit in units:  # whole units
        of_unit = (placed.service == service_id) & (placed.unit == unit)
        replicas = np.array(placed_replicas(placed.rows(of_unit), service_id, roles))
        if (replicas <= to_remove).all():
            to_remove -= replicas
            removed |= of_unit
        else:
            kept_units.append(of_unit)
    # Single replicas of other units, first down to one replica of each role, then to none.
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
