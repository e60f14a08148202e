"""Count how many instances still fit under a switch, without packing nodes.

An entry (GPU type, size) counts the slots of that size on the nodes under an S1 switch:
sum(floor(free / size)). An instance takes floor(its GPUs / size) slots of each size up to its own.
No packing can use more slots than there are.

If sizes divide one another (1, 2, 4, 8, 16) and the nodes' sizes, instances within every count can
always be packed, the largest first. Nodes then fail a size only when its slots are used up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from planner.optimizer.placement.ledger import Block
from planner.optimizer.placement.problem import PlacementProblem
from simulation.arrays import IntArray


@dataclass(frozen=True, slots=True, eq=False)
class FreeSlots:
    """Slots by S1 switch and entry (GPU type and size), and the slots that instances use."""

    entries: tuple[tuple[int, int], ...]  # GPU type, size
    slots: IntArray  # [s1, e]
    node: IntArray  # [t] GPUs of the largest node of a type

    @classmethod
    def of(cls, problem: PlacementProblem) -> FreeSlots:
        """Count the slots of every GPU type and size that the services use."""
        tree = problem.topology
        node = np.zeros(len(tree.gpu_types), np.int64)
        np.maximum.at(node, tree.gpu, tree.gpus)
        sizes: dict[int, set[int]] = {}
        for service in problem.services:
            for part in (part for role in service.roles for part in role.parts):
                for gpu in part.types:
                    sizes.setdefault(gpu, set()).add(part.gpus)
        entries = tuple(
            (gpu, size) for gpu in sorted(sizes) for size in sorted(_with_total(sizes[gpu]))
        )
        free = tree.gpus - problem.taken
        slots = np.zeros((len(problem.tiers), len(entries)), np.int64)
        for e, (gpu, size) in enumerate(entries):
            nodes = np.flatnonzero(tree.gpu == gpu)
            if size <= node[gpu]:
                np.add.at(slots[:, e], tree.s1[nodes], free[nodes] // size)
            else:
                free_nodes = nodes[(free[nodes] == node[gpu]) & (tree.gpus[nodes] == node[gpu])]
                np.add.at(slots[:, e], tree.s1[free_nodes], 1)
                slots[:, e] //= -(-size // max(1, int(node[gpu])))
        return cls(entries, slots, node)

    def of_block(self, block: Block) -> IntArray:
        return self.taken(((gpu, size) for _, gpu, size in block.instances))

    def of_unit(self, parts: Sequence[Block]) -> IntArray:
        return self.taken((gpu, size) for block in parts for _, gpu, size in block.instances)

    def taken(self, instances: Iterable[tuple[int, int]]) -> IntArray:
        """Return the slots of each entry that instances (GPU type, GPUs) use, shape ``[e]``."""
        total = np.zeros(len(self.entries), np.int64)
        for gpu, size in instances:
            node = max(1, int(self.node[gpu]))
            for e, (other, slot) in enumerate(self.entries):
                if other != gpu:
                    continue
                if slot > node:
                    total[e] += -(-size // node) // -(-slot // node)
                else:
                    full, rest = divmod(size, node)
                    total[e] += full * (node // slot) + rest // slot
        return total


def _with_total(sizes: set[int]) -> set[int]:
    """Add size 1 if sizes do not divide one another: then only the total is a bound."""
    ordered = sorted(sizes)
    chain = all(b % a == 0 for a, b in pairwise(ordered))
    return sizes if chain else sizes | {1}
