"""List columns of cells, and choose one per cell so that capacities, joint demands and caps hold.

A cell is a model in a region. A column of a cell is a choice of its instance counts that costs
little more than the cheapest. The program that chooses columns is that of Dantzig and Wolfe (1960),
with whole instances. Its linear relaxation reaches the best bound that prices can prove, and branch
and bound starts from there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import highspy
import numpy as np

from planner.optimizer.decomposition.cells import ROUNDING, Cells, PricedCells, Prices
from planner.optimizer.decomposition.covering import enumerate_columns
from planner.optimizer.problem import INFEASIBLE
from planner.optimizer.solvers.arrays import INF, Builder, Entry
from planner.optimizer.solvers.deadline import solve_program
from planner.optimizer.solvers.highs import loaded_highs, run
from simulation.arrays import BoolArray, FloatArray, Int32Array, IntArray

GUARD_FROM = 5_000  # columns: with fewer, HiGHS respects the time limit well enough
# penalty per GPU or mean instance of a violated constraint, as a multiple of the dearest instance
SHORTAGE_PRICE = 10.0


@dataclass(frozen=True, slots=True, eq=False)
class Columns:
    """Candidate instance counts of cells ("columns"). A cell is a model in a region.

    Each cell has at least one. These columns are not the GPU columns of the problem.
    """

    x: Int32Array  # [n, GPU column] instances beyond the minimums
    cell: IntArray  # [n] model * regions + region, ascending

    def __len__(self) -> int:
        return len(self.cell)

    def union(self, other: Columns) -> Columns:
        """Return the union of both, with duplicates removed."""
        cell, x = np.concatenate([self.cell, other.cell]), np.concatenate([self.x, other.x])
        unique = np.unique(np.column_stack([cell, x]), axis=0)
        return Columns(unique[:, 1:].astype(np.int32), unique[:, 0].astype(np.int64))

    def select(self, mask: BoolArray) -> Columns:
        """Return the columns where ``mask [n]`` is True."""
        return Columns(self.x[mask], self.cell[mask])


def cheapest_columns(priced: PricedCells) -> Columns:
    """Return one column (instance counts) per cell: its cheapest solution in ``priced``."""
    gpus = priced.x.shape[2]
    return Columns(priced.x.reshape(-1, gpus).astype(np.int32), np.arange(priced.lowest_usd.size))


@dataclass(frozen=True, slots=True, eq=False)
class Band:
    """The columns (instance counts) of each cell that cost at most ``width`` above its cheapest.

    Costs are those at the prices of shared constraints. A plan with any other column costs at least
    the lower bound at these prices plus ``width``.
    """

    columns: Columns
    width: float  # in units of the objective: US dollars per hour


def columns_near(
    cells: Cells, priced: PricedCells, *, width: float, max_columns: int
) -> Band | None:
    """Return the columns that cost up to ``width`` above the cheapest, at the prices of ``priced``.

    A column is a choice of instance counts of a cell. None: there are more than ``max_columns``, or
    listing them takes too long.
    """
    # The cost of each cell's solution, less the value of the tokens that it serves. It exceeds
    # ``lowest_usd`` if the search of the cell was cut short, and the band has to include it.
    running_usd, new_usd = cells.instance_charges(priced.prices)
    starts = np.maximum(0, priced.x - cells.running_count)
    instances_usd = ((priced.x - starts) * running_usd + starts * new_usd).sum(axis=2)
    token_usd = (priced.prices.demand / cells.mean_tps)[:, None]  # value of joint demand
    solution_usd, lowest_usd = instances_usd - token_usd * priced.served_tps, priced.lowest_usd
    max_cost = np.maximum(lowest_usd + width, solution_usd) + ROUNDING * np.abs(lowest_usd)
    gpus = cells.max_extra.shape[2]
    x, first_rows = np.empty((max_columns, gpus), np.int32), np.empty(max_cost.size + 1, np.int64)
    if not enumerate_columns(cells.arrays(priced.prices), max_cost, x, first_rows):
        return None
    cell = np.repeat(np.arange(max_cost.size), np.diff(first_rows))
    return Band(Columns(x[: first_rows[-1]].copy(), cell), width)


def widest_band(cells: Cells, priced: PricedCells, *, at_most: float, max_columns: int) -> Band:
    """Return a band of columns as wide as ``max_columns`` allow.

    The width is ``at_most``, halved until the columns of the band are few enough. It is 0 if no
    width works: the band is then the cheapest column of each cell.
    """
    width = at_most
    while width > ROUNDING * max(1.0, abs(priced.bound)):
        band = columns_near(cells, priced, width=width, max_columns=max_columns)
        if band is not None:
            return band
        width /= 2
    return Band(cheapest_columns(priced), 0.0)


@dataclass(frozen=True, slots=True, eq=False)
class RelaxedPlan:
    """The optimum if each cell may mix fractions of columns.

    A column is one choice of instance counts for a cell (a model in a region).
    """

    usd: float  # objective, with the fixed cost and the penalties of violated constraints
    prices: Prices  # duals of the constraints that cells share
    used: BoolArray  # [column] True if it has a value above 0
    rows_violation: float  # of capacities, joint demands and caps, in GPUs and mean instances


@dataclass(frozen=True, slots=True, eq=False)
class WholePlan:
    """The best plan found in which each cell uses exactly one column."""

    x: IntArray | None  # [model, region, GPU column] beyond the minimums; None: no plan found
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

    Capacities, joint demands and caps may be violated at a penalty: ``penalty_factor`` times
    ``SHORTAGE_PRICE`` times the dearest instance. None usually means that time ran out.
    """
    penalty = penalty_factor * SHORTAGE_PRICE * float((cells.usd_each + cells.start_usd).max())
    builder = _master_program(cells, columns, penalty)
    highs = loaded_highs(builder.program(), time_limit_s=time_limit_s, relaxed=True)
    run(highs, check)
    if highs.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        return None
    solution = highs.getSolution()
    # Variables: the share of each column in its cell, then the violation of each row.
    shares, violations = np.split(np.array(solution.col_value), [len(columns)])
    usd = highs.getInfo().objective_function_value + cells.fixed_usd
    # Duals in the order of the rows of ``_master_program``. Those of rows <= are <= 0.
    ends = np.cumsum([cells.need_tps.size, cells.free_gpus.size, len(cells.joint_tps)])
    _, capacity, demand, caps = np.split(np.array(solution.row_dual), ends)
    prices = Prices(
        np.maximum(0.0, -capacity).reshape(cells.free_gpus.shape),
        np.maximum(0.0, demand),
        np.maximum(0.0, -caps),
    )
    return RelaxedPlan(usd, prices, shares > 0, float(violations.sum()))


