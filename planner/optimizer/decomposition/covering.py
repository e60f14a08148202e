"""Find the cheapest instances of one model in one region at given prices (compiled).

One cell is  min f(x)  subject to  sum_g theta[g] x[g] >= need,  0 <= x <= most,  x whole.  f
charges ``first`` for each of the first ``running`` instances of a type and ``further`` for those
beyond. Since first <= further, f is convex. A cell is then a bounded covering knapsack over twice
the types (Martello and Toth, Knapsack Problems, 1990, section 3.4, in its minimising form).
Depth-first branch and bound with the fractional bound solves usual cells in tens of nodes.
"""

import math
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from simulation.compiler import cached_kernel

# A cell that needs very many nodes is proven ever more loosely: to TOLERANCE after NODES, then to
# LOOSER times the last tolerance after every NODES more.
NODES, TOLERANCE, LOOSER = 300, 1e-6, 4.0
RATIO, CARRIES, PRICE, TYPE, COUNT = range(5)  # columns of ``item``
MISSING, PAID, TAKEN = range(3)  # columns of ``state``: need left, cost so far, count taken
VISITS = 20  # limit on nodes per column when a cell's columns are listed


class LinearCells(NamedTuple):
    """All cells at given prices, with linear capacity. Axes: l models, r regions, g GPU types."""

    theta: Any  # [l, g] tokens/s of an instance
    first: Any  # [l, r, g] cost of an instance that already runs
    further: Any  # [l, r, g] cost of an instance that must start
    running: Any  # [l, r, g] instances that already run
    max_extra: Any  # [l, r, g] most instances
    need: Any  # [l, r] tokens/s to cover


class Cell(NamedTuple):
    """The arrays ``[g]`` and the need of one cell of ``LinearCells``."""

    theta: Any
    first: Any
    further: Any
    running: Any
    max_extra: Any
    need: float


class Items(NamedTuple):
    """The first ``n`` rows of ``steps``, by rising price per token, and the ``rank`` of types."""

    steps: Any
    n: int
    rank: Any  # [g] order of a type's cheapest item, or -1 if the type cannot run


class CellColumns(NamedTuple):
    """Arrays that ``cells_within`` fills with the columns of all cells.

    Cell ``l * R + r`` has rows ``begins[l * R + r]`` to ``begins[l * R + r + 1]`` of ``x[n, g]``.
    ``low`` and ``high`` ``[l, r, g]`` bound the counts of every cell.
    """

    x: Any
    begins: Any
    low: Any
    high: Any


@cached_kernel
def _one_cell(cells: Any, model: int, region: int) -> Any:
    """Return the arrays of one cell."""
    cell = (model, region)
    return Cell(
        cells.theta[model],
        cells.first[cell],
        cells.further[cell],
        cells.running[cell],
        cells.max_extra[cell],
        cells.need[cell],
    )


@cached_kernel
def _rank_items(cell: Any, item: Any, rank: Any) -> Any:
    """Fill ``item`` with the price steps of all types, by rising price per token; return ``Items``.

    A type has two steps: its running instances cost ``first`` each, new ones ``further`` each.
    """
    theta, max_extra = cell.theta, cell.max_extra
    n = 0
    for g in range(theta.size):
        rank[g] = -1
        if theta[g] <= 0.0 or max_extra[g] <= 0:
            continue
        for side in range(2):
            count = cell.running[g] if side == 0 else max_extra[g] - cell.running[g]
            if count <= 0:
                continue
            price = cell.first[g] if side == 0 else cell.further[g]
            ratio = price / theta[g]
            position = n
            while position > 0 and item[position - 1, RATIO] > ratio:
                item[position] = item[position - 1]
                position -= 1
            item[position, RATIO] = ratio
            item[position, CARRIES] = theta[g]
            item[position, PRICE] = price
            item[position, COUNT] = count
            item[position, TYPE] = g
            n += 1
    ranks = 0
    for i in range(n):
        g = int(item[i, TYPE])
        if rank[g] < 0:
            rank[g] = ranks
            ranks += 1
    return Items(item, n, rank)


