"""Compute a lower bound on the latency of any operator plan on a given number of devices.

On N devices, operators have to share. A replica's shard i with busy share b_i is slowed by the
others j on its device d (``interference``). Its extra time is at least the sum of M_ij b_j, divided
by 1 - L_d + o_i. L_d <= 1 is the load of the device, in arithmetic or in traffic, and o_i the part
of shard i in it. Let y_v be the mean extra time of operator v, and take any weights h_v >= 0. Each
pair on a device adds

    h_i M_ij b_j + h_j M_ji b_i >= 2 q_i q_j   with q_i = g_i sqrt(h_i b_i), g_i g_j <= M_ij

(h_i per shard; M is the geometric mean of both directions). So with any o > 0,

    sum of h_v y_v >= sum over d of (Q_d^2 - sum of q_i^2) / (1 - L_d + o)
                   >= Q^2 / (N (1 + o) - L) - sum of q_i^2 / o

Q and L are sums over all devices. Each is a sum over the chosen configurations. The last step holds
because x^2 / t is convex. q_i has a factor for o_i unlike o. The right side is convex in the
choices, so that its tangents are linear constraints. The sojourn of M/M/R is convex in the service
time, and its tangents are too. The best weights h for an answer are an eigenvector, which gives the
next tangents.

Shards of a replica are on different devices. Those of a replica with P of them meet a mean load of
at least (L - (N - P)) / P, since no other device is loaded above 1. A replica on all N devices is
on the device of every other shard. With a_v o_j <= M_vj b_j, both give a floor of y_v by the convex
function a_v x / (1 - x) of the other load x. The linear program relaxes the choices. If it comes
near the limit, an integer program follows.
"""

from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import scipy

from simulation.arrays import BoolArray, FloatArray, IntArray
from simulation.provisioning.bounds import TOLERANCE, device_shares
from simulation.provisioning.interference import Demand, interference_matrix
from simulation.provisioning.problem import OperatorProblem, critical_path
from simulation.provisioning.sojourns import sojourns_of_choice

MOST_DEVICES = 8  # one device of more is a small share, and the program is large
MORE_REPLICAS = 8  # above the load; the last one stands for all that are larger, without waits
SLOWDOWNS = (1.0, 1.15, 1.35, 1.6, 2.0, 2.6, 3.5, 5.0, 8.0)  # where sojourns have tangents
OWN_LOADS = (0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0)  # o
NEARLY = 0.98  # of the slowdown at which a queue is unstable
STEP = 1e-4  # relative step of slopes, which errs to the safe side
OTHER_LOADS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)  # where the floor has tangents
ROUNDS, TANGENTS = 40, 8  # of linear programs, and new tangents in each
PATIENCE = 12  # rounds before small gains end the search
SMALL_GAIN, VIOLATED = 1e-3, 1e-4
INFEASIBLE = 2  # status of SciPy's solvers
LOAD_ROUNDS = 4  # rounds between two bounds on the total load
NEAR, NODES = 0.8, 5000  # least share of the limit that integers may raise to it, and their effort


class _Choices(NamedTuple):
    """The configurations of all operators, ``[n]`` unless stated otherwise."""

    operator: IntArray
    parallel: IntArray
    shards: IntArray  # replicas times parallelism
    needs: FloatArray  # [4, n] devices' worth of memory, arithmetic, traffic and power
    busy: FloatArray  # GPUs' worth of busy time
    most: FloatArray  # largest extra time, relative to the time alone
    height: FloatArray  # [n, S] of the tangents at ``SLOWDOWNS`` without extra time, over the limit
    slope: FloatArray  # [n, S]


class _BoundForm(NamedTuple):
    """One form of the bound for given o: Q^2 / (room - L) less ``alone`` times the sum of q_i^2.

    L is the sum of ``used`` over the chosen configurations.
    """

    factor: FloatArray  # [n] factor of q_i^2, since o_i differs from o
    used: FloatArray  # [n] load of a configuration, in devices' worth
    room: float  # N (1 + o)
    alone: float  # 1 / o


class _Tangents(NamedTuple):
    """Linear constraints on plans: extra @ y - picks @ x is at least ``low``.

    x are the shares in which configurations are chosen, y their extra times.
    """

    picks: list[FloatArray]  # [n] coefficients of x in each constraint
    extra: list[FloatArray]  # [n] coefficients of y
    low: list[float]


