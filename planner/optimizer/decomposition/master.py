"""The program over columns: one x of every cell, so that capacities and joint demands hold.

Dantzig and Wolfe (1960) with whole columns: its linear relaxation reaches the best bound that
prices can prove, and branch and bound on it starts from there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import highspy
import numpy as np
from scipy import sparse

from planner.optimizer.decomposition.cells import Cells, Prices
from planner.optimizer.decomposition.columns import Band, Boxes, Columns, no_boxes
from planner.optimizer.highs import configured, load, run
from planner.optimizer.problem import INFEASIBLE
from planner.optimizer.solving.arrays import LinearProgram
from planner.optimizer.solving.guarded import solve_program
from simulation.arrays import BoolArray, FloatArray, IntArray

GUARD_FROM = 5_000  # columns; smaller programs keep HiGHS near its clock
SHORTAGE_PRICE = 10.0  # times the dearest instance: what a row may be broken for while columns lack


@dataclass(frozen=True, slots=True, eq=False)
class Relaxed:
    """The optimum over fractions of columns."""

    usd: float  # fixed cost included; with what broken rows were charged
    prices: Prices
    used: BoolArray  # [n] columns with a share above 0
    broken: float  # how far rows had to be broken, in GPUs and instances


@dataclass(frozen=True, slots=True, eq=False)
class Whole:
    """The best plan over whole columns."""

    x: IntArray | None  # [l, r, g] beyond the minimums; None where none was found
    bound: float  # on plans made of these columns; infinite where there is none
    finished: bool  # whether the columns were searched as far as helps
    died: str = ""  # how the solver ended where it should not have, in words


def relax(
    cells: Cells,
    columns: Columns,
    dearer: float,
    *,
    time_limit_s: float,
    check: Callable[[], None],
) -> Relaxed | None:
    """Solve over fractions; rows may be broken at ``dearer`` times ``SHORTAGE_PRICE``.

    None where HiGHS found no optimum, for lack of time as a rule.
    """
    penalty = dearer * SHORTAGE_PRICE * float((cells.usd + cells.start).max())
    joining = cells.room.size + len(cells.theta) + len(cells.cap_room)
    lp = _program(cells, Band(columns, no_boxes(cells.theta.shape[1]), 0.0))
    first = lp.num_col_
    lp.num_col_ = first + joining
    lp.col_cost_ = np.concatenate([lp.col_cost_, np.full(joining, penalty)])
    lp.col_lower_ = np.zeros(lp.num_col_)
    lp.col_upper_ = np.full(lp.num_col_, highspy.kHighsInf)
    matrix = lp.a_matrix_
    entries = len(matrix.index_)
    matrix.start_ = np.concatenate([matrix.start_, entries + np.arange(1, joining + 1)])
    rows = cells.need.size + np.arange(joining)
    signs = np.full(joining, -1.0)
    signs[cells.room.size : cells.room.size + len(cells.theta)] = 1.0
    matrix.index_ = np.concatenate([matrix.index_, rows])
    matrix.value_ = np.concatenate([matrix.value_, signs])
    highs = configured(time_limit_s=time_limit_s)
    load(highs, lp)
    run(highs, check)
    if highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return None
    solution = highs.getSolution()
    values = np.array(solution.col_value)
    duals = np.array(solution.row_dual)[cells.need.size :]
    room, demand, caps = np.split(duals, [cells.room.size, cells.room.size + len(cells.theta)])
    prices = Prices(
        np.maximum(0.0, -room).reshape(cells.room.shape),
        np.maximum(0.0, demand),
        np.maximum(0.0, -caps),
    )
    usd = highs.getInfo().objective_function_value + cells.fixed_usd
    return Relaxed(usd, prices, values[:first] > 0, float(values[first:].sum()))


def combine(
    cells: Cells,
    band: Band,
    *,
    outside: float,
    start: IntArray | None,
    gap: float,
    time_limit_s: float,
    check: Callable[[], None],
) -> Whole:
    """Solve over whole columns to ``gap`` relative to the objective, or until time runs out.

    Ends too where nothing more can be proven without a wider band: plans outside cost ``outside``
    or more. ``start`` is a plan ``[l, r, g]`` to begin from.
    """
    lp = _program(cells, band)
    solved = solve_program(
        _as_arrays(lp),
        gap=gap,
        time_limit_s=time_limit_s,
        check=check,
        start=None if start is None else _values(cells, band, start),
        outside=outside - cells.fixed_usd,
        guard_from=GUARD_FROM,
    )
    if solved.status == INFEASIBLE:
        return Whole(None, np.inf, True)
    bound = solved.bound + cells.fixed_usd
    if solved.values is None:
        return Whole(None, bound, not solved.cut, solved.died)
    values = np.rint(solved.values).astype(np.int64)
    columns, raw = band.columns, _Raw.of(cells, band.boxes)
    chosen = values[: len(columns)] > 0
    x = np.zeros((cells.need.size, cells.theta.shape[1]), np.int64)
    x[columns.cell[chosen]] = columns.x[chosen]
    np.add.at(x, (raw.cell, raw.gpu), values[len(columns) :])
    return Whole(x.reshape(cells.most.shape), bound, not solved.cut, solved.died)


@dataclass(frozen=True, slots=True, eq=False)
class _Raw:
    """One variable per type of a box for the running instances and one for those beyond."""

    start: BoolArray  # [v] whether it counts instances beyond those running
    cell: IntArray  # [v]
    gpu: IntArray  # [v]
    low: IntArray  # [v]
    high: IntArray  # [v]
    cost: FloatArray  # [v] US dollars per hour

    @classmethod
    def of(cls, cells: Cells, boxes: Boxes) -> _Raw:
        gpus = cells.theta.shape[1]
        running = cells.running.reshape(-1, gpus)[boxes.cell]
        usd = cells.usd.reshape(-1, gpus)[boxes.cell]
        start = cells.start.reshape(-1, gpus)[boxes.cell]
        sides = (
            (np.minimum(boxes.low, running), np.minimum(boxes.high, running), usd),
            (
                np.maximum(0, boxes.low - running),
                np.maximum(0, boxes.high - running),
                usd + start,
            ),
        )
        low, high, cost = (np.concatenate(part) for part in zip(*sides, strict=True))
        row, gpu = np.nonzero(high)
        cell = np.concatenate([boxes.cell, boxes.cell])[row]
        return cls(row >= len(boxes.cell), cell, gpu, low[row, gpu], high[row, gpu], cost[row, gpu])

    def taken(self, cells: Cells) -> FloatArray:
        """What one of each takes of each cap, shape ``[v, k]``."""
        k, gpus = len(cells.cap_room), cells.theta.shape[1]
        at_start = (
            cells.cap_start.reshape(k, cells.need.size, gpus)[:, self.cell, self.gpu] * self.start
        )
        taken: FloatArray = (
            cells.cap_x.reshape(k, cells.need.size, gpus)[:, self.cell, self.gpu] + at_start
        ).T
        return taken


def _values(cells: Cells, band: Band, x: IntArray) -> FloatArray:
    """The variables of ``_program`` at the plan ``x``."""
    columns, raw, flat = band.columns, _Raw.of(cells, band.boxes), x.reshape(cells.need.size, -1)
    chosen = (columns.x == flat[columns.cell]).all(axis=1)
    held = flat[raw.cell, raw.gpu]
    running = np.minimum(held, cells.running.reshape(flat.shape)[raw.cell, raw.gpu])
    return np.concatenate([chosen, np.where(raw.start, held - running, running)]).astype(float)


def _as_arrays(lp: highspy.HighsLp) -> LinearProgram:
    """By rows, every variable whole."""
    matrix = lp.a_matrix_
    parts = np.array(matrix.value_), np.array(matrix.index_), np.array(matrix.start_)
    by_rows = sparse.csc_array(parts, shape=(lp.num_row_, lp.num_col_)).tocsr()
    return LinearProgram(
        cost=np.array(lp.col_cost_),
        lower=np.array(lp.col_lower_, float),
        upper=np.array(lp.col_upper_, float),
        whole=np.ones(lp.num_col_, bool),
        begins=by_rows.indptr.astype(np.int64),
        columns=by_rows.indices.astype(np.int64),
        values=by_rows.data.astype(float),
        row_lower=np.array(lp.row_lower_),
        row_upper=np.array(lp.row_upper_),
    )


def _program(cells: Cells, band: Band) -> highspy.HighsLp:
    """Rows: one column per cell, or enough of a box; a GPU limit per region and type; a joint
    demand per model; the caps on the whole plan."""
    columns, raw = band.columns, _Raw.of(cells, band.boxes)
    models, regions, _ = cells.most.shape
    types = cells.room.shape[1]
    size, n, k = cells.need.size, len(columns), len(cells.cap_room)
    cap_rows = size + regions * types + models + np.arange(k)
    model, region = np.divmod(columns.cell, regions)
    uses = cells.by_row(columns.x * cells.size[model])
    serves = (columns.x * cells.theta[model]).sum(axis=1) / cells.tokens[model]
    capacity = size + region[:, None] * types + np.arange(types)
    rows = np.broadcast_to(cap_rows, (n, k))
    index = np.column_stack([columns.cell, capacity, size + regions * types + model, rows])
    value = np.column_stack([np.ones(n), uses, serves, cells.taken(columns.x, columns.cell)])
    present = value != 0

    model, region = np.divmod(raw.cell, regions)
    serves = cells.theta[model, raw.gpu] / cells.tokens[model]
    capacity = size + region * types + cells.rows[raw.gpu]
    rows = np.broadcast_to(cap_rows, (len(raw.cell), k))
    raw_index = np.column_stack([raw.cell, capacity, size + regions * types + model, rows])
    raw_value = np.column_stack([serves, cells.size[model, raw.gpu], serves, raw.taken(cells)])

    lower, upper = np.ones(size), np.ones(size)
    boxed = band.boxes.cell
    lower[boxed] = cells.need.ravel()[boxed] / cells.tokens[boxed // regions]
    upper[boxed] = highspy.kHighsInf
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = n + len(raw.cell), size + regions * types + models + k
    lp.col_cost_ = np.concatenate([cells.cost(columns.x, columns.cell), raw.cost])
    lp.col_lower_ = np.concatenate([np.zeros(n), raw.low])
    lp.col_upper_ = np.concatenate([np.ones(n), raw.high])
    free = np.full(regions * types, -highspy.kHighsInf)
    lp.row_lower_ = np.concatenate(
        [lower, free, cells.joint / cells.tokens, np.full(k, -highspy.kHighsInf)]
    )
    lp.row_upper_ = np.concatenate(
        [upper, cells.room.ravel(), np.full(models, highspy.kHighsInf), cells.cap_room]
    )
    entries = np.concatenate([present.sum(axis=1), np.full(len(raw.cell), 3 + k)])
    lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    lp.a_matrix_.start_ = np.concatenate([[0], np.cumsum(entries)])
    lp.a_matrix_.index_ = np.concatenate([index[present], raw_index.ravel()])
    lp.a_matrix_.value_ = np.concatenate([value[present], raw_value.ravel()])
    return lp
