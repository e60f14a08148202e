"""Solve a window of any size to a proven gap by prices, columns and branch and bound.

The package docstring explains cell, column, price and joint row.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import attrgetter
from time import perf_counter

import numpy as np

from planner.optimizer.decomposition.ascent import FIRST_LEAP, ascend, polish
from planner.optimizer.decomposition.cells import Cells, PricedCells
from planner.optimizer.decomposition.master import (
    WholePlan,
    cheapest_columns,
    combine,
    relax,
    widest_band,
)
from planner.optimizer.decomposition.repair import repair_plan
from planner.optimizer.problem import FEASIBLE, INFEASIBLE, OPTIMAL, TIMEOUT, Outcome
from simulation.arrays import IntArray

# shares of the time limit at which the ascent of prices and the column generation end
ASCENT_SHARE, PRICING_SHARE = 0.25, 0.5
# share of the remaining time for HiGHS, which checks the clock only between long steps
ON_TIME = 0.9
ROUNDS = 30  # limit on rounds of column generation
# share of the objective: closer to the relaxation's cost than this, a bound is the best one
CLOSE = 1e-7
BROKEN = 1e-6  # GPUs or instances: a joint row is violated by more than this
MAX_PENALTY = 1e4  # largest multiple of the penalty on violated rows; more proves nothing further
FEW, MANY = 4, 40  # columns per cell: for prices and a first plan; for closing a gap
# From this number of cells on, columns are too many for HiGHS: use prices and repair alone. In 60 s
# 20,000 cells had a gap of 0.13% by columns (11.9% with curves), and 0.001% (0.02%) by repair.
MANY_CELLS = 10_000
WHOLE_BELOW = 100  # cells up to which HiGHS solves a whole program without curves quickly
WORTH_ANOTHER = 1e-6  # share of the bound: the least gain for which another round starts
# width of a band of columns (``master.Band``) as a share of a cell's mean cost: the widest at the
# start, and a narrow one
BAND, NARROW = 1.0, 0.05


def decompose(
    cells: Cells, *, gap: float, time_limit_s: float, check: Callable[[], None]
) -> Outcome | None:
    """Solve a window to ``gap``, a share of the objective. None: solve the whole program instead.

    First, prices are found for the joint rows: the limits that several cells share. Then branch and
    bound chooses, for each cell, one of the columns (instance counts) that are cheap at those
    prices. An exception from ``check`` ends the search and is raised.
    """
    until = perf_counter() + time_limit_s
    best = ascend(cells, until=until - (1 - ASCENT_SHARE) * time_limit_s, check=check)
    # A bound above the cost of every possible plan proves infeasibility, here and below.
    if best.bound >= cells.ceiling_usd:
        return Outcome(INFEASIBLE, target=None, bound=0.0)
    if cells.need.size >= MANY_CELLS:
        return _ascend_and_repair(cells, best, gap, until, check)
    best = _generate_columns(cells, best, gap, until - (1 - PRICING_SHARE) * time_limit_s, check)
    if best.bound >= cells.ceiling_usd:
        return Outcome(INFEASIBLE, target=None, bound=0.0)
    return _branch_and_bound(cells, best, gap, until, check)


def _ascend_and_repair(
    cells: Cells,
    best: PricedCells,
    gap: float,
    until: float,
    check: Callable[[], None],
    plan: IntArray | None = None,
) -> Outcome:
    """Improve prices and repair plans alternately, until the gap is proven or nothing helps.

    ``plan`` is the best plan known before: instances beyond the minimums. ``until`` is a time of
    ``perf_counter``.

    A repair turns the cells' cheapest solutions into a plan that meets the joint rows. With very
    many cells, only about one cell per joint row has to choose between two columns. The bound is
    therefore close to the optimum, and so is a plan that changes only those cells.
    """
    cost = np.inf if plan is None else _plan_usd(cells, plan)
    bound = -np.inf
    while True:
        began = perf_counter()
        repaired = repair_plan(cells, best)
        repair_s = perf_counter() - began  # reserved for the next repair
        if repaired is not None and _plan_usd(cells, repaired) < cost * (1 - CLOSE):
            plan, cost = repaired, _plan_usd(cells, repaired)
        elif best.bound <= bound + WORTH_ANOTHER * abs(bound):
            break
        bound = best.bound
        if bound >= cells.ceiling_usd:
            return Outcome(INFEASIBLE, target=None, bound=0.0)
        end = until - repair_s
        if _is_proven(cost, bound, gap) or perf_counter() >= end - repair_s:
            break
        # Aim at the cost of the plan. Without a plan it is infinite, so take the usual first leap.
        relative_gap = min(FIRST_LEAP, 1.0 - bound / cost)
        for improve in (partial(ascend, leap=relative_gap), polish):
            half_time = end - (end - perf_counter()) / 2
            improved = improve(cells, begin=best.prices, until=half_time, check=check)
            best = max(best, improved, key=attrgetter("bound"))
    return _outcome(cells, plan, bound, gap)


def _generate_columns(
    cells: Cells, best: PricedCells, gap: float, until: float, check: Callable[[], None]
) -> PricedCells:
    """Improve prices by column generation, until the time ``until`` of ``perf_counter``.

    Each round solves the linear relaxation over the columns so far, and adds the columns that are
    cheap at the prices (duals) it gives. Columns that were once the cheapest of a cell stay.
    Columns near the cheapest are replaced as prices move. Each round also solves the cells midway
    between the relaxation's prices and the best prices, which damps swings (Wentges 1997).
    """
    max_columns = FEW * cells.need.size + 1000
    width = BAND * best.bound / cells.need.size
    band = widest_band(cells, best, at_most=width, max_columns=max_columns)
    kept_columns = cheapest_columns(best)
    columns, penalty_factor = band.columns.union(kept_columns), 1.0
    for _ in range(ROUNDS):
        check()
        seconds_left = until - perf_counter()
        if seconds_left <= 0:
            break
        relaxed = relax(cells, columns, penalty_factor, time_limit_s=seconds_left, check=check)
        if relaxed is None:
            break
        at_relaxed = cells.solve_at(relaxed.prices)
        at_midway = cells.solve_at(best.prices.midway(relaxed.prices))
        best = max(best, at_relaxed, at_midway, key=attrgetter("bound"))
        if relaxed.usd - best.bound <= max(CLOSE, gap / 100) * abs(relaxed.usd):
            # Converged: stop if the rows hold, or a higher penalty cannot mend them.
            penalty_cannot_help = penalty_factor >= MAX_PENALTY or best.bound >= cells.ceiling_usd
            if penalty_cannot_help or relaxed.rows_violation <= BROKEN:
                break
            penalty_factor *= 10
        for more in (
            columns.select(relaxed.used),
            cheapest_columns(at_relaxed),
            cheapest_columns(at_midway),
        ):
            kept_columns = kept_columns.union(more)
        band = widest_band(cells, best, at_most=width, max_columns=max_columns)
        columns = kept_columns.union(band.columns)
    return best


def _branch_and_bound(
    cells: Cells, best: PricedCells, gap: float, until: float, check: Callable[[], None]
) -> Outcome | None:
    """Search ever wider bands of columns until the gap is proven; None: solve the whole program.

    A band has, for each cell, the columns that cost at most ``band.width`` above the cheapest. A
    plan with other columns costs at least ``best.bound + band.width``. A bound on every plan is
    therefore the smaller of that cost and the bound proven inside the band.
    """
    size = cells.need.size
    mean_cost = max(best.bound, 1.0) / size
    # HiGHS solves a small program without curves faster as a whole than with very many columns.
    is_small = size < WHOLE_BELOW and cells.is_linear
    max_columns = MANY * size + (0 if is_small else 10_000)
    band_near = partial(widest_band, cells, best)
    band = band_near(at_most=BAND * mean_cost, max_columns=FEW * size + 1000)
    if band.width < NARROW * mean_cost:  # Prices leave many columns equally good, so allow more.
        band = band_near(at_most=NARROW * mean_cost, max_columns=max_columns)
    plan: IntArray | None = None
    master: WholePlan | None = None
    cost, bound = np.inf, best.bound
    while (seconds_left := until - perf_counter()) > 0:
        check()
        if master is None:
            master = combine(
                cells,
                band.columns,
                outside=best.bound + band.width,
                start=plan,
                gap=gap,
                time_limit_s=ON_TIME * seconds_left,
                check=check,
            )
            if master.x is not None and _plan_usd(cells, master.x) < cost:
                plan, cost = master.x, _plan_usd(cells, master.x)
        bound = max(bound, min(master.bound, best.bound + band.width))
        if bound >= cells.ceiling_usd:
            return Outcome(INFEASIBLE, target=None, bound=0.0)
        if _is_proven(cost, bound, gap) or not master.finished:
            break
        # A column further than this from its cell's cheapest is in no plan cheaper than ``plan``.
        max_width = cost - best.bound
        wider = min(max_width, 4 * max(band.width, NARROW * mean_cost))
        wider_band = band_near(at_most=wider, max_columns=max_columns)
        if wider <= band.width:
            break
        if wider_band.width <= band.width:
            # Too many columns, as each cell has many instances. Without curves, the relaxation of
            # the whole program is close to whole instances then.
            if is_small:
                return None
            return _ascend_and_repair(cells, best, gap, until, check, plan)
        # The wider band may hold no further column. The proof for the old band then covers it too.
        master = master if len(wider_band.columns) == len(band.columns) else None
        band = wider_band
    return _outcome(cells, plan, bound, gap, died="" if master is None else master.died)


def _outcome(
    cells: Cells, plan: IntArray | None, bound: float, gap: float, died: str = ""
) -> Outcome:
    """Return the outcome of a search whose best ``plan`` counts instances beyond the minimums."""
    if plan is None:
        return Outcome(TIMEOUT, target=None, bound=bound, died=died)
    status = OPTIMAL if _is_proven(_plan_usd(cells, plan), bound, gap) else FEASIBLE
    return Outcome(status, cells.minimum + plan, bound)


def _is_proven(cost: float, bound: float, gap: float) -> bool:
    """Return True if ``bound`` is within the share ``gap`` of ``cost`` (infinite: no plan yet)."""
    return bool(np.isfinite(cost)) and cost - bound <= (gap + CLOSE) * abs(cost)


def _plan_usd(cells: Cells, x: IntArray) -> float:
    """Return the objective of the plan ``x`` (instances beyond the minimums)."""
    columns = x.reshape(-1, x.shape[2]).astype(np.int32)
    return float(cells.column_usd(columns, np.arange(len(columns))).sum()) + cells.fixed_usd
