"""Prove by branch and bound that no operator plan meets the limit on a number of devices.

A node of the tree fixes the parallelism and replicas of some operators, and the devices of their
shards. Batches stay open. The interference among fixed operators is exact, except that each has its
least busy time over the batches. The others still fill devices: all plans of the tree have device
loads within a box ``low`` to ``high``, by load and by busy time. So at least ``low`` less what is
fixed comes to each device, and slows what is there by at least the smallest extra time of a pair.
Operators that are not fixed take their least sojourn on the device where they meet the least
interference. A node ends if its longest path exceeds the limit.

A tree that does not end is divided: each half of a side of its box has a tree with tighter bounds.
Devices are alike, so their loads are ordered: the first device has the largest.
"""

from itertools import combinations, combinations_with_replacement, pairwise
from math import comb
from typing import Any, NamedTuple

import numpy as np

from simulation.arrays import BoolArray, FloatArray, IntArray
from simulation.compiler import cached_kernel, kernel
from simulation.provisioning.bounds import TOLERANCE
from simulation.provisioning.crowding import MOST_DEVICES
from simulation.provisioning.interference import Demand, interference_matrix
from simulation.provisioning.packing import FULL
from simulation.provisioning.problem import OperatorProblem, critical_path
from simulation.provisioning.sojourns import Graph, longest_path, sojourn

GROUPS = 8  # numbers of replicas with bounds of their own; the last stands for all that are larger
EXTRA_STEP, EXTRA_STEPS = 0.01, 500  # grid of log(1 + extra time) of the least sojourns
MOST_OPTIONS = 20_000  # of an operator that the tree fixes
NODES, NODES_IN_ALL = 300_000, 10_000_000  # of one tree, and of all
NARROWEST = 0.004  # side of a box that is not divided again, in devices' worth
NEARLY = 1e-9
LOAD, OTHER, POWER, MEMORY, BUSY = range(5)  # rows of uses


class Space(NamedTuple):
    """Configurations (operator and parallelism), in the order in which the tree fixes operators.

    Load is of the resource that all operators need more of, arithmetic or traffic. Times are in
    units of the limit. Arrays are ``[C]`` unless stated otherwise.
    """

    first: Any  # [V + 1] configurations of each operator
    operator: Any  # [V] its index in the graph
    parallel: Any
    uses: Any  # [5, C] least use of one shard if there is one replica; memory: of each shard
    kept: Any  # devices' worth of KV cache of a shard, over replicas
    own: Any  # [3, C] largest load, other resource and busy time of a shard if it has one replica
    batches: Any  # [3, B, C] batches/s, service and transfer; service inf: not allowed
    extra_time: Any  # [C, C] least extra time of one configuration if the other always runs
    per_rest: Any  # [2, C, V + 1] least extra time per load and busy time of the v-th and later
    least_s: Any  # [C, GROUPS, EXTRA_STEPS] least sojourn by extra time
    least: Any  # [5, V + 1] least use of all operators from the v-th on
    most: Any  # [2, V + 1] largest load and busy time of all operators from the v-th on
    members: Any  # [S, N] devices of each set that a replica may use
    graph: Graph


class Options(NamedTuple):
    """Ways to fix operators, ``[n]`` unless stated otherwise; those of v start at ``first[v]``."""

    first: Any  # [V + 1]; an operator without any is not fixed
    configuration: Any
    replicas: Any
    replicas_on: Any  # [n, S] replicas on each set of devices
    shards: Any  # [n, N] on each device


class Node(NamedTuple):
    """What is fixed at a node of the tree."""

    chosen: Any  # [V] option
    use: Any  # [5, N] of the devices
    sojourn_s: Any  # [V] by the graph's numbers
    ends: Any  # [V] scratch
    load: Any  # [N] least load
    rest: Any  # [2, N] load and busy time that are not fixed, at least
    extra: Any  # [N] scratch


