"""List columns of cells, and choose one per cell so that capacities, joint demands and caps hold.

Columns are candidate instance counts close to a cell's cheapest. The choice is Dantzig and Wolfe
(1960) with columns of whole instances. Its linear relaxation reaches the best bound that prices can
prove, and branch and bound starts from there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import highspy
import numpy as np

from planner.optimizer.decomposition.cells import ROUNDING, Cells, PricedCells, Prices
from planner.optimizer.decomposition.covering import CellColumns, cells_within
from planner.optimizer.highs import load_program, run, silent_highs
from planner.optimizer.problem import INFEASIBLE
from planner.optimizer.solvers.arrays import INF, Builder, Entry
from planner.optimizer.solvers.deadline import solve_program
from simulation.arrays import BoolArray, FloatArray, Int32Array, IntArray

COLUMNS_PER_CELL = 60  # limit on columns of one cell; beyond it, a range per type replaces them
POOLED = 2_000  # the same limit where capacity is a curve, so that ranges cannot replace columns
GUARD_FROM = 5_000  # columns: with fewer, HiGHS respects the time limit well enough
# multiple of the dearest instance: penalty per unit of a broken row while columns are missing
SHORTAGE_PRICE = 10.0


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Candidate instance counts of cells ("columns"). A cell is a model in a region.

    Each cell has at least one. These columns are not the GPU columns of the problem.
    """

    x: Int32Array  # [n, g] instances beyond the minimums
    cell: IntArray  # [n] model * R + region, ascending

    def __len__(self) -> int:
        return len(self.cell)

    def with_more(self, other: Columns) -> Columns:
        """Return the union of both, with duplicates removed."""
        cell, x = np.concatenate([self.cell, other.cell]), np.concatenate([self.x, other.x])
        unique = np.unique(np.column_stack([cell, x]), axis=0)
        return Columns(unique[:, 1:].astype(np.int32), unique[:, 0].astype(np.int64))

    def only(self, which: BoolArray) -> Columns:
        """Return the selected columns."""
        return Columns(self.x[which], self.cell[which])


def cheapest_columns(priced: PricedCells) -> Columns:
    """Return one column per cell, its cheapest solution in ``priced``."""
    gpus = priced.x.shape[2]
    return Columns(priced.x.reshape(-1, gpus).astype(np.int32), np.arange(priced.lowest.size))


@dataclass(frozen=True, slots=True, eq=False)
class Boxes:
    """Ranges of instance counts per GPU type, for cells with too many columns to list."""

    cell: IntArray  # [h] ascending
    low: IntArray  # [h, g] beyond the minimums
    high: IntArray  # [h, g]


def no_boxes(gpus: int) -> Boxes:
    """Return an empty set of boxes, so that columns describe every cell."""
    none = np.empty((0, gpus), np.int64)
    return Boxes(np.empty(0, np.int64), none, none)


@dataclass(frozen=True, slots=True, eq=False)
class Band:
    """The columns of each cell that cost at most ``width`` more than its cheapest, or their boxes.

    A plan outside the band costs at least ``width`` more than the lower bound at the prices.
    """

    columns: Columns
    boxes: Boxes
    width: float

    @property
    def size(self) -> int:
        """Return the number of variables that a program over the band needs."""
        return len(self.columns) + 2 * int((self.boxes.high > 0).sum())


