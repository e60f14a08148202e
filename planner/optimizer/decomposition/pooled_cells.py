"""Solve cells in which pooled capacity is a curve: see ``optimizer.pools`` (compiled).

One cell is  min sum_g f_g(x_g)  subject to  sum_g G_g(x_g) >= need,  0 <= x <= most,  x whole. It
is a covering knapsack with multiple choices (Martello and Toth, Knapsack Problems, 1990, section
3.5, in its minimising form). f and G are tables, so any curve is allowed.

Each type is counted from its cheapest point, since fewer instances cost more and carry less. The
bound covers the missing capacity along the types' lower hulls of cost over capacity (Sinha and
Zoltners 1979).
"""

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from planner.optimizer.decomposition.covering import (
    CARRIES,
    LOOSER,
    MISSING,
    NODES,
    PAID,
    PRICE,
    RATIO,
    TAKEN,
    TOLERANCE,
    TYPE,
    VISITS,
    Items,
)  # fmt: skip
from simulation.compiler import cached_kernel

LEAST, MOST = range(2)  # columns of ``box``: counts of a type


class PooledCells(NamedTuple):
    """All cells at given prices: the fields of ``LinearCells``, and those of pooled capacity."""

    theta: Any  # [l, g] tokens/s that an instance adds beyond the curve of ``pool``
    first: Any  # [l, r, g] cost of an instance that already runs
    further: Any  # [l, r, g] cost of an instance that must start
    running: Any  # [l, r, g] instances that already run
    max_extra: Any  # [l, r, g] most instances beyond the minimums
    need: Any  # [l, r] tokens/s to cover
    pool: Any  # [l, g, n] tokens/s of pools of n + 1
    minimum: Any  # [l, r, g] instances that are always there
    token_value: Any  # [l] value of a token/s that serves joint demand
    steepest: Any  # [l, g] most tokens/s that one instance adds


class PooledCell(NamedTuple):
    """The fields of ``PooledCells`` for one model in one region."""

    theta: Any
    first: Any
    further: Any
    running: Any
    max_extra: Any
    need: float
    pool: Any
    minimum: Any
    token_value: float
    steepest: Any


class Tables(NamedTuple):
    """Work arrays of one cell, by type g and count x.

    ``gain`` and ``cost`` are relative to ``origin``, the count with the least cost.
    """

    gain: Any  # [g, x] tokens/s
    cost: Any  # [g, x]
    origin: Any  # [g]
    top: Any  # [g] largest count that is filled
    base: Any  # tokens/s and cost of the counts ``origin`` of all types together


@cached_kernel
def _pool_capacity(pool: Any, theta: float, count: int) -> Any:
    """Return the joint capacity of ``count`` instances of one type, in tokens/s."""
    if count <= 0:
        return 0.0
    curve_length = pool.size
    return (
        pool[count - 1]
        if count <= curve_length
        else pool[curve_length - 1] + theta * (count - curve_length)
    )


@cached_kernel
def _one_cell(cells: Any, model: int, region: int) -> Any:
    """Return the arrays of one cell."""
    cell = (model, region)
    return PooledCell(
        cells.theta[model],
        cells.first[cell],
        cells.further[cell],
        cells.running[cell],
        cells.max_extra[cell],
        cells.need[cell],
        cells.pool[model],
        cells.minimum[cell],
        cells.token_value[model],
        cells.steepest[model],
    )


@cached_kernel
def _fill_row(cell: Any, g: int, x: int, tables: Any) -> None:
    """Fill ``gain[g, x]`` (tokens/s) and ``cost[g, x]`` for x instances of a type.

    The value of the joint demand that they serve is deducted from the cost.
    """
    beyond = max(0, x - cell.running[g])
    pool, theta, minimum = cell.pool[g], cell.theta[g], cell.minimum[g]
    gain = _pool_capacity(pool, theta, minimum + x) - _pool_capacity(pool, theta, minimum)
    tables.gain[g, x] = gain
    instances_cost = (x - beyond) * cell.first[g] + beyond * cell.further[g]
    tables.cost[g, x] = instances_cost - cell.token_value * gain


