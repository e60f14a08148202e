"""Place instances without regard to topology, as a baseline (seed 003, section 1).

All GPUs are one flat pool. Each instance goes to the node with the most free GPUs, as in
Kubernetes' default scheduler (NodeResourcesFit with LeastAllocated). The seed breaks ties randomly.
"""

import numpy as np

from planner.optimizer.placement.algorithm4 import by_priority, no_room_reason
from planner.optimizer.placement.ledger import Ledger, Row, unit_blocks
from planner.optimizer.placement.problem import Placement, PlacementProblem, Service, UnplacedUnits


def place_blind(problem: PlacementProblem, seed: int = 0) -> Placement:
    """Return a placement of all services on empty GPUs that ignores switches: the baseline.

    Services of high priority come first. ``seed`` breaks ties between nodes.
    """
    ledger = Ledger(problem)
    tree = problem.topology
    shuffled = np.random.default_rng(seed).permutation(len(tree))
    rows: list[Row] = []
    unplaced: list[UnplacedUnits] = []
    for service_id in by_priority(problem.services):
        service = problem.services[service_id]
        centre_nodes = shuffled[tree.centre[shuffled] == service.centre]
        nodes_by_type = {
            gpu: centre_nodes[tree.gpu[centre_nodes] == gpu] for gpu in range(len(tree.gpu_types))
        }
        unit = 0
        for shape, number in service.shapes:
            for placed_units in range(number):
                unit_rows = _place_unit(service, service_id, unit, shape, ledger, nodes_by_type)
                if not unit_rows:
                    reason = no_room_reason(problem, ledger, service_id, shape)
                    unplaced.append(UnplacedUnits(service_id, shape, number - placed_units, reason))
                    break
                rows += unit_rows
                unit += 1
    return Placement.from_rows(rows, tuple(unplaced))


def _place_unit(
    service: Service,
    service_id: int,
    unit: int,
    shape: tuple[int, ...],
    ledger: Ledger,
    nodes_of: dict[int, np.ndarray],
) -> list[Row]:
    """Place unit number ``unit`` of a service; return its rows, [] if an instance does not fit.

    ``service_id`` is that of the service. ``shape`` is the unit's replicas by role. Each
    instance goes to the freest node of its most preferred GPU type with room. ``nodes_of`` has the
    nodes of each GPU type.
    """
    rows: list[Row] = []
    first_instance = ledger.next_instance
    for block in unit_blocks(service, shape, service.alternatives[0]):
        for part, _, size in block.instances:
            for gpu in service.roles[block.role].parts[part].types:
                gpus_by_node = _take_on_freest_node(ledger, nodes_of[gpu], size)
                if gpus_by_node:
                    break
            else:  # no GPU type has room
                ledger.give_back([(node, gpus) for *_, node, gpus in rows])
                ledger.next_instance = first_instance
                return []
            instance = service_id, unit, block.role, block.replica, part, ledger.next_instance
            rows += [(*instance, node, gpus) for node, gpus in gpus_by_node]
            ledger.next_instance += 1
    return rows


def _take_on_freest_node(ledger: Ledger, nodes: np.ndarray, gpus: int) -> list[tuple[int, int]]:
    """Allocate ``gpus`` GPUs on the node with the most free GPUs; return (node, GPUs) pairs.

    The result is [] if no node has room. Instances larger than a node take whole free nodes.
    """
    largest_node = int(ledger.size[nodes].max(initial=0))
    if gpus > largest_node:
        return ledger.take(nodes, gpus)
    if not len(nodes):
        return []
    freest = int(nodes[np.argmax(ledger.free[nodes])])
    return ledger.take(np.array([freest]), gpus) if ledger.free[freest] >= gpus else []
