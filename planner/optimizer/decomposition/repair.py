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
    gpus_each: Any  # [model, GPU column] GPUs of an instance
    capacity_rows: Any  # [GPU column] capacity row that it takes its GPUs from
    joint_tps: Any  # [model] joint demand in tokens/s


class PlanState(NamedTuple):
    """A plan while it is repaired, its free GPUs, and the tokens/s that it serves."""

    x: Any  # [model, region, GPU column] instances beyond the minimums
    free_gpus: Any  # [region, capacity row] free GPUs; negative: over capacity
    served_tps: Any  # [model, region] tokens/s that ``x`` adds
    surplus_tps: Any  # [model] tokens/s beyond the joint demand; negative: short


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
    problem = RepairProblem(arrays, cells.gpus_each, cells.rows, cells.joint_tps)
    # A view of ``plan``: [cell, GPU column].
    plan_by_cell, all_cells = plan.reshape(cells.need_tps.size, -1), np.arange(cells.need_tps.size)
    served_tps = cells.served_tps(plan_by_cell, all_cells).reshape(cells.need_tps.shape)
    gpus_by_column = np.einsum("lrg,lg->rg", plan, cells.gpus_each)  # GPUs of all models
    free = cells.free_gpus - cells.by_row(gpus_by_column)
    state = PlanState(plan, free, served_tps, surplus_tps=served_tps.sum(axis=1) - cells.joint_tps)
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
def _fewest_additional(cell: Any, gpu: int, count: int, missing_tps: float, largest: int) -> int:
    """Return the fewest instances beyond ``count`` of column ``gpu`` that add ``missing_tps``.

    A result above ``largest`` means that ``largest`` instances do not suffice.
    """
    more = max(1, int(np.ceil(missing_tps / cell.steepest_tps[gpu] - SHARE)))  # no fewer suffice
    while more <= largest and added_tps(cell, gpu, count, more) < missing_tps:
        more += 1
    return more


@kernel
def _best_replacement(
    problem: Any, plan: Any, cell: Any, place: Any, removal: Any, missing: float
) -> Any:
    """Return the best ``Move`` that replaces removed instances by those of another GPU column.

    ``place`` is (model, region, capacity row) as in ``_best_move``. ``removal`` is (GPU column,
    instances, change in cost, freed GPUs). The fewest instances that cover ``missing`` tokens/s are
    added.
    """
    (model, region, capacity_row), (gpu, removed, removal_usd, freed_gpus) = place, removal
    counts, capacity_rows = plan.x[model, region], problem.capacity_rows
    gpus_each = problem.gpus_each[model]
    best = Move(np.inf, -1, 0, -1, 0)
    for added_gpu in range(counts.size):
        takes_same_gpus = capacity_row != ANY_ROW and capacity_rows[added_gpu] == capacity_row
        if added_gpu == gpu or cell.theta_tps[added_gpu] <= 0.0 or takes_same_gpus:
            continue
        free_gpus = plan.free_gpus[region, capacity_rows[added_gpu]]
        if capacity_rows[added_gpu] == capacity_rows[gpu]:
            free_gpus += freed_gpus
        fit = free_gpus // gpus_each[added_gpu]
        largest = min(cell.max_extra[added_gpu] - counts[added_gpu], fit)
        count = _fewest_additional(cell, added_gpu, counts[added_gpu], missing, largest)
        if count > largest:
            continue
        total_usd = removal_usd + _cost_change(cell, added_gpu, counts[added_gpu], count)
        move_key = total_usd if capacity_row == ANY_ROW else total_usd / freed_gpus
        if move_key < best.key:
            best = Move(move_key, gpu, removed, added_gpu, count)
    return best


@kernel
def _best_move(problem: Any, plan: Any, model: int, region: int, capacity_row: int) -> Any:
    """Return the best ``Move`` of a cell: of ``model`` in ``region``.

    A move removes up to ``AT_ONCE`` instances of one GPU column. If demand would then be uncovered,
    it adds the fewest instances of another column that cover it.

    With ANY_ROW for ``capacity_row``, the best move changes the cost least. With a capacity row,
    moves must free its GPUs, and the best move changes the cost least per freed GPU.
    """
    cell, counts = one_cell(problem.cells, model, region), plan.x[model, region]
    best = Move(np.inf, -1, 0, -1, 0)
    # Tokens/s that the cell may lose, by its own need and by the joint demand.
    own_surplus = plan.served_tps[model, region] - cell.need_tps
    rounding_tps = SHARE * max(0.0, cell.need_tps)
    spare_tps = min(own_surplus, max(0.0, plan.surplus_tps[model])) + rounding_tps
    for gpu in range(counts.size):
        frees_other_gpus = capacity_row != ANY_ROW and problem.capacity_rows[gpu] != capacity_row
        if counts[gpu] == 0 or frees_other_gpus:
            continue
        for removed in range(1, min(counts[gpu], AT_ONCE) + 1):
            missing_tps = -added_tps(cell, gpu, counts[gpu], -removed) - spare_tps
            removal_usd = _cost_change(cell, gpu, counts[gpu], -removed)
            freed_gpus = removed * problem.gpus_each[model, gpu]
            if missing_tps <= 0.0:
                key = removal_usd if capacity_row == ANY_ROW else removal_usd / freed_gpus
                move = Move(key, gpu, removed, -1, 0)
            else:
                removal = gpu, removed, removal_usd, freed_gpus
                place = model, region, capacity_row
                move = _best_replacement(problem, plan, cell, place, removal, missing_tps)
            if move.key < best.key:
                best = move
    return best


