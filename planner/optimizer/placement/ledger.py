"""Track free GPUs in the network while units are placed ("virtual allocation").

A unit is the smallest number of replicas with the ratio of a service's roles.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from planner.optimizer.placement.problem import Placement, PlacementProblem, Service
from simulation.arrays import IntArray

Row = tuple[int, ...]  # an instance on a node: values of Placement.COLUMNS
GPUS = 2  # index in the tuples of ``Block.instances``


@dataclass(frozen=True, slots=True)
class Block:
    """The instances of one replica of a role, all under one S1 switch."""

    role: int
    replica: int
    instances: tuple[tuple[int, int, int], ...]  # (part, GPU type, GPUs), the largest first

    @property
    def gpus(self) -> int:
        """Return the GPUs of all instances."""
        return sum(size for _, _, size in self.instances)


def unit_blocks(
    service: Service, shape: Sequence[int], alternative: Sequence[Sequence[int]]
) -> list[Block]:
    """Return the replicas of a unit, the largest first.

    ``shape`` is the number of replicas by role. ``alternative[role][part]`` is the GPU type to use.
    """
    blocks = []
    for role_index, (count, role, types) in enumerate(
        zip(shape, service.roles, alternative, strict=True)
    ):
        instances = [
            (part_index, gpu, part.gpus)
            for part_index, (part, gpu) in enumerate(zip(role.parts, types, strict=True))
            for _ in range(part.count)
        ]
        largest_first = tuple(sorted(instances, key=lambda instance: -instance[GPUS]))
        blocks += [Block(role_index, replica, largest_first) for replica in range(count)]
    return sorted(blocks, key=lambda block: -block.gpus)


# An instance on a node: replica, part, number of the instance in the replica, node, GPUs
PlacedRow = tuple[Block, int, int, int, int]


class Ledger:
    """Tracks free GPUs by node, and by S1 switch and GPU type, while units are placed.

    Allocation deducts at once ("virtual allocation", seed 003, section 3.5). A unit that does not
    fit completely is rolled back.
    """

    def __init__(self, problem: PlacementProblem, placed: Placement | None = None) -> None:
        tree = problem.topology
        self.size = tree.gpus
        self.free = tree.gpus - problem.taken
        self.next_instance = 0
        if placed is not None:
            self.free = self.free - placed.used_gpus(len(tree))
            self.next_instance = int(placed.instance.max(initial=-1)) + 1
        self.s1, self.gpu = tree.s1, tree.gpu
        s1s = int(tree.s1.max(initial=-1)) + 1
        self.free_s1 = np.zeros((s1s, len(tree.gpu_types)), np.int64)
        np.add.at(self.free_s1, (tree.s1, tree.gpu), self.free)
        # Nodes sorted by group (switch and GPU type), and where each group starts in that order.
        self._nodes = np.lexsort((tree.gpu, tree.s1))
        group = tree.s1[self._nodes] * len(tree.gpu_types) + tree.gpu[self._nodes]
        self._starts = np.searchsorted(group, np.arange(s1s * len(tree.gpu_types) + 1))

    def nodes(self, s1: int, gpu: int) -> IntArray:
        """Return the nodes with GPUs of type ``gpu`` under the switch ``s1``."""
        group = s1 * self.free_s1.shape[1] + gpu
        return self._nodes[self._starts[group] : self._starts[group + 1]]

    def take(self, nodes: IntArray, size: int) -> list[tuple[int, int]]:
        """Allocate an instance of ``size`` GPUs; return (node, GPUs) pairs, [] if it does not fit.

        It goes to the fullest of ``nodes`` with room. An instance larger than a node takes whole
        free nodes.
        """
        free_gpus, largest_node = self.free[nodes], int(self.size[nodes].max(initial=0))
        if size <= largest_node:
            # The fullest node with room has the fewest free GPUs. Nodes without room come last.
            rank = np.where(free_gpus >= size, free_gpus, largest_node + 1)
            fullest = int(np.argmin(rank))
            has_room = rank[fullest] <= largest_node
            return self._deduct([(int(nodes[fullest]), size)]) if has_room else []
        is_free = (free_gpus == self.size[nodes]) & (free_gpus == largest_node)
        node_count = math.ceil(size / largest_node) if largest_node else 1
        taken = nodes[is_free][:node_count].tolist()
        if len(taken) < node_count:
            return []
        gpus = [largest_node] * (node_count - 1) + [size - largest_node * (node_count - 1)]
        return self._deduct(list(zip(taken, gpus, strict=True)))

    def give_back(self, allocated: Sequence[tuple[int, int]]) -> None:
        """Free ``allocated``, the pairs (node, GPUs) that ``take`` returned."""
        self._deduct([(node, -gpus) for node, gpus in allocated])

    def _deduct(self, amounts: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Subtract ``amounts``, pairs (node, GPUs), from the free GPUs, and return ``amounts``."""
        for node, gpus in amounts:
            self.free[node] -= gpus
            self.free_s1[self.s1[node], self.gpu[node]] -= gpus
        return amounts

    def place_block(self, block: Block, s1: int) -> list[PlacedRow]:
        """Place the replica ``block`` under the S1 switch number ``s1``.

        Return a row for each instance and node that it uses; [] if the replica does not fit.
        """
        rows: list[PlacedRow] = []
        for number, (part, gpu, size) in enumerate(block.instances):
            nodes_and_gpus = self.take(self.nodes(s1, gpu), size)
            if not nodes_and_gpus:
                self.give_back([(node, gpus) for *_, node, gpus in rows])
                return []
            rows += [(block, part, number, node, gpus) for node, gpus in nodes_and_gpus]
        return rows

    def place_unit(
        self, service: int, unit: int, blocks: Sequence[Block], s1s: Sequence[int]
    ) -> list[Row]:
        """Place a unit of replicas ``blocks`` under the S1 switches ``s1s``.

        Return its rows, [] if it does not fit. Replicas are placed in turn ("AssignOnePod"): under
        switches that the unit already uses, else under the fullest switch with room.
        """
        if not self.has_room(blocks, s1s):
            return []
        placed: list[PlacedRow] = []
        used_switches: list[int] = []
        for block in blocks:
            for s1 in self._switches_to_try(block, s1s, used_switches):
                rows = self.place_block(block, s1)
                if rows:
                    placed += rows
                    if s1 not in used_switches:
                        used_switches.append(s1)
                    break
            else:
                self.give_back([(node, gpus) for *_, node, gpus in placed])
                return []
        return list(self._rows(service, unit, placed))

    def has_room(self, blocks: Sequence[Block], switches: Sequence[int]) -> bool:
        """Return True if S1 ``switches`` have enough free GPUs of each type for ``blocks``.

        Nodes are not considered, so placing the blocks may still fail.
        """
        needed_gpus = np.zeros(self.free_s1.shape[1], np.int64)
        for block in blocks:
            for _, gpu, gpus in block.instances:
                needed_gpus[gpu] += gpus
        return bool((self.free_s1[list(switches)].sum(axis=0) >= needed_gpus).all())

    def _switches_to_try(self, block: Block, s1s: Sequence[int], used: list[int]) -> list[int]:
        """Return the switches of ``s1s`` to try for a replica.

        First come those that the unit already uses, then the others with room, the fullest first.
        """
        unused = [s1 for s1 in s1s if s1 not in used]
        if len(unused) > 1:
            types = sorted({gpu for _, gpu, _ in block.instances})
            free = self.free_s1[np.ix_(unused, types)].sum(axis=1)
            unused = [unused[i] for i in np.argsort(free, kind="stable") if free[i] >= block.gpus]
        return used + unused

    def _rows(self, service: int, unit: int, placed: list[PlacedRow]) -> Iterator[Row]:
        """Yield the rows of a placed unit (``Placement.COLUMNS``), and number its instances."""
        ids: dict[tuple[int, int, int], int] = {}
        for block, part, number, node, gpus in placed:
            key = (block.role, block.replica, number)
            if key not in ids:
                ids[key] = self.next_instance
                self.next_instance += 1
            yield service, unit, block.role, block.replica, part, ids[key], node, gpus
