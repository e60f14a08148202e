"""Find the cheapest instances of one model in one region (a cell) at given prices (compiled).

One cell is  min sum_g f_g(x_g)  subject to  sum_g G_g(x_g) >= need,  0 <= x <= most,  x whole.
Here x_g counts the instances of GPU column g (called a type), f_g is their cost and G_g their
tokens/s. It is a covering knapsack with multiple choices (Martello and Toth, Knapsack Problems,
1990, section 3.5, in its minimising form). f and G are tables, so any curve is allowed.

Each type is counted from the count of least cost, its *origin*: fewer instances cost more and carry
less. The bound covers the missing tokens/s along the types' lower hulls of cost over tokens/s
(Sinha and Zoltners 1979).
"""

from functools import cache
from typing import Any, NamedTuple

import numpy as np

from simulation.compiler import cached_kernel, inlined_kernel, kernel

# A cell that needs very many nodes of the search is proven ever more loosely: to the share
# TOLERANCE after NODES, then to LOOSER times the last tolerance after every NODES more.
NODES, TOLERANCE, LOOSER = 300, 1e-6, 4.0
# Fields of a hull step (``Items.steps``): cost per token/s, tokens/s, cost, type.
RATIO, CARRIES, PRICE, TYPE = range(4)
# Fields of ``state`` at a depth of the search: tokens/s still missing, cost so far, count taken at
# this depth, bound of the count tried before.
MISSING, PAID, TAKEN, BOUND = range(4)
VISITS = 20  # limit on nodes per column (choice of counts) when a cell's columns are listed


class PricedArrays(NamedTuple):
    """The arrays of all cells (models in regions) at given prices, for compiled code.

    Axes: l models, r regions, g GPU columns. The arrays of one cell (``one_cell``) only have g.
    """

    theta_tps: Any  # [l, g] tokens/s that an instance adds beyond the known counts
    known_tps: Any  # [l, g, n + 1] tokens/s of 0 to n instances
    steepest_tps: Any  # [l, g] most tokens/s that one instance adds
    token_usd: Any  # [l] value of a token/s that serves joint demand
    running_usd: Any  # [l, r, g] cost of an instance that already runs
    new_usd: Any  # [l, r, g] cost of an instance that must start
    running_count: Any  # [l, r, g] instances that already run
    minimum: Any  # [l, r, g] instances that are always there
    max_extra: Any  # [l, r, g] most instances beyond the minimums
    need_tps: Any  # [l, r] tokens/s to cover


class Tables(NamedTuple):
    """Work arrays of one cell: tokens/s and cost of x instances of type g (a GPU column).

    Both are relative to ``origin``, the count with the least cost.
    """

    gain: Any  # [g, x] tokens/s
    cost: Any  # [g, x]
    origin: Any  # [g] count with the least cost
    filled_to: Any  # [g] largest count x for which ``gain`` and ``cost`` are filled
    base: Any  # (tokens/s, cost) of the counts ``origin`` of all types together


class Items(NamedTuple):
    """Steps along the lower hulls of cost over tokens/s of one cell, and the order of its types.

    A step leads from one count of a type (a GPU column) to a larger one.
    """

    steps: Any  # [step, field] RATIO, CARRIES, PRICE, TYPE, by rising cost per token/s
    step_count: int  # rows of ``steps`` in use
    rank: Any  # [g] place of a type in ``order``
    order: Any  # [g] types by their cheapest step, those without steps last
    types: int  # number of types with steps


@kernel
def one_cell(cells: Any, model: int, region: int) -> Any:
    """Return the arrays of the cell of ``model`` in ``region``."""
    cell = (model, region)
    return PricedArrays(
        cells.theta_tps[model],
        cells.known_tps[model],
        cells.steepest_tps[model],
        cells.token_usd[model],
        cells.running_usd[cell],
        cells.new_usd[cell],
        cells.running_count[cell],
        cells.minimum[cell],
        cells.max_extra[cell],
        cells.need_tps[cell],
    )


