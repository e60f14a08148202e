"""Find the fewest slots under the limit, with a proof (methods.md A5).

Latencies of operators in series add up; parallel branches take the longer one. For graphs built
from these two, a dynamic program over slots is exact. f(K) is the least latency that K slots can
achieve:

    series:    f(K) = min over k of f1(k) + f2(K - k)       (multiple-choice knapsack)
    branches:  f(K) = min over k of max(f1(k), f2(K - k))

The optimum is the first K with f(K) within the limit. Any other graph is solved by an integer
program with a start time per operator.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy

from simulation.arrays import FloatArray, IntArray
from simulation.errors import SimulationError
from simulation.provisioning.frontier import Frontier, frontiers
from simulation.provisioning.problem import OperatorPlan, OperatorProblem, evaluate
from simulation.provisioning.sojourns import join_parts


@dataclass(frozen=True, slots=True, eq=False)
class _Piece:
    """A part of the graph between two points: its latency by slots, and how they are split."""

    latency: FloatArray  # [K + 1], non-increasing; inf where K slots are too few
    taken: IntArray  # [K + 1]: slots of ``left`` (of the operator itself in a leaf)
    operator: int = -1
    left: _Piece | None = None
    right: _Piece | None = None


def exact_plan(
    problem: OperatorProblem, options: tuple[Frontier, ...] | None = None
) -> OperatorPlan | None:
    """Return the plan with the fewest slots; None if no plan meets the limit.

    ``bound`` of the plan equals ``slots``. ``options`` are the frontiers of ``problem``, if already
    known.
    """
    options = frontiers(problem) if options is None else options
    if any(not option.slots.size for option in options):
        return None  # an operator that is stable with no number of replicas
    max_slots = sum(int(option.slots[-1]) for option in options)
    budget = sum(int(option.slots[0]) for option in options)
    while True:  # few graphs need all slots, so the range is doubled
        budget = min(2 * budget, max_slots)
        piece = _series_parallel(problem, options, budget)
        if piece is None:
            return solve_program(problem, options)
        enough = np.flatnonzero(piece.latency <= problem.slo_s)
        if enough.size:
            break
        if budget == max_slots:
            return None
    choice = np.zeros((len(options), 3), np.int64)
    _unfold_choices(piece, int(enough[0]), options, choice)
    _, spread, replicas = choice.T
    slots = int((problem.parallel[spread] * replicas).sum())
    return evaluate(problem, "exact", choice, bound=slots)


def _operator_piece(v: int, option: Frontier, budget: int) -> _Piece:
    reach = np.searchsorted(option.slots, np.arange(budget + 1), side="right") - 1
    latency = np.where(reach >= 0, option.sojourn_s[np.maximum(reach, 0)], np.inf)
    return _Piece(latency=latency, taken=reach.astype(np.int64), operator=v)


def _joined_pieces(left: _Piece, right: _Piece, branches: bool) -> _Piece:
    best = np.full(left.latency.size, np.inf)
    taken = np.zeros(left.latency.size, np.int64)
    join_parts(left.latency, right.latency, branches, best, taken)
    return _Piece(latency=best, taken=taken, left=left, right=right)


def _series_parallel(
    problem: OperatorProblem, options: tuple[Frontier, ...], budget: int
) -> _Piece | None:
    """Return the whole graph as one piece; None if it is not series-parallel.

    Every operator is an arc from its entry to its exit. Precedence is an arc without cost (None).
    Arcs in series and in parallel are joined until one is left.
    """
    count = len(problem.names)
    source, sink = 2 * count, 2 * count + 1
    arcs: list[tuple[int, int, _Piece | None]] = [
        (2 * v, 2 * v + 1, _operator_piece(v, options[v], budget)) for v in range(count)
    ]
    arcs += [(2 * u + 1, 2 * v, None) for u, v in problem.edges]
    arcs += [(source, 2 * v, None) for v in range(count) if all(e[1] != v for e in problem.edges)]
    arcs += [(2 * v + 1, sink, None) for v in range(count) if all(e[0] != v for e in problem.edges)]

    while len(arcs) > 1:
        smaller = _merge_branches(arcs)
        smaller = _merge_row(smaller, {source, sink})
        if len(smaller) == len(arcs):
            return None
        arcs = smaller
    return arcs[0][2]


Arc = tuple[int, int, "_Piece | None"]


def _merge_branches(arcs: list[Arc]) -> list[Arc]:
    between: dict[tuple[int, int], _Piece | None] = {}
    for u, v, piece in arcs:
        # A precedence arc (None) costs nothing, so the other arc replaces it.
        if between.get((u, v)) is None:
            between[u, v] = piece
        elif piece is not None:
            other = between[u, v]
            assert other is not None
            between[u, v] = _joined_pieces(other, piece, branches=True)
    return [(u, v, piece) for (u, v), piece in between.items()]


def _merge_row(arcs: list[Arc], ends: set[int]) -> list[Arc]:
    """Join one pair of arcs around each point with exactly one arc in and one out."""
    into: dict[int, list[int]] = {}
    out_of: dict[int, list[int]] = {}
    for i, (u, v, _) in enumerate(arcs):
        out_of.setdefault(u, []).append(i)
        into.setdefault(v, []).append(i)
    used: set[int] = set()
    merged: list[Arc] = []
    for point, arriving in into.items():
        leaving = out_of.get(point, [])
        if point in ends or len(arriving) != 1 or len(leaving) != 1:
            continue
        i, j = arriving[0], leaving[0]
        if i in used or j in used:
            continue
        used |= {i, j}
        (u, _, left), (_, v, right) = arcs[i], arcs[j]
        if left is not None and right is not None:
            left = _joined_pieces(left, right, branches=False)
        piece = right if left is None else left
        merged.append((u, v, piece))
    return [arc for i, arc in enumerate(arcs) if i not in used] + merged


def _unfold_choices(
    piece: _Piece, slots: int, options: tuple[Frontier, ...], choice: IntArray
) -> None:
    if piece.left is None or piece.right is None:
        choice[piece.operator] = options[piece.operator].choice[piece.taken[slots]]
        return
    left = int(piece.taken[slots])
    _unfold_choices(piece.left, left, options, choice)
    _unfold_choices(piece.right, slots - left, options, choice)


def solve_program(problem: OperatorProblem, options: tuple[Frontier, ...]) -> OperatorPlan | None:
    """Return the plan of least slots, with a binary per frontier choice and a start per operator.

    For an edge (u, v): start_v >= start_u + sojourn_u. Every start + sojourn is within the limit.
    Times are in units of the limit, so that the solver's tolerance is meaningful.
    """
    sizes = np.array([option.slots.size for option in options])
    first = np.r_[0, np.cumsum(sizes)]
    binaries, count = int(first[-1]), len(options)
    sojourn = [option.sojourn_s / problem.slo_s for option in options]
    entries: list[tuple[int, int, float]] = []
    low: list[float] = []
    high: list[float] = []

    def chosen(v: int, row: int, weights: FloatArray) -> None:
        entries.extend((row, int(first[v]) + i, float(w)) for i, w in enumerate(weights))

    for v in range(count):
        chosen(v, len(low), np.ones(sizes[v]))
        low.append(1.0)
        high.append(1.0)
    for v in range(count):  # start + sojourn <= 1
        entries.append((len(low), binaries + v, 1.0))
        chosen(v, len(low), sojourn[v])
        low.append(-np.inf)
        high.append(1.0)
    for u, v in problem.edges:  # start_u + sojourn_u - start_v <= 0
        entries.append((len(low), binaries + u, 1.0))
        entries.append((len(low), binaries + v, -1.0))
        chosen(u, len(low), sojourn[u])
        low.append(-np.inf)
        high.append(0.0)

    rows, columns, values = zip(*entries, strict=True)
    matrix = scipy.sparse.coo_array(
        (values, (rows, columns)), shape=(len(low), binaries + count)
    ).tocsr()
    result = scipy.optimize.milp(
        np.r_[np.concatenate([option.slots for option in options]), np.zeros(count)],
        constraints=scipy.optimize.LinearConstraint(matrix, np.array(low), np.array(high)),
        integrality=np.r_[np.ones(binaries), np.zeros(count)],
        bounds=scipy.optimize.Bounds(0.0, 1.0),
        # The exact method needs a proof, so no gap is allowed.
        options={"mip_rel_gap": 0.0},
    )
    if result.status == 2:
        return None
    if result.x is None:
        raise SimulationError(f"The operator program found no answer: {result.message}")
    picks = [int(result.x[first[v] : first[v + 1]].argmax()) for v in range(count)]
    choice = np.array([options[v].choice[picks[v]] for v in range(count)])
    bound = int(np.ceil(result.mip_dual_bound - 1e-6))
    return evaluate(problem, "exact", choice, bound=bound)