@kernel
def _apply_change(problem: Any, plan: Any, model: int, region: int, gpu: int, more: int) -> None:
    """Add ``more`` instances of GPU column ``gpu`` (negative: remove) to the plan ``plan``.

    The free GPUs and served tokens/s of ``plan`` change too.
    """
    cell = one_cell(problem.cells, model, region)
    added = added_tps(cell, gpu, plan.x[model, region, gpu], more)
    plan.x[model, region, gpu] += more
    plan.free_gpus[region, problem.capacity_rows[gpu]] -= more * problem.gpus_each[model, gpu]
    plan.served_tps[model, region] += added
    plan.surplus_tps[model] += added


@kernel
def _move_pass(problem: Any, plan: Any, region: int, capacity_row: int, keys: Any) -> float:
    """Apply the best move of each model in a region, the best moves first; return the saving.

    With a capacity row for ``capacity_row``, stop when its GPUs suffice. With ANY_ROW, take only
    moves that save cost. ``keys [model]`` is a work array.
    """
    saved = 0.0
    for model in range(keys.size):
        keys[model] = _best_move(problem, plan, model, region, capacity_row).key
    for model in np.argsort(keys):
        if keys[model] == np.inf or (capacity_row == ANY_ROW and keys[model] >= 0.0):
            break
        if capacity_row != ANY_ROW and plan.free_gpus[region, capacity_row] >= 0:
            break
        # Moves of the models before may have taken its GPUs, so search again.
        move = _best_move(problem, plan, model, region, capacity_row)
        if move.key == np.inf or (capacity_row == ANY_ROW and move.key >= -SHARE):
            continue
        _apply_change(problem, plan, model, region, move.remove_type, -move.remove_count)
        if move.add_type >= 0:
            _apply_change(problem, plan, model, region, move.add_type, move.add_count)
        saved -= move.key
    return saved


@kernel
def _add_cheapest(problem: Any, plan: Any, model: int) -> bool:
    """Add the instance of ``model`` with the least cost per token/s of unserved joint demand.

    Returns False if no instance fits.
    """
    best_usd_per_tps, best_region, best_type = np.inf, -1, -1
    for region in range(plan.x.shape[1]):
        cell, counts = one_cell(problem.cells, model, region), plan.x[model, region]
        for gpu in range(counts.size):
            if cell.theta_tps[gpu] <= 0.0 or counts[gpu] >= cell.max_extra[gpu]:
                continue
            if plan.free_gpus[region, problem.capacity_rows[gpu]] < problem.gpus_each[model, gpu]:
                continue
            added = added_tps(cell, gpu, counts[gpu], 1)
            if added <= 0.0:
                continue
            useful_tps = min(added, -plan.surplus_tps[model])
            usd_per_tps = _cost_change(cell, gpu, counts[gpu], 1) / useful_tps
            if usd_per_tps < best_usd_per_tps:
                best_usd_per_tps, best_region, best_type = usd_per_tps, region, gpu
    if best_region < 0:
        return False
    _apply_change(problem, plan, model, best_region, best_type, 1)
    return True


@cached_kernel
def repair_instances(problem: Any, plan: Any) -> bool:
    """Change the plan in ``plan`` until capacities and joint demands are met, then reduce the cost.

    Returns False if a capacity or a joint demand is still violated at the end.
    """
    joint, free, surplus = problem.joint_tps, plan.free_gpus, plan.surplus_tps
    models, regions = plan.served_tps.shape
    keys, types = np.empty(models), free.shape[1]
    # First capacities, then joint demands, which need the freed GPUs, and last the cost.
    for _ in range(PASSES):
        for region in range(regions):
            for capacity_row in range(types):
                if free[region, capacity_row] < 0:
                    _move_pass(problem, plan, region, capacity_row, keys)
    steps = 0
    for model in range(models):
        while surplus[model] < -SHARE * joint[model] and steps < STEPS:
            steps += 1
            if not _add_cheapest(problem, plan, model):
                break
    for region in range(regions):
        for _ in range(PASSES):
            if _move_pass(problem, plan, region, ANY_ROW, keys) <= SHARE:
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
