"""Solve cells in which pooled capacity is a curve: see ``optimizer.pools`` (compiled).

One cell is  min sum_g f_g(x_g)  subject to  sum_g G_g(x_g) >= need,  0 <= x <= most,  x whole. It
is a covering knapsack with multiple choices (Martello and Toth, Knapsack Problems, 1990, section
3.5, in its minimising form). f and G are tables, so any curve is allowed.

Each type is counted from its cheapest point, since fewer instances cost more and carry less. The
bound covers the missing capacity along the types' lower hulls of cost over capacity (Sinha and
Zoltners 1979).
"""

from functools import cache
from typing import Any

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
)  # fmt: skip
from simulation.compiler import cached_kernel

LEAST, MOST = range(2)  # columns of ``box``: counts of a type


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
def _cell_arrays(
    pool: Any,
    theta: Any,
    minimum: Any,
    first: Any,
    further: Any,
    running: Any,
    max_extra: Any,
    token_value: Any,
    steepest: Any,
    model: int,
    region: int,
) -> Any:
    """Return the arrays of one cell (a model in a region), cut from the arrays of all cells."""
    return (
        pool[model],
        theta[model],
        minimum[model, region],
        first[model, region],
        further[model, region],
        running[model, region],
        max_extra[model, region],
        token_value[model],
        steepest[model],
    )


@cached_kernel
def _fill_row(cell: Any, g: int, x: int, gain: Any, cost: Any) -> None:
    """Fill ``gain[g, x]`` (tokens/s) and ``cost[g, x]`` for x instances of a type.

    The value of the joint demand that they serve is deducted from the cost.
    """
    pool, theta, minimum, first, further, running, _, token_value, _ = cell
    beyond = max(0, x - running[g])
    held = _pool_capacity(pool[g], theta[g], minimum[g])
    gain[g, x] = _pool_capacity(pool[g], theta[g], minimum[g] + x) - held
    cost[g, x] = (x - beyond) * first[g] + beyond * further[g] - token_value * gain[g, x]


@cached_kernel
def _fill_tables(
    cell: Any, need: float, limit: float, gain: Any, cost: Any, origin: Any, top: Any, base: Any
) -> None:
    """Fill ``gain[g, x]`` (tokens/s) and ``cost[g, x]`` of x instances of type g, up to ``top[g]``.

    Both are relative to ``origin[g]``, the count with the least cost. ``base`` gets the capacity
    and the cost of these counts of all types together.
    """
    _, theta, _, first, _, _, max_extra, token_value, steepest = cell
    base[0] = base[1] = 0.0
    # First the types whose instances may be worth more than they cost: ``base`` is then known.
    for side in range(2):
        for g in range(theta.size):
            pays = first[g] - token_value * steepest[g] <= 0.0
            if pays != (side == 0):
                continue
            cheapest = 0
            for x in range(max_extra[g] + 1):
                _fill_row(cell, g, x, gain, cost)
                top[g] = x
                if cost[g, x] <= cost[g, cheapest]:
                    cheapest = x
                # Each further instance only costs more, and no more capacity is needed.
                if not pays and gain[g, x] >= need and cost[g, x] > limit - base[1]:
                    break
            origin[g] = cheapest
            carried, paid = gain[g, cheapest], cost[g, cheapest]
            for x in range(top[g] + 1):
                gain[g, x] -= carried
                cost[g, x] -= paid
            base[0] += carried
            base[1] += paid


@cached_kernel
def _fill_hulls(
    top: Any, gain: Any, cost: Any, origin: Any, item: Any, rank: Any, hull: Any
) -> int:
    """Fill ``item`` with each type's lower hull of cost over capacity; return the segment count.

    The segments are in order of rising cost per token. A type's ``rank`` is the order of its first
    segment, or -1 without segments. The column COUNT is not filled.
    """
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
    return n


@cached_kernel
def _hull_cost(item: Any, n: int, rank: Any, after: int, but: int, missing: float) -> Any:
    """Return the least cost of ``missing`` more tokens/s along the hulls of types after ``after``.

    ``item`` must be sorted by rising cost per token. Types ranked up to ``after`` and type ``but``
    are excluded. The result is infinite if the hulls do not suffice.
    """
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
def _least_cover(
    item: Any, n: int, rank: Any, order: Any, types: int, tables: Any, need: float, chosen: Any,
    state: Any,
) -> tuple[Any, Any]:  # fmt: skip
    """Return the least cost of ``need`` > 0 tokens/s above the cheapest counts, and a lower bound.

    ``chosen`` is filled with the counts of that cost. Cost and bound are equal up to ``NODES``
    search nodes. Both are infinite if all types together do not suffice.
    """
    gain, cost, origin, top = tables
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
        bound = paid + cost[g, x] + _hull_cost(item, n, rank, i, -1, missing - gain[g, x])
        if bound >= best * (1.0 - tolerance):
            lower = min(lower, bound)
            continue
        i += 1
        state[i, MISSING], state[i, PAID] = missing - gain[g, x], paid + cost[g, x]
        state[i, TAKEN] = -1.0
    return best, min(best, lower)