def least_crowded_latency(
    problem: OperatorProblem, demand: Demand, table: FloatArray, device_bytes: float, devices: int
) -> float:
    """Return a lower bound on the latency of plans on ``devices``, divided by the latency limit.

    Above 1, no plan meets the limit; inf: no plan fits. ``table [V, B, P, R]`` has the sojourn of
    each choice if nothing shares its devices, in seconds; inf excludes the choice. The bound is 0
    without measured slowdowns, and for more than ``MOST_DEVICES``.
    """
    count = len(problem.names)
    slowed_by = _least_interference(problem, demand, devices)
    if not slowed_by.size or devices > MOST_DEVICES:
        return 0.0
    choices = _choices(problem, demand, table, device_bytes, devices)
    if np.unique(choices.operator).size < count:
        return float("inf")
    path = critical_path(problem, problem.latency_s.min(axis=(1, 2))).operators
    on_path = np.isin(np.arange(count), path)
    busy = np.bincount(choices.operator, choices.busy, count).astype(np.float64)
    factor = _pair_factors(slowed_by, busy) * on_path
    tangents, before, least_load = _Tangents([], [], []), 0.0, 0.0
    for step in range(ROUNDS):
        n = choices.operator.size
        # Costs of shares, extra times and sojourns: the sojourns on the path add up.
        latency_cost = np.r_[np.zeros(2 * n), on_path]
        program = _program(choices, slowed_by, tangents, devices, least_load)
        if step % LOAD_ROUNDS == LOAD_ROUNDS - 1:
            load_cost = np.r_[choices.needs[1], np.zeros(n + count)]
            result = _solve(program, load_cost, choices, most=(latency_cost, 1.0))
            least_load = max(least_load, 0.0 if result.x is None else float(result.fun))
            program = _program(choices, slowed_by, tangents, devices, least_load)
        result = _solve(program, latency_cost, choices)
        if result.x is None:
            return float("inf") if result.status == INFEASIBLE else before
        latency = float(result.fun)
        if latency > 1.0 + TOLERANCE:
            return latency
        picked, extra = result.x[:n], result.x[n : 2 * n]
        found = _add_tangents(tangents, choices, factor, devices, picked, extra)
        # A choice is never taken if its reduced cost alone would exceed the limit.
        possible = latency + result.lower.marginals[:n] <= 1.0 + TOLERANCE
        choices, tangents = _without_excluded(choices, tangents, possible)
        if not found or (step > PATIENCE and latency < before + SMALL_GAIN):
            break
        before = latency
    if latency < NEAR:
        return latency
    program = _program(choices, slowed_by, tangents, devices, least_load)
    cost = np.r_[np.zeros(2 * choices.operator.size), on_path]
    result = _solve(program, cost, choices, whole=True)
    if result.status == INFEASIBLE:
        return float("inf")
    return max(latency, result.mip_dual_bound or 0.0)


def _least_interference(problem: OperatorProblem, demand: Demand, devices: int) -> FloatArray:
    """Return the least extra time of v if u always runs on its device, ``[V, V]``.

    It is relative to the time alone, and the least over all choices of both operators. It is empty
    without measured slowdowns.
    """
    count, fits = len(problem.names), problem.parallel <= devices
    # [V, choices] shares of each batch and parallelism of an operator
    compute = demand.compute[:, :, fits].reshape(count, -1)
    bandwidth = demand.bandwidth[:, :, fits].reshape(count, -1)
    choices = compute.shape[1]
    kinds = None if demand.kinds is None else np.repeat(demand.kinds, choices, axis=0)
    matrix = interference_matrix(demand.table, kinds, compute.ravel(), bandwidth.ravel())
    if not matrix.size:
        return matrix
    least = matrix.reshape(count, choices, count, choices).min(axis=(1, 3))
    return np.asarray(np.maximum(least, 1e-9))  # above 0, for its logarithm


def _pair_factors(slowed_by: FloatArray, weight: FloatArray) -> FloatArray:
    """Return factors g ``[V]`` with g_v g_u <= M_vu for every pair, so that M becomes a product.

    M is the geometric mean of ``slowed_by`` in both directions. Of all such g, those with the
    largest mean logarithm by ``weight [V]`` give a tight bound. A linear program in log g finds
    them.
    """
    v, u = np.triu_indices(len(slowed_by))
    mean_of_directions = np.sqrt(slowed_by * slowed_by.T)
    pairs = np.eye(len(slowed_by))[v] + np.eye(len(slowed_by))[u]
    result = scipy.optimize.linprog(
        -weight / weight.sum(),
        A_ub=pairs,
        b_ub=np.log(mean_of_directions[v, u]),
        bounds=(None, None),
    )
    return np.asarray(np.exp(result.x) * (1.0 - TOLERANCE))