def columns_near(
    cells: Cells, prices: Prices, priced: PricedCells, *, width: float, max_variables: int
) -> Band | None:
    """Return the band at ``prices``: the columns that cost up to ``width`` above the cheapest.

    A cell with too many columns gets a box instead: a range of counts per GPU type. Boxes need
    linear capacities. Return None if the band needs more than ``max_variables`` or an impossible
    box.
    """
    usd_running, usd_new = cells.instance_charges(prices)
    started = np.maximum(0, priced.x - cells.running)
    cost = ((priced.x - started) * usd_running + started * usd_new).sum(axis=2)
    cost -= (prices.demand / cells.mean_tps)[:, None] * priced.served
    # If a cell's branch and bound was cut short, its cheapest can cost more than its bound.
    max_cost = np.maximum(priced.lowest + width, cost) + ROUNDING * np.abs(priced.lowest)
    gpus = cells.max_extra.shape[2]
    low, high = np.empty_like(cells.max_extra), np.empty_like(cells.max_extra)
    x, begins = np.empty((max_variables, gpus), np.int32), np.empty(max_cost.size + 1, np.int64)
    max_columns = COLUMNS_PER_CELL if cells.is_linear else POOLED
    all_columns = CellColumns(x, begins, low, high)
    if not cells_within(cells.arrays(prices), max_cost, max_columns, all_columns):
        return None
    count = np.diff(begins)
    columns = Columns(x[: begins[-1]].copy(), np.repeat(np.arange(max_cost.size), count))
    # Cells with too many columns got none.
    boxed = np.flatnonzero(count == 0)
    if boxed.size and not cells.is_linear:
        return None
    boxes = Boxes(boxed, low.reshape(-1, gpus)[boxed], high.reshape(-1, gpus)[boxed])
    band = Band(columns, boxes, width)
    return band if band.size <= max_variables else None


def widest_band(
    cells: Cells, prices: Prices, priced: PricedCells, *, at_most: float, max_variables: int
) -> Band:
    """Return the widest band within ``max_variables``, halving down from ``at_most``."""
    width = at_most
    while width > ROUNDING * max(1.0, abs(priced.bound)):
        band = columns_near(cells, prices, priced, width=width, max_variables=max_variables)
        if band is not None:
            return band
        width /= 2
    return Band(cheapest_columns(priced), no_boxes(priced.x.shape[2]), 0.0)


@dataclass(frozen=True, slots=True, eq=False)
class RelaxedPlan:
    """The optimum if each cell may mix fractions of columns.

    A column is one choice of instance counts for a cell (a model in a region).
    """

    usd: float  # fixed cost and penalties of broken rows included
    prices: Prices
    used: BoolArray  # [n] columns with a value above 0
    broken: float  # total violation of rows, in GPUs and instances


@dataclass(frozen=True, slots=True, eq=False)
class WholePlan:
    """The best plan found in which each cell uses exactly one column."""

    x: IntArray | None  # [l, r, g] beyond the minimums; None if none was found
    bound: float  # lower bound on plans made of these columns; infinite if there is none
    finished: bool  # False if time ran out or the solver died
    died: str = ""  # message if the solver ended unexpectedly


def relax(
    cells: Cells,
    columns: Columns,
    penalty_factor: float,
    *,
    time_limit_s: float,
    check: Callable[[], None],
) -> RelaxedPlan | None:
    """Return the optimum of the linear relaxation over ``columns``; None if HiGHS found none.

    Joint rows may be violated at a penalty: ``penalty_factor`` times ``SHORTAGE_PRICE`` times the
    dearest instance. None usually means that time ran out.
    """
    penalty = penalty_factor * SHORTAGE_PRICE * float((cells.usd + cells.start).max())
    builder = _master_program(
        cells, Band(columns, no_boxes(cells.max_extra.shape[2]), 0.0), penalty
    )
    highs = silent_highs(time_limit_s=time_limit_s)
    load_program(highs, builder.program().highs(relaxed=True))
    run(highs, check)
    if highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return None
    solution = highs.getSolution()
    values = np.array(solution.col_value)
    # Skip the duals of the "cell" rows. Rows of the form <= have duals <= 0, hence the signs below.
    duals = np.array(solution.row_dual)[cells.need.size :]
    room, demand, caps = np.split(duals, [cells.room.size, cells.room.size + len(cells.joint)])
    prices = Prices(
        np.maximum(0.0, -room).reshape(cells.room.shape),
        np.maximum(0.0, demand),
        np.maximum(0.0, -caps),
    )
    usd = highs.getInfo().objective_function_value + cells.fixed_usd
    used, broken = values[: len(columns)] > 0, float(values[len(columns) :].sum())
    return RelaxedPlan(usd, prices, used, broken)