@inlined_kernel
def carried_tps(cell: Any, gpu: int, count: int) -> Any:
    """Return the tokens/s of the minimum and ``count`` more instances of type ``gpu``."""
    known_tps, count_in_all = cell.known_tps[gpu], cell.minimum[gpu] + count
    last_known = known_tps.size - 1
    if count_in_all <= last_known:
        return known_tps[count_in_all]
    return known_tps[last_known] + cell.theta_tps[gpu] * (count_in_all - last_known)


@inlined_kernel
def added_tps(cell: Any, gpu: int, count: int, more: int) -> Any:
    """Return the tokens/s that ``more`` instances of type ``gpu`` add to ``count``."""
    return carried_tps(cell, gpu, count + more) - carried_tps(cell, gpu, count)


@kernel
def _fill_type(cell: Any, gpu: int, max_usd: float, tables: Any) -> int:
    """Fill tokens/s and costs of 0, 1, ... instances of type ``gpu``; return the cheapest count.

    ``max_usd`` is the largest cost of a cover with other types. The count that covers the need
    alone is always included.
    """
    gain, cost = tables.gain, tables.cost
    may_pay = cell.running_usd[gpu] - cell.token_usd * cell.steepest_tps[gpu] <= 0.0
    cheapest = 0
    for count in range(cell.max_extra[gpu] + 1):
        gain[gpu, count] = added_tps(cell, gpu, 0, count)
        starts = max(0, count - cell.running_count[gpu])  # instances that must start
        usd = (count - starts) * cell.running_usd[gpu] + starts * cell.new_usd[gpu]
        # The value of the tokens that they serve is deducted.
        cost[gpu, count] = usd - cell.token_usd * gain[gpu, count]
        tables.filled_to[gpu] = count
        if cost[gpu, count] <= cost[gpu, cheapest]:
            cheapest = count
        # Each further instance only costs more, and no more capacity is needed.
        if not may_pay and gain[gpu, count] >= cell.need_tps and cost[gpu, count] > max_usd:
            break
    return cheapest


@kernel
def _fill_tables(cell: Any, max_usd: float, tables: Any) -> None:
    """Fill the ``tables`` of a cell, up to the counts that a cover of cost ``max_usd`` can have.

    Tokens/s and costs are relative to the cheapest count of each type, ``origin``.
    """
    gain, cost, origin, filled_to, base = tables
    base[0] = base[1] = 0.0  # gain and cost of all types at their cheapest counts
    # First the types whose instances may be worth more than they cost. Other types cost least at
    # 0 instances, so ``base`` is then known.
    for paying_types in (True, False):
        for gpu in range(filled_to.size):
            may_pay = cell.running_usd[gpu] - cell.token_usd * cell.steepest_tps[gpu] <= 0.0
            if may_pay != paying_types:
                continue
            cheapest = _fill_type(cell, gpu, max_usd - base[1], tables)
            origin[gpu] = cheapest
            origin_gain, origin_cost = gain[gpu, cheapest], cost[gpu, cheapest]
            for count in range(filled_to[gpu] + 1):
                gain[gpu, count] -= origin_gain
                cost[gpu, count] -= origin_cost
            base[0] += origin_gain
            base[1] += origin_cost


@kernel
def _lower_hull(tables: Any, gpu: int, hull: Any) -> int:
    """Fill ``hull`` with the counts of type ``gpu`` on the lower hull of cost over tokens/s.

    Returns the index in ``hull`` of the last count. Costs per token/s between neighbours rise along
    the hull.
    """
    gain, cost, origin, filled_to, _ = tables
    end = 0
    hull[0] = origin[gpu]
    for count in range(origin[gpu] + 1, filled_to[gpu] + 1):
        if gain[gpu, count] <= gain[gpu, hull[end]]:
            if cost[gpu, count] >= cost[gpu, hull[end]]:
                continue
            end -= 1
        while end > 0:
            before, last = hull[end - 1], hull[end]
            # The last point stays if the slope to it is below the slope to ``count``, both from the
            # point before. Products are compared, so that nothing is divided by 0.
            cost_to_last = cost[gpu, last] - cost[gpu, before]
            gain_to_last = gain[gpu, last] - gain[gpu, before]
            cost_to_count = cost[gpu, count] - cost[gpu, before]
            gain_to_count = gain[gpu, count] - gain[gpu, before]
            if cost_to_last * gain_to_count < cost_to_count * gain_to_last:
                break
            end -= 1
        end += 1
        hull[end] = count
    return end


