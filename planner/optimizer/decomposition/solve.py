"""Solve a window of any size to a proven gap by prices, columns and branch and bound.

The package docstring explains cell, column, price and joint row.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import attrgetter
from time import perf_counter

import numpy as np

from planner.optimizer.decomposition.ascent import FIRST_OVERSHOOT, ascend, polish
from planner.optimizer.decomposition.cells import Cells, PricedCells
from planner.optimizer.decomposition.master import (
    Band,
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
    if cells.need_tps.size >= MANY_CELLS:
        return _ascend_and_repair(cells, best, gap, until, check)
    best = _generate_columns(cells, best, gap, until - (1 - PRICING_SHARE) * time_limit_s, check)
    if best.bound >= cells.ceiling_usd:
        return Outcome(INFEASIBLE, target=None, bound=0.0)
    return _BandSearch(cells, best, gap, until, check).run()


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
            break  # neither a better plan nor a better bound
        bound = best.bound
        # A bound above the cost of every possible plan proves infeasibility.
        if bound >= cells.ceiling_usd:
            return Outcome(INFEASIBLE, target=None, bound=0.0)
        prices_until = until - repair_s
        if _is_proven(cost, bound, gap) or perf_counter() >= prices_until - repair_s:
            break
        # Better prices, by each method in half of the time that is left to it. They aim at the
        # plan's cost.
        relative_gap = min(FIRST_OVERSHOOT, 1.0 - best.bound / cost)
        for improve in (partial(ascend, overshoot=relative_gap), polish):
            half_time = prices_until - (prices_until - perf_counter()) / 2
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
    # ``band_near(solution)``: the columns that cost little more than the cheapest of their cell.
    band_near = partial(
        widest_band,
        cells,
        at_most=BAND * best.bound / cells.need_tps.size,
        max_columns=FEW * cells.need_tps.size + 1000,
    )
    kept_columns = cheapest_columns(best)
    columns, penalty_factor = band_near(best).columns.union(kept_columns), 1.0
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
        kept_columns = kept_columns.union(columns.select(relaxed.used))
        kept_columns = kept_columns.union(cheapest_columns(at_relaxed))
        kept_columns = kept_columns.union(cheapest_columns(at_midway))
        columns = kept_columns.union(band_near(best).columns)
    return best


class _BandSearch:
    """A search in ever wider bands of columns until the gap is proven.

    A band has, for each cell, the columns that cost at most ``band.width`` above the cheapest. A
    plan with other columns costs at least ``best.bound + band.width``. A bound on every plan is
    therefore the smaller of that cost and the bound proven inside the band. ``until`` is a time of
    ``perf_counter``.
    """

    def __init__(
        self,
        cells: Cells,
        best: PricedCells,
        gap: float,
        until: float,
        check: Callable[[], None],
    ) -> None:
        self.cells, self.best, self.gap, self.until, self.check = cells, best, gap, until, check
        size = cells.need_tps.size
        self.mean_cost = max(best.bound, 1.0) / size
        # HiGHS solves a small program without curves faster as a whole than with very many columns.
        self.is_small = size < WHOLE_BELOW and cells.is_linear
        self.max_columns = MANY * size + (0 if self.is_small else 10_000)
        self.plan: IntArray | None = None
        self.cost, self.bound = np.inf, best.bound

    def run(self) -> Outcome | None:
        """Return the best plan and the bound found; None: solve the whole program instead.

        A band has the columns that cost up to its width more than the cheapest of their cell. Each
        round finds the best plan of a band. The next band is wider, until the gap is proven, time
        runs out, or no wider band can have a better plan.
        """
        # At first few columns, or a narrow band with more: prices may leave many equally good.
        band = self._band(BAND * self.mean_cost, FEW * self.cells.need_tps.size + 1000)
        if band.width < NARROW * self.mean_cost:
            band = self._band(NARROW * self.mean_cost, self.max_columns)
        whole_plan: WholePlan | None = None
        while True:
            seconds_left = self.until - perf_counter()
            if seconds_left <= 0:
                break
            self.check()
            if whole_plan is None:
                whole_plan = self._combine(band, ON_TIME * seconds_left)
            # Plans with a column outside the band cost at least the second value.
            self.bound = max(self.bound, min(whole_plan.bound, self.best.bound + band.width))
            if self.bound >= self.cells.ceiling_usd:
                return Outcome(INFEASIBLE, target=None, bound=0.0)
            if _is_proven(self.cost, self.bound, self.gap) or not whole_plan.finished:
                break
            # A column further than this from its cell's cheapest is in no plan below ``cost``.
            max_width = self.cost - self.best.bound
            wider = min(max_width, 4 * max(band.width, NARROW * self.mean_cost))
            if wider <= band.width:
                break
            wider_band = self._band(wider, self.max_columns)
            if wider_band.width <= band.width:
                return self._with_too_many_columns()
            # Without new columns, the plan and its bound hold for the wider band too.
            if len(wider_band.columns) > len(band.columns):
                whole_plan = None
            band = wider_band
        died = "" if whole_plan is None else whole_plan.died
        return _outcome(self.cells, self.plan, self.bound, self.gap, died)

    def _band(self, width: float, max_columns: int) -> Band:
        """Return the widest band up to ``width`` with ``max_columns`` or fewer."""
        return widest_band(self.cells, self.best, at_most=width, max_columns=max_columns)

    def _combine(self, band: Band, seconds: float) -> WholePlan:
        """Return the best plan of the columns in ``band``, and keep it if it is the cheapest."""
        combined = combine(
            self.cells,
            band.columns,
            outside=self.best.bound + band.width,
            start=self.plan,
            gap=self.gap,
            time_limit_s=seconds,
            check=self.check,
        )
        if combined.x is not None and _plan_usd(self.cells, combined.x) < self.cost:
            self.plan, self.cost = combined.x, _plan_usd(self.cells, combined.x)
        return combined

    def _with_too_many_columns(self) -> Outcome | None:
        """Return the outcome if no wider band can be listed: by repair, or None if small."""
        if self.is_small:
            return None
        return _ascend_and_repair(
            self.cells, self.best, self.gap, self.until, self.check, self.plan
        )


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
