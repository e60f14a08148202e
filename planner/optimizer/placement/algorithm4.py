"""Schedule by Algorithm 4 of seed 003: network affinity-aware scheduling and allocation.

``placement.problem`` explains unit, group, subgroup, shape and alternative. One cycle handles
services by priority.

- Scale-out: subgroups that can take a unit are tried, the lowest priority first. At equal priority,
  those with a group of the service come first, so that groups are widened before new ones open.
  Units are deducted from the tree at once.
- Scale-in: groups on high-priority subgroups come first. The freed GPUs are available only in the
  next cycle.

Unlike in the printed loop, pods are placed unit by unit, so that prefill and decode of one group
are never split across subgroups (methods.md D5).
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from planner.optimizer.placement.ledger import Block, Ledger, Row, unit_blocks
from planner.optimizer.placement.problem import (
    Placement,
    PlacementProblem,
    Service,
    UnplacedUnits,
    join_placements,
    split_units,
)
from planner.optimizer.placement.scale_in import placed_replicas, scale_in

Domain = tuple[int, ...]  # the S1 switches under which a unit must lie
RowsAndGaps = tuple[list[Row], list[UnplacedUnits]]  # placed instances, and units without a place


def run_algorithm4(problem: PlacementProblem, current: Placement | None = None) -> Placement:
    """Return the placement after a cycle of Algorithm 4 from ``current`` (None: nothing runs)."""
    placed = Placement.from_rows([]) if current is None else current
    # GPUs of replicas that this cycle removes are not free for those that it adds.
    ledger = Ledger(problem, placed)
    rows: list[Row] = []
    unplaced: list[UnplacedUnits] = []
    remaining = placed
    for service_id in by_priority(problem.services):
        service = problem.services[service_id]
        present = placed_replicas(placed, service_id, len(service.roles))
        change = np.array(service.wanted) - present  # replicas by role
        if (change < 0).any():
            removed = tuple(np.maximum(0, -change).tolist())
            remaining = scale_in(problem, remaining, service_id, removed)
        if (change > 0).any():
            added = tuple(np.maximum(0, change).tolist())
            new_rows, gaps = _scale_out(problem, ledger, remaining, service_id, added)
            rows += new_rows
            unplaced += gaps
    return join_placements(remaining, Placement.from_rows(rows, tuple(unplaced)))


def by_priority(services: Sequence[Service]) -> list[int]:
    """Return the indices of services, the highest priority first."""
    return sorted(range(len(services)), key=lambda index: -services[index].priority)


def _scale_out(
    problem: PlacementProblem,
    ledger: Ledger,
    placed: Placement,
    service_id: int,
    added: tuple[int, ...],
) -> RowsAndGaps:
    """Place ``added`` replicas of a service, by role, and deduct their GPUs from ``ledger``.

    If only some roles grow, their replicas join existing units. Otherwise new units are placed one
    by one.
    """
    service = problem.services[service_id]
    present = placed.rows(placed.service == service_id)
    if len(service.roles) > 1 and not all(added):
        return _add_to_groups(problem, ledger, present, service_id, added)
    rows: list[Row] = []
    gaps: list[UnplacedUnits] = []
    unit = int(present.unit.max(initial=-1)) + 1
    for shape, count in split_units(added, service.ratio):
        to_place = count
        # Use each way to place a unit until none fits, the best way first.
        for blocks, domain in _tries(problem, ledger, present, service_id, shape):
            while to_place:
                unit_rows = ledger.place_unit(service_id, unit, blocks, domain)
                if not unit_rows:  # no room for another unit here
                    break
                rows += unit_rows
                unit, to_place = unit + 1, to_place - 1
            if not to_place:
                break
        if to_place:
            reason = no_room_reason(problem, ledger, service_id, shape)
            gaps.append(UnplacedUnits(service_id, shape, to_place, reason))
    return rows, gaps


def _tries(
    problem: PlacementProblem,
    ledger: Ledger,
    present: Placement,
    service_id: int,
    shape: tuple[int, ...],
) -> Iterator[tuple[list[Block], Domain]]:
    """Yield the ways to place a unit: its replicas on a set of GPU types, and a domain with room.

    First come those that meet an affinity to one S1 switch, and GPU types before their fallbacks.
    Even without affinity, a unit lies in one subgroup.
    """
    service = problem.services[service_id]
    prefers_one_s1 = service.affinity == "s1" and len(service.roles) > 1
    under_one_switch = (True, False) if prefers_one_s1 else (False,)
    for one_s1 in under_one_switch:
        for alternative in service.alternatives:
            blocks = unit_blocks(service, shape, alternative)
            for domain in candidate_domains(problem, ledger, present, service_id, one_s1, blocks):
                yield blocks, domain


def candidate_domains(
    problem: PlacementProblem,
    ledger: Ledger,
    present: Placement,
    service_id: int,
    one_s1: bool,
    blocks: Sequence[Block],
) -> list[Domain]:
    """Return the domains with room for a unit of a service, in the order of Algorithm 4.

    A domain is one S1 switch if ``one_s1``, else the S1 switches of a subgroup. Domains of low
    priority come first, then those that the service already uses, then the fullest. ``present`` are
    the placed instances of the service, ``blocks`` the replicas of the unit.
    """
    centre = problem.services[service_id].centre
    switches = np.flatnonzero(problem.centre_of_s1 == centre)
    domain_numbers = switches if one_s1 else problem.subgroup[switches]
    domains = [
        tuple(switches[domain_numbers == number].tolist()) for number in np.unique(domain_numbers)
    ]
    switches_in_use = set(problem.topology.s1[present.node].tolist())
    types = sorted({gpu for block in blocks for _, gpu, _ in block.instances})

    def rank(domain: Domain) -> tuple[int, bool, int, int]:
        """Return priority, whether the service is absent, free GPUs, and a number to break ties."""
        first_switch = domain[0]
        free_gpus = int(ledger.free_s1[np.ix_(domain, types)].sum())
        is_unused = switches_in_use.isdisjoint(domain)
        return int(problem.tiers[first_switch]), is_unused, free_gpus, first_switch

    return sorted((domain for domain in domains if ledger.has_room(blocks, domain)), key=rank)


@dataclass(slots=True)
class _Group:
    """An existing unit that may get more replicas."""

    unit: int
    replicas: list[int]  # by role
    domain: Domain


def _add_to_groups(
    problem: PlacementProblem,
    ledger: Ledger,
    present: Placement,
    service_id: int,
    added: tuple[int, ...],
) -> RowsAndGaps:
    """Add ``added`` replicas by role to the existing units of service ``service_id``.

    ``present`` are the placed instances of the service. ``ledger`` has the free GPUs and is
    updated.
    """
    service = problem.services[service_id]
    units = np.unique(present.unit).tolist()
    groups = [_group(problem, present, service_id, unit) for unit in units]
    rows: list[Row] = []
    gaps: list[UnplacedUnits] = []
    for role, count in enumerate(added):
        for placed_count in range(count):
            new_rows = _add_replica(problem, ledger, service_id, role, groups)
            rows += new_rows
            if not new_rows:
                shape = _one_replica(service, role)
                name = service.roles[role].name
                reason = f"none of its groups has room for another {name} replica"
                gaps.append(UnplacedUnits(service_id, shape, count - placed_count, reason))
                break
    return rows, gaps


def _group(problem: PlacementProblem, present: Placement, service_id: int, unit: int) -> _Group:
    """Return a unit of a service with the switches that may get more of its replicas."""
    service, rows = problem.services[service_id], present.rows(present.unit == unit)
    replicas = list(placed_replicas(rows, service_id, len(service.roles)))
    s1 = int(problem.topology.s1[rows.node[0]])
    if service.affinity == "s1":
        return _Group(unit, replicas, (s1,))
    in_subgroup = problem.subgroup == problem.subgroup[s1]
    return _Group(unit, replicas, tuple(np.flatnonzero(in_subgroup).tolist()))


def _add_replica(
    problem: PlacementProblem, ledger: Ledger, service_id: int, role: int, groups: list[_Group]
) -> list[Row]:
    """Add a replica of ``role`` to the smallest group with room; return its rows, [] without."""
    service = problem.services[service_id]
    fewest_first = sorted(groups, key=lambda group: (group.replicas[role], group.unit))
    for group, alternative in product(fewest_first, service.alternatives):
        block = unit_blocks(service, _one_replica(service, role), alternative)[0]
        block = Block(role, group.replicas[role], block.instances)
        rows = ledger.place_unit(service_id, group.unit, [block], group.domain)
        if rows:
            group.replicas[role] += 1
            return rows
    return []


def _one_replica(service: Service, role: int) -> tuple[int, ...]:
    """Return the shape (replicas by role) with one replica of role ``role``."""
    return tuple(int(other == role) for other in range(len(service.roles)))


def no_room_reason(
    problem: PlacementProblem, ledger: Ledger, service_id: int, shape: tuple[int, ...]
) -> str:
    """Return why a unit of a service finds no room, from the free GPUs of ``ledger``.

    ``shape`` is the unit's replicas by role.
    """
    service = problem.services[service_id]
    switches = np.flatnonzero(problem.centre_of_s1 == service.centre).tolist()
    for alternative in service.alternatives:
        if ledger.has_room(unit_blocks(service, shape, alternative), switches):
            if len(service.roles) > 1:
                return (
                    "enough GPUs are free, but no one subgroup has room for all replicas of a unit"
                )
            return "enough GPUs are free, but spread over nodes with too few each"
    needed = Counter[int]()  # GPUs by type
    for block in unit_blocks(service, shape, service.alternatives[0]):
        for _, gpu, size in block.instances:
            needed[gpu] += size
    free, names = ledger.free_s1[switches].sum(axis=0), problem.topology.gpu_types
    shortage = "; ".join(
        f"{count:,} {names[gpu]} needed and {free[gpu]:,} free"
        for gpu, count in sorted(needed.items())
    )
    return shortage + (", nor enough of its fallbacks" if len(service.alternatives) > 1 else "")