@kernel
def _fix(space: Space, options: Options, node: Node, v: int, sign: float) -> bool:
    """Fix option ``node.chosen[v]`` (``sign`` -1: undo it); return whether the devices suffice."""
    option = node.chosen[v]
    c, replicas = options.configuration[option], options.replicas[option]
    fits = True
    for d in range(space.members.shape[1]):
        shards = options.shards[option, d]
        if shards:
            memory = space.uses[MEMORY, c] + space.kept[c] / replicas
            node.use[MEMORY, d] += sign * shards * memory
            fits = fits and node.use[MEMORY, d] <= 1.0 + NEARLY
            for k in (LOAD, OTHER, POWER, BUSY):
                node.use[k, d] += sign * shards * space.uses[k, c] / replicas
                fits = fits and (k == BUSY or node.use[k, d] <= 1.0 + NEARLY)
    return bool(fits)


@kernel
def _fill_rest(space: Space, node: Node, fixed: int, low: Any, high: Any) -> bool:
    """Fill what comes to the devices at least; return False if no plan of the box can follow."""
    devices = space.members.shape[1]
    for k in (OTHER, POWER, MEMORY):
        if devices - node.use[k].sum() < space.least[k, fixed] - NEARLY:
            return False
    for row in range(2):
        k = LOAD if row == 0 else BUSY
        free, missing = 0.0, 0.0
        for d in range(devices):
            if node.use[k, d] > high[row, d] + NEARLY:
                return False
            free += high[row, d] - node.use[k, d]
            missing += max(0.0, low[row, d] - node.use[k, d])
        least = space.least[k, fixed]
        if free < least - NEARLY or missing > space.most[row, fixed] + NEARLY:
            return False
        for d in range(devices):
            elsewhere = free - (high[row, d] - node.use[k, d])
            rest = max(0.0, low[row, d] - node.use[k, d], least - elsewhere)
            node.rest[row, d] = rest
            if row == 0:
                node.load[d] = node.use[k, d] + rest
    return True


@kernel
def _extra_by_fixed(
    space: Space, options: Options, node: Node, fixed: int, c: int, d: int
) -> float:
    """Return what the fixed shards on device ``d`` add to a shard of ``c``, before sharing."""
    total = 0.0
    for u in range(fixed):
        option = node.chosen[u]
        if options.shards[option, d]:
            other = options.configuration[option]
            busy = space.uses[BUSY, other] / options.replicas[option] * options.shards[option, d]
            total += space.extra_time[c, other] * busy
    return total


@kernel
def _extra_by_rest(
    space: Space, node: Node, fixed: int, c: int, d: int, load: float, busy: float
) -> float:
    """Return what shards on device ``d`` that are not fixed add to one of ``c``, before sharing.

    ``load`` and ``busy`` are the most that the shard itself may have of what is not fixed.
    """
    by_load = space.per_rest[0, c, fixed] * max(0.0, node.rest[0, d] - load)
    by_busy = space.per_rest[1, c, fixed] * max(0.0, node.rest[1, d] - busy)
    return float(max(by_load, by_busy))


@kernel
def _shared(node: Node, d: int, extra: float, load: float, other: float) -> float:
    """Return the extra time of a shard, relative to its time alone, as others share device ``d``.

    ``load`` and ``other`` are the most that the shard itself uses of the two resources.
    """
    others = max(0.0, node.load[d] - load, node.use[OTHER, d] - other)
    return float(max(0.0, extra) / (1.0 - min(others, FULL)))


