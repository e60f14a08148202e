"""A window split into cells, one per model and region, and the bound their prices prove.

The rows that join cells are the capacities and the joint demands. With a price >= 0 on each,
``capacity[r,g]`` and ``demand[l]``, every cell is solved by itself, and the sum of the cells less
prices times right-hand sides is a lower bound on the cost of any plan (Geoffrion, Lagrangean
relaxation for integer programming, 1974). Since whole cells are solved exactly, the best such bound
is tighter than that of the linear relaxation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from planner.optimizer.decomposition.covering import cheapest_cells
from planner.optimizer.figures import global_need_tps, local_need_tps
from planner.optimizer.model import start_cost
from planner.optimizer.problem import FloatArray, IntArray, PlanningProblem

ROUNDING = 1e-9  # share of a demand below which a shortage is a matter of floating point


@dataclass(frozen=True, slots=True, eq=False)
class Prices:
    """What the joining rows charge; all >= 0."""

    capacity: FloatArray  # [r, g] US dollars per GPU
    demand: FloatArray  # [l] US dollars per instance-equivalent (Cells.tokens) of joint demand

    def towards(self, other: Prices, step: float) -> Prices:
        """``self + step * other``, kept at 0 or more."""
        return Prices(
            np.maximum(0.0, self.capacity + step * other.capacity),
            np.maximum(0.0, self.demand + step * other.demand),
        )

    def midway(self, other: Prices) -> Prices:
        """Half of each."""
        return Prices(
            (self.capacity + other.capacity) / 2,
            (self.demand + other.demand) / 2,
        )


@dataclass(frozen=True, slots=True, eq=False)
class Priced:
    """Every cell at its cheapest under some prices."""

    bound: float  # on the objective of any plan; infinite where a cell cannot be covered
    x: IntArray  # [l, r, g] instances beyond the minimums
    lowest: FloatArray  # [l, r] each cell's cost at these prices
    slope: Prices  # how the bound grows with each price: a subgradient


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """The program in terms of instances beyond the minimums."""

    theta: FloatArray  # [l, g] tokens/s of an instance
    size: IntArray  # [l, g] GPUs of an instance
    usd: FloatArray  # [l, r, g]
    start: FloatArray  # [l, r, g] added for every instance beyond ``running``
    running: IntArray  # [l, r, g] instances that need no start
    most: IntArray  # [l, r, g]
    need: FloatArray  # [l, r] tokens/s
    joint: FloatArray  # [l] tokens/s
    room: IntArray  # [r, g] GPUs
    minimum: IntArray  # [l, r, g]
    fixed_usd: float  # cost of the minimums
    tokens: FloatArray  # [l] tokens/s in which joint demand is counted: a mean instance

    @classmethod
    def of(cls, problem: PlanningProblem) -> Cells | None:
        """None where the limits of one model, region and GPU type contradict each other."""
        theta, size = problem.theta_tps, problem.gpus_per_instance
        can_run = theta[:, None, :] > 0
        minimum = np.where(can_run, problem.minimum, 0)
        fits = problem.capacity_gpus[None] // np.maximum(1, size)[:, None, :]
        most = np.where(can_run, np.minimum(problem.maximum, fits) - minimum, 0)
        room = problem.capacity_gpus - np.einsum("lrg,lg->rg", minimum, size)
        if (most < 0).any() or (room < 0).any():
            return None
        start = np.where(can_run, start_cost(problem), 0.0)
        held = np.einsum("lrg,lg->lr", minimum, theta)
        types = np.maximum(1, (theta > 0).sum(axis=1))
        return cls(
            theta=theta,
            size=size,
            usd=problem.usd_per_hour,
            start=start,
            running=np.minimum(np.maximum(0, problem.current - minimum), most),
            most=most,
            need=local_need_tps(problem) * (1 - ROUNDING) - held,
            joint=global_need_tps(problem) * (1 - ROUNDING) - held.sum(axis=1),
            room=room,
            minimum=minimum,
            fixed_usd=float(
                (problem.usd_per_hour * minimum).sum()
                + (start * np.maximum(0, minimum - problem.current)).sum()
            ),
            tokens=np.where(can_run.any(axis=(1, 2)), theta.sum(axis=1) / types, 1.0),
        )

    @property
    def free(self) -> Prices:
        """No charge on any row."""
        return Prices(np.zeros(self.room.shape), np.zeros(len(self.theta)))

    @property
    def ceiling_usd(self) -> float:
        """More than any plan costs: every GPU at its dearest use. A bound above it proves that
        there is no plan."""
        dearest = (self.usd + self.start) / np.maximum(1, self.size)[:, None, :]
        return self.fixed_usd + 1.0 + float((self.room * dearest.max(axis=0)).sum())

    def priced(self, prices: Prices) -> Priced:
        """Every cell at its cheapest."""
        first, further = self.charged(prices)
        x, lowest = np.empty_like(self.most), np.empty_like(self.need)
        cheapest_cells(self.theta, first, further, self.running, self.most, self.need, x, lowest)
        used = np.einsum("lrg,lg->rg", x, self.size)
        served = np.einsum("lrg,lg->l", x, self.theta)
        bound = (
            float(lowest.sum())
            - float((prices.capacity * self.room).sum())
            + float((prices.demand * self.joint / self.tokens).sum())
            + self.fixed_usd
        )
        slope = Prices((used - self.room).astype(float), (self.joint - served) / self.tokens)
        return Priced(bound, x, lowest, slope)

    def cost(self, x: npt.NDArray[np.int32], cell: IntArray) -> FloatArray:
        """US dollars per hour of each column, without prices, shape ``[n]``."""
        gpus = x.shape[1]
        usd, start = self.usd.reshape(-1, gpus)[cell], self.start.reshape(-1, gpus)[cell]
        beyond = np.maximum(0, x - self.running.reshape(-1, gpus)[cell])
        cost: FloatArray = (usd * x + start * beyond).sum(axis=1)
        return cost

    def charged(self, prices: Prices) -> tuple[FloatArray, FloatArray]:
        """What an instance costs under ``prices``, running already or not, ``[l, r, g]`` each."""
        worth = (prices.demand / self.tokens)[:, None, None] * self.theta[:, None, :]
        first = self.usd + prices.capacity[None] * self.size[:, None, :] - worth
        return first, first + self.start