def _choices(
    problem: OperatorProblem, demand: Demand, table: FloatArray, device_bytes: float, devices: int
) -> _Choices:
    """Return the configurations that meet the limit if alone, and that fit on the devices.

    The shards of a replica must fit on different devices. Of each batch and parallelism, the
    ``MORE_REPLICAS`` smallest stable numbers of replicas count. The last one stands for all larger
    numbers, so for a valid bound it never waits.
    """
    max_replicas = problem.max_replicas
    load = problem.rate / problem.batches[:, None] * problem.latency_s  # [V, B, P]
    fewest = np.floor(load).astype(np.int64) + 1  # stable replicas
    replicas = fewest[..., None] + np.arange(MORE_REPLICAS)  # [V, B, P, MORE_REPLICAS]
    index = np.indices(replicas.shape)[:3]
    kept = (problem.parallel[index[2]] <= devices) & (replicas <= max_replicas)
    operator, b, p, r = (a[kept] for a in (*index, replicas))
    # Choices that stand for all larger numbers of replicas
    last = (r == fewest[operator, b, p] + MORE_REPLICAS - 1) & (r < max_replicas)
    alone_s = np.where(last, 0.0, table[operator, b, p, r - 1])
    with_most_s = table[operator, b, p, -1]  # finite if some number of replicas fits
    needs = device_shares(problem, demand, device_bytes, (operator, b, p), r)
    fits = np.isfinite(with_most_s) & np.isfinite(alone_s) & (alone_s <= problem.slo_s)
    fits &= (needs <= devices).all(axis=0)
    operator, b, p, r, last, needs = (
        operator[fits], b[fits], p[fits], r[fits], last[fits], needs[:, fits]
    )  # fmt: skip
    load, service = load[operator, b, p], problem.latency_s[operator, b, p]
    transfer = problem.transfer_s[operator, b, p]
    unstable = np.where(last, np.inf, r / load)
    height, slope = _sojourn_tangents(load, service, transfer, r, last)
    return _Choices(
        operator=operator,
        parallel=problem.parallel[p],
        shards=r * problem.parallel[p],
        needs=needs,
        busy=load * problem.parallel[p],
        most=np.minimum(unstable, problem.slo_s / service) - 1.0,
        height=height / problem.slo_s,
        slope=slope / problem.slo_s,
    )


def _sojourn_tangents(
    load: FloatArray, service: FloatArray, transfer: FloatArray, replicas: IntArray, last: BoolArray
) -> tuple[FloatArray, FloatArray]:
    """Return height and slope, ``[n, S]`` each, of tangents to the sojourn by extra time.

    Extra time is relative to the time alone, and heights are seconds without it. There is a tangent
    at each of ``SLOWDOWNS``, below the sojourn everywhere. Choices ``last`` have no waits.
    """
    heights, slopes = [], []
    for slowdown in SLOWDOWNS:
        # Stay below the slowdown at which the queue is unstable.
        factor = np.minimum(slowdown, np.maximum(1.0, NEARLY * replicas / load))
        sojourn_s, sojourn_before_s = np.empty(load.size), np.empty(load.size)
        for out, slowed in ((sojourn_s, factor), (sojourn_before_s, factor * (1.0 - STEP))):
            sojourns_of_choice(service * slowed, transfer, load * slowed, replicas, out)
        # The slope over a step before the point is at most that at the point, so it stays a bound.
        slope = np.where(last, service, (sojourn_s - sojourn_before_s) / (factor * STEP))
        height = sojourn_s - slope * (factor - 1.0)
        heights.append(np.where(last, service + transfer, height))
        slopes.append(slope)
    return np.stack(heights, axis=1), np.stack(slopes, axis=1)