@kernel
def _fixed_sojourn(space: Space, options: Options, node: Node, fixed: int, v: int) -> float:
    """Return the least sojourn of the fixed operator ``v``."""
    option = node.chosen[v]
    c, replicas = options.configuration[option], options.replicas[option]
    busy = space.uses[BUSY, c] / replicas
    for d in range(space.members.shape[1]):
        node.extra[d] = 0.0
        if options.shards[option, d]:
            extra = _extra_by_fixed(space, options, node, fixed, c, d)
            extra -= space.extra_time[c, c] * busy  # the shard itself
            extra += _extra_by_rest(space, node, fixed, c, d, 0.0, 0.0)
            load, other = space.own[0, c] / replicas, space.own[1, c] / replicas
            node.extra[d] = _shared(node, d, extra, load, other)
    total = 0.0
    for s in range(space.members.shape[0]):
        if options.replicas_on[option, s]:
            worst = 0.0
            for d in range(space.members.shape[1]):
                if space.members[s, d]:
                    worst = max(worst, node.extra[d])
            total += options.replicas_on[option, s] * worst
    best = np.inf
    for b in range(space.batches.shape[1]):
        rate, service, transfer = space.batches[:, b, c]
        service *= 1.0 + total / replicas
        if service + transfer < best:
            best = min(best, sojourn(rate * service, replicas, service, transfer))
    return best


@kernel
def _least_sojourn(space: Space, options: Options, node: Node, fixed: int, v: int) -> float:
    """Return the least sojourn of operator ``v``, which is not fixed."""
    best = np.inf
    for c in range(space.first[v], space.first[v + 1]):
        for d in range(space.members.shape[1]):
            by_fixed = _extra_by_fixed(space, options, node, fixed, c, d)
            for g in range(GROUPS):
                if space.least_s[c, g, 0] < best:
                    load, busy = space.own[0, c] / (g + 1), space.own[2, c] / (g + 1)
                    extra = by_fixed + _extra_by_rest(space, node, fixed, c, d, load, busy)
                    extra = _shared(node, d, extra, load, np.inf)
                    step = min(int(np.log1p(extra) / EXTRA_STEP), EXTRA_STEPS - 1)
                    best = min(best, space.least_s[c, g, step])
    return best


@kernel
def _may_meet(space: Space, options: Options, node: Node, fixed: int, low: Any, high: Any) -> bool:
    """Return whether a plan below the node may meet the limit."""
    if not _fill_rest(space, node, fixed, low, high):
        return False
    for v in range(space.operator.size):
        if v < fixed:
            least_s = _fixed_sojourn(space, options, node, fixed, v)
        else:
            least_s = _least_sojourn(space, options, node, fixed, v)
        if least_s > 1.0 + TOLERANCE:
            return False
        node.sojourn_s[space.operator[v]] = least_s
    return bool(longest_path(node.sojourn_s, space.graph, node.ends) <= 1.0 + TOLERANCE)


@cached_kernel
def search_tree(
    space: Space, options: Options, node: Node, low: Any, high: Any, most_nodes: int
) -> Any:
    """Search all plans from ``low`` to ``high``; return whether none can be, and the nodes used."""
    count = space.operator.size
    node.use[:] = 0.0
    if not _may_meet(space, options, node, 0, low, high):
        return True, 1
    following = np.zeros(count, np.int64)  # next option to try
    v, nodes = 0, 1
    while v >= 0:
        if following[v] == 0:
            if v == count or options.first[v] == options.first[v + 1]:
                return False, nodes  # nothing more to fix
            following[v] = options.first[v]
        if following[v] == options.first[v + 1]:
            following[v] = 0
            v -= 1
            if v >= 0:
                _fix(space, options, node, v, -1.0)
            continue
        node.chosen[v] = following[v]
        following[v] += 1
        nodes += 1
        if nodes > most_nodes:
            return False, nodes
        fits = _fix(space, options, node, v, 1.0)
        if fits and _may_meet(space, options, node, v + 1, low, high):
            v += 1
            if v == count:
                return False, nodes
        else:
            _fix(space, options, node, v, -1.0)
    return True, nodes


