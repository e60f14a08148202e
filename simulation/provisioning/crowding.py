"""Compute a lower bound on the latency of any operator plan on a given number of devices.

On N devices, operators have to share. A replica's shard i with busy share b_i slows the others on
its device d (``interference``): its extra time is at least the sum of M_ij b_j over the others j,
divided by 1 - L_d + o_i. L_d is the load of the device, in arithmetic or in traffic, and o_i the
part of shard i in it. The device has L_d <= 1. Let y_v be the mean extra time of operator v, and
take any weights h_v >= 0. Each pair on a device adds

    h_i M_ij b_j + h_j M_ji b_i >= 2 q_i q_j   with q_i = g_i sqrt(h_i b_i), g_i g_j <= M_ij

(h_i per shard; M is the geometric mean of both directions). So with any o > 0,

    sum of h_v y_v >= sum over d of (Q_d^2 - sum of q_i^2) / (1 - L_d + o)
                   >= Q^2 / (N (1 + o) - L) - sum of q_i^2 / o

Q and L are sums over all devices. Each is a sum over the chosen configurations. The last step holds
because x^2 / t is convex. q_i has a factor for o_i unlike o. The right side is convex in the
choices, so that its tangents are linear constraints. The sojourn of M/M/R is convex in the service
time, and its tangents are too. The linear program relaxes the choices. The best weights h for its
answer are an eigenvector, which gives the next tangents.
"""

from __future__ import annotations  # else the type of a result would import scipy.optimize

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

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
ROUNDS, TANGENTS = 40, 8  # of linear programs, and new tangents in each
PATIENCE = 12  # rounds before small gains end the search
SMALL_GAIN, VIOLATED = 1e-3, 1e-4


class _Choices(NamedTuple):
    """The configurations of all operators, ``[n]`` unless stated otherwise."""

    operator: IntArray
    shards: IntArray  # replicas times parallelism
    needs: FloatArray  # [4, n] devices' worth of memory, arithmetic, traffic and power
    busy: FloatArray  # GPUs' worth of busy time
    most: FloatArray  # largest extra time, relative to the time alone
    height: FloatArray  # [n, S] of the tangents at ``SLOWDOWNS`` without extra time, over the limit
    slope: FloatArray  # [n, S]


class _View(NamedTuple):
    """One reading of the pairs on devices: Q^2 / (room - used) - alone times the sum of q^2."""

    factor: FloatArray  # [n] of q^2
    used: FloatArray  # [n]
    room: float
    alone: float


class _Tangents(NamedTuple):
    """Constraints: sum of ``extra`` y less sum of ``picks`` choices is at least ``low``."""

    picks: list[FloatArray]
    extra: list[FloatArray]
    low: list[float]


def least_crowded_latency(
    problem: OperatorProblem, demand: Demand, table: FloatArray, device_bytes: float, devices: int
) -> float:
    """Return a lower bound on the latency of plans on ``devices``, over the latency limit.

    Above 1, no plan meets the limit; inf: no plan fits. ``table`` has the sojourns alone; inf
    excludes a choice. Without measured slowdowns the bound is 0.
    """
    count = len(problem.names)
    slowed_by = _least_interference(problem, demand, devices)
    if not slowed_by.size or devices > MOST_DEVICES:
        return 0.0
    choices = _choices(problem, demand, table, device_bytes, devices)
    if np.unique(choices.operator).size < count:
        return float("inf")
    path = critical_path(problem, problem.latency_s.min(axis=(1, 2)))[1]
    on_path = np.isin(np.arange(count), path)
    busy = np.bincount(choices.operator, choices.busy, count).astype(np.float64)
    factor = _rank_one(slowed_by, busy)
    tangents, before = _Tangents([], [], []), 0.0
    for step in range(ROUNDS):
        result = _relaxed(choices, on_path, devices, tangents)
        if result.status == 2:
            return float("inf")
        if result.x is None:
            return before
        latency, n = float(result.fun), choices.operator.size
        if latency > 1.0 + TOLERANCE or (step > PATIENCE and latency < before + SMALL_GAIN):
            return latency
        picked, extra = result.x[:n], result.x[n : 2 * n]
        if not _add_tangents(tangents, choices, factor * on_path, devices, picked, extra):
            return latency
        # A choice is never taken if its reduced cost alone would exceed the limit.
        possible = latency + result.lower.marginals[:n] <= 1.0 + TOLERANCE
        choices, tangents = _restricted(choices, tangents, possible)
        before = latency
    return before


