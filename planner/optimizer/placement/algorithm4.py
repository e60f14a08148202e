"""Schedule by Algorithm 4 of seed 003: network affinity-aware scheduling and allocation.

One cycle handles requests by priority.

- Scale-out: subgroups that can take a unit are tried, the lowest priority first. At equal priority,
  those with a group of the service come first, so that groups are widened before new ones open.
  Units are deducted from the tree at once.
- Scale-in: groups on high-priority subgroups come first. The freed GPUs are available only in the
  next cycle.

Unlike in the printed loop, pods are placed unit by unit, so that prefill and decode of one group
are never split across subgroups (methods.md D5).
"""

from collections.abc import Sequence
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


def run_algorithm4(problem: PlacementProblem, current: Placement | None = None) -> Placement:
    """Run one cycle from ``current`` (None: nothing runs) to the wanted replicas of ``problem``."""
    placed = Placement.from_rows([]) if current is None else current
    ledger = Ledger(problem, placed)
    rows: list[Row] = []
    unplaced: list[UnplacedUnits] = []
    remaining = placed
    for s in by_priority(problem.services):
        service = problem.services[s]
        present = placed_replicas(placed, s, len(service.roles))
        delta = tuple(wants - has for wants, has in zip(service.wanted, present, strict=True))
        less = tuple(max(0, -change) for change in delta)
        if any(less):
            remaining = scale_in(problem, remaining, s, less)
        more = tuple(max(0, change) for change in delta)
        if any(more):
            new_rows, gaps = _scale_out(problem, ledger, remaining, s, more)
            rows += new_rows
            unplaced += gaps
    return join_placements(remaining, Placement.from_rows(rows, tuple(unplaced)))


def by_priority(services: Sequence[Service]) -> list[int]:
    """Return the indices of services, the highest priority first."""
    return sorted(range(len(services)), key=lambda s: -services[s].priority)


