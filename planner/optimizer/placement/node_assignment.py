"""Turn the program's counts into nodes: a switch for every unit, then nodes, largest first."""

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np

from planner.optimizer.placement.classes import Key, SwitchClasses, Where
from planner.optimizer.placement.free_slots import FreeSlots
from planner.optimizer.placement.ledger import Block, Ledger, unit_blocks
from planner.optimizer.placement.problem import Placement, PlacementProblem, Unplaced


class SwitchAssigner:
    """Assigns units to switches by counting free slots, without choosing nodes.

    ``slots`` are the slots that are still free, and ``counts`` the units placed so far. In its
    methods, ``service``, its unit ``shape``, its ``alternative`` GPU types and ``switch`` are
    indices. ``parts`` are the replicas of the unit.
    """

    def __init__(self, problem: PlacementProblem, free_slots: FreeSlots) -> None:
        self.problem, self.free_slots = problem, free_slots
        self.slots = free_slots.slots.copy()
        self.counts: Where = {}

    def place_near(
        self,
        service: int,
        shape: int,
        alternative: int,
        members: tuple[int, ...],
        parts: list[Block],
    ) -> bool:
        """Place a unit under the fullest of the switches ``members`` with room; return success."""
        switch = self._take_fullest(parts, members)
        if switch is None:
            return False
        self.count(Key("unit", service, shape, alternative, switch))
        return True

    def _take_fullest(self, parts: list[Block], members: tuple[int, ...]) -> int | None:
        """Take the slots of ``parts`` under the fullest of ``members`` with room; return it."""
        need, switches = self.free_slots.of_unit(parts), np.array(members)
        fitting_switches = switches[(self.slots[switches] >= need).all(axis=1)]
        if not len(fitting_switches):
            return None
        fullest = int(fitting_switches[np.argmin(self.slots[fitting_switches].sum(axis=1))])
        self.slots[fullest] -= need
        return fullest

    def place_across(
        self,
        service: int,
        shape: int,
        alternative: int,
        members: tuple[int, ...],
        parts: list[Block],
    ) -> bool:
        """Place a unit's replicas under several switches of one subgroup; return success.

        Each replica goes to the fullest switch with room. On failure nothing is placed.
        """
        before, chosen = self.slots.copy(), []
        for block in parts:
            switch = self._take_fullest([block], members)
            if switch is None:
                self.slots = before
                return False
            chosen.append((block, switch))
        self._count_wide(service, shape, alternative, chosen)
        return True

    def place_chosen(
        self, service: int, shape: int, alternative: int, chosen: list[tuple[Block, int]]
    ) -> None:
        """Place replicas on the switches that the program chose."""
        for block, switch in chosen:
            self.slots[switch] -= self.free_slots.of_unit([block])
        self._count_wide(service, shape, alternative, chosen)

    def _count_wide(
        self, service: int, shape: int, alternative: int, chosen: list[tuple[Block, int]]
    ) -> None:
        """Count a unit under several switches of a subgroup, and each replica's switch."""
        pool = int(self.problem.subgroup[chosen[0][1]])
        self.count(Key("wide", service, shape, alternative, pool))
        for block, switch in chosen:
            self.count(Key("part", service, block.role, alternative, switch, pool))

    def count(self, key: Key, number: int = 1) -> None:
        """Add ``number`` to a count of the answer; ``key`` is that of the program."""
        self.counts[key] = self.counts.get(key, 0) + number


def assign_switches(
    problem: PlacementProblem, kinds: SwitchClasses, free_slots: FreeSlots, counts: Where
) -> Where:
    """Return the program's ``counts`` of units by single switch, given those by class of switches.

    Units that find no switch of their class go wherever their affinity allows. Otherwise they go
    anywhere in a subgroup, or stay unplaced.
    """
    assigner = SwitchAssigner(problem, free_slots)
    pending: list[tuple[int, Key]] = []  # negative GPUs of a unit, and its key
    for key, n in counts.items():
        if key.kind in ("unit", "wide"):
            spec = problem.services[key.service]
            pending += [(-spec.gpus(spec.shapes[key.shape][0]), key)] * n
    chosen = {}
    if kinds.are_single:
        chosen = _switches_of_parts(counts, [members[0] for members in kinds.switches])
    left_over: list[tuple[int, int]] = []
    # The largest units first: they find a switch least easily.
    for _, (kind, service, shape, alternative, where, _) in sorted(pending):
        spec = problem.services[service]
        parts = unit_blocks(spec, spec.shapes[shape][0], spec.alternatives[alternative])
        if kind == "unit":
            placed_unit = assigner.place_near(
                service, shape, alternative, kinds.switches[where], parts
            )
        elif kinds.are_single:
            placed = [
                (block, chosen[service, block.role, alternative, where].pop()) for block in parts
            ]
            assigner.place_chosen(service, shape, alternative, placed)
            placed_unit = True
        else:
            placed_unit = any(
                assigner.place_across(service, shape, alternative, members, parts)
                for members in kinds.pools[where]
            )
        if not placed_unit:
            left_over.append((service, shape))
    for (kind, service, shape, *_), n in counts.items():
        if kind == "none":
            assigner.count(Key("none", service, shape), n)
    for service, shape in left_over:
        if not _place_in_any_subgroup(assigner, service, shape):
            assigner.count(Key("none", service, shape))
    return assigner.counts


