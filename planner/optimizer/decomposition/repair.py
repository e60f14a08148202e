"""Make a feasible plan from cells (models in regions) that were solved one by one.

Where capacity is exceeded, instances are exchanged for others. Instances are added for unmet joint
demand. Then exchanges that save cost are made.

This is local search. A *move* changes one cell: it removes some instances of one GPU column and
adds instances of another column that the cell's need and the joint demand then require. In each
region, the best moves are applied first, and each is priced again at its turn. The search proves
nothing; the lower bound is that of the prices (``cells``).
"""

from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from planner.optimizer.decomposition.cells import Cells, PricedCells
from planner.optimizer.decomposition.covering import PricedArrays, added_tps, one_cell
from simulation.arrays import IntArray
from simulation.compiler import cached_kernel, kernel

AT_ONCE = 3  # most instances of a GPU column that one move may remove
PASSES = 6  # limit on passes over all cells
STEPS = 20_000  # limit on instances added for joint demands
ANY_ROW = -1  # in place of a capacity row: moves are for cost alone
SHARE = 1e-9  # share of a demand that may be missing, or of a cost that counts as no saving


class RepairProblem(NamedTuple):
    """The parts of ``Cells`` that a repair needs, as arrays for compiled code."""

    cells: Any  # PricedArrays, at the prices of caps alone
    size: Any  # [model, GPU column] GPUs of an instance
    rows: Any  # [GPU column] capacity row that it takes its GPUs from
    joint: Any  # [model] joint demand in tokens/s


class PlanState(NamedTuple):
    """A plan while it is repaired, its free GPUs, and the tokens/s that it serves."""

    x: Any  # [model, region, GPU column] instances beyond the minimums
    free: Any  # [region, capacity row] free GPUs; negative: over capacity
    served_tps: Any  # [model, region] tokens/s that ``x`` adds
    surplus: Any  # [model] tokens/s beyond the joint demand; negative: short


class Move(NamedTuple):
    """A change of one cell (a model in a region): instances of one GPU column for those of another.

    The fields ``..._type`` are GPU columns.
    """

    key: float  # change in cost, in all or per freed GPU; the lowest is best; inf: no move
    remove_type: int
    remove_count: int
    add_type: int  # -1: none
    add_count: int


def repair_plan(cells: Cells, priced: PricedCells) -> IntArray | None:
    """Return a plan within capacities, demands and caps that is close to the solved cells.

    It has the instances beyond the minimums, ``[model, region, GPU column]``. Each cell (a model in
    a region) of ``priced`` was solved by itself. So its demand is covered, but limits that cells
    share may be broken. The search charges plan-wide caps at the prices of ``priced``. Returns None
    if the search finds no plan, or if its plan breaks a cap.
    """
    plan = np.ascontiguousarray(priced.x, dtype=np.int64).copy()
    # The repair checks capacities and joint demand itself, so only caps have a price.
    arrays = cells.arrays(replace(cells.zero_prices, caps=priced.prices.caps))
    problem = RepairProblem(arrays, cells.size, cells.rows, cells.joint)
    plan_by_cell, all_cells = plan.reshape(cells.need.size, -1), np.arange(cells.need.size)
    served_tps = cells.served_tps(plan_by_cell, all_cells).reshape(cells.need.shape)
    gpus_by_column = np.einsum("lrg,lg->rg", plan, cells.size)  # GPUs of all models
    free = cells.free_gpus - cells.by_row(gpus_by_column)
    state = PlanState(plan, free, served_tps, surplus=served_tps.sum(axis=1) - cells.joint)
    if not repair_instances(problem, state):  # changes ``plan`` in place
        return None
    cap_use = cells.cap_use(plan_by_cell.astype(np.int32), all_cells).sum(axis=0)
    return plan if np.all(cap_use <= cells.cap_rest) else None