def combine(
    cells: Cells,
    columns: Columns,
    *,
    outside: float,
    start: IntArray | None,
    gap: float,
    time_limit_s: float,
    check: Callable[[], None],
) -> WholePlan:
    """Choose one column per cell at the least cost, to the relative ``gap`` or until time runs out.

    A plan with a column outside ``columns`` costs at least ``outside``, so the search also ends
    when its bound reaches that cost. ``start [model, region, GPU column]`` is a plan to begin from;
    None: none.
    """
    start_values = None
    if start is not None:
        # 1 for the column of each cell that has the counts of the plan, else 0.
        counts = start.reshape(cells.need_tps.size, -1)[columns.cell]
        start_values = (columns.x == counts).all(axis=1).astype(np.float64)
    solved = solve_program(
        _master_program(cells, columns).program(),
        gap=gap,
        time_limit_s=time_limit_s,
        check=check,
        start=start_values,
        outside=outside - cells.fixed_usd,
        guard_from=GUARD_FROM,
    )
    if solved.status == INFEASIBLE:
        return WholePlan(x=None, bound=np.inf, finished=True)
    bound = solved.bound + cells.fixed_usd
    if solved.values is None:
        return WholePlan(x=None, bound=bound, finished=not solved.cut, died=solved.died)
    chosen = solved.values > 0.5
    x = np.zeros((cells.need_tps.size, cells.max_extra.shape[2]), np.int64)
    x[columns.cell[chosen]] = columns.x[chosen]
    plan = x.reshape(cells.max_extra.shape)
    return WholePlan(plan, bound, finished=not solved.cut, died=solved.died)


def _master_program(cells: Cells, columns: Columns, penalty: float | None = None) -> Builder:
    """Build the program that chooses a column (instance counts) for each cell.

    Rows: one column per cell; the GPUs of each region and capacity row; the joint demand of each
    model; the plan-wide caps. With a ``penalty``, all but the first may be violated at that price
    per GPU or mean instance. Entries of the matrix are (row, variable, factor).
    """
    builder = Builder()
    # The relaxation needs no bound: the "cell" rows limit the sum to 1.
    upper_bound = 1.0 if penalty is None else INF
    cost = cells.column_usd(columns.x, columns.cell)
    chosen = builder.variables(len(columns), cost=cost, upper=upper_bound, integral=True)
    builder.add("cell", [(columns.cell, chosen, 1.0)], 1.0, 1.0, cells.need_tps.size)

    model, region = np.divmod(columns.cell, cells.need_tps.shape[1])
    types = cells.free_gpus.shape[1]
    # [column, GPU type] row number, and GPUs that the column uses there.
    capacity_row = region[:, None] * types + np.arange(types)
    gpus = cells.by_row(columns.x * cells.gpus_each[model])
    used_gpus: Entry = capacity_row, chosen[:, None], gpus
    _add_limits(builder, "capacity", used_gpus, cells.free_gpus.ravel(), penalty)
    # Tokens/s are counted in mean instances of the model.
    served = cells.served_tps(columns.x, columns.cell) / cells.mean_tps[model]
    demand: list[Entry] = [(model, chosen, served)]
    if penalty is not None:
        missing = builder.variables(len(cells.joint_tps), cost=penalty)
        demand.append((np.arange(len(missing)), missing, 1.0))
    builder.add("joint", demand, cells.joint_tps / cells.mean_tps, INF, len(cells.joint_tps))
    caps, cap_use = np.arange(len(cells.cap_rest)), cells.cap_use(columns.x, columns.cell)
    _add_limits(builder, "caps", (caps, chosen[:, None], cap_use), cells.cap_rest, penalty)
    return builder


def _add_limits(
    builder: Builder,
    family: str,
    use: Entry,
    limit: FloatArray | IntArray,
    penalty: float | None,
) -> None:
    """Add rows that limit what is ``use`` to ``limit``, or to more at a ``penalty``."""
    entries = [use]
    if penalty is not None:
        rows = np.arange(len(limit))
        entries.append((rows, builder.variables(len(limit), cost=penalty), -1.0))
    builder.add(family, entries, -INF, limit, len(limit))
