"""Formulate exact placement as an integer program on HiGHS.

    minimise   sum over units of the cost of their place + unplaced + fragments (Points)
    demand     units under one S1 switch + across switches of one subgroup + unplaced = wanted
    slots      used slots of each size under each S1 switch <= available (room)
    parts      replicas under the switches of a subgroup = those of units that lie across it
    nodes      opened under a switch * their GPUs >= GPUs in use there

There is no variable for a unit across subgroups, because a unit is never split (methods.md D5).
Identical subtrees form one class with all their slots (``classes``). That is a relaxation, so the
bound is valid, and ``assign_switches`` assigns switches afterwards.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import highspy
import numpy as np

from planner.errors import SolverFailed
from planner.optimizer.highs import load_program, run, silent_highs
from planner.optimizer.placement.classes import Key, SwitchClasses
from planner.optimizer.placement.free_slots import FreeSlots
from planner.optimizer.placement.ledger import Block, unit_blocks
from planner.optimizer.placement.measures import POINTS
from planner.optimizer.placement.problem import PlacementProblem, Service
from simulation.arrays import IntArray
from simulation.topology import S1, S2


@dataclass(slots=True)
class Program:
    """A mixed-integer program under construction: columns and rows in order of addition."""

    keys: list[Key] = field(default_factory=list)
    cost: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    start: list[int] = field(default_factory=lambda: [0])
    index: list[int] = field(default_factory=list)
    value: list[float] = field(default_factory=list)
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    fixed: float = 0.0  # constant of the objective

    def row(self, low: float, high: float) -> int:
        """Add a constraint whose entries sum to ``low`` to ``high``; return its index."""
        self.low.append(low)
        self.high.append(high)
        return len(self.low) - 1

    def column(
        self, key: Key, cost: float, upper: float, entries: Sequence[tuple[int, float]]
    ) -> None:
        """Add a variable from 0 to ``upper``; ``entries`` are (row, coefficient)."""
        self.keys.append(key)
        self.cost.append(cost)
        self.upper.append(upper)
        self.index += [row for row, value in entries if value]
        self.value += [value for _, value in entries if value]
        self.start.append(len(self.index))

    def lp(self) -> highspy.HighsLp:
        """Return the program for HiGHS; all variables are integers."""
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = len(self.keys), len(self.low)
        lp.col_cost_ = np.array(self.cost)
        lp.col_lower_, lp.col_upper_ = np.zeros(len(self.keys)), np.array(self.upper)
        lp.row_lower_, lp.row_upper_ = np.array(self.low), np.array(self.high)
        lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
        lp.a_matrix_.start_ = np.array(self.start)
        lp.a_matrix_.index_ = np.array(self.index)
        lp.a_matrix_.value_ = np.array(self.value)
        lp.integrality_ = [highspy.HighsVarType.kInteger] * len(self.keys)
        return lp


@dataclass(frozen=True, slots=True)
class Answer:
    """The counts of nonzero columns, or None if no solution was found in time."""

    counts: dict[Key, int] | None
    bound: float


def build_program(
    problem: PlacementProblem,
    kinds: SwitchClasses,
    room: FreeSlots,
    shares: Sequence[float],
    numbers: Mapping[tuple[int, int], int] | None = None,
) -> Program:
    """Build the program that chooses how many units to place under each class of switches.

    The columns of a service are, by shape and set of GPU types:

    - "unit": units under one S1 switch of a class
    - "wide": units over several switches of a subgroup
    - "part": replicas of wide units under the switches of a class
    - "none": units without a place

    ``room`` has the slots of each switch. ``shares`` gives the share of bandwidth at each level of
    switches. ``numbers`` limits the units by (service, shape) if not all are to be placed.

    Indices: s service, k shape, a set of GPU types, c class of switches, p class of subgroups, r
    role.
    """
    program = Program()
    slots = np.array([room.slots[list(members)].sum(axis=0) for members in kinds.switches])
    # A row for each class of switches and size of slot: no more are used than there are.
    slot_rows = np.array(
        [[program.row(-highspy.kHighsInf, float(n)) for n in of_class] for of_class in slots],
        np.int64,
    ).reshape(slots.shape)
    node_rows = _node_rows(program, problem, kinds)
    for s, service in enumerate(problem.services):
        shapes = tuple(
            (shape, n if numbers is None else numbers.get((s, k), 0))
            for k, (shape, n) in enumerate(service.shapes)
        )
        if not any(number for _, number in shapes):
            continue
        demand_rows = []
        for k, (shape, number) in enumerate(shapes):
            demand_rows.append(program.row(number, number))
            points = POINTS.unplaced * (1 + service.priority) * service.gpus(shape)
            program.column(Key("none", s, k), points, number, [(demand_rows[k], 1.0)])
        columns = _ServiceColumns(
            program, problem, kinds, room, s, shapes, demand_rows, slots, slot_rows, node_rows,
            (max(shares[: S1 + 1]), shares[S2]),
        )  # fmt: skip
        for a in range(len(service.alternatives)):
            part_rows: dict[tuple[int, int], int] = {}
            for k, (shape, number) in enumerate(shapes):
                if number:
                    columns.add_units(a, k)
                if number and len(service.roles) > 1 and sum(shape) > 1:
                    columns.add_wide_units(a, k, part_rows)
            columns.add_parts(a, part_rows)
    return program


@dataclass(frozen=True, slots=True, eq=False)
class _ServiceColumns:
    """Adds the columns of service ``s`` to ``program``; for the indices see ``build_program``."""

    program: Program
    problem: PlacementProblem
    kinds: SwitchClasses
    room: FreeSlots
    s: int
    shapes: tuple[tuple[tuple[int, ...], int], ...]  # [k] replicas by role, and number of units
    demand_rows: list[int]  # [k]
    slots: IntArray  # [c, e] free slots of each size
    slot_rows: IntArray  # [c, e]
    node_rows: dict[tuple[int, int], int]  # by class of switches and GPU type
    bandwidth: tuple[float, float]  # share of it under one S1 switch, and across switches

    @property
    def service(self) -> Service:
        return self.problem.services[self.s]

    @property
    def classes(self) -> list[int]:
        """Return the classes of switches in the data centre of the service."""
        centre, centre_of = self.service.centre, self.problem.centre_of_s1
        members_of = enumerate(self.kinds.switches)
        return [c for c, members in members_of if centre_of[members[0]] == centre]

    def add_units(self, a: int, k: int) -> None:
        """Add the columns "unit": units of shape ``k`` under one S1 switch of each class.

        ``a`` is the index of the alternative set of GPU types.
        """
        shape, number = self.shapes[k]
        parts = unit_blocks(self.service, shape, self.service.alternatives[a])
        need = self.room.of_unit(parts)
        for c in self.classes:
            fit = _units_that_fit(self.room, self.kinds.switches[c], need)
            if fit:
                nodes, saved = _node_entries(self.node_rows, c, parts)
                uses = _slot_entries(self.slot_rows[c], need)
                cost = self._points(a, shape, c, self.bandwidth[0]) - saved
                entries = [(self.demand_rows[k], 1.0), *uses, *nodes]
                key = Key("unit", self.s, k, a, c)
                self.program.column(key, cost, float(min(number, fit)), entries)

    def add_wide_units(self, a: int, k: int, part_rows: dict[tuple[int, int], int]) -> None:
        """Add the columns "wide": units of shape ``k`` across the switches of a subgroup.

        ``a`` is the index of the alternative set of GPU types. ``part_rows`` gets a row for each
        role and class ``p`` of subgroups: the replicas of these units.
        """
        shape, number = self.shapes[k]
        parts = unit_blocks(self.service, shape, self.service.alternatives[a])
        need, pool_of = self.room.of_unit(parts), self.kinds.pool
        for p in sorted({pool_of[c] for c in self.classes}):
            members = [c for c in self.classes if pool_of[c] == p]
            if (self.slots[members].sum(axis=0) < need).any():
                continue
            cost = self._points(a, shape, members[0], self.bandwidth[1])
            cost += POINTS.missed * self.service.gpus(shape) * (self.service.affinity == "s1")
            entries = [(self.demand_rows[k], 1.0)]
            for r, count in enumerate(shape):
                if (r, p) not in part_rows:
                    part_rows[r, p] = self.program.row(0.0, 0.0)
                entries.append((part_rows[r, p], -float(count)))
            self.program.column(Key("wide", self.s, k, a, p), cost, number, entries)

    def add_parts(self, a: int, part_rows: dict[tuple[int, int], int]) -> None:
        """Add the columns "part": replicas of wide units under the switches of each class."""
        for (r, p), row in part_rows.items():
            one_replica = [int(role == r) for role in range(len(self.service.roles))]
            parts = unit_blocks(self.service, one_replica, self.service.alternatives[a])
            need = self.room.of_unit(parts)
            replicas = sum(shape[r] * number for shape, number in self.shapes)
            for c in self.classes:
                fit = _units_that_fit(self.room, self.kinds.switches[c], need)
                if fit and self.kinds.pool[c] == p:
                    nodes, saved = _node_entries(self.node_rows, c, parts)
                    entries = [(row, 1.0), *_slot_entries(self.slot_rows[c], need), *nodes]
                    key = Key("part", self.s, r, a, c, p)
                    self.program.column(key, -saved, float(min(replicas, fit)), entries)

    def _points(self, a: int, shape: tuple[int, ...], c: int, bandwidth: float) -> float:
        """Return the penalty points of a unit: fallback GPUs, lost bandwidth and priority."""
        service, gpus = self.service, self.service.gpus(shape)
        tier = int(self.problem.tiers[self.kinds.switches[c][0]])
        fallback = POINTS.fallback * service.fallback_gpus(shape, service.alternatives[a])
        lost_share = 1 - bandwidth if len(service.roles) > 1 else 0.0
        lost = POINTS.bandwidth * gpus * lost_share
        return fallback + lost + POINTS.tier * gpus * max(0, tier - service.need)


def solve_placement(
    program: Program,
    *,
    gap: float,
    time_limit_s: float,
    check: Callable[[], None],
    begin: dict[Key, int] | None = None,
) -> Answer:
    """Solve to ``gap`` of the objective or until time runs out; return counts and a bound.

    ``begin`` are counts to start the search from. Raises SolverFailed if HiGHS stops with an error.
    """
    highs = silent_highs(time_limit_s=time_limit_s, gap=gap)
    load_program(highs, program.lp())
    if begin is not None:
        unit_columns = [i for i, key in enumerate(program.keys) if key.kind != "open"]
        highs.setSolution(
            len(unit_columns),
            np.array(unit_columns, np.int32),
            np.array([float(begin.get(program.keys[i], 0)) for i in unit_columns]),
        )
    run(highs, check)
    states, status, info = highspy.HighsModelStatus, highs.getModelStatus(), highs.getInfo()
    if status not in (states.kOptimal, states.kTimeLimit, states.kModelEmpty):
        raise SolverFailed(
            f"HiGHS stopped with {highs.modelStatusToString(status)!r}: use algorithm4."
        )
    bound = info.mip_dual_bound + program.fixed
    if info.primal_solution_status != highspy.SolutionStatus.kSolutionStatusFeasible:
        return Answer(None, bound)
    values = np.rint(highs.getSolution().col_value).astype(np.int64)
    counts = {
        key: int(n) for key, n in zip(program.keys, values, strict=True) if n and key.kind != "open"
    }
    return Answer(counts, bound)


def _units_that_fit(room: FreeSlots, members: tuple[int, ...], need: IntArray) -> int:
    """Return how many units, each with the slots ``need``, fit under empty ``members``."""
    used_types = need > 0
    each = room.slots[np.array(members)][:, used_types] // need[used_types]
    return int(each.min(axis=1).sum()) if used_types.any() else 0


def _slot_entries(rows: IntArray, need: IntArray) -> list[tuple[int, float]]:
    """Return the entries of the slots ``need [e]`` in ``rows [e]`` of a class of switches."""
    return [(int(row), float(n)) for row, n in zip(rows, need, strict=True)]


def _node_rows(
    program: Program, problem: PlacementProblem, kinds: SwitchClasses
) -> dict[tuple[int, int], int]:
    """Add rows and columns that count the nodes in use, by GPU type and class of switches.

    A column charges all GPUs of a used node as fragments. Units that run there deduct theirs.
    """
    tree = problem.topology
    rows = {}
    for switch_class, members in enumerate(kinds.switches):
        under = np.isin(tree.s1, members)
        for gpu in np.unique(tree.gpu[under]).tolist():
            nodes = under & (tree.gpu == gpu)
            size = int(tree.gpus[nodes].max())
            if size != tree.gpus[nodes].min():
                # Nodes of several sizes: fragments are not charged. The bound stays valid.
                continue
            taken_gpus = int(problem.taken[nodes].sum())
            row = rows[switch_class, gpu] = program.row(float(taken_gpus), highspy.kHighsInf)
            program.fixed -= POINTS.fragment * taken_gpus
            key = Key("open", 0, 0, alternative=gpu, place=switch_class)
            program.column(key, POINTS.fragment * size, int(nodes.sum()), [(row, float(size))])
    return rows


def _node_entries(
    opened: dict[tuple[int, int], int], c: int, parts: Sequence[Block]
) -> tuple[list[tuple[int, float]], float]:
    """Return the entries of ``parts`` in the node rows of class ``c``, and the points they save.

    ``opened`` are the rows by class and GPU type. A used node is charged for all of its GPUs, as if
    they were fragments. The GPUs of ``parts`` are none, so their points are saved.
    """
    used: dict[int, int] = {}
    for block in parts:
        for _, gpu, size in block.instances:
            if (c, gpu) in opened:
                used[gpu] = used.get(gpu, 0) + size
    entries = [(opened[c, gpu], -float(n)) for gpu, n in used.items()]
    return entries, POINTS.fragment * sum(used.values())