@kernel
def _cost_change(cell: Any, gpu: int, count: int, more: int) -> Any:
    """Return the change in cost from ``more`` instances of column ``gpu`` on top of ``count``.

    A negative ``more`` removes instances. Instances beyond the running ones cost a start.
    """
    starts_before = max(0, count - cell.running_count[gpu])
    starts_after = max(0, count + more - cell.running_count[gpu])
    start_cost = cell.new_usd[gpu] - cell.running_usd[gpu]
    return more * cell.running_usd[gpu] + (starts_after - starts_before) * start_cost


@kernel
def _fewest_additional(cell: Any, gpu: int, count: int, missing: float, largest: int) -> int:
    """Return the fewest instances beyond ``count`` of column ``gpu`` that add ``missing`` tokens/s.

    A result above ``largest`` means that ``largest`` instances do not suffice.
    """
    more = max(1, int(np.ceil(missing / cell.steepest_tps[gpu] - SHARE)))  # no fewer suffice
    while more <= largest and added_tps(cell, gpu, count, more) < missing:
        more += 1
    return more


@kernel
def _best_replacement(
    problem: Any, now: Any, cell: Any, place: Any, removal: Any, missing: float
) -> Any:
    """Return the best ``Move`` that replaces removed instances by those of another GPU column.

    ``place`` is (model, region, row) as in ``_best_move``. ``removal`` is (GPU column, instances,
    change in cost, freed GPUs). The fewest instances that cover ``missing`` tokens/s are added.
    """
    (model, region, row), (gpu, removed, usd, freed) = place, removal
    x, size, rows = now.x[model, region], problem.size[model], problem.rows
    best = Move(np.inf, -1, 0, -1, 0)
    for other in range(x.size):
        takes_same_gpus = row != ANY_ROW and rows[other] == row
        if other == gpu or cell.theta_tps[other] <= 0.0 or takes_same_gpus:
            continue
        free_gpus = now.free[region, rows[other]]
        if rows[other] == rows[gpu]:
            free_gpus += freed
        largest = min(cell.max_extra[other] - x[other], free_gpus // size[other])
        count = _fewest_additional(cell, other, x[other], missing, largest)
        if count > largest:
            continue
        total_usd = usd + _cost_change(cell, other, x[other], count)
        key = total_usd if row == ANY_ROW else total_usd / freed
        if key < best.key:
            best = Move(key, gpu, removed, other, count)
    return best


@kernel
def _best_move(problem: Any, now: Any, model: int, region: int, row: int) -> Any:
    """Return the best ``Move`` of a cell: of ``model`` in ``region``.

    A move removes up to ``AT_ONCE`` instances of one GPU column. If demand would then be uncovered,
    it adds the fewest instances of another column that cover it.

    With ANY_ROW for ``row``, the best move changes the cost least. With a capacity row, moves must
    free its GPUs, and the best move changes the cost least per freed GPU.
    """
    cell, x = one_cell(problem.cells, model, region), now.x[model, region]
    best = Move(np.inf, -1, 0, -1, 0)
    # Tokens/s that the cell may lose, by its own need and by the joint demand.
    slack = now.served_tps[model, region] - cell.need_tps
    spare = min(slack, max(0.0, now.surplus[model])) + SHARE * max(0.0, cell.need_tps)
    for gpu in range(x.size):
        if x[gpu] == 0 or (row != ANY_ROW and problem.rows[gpu] != row):
            continue
        for removed in range(1, min(x[gpu], AT_ONCE) + 1):
            missing = -added_tps(cell, gpu, x[gpu], -removed) - spare
            usd, freed = (
                _cost_change(cell, gpu, x[gpu], -removed),
                removed * problem.size[model, gpu],
            )
            if missing <= 0.0:
                move = Move(usd if row == ANY_ROW else usd / freed, gpu, removed, -1, 0)
            else:
                removal = gpu, removed, usd, freed
                place = model, region, row
                move = _best_replacement(problem, now, cell, place, removal, missing)
            if move.key < best.key:
                best = move
    return best


@kernel
def _apply_change(problem: Any, now: Any, model: int, region: int, gpu: int, more: int) -> None:
    """Add ``more`` instances of GPU column ``gpu`` (negative: remove) to the plan ``now``.

    The free GPUs and served tokens/s of ``now`` change too.
    """
    cell = one_cell(problem.cells, model, region)
    added = added_tps(cell, gpu, now.x[model, region, gpu], more)
    now.x[model, region, gpu] += more
    now.free[region, problem.rows[gpu]] -= more * problem.size[model, gpu]
    now.served_tps[model, region] += added
    now.surplus[model] += added


@kernel
def _move_pass(problem: Any, now: Any, region: int, row: int, keys: Any) -> float:
    """Apply the best move of each model in a region, the best moves first; return the saving.

    With a capacity row for ``row``, stop when its GPUs suffice. With ANY_ROW, take only moves that
    save cost. ``keys [model]`` is a work array.
    """
    saved = 0.0
    for model in range(keys.size):
        keys[model] = _best_move(problem, now, model, region, row).key
    for model in np.argsort(keys):
        if keys[model] == np.inf or (row == ANY_ROW and keys[model] >= 0.0):
            break
        if row != ANY_ROW and now.free[region, row] >= 0:
            break
        # Moves of the models before may have taken its GPUs, so search again.
        move = _best_move(problem, now, model, region, row)
        if move.key == np.inf or (row == ANY_ROW and move.key >= -SHARE):
            continue
        _apply_change(problem, now, model, region, move.remove_type, -move.remove_count)
        if move.add_type >= 0:
            _apply_change(problem, now, model, region, move.add_type, move.add_count)
        saved -= move.key
    return saved


@kernel
def _add_cheapest(problem: Any, now: Any, model: int) -> bool:
    """Add the instance of ``model`` with the least cost per token/s of unserved joint demand.

    Returns False if no instance fits.
    """
    best, best_region, best_type = np.inf, -1, -1
    for region in range(now.x.shape[1]):
        cell, x = one_cell(problem.cells, model, region), now.x[model, region]
        for gpu in range(x.size):
            if cell.theta_tps[gpu] <= 0.0 or x[gpu] >= cell.max_extra[gpu]:
                continue
            if now.free[region, problem.rows[gpu]] < problem.size[model, gpu]:
                continue
            added = added_tps(cell, gpu, x[gpu], 1)
            if added <= 0.0:
                continue
            useful_tps = min(added, -now.surplus[model])
            usd_per_tps = _cost_change(cell, gpu, x[gpu], 1) / useful_tps
            if usd_per_tps < best:
                best, best_region, best_type = usd_per_tps, region, gpu
    if best_region < 0:
        return False
    _apply_change(problem, now, model, best_region, best_type, 1)
    return True


@cached_kernel
def repair_instances(problem: Any, now: Any) -> bool:
    """Change the plan in ``now`` until capacities and joint demands are met, then reduce the cost.

    Returns False if a capacity or a joint demand is still violated at the end.
    """
    joint, free, surplus = problem.joint, now.free, now.surplus
    models, regions = now.served_tps.shape
    keys, types = np.empty(models), free.shape[1]
    # First capacities, then joint demands, which need the freed GPUs, and last the cost.
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
            if _move_pass(problem, now, region, ANY_ROW, keys) <= SHARE:
                break
    return bool(free.min() >= 0 and np.all(surplus >= -SHARE * np.maximum(1.0, joint)))


@cache
def compiled_repair() -> None:
    """Compile ``repair_instances``, so that no time limit pays for it (seconds, once)."""
    single, two, three = np.ones(1), np.ones((1, 1)), np.ones((1, 1, 1))
    counts, gpus = np.ones((1, 1, 1), np.int64), np.ones((1, 1), np.int64)
    cells = PricedArrays(two, three, two, single, three, three, counts, counts, counts, two)
    problem = RepairProblem(cells, gpus, np.zeros(1, np.int64), single)
    repair_instances(problem, PlanState(counts.copy(), gpus.copy(), two.copy(), single.copy()))