def is_without_plan(
    problem: OperatorProblem, demand: Demand, table: FloatArray, device_bytes: float, devices: int,
    most_nodes: int = NODES_IN_ALL,
) -> bool:  # fmt: skip
    """Return whether it is proven that no plan meets the limit on ``devices``.

    ``table [V, B, P, R]`` has the sojourn of each choice if nothing shares its devices, in seconds;
    inf excludes the choice. Nothing is proven without measured slowdowns, for more than
    ``MOST_DEVICES``, or if the proof needs more than ``most_nodes``.
    """
    if demand.table is None or demand.kinds is None or devices > MOST_DEVICES:
        return False
    choices = _useful_choices(problem, table, devices)
    if not all(of_operator.any() for of_operator in choices):
        return True
    space = _space(problem, demand, choices, device_bytes, devices)
    options = _options(space, choices)
    count = len(problem.names)
    node = Node(
        np.zeros(count, np.int64), np.zeros((5, devices)), np.zeros(count), np.zeros(count),
        np.zeros(devices), np.zeros((2, devices)), np.zeros(devices),
    )  # fmt: skip
    whole = np.ones((2, devices)) * np.array([[1.0], [space.most[1, 0]]])
    boxes = [(np.zeros((2, devices)), whole)]
    while boxes:
        box = _narrowed(*boxes.pop(), space.least[[LOAD, BUSY], 0])
        if box is None:
            continue
        proven, nodes = search_tree(space, options, node, *box, min(NODES, most_nodes))
        most_nodes -= nodes
        if proven:
            continue
        low, high = box
        side = np.unravel_index((high - low).argmax(), low.shape)
        if most_nodes <= 0 or high[side] - low[side] < NARROWEST:
            return False
        middle = (low[side] + high[side]) / 2
        for begin, end in ((low[side], middle), (middle, high[side])):
            part_low, part_high = low.copy(), high.copy()
            part_low[side], part_high[side] = begin, end
            boxes.append((part_low, part_high))
    return True


def _narrowed(
    low: FloatArray, high: FloatArray, least: FloatArray
) -> tuple[FloatArray, FloatArray] | None:
    """Return the part of a box with falling loads, and sums of at least ``least``; None: empty."""
    low, high = low.copy(), high.copy()
    high[0] = np.minimum.accumulate(high[0])
    high[0, 0] = min(1.0, high[0, 0])
    low = np.maximum(low, least[:, None] - (high.sum(axis=1, keepdims=True) - high))
    low[0] = np.maximum.accumulate(low[0, ::-1])[::-1]
    low[1] = np.maximum(low[1], low[0])  # an operator that uses a device is busy there
    return None if (low > high + NEARLY).any() else (low, np.maximum(low, high))


def _useful_choices(problem: OperatorProblem, table: FloatArray, devices: int) -> BoolArray:
    """Return the choices ``[V, B, P, R]`` that meet the limit if nothing is slowed."""
    least_s = table.min(axis=(1, 2, 3))
    path_s, path = critical_path(problem, least_s)
    on_path = np.isin(np.arange(least_s.size), path)
    others_s = np.where(on_path, path_s - least_s, 0.0)
    useful = table <= problem.slo_s * (1.0 + TOLERANCE) - others_s[:, None, None, None]
    return np.asarray(useful & (problem.parallel <= devices)[:, None])


