"""Count how many instances still fit under a switch, without packing nodes.

A slot of a size is that many free GPUs of one type on one node. The nodes under an S1 switch have
sum(floor(free / size)) slots of a size. An instance takes floor(its GPUs / size) slots of each size
up to its own. No packing can use more slots than there are.

If sizes divide one another (1, 2, 4, 8, 16) and the nodes' sizes, instances within every count can
always be packed, the largest first. Nodes then fail a size only when its slots are used up.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from planner.optimizer.placement.ledger import Block
from planner.optimizer.placement.problem import PlacementProblem
from simulation.arrays import IntArray


@dataclass(frozen=True, slots=True, eq=False)
class FreeSlots:
    """The free slots under each S1 switch, by entry: a pair of GPU type and slot size.

    A slot is as many free GPUs of the type on one node as its size.
    """

    entries: tuple[tuple[int, int], ...]  # (GPU type, GPUs of a slot)
    slots: IntArray  # [S1 switch, entry]
    node_gpus: IntArray  # [GPU type] GPUs of the largest node

    @classmethod
    def from_problem(cls, problem: PlacementProblem) -> FreeSlots:
        """Return the free slots of each instance size that the services use.

        The topology's arrays are by node: its S1 switch, GPU type and GPUs.
        """
        tree = problem.topology
        node_gpus = np.zeros(len(tree.gpu_types), np.int64)  # [GPU type] GPUs of the largest node
        np.maximum.at(node_gpus, tree.gpu, tree.gpus)
        entries = _instance_sizes(problem)
        free = tree.gpus - problem.taken
        slots = np.zeros((len(problem.tiers), len(entries)), np.int64)
        for (gpu, slot_gpus), entry_slots in zip(entries, slots.T, strict=True):
            # ``entry_slots [S1 switch]`` is a column of ``slots``, and is changed in place.
            nodes, largest_node = np.flatnonzero(tree.gpu == gpu), int(node_gpus[gpu])
            if slot_gpus <= largest_node:
                np.add.at(entry_slots, tree.s1[nodes], free[nodes] // slot_gpus)
            else:
                # A larger instance takes whole free nodes. Count these, then divide.
                is_free = (free[nodes] == largest_node) & (tree.gpus[nodes] == largest_node)
                np.add.at(entry_slots, tree.s1[nodes[is_free]], 1)
                entry_slots //= _nodes_of_instance(slot_gpus, largest_node)
        return cls(entries, slots, node_gpus)

    def used_by(self, blocks: Sequence[Block]) -> IntArray:
        """Return the slots of each entry that the instances of all ``blocks`` use, ``[entry]``.

        An entry is a GPU type and a slot size. ``blocks`` are replicas. A larger slot than a node
        is a number of whole nodes.
        """
        used_slots = np.zeros(len(self.entries), np.int64)
        instances = [instance for block in blocks for instance in block.instances]
        for entry, (slot_gpu, slot_gpus) in enumerate(self.entries):
            node_gpus = max(1, int(self.node_gpus[slot_gpu]))
            for instance_gpus in [gpus for _, gpu, gpus in instances if gpu == slot_gpu]:
                if slot_gpus > node_gpus:
                    slot_nodes = _nodes_of_instance(slot_gpus, node_gpus)
                    used_slots[entry] += _nodes_of_instance(instance_gpus, node_gpus) // slot_nodes
                else:
                    full_nodes, rest_gpus = divmod(instance_gpus, node_gpus)
                    slots_per_node = node_gpus // slot_gpus
                    used_slots[entry] += full_nodes * slots_per_node + rest_gpus // slot_gpus
        return used_slots


def _instance_sizes(problem: PlacementProblem) -> tuple[tuple[int, int], ...]:
    """Return the (GPU type, GPUs) of the instances of all services, in rising order.

    Unless each size of a type divides the next larger one, slots of one GPU are added: they bound
    the total.
    """
    sizes: dict[int, set[int]] = defaultdict(set)  # GPUs of an instance, by GPU type
    for service in problem.services:
        for role in service.roles:
            for part in role.parts:
                for gpu in part.types:
                    sizes[gpu].add(part.gpus)
    for type_sizes in sizes.values():
        if any(larger % size for size, larger in pairwise(sorted(type_sizes))):
            type_sizes.add(1)
    return tuple((gpu, size) for gpu in sorted(sizes) for size in sorted(sizes[gpu]))


def _nodes_of_instance(size: int, node_gpus: int) -> int:
    """Return the nodes of ``node_gpus`` GPUs that an instance of ``size`` GPUs takes."""
    return -(-size // max(1, node_gpus))
