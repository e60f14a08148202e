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
from planner.optimizer.placement.problem import PlacementProblem
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

    Per service, shape and set of GPU types, a column "unit" counts units within an S1 switch of a
    class. "wide" counts units over the switches of a subgroup, whose replicas "part" places. "none"
    counts units without a place. ``room`` has the slots of each switch. ``shares`` gives the share
    of bandwidth at each level of switches. ``numbers`` limits the units by (service, shape) if not
    all are to be placed.

    Indices: s service, k shape, a set of GPU types, c class of switches, p class of subgroups, r
    role.
    """
    program = Program()
    slots = np.array([room.slots[list(members)].sum(axis=0) for members in kinds.switches])
    rows = np.array(
        [[program.row(-highspy.kHighsInf, float(n)) for n in line] for line in slots], np.int64
    ).reshape(slots.shape)
    opened = _node_rows(program, problem, kinds)
    near, across = max(shares[: S1 + 1]), shares[S2]
    for s, service in enumerate(problem.services):
        several = len(service.roles) > 1
        options = [
            c
            for c, members in enumerate(kinds.switches)
            if problem.centre_of_s1[members[0]] == service.centre
        ]
        pools = sorted({kinds.pool[c] for c in options})
        excess = {
            c: max(0, int(problem.tiers[kinds.switches[c][0]]) - service.need) for c in options
        }
        demand = {}
        shapes = tuple(
            (shape, n if numbers is None else numbers.get((s, k), 0))
            for k, (shape, n) in enumerate(service.shapes)
        )
        if not any(number for _, number in shapes):
            continue
        for k, (shape, number) in enumerate(shapes):
            demand[k] = program.row(number, number)
            points = POINTS.unplaced * (1 + service.priority) * service.gpus(shape)
            program.column(("none", s, k, 0, 0, 0), points, number, [(demand[k], 1.0)])
        links: dict[tuple[int, int, int], int] = {}
        for a, alternative in enumerate(service.alternatives):
            single = [
                unit_blocks(service, [int(i == r) for i in range(len(service.roles))], alternative)[
                    0
                ]
                for r in range(len(service.roles))
            ]
            for k, (shape, number) in enumerate(shapes):
                if not number:
                    continue
                parts = unit_blocks(service, shape, alternative)
                need, gpus = room.of_unit(parts), service.gpus(shape)
                base = POINTS.fallback * service.fallback_gpus(shape, alternative)
                lost = POINTS.bandwidth * gpus * several
                for c in options:
                    fit = _units_that_fit(room, kinds.switches[c], need)
                    if not fit:
                        continue
                    cost = base + lost * (1 - near) + POINTS.tier * gpus * excess[c]
                    nodes, less = _node_entries(opened, c, parts)
                    entries = [(demand[k], 1.0), *_uses_entry(rows[c], need), *nodes]
                    upper = float(min(number, fit))
                    program.column(("unit", s, k, a, c, 0), cost - less, upper, entries)
                if not several or sum(shape) == 1:
                    continue
                for p in pools:
                    members = [c for c in options if kinds.pool[c] == p]
                    if (slots[members].sum(axis=0) < need).any():
                        continue
                    cost = base + lost * (1 - across) + POINTS.tier * gpus * excess[members[0]]
                    cost += POINTS.missed * gpus * (service.affinity == "s1")
                    entries = [(demand[k], 1.0)]
                    for r, count in enumerate(shape):
                        if (a, r, p) not in links:
                            links[a, r, p] = program.row(0.0, 0.0)
                        entries.append((links[a, r, p], -float(count)))
                    program.column(("wide", s, k, a, p, 0), cost, number, entries)
            for (alt, r, p), row in links.items():
                if alt != a:
                    continue
                total = sum(shape[r] * number for shape, number in shapes)
                need = room.of_block(single[r])
                for c in (c for c in options if kinds.pool[c] == p):
                    if not (fit := _units_that_fit(room, kinds.switches[c], need)):
                        continue
                    nodes, less = _node_entries(opened, c, [single[r]])
                    entries = [(row, 1.0), *_uses_entry(rows[c], need), *nodes]
                    upper = float(min(total, fit))
                    program.column(("part", s, r, a, c, p), -less, upper, entries)
    return program


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
        given = [i for i, key in enumerate(program.keys) if key[0] != "open"]
        highs.setSolution(
            len(given),
            np.array(given, np.int32),
            np.array([float(begin.get(program.keys[i], 0)) for i in given]),
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
        key: int(n) for key, n in zip(program.keys, values, strict=True) if n and key[0] != "open"
    }
    return Answer(counts, bound)


def _units_that_fit(room: FreeSlots, members: tuple[int, ...], need: IntArray) -> int:
    """Return how many units, each with the slots ``need``, fit under empty ``members``."""
    used_types = need > 0
    each = room.slots[np.array(members)][:, used_types] // need[used_types]
    return int(each.min(axis=1).sum()) if used_types.any() else 0


def _uses_entry(rows: IntArray, need: IntArray) -> list[tuple[int, float]]:
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
            key = ("open", 0, 0, gpu, switch_class, 0)
            program.column(key, POINTS.fragment * size, int(nodes.sum()), [(row, float(size))])
    return rows


def _node_entries(
    opened: dict[tuple[int, int], int], c: int, parts: Sequence[Block]
) -> tuple[list[tuple[int, float]], float]:
    """Return the entries in the node rows of ``parts`` under class ``c``, and their penalty points.

    The points are negative, since units that run on a used node deduct theirs.
    """
    used: dict[int, int] = {}
    for block in parts:
        for _, gpu, size in block.instances:
            if (c, gpu) in opened:
                used[gpu] = used.get(gpu, 0) + size
    entries = [(opened[c, gpu], -float(n)) for gpu, n in used.items()]
    return entries, POINTS.fragment * sum(used.values())