@kernel
def _hull_steps(tables: Any, steps: Any, orders: Any, hull: Any) -> Any:
    """Return the ``Items`` of a cell: steps along each type's lower hull, and the order of types.

    A step leads from one count of a type to a larger one. They are written to ``steps``, by rising
    cost per token/s. Types are in the order of their first step, and those without steps come last.
    ``orders`` and ``hull`` are work arrays.
    """
    gain, cost = tables.gain, tables.cost
    step_count = 0
    for gpu in range(gain.shape[0]):
        for index in range(_lower_hull(tables, gpu, hull)):
            step_gain = gain[gpu, hull[index + 1]] - gain[gpu, hull[index]]
            step_cost = cost[gpu, hull[index + 1]] - cost[gpu, hull[index]]
            _insert_step(steps, step_count, step_gain, step_cost, gpu)
            step_count += 1
    rank, order = orders[0], orders[1]  # rank of each type, and the types by rank
    rank[:] = -1
    types = 0
    for index in range(step_count):
        types = _rank_next(rank, order, types, int(steps[index, TYPE]))
    ranked = types
    for gpu in range(rank.size):
        ranked = _rank_next(rank, order, ranked, gpu)
    return Items(steps, step_count, rank, order, types)


@inlined_kernel
def _insert_step(steps: Any, count: int, gain: float, cost: float, gpu: int) -> None:
    """Insert a step of type ``gpu``, of ``gain`` tokens/s for ``cost``, into ``steps``.

    The first ``count`` rows of ``steps`` are sorted by cost per token/s.
    """
    ratio, position = cost / gain, count
    while position > 0 and steps[position - 1, RATIO] > ratio:
        steps[position] = steps[position - 1]
        position -= 1
    steps[position, RATIO], steps[position, CARRIES] = ratio, gain
    steps[position, PRICE], steps[position, TYPE] = cost, gpu


@inlined_kernel
def _rank_next(rank: Any, order: Any, ranked: int, gpu: int) -> Any:
    """Give type ``gpu`` the next rank if it has none; return the new number of ranked types.

    ``ranked`` is the number before. ``rank [type]`` and ``order [rank]`` change in place.
    """
    if rank[gpu] >= 0:
        return ranked
    rank[gpu], order[ranked] = ranked, gpu
    return ranked + 1


@kernel
def _hull_cost(items: Any, last_rank: int, missing_tps: float) -> Any:
    """Return the least cost of ``missing_tps`` more tokens/s if fractions of instances are allowed.

    It is a lower bound on the cost of whole instances. Only types ranked beyond ``last_rank`` are
    used, along the steps of their lower hulls. The result is infinite if they do not suffice.
    """
    steps, cost = items.steps, 0.0
    for i in range(items.step_count):  # the cheapest step per token/s first
        if missing_tps <= 0.0:
            break
        if items.rank[int(steps[i, TYPE])] <= last_rank:
            continue
        if steps[i, CARRIES] >= missing_tps:  # a fraction of this step is enough
            return cost + missing_tps * steps[i, RATIO]
        cost += steps[i, PRICE]
        missing_tps -= steps[i, CARRIES]
    return cost if missing_tps <= 0.0 else np.inf