def combine(
    cells: Cells,
    band: Band,
    *,
    outside: float,
    start: IntArray | None,
    gap: float,
    time_limit_s: float,
    check: Callable[[], None],
) -> WholePlan:
    """Choose one column per cell, to the relative ``gap`` or until time runs out.

    Plans outside ``band`` cost at least ``outside``, so the search also ends when its bound reaches
    that cost. ``start`` is a plan ``[model, region, GPU column]`` to begin from.
    """
    solved = solve_program(
        _master_program(cells, band).program(),
        gap=gap,
        time_limit_s=time_limit_s,
        check=check,
        start=None if start is None else _start_values(cells, band, start),
        outside=outside - cells.fixed_usd,
        guard_from=GUARD_FROM,
    )
    if solved.status == INFEASIBLE:
        return WholePlan(x=None, bound=np.inf, finished=True)
    bound = solved.bound + cells.fixed_usd
    if solved.values is None:
        return WholePlan(x=None, bound=bound, finished=not solved.cut, died=solved.died)
    values = np.rint(solved.values).astype(np.int64)
    columns, box_variables = band.columns, _BoxVariables.from_boxes(cells, band.boxes)
    # The first variables choose columns. The others count instances in boxes.
    chosen = values[: len(columns)] > 0
    x = np.zeros((cells.need.size, cells.max_extra.shape[2]), np.int64)
    x[columns.cell[chosen]] = columns.x[chosen]
    np.add.at(x, (box_variables.cell, box_variables.gpu), values[len(columns) :])
    plan = x.reshape(cells.max_extra.shape)
    return WholePlan(plan, bound, finished=not solved.cut, died=solved.died)


@dataclass(frozen=True, slots=True, eq=False)
class _BoxVariables:
    """Variables of the cells described by boxes (ranges of counts) instead of columns.

    Each GPU type has two: instances that run already, and instances beyond them.
    """

    start: BoolArray  # [v] True for instances beyond those running
    cell: IntArray  # [v]
    gpu: IntArray  # [v]
    low: IntArray  # [v]
    high: IntArray  # [v]
    cost: FloatArray  # [v] US dollars per hour

    @classmethod
    def from_boxes(cls, cells: Cells, boxes: Boxes) -> _BoxVariables:
        """Return the variables of ``boxes``, without those that could only be 0."""
        running, usd, start_usd = (
            by_cell.reshape(-1, cells.max_extra.shape[2])[boxes.cell]
            for by_cell in (cells.running, cells.usd, cells.start)
        )

        def split(counts: IntArray) -> IntArray:
            """Return rows with the part of ``counts`` that runs already, then the rest."""
            return np.concatenate([np.minimum(counts, running), np.maximum(0, counts - running)])

        low, high = split(boxes.low), split(boxes.high)
        cost = np.concatenate([usd, usd + start_usd])
        row, gpu = np.nonzero(high)
        cell = np.concatenate([boxes.cell, boxes.cell])[row]
        return cls(row >= len(boxes.cell), cell, gpu, low[row, gpu], high[row, gpu], cost[row, gpu])

    def cap_use(self, cells: Cells) -> FloatArray:
        """Return how much of each plan-wide cap an instance of each variable uses, ``[v, k]``."""
        shape = len(cells.cap_room), cells.need.size, cells.max_extra.shape[2]
        running = cells.cap_x.reshape(shape)[:, self.cell, self.gpu]
        starting = cells.cap_start.reshape(shape)[:, self.cell, self.gpu] * self.start
        use: FloatArray = (running + starting).T
        return use