def _space(
    problem: OperatorProblem, demand: Demand, choices: BoolArray, device_bytes: float, devices: int
) -> Space:
    """Return the configurations with useful choices, operators with the largest loads first."""
    useful = np.asarray(choices.any(axis=3), np.bool_)  # [V, B, P]
    latency_s = np.where(useful, problem.latency_s, 0.0)
    busy = problem.rate / problem.batches[:, None] * latency_s  # of all replicas
    loads = sorted(
        (demand.compute, demand.bandwidth),
        key=lambda share: -_least(useful, busy * problem.parallel * share).min(axis=1).sum(),
    )
    board = np.zeros_like(busy) if demand.board is None else demand.board
    uses = [
        busy * loads[0],
        busy * loads[1],
        busy * board,
        demand.memory_bytes / device_bytes,
        busy,
    ]
    load_of = _least(useful, uses[LOAD] * problem.parallel).min(axis=1)
    order = np.argsort(-load_of, kind="stable")
    index = np.concatenate(
        [[(v, p) for p in np.flatnonzero(useful[v].any(axis=0))] for v in order]
    ).astype(np.int64)
    at, parallel = tuple(index.T), problem.parallel[index[:, 1]]
    first = np.searchsorted(np.argsort(order)[index[:, 0]], np.arange(order.size + 1))
    least_uses = np.stack([_least(useful, use)[at] for use in uses])
    own = np.stack([-_least(useful, -uses[k])[at] for k in (LOAD, OTHER, BUSY)])
    kept = np.zeros(len(index)) if demand.kept_bytes is None else demand.kept_bytes[at]
    kept = kept / device_bytes
    extra_time = _least_extra_time(demand, useful, index)
    allowed = np.asarray(choices.any(axis=1), np.bool_)  # [V, P, R]
    fewest = allowed[at].argmax(axis=1) + 1
    totals = least_uses * parallel
    totals[MEMORY] = parallel * (fewest * least_uses[MEMORY] + kept)
    pieces = list(pairwise(first))
    most = [[(own[k] * parallel)[i:j].max() for i, j in pieces] for k in (0, 2)]
    least = [[total[i:j].min() for i, j in pieces] for total in totals]
    service, transfer = (
        np.moveaxis(np.where(useful, a, np.inf) / problem.slo_s, 1, 2)[at].T
        for a in (problem.latency_s, problem.transfer_s)
    )
    rate = np.broadcast_to(problem.rate / problem.batches[:, None] * problem.slo_s, service.shape)
    batches = np.stack([rate, service, transfer])
    with np.errstate(divide="ignore", invalid="ignore"):
        per_load = np.where(own[0] > NEARLY, extra_time * _busy_per_load(useful, uses, at), np.inf)
    per_rest = np.stack([_least_of_later(a, pieces) for a in (per_load, extra_time)])
    members = [
        np.isin(np.arange(devices), of_replica)
        for width in np.unique(parallel)
        for of_replica in combinations(range(devices), int(width))
    ]
    least_s = np.full((len(index), GROUPS, EXTRA_STEPS), np.inf)
    slowdown = np.exp(EXTRA_STEP * np.arange(EXTRA_STEPS))
    fill_least_sojourns(batches, np.moveaxis(choices, 2, 1)[at], slowdown, least_s)
    return Space(
        first, order, parallel, least_uses, kept, own, batches, extra_time, per_rest, least_s,
        _from_each_on(least), _from_each_on(most), np.array(members, np.int64), problem.graph,
    )  # fmt: skip


def _least(useful: BoolArray, values: FloatArray) -> FloatArray:
    """Return the least of ``values [V, B, P]`` over the useful batches, ``[V, P]``."""
    return np.asarray(np.where(useful, values, np.inf).min(axis=1))


def _busy_per_load(useful: BoolArray, uses: list[FloatArray], at: Any) -> FloatArray:
    """Return the least busy time per load of each configuration, ``[C]``."""
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(uses[LOAD] > 0, uses[BUSY] / uses[LOAD], np.inf)
    return np.asarray(_least(useful, ratio)[at], np.float64)


def _least_extra_time(demand: Demand, useful: BoolArray, index: IntArray) -> FloatArray:
    """Return the least extra time over the batches of both configurations, ``[C, C]``."""
    rows = [(c, v, b, p) for c, (v, p) in enumerate(index) for b in np.flatnonzero(useful[v, :, p])]
    c, v, b, p = np.array(rows).T
    assert demand.kinds is not None
    matrix = interference_matrix(
        demand.table, demand.kinds[v], demand.compute[v, b, p], demand.bandwidth[v, b, p]
    )
    starts = np.searchsorted(c, np.arange(len(index)))
    return np.asarray(np.minimum.reduceat(np.minimum.reduceat(matrix, starts, 0), starts, 1))