def _least_interference(problem: OperatorProblem, demand: Demand, devices: int) -> FloatArray:
    """Return the least extra time of v if u always runs beside it, over all choices, ``[V, V]``.

    It is the geometric mean of both directions. It is empty without a table.
    """
    count, fits = len(problem.names), problem.parallel <= devices
    compute, bandwidth = (
        a[:, :, fits].reshape(count, -1) for a in (demand.compute, demand.bandwidth)
    )
    each = compute.shape[1]
    kinds = None if demand.kinds is None else np.repeat(demand.kinds, each, axis=0)
    matrix = interference_matrix(demand.table, kinds, compute.ravel(), bandwidth.ravel())
    if not matrix.size:
        return matrix
    least = np.maximum(matrix.reshape(count, each, count, each).min(axis=(1, 3)), 1e-9)
    return np.asarray(np.sqrt(least * least.T))


def _rank_one(slowed_by: FloatArray, weight: FloatArray) -> FloatArray:
    """Return the largest g ``[V]`` by ``weight`` with g_v g_u at most ``slowed_by[v, u]``."""
    v, u = np.triu_indices(len(slowed_by))
    pairs = np.eye(len(slowed_by))[v] + np.eye(len(slowed_by))[u]
    result = scipy.optimize.linprog(
        -weight / weight.sum(), A_ub=pairs, b_ub=np.log(slowed_by[v, u]), bounds=(None, None)
    )
    return np.asarray(np.exp(result.x) * (1.0 - TOLERANCE))


def _choices(
    problem: OperatorProblem, demand: Demand, table: FloatArray, device_bytes: float, devices: int
) -> _Choices:
    """Return the configurations that meet the limit alone and fit on the devices.

    Shards of a replica are on different devices. The most replicas stand for all larger numbers:
    they wait for nothing, and their shards are counted as few.
    """
    most_replicas = problem.max_replicas
    load = problem.rate / problem.batches[:, None] * problem.latency_s  # [V, B, P]
    first = np.floor(load).astype(np.int64) + 1
    replicas = first[..., None] + np.arange(MORE_REPLICAS)
    index = np.indices(replicas.shape)[:3]
    kept = (problem.parallel[index[2]] <= devices) & (replicas <= most_replicas)
    operator, b, p, r = (a[kept] for a in (*index, replicas))
    last = (r == first[operator, b, p] + MORE_REPLICAS - 1) & (r < most_replicas)
    alone = np.where(last, 0.0, table[operator, b, p, r - 1])
    smallest = table[operator, b, p, -1]  # finite if some number of replicas fits
    needs = device_shares(problem, demand, device_bytes, (operator, b, p), r)
    fits = np.isfinite(smallest) & np.isfinite(alone) & (alone <= problem.slo_s)
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
    """Return height and slope ``[n, S]`` of sojourns in seconds by extra time, at each slowdown.

    The tangents are below the sojourn everywhere. Choices ``last`` have no waits.
    """
    heights, slopes = [], []
    for slowdown in SLOWDOWNS:
        at = np.minimum(slowdown, np.maximum(1.0, NEARLY * replicas / load))
        takes, less = np.empty(load.size), np.empty(load.size)
        for out, times in ((takes, at), (less, at * (1.0 - STEP))):
            sojourns_of_choice(service * times, transfer, load * times, replicas, out)
        slope = np.where(last, service, (takes - less) / (at * STEP))
        heights.append(np.where(last, service + transfer, takes - slope * (at - 1.0)))
        slopes.append(slope)
    return np.stack(heights, axis=1), np.stack(slopes, axis=1)