def _start_values(cells: Cells, band: Band, x: IntArray) -> FloatArray:
    """Return the values of the master program's variables that stand for the plan ``x``."""
    columns, in_box = band.columns, _BoxVariables.from_boxes(cells, band.boxes)
    x_by_cell = x.reshape(cells.need.size, -1)
    chosen = (columns.x == x_by_cell[columns.cell]).all(axis=1)
    total = x_by_cell[in_box.cell, in_box.gpu]
    running = np.minimum(total, cells.running.reshape(x_by_cell.shape)[in_box.cell, in_box.gpu])
    box_values = np.where(in_box.start, total - running, running)
    return np.concatenate([chosen, box_values]).astype(float)


def _master_program(cells: Cells, band: Band, penalty: float | None = None) -> Builder:
    """Build the program that chooses a column (instance counts) for each cell.

    A cell whose columns are not listed has a box (a range of counts) with a variable per GPU type
    instead. Rows: one column per cell, or enough instances in its box; a GPU limit per region and
    type; a joint demand per model; the plan-wide caps. With a ``penalty``, all rows except the
    first kind may be violated at that price per GPU or instance.
    """
    columns, in_box, builder = band.columns, _BoxVariables.from_boxes(cells, band.boxes), Builder()
    # The relaxation needs no bound: the "cell" rows limit the sum to 1.
    upper_bound = 1.0 if penalty is None else INF
    cost = cells.column_usd(columns.x, columns.cell)
    chosen = builder.variables(len(columns), cost=cost, upper=upper_bound, integral=True)
    boxed = builder.variables(
        len(in_box.cell), cost=in_box.cost, lower=in_box.low, upper=in_box.high, integral=True
    )
    regions = cells.need.shape[1]
    model, region = np.divmod(columns.cell, regions)
    box_model, box_region = np.divmod(in_box.cell, regions)
    # Tokens/s are counted in mean instances of the model.
    serves = cells.served_tps(columns.x, columns.cell) / cells.mean_tps[model]
    box_serves = cells.curves.theta[box_model, in_box.gpu] / cells.mean_tps[box_model]

    per_cell: list[Entry] = [(columns.cell, chosen, 1.0), (in_box.cell, boxed, box_serves)]
    builder.add("cell", per_cell, *_cell_limits(cells, band.boxes), cells.need.size)

    types, all_caps = cells.room.shape[1], np.arange(len(cells.cap_room))
    capacity_row = region[:, None] * types + np.arange(types)
    box_capacity_row = box_region * types + cells.rows[in_box.gpu]
    used: list[Entry] = [
        (capacity_row, chosen[:, None], cells.by_row(columns.x * cells.size[model])),
        (box_capacity_row, boxed, cells.size[box_model, in_box.gpu]),
    ]
    served: list[Entry] = [(model, chosen, serves), (box_model, boxed, box_serves)]
    cap_use: list[Entry] = [
        (all_caps, chosen[:, None], cells.cap_use(columns.x, columns.cell)),
        (all_caps, boxed[:, None], in_box.cap_use(cells)),
    ]
    joint = cells.joint / cells.mean_tps
    for family, entries, lower, upper, rows in (
        ("capacity", used, -INF, cells.room.ravel(), cells.room.size),
        ("joint", served, joint, INF, len(joint)),
        ("caps", cap_use, -INF, cells.cap_room, len(all_caps)),
    ):
        if penalty is not None:
            # A violation adds to the tokens/s served, or takes from the GPUs or caps used.
            sign = 1.0 if family == "joint" else -1.0
            violation = builder.variables(rows, cost=penalty)
            entries.append((np.arange(rows), violation, sign))
        builder.add(family, entries, lower, upper, rows)
    return builder


def _cell_limits(cells: Cells, boxes: Boxes) -> tuple[FloatArray, FloatArray]:
    """Return the lower and upper limits of the rows "cell", one row per cell.

    A cell with columns uses exactly one. A cell with a box has enough instances for its need.
    """
    lower, upper = np.ones((2, cells.need.size))
    in_box = boxes.cell
    lower[in_box] = cells.need.ravel()[in_box] / cells.mean_tps[in_box // cells.need.shape[1]]
    upper[in_box] = INF
    return lower, upper