def _switches_of_parts(
    counts: dict[Key, int], switch_of_class: Sequence[int] | None = None
) -> dict[tuple[int, int, int, int], list[int]]:
    """Return the chosen switches of the replicas of units under several switches, in rising order.

    The key is service, role, alternative and subgroup (or its class). ``switch_of_class`` is the
    only switch of each class; None: ``counts`` are by switch.
    """
    switches_of: dict[tuple[int, int, int, int], list[int]] = {}
    for (kind, service, role, alternative, where, pool), replicas in counts.items():
        if kind == "part":
            switch = where if switch_of_class is None else switch_of_class[where]
            key = (service, role, alternative, pool)
            switches_of.setdefault(key, []).extend([switch] * replicas)
    return {key: sorted(switches) for key, switches in switches_of.items()}


def _place_in_any_subgroup(assigner: SwitchAssigner, service: int, shape: int) -> bool:
    """Place a unit in any subgroup of its data centre, low priorities first; return success."""
    problem = assigner.problem
    spec = problem.services[service]
    switches = np.flatnonzero(problem.centre_of_s1 == spec.centre)
    by_tier = [
        switches[problem.tiers[switches] == tier] for tier in np.unique(problem.tiers[switches])
    ]
    for alternative, gpus in enumerate(spec.alternatives):
        parts = unit_blocks(spec, spec.shapes[shape][0], gpus)
        if any(
            assigner.place_near(service, shape, alternative, tuple(members.tolist()), parts)
            for members in by_tier
        ):
            return True
        if len(parts) > 1:
            groups = problem.subgroup[switches]
            for group in np.unique(groups):
                if assigner.place_across(
                    service, shape, alternative, tuple(switches[groups == group].tolist()), parts
                ):
                    return True
    return False


def placement_of(problem: PlacementProblem, counts: Where) -> Placement:
    """Return the placement of all instances on nodes, given the ``counts`` of units by switch.

    The largest instances come first. In that order, all instances fit if their slots do
    (``FreeSlots``) and sizes divide one another. Otherwise an instance may not fit. Its unit is
    then unplaced.
    """
    units, instances = _placed_instances(problem, counts)
    ledger = Ledger(problem)
    rows: dict[_Unit, list[tuple[int, ...]]] = {}
    failed: set[_Unit] = set()
    for i, (unit, gpus, block, part, gpu, switch) in enumerate(instances):
        nodes_and_gpus = ledger.take(ledger.nodes(switch, gpu), gpus)
        if not nodes_and_gpus:
            failed.add(unit)
        rows.setdefault(unit, []).extend(
            (unit.service, unit.number, block.role, block.replica, part, i, node, gpus_of_node)
            for node, gpus_of_node in nodes_and_gpus
        )
    lost = [
        (service, shape, count)
        for (kind, service, shape, *_), count in counts.items()
        if kind == "none"
    ]
    lost += [(unit.service, unit.shape, 1) for unit in units if unit in failed]
    reason = "no placement of all services together has room for it"
    unplaced = tuple(
        Unplaced(service, problem.services[service].shapes[shape][0], count, reason)
        for service, shape, count in lost
    )
    placed_rows = chain.from_iterable(
        unit_rows for unit, unit_rows in rows.items() if unit not in failed
    )
    return Placement.from_rows(list(placed_rows), unplaced)


class _Unit(NamedTuple):
    """A unit that is placed; ``number`` counts the units of its service."""

    service: int
    number: int
    shape: int


class _Instance(NamedTuple):
    """An instance of a unit that is placed under a switch."""

    unit: _Unit
    gpus: int
    block: Block  # its replica
    part: int
    gpu: int  # type
    switch: int


def _placed_instances(
    problem: PlacementProblem, counts: Where
) -> tuple[list[_Unit], list[_Instance]]:
    """Return the units that ``counts`` places, and their instances, the largest first."""
    switches_of_parts = _switches_of_parts(counts)
    number = [0] * len(problem.services)
    units: list[_Unit] = []
    instances: list[_Instance] = []
    for (kind, service, shape, alternative, where, _), count in sorted(counts.items()):
        if kind not in ("unit", "wide"):
            continue
        spec = problem.services[service]
        blocks = unit_blocks(spec, spec.shapes[shape][0], spec.alternatives[alternative])
        for _ in range(count):
            unit = _Unit(service, number[service], shape)
            units.append(unit)
            number[service] += 1
            for block in blocks:
                switch = where
                if kind == "wide":
                    switch = switches_of_parts[service, block.role, alternative, where].pop()
                for part, gpu, gpus in block.instances:
                    instances.append(_Instance(unit, gpus, block, part, gpu, switch))
    place = {unit: i for i, unit in enumerate(units)}
    instances.sort(
        key=lambda instance: (
            -instance.gpus, place[instance.unit], instance.block.role, instance.block.replica,
        )
    )  # fmt: skip
    return units, instances
