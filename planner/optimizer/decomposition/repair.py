"""Make a feasible plan from cells that were solved apart.

Cells over capacity move to the next best columns. Instances are added for unmet joint demand. Then
moves that save cost are made.

This is local search by moves inside one cell. A move removes some instances of one column and adds
those of another that the cell's need and the joint demand then require. Moves are taken best first
by region, and each is priced again at its turn. The search proves nothing; the bound is that of the
prices (``cells``).
"""

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from planner.optimizer.decomposition.cells import Cells, Prices
from simulation.arrays import IntArray
from simulation.compiler import cached_kernel, kernel

AT_ONCE = 3  # most instances of a column that one move may remove
PASSES = 6  # limit on passes over all cells
STEPS = 20_000  # limit on instances added for joint demands
SHARE = 1e-9  # share of a demand that may be missing, or of a cost that counts as no saving


class RepairProblem(NamedTuple):
    """Arrays of ``Cells`` for the kernels. ``pool`` has an empty third axis if all is linear."""

    pool: Any  # [l, g, n] tokens/s of pools of n + 1
    theta: Any  # [l, g] tokens/s
    size: Any  # [l, g] GPUs of an instance
    rows: Any  # [g] capacity row that a column draws from
    minimum: Any  # [l, r, g]
    running: Any  # [l, r, g]
    max_extra: Any  # [l, r, g]
    first: Any  # [l, r, g] cost of an instance that already runs
    further: Any  # [l, r, g] cost of an instance that must start
    need: Any  # [l, r] tokens/s
    joint: Any  # [l] tokens/s
    room: Any  # [r, t] GPUs


class PlanState(NamedTuple):
    """A plan in change, and what it leaves."""

    x: Any  # [l, r, g] instances beyond the minimums
    free: Any  # [r, t] free GPUs; negative: over capacity
    gain: Any  # [l, r] tokens/s that ``x`` adds
    surplus: Any  # [l] tokens/s beyond the joint demand; negative: short


def repair_plan(cells: Cells, prices: Prices, x: IntArray) -> IntArray | None:
    """Return ``x`` changed into a plan ``[l, r, g]`` beyond the minimums that meets all joint rows.

    ``x`` must cover the demand of every cell. The search charges plan-wide caps at their
    ``prices``. Returns None if the search found no plan, or if its plan breaks a cap.
    """
    taken = np.einsum("k,klrg->lrg", prices.caps, cells.cap_x)
    begun = np.einsum("k,klrg->lrg", prices.caps, cells.cap_start)
    first = cells.usd + taken
    plan = np.ascontiguousarray(x, dtype=np.int64).copy()
    problem = RepairProblem(
        pool=np.empty((*cells.theta.shape, 0)) if cells.pool is None else cells.pool,
        theta=cells.theta,
        size=cells.size,
        rows=cells.rows,
        minimum=cells.minimum,
        running=cells.running,
        max_extra=cells.most,
        first=first,
        further=first + cells.start + begun,
        need=cells.need,
        joint=cells.joint,
        room=cells.room,
    )
    feasible = repair_instances(problem, plan)
    if not feasible:
        return None
    plan_by_cell = plan.reshape(cells.need.size, -1).astype(np.int32)
    spent = cells.taken(plan_by_cell, np.arange(cells.need.size)).sum(axis=0)
    return plan if np.all(spent <= cells.cap_room) else None


@kernel
def _pool_capacity(pool: Any, theta: float, count: int) -> Any:
    """Return the tokens/s of ``count`` instances of a type; linear if ``pool`` is empty."""
    curve_length = pool.size
    if count <= 0:
        return 0.0
    if count <= curve_length:
        return pool[count - 1]
    return (pool[curve_length - 1] if curve_length > 0 else 0.0) + theta * (count - curve_length)


@kernel
def _cost_change(first: float, further: float, running: int, held: int, more: int) -> Any:
    """Return the change in cost from ``more`` instances on top of ``held`` (negative: fewer)."""
    before, after = max(0, held - running), max(0, held + more - running)
    return more * first + (after - before) * (further - first)


@kernel
def _best_move(problem: Any, now: Any, model: int, region: int, row: int) -> Any:
    """Return the best move of a cell: key, removed type and count, added type and count.

    A move takes up to ``AT_ONCE`` instances of one type away. If demand would be uncovered, it adds
    as many of another type as replace them. The key is the added cost; infinite means no move. With
    a ``row`` of capacity, the key is per GPU freed in that row. With -1, the move that saves most
    is best. The added type is -1 if no replacement is needed.
    """
    pool, theta, size, rows = problem.pool, problem.theta, problem.size, problem.rows
    first, further, running = problem.first, problem.further, problem.running
    minimum, need, x = problem.minimum, problem.need, now.x
    cell = (model, region)
    best, remove_type, remove_count, add_type, add_count = np.inf, -1, 0, -1, 0
    gpus = theta.shape[1]
    slack = now.gain[cell] - need[cell]
    spare = min(slack, max(0.0, now.surplus[model])) + SHARE * max(0.0, need[cell])
    for g in range(gpus):
        present, minimum_count = x[model, region, g], minimum[model, region, g]
        if present == 0 or (row >= 0 and rows[g] != row):
            continue
        carried = _pool_capacity(pool[model, g], theta[model, g], minimum_count + present)
        column = (model, region, g)
        for k in range(1, min(present, AT_ONCE) + 1):
            lost = carried - _pool_capacity(
                pool[model, g], theta[model, g], minimum_count + present - k
            )
            saved = _cost_change(first[column], further[column], running[column], present, -k)
            missing = lost - spare
            freed = k * size[model, g]
            if missing <= 0.0:
                key = saved / freed if row >= 0 else saved
                if key < best:
                    best, remove_type, remove_count, add_type, add_count = key, g, k, -1, 0
                continue
            for other in range(gpus):
                if other == g or theta[model, other] <= 0.0 or (row >= 0 and rows[other] == row):
                    continue
                other_cell = (model, region, other)
                room = now.free[region, rows[other]] + (freed if rows[other] == rows[g] else 0)
                largest = min(
                    problem.max_extra[other_cell] - x[other_cell], room // size[model, other]
                )
                other_count = minimum[other_cell] + x[other_cell]
                carried_there = _pool_capacity(pool[model, other], theta[model, other], other_count)
                # At least so many, as an instance adds theta at most. In pools it adds less.
                count = max(1, int(np.ceil(missing / theta[model, other])))
                if pool.shape[2] > 0:
                    count = 1
                    while (
                        count <= largest
                        and _pool_capacity(
                            pool[model, other], theta[model, other], other_count + count
                        )
                        - carried_there
                        < missing
                    ):
                        count += 1
                if count > largest:
                    continue
                delta = saved + _cost_change(
                    first[other_cell],
                    further[other_cell],
                    running[other_cell],
                    x[other_cell],
                    count,
                )
                key = delta / freed if row >= 0 else delta
                if key < best:
                    best, remove_type, remove_count, add_type, add_count = key, g, k, other, count
    return best, remove_type, remove_count, add_type, add_count


