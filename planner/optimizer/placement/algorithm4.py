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
    ledger = Ledger(problem, placed)
    rows: list[Row] = []
    unplaced: list[UnplacedUnits] = []
    remaining = placed
    for s in by_priority(problem.services):
        service = problem.services[s]
        present = placed_replicas(placed, s, len(service.roles))
        change = np.array(service.wanted) - present  # replicas by role
        if (change < 0).any():
            remaining = scale_in(problem, remaining, s, tuple(np.maximum(0, -change).tolist()))
        if (change > 0).any():
            more = tuple(np.maximum(0, change).tolist())
            new_rows, gaps = _scale_out(problem, ledger, remaining, s, more)
            rows += new_rows
            unplaced += gaps
    return join_placements(remaining, Placement.from_rows(rows, tuple(unplaced)))


def by_priority(services: Sequence[Service]) -> list[int]:
    """Return the indices of services, the highest priority first."""
    return sorted(range(len(services)), key=lambda s: -services[s].priority)


def _scale_out(
    problem: PlacementProblem, ledger: Ledger, placed: Placement, s: int, more: tuple[int, ...]
) -> RowsAndGaps:
    """Place ``more`` replicas of service ``s``, by role, and deduct their GPUs from ``ledger``.

    If only some roles grow, their replicas join existing units. Otherwise new units are placed one
    by one.
    """
    service = problem.services[s]
    present = placed.rows(placed.service == s)
    if len(service.roles) > 1 and not all(more):
        return _add_to_groups(problem, ledger, present, s, more)
    rows: list[Row] = []
    gaps: list[UnplacedUnits] = []
    unit = int(present.unit.max(initial=-1)) + 1
    for shape, number in split_units(more, service.ratio):
        to_place = number
        for blocks, domain in _tries(problem, ledger, present, s, shape):
            while to_place and (unit_rows := ledger.place_unit(s, unit, blocks, domain)):
                rows += unit_rows
                unit, to_place = unit + 1, to_place - 1
            if not to_place:
                break
        if to_place:
            reason = no_room_reason(problem, ledger, s, shape)
            gaps.append(UnplacedUnits(s, shape, to_place, reason))
    return rows, gaps


def _tries(
    problem: PlacementProblem, ledger: Ledger, present: Placement, s: int, shape: tuple[int, ...]
) -> Iterator[tuple[list[Block], Domain]]:
    """Yield the ways to place a unit: its replicas on a set of GPU types, and a domain with room.

    First come those that meet an affinity to one S1 switch, and GPU types before their fallbacks.
    Even without affinity, a unit lies in one subgroup.
    """
    service = problem.services[s]
    prefers_one_s1 = service.affinity == "s1" and len(service.roles) > 1
    for one_s1 in (True, False) if prefers_one_s1 else (False,):
        for alternative in service.alternatives:
            blocks = unit_blocks(service, shape, alternative)
            for domain in candidate_domains(problem, ledger, present, s, one_s1, blocks):
                yield blocks, domain


def candidate_domains(
    problem: PlacementProblem,
    ledger: Ledger,
    present: Placement,
    s: int,
    one_s1: bool,
    blocks: Sequence[Block],
) -> list[Domain]:
    """Return the domains with room for a unit of service ``s``, in the order of Algorithm 4.

    A domain is one S1 switch if ``one_s1``, else the S1 switches of a subgroup. Domains of low
    priority come first, then those that the service already uses, then the fullest. ``present`` are
    the placed instances of the service, ``blocks`` the replicas of the unit.
    """
    centre = problem.services[s].centre
    switches = np.flatnonzero(problem.centre_of_s1 == centre)
    domain_numbers = switches if one_s1 else problem.subgroup[switches]
    domains = [
        tuple(switches[domain_numbers == number].tolist()) for number in np.unique(domain_numbers)
    ]
    switches_in_use = set(problem.topology.s1[present.node].tolist())
    types = sorted({gpu for block in blocks for _, gpu, _ in block.instances})

    def rank(domain: Domain) -> tuple[int, bool, int, int]:
        """Return priority, whether the service is absent, free GPUs, and a number to break ties."""
        free = int(ledger.free_s1[np.ix_(domain, types)].sum())
        return int(problem.tiers[domain[0]]), switches_in_use.isdisjoint(domain), free, domain[0]

    return sorted((domain for domain in domains if ledger.has_room(blocks, domain)), key=rank)