@cached_kernel
def _fill_tables(cell: Any, limit: float, tables: Any) -> None:
    """Fill the ``tables`` of a cell, up to the counts that may cost at most ``limit``."""
    gain, cost, origin, top, base = tables
    base[0] = base[1] = 0.0
    # First the types whose instances may be worth more than they cost: ``base`` is then known.
    for side in range(2):
        for g in range(top.size):
            pays = cell.first[g] - cell.token_value * cell.steepest[g] <= 0.0
            if pays != (side == 0):
                continue
            cheapest = 0
            for x in range(cell.max_extra[g] + 1):
                _fill_row(cell, g, x, tables)
                top[g] = x
                if cost[g, x] <= cost[g, cheapest]:
                    cheapest = x
                # Each further instance only costs more, and no more capacity is needed.
                if not pays and gain[g, x] >= cell.need and cost[g, x] > limit - base[1]:
                    break
            origin[g] = cheapest
            carried, paid = gain[g, cheapest], cost[g, cheapest]
            for x in range(top[g] + 1):
                gain[g, x] -= carried
                cost[g, x] -= paid
            base[0] += carried
            base[1] += paid


@cached_kernel
def _fill_hulls(tables: Any, item: Any, rank: Any, hull: Any) -> Any:
    """Fill ``item`` with each type's lower hull of cost over capacity; return ``Items``.

    The segments are in order of rising cost per token. A type's ``rank`` is the order of its first
    segment, or -1 without segments. The column COUNT is not filled.
    """
    gain, cost, origin, top, _ = tables
    n = 0
    for g in range(top.size):
        rank[g] = -1
        end = 0
        hull[0] = origin[g]
        for x in range(origin[g] + 1, top[g] + 1):
            if gain[g, x] <= gain[g, hull[end]]:
                if cost[g, x] >= cost[g, hull[end]]:
                    continue
                end -= 1
            while end > 0:
                a, b = hull[end - 1], hull[end]
                left = (cost[g, b] - cost[g, a]) * (gain[g, x] - gain[g, a])
                if left < (cost[g, x] - cost[g, a]) * (gain[g, b] - gain[g, a]):
                    break
                end -= 1
            end += 1
            hull[end] = x
        for i in range(end):
            more = gain[g, hull[i + 1]] - gain[g, hull[i]]
            paid = cost[g, hull[i + 1]] - cost[g, hull[i]]
            position = n
            while position > 0 and item[position - 1, RATIO] > paid / more:
                item[position] = item[position - 1]
                position -= 1
            item[position, RATIO], item[position, CARRIES] = paid / more, more
            item[position, PRICE], item[position, TYPE] = paid, g
            n += 1
    ranks = 0
    for i in range(n):
        g = int(item[i, TYPE])
        if rank[g] < 0:
            rank[g] = ranks
            ranks += 1
    return Items(item, n, rank)


@cached_kernel
def _hull_cost(items: Any, after: int, but: int, missing: float) -> Any:
    """Return the least cost of ``missing`` more tokens/s along the hulls of types after ``after``.

    Types ranked up to ``after`` and type ``but`` are excluded. The result is infinite if the hulls
    do not suffice.
    """
    item, n, rank = items.steps, items.n, items.rank
    paid = 0.0
    for j in range(n):
        if missing <= 0.0:
            break
        g = int(item[j, TYPE])
        if rank[g] <= after or g == but:
            continue
        if item[j, CARRIES] >= missing:
            return paid + missing * item[j, RATIO]
        paid += item[j, PRICE]
        missing -= item[j, CARRIES]
    return paid if missing <= 0.0 else np.inf