def _program(
    choices: _Choices, slowed_by: FloatArray, tangents: _Tangents, devices: int, least_load: float
) -> tuple[Any, FloatArray]:
    """Return the matrix A and the bounds b of the constraints A z <= b for plans on ``devices``.

    z has the share in which each configuration is chosen, its extra time, and the sojourn of each
    operator. ``least_load`` is a known lower bound on the total load in arithmetic, in devices.
    """
    sparse, v = scipy.sparse, choices.operator
    n, count = v.size, len(slowed_by)
    # [V, n] sums values of configurations by operator
    of_operator = sparse.csr_array((np.ones(n), (v, np.arange(n))), shape=(count, n))
    floors = _extra_time_floors(choices, slowed_by, devices, least_load)
    eye, none = sparse.eye_array(n), sparse.csr_array((n, count))
    rows = [
        # The devices suffice for each resource.
        [choices.needs, sparse.csr_array((4, n)), sparse.csr_array((4, count))],
        # The extra time of a configuration is at most ``most``, and 0 if it is not chosen.
        [sparse.diags_array(-choices.most), eye, none],
        # It is at least its floor, by configuration and by operator.
        [sparse.diags_array(floors.own), -eye, none],
        [floors.by_others, -of_operator, None],
    ]
    high = [np.full(4, float(devices)), np.zeros(n), np.zeros(n), np.zeros(count)]
    # The sojourn is above each of its tangents.
    for height, slope in zip(choices.height.T, choices.slope.T, strict=True):
        parts = [of_operator @ sparse.diags_array(values) for values in (height, slope)]
        rows.append([*parts, -sparse.eye_array(count)])
        high.append(np.zeros(count))
    # The extra time is above each tangent of a x / (1 - x), with x the load of other shards.
    for load in OTHER_LOADS:
        slope = floors.least / (1.0 - load) ** 2
        added = floors.everywhere + slope[:, None] * floors.arithmetic
        rows.append([added, -of_operator, None])
        high.append(slope * load - floors.least * load / (1.0 - load))
    if tangents.low:
        rows.append([np.array(tangents.picks), -np.array(tangents.extra), None])
        high.append(-np.array(tangents.low))
    blocks = [[None if part is None else sparse.csr_array(part) for part in row] for row in rows]
    return sparse.block_array(blocks, format="csr"), np.concatenate(high)


class _Floors(NamedTuple):
    """What the load of other shards adds at least to the extra times of operators."""

    own: FloatArray  # [n] the least extra time of each configuration
    by_others: FloatArray  # [V, n] added by others' configurations to an operator on all devices
    everywhere: FloatArray  # [V, n] added by configurations on all devices to each operator
    arithmetic: FloatArray  # [V, n] of those configurations on each device
    least: FloatArray  # [V] the factors a of the module's docstring


def _extra_time_floors(
    choices: _Choices, slowed_by: FloatArray, devices: int, least_load: float
) -> _Floors:
    """Return what the load of other shards adds at least to the extra times of operators."""
    v, load, count = choices.operator, choices.needs[1], len(slowed_by)
    # Largest share of arithmetic of each operator while it runs
    arithmetic = np.full(count, TOLERANCE)
    np.maximum.at(arithmetic, v, load / choices.busy)
    least = (slowed_by / arithmetic).min(axis=1)
    # Mean load on the devices of a replica: the total, less at most 1 on each other device.
    own_devices_load = (least_load - (devices - choices.parallel)) / choices.parallel
    met = np.clip(own_devices_load - load / choices.shards, 0.0, 1.0 - TOLERANCE)
    floor = least[v] * met / (1.0 - met)
    own = v == np.arange(count)[:, None]  # [V, n]
    everywhere = (choices.parallel == devices) & ~own
    added = slowed_by[:, v] * choices.busy - least[:, None] * load  # beyond the floor
    more = np.where(own, 0.0, added) / devices
    # An operator that is not on all devices has no such floor.
    most = np.array([more[:, v == u].max(axis=1, initial=0.0) for u in range(count)]).sum(axis=0)
    of_own = own * np.where(choices.parallel == devices, floor, -most[:, None])
    return _Floors(floor, more + of_own, everywhere * more, everywhere * load / devices, least)