@dataclass(slots=True)
class _Group:
    """An existing unit that may get more replicas."""

    unit: int
    replicas: list[int]  # by role
    domain: Domain


def _add_to_groups(
    problem: PlacementProblem, ledger: Ledger, present: Placement, s: int, more: tuple[int, ...]
) -> RowsAndGaps:
    """Add ``more`` replicas by role to the existing units of service ``s``.

    ``present`` are the placed instances of the service. ``ledger`` has the free GPUs and is
    updated.
    """
    service = problem.services[s]
    groups = [_group(problem, present, s, unit) for unit in np.unique(present.unit).tolist()]
    rows: list[Row] = []
    gaps: list[UnplacedUnits] = []
    for r, count in enumerate(more):
        for placed_count in range(count):
            new_rows = _add_replica(problem, ledger, s, r, groups)
            rows += new_rows
            if not new_rows:
                shape = _one_replica(service, r)
                reason = f"none of its groups has room for another {service.roles[r].name} replica"
                gaps.append(UnplacedUnits(s, shape, count - placed_count, reason))
                break
    return rows, gaps


def _group(problem: PlacementProblem, present: Placement, s: int, unit: int) -> _Group:
    """Return a unit of service ``s`` with the switches that may get more of its replicas."""
    service, rows = problem.services[s], present.rows(present.unit == unit)
    replicas = list(placed_replicas(rows, s, len(service.roles)))
    s1 = int(problem.topology.s1[rows.node[0]])
    if service.affinity == "s1":
        return _Group(unit, replicas, (s1,))
    in_subgroup = problem.subgroup == problem.subgroup[s1]
    return _Group(unit, replicas, tuple(np.flatnonzero(in_subgroup).tolist()))


def _add_replica(
    problem: PlacementProblem, ledger: Ledger, s: int, r: int, groups: list[_Group]
) -> list[Row]:
    """Add a replica of role ``r`` to the smallest group with room; return its rows, [] without."""
    service = problem.services[s]
    fewest_first = sorted(groups, key=lambda group: (group.replicas[r], group.unit))
    for group, alternative in product(fewest_first, service.alternatives):
        block = unit_blocks(service, _one_replica(service, r), alternative)[0]
        block = Block(r, group.replicas[r], block.instances)
        rows = ledger.place_unit(s, group.unit, [block], group.domain)
        if rows:
            group.replicas[r] += 1
            return rows
    return []


def _one_replica(service: Service, r: int) -> tuple[int, ...]:
    """Return the shape (replicas by role) with one replica of role ``r``."""
    return tuple(int(i == r) for i in range(len(service.roles)))


def no_room_reason(
    problem: PlacementProblem, ledger: Ledger, s: int, shape: tuple[int, ...]
) -> str:
    """Return why a unit of service ``s`` finds no room, from the free GPUs of ``ledger``.

    ``shape`` is the unit's replicas by role.
    """
    service = problem.services[s]
    s1s = np.flatnonzero(problem.centre_of_s1 == service.centre).tolist()
    for alternative in service.alternatives:
        if ledger.has_room(unit_blocks(service, shape, alternative), s1s):
            if len(service.roles) > 1:
                return (
                    "enough GPUs are free, but no one subgroup has room for all replicas of a unit"
                )
            return "enough GPUs are free, but spread over nodes with too few each"
    needed = Counter[int]()  # GPUs by type
    for block in unit_blocks(service, shape, service.alternatives[0]):
        for _, gpu, size in block.instances:
            needed[gpu] += size
    free, names = ledger.free_s1[s1s].sum(axis=0), problem.topology.gpu_types
    short = "; ".join(
        f"{count:,} {names[gpu]} needed and {free[gpu]:,} free"
        for gpu, count in sorted(needed.items())
    )
    return short + (", nor enough of its fallbacks" if len(service.alternatives) > 1 else "")