@cached_kernel
def _least_cover(items: Any, types: int, tables: Any, need: float, work: Any) -> tuple[Any, Any]:
    """Return the least cost of ``need`` > 0 tokens/s above the cheapest counts, and a lower bound.

    ``work`` has the order of the types that have hulls, the array to fill with the counts of that
    cost, and the state of the search. Cost and bound are equal up to ``NODES`` search nodes. Both
    are infinite if all types together do not suffice.
    """
    gain, cost, origin, top, _ = tables
    order, chosen, state = work
    best, lower, nodes, tolerance = np.inf, np.inf, 0, 0.0
    i = 0
    state[0, MISSING], state[0, PAID], state[0, TAKEN] = need, 0.0, -1.0
    while i >= 0:
        g, missing, paid = order[i], state[i, MISSING], state[i, PAID]
        if state[i, TAKEN] < 0:  # Try the cheapest count that covers the rest alone.
            enough = origin[g]
            while enough <= top[g] and gain[g, enough] < missing:
                enough += 1
            state[i, TAKEN] = enough
            if enough <= top[g]:
                least_x = enough
                for x in range(enough + 1, top[g] + 1):
                    if cost[g, x] < cost[g, least_x]:
                        least_x = x
                if paid + cost[g, least_x] < best:
                    best = paid + cost[g, least_x]
                    for j in range(types):
                        chosen[order[j]] = int(state[j, TAKEN]) if j < i else origin[order[j]]
                    chosen[g] = least_x
        state[i, TAKEN] -= 1
        x = int(state[i, TAKEN])
        if x < origin[g] or i == types - 1:
            i -= 1
            continue
        nodes += 1
        if nodes % NODES == 0:
            tolerance = min(0.5, max(TOLERANCE, LOOSER * tolerance))
        bound = paid + cost[g, x] + _hull_cost(items, i, -1, missing - gain[g, x])
        if bound >= best * (1.0 - tolerance):
            lower = min(lower, bound)
            continue
        i += 1
        state[i, MISSING], state[i, PAID] = missing - gain[g, x], paid + cost[g, x]
        state[i, TAKEN] = -1.0
    return best, min(best, lower)


@cached_kernel
def _work_arrays(cells: Any) -> Any:
    """Allocate the arrays for searching one cell: tables, items, hull, state and three orders."""
    gpus, width = cells.first.shape[2], cells.max_extra.max() + 1
    tables = Tables(
        np.empty((gpus, width)),
        np.empty((gpus, width)),
        np.empty(gpus, np.int64),
        np.empty(gpus, np.int64),
        np.empty(2),
    )
    item, hull = np.empty((gpus * width, 4)), np.empty(width + 1, np.int64)
    return tables, item, hull, np.empty((gpus + 1, 3)), np.empty((3, gpus), np.int64)


@cached_kernel
def cheapest_pools(cells: Any, x: Any, low: Any) -> None:
    """Fill ``x[l,r,g]`` with the cheapest instances of each cell, ``low[l,r]`` with their cost.

    ``x`` counts beyond the minimums. ``low`` is a proven lower bound, infinite for a cell that
    cannot be covered.
    """
    models, regions, gpus = cells.first.shape
    tables, item, hull, state, counts = _work_arrays(cells)
    rank, order, chosen = counts[0], counts[1], counts[2]
    for model in range(models):
        for region in range(regions):
            cell = _one_cell(cells, model, region)
            _fill_tables(cell, -np.inf, tables)
            x[model, region], low[model, region] = tables.origin, tables.base[1]
            missing = cell.need - tables.base[0]
            if missing <= 0.0:
                continue
            items = _fill_hulls(tables, item, rank, hull)
            types = 0
            for g in range(gpus):
                if rank[g] >= 0:
                    order[rank[g]] = g
                    types += 1
            lower = np.inf
            if types > 0:
                chosen[:] = tables.origin
                _, lower = _least_cover(items, types, tables, missing, (order, chosen, state))
                if lower < np.inf:
                    x[model, region] = chosen
            low[model, region] += lower