@cached_kernel
def _work_arrays(gpus: int, width: int) -> Any:
    """Allocate the work arrays for searching one cell, with counts of each type below ``width``."""
    gain, cost = np.empty((gpus, width)), np.empty((gpus, width))
    item, hull = np.empty((gpus * width, 4)), np.empty(width + 1, np.int64)
    state, base = np.empty((gpus + 1, 3)), np.empty(2)
    return gain, cost, item, hull, state, base, np.empty((5, gpus), np.int64)


@cached_kernel
def cheapest_pools(
    pool: Any, theta: Any, minimum: Any, first: Any, further: Any, running: Any, max_extra: Any,
    need: Any, token_value: Any, steepest: Any, x: Any, low: Any,
) -> None:  # fmt: skip
    """Fill ``x[l,r,g]`` with the cheapest instances of each cell, ``low[l,r]`` with their cost.

    ``x`` counts beyond the minimums. ``low`` is a proven lower bound, infinite for a cell that
    cannot be covered. Shapes: ``pool[l,g,n]``, ``theta[l,g]``, ``need[l,r]``, all others
    ``[l,r,g]``. ``token_value[l]`` is the value of a token/s carried. ``steepest[l,g]`` is the most
    that one instance adds.
    """
    models, regions, gpus = first.shape
    gain, cost, item, hull, state, base, counts = _work_arrays(gpus, max_extra.max() + 1)
    rank, order, origin, top, chosen = counts[0], counts[1], counts[2], counts[3], counts[4]
    for model in range(models):
        for region in range(regions):
            cell = _cell_arrays(
                pool,
                theta,
                minimum,
                first,
                further,
                running,
                max_extra,
                token_value,
                steepest,
                model,
                region,
            )
            _fill_tables(cell, need[model, region], -np.inf, gain, cost, origin, top, base)
            x[model, region], low[model, region] = origin, base[1]
            # ``base`` is what ``origin``, the counts with the least cost, carry and cost.
            missing = need[model, region] - base[0]
            if missing <= 0.0:
                continue
            n = _fill_hulls(top, gain, cost, origin, item, rank, hull)
            types = 0
            for g in range(gpus):
                if rank[g] >= 0:
                    order[rank[g]] = g
                    types += 1
            lower = np.inf
            if types > 0:
                chosen[:] = origin
                tables = (gain, cost, origin, top)
                _, lower = _least_cover(item, n, rank, order, types, tables, missing, chosen, state)
                if lower < np.inf:
                    x[model, region] = chosen
            low[model, region] += lower


@cached_kernel
def _append_within(
    item: Any, n: int, rank: Any, order: Any, tables: Any, missing: float, may: float, state: Any,
    box: Any, x: Any, line: int, end: int,
) -> int:  # fmt: skip
    """Append every ``x`` of one cell that costs at most ``may`` more than the cheapest counts.

    Returns the next free row. Returns -1 if rows would pass ``end`` or the search takes too long.
    """
    gain, cost, _, top = tables
    gpus, visits = rank.size, VISITS * (end - line)
    for g in range(gpus):  # Exclude counts that are too dear even with a fractional rest.
        box[g, LEAST], box[g, MOST] = top[g] + 1, -1
        for count in range(top[g] + 1):
            if cost[g, count] > may:
                continue
            if cost[g, count] + _hull_cost(item, n, rank, -1, g, missing - gain[g, count]) <= may:
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
        if paid + _hull_cost(item, n, rank, i, -1, left) > may:
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
def pools_within(
    pool: Any, theta: Any, minimum: Any, first: Any, further: Any, running: Any, max_extra: Any,
    need: Any, token_value: Any, steepest: Any, limit: Any, each: int, x: Any, begins: Any,
) -> bool:  # fmt: skip
    """List in the rows of ``x`` all instance counts of each cell that cost at most ``limit[l,r]``.

    The rows of cell ``l * R + r`` start at ``begins[l * R + r]``. Returns False if ``x`` has too
    few rows or a cell has more than ``each`` solutions.
    """
    models, regions, gpus = first.shape
    gain, cost, item, hull, state, base, counts = _work_arrays(gpus, max_extra.max() + 1)
    rank, order, origin, top = counts[0], counts[1], counts[2], counts[3]
    box = np.empty((gpus, 2), np.int64)
    line = 0
    begins[0] = 0
    for model in range(models):
        for region in range(regions):
            cell = _cell_arrays(
                pool,
                theta,
                minimum,
                first,
                further,
                running,
                max_extra,
                token_value,
                steepest,
                model,
                region,
            )
            must, may = need[model, region], limit[model, region]
            _fill_tables(cell, must, may, gain, cost, origin, top, base)
            n = _fill_hulls(top, gain, cost, origin, item, rank, hull)
            last = 0
            for g in range(gpus):
                last = max(last, rank[g] + 1)
            for g in range(gpus):  # Types without a hull segment come last.
                if rank[g] < 0:
                    rank[g] = last
                    last += 1
                order[rank[g]] = g
            tables = (gain, cost, origin, top)
            missing, may = must - base[0], may - base[1]
            end = min(line + each, x.shape[0])
            line = _append_within(
                item, n, rank, order, tables, missing, may, state, box, x, line, end
            )
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
    cell = (three, two, counts, three, three, counts, counts, two, single, two)
    cheapest_pools(*cell, np.empty_like(counts), np.empty_like(two))
    x, begins = np.empty((1, 1), np.int32), np.empty(2, np.int64)
    pools_within(*cell, two, 1, x, begins)
