"""Make a feasible plan from cells that were solved apart.

Cells over capacity move to the next best columns. Instances are added for unmet joint demand. Then
moves that save cost are made.

This is local search by moves inside one cell. A move removes some instances of one column and adds
those of another that the cell's need and the joint demand then require. Moves are taken best first
by region, and each is priced again at its turn. The search proves nothing; the bound is that of the
prices (``cells``).
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from planner.optimizer.decomposition.cells import Cells, Prices
from simulation.arrays import IntArray
from simulation.compiled import cached_kernel, kernel

AT_ONCE = 3  # most instances of a column that one move may remove
PASSES = 6  # limit on passes over all cells
STEPS = 20_000  # limit on instances added for joint demands
SHARE = 1e-9  # share of a demand that may be missing, or of a cost that counts as no saving


def repaired(cells: Cells, prices: Prices, x: IntArray) -> IntArray | None:
    """Return ``x`` repaired into a plan ``[l, r, g]`` beyond the minimums, or None.

    ``x`` covers the need of every cell. The search charges caps on the whole plan at their
    ``prices``. None means that the search found no plan, or that its plan breaks a cap.
    """
    none = np.empty((*cells.theta.shape, 0))
    taken = np.einsum("k,klrg->lrg", prices.caps, cells.cap_x)
    begun = np.einsum("k,klrg->lrg", prices.caps, cells.cap_start)
    first = cells.usd + taken
    plan = np.ascontiguousarray(x, dtype=np.int64).copy()
    fits = mend(
        none if cells.pool is None else cells.pool,
        cells.theta,
        cells.size,
        cells.rows,
        cells.minimum,
        cells.running,
        cells.most,
        first,
        first + cells.start + begun,
        cells.need,
        cells.joint,
        cells.room,
        plan,
    )
    if not fits:
        return None
    flat = plan.reshape(cells.need.size, -1).astype(np.int32)
    spent = cells.taken(flat, np.arange(cells.need.size)).sum(axis=0)
    return plan if np.all(spent <= cells.cap_room) else None


@kernel
def _held(pool: Any, theta: float, count: int) -> Any:
    """Return C(count) of one type, in tokens/s; linear without a pool."""
    known = pool.size
    if count <= 0:
        return 0.0
    if count <= known:
        return pool[count - 1]
    return (pool[known - 1] if known > 0 else 0.0) + theta * (count - known)


@kernel
def _cost(first: float, further: float, running: int, held: int, more: int) -> Any:
    """Return the change in cost from ``more`` extra instances (negative: fewer)."""
    before, after = max(0, held - running), max(0, held + more - running)
    return more * first + (after - before) * (further - first)


@kernel
def _move(problem: Any, now: Any, model: int, region: int, row: int) -> Any:
    """Return a cell's best move ``(key, goes, many, comes, number)``; the key is infinite for none.

    With a ``row`` of capacity, it is the cheapest move per GPU that frees some of that row. Without
    one (-1), it is the move that saves most. ``comes`` is -1 if no replacement is needed.
    """
    pool, theta, size, rows, minimum, running, most, first, further, need, _ = problem
    x, free, gain, surplus = now
    cell = (model, region)
    best, goes, many, comes, number = np.inf, -1, 0, -1, 0
    gpus = theta.shape[1]
    slack = gain[cell] - need[cell]
    spare = min(slack, max(0.0, surplus[model])) + SHARE * max(0.0, need[cell])
    for g in range(gpus):
        held, least = x[model, region, g], minimum[model, region, g]
        if held == 0 or (row >= 0 and rows[g] != row):
            continue
        carried = _held(pool[model, g], theta[model, g], least + held)
        column = (model, region, g)
        for k in range(1, min(held, AT_ONCE) + 1):
            lost = carried - _held(pool[model, g], theta[model, g], least + held - k)
            saved = _cost(first[column], further[column], running[column], held, -k)
            missing = lost - spare
            freed = k * size[model, g]
            if missing <= 0.0:
                key = saved / freed if row >= 0 else saved
                if key < best:
                    best, goes, many, comes, number = key, g, k, -1, 0
                continue
            for h in range(gpus):
                if h == g or theta[model, h] <= 0.0 or (row >= 0 and rows[h] == row):
                    continue
                to = (model, region, h)
                room = free[region, rows[h]] + (freed if rows[h] == rows[g] else 0)
                top = min(most[to] - x[to], room // size[model, h])
                there = minimum[to] + x[to]
                base = _held(pool[model, h], theta[model, h], there)
                # theta is the most that one instance adds
                n = max(1, int(np.ceil(missing / theta[model, h])))
                if pool.shape[2] > 0:
                    n = 1
                    while (
                        n <= top
                        and _held(pool[model, h], theta[model, h], there + n) - base < missing
                    ):
                        n += 1
                if n > top:
                    continue
                delta = saved + _cost(first[to], further[to], running[to], x[to], n)
                key = delta / freed if row >= 0 else delta
                if key < best:
                    best, goes, many, comes, number = key, g, k, h, n
    return best, goes, many, comes, number


@kernel
def _change(problem: Any, now: Any, model: int, region: int, g: int, more: int) -> None:
    """Add ``more`` instances of a column and update the state."""
    pool, theta, size, rows, minimum, _, _, _, _, _, _ = problem
    x, free, gain, surplus = now
    least, held = minimum[model, region, g], x[model, region, g]
    carried = _held(pool[model, g], theta[model, g], least + held + more)
    carried -= _held(pool[model, g], theta[model, g], least + held)
    x[model, region, g] += more
    free[region, rows[g]] -= more * size[model, g]
    gain[model, region] += carried
    surplus[model] += carried


@kernel
def _moved(problem: Any, now: Any, region: int, row: int, keys: Any) -> float:
    """Make one pass over a region's models, best move first, and return the saving."""
    free, saved = now[1], 0.0
    for model in range(keys.size):
        keys[model] = _move(problem, now, model, region, row)[0]
    for model in np.argsort(keys):
        if keys[model] == np.inf or (row < 0 and keys[model] >= 0.0):
            break
        if row >= 0 and free[region, row] >= 0:
            break
        key, goes, many, comes, number = _move(problem, now, model, region, row)
        if key == np.inf or (row < 0 and key >= -SHARE):
            continue
        _change(problem, now, model, region, goes, -many)
        if comes >= 0:
            _change(problem, now, model, region, comes, number)
        saved -= key
    return saved