def _least_of_later(values: FloatArray, pieces: list[tuple[int, int]]) -> FloatArray:
    """Return the least of each row of ``values [C, C]`` over the v-th and later operators."""
    of_operator = np.stack([values[:, i:j].min(axis=1) for i, j in pieces], axis=1)
    least = np.minimum.accumulate(of_operator[:, ::-1], axis=1)[:, ::-1]
    least = np.where(np.isfinite(least), least, 0.0)
    return np.column_stack([least, np.zeros(len(values))])


def _from_each_on(values: Any) -> FloatArray:
    """Return the sums of ``values [K, V]`` from each operator on, ``[K, V + 1]``."""
    sums = np.cumsum(np.array(values)[:, ::-1], axis=1)[:, ::-1]
    return np.column_stack([sums, np.zeros(len(sums))])


@cached_kernel
def fill_least_sojourns(batches: Any, allowed: Any, slowdown: Any, out: Any) -> None:
    """Fill ``out [C, GROUPS, EXTRA_STEPS]`` with the least sojourns by replicas and slowdown.

    ``batches`` is that of ``Space``; ``allowed [C, B, R]`` are the numbers of replicas that count.
    """
    for c in range(out.shape[0]):
        for b in range(batches.shape[1]):
            rate, service, transfer = batches[:, b, c]
            for r in range(allowed.shape[2]):
                if allowed[c, b, r]:
                    g = min(r, GROUPS - 1)
                    for k in range(slowdown.size):
                        slow_s = service * slowdown[k]
                        sojourn_s = sojourn(rate * slow_s, r + 1, slow_s, transfer)
                        out[c, g, k] = min(out[c, g, k], sojourn_s)
                        if sojourn_s > 2.0:
                            break


def _options(space: Space, choices: BoolArray) -> Options:
    """Return the ways to fix each operator; none for one with too many, or after one."""
    first, columns = [0], []
    for v, operator in enumerate(space.operator):
        allowed = choices[operator].any(axis=0)  # [P, R]
        found = _options_of(space, allowed[allowed.any(axis=1)], v) if len(first) == v + 1 else None
        if found is None:
            break
        columns.append(found)
        first.append(first[-1] + len(found))
    first += [first[-1]] * (space.operator.size + 1 - len(first))
    rows = np.concatenate([np.zeros((0, 2 + len(space.members)), np.int64), *columns])
    on = np.ascontiguousarray(rows[:, 2:])
    return Options(np.array(first), rows[:, 0].copy(), rows[:, 1].copy(), on, on @ space.members)


def _options_of(space: Space, allowed: BoolArray, v: int) -> IntArray | None:
    """Return configuration, replicas, and replicas on each set of devices; a row per option.

    None: operator ``v`` has more than ``MOST_OPTIONS``. ``allowed`` are the numbers of replicas of
    each of its configurations.
    """
    rows: list[IntArray] = []
    (sets, devices), size = space.members.shape, space.members.sum(axis=1)
    others = space.least[MEMORY, 0] - (space.least[MEMORY, v] - space.least[MEMORY, v + 1])
    for c, of_configuration in zip(range(space.first[v], space.first[v + 1]), allowed, strict=True):
        possible = np.flatnonzero(size == space.parallel[c])
        for replicas in (np.flatnonzero(of_configuration) + 1).tolist():
            memory = space.uses[MEMORY, c] + space.kept[c] / replicas
            if replicas * space.parallel[c] * memory > devices - others + NEARLY:
                break
            if len(rows) + comb(replicas + possible.size - 1, replicas) > MOST_OPTIONS:
                return None
            most = (1.0 + NEARLY) / max(memory, space.uses[LOAD, c] / replicas, NEARLY)
            for picked in combinations_with_replacement(possible.tolist(), replicas):
                on = np.bincount(picked, minlength=sets)
                if (on @ space.members).max() <= most:
                    rows.append(np.r_[c, replicas, on])
    return np.array(rows, np.int64).reshape(len(rows), 2 + sets)
