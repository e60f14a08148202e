"""Cover many needs at once with the cheapest instances that fit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from planner.optimizer.figures import TOLERANCE, gpus_used
from planner.optimizer.objective import price, start_price
from planner.optimizer.pools import CapacityCurves
from planner.optimizer.problem import PlanningProblem
from planner.optimizer.roles import Side, role_sides
from simulation.arrays import BoolArray, FloatArray, IntArray

ROUNDING = 1e-12  # share of a need


@dataclass(frozen=True, slots=True, eq=False)
class Needs:
    """Demands of single models to cover. No two of them share a region, so none shares capacity."""

    model: IntArray  # [n]
    regions: IntArray  # [n, k] regions that may serve each demand
    tps: FloatArray  # [n] input tokens/s

    @classmethod
    def one(cls, model: int, regions: Sequence[int], tps: float) -> Needs:
        """Return the demand of a single model that any of ``regions`` may serve."""
        return cls(np.array([model]), np.array([list(regions)], np.int64), np.array([tps]))


class Covering:
    """A greedy choice of instances that covers demand, starting from the minimums.

    ``target [model, region, GPU column]`` counts the chosen instances. ``free [region, capacity
    row]`` is the remaining GPUs; a capacity row is a stock of GPUs, such as those of one type.
    """

    def __init__(self, problem: PlanningProblem) -> None:
        self.target: IntArray = problem.minimum.copy()
        self.free: IntArray = problem.capacity_gpus - gpus_used(problem, self.target)
        self._problem = problem
        self._hourly, self._start = price(problem), start_price(problem)
        self._curves = CapacityCurves.from_problem(problem)
        # Of several sides (prefill and decode, owned and spot), the one with fewest columns comes
        # first. An instance that helps several sides is charged to each in equal parts.
        self._sides = sorted(role_sides(problem), key=lambda side: int(side.columns.sum()))
        self._side_count = np.maximum(1, sum(side.columns.astype(int) for side in self._sides))

    def cover(self, needs: Needs, *, single: bool = False) -> FloatArray:
        """Add instances until ``needs`` are covered, and return the uncovered tokens/s, ``[n]``.

        Each side, such as the prefill columns or the decode columns, must cover its share. With
        ``single``, each need gets at most one more instance per side. Maximums and free GPUs are
        never exceeded.
        """
        uncovered = np.zeros(len(needs.tps))
        for side in self._sides:
            pools = self._pools(needs, side)
            carried_tps = self._capacity_after_loss(pools, self.target[pools.index], side)
            usable_tps = np.where(pools.usable, carried_tps, 0.0).sum(axis=1)
            missing_tps = needs.tps * side.share - usable_tps
            left_tps = self._add(pools, missing_tps, side, single)
            uncovered = np.maximum(uncovered, left_tps / side.share)
        return uncovered

    def _pools(self, needs: Needs, side: Side) -> _Pools:
        """Return every pool that may serve each need, ``[n, regions x columns]``."""
        gpus = len(self._problem.gpus)
        region = np.repeat(needs.regions, gpus, axis=1)
        column = np.broadcast_to(np.tile(np.arange(gpus), needs.regions.shape[1]), region.shape)
        model = np.broadcast_to(needs.model[:, None], region.shape)
        usable = (self._problem.theta_tps[model, column] > 0) & side.columns[column]
        return _Pools(model, region, column, usable)

    def _add(self, pools: _Pools, need_tps: FloatArray, side: Side, single: bool) -> FloatArray:
        """Add instances for ``need_tps [n]`` more tokens/s; return the tokens/s left over, ``[n]``.

        ``pools [n, pool]`` are the pools of one side that may serve each need. In each round, each
        uncovered need takes the pool with the lowest price per token/s. With ``single``, there is
        only one round, of one instance each.
        """
        remaining, tolerance = need_tps.copy(), TOLERANCE * np.maximum(need_tps, 0.0)
        uncovered = np.flatnonzero(remaining > tolerance)  # indices of uncovered needs
        while uncovered.size:
            candidates = pools.of_needs(uncovered)  # [uncovered need, pool], as the three below
            instances, added_tps, price_per_token = self._price_next(
                candidates, remaining[uncovered], side, single
            )
            cheapest = np.argmin(price_per_token, axis=1)
            # If nothing fits, the need stays uncovered and leaves the loop.
            can_add = np.isfinite(price_per_token.min(axis=1))
            uncovered, chosen = uncovered[can_add], (np.flatnonzero(can_add), cheapest[can_add])
            # Take the chosen instances, one entry per need, and use up their GPUs.
            model, region, column = (index[chosen] for index in candidates.index)
            self.target[model, region, column] += instances[chosen]
            gpus = instances[chosen] * self._problem.gpus_per_instance[model, column]
            self.free[region, self._problem.rows[column]] -= gpus
            remaining[uncovered] -= added_tps[chosen]
            if single:
                break
            uncovered = uncovered[remaining[uncovered] > tolerance[uncovered]]
        return np.where(remaining > tolerance, remaining, 0.0)

    def _price_next(
        self, pools: _Pools, need_tps: FloatArray, side: Side, single: bool
    ) -> tuple[IntArray, FloatArray, FloatArray]:
        """Return number, added tokens/s and price of the next instances of each pool.

        The number is the most instances that ``need_tps [n]`` uses in full, at least one, or 1 with
        ``single``. The price is the charge per useful token/s, infinite if nothing fits. Capacity
        beyond the need is not useful, so it raises the price. ``pools``, the results and all arrays
        here are ``[n, pool]``.
        """
        model, region, column = pools.index
        need_tps, present_count = need_tps[:, None], self.target[pools.index]
        problem = self._problem
        # The most instances that fit.
        gpus_each = problem.gpus_per_instance[model, column]
        fit_in_free = self.free[region, problem.rows[column]] // gpus_each
        below_maximum = problem.maximum[pools.index] - present_count
        most_that_fit = np.where(pools.usable, np.minimum(below_maximum, fit_in_free), 0)
        # Running instances cost no start. Take them first and price new ones in a later round.
        still_running = problem.current[pools.index] - present_count  # not yet in the target
        running_that_fit = np.minimum(most_that_fit, still_running)
        count_limit = np.where(still_running > 0, running_that_fit, most_that_fit)

        # Instances that the need uses in full, and the tokens/s that they add.
        tps_before = self._capacity_after_loss(pools, present_count, side)
        fully_used = self._curves.fully_used(model, column, tps_before + need_tps * (1 + ROUNDING))
        count = fully_used + side.lost[column] - present_count
        count = np.clip(count, 1, 1 if single else np.maximum(count_limit, 1))
        added_tps = self._capacity_after_loss(pools, present_count + count, side) - tps_before

        # The price: each side that a column helps is charged an equal part.
        start_usd = np.where(still_running > 0, 0.0, self._start[pools.index])
        usd = (self._hourly[pools.index] + start_usd) / self._side_count[column] * count
        useful_tps = np.minimum(added_tps, need_tps)
        price_per_token = usd / np.maximum(useful_tps, ROUNDING * need_tps)  # never divides by 0
        return count, added_tps, np.where(most_that_fit > 0, price_per_token, np.inf)

    def _capacity_after_loss(self, pools: _Pools, count: IntArray, side: Side) -> FloatArray:
        """Return the tokens/s of ``count`` instances in each pool, less those that ``side`` loses.

        A side states how many instances of each pool are assumed gone.
        """
        model, _, column = pools.index
        return self._curves.capacity_tps(model, column, np.maximum(0, count - side.lost[column]))


@dataclass(frozen=True, slots=True, eq=False)
class _Pools:
    """The indices of the pools that may serve each need, ``[n, p]``.

    ``usable`` is False where the model cannot run on the column, or the column is not of the side.
    """

    model: IntArray
    region: IntArray
    column: IntArray
    usable: BoolArray

    @property
    def index(self) -> tuple[IntArray, IntArray, IntArray]:
        """Return the index of the pools in arrays ``[model, region, GPU column]``."""
        return self.model, self.region, self.column

    def of_needs(self, rows: IntArray) -> _Pools:
        """Return the pools of the needs whose indices are ``rows``."""
        return _Pools(self.model[rows], self.region[rows], self.column[rows], self.usable[rows])
