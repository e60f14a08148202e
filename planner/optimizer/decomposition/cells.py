"""Split a window into cells, one per model and region, and bound its cost by prices.

Three kinds of constraints join cells (the joint rows): GPU capacities, joint demands of all regions
and caps on the whole plan. With a price >= 0 on each of them, every cell can be solved alone. The
sum of the cells' costs less prices times right-hand sides is a lower bound on the cost of any plan
(Geoffrion, Lagrangean relaxation for integer programming, 1974). Cells are solved in whole
instances, so the best such bound is tighter than that of the linear relaxation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from planner.optimizer.decomposition.covering import PricedArrays, cheapest_cells
from planner.optimizer.figures import cap_use, global_need_tps, gpus_used, local_need_tps
from planner.optimizer.objective import caps, price, start_cost
from planner.optimizer.pools import CapacityCurves, carried_by_pools, fewest_instances, is_nonlinear
from planner.optimizer.problem import PlanningProblem
from simulation.arrays import FloatArray, Int32Array, IntArray

ROUNDING = 1e-9  # share of a demand: a smaller shortage is a floating point error


@dataclass(frozen=True, slots=True, eq=False)
class Prices:
    """Prices >= 0 of the constraints that several cells share, so that cells can be solved alone.

    A joint demand and a cap are counted in mean instances (``Cells.mean_tps``, ``Cells.cap_x``).
    """

    capacity: FloatArray  # [region, capacity row] US dollars per GPU
    demand: FloatArray  # [model] US dollars per mean instance of joint demand
    caps: FloatArray  # [cap] US dollars per mean instance of a cap on the whole plan

    def parts(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return the prices of capacities, of joint demands and of caps."""
        return self.capacity, self.demand, self.caps

    def towards(self, other: Prices, step: float) -> Prices:
        """Return the prices ``self + step * other``, none below 0."""
        return Prices(
            np.maximum(0.0, self.capacity + step * other.capacity),
            np.maximum(0.0, self.demand + step * other.demand),
            np.maximum(0.0, self.caps + step * other.caps),
        )

    def midway(self, other: Prices) -> Prices:
        """Return the mean of both prices."""
        return Prices(
            (self.capacity + other.capacity) / 2,
            (self.demand + other.demand) / 2,
            (self.caps + other.caps) / 2,
        )


@dataclass(frozen=True, slots=True, eq=False)
class PricedCells:
    """The cheapest solution of every cell (a model in a region) at given prices."""

    prices: Prices
    bound: float  # lower bound on the objective of any plan; infinite if a cell cannot be covered
    x: IntArray  # [model, region, GPU column] instances beyond the minimums
    lowest_usd: FloatArray  # [model, region] lower bound on the cell's cost at these prices
    served_tps: FloatArray  # [model, region] tokens/s that ``x`` adds
    slope: Prices  # how the bound grows with each price: a subgradient