@kernel
def _cheapest_alone(tables: Any, gpu: int, missing_tps: float) -> Any:
    """Return the smallest and the cheapest count of type ``gpu`` that add ``missing_tps`` tokens/s.

    A larger count can be cheaper, as costs are net of the value of the tokens. Both are
    ``tables.filled_to[gpu] + 1`` if the type does not suffice alone.
    """
    smallest = tables.origin[gpu]
    while smallest <= tables.filled_to[gpu] and tables.gain[gpu, smallest] < missing_tps:
        smallest += 1
    cheapest = smallest
    for count in range(smallest + 1, tables.filled_to[gpu] + 1):
        if tables.cost[gpu, count] < tables.cost[gpu, cheapest]:
            cheapest = count
    return smallest, cheapest


@kernel
def _cheapest_cover(
    items: Any, tables: Any, need_tps: float, linear: bool, chosen: Any, state: Any
) -> Any:
    """Return a lower bound on the cost of ``need_tps`` > 0 tokens/s beyond the counts ``origin``.

    Fill ``chosen [GPU column]`` with the cheapest counts found. Their cost equals the bound unless
    the search takes more than ``NODES`` nodes. The bound is infinite if all types together do not
    suffice. ``linear`` states that every instance of a type adds the same tokens/s.

    The search is depth-first. Each depth decides the count of type ``items.order[depth]``, and has
    a row of the work array ``state``: tokens/s MISSING, cost PAID, count TAKEN and BOUND of the
    count tried before. Counts fall from the one that covers the rest alone. ``chosen`` must hold
    the counts ``origin`` at the beginning.
    """
    gain, cost, origin, filled_to, _ = tables
    order, types = items.order, items.types
    # A count is pruned if its bound is within ``tolerance`` of the best cost. The result must be
    # no more than the lowest bound of those. After many nodes the tolerance rises, to save time.
    best_cost, lowest_pruned, nodes, tolerance = np.inf, np.inf, 0, 0.0
    depth = 0
    _enter_depth(state, 0, need_tps, 0.0)
    while depth >= 0:
        gpu, missing_tps, paid_usd = order[depth], state[depth, MISSING], state[depth, PAID]
        if state[depth, TAKEN] < 0:  # the first visit of this depth
            smallest, cheapest = _cheapest_alone(tables, gpu, missing_tps)
            state[depth, TAKEN] = smallest
            if smallest <= filled_to[gpu] and paid_usd + cost[gpu, cheapest] < best_cost:
                best_cost = paid_usd + cost[gpu, cheapest]
                _take_counts(items, origin, state, depth, chosen)
                chosen[gpu] = cheapest
        # The next count: one instance less. The types that follow must cover the rest.
        state[depth, TAKEN] -= 1
        count = int(state[depth, TAKEN])
        if count < origin[gpu] or depth == types - 1:
            depth -= 1
            continue
        further_usd = _hull_cost(items, depth, missing_tps - gain[gpu, count])
        bound = paid_usd + cost[gpu, count] + further_usd
        if bound >= best_cost * (1.0 - tolerance):  # with this count, none can be much cheaper
            lowest_pruned = min(lowest_pruned, bound)
            # Costs are convex. With linear capacity, so is the bound: it rises from here on.
            if linear and bound >= state[depth, BOUND]:
                depth -= 1
            else:
                state[depth, BOUND] = bound
            continue
        nodes += 1
        if nodes % NODES == 0:
            tolerance = min(0.5, max(TOLERANCE, LOOSER * tolerance))
        state[depth, BOUND] = bound
        depth += 1
        _enter_depth(state, depth, missing_tps - gain[gpu, count], paid_usd + cost[gpu, count])
    return min(best_cost, lowest_pruned)


@inlined_kernel
def _take_counts(items: Any, origin: Any, state: Any, depth: int, chosen: Any) -> None:
    """Fill ``chosen`` with the counts decided before ``depth``, and ``origin`` for later types."""
    for earlier in range(items.types):
        gpu = items.order[earlier]
        chosen[gpu] = int(state[earlier, TAKEN]) if earlier < depth else origin[gpu]