@kernel
def _apply_change(problem: Any, now: Any, model: int, region: int, g: int, more: int) -> None:
    """Add ``more`` instances of GPU column ``g``; update the state ``now``."""
    pool, theta = problem.pool[model, g], problem.theta[model, g]
    held = problem.minimum[model, region, g] + now.x[model, region, g]
    carried = _pool_capacity(pool, theta, held + more) - _pool_capacity(pool, theta, held)
    now.x[model, region, g] += more
    now.free[region, problem.rows[g]] -= more * problem.size[model, g]
    now.gain[model, region] += carried
    now.surplus[model] += carried


@kernel
def _move_pass(problem: Any, now: Any, region: int, row: int, keys: Any) -> float:
    """Apply one best move per model of a region, best first, and return the saving."""
    saved = 0.0
    for model in range(keys.size):
        keys[model] = _best_move(problem, now, model, region, row)[0]
    for model in np.argsort(keys):
        if keys[model] == np.inf or (row < 0 and keys[model] >= 0.0):
            break
        if row >= 0 and now.free[region, row] >= 0:
            break
        key, remove_type, remove_count, add_type, add_count = _best_move(
            problem, now, model, region, row
        )
        if key == np.inf or (row < 0 and key >= -SHARE):
            continue
        _apply_change(problem, now, model, region, remove_type, -remove_count)
        if add_type >= 0:
            _apply_change(problem, now, model, region, add_type, add_count)
        saved -= key
    return saved


@kernel
def _add_cheapest(problem: Any, now: Any, model: int) -> bool:
    """Add the instance of ``model`` with the least cost per token/s that it is short of.

    Returns False if no instance fits.
    """
    x, theta, first = now.x, problem.theta, problem.first
    best, where, column = np.inf, -1, -1
    for region in range(x.shape[1]):
        for g in range(theta.shape[1]):
            cell = (model, region, g)
            if theta[model, g] <= 0.0 or x[cell] >= problem.max_extra[cell]:
                continue
            if now.free[region, problem.rows[g]] < problem.size[model, g]:
                continue
            held = problem.minimum[cell] + x[cell]
            carried = _pool_capacity(problem.pool[model, g], theta[model, g], held + 1)
            carried -= _pool_capacity(problem.pool[model, g], theta[model, g], held)
            if carried <= 0.0:
                continue
            key = _cost_change(
                first[cell], problem.further[cell], problem.running[cell], x[cell], 1
            )
            key /= min(carried, -now.surplus[model])
            if key < best:
                best, where, column = key, region, g
    if where < 0:
        return False
    _apply_change(problem, now, model, where, column, 1)
    return True


@cached_kernel
def repair_instances(problem: Any, x: Any) -> bool:
    """Change ``x[l,r,g]`` until capacities and joint demands are met, then reduce the cost.

    Returns False if a row is still violated at the end.
    """
    models, regions, gpus = x.shape
    joint, free, surplus = problem.joint, problem.room.copy(), -problem.joint
    now = PlanState(x, free, np.zeros((models, regions)), surplus)
    for model in range(models):
        for region in range(regions):
            for g in range(gpus):
                held = x[model, region, g]
                if held > 0:
                    x[model, region, g] = 0
                    _apply_change(problem, now, model, region, g, held)
    keys, types = np.empty(models), free.shape[1]
    for _ in range(PASSES):
        for region in range(regions):
            for row in range(types):
                if free[region, row] < 0:
                    _move_pass(problem, now, region, row, keys)
    steps = 0
    for model in range(models):
        while surplus[model] < -SHARE * joint[model] and steps < STEPS:
            steps += 1
            if not _add_cheapest(problem, now, model):
                break
    for region in range(regions):
        for _ in range(PASSES):
            if _move_pass(problem, now, region, -1, keys) <= SHARE:
                break
    return bool(free.min() >= 0 and np.all(surplus >= -SHARE * np.maximum(1.0, joint)))


@cache
def compiled_repair() -> None:
    """Compile ``repair_instances``, so that no time limit pays for it (seconds, once)."""
    joint_need, two, three = np.ones(1), np.ones((1, 1)), np.ones((1, 1, 1))
    single, square = np.ones((1, 1), np.int64), np.ones((1, 1, 1), np.int64)
    rows = np.zeros(1, np.int64)
    problem = RepairProblem(
        three, two, single, rows, square, square, square, three, three, two, joint_need, single
    )
    repair_instances(problem, square.copy())