@dataclass(frozen=True, slots=True, eq=False)
class Cells:
    """The program of a window split into cells; a cell is one model in one region.

    Counts are instances beyond the minimums. Axes: ``l`` models, ``r`` regions, ``g`` GPU columns,
    ``t`` capacity rows (GPUs that several columns share), ``k`` plan-wide caps. Arrays by cell
    number cells by model, then by region.
    """

    curves: CapacityCurves  # tokens/s of instances, with the spare ones gone
    gpus_each: IntArray  # [l, g] GPUs of an instance
    usd_each: FloatArray  # [l, r, g] objective per instance
    start_usd: FloatArray  # [l, r, g] extra cost of each instance beyond ``running_count``
    running_count: IntArray  # [l, r, g] instances that need no start
    max_extra: IntArray  # [l, r, g] most instances beyond the minimums
    need_tps: FloatArray  # [l, r] tokens/s of local demand beyond the minimums' capacity
    joint_tps: FloatArray  # [l] tokens/s of joint demand beyond the minimums' capacity
    free_gpus: IntArray  # [r, t] GPUs that the minimums leave
    rows: IntArray  # [g] capacity row that a column takes its GPUs from
    minimum: IntArray  # [l, r, g]
    fixed_usd: float  # cost of the minimums
    mean_tps: FloatArray  # [l] tokens/s of a mean instance, the unit of joint demand
    cap_x: FloatArray  # [k, l, r, g] use of a cap by an instance, in mean instances
    cap_start: FloatArray  # [k, l, r, g] use of a cap by a start, in mean instances
    cap_rest: FloatArray  # [k] what the minimums leave of each cap, in mean instances

    @classmethod
    def from_problem(cls, problem: PlanningProblem) -> Cells | None:
        """Return the cells of a problem; None if a minimum exceeds a maximum or a capacity.

        A solution chooses the instances beyond the minimums. Demand, capacities and caps are
        therefore those that the minimums leave.
        """
        # Instances [model, region, GPU column] and GPUs that the minimums leave.
        can_run = problem.theta_tps[:, None, :] > 0
        minimum = np.where(can_run, problem.minimum, 0)
        gpus_each = np.maximum(1, problem.gpus_per_instance)[:, None, :]
        largest = np.minimum(problem.maximum, problem.usable_gpus[None] // gpus_each)
        max_extra = np.where(can_run, largest - minimum, 0)
        free_gpus = problem.capacity_gpus - gpus_used(problem, minimum)
        if (max_extra < 0).any() or (free_gpus < 0).any():
            return None
        # Cells are solved on tables of max_extra.max() + 1 counts, so keep it small.
        max_extra = np.minimum(max_extra, _max_useful_instances(problem, minimum))
        # Solving a cell is faster without pool_tps, and linear curves do not need it.
        simplified = problem if is_nonlinear(problem).any() else replace(problem, pool_tps=None)
        # Capacity and cost of the minimums.
        carried_tps = carried_by_pools(problem, minimum, problem.spare).sum(axis=2)
        hourly_usd, start_usd = price(problem), np.where(can_run, start_cost(problem), 0.0)
        starts = np.maximum(0, minimum - problem.current)
        # The mean tokens/s of an instance of each model, over the GPU columns that it runs on.
        sum_tps, column_count = problem.theta_tps.sum(axis=1), (problem.theta_tps > 0).sum(axis=1)
        mean_tps = np.where(column_count > 0, sum_tps / np.maximum(1, column_count), 1.0)
        cap_x, cap_start, cap_rest = _scaled_caps(problem, minimum)
        return cls(
            curves=CapacityCurves.from_problem(simplified, problem.spare),
            gpus_each=problem.gpus_per_instance,
            usd_each=hourly_usd,
            start_usd=start_usd,
            running_count=np.minimum(np.maximum(0, problem.current - minimum), max_extra),
            max_extra=max_extra,
            need_tps=local_need_tps(problem) * (1 - ROUNDING) - carried_tps,
            joint_tps=global_need_tps(problem) * (1 - ROUNDING) - carried_tps.sum(axis=1),
            free_gpus=free_gpus,
            rows=problem.rows,
            minimum=minimum,
            fixed_usd=float((hourly_usd * minimum).sum() + (start_usd * starts).sum()),
            mean_tps=mean_tps,
            cap_x=cap_x,
            cap_start=cap_start,
            cap_rest=cap_rest,
        )

    @property
    def is_linear(self) -> bool:
        """Return True if every instance adds the same tokens/s to its pool."""
        return bool(self.curves.known_tps.shape[2] == 1)

    @property
    def zero_prices(self) -> Prices:
        """Return prices of 0 on every capacity, joint demand and plan-wide cap."""
        models, caps = self.joint_tps.shape, self.cap_rest.shape
        return Prices(np.zeros(self.free_gpus.shape), np.zeros(models), np.zeros(caps))

    @property
    def ceiling_usd(self) -> float:
        """Return a cost above that of any plan: every GPU used by its dearest instance.

        A lower bound above this value proves that there is no plan.
        """
        usd_per_gpu = (self.usd_each + self.start_usd) / np.maximum(1, self.gpus_each)[:, None, :]
        by_column = usd_per_gpu.max(axis=0)  # [region, GPU column]
        dearest = np.zeros(self.free_gpus.shape)  # [region, capacity row]
        np.maximum.at(dearest.T, self.rows, by_column.T)
        return self.fixed_usd + 1.0 + float((self.free_gpus * dearest).sum())

    @property
    def own_rows(self) -> bool:
        """Return True if each GPU column has its own row of capacity, in the same order."""
        return np.array_equal(self.rows, np.arange(self.free_gpus.shape[1]))

    def by_row(self, columns: IntArray) -> IntArray:
        """Return sums of ``columns [n, GPU column]`` by capacity row, ``[n, capacity row]``.

        ``n`` are regions or plans. GPU columns that share GPUs, such as two TP sizes of one GPU
        type, have the same capacity row.
        """
        if self.own_rows:
            return columns
        total = np.zeros((len(columns), self.free_gpus.shape[1]), columns.dtype)
        np.add.at(total.T, self.rows, columns.T)
        return total

    def solve_at(self, prices: Prices) -> PricedCells:
        """Solve every cell at ``prices``; return the solutions, the lower bound and its slope.

        Prices charge for GPUs and caps, and pay for joint demand.
        """
        x = np.empty_like(self.max_extra)
        lowest, served = np.empty((2, *self.need_tps.shape))
        cheapest_cells(self.arrays(prices), x, lowest, served)
        # Lagrangian bound: the cells' cost at the prices, and each price times its row's limit.
        bound = (
            float(lowest.sum())
            - float((prices.capacity * self.free_gpus).sum())
            + float((prices.demand * self.joint_tps / self.mean_tps).sum())
            - float((prices.caps * self.cap_rest).sum())
            + self.fixed_usd
        )
        # The slope is by how much the solutions violate each constraint that has a price. The sums
        # are over all models, and for caps over regions and columns too.
        used_gpus = self.by_row(np.einsum("lrg,lg->rg", x, self.gpus_each))
        starts = np.maximum(0, x - self.running_count)
        cap_use = np.einsum("klrg,lrg->k", self.cap_x, x)
        cap_use += np.einsum("klrg,lrg->k", self.cap_start, starts)
        slope = Prices(
            (used_gpus - self.free_gpus).astype(float),
            (self.joint_tps - served.sum(axis=1)) / self.mean_tps,
            cap_use - self.cap_rest,
        )
        return PricedCells(prices, bound, x, lowest, served, slope)

    def arrays(self, prices: Prices) -> PricedArrays:
        """Return the arrays of the cells at ``prices`` for compiled code."""
        running_usd, new_usd = self.instance_charges(prices)
        arrays = PricedArrays(
            theta_tps=self.curves.theta_tps,
            known_tps=self.curves.known_tps,
            steepest_tps=self.curves.steepest,
            token_usd=prices.demand / self.mean_tps,
            running_usd=running_usd,
            new_usd=new_usd,
            running_count=self.running_count,
            minimum=self.minimum,
            max_extra=self.max_extra,
            need_tps=self.need_tps,
        )
        # Kernels would be compiled again for another memory layout, within the time limit.
        return PricedArrays(*map(np.ascontiguousarray, arrays))

    def column_usd(self, x: Int32Array, cell: IntArray) -> FloatArray:
        """Return the objective (USD/h) of candidate instances ``x [n, GPU column]``, ``[n]``.

        ``cell [n]`` is the number of the cell (a model in a region) of each candidate.
        """
        gpus = x.shape[1]
        usd = self.usd_each.reshape(-1, gpus)[cell]
        start_usd = self.start_usd.reshape(-1, gpus)[cell]
        starts = np.maximum(0, x - self.running_count.reshape(-1, gpus)[cell])
        cost: FloatArray = (usd * x + start_usd * starts).sum(axis=1)
        return cost

    def cap_use(self, x: Int32Array, cell: IntArray) -> FloatArray:
        """Return how much of each plan-wide cap the candidates ``x [n, GPU column]`` use.

        The result is ``[n, cap]``, in mean instances. ``cell [n]`` is the number of the cell (a
        model in a region) of each candidate.
        """
        cells, gpus = self.need_tps.size, x.shape[1]
        starts = np.maximum(0, x - self.running_count.reshape(cells, gpus)[cell])
        # Uses of each candidate's cell, [cap, n, GPU column], summed over the GPU columns (g).
        per_instance = self.cap_x.reshape(-1, cells, gpus)[:, cell]
        per_start = self.cap_start.reshape(-1, cells, gpus)[:, cell]
        by_instances = np.einsum("kng,ng->nk", per_instance, x)
        return np.asarray(by_instances + np.einsum("kng,ng->nk", per_start, starts))

    def served_tps(self, x: IntArray | Int32Array, cell: IntArray) -> FloatArray:
        """Return the tokens/s that instances ``x [n, GPU column]`` add to the minimums, ``[n]``.

        ``cell [n]`` is the number of the cell (a model in a region) of each row of ``x``.
        """
        # The pools with instances: row of ``x``, GPU column, model, and minimum of each.
        row, gpu = np.nonzero(x)
        model = cell[row] // self.need_tps.shape[1]  # cells are numbered by model, then by region
        minimum = self.minimum.reshape(-1, x.shape[1])[cell[row], gpu]
        tps_before = self.curves.capacity_tps(model, gpu, minimum)
        tps_after = self.curves.capacity_tps(model, gpu, minimum + x[row, gpu])
        return np.bincount(row, tps_after - tps_before, len(cell)).astype(float)

    def instance_charges(self, prices: Prices) -> tuple[FloatArray, FloatArray]:
        """Return the cost of a running instance and of a new instance at ``prices``.

        Each is ``[model, region, GPU column]``. It includes the prices of GPUs and caps. The value
        of the joint demand that an instance serves is not deducted.
        """
        running_usd = self.usd_each + prices.capacity[:, self.rows] * self.gpus_each[:, None, :]
        if not len(self.cap_rest):
            return running_usd, running_usd + self.start_usd
        # Sums over the caps k.
        running_usd += np.einsum("k,klrg->lrg", prices.caps, self.cap_x)
        start_usd = self.start_usd + np.einsum("k,klrg->lrg", prices.caps, self.cap_start)
        return running_usd, running_usd + start_usd


def _scaled_caps(
    problem: PlanningProblem, minimum: IntArray
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return the use of each plan-wide cap per instance and per start, and what is left of the cap.

    Both uses are ``[cap, model, region, GPU column]``. What the ``minimum`` fleet leaves is
    ``[cap]``. The unit is a mean instance, so that prices of caps are of the size of other prices.
    """
    limits = caps(problem)
    per_instance, per_start = np.zeros((2, len(limits), *minimum.shape))
    remaining = np.zeros(len(limits))
    for index, cap in enumerate(limits):
        mean_use = float(np.abs(cap.per_instance).mean()) or 1.0
        per_instance[index] = cap.per_instance / mean_use
        per_start[index] = cap.per_start / mean_use
        remaining[index] = (cap.limit - cap_use(problem, minimum, cap)) / mean_use
    return per_instance, per_start, remaining


def _max_useful_instances(problem: PlanningProblem, minimum: IntArray) -> IntArray:
    """Return the most instances beyond the minimums that a best plan can have.

    The shape is ``[model, region, GPU column]``. A best plan has at most the running instances, or
    as many as serve the joint demand alone. More would only add cost.
    """
    need_tps = global_need_tps(problem)
    joint_count = np.zeros(problem.theta_tps.shape, np.int64)
    for model, column in np.argwhere(problem.theta_tps > 0):
        joint_count[model, column] = fewest_instances(
            problem, model, column, float(need_tps[model]), problem.spare
        )
    useful: IntArray = np.maximum(joint_count[:, None, :], problem.current) - minimum
    return np.maximum(0, useful)