@inlined_kernel
def _enter_depth(state: Any, depth: int, missing: float, paid: float) -> None:
    """Begin ``depth`` of a search: ``missing`` tokens/s to cover, ``paid`` dollars so far."""
    state[depth, MISSING], state[depth, PAID] = missing, paid
    state[depth, TAKEN], state[depth, BOUND] = -1.0, np.inf


@kernel
def _work_arrays(cells: Any) -> Any:
    """Allocate the arrays to search one cell: tables, steps, hull, state and three of counts."""
    gpus, width = cells.running_usd.shape[2], cells.max_extra.max() + 1
    tables = Tables(
        np.empty((gpus, width)),
        np.empty((gpus, width)),
        np.empty(gpus, np.int64),
        np.empty(gpus, np.int64),
        np.empty(2),
    )
    item, hull = np.empty((gpus * width, 4)), np.empty(width + 1, np.int64)
    return tables, item, hull, np.empty((gpus + 1, 4)), np.empty((3, gpus), np.int64)


@kernel
def _best_single_type(cell: Any) -> Any:
    """Return (type, cost, tokens/s) of the single instance that covers the need of a cell cheapest.

    The type (a GPU column) is -1 if this quick test cannot prove that one instance is best, and -2
    if no instance is needed. Cost and tokens/s then have no meaning. The test decides most cells of
    large plans without a search.
    """
    lowest_cost = lowest_per_token = lowest_alone = np.inf
    best_type, best_tps = -1, 0.0
    for gpu in range(cell.theta_tps.size):
        if cell.max_extra[gpu] <= 0:
            continue
        usd = cell.running_usd[gpu] if cell.running_count[gpu] > 0 else cell.new_usd[gpu]
        # Every instance costs this much or more, and carries ``steepest_tps`` at most.
        cost = usd - cell.token_usd * cell.steepest_tps[gpu]
        if cost < 0.0:
            return -1, 0.0, 0.0
        lowest_cost = min(lowest_cost, cost)
        lowest_per_token = min(lowest_per_token, cost / cell.steepest_tps[gpu])
        if cost >= lowest_alone or cell.steepest_tps[gpu] < cell.need_tps:
            continue
        added = added_tps(cell, gpu, 0, 1)
        net_usd = usd - cell.token_usd * added
        if added >= cell.need_tps and net_usd < lowest_alone:
            lowest_alone, best_type, best_tps = net_usd, gpu, added
    if cell.need_tps <= 0.0:
        return -2, 0.0, 0.0
    # Any other cover has two instances or more, and pays the least cost per token or more.
    others_cost = max(2.0 * lowest_cost, cell.need_tps * lowest_per_token)
    return (best_type if lowest_alone <= others_cost else -1), lowest_alone, best_tps


@cached_kernel
def cheapest_cells(cells: Any, x: Any, lower_bound: Any, served: Any) -> None:
    """Find the cheapest instances of each cell (a model in a region) beyond the minimums.

    Fill ``x [model, region, GPU column]`` with their counts, ``served [model, region]`` with the
    tokens/s that they add, and ``lower_bound [model, region]`` with a proven lower bound on the
    cost. The bound is infinite for a cell that cannot be covered.
    """
    models, regions, gpus = cells.running_usd.shape
    tables, step_rows, hull, state, counts = _work_arrays(cells)
    linear = cells.known_tps.shape[2] == 1
    orders, chosen = counts[:2], counts[2]
    for model in range(models):
        for region in range(regions):
            cell = one_cell(cells, model, region)
            x[model, region], lower_bound[model, region], served[model, region] = 0, 0.0, 0.0
            # -2: the need is 0, and no instance pays. -1: one instance may not be best.
            single_type, cost, single_tps = _best_single_type(cell)
            if single_type >= 0:
                x[model, region, single_type] = 1
                lower_bound[model, region], served[model, region] = cost, single_tps
            if single_type != -1:
                continue
            # Take the cheapest count of each type, and then the cheapest cover of the rest.
            _fill_tables(cell, -np.inf, tables)
            chosen[:] = tables.origin
            lower_bound[model, region], missing_tps = tables.base[1], cell.need_tps - tables.base[0]
            if missing_tps > 0.0:
                items = _hull_steps(tables, step_rows, orders, hull)
                lower_bound[model, region] += _cheapest_cover(
                    items, tables, missing_tps, linear, chosen, state
                )
            for gpu in range(gpus):
                x[model, region, gpu] = chosen[gpu]
                served[model, region] += added_tps(cell, gpu, 0, chosen[gpu])