@cached_kernel
def _cheapest_cover(
    items: Any, begin: int, need: float, chosen: Any, state: Any
) -> tuple[Any, Any]:
    """Return the least cost of covering ``need`` tokens/s, and a lower bound on it.

    Items from ``begin`` on may be used. Their prices must be >= 0. ``chosen`` is filled with the
    counts. Cost and bound are equal up to ``NODES`` search nodes. Both are infinite if the items do
    not suffice.
    """
    item, n = items.steps, items.n
    best, lower, nodes, tolerance = np.inf, np.inf, 0, 0.0
    i, forward = begin, True
    state[begin, MISSING], state[begin, PAID] = need, 0.0
    while i >= begin:
        if forward:
            if i == n:
                i, forward = i - 1, False
                continue
            nodes += 1
            if nodes % NODES == 0:
                tolerance = min(0.5, max(TOLERANCE, LOOSER * tolerance))
            enough = math.ceil(state[i, MISSING] / item[i, CARRIES])
            if enough <= item[i, COUNT]:
                cost = state[i, PAID] + enough * item[i, PRICE]
                if cost < best:
                    best = cost
                    for j in range(begin, n):
                        chosen[j] = state[j, TAKEN] if j < i else 0
                    chosen[i] = enough
                state[i, TAKEN] = enough - 1
            else:
                state[i, TAKEN] = item[i, COUNT]
        else:
            state[i, TAKEN] -= 1
        if state[i, TAKEN] < 0:
            i, forward = i - 1, False
            continue
        left = state[i, MISSING] - state[i, TAKEN] * item[i, CARRIES]
        cost = state[i, PAID] + state[i, TAKEN] * item[i, PRICE]
        bound, missing = cost, left
        for j in range(i + 1, n):
            if item[j, COUNT] * item[j, CARRIES] >= missing:
                bound += missing * item[j, RATIO]
                missing = 0.0
                break
            bound += item[j, COUNT] * item[j, PRICE]
            missing -= item[j, COUNT] * item[j, CARRIES]
        # Fewer of the item with the best ratio only raise the bound, so a cut ends this level.
        if missing > 0.0:
            i, forward = i - 1, False
        elif bound >= best * (1.0 - tolerance):
            lower = min(lower, bound)
            i, forward = i - 1, False
        else:
            state[i + 1, MISSING], state[i + 1, PAID] = left, cost
            i, forward = i + 1, True
    return best, min(best, lower)


@cached_kernel
def _best_single_type(cell: Any) -> int:
    """Return the type of which one instance is provably the cheapest cover of the cell's need.

    Returns -1 if a quick test cannot prove that, and -2 if there is no need. The test decides most
    cells of large plans.
    """
    theta, need = cell.theta, cell.need
    least_cost, least_per_token, least_alone, best = np.inf, np.inf, np.inf, -1
    for g in range(theta.size):
        if theta[g] <= 0.0 or cell.max_extra[g] <= 0:
            continue
        cost = cell.first[g] if cell.running[g] > 0 else cell.further[g]
        if cost < 0.0:
            return -1
        least_cost = min(least_cost, cost)
        least_per_token = min(least_per_token, cost / theta[g])
        if cost < least_alone and theta[g] >= need:
            least_alone, best = cost, g
    if need <= 0.0:
        return -2
    # Any other cover has two instances or more, and pays the least cost per token or more.
    others_cost = max(2.0 * least_cost, need * least_per_token)
    return best if least_alone <= others_cost else -1


@cached_kernel
def _count_cost(cell: Any, g: int, count: int) -> Any:
    """Return the cost of ``count`` instances of type ``g``."""
    beyond = max(0, count - cell.running[g])
    return (count - beyond) * cell.first[g] + beyond * cell.further[g]


@cached_kernel
def cheapest_cells(cells: Any, x: Any, low: Any) -> None:
    """Fill ``x[l,r,g]`` with the cheapest instances of each cell, ``low[l,r]`` with their cost.

    ``low`` is a proven lower bound, infinite for a cell that cannot be covered.
    """
    models, regions, gpus = cells.first.shape
    item = np.empty((2 * gpus, 5))
    state = np.empty((2 * gpus + 1, 3))
    rank, chosen = np.empty(gpus, np.int64), np.zeros(2 * gpus, np.int64)
    for model in range(models):
        for region in range(regions):
            cell = _one_cell(cells, model, region)
            x[model, region] = low[model, region] = 0
            alone = _best_single_type(cell)
            if alone >= 0:
                x[model, region, alone] = 1
                low[model, region] = _count_cost(cell, alone, 1)
            if alone != -1:
                continue
            items = _rank_items(cell, item, rank)
            cost, left, begin = 0.0, cell.need, 0
            # A negative price pays, so take the whole item.
            while begin < items.n and item[begin, PRICE] < 0.0:
                count = int(item[begin, COUNT])
                x[model, region, int(item[begin, TYPE])] += count
                cost += count * item[begin, PRICE]
                left -= count * item[begin, CARRIES]
                begin += 1
            if left > 0.0:
                _, lower = _cheapest_cover(items, begin, left, chosen, state)
                cost += lower
                if lower < np.inf:
                    for j in range(begin, items.n):
                        x[model, region, int(item[j, TYPE])] += chosen[j]
            low[model, region] = cost


@cached_kernel
def _fractional_cost(items: Any, after: int, but: int, need: float) -> Any:
    """Return the least cost of covering ``need`` with fractions of types ranked after ``after``.

    Type ``but`` is excluded. Items of negative price are used in full. The result is infinite if
    the types do not suffice.
    """
    item, n, rank = items.steps, items.n, items.rank
    cost, missing = 0.0, need
    for j in range(n):
        g = int(item[j, TYPE])
        if rank[g] <= after or g == but:
            continue
        if item[j, PRICE] < 0.0:
            cost += item[j, COUNT] * item[j, PRICE]
            missing -= item[j, COUNT] * item[j, CARRIES]
        elif missing <= 0.0:
            break
        elif item[j, COUNT] * item[j, CARRIES] >= missing:
            cost += missing * item[j, RATIO]
            missing = 0.0
        else:
            cost += item[j, COUNT] * item[j, PRICE]
            missing -= item[j, COUNT] * item[j, CARRIES]
    return cost if missing <= 0.0 else np.inf


