"""Compute the joint capacity C(n) of n instances of a model on a GPU column in one region.

Units are input tokens/s. ``pool_tps`` has C(1) to C(N), and every instance beyond N adds
``theta_tps``. C(n) rises with n, and so does C(n) / n, up to at most ``theta_tps``. Bounds and cuts
rely on two consequences: C(n) <= theta n, and C(a) + C(b) <= C(a + b), since C(a) <= a C(a + b) /
(a + b). The capacity after the loss of k instances, C(n - k), keeps both.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.optimizer.problem import PlanningProblem
from simulation.arrays import BoolArray, FloatArray, IntArray

LINEAR_TOLERANCE = 1e-9  # share of theta within which two slopes are equal


def carried_by_pools(
    problem: PlanningProblem, target: IntArray, lost: IntArray | int = 0
) -> FloatArray:
    """Return the joint capacity of each pool of instances ``target``, in tokens/s.

    The last dimensions of ``target`` and the result are ``[model, region, GPU column]``. ``lost``
    instances of each pool (a number or ``[GPU column]``) are assumed gone.
    """
    return pool_capacity(problem.theta_tps, problem.pool_tps, np.maximum(0, target - lost))


def pool_capacity(
    theta_tps: FloatArray, pool_tps: FloatArray | None, target: IntArray
) -> FloatArray:
    """Return the joint capacity of pools of ``target [..., model, region, GPU column]`` instances.

    The result has the same shape, in tokens/s. ``theta_tps [model, GPU column]`` is the capacity of
    one instance. ``pool_tps [model, GPU column, n]`` is the capacity of pools of n + 1 instances;
    None: capacity is proportional to the instances.
    """
    models, columns = theta_tps.shape
    curves = CapacityCurves(theta_tps, capacity_after_loss(theta_tps, pool_tps, lost=0))
    return curves.capacity_tps(np.arange(models)[:, None, None], np.arange(columns), target)


def capacity_after_loss(
    theta_tps: FloatArray, pool_tps: FloatArray | None, lost: int = 0
) -> FloatArray:
    """Return the tokens/s of 0, 1, ... instances of which ``lost`` are lost.

    The shape is ``[model, GPU column, count]``. ``pool_tps [model, GPU column, n]`` is the capacity
    of n + 1 instances. If it is None, the counts end at ``lost`` instances, which serve nothing.
    Of ``theta_tps [model, GPU column]``, only the shape is used. Callers add it for each instance
    beyond the last count.
    """
    none_left = np.zeros((*theta_tps.shape, 1 + lost))
    return none_left if pool_tps is None else np.concatenate([none_left, pool_tps], axis=2)


@dataclass(frozen=True, slots=True, eq=False)
class CapacityCurves:
    """The capacity curves of every model and GPU column, evaluated for many pools at once."""

    theta_tps: FloatArray  # [model, column] tokens/s of each instance beyond the known counts
    known_tps: FloatArray  # [model, column, count] tokens/s of 0 to n instances

    @classmethod
    def from_problem(cls, problem: PlanningProblem, lost: int = 0) -> CapacityCurves:
        """Return the curves of ``problem`` when ``lost`` instances of each pool are gone."""
        known = capacity_after_loss(problem.theta_tps, problem.pool_tps, lost)
        return cls(problem.theta_tps, known)

    @property
    def steepest(self) -> FloatArray:
        """Return the most tokens/s that one instance can add to its pool, ``[model, column]``."""
        added_tps = np.diff(self.known_tps, axis=2)
        return np.asarray(np.maximum(self.theta_tps, added_tps.max(axis=2, initial=0.0)))

    def capacity_tps(self, model: IntArray, column: IntArray, count: IntArray) -> FloatArray:
        """Return the tokens/s of ``count`` instances in pools of each ``model`` and ``column``."""
        known_count = np.minimum(count, self.known_tps.shape[2] - 1)
        beyond_tps = self.theta_tps[model, column] * (count - known_count)
        return np.asarray(self.known_tps[model, column, known_count] + beyond_tps)

    def fully_used(self, model: IntArray, column: IntArray, tps: FloatArray) -> IntArray:
        """Return the most instances that a demand of ``tps`` tokens/s uses in full.

        That is the largest n with C(n) <= ``tps``, and 0 for a model that cannot run on the column.
        """
        tps_each, curve = self.theta_tps[model, column], self.known_tps[model, column]
        can_run, last_known = tps_each > 0, curve.shape[-1] - 1
        known_count = (curve <= tps[..., None]).sum(axis=-1) - 1
        # Beyond the known curve, each further instance serves theta.
        beyond_tps = np.maximum(tps - curve[..., last_known], 0.0)
        further = np.floor(beyond_tps / np.where(can_run, tps_each, 1.0))
        further_count = np.where(known_count == last_known, further, 0.0)
        return np.where(can_run, known_count + further_count, 0).astype(np.int64)


def capacity_curve(
    problem: PlanningProblem, model: int, column: int, max_count: int, lost: int = 0
) -> FloatArray:
    """Return the tokens/s of 0 to ``max_count`` instances when ``lost`` of them are gone."""
    pool_tps = problem.pool_tps
    known_tps = np.zeros(1) if pool_tps is None else np.append(0.0, pool_tps[model, column])
    remaining = np.maximum(0, np.arange(max_count + 1) - lost)
    known_count = np.minimum(remaining, len(known_tps) - 1)
    further_count = remaining - known_count  # each of them serves theta
    return np.asarray(known_tps[known_count] + problem.theta_tps[model, column] * further_count)


def fewest_instances(
    problem: PlanningProblem, model: int, column: int, need_tps: float, lost: int = 0
) -> int:
    """Return the smallest n with C(n - ``lost``) >= ``need_tps`` tokens/s.

    The model must be able to run on the column.
    """
    if need_tps <= 0:
        return 0
    if lost:
        return lost + fewest_instances(problem, model, column, need_tps)
    tps_each = float(problem.theta_tps[model, column])
    if problem.pool_tps is None:
        return max(0, int(np.ceil(need_tps / tps_each)))
    known_tps = np.append(0.0, problem.pool_tps[model, column])
    if need_tps <= known_tps[-1]:
        return int(np.searchsorted(known_tps, need_tps))
    return len(known_tps) - 1 + int(np.ceil((need_tps - known_tps[-1]) / tps_each))


def is_nonlinear(problem: PlanningProblem) -> BoolArray:
    """Return True for each capacity curve that is not proportional to the instances, ``[l, g]``."""
    if problem.pool_tps is None:
        return np.zeros(problem.theta_tps.shape, dtype=bool)
    linear_tps = problem.theta_tps[:, :, None] * np.arange(1, problem.pool_tps.shape[2] + 1)
    tolerance = LINEAR_TOLERANCE * np.maximum(linear_tps, 1e-300)
    is_curved = np.abs(problem.pool_tps - linear_tps) > tolerance
    return np.asarray(is_curved.any(axis=2))


@dataclass(frozen=True, slots=True, eq=False)
class LinearPieces:
    """A capacity curve in pieces of equal slope, for an integer program that maximises capacity.

    Consecutive pieces of falling slope form a concave group. The program fills them in order of its
    own accord. Where the slope rises, a new group begins: a binary variable must keep it closed
    until all pieces before are full.
    """

    first: IntArray  # [piece] instances before the piece
    length: IntArray  # [piece] instances
    slope: FloatArray  # [piece] tokens/s of each instance
    group: IntArray  # [piece] number of the concave group, from 0


def linear_pieces(capacity_tps: FloatArray, need_tps: float) -> LinearPieces:
    """Return the linear pieces of a capacity curve, up to a demand of ``need_tps`` tokens/s.

    ``capacity_tps [n + 1]`` is the capacity of 0 to n instances in tokens/s. Capacity beyond
    ``need_tps`` has no value, so the curve ends with the instance that reaches it. A curve of 0
    instances has no pieces.
    """
    count = min(int(np.searchsorted(capacity_tps, need_tps)), len(capacity_tps) - 1)
    # Tokens/s that each instance adds.
    added_tps = np.diff(np.minimum(capacity_tps[: count + 1], need_tps))
    tolerance = LINEAR_TOLERANCE * float(np.max(added_tps, initial=0.0))
    slope_changes = np.flatnonzero(np.abs(np.diff(added_tps)) > tolerance) + 1
    first = np.append(0, slope_changes) if count else slope_changes
    length, slope = np.diff(np.append(first, count)), added_tps[first]
    begins_group = np.diff(slope, prepend=slope[:1]) > 0  # where the slope rises
    return LinearPieces(first, length, slope, np.cumsum(begins_group))