def _solve(
    program: tuple[Any, FloatArray], cost: FloatArray, choices: _Choices, *, whole: bool = False,
    most: tuple[FloatArray, float] | None = None,
) -> Any:  # fmt: skip
    """Minimize ``cost`` over a program in which each operator chooses one configuration.

    A choice may be a mixture of configurations, unless ``whole``. ``most`` is one more constraint:
    a row, and its upper bound. Return SciPy's result.
    """
    matrix, high = program
    n = choices.operator.size
    count = matrix.shape[1] - 2 * n
    if most is not None:
        matrix = scipy.sparse.vstack([matrix, scipy.sparse.csr_array(most[0][None])])
        high = np.r_[high, most[1]]
    one = scipy.sparse.csr_array(
        (np.ones(n), (choices.operator, np.arange(n))), shape=(count, matrix.shape[1])
    )
    if not whole:
        return scipy.optimize.linprog(cost, A_ub=matrix, b_ub=high, A_eq=one, b_eq=np.ones(count))
    return scipy.optimize.milp(
        cost,
        integrality=np.r_[np.ones(n), np.zeros(n + count)],
        bounds=scipy.optimize.Bounds(0.0, np.inf),
        constraints=[
            scipy.optimize.LinearConstraint(matrix, -np.inf, high),
            scipy.optimize.LinearConstraint(one, 1.0, 1.0),
        ],
        options={"node_limit": NODES},
    )


def _without_excluded(
    choices: _Choices, tangents: _Tangents, kept: BoolArray
) -> tuple[_Choices, _Tangents]:
    """Return only the choices ``kept [n]``, and the tangents for them."""
    fewer = _Choices(
        choices.operator[kept], choices.parallel[kept], choices.shards[kept],
        choices.needs[:, kept], choices.busy[kept], choices.most[kept],
        choices.height[kept], choices.slope[kept],
    )  # fmt: skip
    picks, extra = ([row[kept] for row in rows] for rows in tangents[:2])
    return fewer, _Tangents(picks, extra, tangents.low)


def _bound_forms(choices: _Choices, devices: int) -> Iterator[_BoundForm]:
    """Yield one form of the bound without loads, and two for each o in ``OWN_LOADS``.

    The two are by the load in arithmetic and by the load in traffic.
    """
    yield _BoundForm(np.ones(choices.busy.size), np.zeros(choices.busy.size), float(devices), 1.0)
    for load, own in product(choices.needs[1:3], OWN_LOADS):  # rows 1, 2: arithmetic, traffic
        shard_load = load / choices.shards  # o_i
        factor = np.where(
            shard_load < own, 1.0 + own - shard_load, own / np.maximum(shard_load, own)
        )
        yield _BoundForm(factor, load, devices * (1.0 + own), 1.0 / own)


def _add_tangents(
    tangents: _Tangents, choices: _Choices, factor: FloatArray, devices: int,
    picked: FloatArray, extra: FloatArray,
) -> bool:  # fmt: skip
    """Add the tangents that the present answer violates most; return whether there are any.

    ``factor [V]`` has the factors g of ``_pair_factors``, 0 for operators off the path. The answer
    is ``picked [n]``, the share of each configuration, and its ``extra [n]`` times.
    """
    v, count = choices.operator, factor.size
    # Weights h are found in units in which operators count by their time.
    time_of_operator = np.bincount(v, picked * choices.slope[:, 0], count)
    unit = np.sqrt(time_of_operator)
    # Tangents with the amount by which the answer violates them.
    found: list[tuple[float, FloatArray, FloatArray, float]] = []
    by_time = choices.slope[:, 0] / time_of_operator[v]
    for bound, per in product(_bound_forms(choices, devices), (np.ones(v.size), by_time)):
        q = np.sqrt(bound.factor * choices.busy * per) * factor[v]
        alone = q * q / choices.shards * bound.alone
        room = max(bound.room - float(bound.used @ picked), TOLERANCE)
        sums = np.bincount(v, q * picked, count)
        quadratic = np.outer(sums, sums) / room
        quadratic -= np.diag(np.bincount(v, alone * picked + per * extra, count))
        # The largest eigenvector is the most violated weighting. Its signs are all the same.
        eigenvectors = np.linalg.eigh(quadratic * np.outer(unit, unit))[1]
        root = np.abs(eigenvectors[:, -1] * unit)[v]
        ratio = float((q * root) @ picked) / room
        picks = 2 * ratio * q * root + ratio**2 * bound.used - alone * root**2
        weights, low = root**2 * per, -(ratio**2) * bound.room
        violation = float(picks @ picked - weights @ extra) + low
        found.append((violation, picks, weights, low))
    found = sorted(found, key=lambda tangent: -tangent[0])[:TANGENTS]
    for violation, picks, weights, low in found:
        if violation > VIOLATED:
            scale = max(float(np.abs(picks).max()), float(weights.max()))
            tangents.picks.append(picks / scale)
            tangents.extra.append(weights / scale)
            tangents.low.append(low / scale)
    return found[0][0] > VIOLATED