def _relaxed(
    choices: _Choices, on_path: BoolArray, devices: int, tangents: _Tangents
) -> scipy.optimize.OptimizeResult:
    """Minimize the latency along the path; columns are choices, extra times, sojourns."""
    sparse = scipy.sparse
    n, count = choices.operator.size, on_path.size
    by_operator = sparse.csr_array((np.ones(n), (choices.operator, np.arange(n))), shape=(count, n))
    most, eye = sparse.diags_array(choices.most), sparse.eye_array(n)
    rows = [
        sparse.hstack([sparse.csr_array(choices.needs), sparse.csr_array((4, n + count))]),
        sparse.hstack([-most, eye, sparse.csr_array((n, count))]),
    ]
    high = [np.full(4, float(devices)), np.zeros(n)]
    for height, slope in zip(choices.height.T, choices.slope.T, strict=True):
        scaled = [by_operator @ sparse.diags_array(values) for values in (height, slope)]
        rows.append(sparse.hstack([*scaled, -sparse.eye_array(count)]))
        high.append(np.zeros(count))
    if tangents.low:
        parts = np.array(tangents.picks), -np.array(tangents.extra)
        none = sparse.csr_array((len(tangents.low), count))
        rows.append(sparse.hstack([*(sparse.csr_array(part) for part in parts), none]))
        high.append(-np.array(tangents.low))
    return scipy.optimize.linprog(
        np.r_[np.zeros(2 * n), on_path],
        A_ub=sparse.vstack(rows, format="csr"),
        b_ub=np.concatenate(high),
        A_eq=sparse.hstack([by_operator, sparse.csr_array((count, n + count))], format="csr"),
        b_eq=np.ones(count),
    )


def _restricted(
    choices: _Choices, tangents: _Tangents, kept: BoolArray
) -> tuple[_Choices, _Tangents]:
    """Return only the choices ``kept [n]``, and the tangents for them."""
    fewer = _Choices(
        choices.operator[kept], choices.shards[kept], choices.needs[:, kept], choices.busy[kept],
        choices.most[kept], choices.height[kept], choices.slope[kept],
    )  # fmt: skip
    picks, extra = ([row[kept] for row in rows] for rows in tangents[:2])
    return fewer, _Tangents(picks, extra, tangents.low)


def _views(choices: _Choices, devices: int) -> Iterator[_View]:
    """Yield the readings for each o, in arithmetic and traffic, and one without these loads."""
    yield _View(np.ones(choices.busy.size), np.zeros(choices.busy.size), float(devices), 1.0)
    for load, own in product(choices.needs[1:3], OWN_LOADS):
        of_shard = load / choices.shards
        factor = np.where(of_shard < own, 1.0 + own - of_shard, own / np.maximum(of_shard, own))
        yield _View(factor, load, devices * (1.0 + own), 1.0 / own)


def _add_tangents(
    tangents: _Tangents, choices: _Choices, factor: FloatArray, devices: int,
    picked: FloatArray, extra: FloatArray,
) -> bool:  # fmt: skip
    """Add the tangents that the present answer violates most; return whether there are any.

    ``factor [V]`` is g, 0 for operators off the path.
    """
    v, count = choices.operator, factor.size
    # Weights h are found in units in which operators count by their time.
    unit = np.sqrt(np.bincount(v, picked * choices.slope[:, 0], count))
    found: list[tuple[float, FloatArray, FloatArray, float]] = []
    by_time = choices.slope[:, 0] / np.bincount(v, picked * choices.slope[:, 0], count)[v]
    for view, per in product(_views(choices, devices), (np.ones(v.size), by_time)):
        q = np.sqrt(view.factor * choices.busy * per) * factor[v]
        alone = q * q / choices.shards * view.alone
        room = max(view.room - float(view.used @ picked), TOLERANCE)
        sums = np.bincount(v, q * picked, count)
        form = np.outer(sums, sums) / room
        form -= np.diag(np.bincount(v, alone * picked + per * extra, count))
        # The largest eigenvector is the most violated weighting. Its signs are all the same.
        root = np.abs(np.linalg.eigh(form * np.outer(unit, unit))[1][:, -1] * unit)[v]
        ratio = float((q * root) @ picked) / room
        picks = 2 * ratio * q * root + ratio**2 * view.used - alone * root**2
        weights, low = root**2 * per, -(ratio**2) * view.room
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