@kernel
def _append_columns(items: Any, tables: Any, need_and_limit: Any, state: Any, rows: Any) -> Any:
    """Append every column (choice of counts) of one cell that covers its need at a limited cost.

    ``need_and_limit`` is (tokens/s to cover, largest cost), both beyond the counts ``origin``.
    ``rows`` is (array to fill, first row to fill, number of rows). Returns the next free row, or -1
    if the rows do not suffice or the search takes too long.

    The search is depth-first. Each depth tries the counts of type ``items.order[depth]``, from 0
    on, and has a row of the work array ``state``: tokens/s MISSING, cost PAID, and count TAKEN.
    """
    gain, cost, _, filled_to, _ = tables
    (missing_tps, max_cost), (x, row, end) = need_and_limit, rows
    order, gpus, visits = items.order, filled_to.size, VISITS * (end - row)
    depth = 0
    _enter_depth(state, 0, missing_tps, 0.0)
    while depth >= 0:
        state[depth, TAKEN] += 1
        gpu, count = order[depth], int(state[depth, TAKEN])
        if count > filled_to[gpu]:
            depth -= 1
            continue
        visits -= 1
        if visits < 0:
            return -1
        paid_usd = state[depth, PAID] + cost[gpu, count]
        left_tps = state[depth, MISSING] - gain[gpu, count]
        if paid_usd + _hull_cost(items, depth, left_tps) > max_cost:
            continue
        if depth < gpus - 1:
            depth += 1
            _enter_depth(state, depth, left_tps, paid_usd)
            continue
        if row == end:
            return -1
        for rank in range(gpus):
            x[row, order[rank]] = int(state[rank, TAKEN])
        row += 1
    return row


@cached_kernel
def enumerate_columns(cells: Any, cost_limit: Any, x: Any, begins: Any) -> bool:
    """List the columns (choices of counts) of each cell within ``cost_limit [model, region]``.

    Each is a row of ``x [n, GPU column]``. Rows of one cell are adjacent: cell number c = model *
    regions + region has the rows ``begins[c]`` up to ``begins[c + 1]``. Returns False if ``x`` has
    too few rows.
    """
    models, regions = cells.need_tps.shape
    tables, step_rows, hull, state, counts = _work_arrays(cells)
    row = 0
    begins[0] = 0
    for model in range(models):
        for region in range(regions):
            cell, max_cost = one_cell(cells, model, region), cost_limit[model, region]
            # Need and cost limit count from ``tables.base``: each type at its cheapest count.
            _fill_tables(cell, max_cost, tables)
            items = _hull_steps(tables, step_rows, counts[:2], hull)
            need_and_limit = cell.need_tps - tables.base[0], max_cost - tables.base[1]
            row = _append_columns(items, tables, need_and_limit, state, (x, row, x.shape[0]))
            if row < 0:
                return False
            begins[model * regions + region + 1] = row
    return True


@cache
def compile_kernels() -> None:
    """Compile ``cheapest_cells`` and ``enumerate_columns``, so that no time limit pays for it."""
    # Arrays with the types and dimensions of real ones, for a problem of one cell.
    single, two, three = np.ones(1), np.ones((1, 1)), np.ones((1, 1, 1))
    counts = np.ones((1, 1, 1), np.int64)
    cells = PricedArrays(two, three, two, single, three, three, counts, counts, counts, two)
    cheapest_cells(cells, np.empty_like(counts), np.empty_like(two), np.empty_like(two))
    x, begins = np.empty((1, 1), np.int32), np.empty(2, np.int64)
    enumerate_columns(cells, two, x, begins)
