"""Find the best placement with a proven gap, by an integer program over all S1 switches.

The program counts units by S1 switch. The instances are then put on nodes, the largest first.
``placement.problem`` explains unit, shape and alternative.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import NamedTuple

from planner.optimizer.placement.algorithm4 import run_algorithm4
from planner.optimizer.placement.free_slots import FreeSlots
from planner.optimizer.placement.ledger import Block, Ledger, unit_blocks
from planner.optimizer.placement.measures import Measures, measure_placement
from planner.optimizer.placement.problem import Placement, PlacementProblem, Service, UnplacedUnits
from planner.optimizer.placement.program import Key, build_program
from planner.optimizer.placement.topology_blind import place_blind
from planner.optimizer.solvers import solve_program
from planner.optimizer.solvers.highs import throttled
from simulation.topology import KV_SHARE

LEAST_S = 0.1  # time for the solver if building the program used all of it


@dataclass(frozen=True, slots=True, eq=False)
class ExactPlacement:
    """A placement with a proven lower bound on the penalty points of any placement.

    ``gap`` = (penalty - bound) / penalty.
    """

    placement: Placement
    measures: Measures
    bound: float
    gap: float
    seconds: float


def place_exact(
    problem: PlacementProblem,
    *,
    shares: Sequence[float] = KV_SHARE,
    gap: float = 1e-4,
    time_limit_s: float = 10.0,
    check: Callable[[], None] = lambda: None,
) -> ExactPlacement:
    """Return the placement with the fewest penalty points, on empty GPUs, with a proven gap.

    The result is never worse than Algorithm 4 or the topology-blind baseline. ``shares`` gives the
    share of KV bandwidth at each level of switches. ``check`` is called about twice a second; an
    exception from it ends the search.
    """
    began = perf_counter()

    def points(placement: Placement) -> float:
        """Return the penalty points of a placement."""
        return measure_placement(problem, placement, shares).points

    best = min(run_algorithm4(problem), place_blind(problem), key=points)
    program = build_program(problem, FreeSlots.from_problem(problem), shares)
    left_s = max(LEAST_S, began + time_limit_s - perf_counter())
    solved = solve_program(
        program.linear_program(), gap=gap, time_limit_s=left_s, check=throttled(check)
    )
    if solved.values is not None:
        best = min(best, placement_of(problem, program.counts(solved.values)), key=points)
    best = replace(best, unplaced=_merge_unplaced(best.unplaced))
    measures = measure_placement(problem, best, shares)
    penalty, bound = measures.points, max(0.0, solved.bound + program.fixed)
    final_gap = max(0.0, penalty - bound) / penalty if penalty > 0 else 0.0
    seconds = perf_counter() - began
    return ExactPlacement(best, measures, min(bound, penalty), final_gap, seconds)


def _merge_unplaced(unplaced: tuple[UnplacedUnits, ...]) -> tuple[UnplacedUnits, ...]:
    """Return ``unplaced`` with one entry per service and unit shape, counts added."""
    by_shape: dict[tuple[int, tuple[int, ...]], UnplacedUnits] = {}
    for units in unplaced:
        key = (units.service, units.shape)
        number = units.number + (by_shape[key].number if key in by_shape else 0)
        by_shape[key] = replace(units, number=number)
    return tuple(by_shape.values())


def placement_of(problem: PlacementProblem, counts: dict[Key, int]) -> Placement:
    """Return the placement of all instances on nodes, given the ``counts`` of units by switch.

    Counts of the kind "none" are of units that the program did not place. The largest instances
    come first. In that order, all instances fit if the program's slots suffice (``FreeSlots``) and
    sizes divide one another. Otherwise an instance may not fit. Its unit is then unplaced.
    """
    units, instances = _placed_instances(problem, counts)
    ledger = Ledger(problem)
    rows_of_unit: dict[_Unit, list[tuple[int, ...]]] = defaultdict(list)
    failed: set[_Unit] = set()
    for instance_number, (unit, gpus, block, part, gpu, switch) in enumerate(instances):
        gpus_by_node = ledger.take(ledger.nodes(switch, gpu), gpus)
        if not gpus_by_node:
            failed.add(unit)
        # A row has the fields of a placement: these, a node, and the GPUs on it.
        instance = unit.service, unit.number, block.role, block.replica, part, instance_number
        rows_of_unit[unit] += [(*instance, node, node_gpus) for node, node_gpus in gpus_by_node]
    placed = [row for unit, rows in rows_of_unit.items() if unit not in failed for row in rows]
    # (service, index of its shape, number of units)
    unplaced = [(key.service, key.shape, n) for key, n in counts.items() if key.kind == "none"]
    unplaced += [(unit.service, unit.shape, 1) for unit in units if unit in failed]
    reason = "no placement of all services together has room for it"
    units_without_place = tuple(
        UnplacedUnits(service, problem.services[service].shapes[shape][0], count, reason)
        for service, shape, count in unplaced
    )
    return Placement.from_rows(placed, units_without_place)


class _Unit(NamedTuple):
    """A unit that the program places."""

    service: int
    number: int  # among the units of its service
    shape: int  # index in ``Service.shapes``


class _Instance(NamedTuple):
    """An instance of a unit that the program places under a switch."""

    unit: _Unit
    gpus: int
    block: Block  # the replica that it belongs to
    part: int
    gpu: int  # GPU type
    switch: int  # S1 switch


def _placed_instances(
    problem: PlacementProblem, counts: dict[Key, int]
) -> tuple[list[_Unit], list[_Instance]]:
    """Return the units that ``counts`` places, and their instances, the largest first.

    Counts of the kind "unit" are of units under one S1 switch, ``key.place``. Those of the kind
    "wide" are of units in one subgroup, ``key.place``, with replicas under several switches.
    """
    switches_of_parts = _switches_of_parts(counts)
    units_of_service = Counter[int]()
    units: list[_Unit] = []
    instances: list[_Instance] = []
    for key, count in sorted(counts.items()):
        if key.kind not in ("unit", "wide"):
            continue
        blocks = _blocks(problem.services[key.service], key)
        for _ in range(count):
            unit = _Unit(key.service, units_of_service[key.service], key.shape)
            units.append(unit)
            units_of_service[key.service] += 1
            for block in blocks:
                switch = key.place
                if key.kind == "wide":
                    replica_key = key.service, block.role, key.alternative, key.place
                    switch = switches_of_parts[replica_key].pop()
                for part_index, gpu, gpus in block.instances:
                    instances.append(_Instance(unit, gpus, block, part_index, gpu, switch))
    instances.sort(key=lambda instance: -instance.gpus)  # equal ones by unit, role and replica
    return units, instances


def _blocks(service: Service, key: Key) -> list[Block]:
    """Return the replicas of the units that ``key`` counts, by role and number."""
    replicas, _ = service.shapes[key.shape]
    blocks = unit_blocks(service, replicas, service.alternatives[key.alternative])
    return sorted(blocks, key=lambda block: (block.role, block.replica))


def _switches_of_parts(counts: dict[Key, int]) -> dict[tuple[int, int, int, int], list[int]]:
    """Return the S1 switches of the replicas of units that lie under several switches.

    The key is service, role, alternative (set of GPU types) and subgroup. Each switch occurs once
    per replica, in rising order.
    """
    switches_by_part: dict[tuple[int, int, int, int], list[int]] = {}
    for (kind, service, role, alternative, switch, subgroup), replicas in counts.items():
        if kind == "part":
            key = (service, role, alternative, subgroup)
            switches_by_part.setdefault(key, []).extend([switch] * replicas)
    return {key: sorted(switches) for key, switches in switches_by_part.items()}
