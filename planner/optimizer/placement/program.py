"""Formulate exact placement as an integer program.

    minimise   penalty points (Points) of all units, of unplaced units and of fragments
    demand     units under one S1 switch + across switches of one subgroup + unplaced = wanted
    slots      used slots of each size under each S1 switch <= free slots (``free_slots``)
    parts      replicas under the switches of a subgroup = those of units that lie across it
    nodes      GPUs of the nodes in use under a switch >= GPUs in use there

There is no variable for a unit across subgroups, because a unit is never split (methods.md D5).
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import scipy

from planner.optimizer.placement.free_slots import FreeSlots
from planner.optimizer.placement.ledger import Block, unit_blocks
from planner.optimizer.placement.measures import POINTS
from planner.optimizer.placement.problem import PlacementProblem, Service
from planner.optimizer.solvers.arrays import INF, LinearProgram
from simulation.arrays import FloatArray, IntArray
from simulation.topology import S1, S2


class Key(NamedTuple):
    """What a variable of the program counts; ``build_program`` describes the kinds."""

    kind: str  # "unit", "wide", "part" or "none"; "open": nodes in use
    service: int
    shape: int  # index in ``Service.shapes``; of a "part": the role
    alternative: int = 0  # index in ``Service.alternatives``; of "open": a GPU type
    place: int = 0  # S1 switch; of a "wide": subgroup
    subgroup: int = 0  # only of a "part"


@dataclass(slots=True)
class Program:
    """An integer program under construction: variables and rows in order of addition.

    The entries of variable i are ``start[i]`` up to ``start[i + 1]`` of ``index`` and ``value``.
    """

    keys: list[Key] = field(default_factory=list)
    cost: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    start: list[int] = field(default_factory=lambda: [0])
    index: list[int] = field(default_factory=list)  # row of each entry
    value: list[float] = field(default_factory=list)  # coefficient of each entry
    low: list[float] = field(default_factory=list)  # lower bound of each row
    high: list[float] = field(default_factory=list)  # upper bound of each row
    fixed: float = 0.0  # constant of the objective

    def row(self, low: float, high: float) -> int:
        """Add a row, a constraint with bounds ``low`` and ``high``; return its index."""
        self.low.append(low)
        self.high.append(high)
        return len(self.low) - 1

    def column(
        self, key: Key, cost: float, upper: float, entries: Sequence[tuple[int, float]]
    ) -> None:
        """Add a whole variable from 0 to ``upper``; ``entries`` are (row, coefficient)."""
        self.keys.append(key)
        self.cost.append(cost)
        self.upper.append(upper)
        self.index += [row for row, value in entries if value]
        self.value += [value for _, value in entries if value]
        self.start.append(len(self.index))

    def linear_program(self) -> LinearProgram:
        """Return the program as arrays, with its entries sorted by row."""
        count, shape = len(self.keys), (len(self.low), len(self.keys))
        rows = scipy.sparse.csc_array((self.value, self.index, self.start), shape=shape).tocsr()
        return LinearProgram(
            cost=np.array(self.cost),
            lower=np.zeros(count),
            upper=np.array(self.upper),
            whole=np.ones(count, np.bool_),
            begins=rows.indptr,
            columns=rows.indices,
            values=rows.data,
            row_lower=np.array(self.low),
            row_upper=np.array(self.high),
        )

    def counts(self, values: FloatArray) -> dict[Key, int]:
        """Return the counts of units and replicas that are not 0 in the solution ``values``."""
        counts = zip(self.keys, np.rint(values).astype(np.int64).tolist(), strict=True)
        return {key: n for key, n in counts if n and key.kind != "open"}


def build_program(problem: PlacementProblem, free: FreeSlots, shares: Sequence[float]) -> Program:
    """Build the program that chooses how many units to place under each S1 switch.

    The variables of a service are, by shape (replicas by role) and alternative (GPU types):

    - "unit": units under one S1 switch
    - "wide": units over several switches of a subgroup
    - "part": replicas of wide units under a switch
    - "none": units without a place

    ``free`` has the slots of each switch. ``shares`` gives the share of bandwidth at each level of
    switches.
    """
    program = Program()
    switches = sorted(np.unique(problem.topology.s1).tolist(), key=lambda s1: problem.subgroup[s1])
    # A row for each switch and size of slot: no more are used than there are.
    slot_rows = {s1: [program.row(-INF, float(n)) for n in free.slots[s1]] for s1 in switches}
    node_rows = _node_rows(program, problem, switches)
    for number, service in enumerate(problem.services):
        if service.shapes:
            demand_rows = []
            for shape, (replicas, units) in enumerate(service.shapes):
                row = program.row(units, units)
                demand_rows.append(row)
                points = POINTS.unplaced * (1 + service.priority) * service.gpus(replicas)
                program.column(Key("none", number, shape), points, units, [(row, 1.0)])
            columns = _ServiceColumns(
                program=program,
                problem=problem,
                free=free,
                number=number,
                switches=[s1 for s1 in switches if problem.centre_of_s1[s1] == service.centre],
                demand_rows=demand_rows,
                slot_rows=slot_rows,
                node_rows=node_rows,
                bandwidth=(max(shares[: S1 + 1]), shares[S2]),  # under one switch, across switches
            )
            columns.add_placed_units()
    return program


@dataclass(frozen=True, slots=True, eq=False)
class _ServiceColumns:
    """Adds the variables of one service to ``program``.

    Arguments: ``alternative`` is an index in ``Service.alternatives`` (sets of GPU types), and
    ``shape`` one in ``Service.shapes`` (replicas by role).
    """

    program: Program
    problem: PlacementProblem
    free: FreeSlots
    number: int  # of the service
    switches: list[int]  # S1 switches of the data centre of the service
    demand_rows: list[int]  # row of each shape
    slot_rows: dict[int, list[int]]  # by switch: the row of each entry of ``free``
    node_rows: dict[tuple[int, int], int]  # by switch and GPU type
    bandwidth: tuple[float, float]  # shares of the bandwidth under one S1 switch, and across them

    @property
    def service(self) -> Service:
        """Return the service whose variables are added."""
        return self.problem.services[self.number]

    def add_placed_units(self) -> None:
        """Add all variables but those of units without a place."""
        for alternative in range(len(self.service.alternatives)):
            part_rows: dict[tuple[int, int], int] = {}
            for shape, (replicas, _) in enumerate(self.service.shapes):
                self.add_units(alternative, shape)
                if len(self.service.roles) > 1 and sum(replicas) > 1:
                    self.add_wide_units(alternative, shape, part_rows)
            self.add_parts(alternative, part_rows)

    def add_units(self, alternative: int, shape: int) -> None:
        """Add the variables "unit": units of a shape under each S1 switch."""
        replicas, units = self.service.shapes[shape]
        blocks = unit_blocks(self.service, replicas, self.service.alternatives[alternative])
        slots_per_unit = self.free.used_by(blocks)
        for s1 in self.switches:
            units_that_fit = _units_that_fit(self.free.slots[s1], slots_per_unit)
            if units_that_fit:
                node_entries, saved_points = _node_entries(self.node_rows, s1, blocks)
                slot_entries = _slot_entries(self.slot_rows[s1], slots_per_unit)
                cost = self._points(alternative, replicas, s1, self.bandwidth[0])
                cost -= saved_points  # units deduct the GPUs that they use of an open node
                entries = [(self.demand_rows[shape], 1.0), *slot_entries, *node_entries]
                key = Key("unit", self.number, shape, alternative, place=s1)
                self.program.column(key, cost, float(min(units, units_that_fit)), entries)

    def add_wide_units(
        self, alternative: int, shape: int, part_rows: dict[tuple[int, int], int]
    ) -> None:
        """Add the variables "wide": units of a shape across the switches of a subgroup.

        ``part_rows`` gets a row for each role and subgroup, with the replicas that these units need
        there.
        """
        replicas, units = self.service.shapes[shape]
        blocks = unit_blocks(self.service, replicas, self.service.alternatives[alternative])
        slots_per_unit = self.free.used_by(blocks)
        missed_gpus = self.service.gpus(replicas) if self.service.affinity == "s1" else 0
        by_subgroup: dict[int, list[int]] = defaultdict(list)
        for s1 in self.switches:
            by_subgroup[int(self.problem.subgroup[s1])].append(s1)
        for subgroup, subgroup_switches in sorted(by_subgroup.items()):
            # Skip a subgroup without room for one unit.
            if (self.free.slots[subgroup_switches].sum(axis=0) < slots_per_unit).any():
                continue
            cost = self._points(alternative, replicas, subgroup_switches[0], self.bandwidth[1])
            cost += POINTS.missed * missed_gpus
            entries = [(self.demand_rows[shape], 1.0)]
            for role, count in enumerate(replicas):
                if (role, subgroup) not in part_rows:
                    part_rows[role, subgroup] = self.program.row(0.0, 0.0)
                entries.append((part_rows[role, subgroup], -float(count)))
            key = Key("wide", self.number, shape, alternative, place=subgroup)
            self.program.column(key, cost, units, entries)

    def add_parts(self, alternative: int, part_rows: dict[tuple[int, int], int]) -> None:
        """Add the variables "part": replicas of wide units under each switch.

        ``part_rows`` has the rows of the replicas to place, by role and subgroup.
        """
        for (role, subgroup), row in part_rows.items():
            one_replica = [int(other == role) for other in range(len(self.service.roles))]
            blocks = unit_blocks(self.service, one_replica, self.service.alternatives[alternative])
            slots_per_replica = self.free.used_by(blocks)
            max_replicas = sum(replicas[role] * units for replicas, units in self.service.shapes)
            for s1 in self.switches:
                replicas_that_fit = _units_that_fit(self.free.slots[s1], slots_per_replica)
                if replicas_that_fit and self.problem.subgroup[s1] == subgroup:
                    node_entries, saved_points = _node_entries(self.node_rows, s1, blocks)
                    slot_entries = _slot_entries(self.slot_rows[s1], slots_per_replica)
                    entries = [(row, 1.0), *slot_entries, *node_entries]
                    key = Key("part", self.number, role, alternative, s1, subgroup=subgroup)
                    upper = float(min(max_replicas, replicas_that_fit))
                    self.program.column(key, -saved_points, upper, entries)

    def _points(
        self, alternative: int, replicas: tuple[int, ...], s1: int, bandwidth: float
    ) -> float:
        """Return the penalty points of a unit: fallback GPUs, lost bandwidth and priority.

        ``replicas`` are those of the unit by role, ``s1`` is one of its switches, and ``bandwidth``
        the share of KV bandwidth there.
        """
        service, gpus = self.service, self.service.gpus(replicas)
        types = service.alternatives[alternative]
        fallback_points = POINTS.fallback * service.fallback_gpus(replicas, types)
        lost_share = 1 - bandwidth if len(service.roles) > 1 else 0.0
        tiers_above = max(0, int(self.problem.tiers[s1]) - service.lowest_priority)
        bandwidth_points = POINTS.bandwidth * gpus * lost_share
        return fallback_points + bandwidth_points + POINTS.tier * gpus * tiers_above


def _units_that_fit(slots: IntArray, slots_per_unit: IntArray) -> int:
    """Return how many units, of ``slots_per_unit [entry]`` each, fit into ``slots [entry]``."""
    is_used = slots_per_unit > 0
    return int((slots[is_used] // slots_per_unit[is_used]).min()) if is_used.any() else 0


def _slot_entries(rows: Sequence[int], slots_per_unit: IntArray) -> list[tuple[int, float]]:
    """Return (row, coefficient) entries of a variable that uses ``slots_per_unit`` of each row."""
    return [(row, float(slots)) for row, slots in zip(rows, slots_per_unit, strict=True)]


def _node_rows(
    program: Program, problem: PlacementProblem, switches: Sequence[int]
) -> dict[tuple[int, int], int]:
    """Add rows and variables that count the nodes in use; return the rows by switch and GPU type.

    A variable charges all GPUs of a used node as fragments. Units that run there deduct theirs.
    """
    tree = problem.topology
    rows = {}
    for s1 in switches:
        is_under = tree.s1 == s1
        for gpu in np.unique(tree.gpu[is_under]).tolist():
            nodes = is_under & (tree.gpu == gpu)
            node_gpus = int(tree.gpus[nodes].max())
            if node_gpus != tree.gpus[nodes].min():
                # Nodes of several sizes: fragments are not charged. The bound stays valid.
                continue
            taken_gpus = int(problem.taken[nodes].sum())
            row = rows[s1, gpu] = program.row(float(taken_gpus), INF)
            program.fixed -= POINTS.fragment * taken_gpus
            key = Key("open", service=0, shape=0, alternative=gpu, place=s1)  # of all services
            entries, cost = [(row, float(node_gpus))], POINTS.fragment * node_gpus
            program.column(key, cost, upper=int(nodes.sum()), entries=entries)
    return rows


def _node_entries(
    node_rows: dict[tuple[int, int], int], s1: int, blocks: Sequence[Block]
) -> tuple[list[tuple[int, float]], float]:
    """Return the entries of ``blocks`` in the node rows of ``s1``, and the points they save.

    ``node_rows`` are by switch and GPU type. A used node is charged for all its GPUs, as if all
    were fragments. The GPUs that ``blocks`` occupy are no fragments, so their points are taken off.
    """
    gpus_by_row = Counter[int]()  # GPUs by row
    for block in blocks:
        for _, gpu, gpus in block.instances:
            if (s1, gpu) in node_rows:
                gpus_by_row[node_rows[s1, gpu]] += gpus
    entries = [(row, -float(gpus)) for row, gpus in gpus_by_row.items()]
    return entries, POINTS.fragment * gpus_by_row.total()
