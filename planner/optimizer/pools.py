"""What instances of a model on a column carry together in one region: C(n), input tokens/s.

``pool_tps`` has C(1) to C(N); every instance beyond N adds ``theta_tps``. C rises with n, and so
does C(n) / n, up to ``theta_tps`` at most. Two laws follow that bounds and cuts rest on:
C(n) <= theta n, and C(a) + C(b) <= C(a + b), since C(a) <= a C(a + b) / (a + b). What is left of a
pool that loses k instances, C(n - k), keeps both.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from planner.optimizer.problem import PlanningProblem
from simulation.arrays import BoolArray, FloatArray, IntArray

LIKE = 1e-9  # share of theta by which two slopes are one


def carried_by_pools(
    problem: PlanningProblem, target: IntArray, lost: IntArray | int = 0
) -> FloatArray:
    """C of each pool of ``target`` ``[..., l, r, g]`` without ``lost`` of it (``[g]``, or of each),
    of the same shape."""
    return together(problem.theta_tps, problem.pool_tps, np.maximum(0, target - lost))


def together(theta_tps: FloatArray, pool_tps: FloatArray | None, target: IntArray) -> FloatArray:
    """The same by sizes: ``theta_tps`` ``[l, g]``, ``pool_tps`` ``[l, g, n]``."""
    theta = theta_tps[:, None, :]
    if pool_tps is None:
        straight: FloatArray = target * theta
        return straight
    known = np.concatenate([np.zeros((*theta_tps.shape, 1)), pool_tps], axis=2)
    model, _, column = np.ogrid[tuple(slice(size) for size in target.shape[-3:])]
    within = np.minimum(target, pool_tps.shape[2])
    carried: FloatArray = known[model, column, within] + theta * (target - within)
    return carried


@dataclass(frozen=True, slots=True, eq=False)
class Curves:
    """C of every model and column, of many pools at once."""

    theta: FloatArray  # [l, g]
    known: FloatArray  # [l, g, n + 1], C(0) to C(n)

    @classmethod
    def of(cls, problem: PlanningProblem) -> Curves:
        none = np.zeros((*problem.theta_tps.shape, 1))
        known = problem.pool_tps
        return cls(
            problem.theta_tps, none if known is None else np.concatenate([none, known], axis=2)
        )

    def carried(self, model: IntArray, column: IntArray, count: IntArray) -> FloatArray:
        """C(``count``), of the shape of the three."""
        within = np.minimum(count, self.known.shape[2] - 1)
        beyond = self.theta[model, column] * (count - within)
        return np.asarray(self.known[model, column, within] + beyond)

    def whole(self, model: IntArray, column: IntArray, tps: FloatArray) -> IntArray:
        """The most n with C(n) <= ``tps``, of their shape; 0 of a model that does not run there."""
        theta, known = self.theta[model, column], self.known[model, column]
        runs, last = theta > 0, known.shape[-1] - 1
        within = (known <= tps[..., None]).sum(axis=-1) - 1
        beyond = np.maximum(tps - known[..., last], 0.0) / np.where(runs, theta, 1.0)
        more = np.where(within == last, np.floor(beyond), 0.0)
        return np.where(runs, within + more, 0).astype(np.int64)


def curve(
    problem: PlanningProblem, model: int, column: int, most: int, lost: int = 0
) -> FloatArray:
    """What 0 to ``most`` instances carry when ``lost`` of them are gone."""
    if lost:
        rest = curve(problem, model, column, max(0, most - lost))
        return np.concatenate([np.zeros(min(lost, most)), rest])[: most + 1]
    theta = float(problem.theta_tps[model, column])
    if problem.pool_tps is None:
        straight: FloatArray = np.multiply(theta, np.arange(most + 1), dtype=float)
        return straight
    known = np.append(0.0, problem.pool_tps[model, column])[: most + 1]
    beyond = np.arange(1, most + 2 - len(known))
    carried: FloatArray = np.concatenate([known, known[-1] + theta * beyond])
    return carried


def fewest(problem: PlanningProblem, model: int, column: int, need: float, lost: int = 0) -> int:
    """The least n with C(n - ``lost``) >= ``need``; the model must run on the column."""
    if need <= 0:
        return 0
    if lost:
        return lost + fewest(problem, model, column, need)
    theta = float(problem.theta_tps[model, column])
    if problem.pool_tps is None:
        return max(0, int(np.ceil(need / theta)))
    known = np.append(0.0, problem.pool_tps[model, column])
    if need <= known[-1]:
        return int(np.searchsorted(known, need))
    return len(known) - 1 + int(np.ceil((need - known[-1]) / theta))


def kept(problem: PlanningProblem) -> FloatArray | None:
    """What pools carry without what of each may be gone, ``[l, g, n]``; None where every instance
    carries theta."""
    if not problem.spare and not bent(problem).any():
        return None
    known = problem.pool_tps
    if known is None:
        known = problem.theta_tps[:, :, None]
    return np.concatenate([np.zeros((*known.shape[:2], problem.spare)), known], axis=2)


def bent(problem: PlanningProblem) -> BoolArray:
    """Where C(n) is not theta n, ``[l, g]``."""
    if problem.pool_tps is None:
        return np.zeros(problem.theta_tps.shape, dtype=bool)
    straight = problem.theta_tps[:, :, None] * np.arange(1, problem.pool_tps.shape[2] + 1)
    off = np.abs(problem.pool_tps - straight) > LIKE * np.maximum(straight, 1e-300)
    return np.asarray(off.any(axis=2))


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """C(n) in stretches of equal slope. Within a run of them slopes fall, so that what carries most
    is taken first by itself; a run is open only where all before it is full."""

    first: IntArray  # [s] instances before the stretch
    length: IntArray  # [s]
    slope: FloatArray  # [s]
    run: IntArray  # [s] from 0


def pieces(carried: FloatArray, need: float) -> Pieces:
    """Of C(0) to C(most), as far as ``need`` goes: to carry more is worth nothing."""
    enough = min(int(np.searchsorted(carried, need)), len(carried) - 1)
    steps = np.diff(np.minimum(carried[: enough + 1], need))
    like = LIKE * float(np.max(steps, initial=0.0))
    new = np.append(True, np.abs(np.diff(steps)) > like)[: len(steps)]
    first = np.flatnonzero(new)
    slope = steps[first]
    run = np.cumsum(np.append(0, np.diff(slope) > 0)[: len(slope)])
    return Pieces(first, np.diff(np.append(first, enough)), slope, run)