@cached_kernel
def _append_within(items: Any, tables: Any, need: Any, work: Any, x: Any, rows: Any) -> Any:
    """Append every column of one cell that carries and costs no more than ``need`` says.

    ``need`` has the tokens/s to cover and the limit on the cost, above the counts ``origin`` of
    ``tables``. ``work`` has the order of types and the arrays of the search. ``rows`` are the first
    row of ``x`` to fill and the end of them. Returns the next free row. Returns -1 if the rows do
    not suffice or the search takes too long.
    """
    gain, cost, _, top, _ = tables
    (missing, may), (order, state, box), (line, end) = need, work, rows
    gpus, visits = top.size, VISITS * (end - line)
    for g in range(gpus):  # Exclude counts that are too dear even with a fractional rest.
        box[g, LEAST], box[g, MOST] = top[g] + 1, -1
        for count in range(top[g] + 1):
            if cost[g, count] > may:
                continue
            if cost[g, count] + _hull_cost(items, -1, g, missing - gain[g, count]) <= may:
                box[g, LEAST] = min(box[g, LEAST], count)
                box[g, MOST] = count
    i = 0
    state[0, MISSING], state[0, PAID] = missing, 0.0
    state[0, TAKEN] = box[order[0], LEAST] - 1
    while i >= 0:
        state[i, TAKEN] += 1
        g, count = order[i], int(state[i, TAKEN])
        if count > box[g, MOST]:
            i -= 1
            continue
        visits -= 1
        if visits < 0:
            return -1
        paid, left = state[i, PAID] + cost[g, count], state[i, MISSING] - gain[g, count]
        if paid + _hull_cost(items, i, -1, left) > may:
            continue
        if i < gpus - 1:
            i += 1
            state[i, MISSING], state[i, PAID] = left, paid
            state[i, TAKEN] = box[order[i], LEAST] - 1
            continue
        if line == end:
            return -1
        for j in range(gpus):
            x[line, order[j]] = int(state[j, TAKEN])
        line += 1
    return line


@cached_kernel
def pools_within(cells: Any, limit: Any, max_columns: int, x: Any, begins: Any) -> bool:
    """List in the rows of ``x`` all columns of each cell that cost at most ``limit[l,r]``.

    The rows of cell ``l * R + r`` start at ``begins[l * R + r]``. Returns False if ``x`` has too
    few rows or a cell has more than ``max_columns``.
    """
    models, regions, gpus = cells.first.shape
    tables, item, hull, state, counts = _work_arrays(cells)
    rank, order = counts[0], counts[1]
    work = order, state, np.empty((gpus, 2), np.int64)
    line = 0
    begins[0] = 0
    for model in range(models):
        for region in range(regions):
            cell, may = _one_cell(cells, model, region), limit[model, region]
            _fill_tables(cell, may, tables)
            items = _fill_hulls(tables, item, rank, hull)
            last = 0
            for g in range(gpus):
                last = max(last, rank[g] + 1)
            for g in range(gpus):  # Types without a hull segment come last.
                if rank[g] < 0:
                    rank[g] = last
                    last += 1
                order[rank[g]] = g
            need = cell.need - tables.base[0], may - tables.base[1]
            end = min(line + max_columns, x.shape[0])
            line = _append_within(items, tables, need, work, x, (line, end))
            if line < 0:
                return False
            begins[model * regions + region + 1] = line
    return True


@cache
def compiled_pools() -> None:
    """Compile ``cheapest_pools`` and ``pools_within``, so that no time limit pays for it."""
    # Arrays with the types and dimensions of real ones, for a problem of one cell.
    single, two, three = np.ones(1), np.ones((1, 1)), np.ones((1, 1, 1))
    counts = np.ones((1, 1, 1), np.int64)
    cells = PooledCells(two, three, three, counts, counts, two, three, counts, single, two)
    cheapest_pools(cells, np.empty_like(counts), np.empty_like(two))
    pools_within(cells, two, 1, np.empty((1, 1), np.int32), np.empty(2, np.int64))