@cached_kernel
def _count_ranges(items: Any, cell: Any, limit: float, x: Any, low: Any, high: Any) -> None:
    """Fill ``low`` and ``high``: per type, the range of counts whose cost is within ``limit``.

    The cost of a count includes the cheapest fractional cover of the need that it leaves. That cost
    is convex in the count, and within the limit at ``x``. So bisection finds the ends of the range.
    """
    for g in range(x.size):
        low[g] = high[g] = x[g]
        if items.rank[g] < 0:
            continue
        for side in range(2):
            inside, outside = int(x[g]), -1 if side == 0 else int(cell.max_extra[g]) + 1
            while abs(outside - inside) > 1:
                middle = (inside + outside) // 2
                rest_cost = _fractional_cost(items, -1, g, cell.need - middle * cell.theta[g])
                if _count_cost(cell, g, middle) + rest_cost <= limit:
                    inside = middle
                else:
                    outside = middle
            if side == 0:
                low[g] = inside
            else:
                high[g] = inside


@cached_kernel
def _append_within(
    items: Any, cell: Any, limit: float, box: Any, work: Any, x: Any, rows: Any
) -> Any:
    """Append every column of one cell within ``box`` that costs at most ``limit``.

    ``box`` is the least and the most instances of each type, ``work`` has the arrays of the search,
    and ``rows`` are the first row of ``x`` to fill and the end of them. Types are tried in the
    order of their rank, depth first. A branch ends where the cheapest fractional cover of the
    remaining need exceeds the limit. Returns the next free row. Returns -1 if the rows do not
    suffice, or after ``VISITS`` visits per row.
    """
    (low, high), (order, state), (row, end) = box, work, rows
    types, visits = 0, VISITS * (end - row)
    for g in range(items.rank.size):
        if items.rank[g] >= 0:
            order[items.rank[g]] = g
            types += 1
    if types == 0:
        if cell.need > 0.0:
            return row
        if row == end:
            return -1
        x[row] = 0
        return row + 1
    i = 0
    state[0, MISSING], state[0, PAID], state[0, TAKEN] = cell.need, 0.0, low[order[0]] - 1
    while i >= 0:
        state[i, TAKEN] += 1
        g, count = order[i], int(state[i, TAKEN])
        if count > high[g]:
            i -= 1
            continue
        visits -= 1
        if visits < 0:
            return -1
        cost = state[i, PAID] + _count_cost(cell, g, count)
        left = state[i, MISSING] - count * cell.theta[g]
        if cost + _fractional_cost(items, i, -1, left) > limit:
            continue
        if i < types - 1:
            i += 1
            state[i, MISSING], state[i, PAID], state[i, TAKEN] = left, cost, low[order[i]] - 1
            continue
        if row == end:
            return -1
        x[row] = 0
        for j in range(types):
            x[row, order[j]] = int(state[j, TAKEN])
        row += 1
    return row


@cached_kernel
def cells_within(cells: Any, limit: Any, solution: Any, max_columns: int, found: Any) -> bool:
    """Fill ``found`` with all columns of each cell that cost at most ``limit[l,r]``.

    A cell with more than ``max_columns`` gets no rows. ``solution[l,r,g]`` must be within the
    limit. Returns False if ``found.x`` has too few rows.
    """
    models, regions, gpus = cells.first.shape
    item = np.empty((2 * gpus, 5))
    work = np.empty(gpus, np.int64), np.empty((gpus + 1, 3))
    rank = np.empty(gpus, np.int64)
    row = 0
    found.begins[0] = 0
    for model in range(models):
        for region in range(regions):
            cell = _one_cell(cells, model, region)
            may = limit[model, region]
            items = _rank_items(cell, item, rank)
            box = (found.low[model, region], found.high[model, region])
            _count_ranges(items, cell, may, solution[model, region], box[0], box[1])
            end = min(row + max_columns, found.x.shape[0])
            done = _append_within(items, cell, may, box, work, found.x, (row, end))
            if done < 0 and end < row + max_columns:
                return False
            row = max(row, done)
            found.begins[model * regions + region + 1] = row
    return True


@cache
def compiled() -> None:
    """Compile ``cheapest_cells`` and ``cells_within``, so that no time limit pays for it."""
    # Arrays with the types and dimensions of real ones, for a problem of one cell.
    two, three = np.ones((1, 1)), np.ones((1, 1, 1))
    counts = np.ones((1, 1, 1), np.int64)
    cells = LinearCells(two, three, three, counts, counts, two)
    cheapest_cells(cells, np.empty_like(counts), np.empty_like(two))
    found = CellColumns(
        np.empty((1, 1), np.int32),
        np.empty(2, np.int64),
        np.empty_like(counts),
        np.empty_like(counts),
    )
    cells_within(cells, two, counts, 1, found)