def _scale_out(
    problem: PlacementProblem, ledger: Ledger, placed: Placement, s: int, more: tuple[int, ...]
) -> tuple[list[Row], list[UnplacedUnits]]:
    """Place ``more`` replicas of service ``s``, by role; return new rows and what found no room.

    If only some roles grow, their replicas join existing units. Otherwise new units are placed one
    by one. A unit without room is tried again without affinity or without preferred GPU types.
    ``ledger`` has the free GPUs and is updated.
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
        for narrow, alternative in _attempts(service):
            parts = unit_blocks(service, shape, alternative)
            for domain in candidate_domains(problem, ledger, present, s, narrow, parts):
                while to_place and (unit_rows := ledger.place_unit(s, unit, parts, domain)):
                    rows += unit_rows
                    unit, to_place = unit + 1, to_place - 1
                if not to_place:
                    break
            if not to_place:
                break
        if to_place:
            gaps.append(
                UnplacedUnits(s, shape, to_place, no_room_reason(problem, ledger, s, shape))
            )
    return rows, gaps


def _attempts(service: Service) -> list[tuple[bool, tuple[tuple[int, ...], ...]]]:
    """Return the attempts to place a unit: whether under one S1 switch, and on which GPU types.

    GPU types are indices by role, and by part of a role. Preferred GPU types come before fallbacks.
    An affinity to one S1 switch is given up last. Even then a unit lies in one subgroup.
    """
    narrow = service.affinity == "s1" and len(service.roles) > 1
    tries = [(narrow, alternative) for alternative in service.alternatives]
    if narrow:
        tries += [(False, alternative) for alternative in service.alternatives]
    return tries


def candidate_domains(
    problem: PlacementProblem,
    ledger: Ledger,
    present: Placement,
    s: int,
    narrow: bool,
    parts: Sequence[Block],
) -> list[Domain]:
    """Return the domains with room for a unit, in the order of Algorithm 4.

    A domain is one S1 switch if ``narrow``, else a subgroup of them. Domains of low subgroup
    priority come first, then those that service ``s`` already uses, then the fullest. ``present``
    are its placed replicas, ``parts`` those of the unit.
    """
    centre = problem.services[s].centre
    switches = np.flatnonzero(problem.centre_of_s1 == centre)
    domain_numbers = switches if narrow else problem.subgroup[switches]
    domains = [
        tuple(switches[domain_numbers == number].tolist()) for number in np.unique(domain_numbers)
    ]
    switches_in_use = set(problem.topology.s1[present.node].tolist())
    types = sorted({gpu for block in parts for _, gpu, _ in block.instances})

    def rank(domain: Domain) -> tuple[int, bool, int, int]:
        """Return priority, whether the service is absent, free GPUs, and a number to break ties."""
        free = int(ledger.free_s1[np.ix_(domain, types)].sum())
        return int(problem.tiers[domain[0]]), switches_in_use.isdisjoint(domain), free, domain[0]

    return sorted((domain for domain in domains if ledger.has_room(parts, domain)), key=rank)


def _add_to_groups(
    problem: PlacementProblem, ledger: Ledger, present: Placement, s: int, more: tuple[int, ...]
) -> tuple[list[Row], list[UnplacedUnits]]:
    """Add replicas of some roles to existing units; return rows and what found no room.

    Each replica joins the unit with the fewest replicas of its role that has room.
    """
    service = problem.services[s]
    rows: list[Row] = []
    gaps: list[UnplacedUnits] = []
    narrow = service.affinity == "s1"
    replicas: dict[int, list[int]] = {}  # by unit and role
    domain_of: dict[int, Domain] = {}
    for unit in np.unique(present.unit).tolist():
        unit_rows = present.rows(present.unit == unit)
        replicas[unit] = list(placed_replicas(unit_rows, s, len(service.roles)))
        s1 = int(problem.topology.s1[unit_rows.node[0]])
        in_subgroup = problem.subgroup == problem.subgroup[s1]
        domain_of[unit] = (s1,) if narrow else tuple(np.flatnonzero(in_subgroup).tolist())
    for r, count in enumerate(more):
        shape = tuple(int(i == r) for i in range(len(service.roles)))  # one replica of the role
        for placed_count in range(count):
            new_rows: list[Row] = []
            fewest_first = sorted(replicas, key=lambda unit: (replicas[unit][r], unit))
            for unit, alternative in product(fewest_first, service.alternatives):
                block = unit_blocks(service, shape, alternative)[0]
                block = Block(r, replicas[unit][r], block.instances)
                new_rows = ledger.place_unit(s, unit, [block], domain_of[unit])
                if new_rows:
                    replicas[unit][r] += 1
                    break
            rows += new_rows
            if not new_rows:
                reason = f"none of its groups has room for another {service.roles[r].name} replica"
                gaps.append(UnplacedUnits(s, shape, count - placed_count, reason))
                break
    return rows, gaps


def no_room_reason(
    problem: PlacementProblem, ledger: Ledger, s: int, shape: tuple[int, ...]
) -> str:
    """Return why a unit of service ``s`` with ``shape`` fits nowhere among GPUs of ``ledger``."""
    service = problem.services[s]
    s1s = np.flatnonzero(problem.centre_of_s1 == service.centre).tolist()
    names = problem.topology.gpu_types
    if any(
        ledger.has_room(unit_blocks(service, shape, alternative), s1s)
        for alternative in service.alternatives
    ):
        return (
            "enough GPUs are free, but no one subgroup has room for all replicas of a unit"
            if len(service.roles) > 1
            else "enough GPUs are free, but spread over nodes with too few each"
        )
    needed: dict[int, int] = {}
    for block in unit_blocks(service, shape, service.alternatives[0]):
        for _, gpu, size in block.instances:
            needed[gpu] = needed.get(gpu, 0) + size
    free = ledger.free_s1[s1s].sum(axis=0)
    return "; ".join(
        f"{count:,} {names[gpu]} needed and {free[gpu]:,} free"
        for gpu, count in sorted(needed.items())
    ) + (", nor enough of its fallbacks" if len(service.alternatives) > 1 else "")