@kernel
def _added(problem: Any, now: Any, model: int) -> bool:
    """Add the instance with the least cost per missing token/s of a model.

    Returns False if no instance fits.
    """
    pool, theta, size, rows, minimum, running, most, first, further, _, _ = problem
    x, free, _, surplus = now
    best, where, column = np.inf, -1, -1
    for region in range(x.shape[1]):
        for g in range(theta.shape[1]):
            cell = (model, region, g)
            if theta[model, g] <= 0.0 or x[cell] >= most[cell]:
                continue
            if free[region, rows[g]] < size[model, g]:
                continue
            held = minimum[cell] + x[cell]
            carried = _held(pool[model, g], theta[model, g], held + 1)
            carried -= _held(pool[model, g], theta[model, g], held)
            if carried <= 0.0:
                continue
            key = _cost(first[cell], further[cell], running[cell], x[cell], 1)
            key /= min(carried, -surplus[model])
            if key < best:
                best, where, column = key, region, g
    if where < 0:
        return False
    _change(problem, now, model, where, column, 1)
    return True


@cached_kernel
def mend(
    pool: Any,
    theta: Any,
    size: Any,
    rows: Any,
    minimum: Any,
    running: Any,
    most: Any,
    first: Any,
    further: Any,
    need: Any,
    joint: Any,
    room: Any,
    x: Any,
) -> bool:
    """Change ``x[l,r,g]`` until capacities and joint demands hold, then reduce the cost.

    Returns False if a row still fails at the end. ``first`` and ``further`` ``[l,r,g]`` are the
    costs of an instance that runs already or must start. The other arrays are those of ``Cells``.
    ``pool`` has an empty third axis if all capacity is linear.
    """
    models, regions, gpus = x.shape
    free, gain, surplus = room.copy(), np.zeros((models, regions)), -joint
    now = (x, free, gain, surplus)
    problem = (pool, theta, size, rows, minimum, running, most, first, further, need, joint)
    for model in range(models):
        for region in range(regions):
            for g in range(gpus):
                held = x[model, region, g]
                if held > 0:
                    x[model, region, g] = 0
                    _change(problem, now, model, region, g, held)
    keys, types = np.empty(models), room.shape[1]
    for _ in range(PASSES):
        for region in range(regions):
            for row in range(types):
                if free[region, row] < 0:
                    _moved(problem, now, region, row, keys)
    steps = 0
    for model in range(models):
        while surplus[model] < -SHARE * joint[model] and steps < STEPS:
            steps += 1
            if not _added(problem, now, model):
                break
    for region in range(regions):
        for _ in range(PASSES):
            if _moved(problem, now, region, -1, keys) <= SHARE:
                break
    return bool(free.min() >= 0 and np.all(surplus >= -SHARE * np.maximum(1.0, joint)))


@cache
def compiled_repair() -> None:
    """Compile ``mend``, so that no time limit pays for it (seconds, once per machine)."""
    joint_need, two, three = np.ones(1), np.ones((1, 1)), np.ones((1, 1, 1))
    single, square = np.ones((1, 1), np.int64), np.ones((1, 1, 1), np.int64)
    rows = np.zeros(1, np.int64)
    problem = (three, two, single, rows, square, square, square, three, three, two, joint_need)
    mend(*problem, single, square.copy())
