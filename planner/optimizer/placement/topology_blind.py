"""Place instances without regard to topology, as a baseline (seed 003, section 1).

All GPUs are one flat pool. Each instance goes to the node with the most free GPUs, as in
Kubernetes' default scheduler (NodeResourcesFit with LeastAllocated). The seed breaks ties randomly.
"""

import numpy as np

from planner.optimizer.placement.algorithm4 import by_priority, no_room_reason
from planner.optimizer.placement.ledger import Ledger, Row, unit_blocks
from planner.optimizer.placement.problem import Placement, PlacementProblem, UnplacedUnits


def place_blind(problem: PlacementProblem, seed: int = 0) -> Placement:
    """Return a placement of all services from nothing, by priority, which ignores switches.

    It is the baseline for comparison. ``seed`` breaks ties.
    """
    ledger = Ledger(problem)
    tree = problem.topology
    shuffled = np.random.default_rng(seed).permutation(len(tree))
    rows: list[Row] = []
    unplaced: list[UnplacedUnits] = []
    for s in by_priority(problem.services):
        service = problem.services[s]
        pool = shuffled[tree.centre[shuffled] == service.centre]
        of_type = {t: pool[tree.gpu[pool] == t] for t in range(len(tree.gpu_types))}
        unit = 0
        for shape, number in service.shapes:
            for placed_units in range(number):
                unit_rows = _place_unit(problem, ledger, s, unit, shape, of_type)
                if not unit_rows:
                    reason = no_room_reason(problem, ledger, s, shape)
                    unplaced.append(UnplacedUnits(s, shape, number - placed_units, reason))
                    break
                rows += unit_rows
                unit += 1
    return Placement.from_rows(rows, tuple(unplaced))


def _place_unit(
    problem: PlacementProblem,
    ledger: Ledger,
    s: int,
    unit: int,
    shape: tuple[int, ...],
    of_type: dict[int, np.ndarray],
) -> list[Row]:
    """Place a unit of service ``s``; return its rows, or none if an instance finds no room.

    Each instance goes to the freest node of its most preferred GPU type with room. ``of_type`` has
    the nodes of each GPU type.
    """
    service = problem.services[s]
    rows: list[Row] = []
    first = ledger.next_instance
    for block in unit_blocks(service, shape, service.alternatives[0]):
        for part, _, size in block.instances:
            for gpu in service.roles[block.role].parts[part].types:
                node_gpus = _take_on_freest_node(ledger, of_type[gpu], size)
                if node_gpus:
                    break
            else:
                ledger.give_back([(node, gpus) for *_, node, gpus in rows])
                ledger.next_instance = first
                return []
            rows += [
                (s, unit, block.role, block.replica, part, ledger.next_instance, node, gpus)
                for node, gpus in node_gpus
            ]
            ledger.next_instance += 1
    return rows


def _take_on_freest_node(ledger: Ledger, nodes: np.ndarray, size: int) -> list[tuple[int, int]]:
    """Allocate ``size`` GPUs on the node with the most free GPUs; [] if none has room."""
    largest = int(ledger.size[nodes].max(initial=0))
    if size > largest:
        return ledger.take(nodes, size)
    if not len(nodes):
        return []
    best = int(nodes[np.argmax(ledger.free[nodes])])
    return ledger.take(np.array([best]), size) if ledger.free[best] >= size else []
