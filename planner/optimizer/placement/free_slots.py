"""Count how many instances still fit under a switch, without packing nodes.

An entry (GPU type, size) counts the slots of that size on the nodes under an S1 switch:
sum(floor(free / size)). An instance takes floor(its GPUs / size) slots of each size up to its own.
No packing can use more slots than there are.

If sizes divide one another (1, 2, 4, 8, 16) and the nodes' sizes, instances within every count can
always be packed, the largest first. Nodes then fail a size only when its slots are used up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, pairwise

import numpy as np

from planner.optimizer.placement.ledger import Block
from planner.optimizer.placement.problem import PlacementProblem
from simulation.arrays import IntArray


@dataclass(frozen=True, slots=True, eq=False)
class FreeSlots:
    """Places for instances under each S1 switch, by GPU type and size of an instance.

    A pair of GPU type and size is an entry, and a slot is a place of that size.
    """

    entries: tuple[tuple[int, int], ...]  # GPU type, size
    slots: IntArray  # [s1, e]
    node_gpus: IntArray  # [t] GPUs of the largest node of a type

    @classmethod
    def from_problem(cls, problem: PlacementProblem) -> FreeSlots:
        """Return the free slots of each size that the services use, by S1 switch."""
        tree = problem.topology
        node_gpus = np.zeros(len(tree.gpu_types), np.int64)
        np.maximum.at(node_gpus, tree.gpu, tree.gpus)
        sizes: dict[int, set[int]] = {}  # GPUs of an instance, by GPU type
        roles = chain.from_iterable(service.roles for service in problem.services)
        for part in chain.from_iterable(role.parts for role in roles):
            for gpu in part.types:
                sizes.setdefault(gpu, set()).add(part.gpus)
        entries = tuple(
            (gpu, size) for gpu in sorted(sizes) for size in sorted(_with_total(sizes[gpu]))
        )
        free = tree.gpus - problem.taken
        slots = np.zeros((len(problem.tiers), len(entries)), np.int64)
        for index, (gpu, size) in enumerate(entries):
            nodes = np.flatnonzero(tree.gpu == gpu)
            if size <= node_gpus[gpu]:
                np.add.at(slots[:, index], tree.s1[nodes], free[nodes] // size)
            else:
                # A larger instance takes whole free nodes.
                is_empty = (free[nodes] == node_gpus[gpu]) & (tree.gpus[nodes] == node_gpus[gpu])
                np.add.at(slots[:, index], tree.s1[nodes[is_empty]], 1)
                slots[:, index] //= _nodes_of_instance(size, int(node_gpus[gpu]))
        return cls(entries, slots, node_gpus)

    def of_unit(self, parts: Sequence[Block]) -> IntArray:
        """Return the slots of each entry that the instances of all ``parts`` use, ``[e]``."""
        total = np.zeros(len(self.entries), np.int64)
        for gpu, size in ((gpu, size) for block in parts for _, gpu, size in block.instances):
            node = max(1, int(self.node_gpus[gpu]))
            for index, (slot_gpu, slot) in enumerate(self.entries):
                if slot_gpu != gpu:
                    continue
                if slot > node:
                    total[index] += _nodes_of_instance(size, node) // _nodes_of_instance(slot, node)
                else:
                    full, rest = divmod(size, node)
                    total[index] += full * (node // slot) + rest // slot
        return total


def _nodes_of_instance(size: int, node_gpus: int) -> int:
    """Return the nodes of ``node_gpus`` GPUs that an instance of ``size`` GPUs takes."""
    return -(-size // max(1, node_gpus))


def _with_total(sizes: set[int]) -> set[int]:
    """Return ``sizes``, plus 1 if a size does not divide another.

    In that case slots of one GPU are needed to bound the total.
    """
    each_divides_next = all(next_ % size == 0 for size, next_ in pairwise(sorted(sizes)))
    return sizes if each_divides_next else sizes | {1}
