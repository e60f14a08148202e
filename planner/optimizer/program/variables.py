"""Hold the program's variables as arrays, and the entries with which rows refer to them.

An entry is (row, variable, coefficient); arrays in it broadcast.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from planner.optimizer.objective import per_hour, per_start, price, start_cost
from planner.optimizer.pools import is_nonlinear
from planner.optimizer.problem import HorizonProblem, PlanningProblem
from planner.optimizer.program.pools import Cell, Pools
from planner.optimizer.reservations import cheapest_reservation, gpus_in_use
from planner.optimizer.roles import Side, carried_tps, role_sides
from planner.optimizer.solvers.arrays import Builder, Entry
from simulation.arrays import FloatArray, IntArray

ALL_CELLS = slice(None)


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """The program's variables by period and cell, and entries of the rows that refer to them.

    A cell is a model, a region and a GPU column that can run the model. Variables are given by
    their index in the program. Axes: ``p`` periods, ``n`` cells, ``k`` tiers, ``l`` models, ``r``
    regions, ``t`` capacity rows (GPUs that columns share).
    """

    problem: HorizonProblem
    builder: Builder
    model: IntArray  # [n]
    region: IntArray  # [n]
    column: IntArray  # [n]
    pools: tuple[dict[int, Pools], ...]  # [p] capacity of the cells, by number of lost instances
    x: IntArray  # [p, n] integer: instances up
    starts: IntArray  # [p, n] integer: starts requested, up ``lead`` periods later
    lent: IntArray | None  # [p, n] integer: instances lent; None without lending
    reserved: IntArray | None  # [r * t] GPUs reserved; None without an offer
    used: IntArray | None  # [p, r * t] reserved GPUs in use
    served: IntArray | None  # [p, l * r] tokens/s that every side carries; None with one side
    # Tokens/s that may stay unserved; no tier (k = 0) if all demand must be served.
    unserved_local: IntArray  # [k, p, l * r] of local needs
    unserved_joint: IntArray  # [k, p, l] of joint peaks beyond the local needs

    @classmethod
    def from_problem(cls, problem: HorizonProblem) -> Draft:
        """Return a draft with all variables and their costs, without rows.

        The objective is the price of instances up or starting, and the cost of starts, less income
        from lending, in every period (methods.md E7, fleet form). The bound on instances follows
        from the capacity rows, but helps HiGHS. Variables that a problem does not need are None.
        """
        builder, hours = Builder(), problem.hours
        cell = _possible_cells(problem.first)  # model, region and GPU column of each cell
        # Arrays of instances and their costs are [period, cell].
        hourly_cost = np.stack([price(window)[cell] for window in problem.windows])
        gpus_each = np.maximum(1, problem.first.gpus_per_instance)[:, None, :]  # [l, 1, g]
        max_counts = np.stack(
            [(window.usable_gpus[None] // gpus_each)[cell] for window in problem.windows]
        )
        shape = hourly_cost.shape
        x = builder.grid(shape, cost=hourly_cost * hours, upper=max_counts, integral=True)
        starts = _start_variables(builder, problem, cell, hourly_cost)
        lent = served = None
        if problem.lend_usd is not None:
            earnings = problem.lend_usd[cell] * problem.first.weights.usd * hours
            max_lent = np.where(earnings > 0, np.inf, 0.0)
            lent = builder.grid(shape, cost=-earnings, upper=max_lent, integral=True)
        reserved, used = _reservation_variables(builder, problem)
        pools = _capacity_variables(builder, problem, cell, max_counts)
        if len(role_sides(problem.first)) > 1:
            served = builder.grid((len(problem.windows), problem.own_demand[0, 0].size))
        unserved_local, unserved_joint = _unserved_variables(builder, problem)
        return cls(problem, builder, *cell, pools, x, starts, lent, reserved, used, served,
                   unserved_local, unserved_joint)  # fmt: skip

    @property
    def cell(self) -> tuple[IntArray, IntArray, IntArray]:
        """Return model, region and GPU column of each cell, ``[n]`` each.

        They index arrays ``[model, region, GPU column]``.
        """
        return self.model, self.region, self.column

    @property
    def pairs(self) -> int:
        """Return the number of pairs of a model and a region."""
        return len(self.problem.first.models) * len(self.problem.first.regions)

    @property
    def pair_of_cell(self) -> IntArray:
        """Return the number of each cell's pair of model and region, ``[n]``."""
        return self.model * len(self.problem.first.regions) + self.region

    @property
    def model_of_pair(self) -> IntArray:
        """Return the model of each pair of model and region, ``[pair]``."""
        return np.arange(self.pairs) // len(self.problem.first.regions)

    def serving_instances(
        self,
        period: int,
        row: npt.ArrayLike,
        coefficient: npt.ArrayLike,
        cells: IntArray | slice = ALL_CELLS,
    ) -> list[Entry]:
        """Return entries for the instances of ``cells`` that serve: running, and not lent."""
        entries: list[Entry] = [(row, self.x[period, cells], coefficient)]
        if self.lent is not None:
            entries.append((row, self.lent[period, cells], -np.asarray(coefficient, float)))
        return entries

    def served_tps(
        self, period: int, row: IntArray, coefficient: FloatArray | None = None
    ) -> list[Entry]:
        """Return entries for the tokens/s that each pair of model and region serves.

        ``row [pair]`` is the row that gets the entries of a pair, ``coefficient [pair]`` their
        factor; None: 1.
        """
        coefficient = np.ones(self.pairs) if coefficient is None else coefficient
        if self.served is not None:
            return [(row, self.served[period], coefficient)]
        (side,) = role_sides(self.problem.first)
        return self.carried_tps(
            period, row[self.pair_of_cell], side, coefficient[self.pair_of_cell]
        )

    def carried_tps(
        self, period: int, row: IntArray, side: Side, coefficient: FloatArray | float = 1.0
    ) -> list[Entry]:
        """Return entries for the tokens/s that each cell carries on a side.

        A side is a group of GPU columns of one role, such as prefill. Its capacity is what is left
        after the loss of ``side.lost`` instances. ``row [n]`` is the row that gets the entries of a
        cell, ``coefficient [n]`` their factor. A piecewise linear capacity has an entry for each
        piece.
        """
        entries: list[Entry] = []
        for lost, pools in self.pools[period].items():
            columns = side.columns & (side.lost == lost)
            # 0 for cells of other columns. Cells have a linear capacity, or pieces.
            factor = columns[self.column] * np.asarray(coefficient, float)
            if factor.any():
                entries += self.serving_instances(period, row, factor * pools.plain)
                cells = pools.cell
                entries.append((row[cells], pools.serving, factor[cells] * pools.slope))
        return entries

    def starting_instances(
        self, period: int, row: npt.ArrayLike, coefficient: npt.ArrayLike
    ) -> list[Entry]:
        """Return entries for the instances of each cell that are starting in a period.

        They were requested in the last ``lead`` periods and are not up yet. Without a lead: [].
        """
        lead = self.problem.lead
        requested = range(max(0, period - lead + 1), period + 1) if lead else ()
        return [(row, self.starts[earlier], coefficient) for earlier in requested]

    def hourly_use(self, period: int, measure: str) -> list[Entry]:
        """Return entries in row 0 for the period's hourly use of a measure, such as "kwh"."""
        window = self.problem.windows[period]
        hourly = per_hour(window, measure)[self.cell]
        by_start = per_start(window, measure)[self.cell]
        entries: list[Entry] = [(0, self.x[period], hourly), (0, self.starts[period], by_start)]
        entries += self.starting_instances(period, 0, hourly)
        if measure == "usd":
            if self.lent is not None and self.problem.lend_usd is not None:
                entries.append((0, self.lent[period], -self.problem.lend_usd[self.cell]))
            entries += self._reservation_usd(period)
        return entries

    def _reservation_usd(self, period: int) -> list[Entry]:
        """Return entries in row 0 for what reserved GPUs cost and save, dollars an hour."""
        if self.reserved is None or self.used is None:
            return []
        reserved_usd, on_demand_usd = self.problem.reserved_usd, self.problem.on_demand_usd
        assert reserved_usd is not None
        assert on_demand_usd is not None
        paid_usd = np.where(np.isfinite(reserved_usd), reserved_usd, 0.0)
        # Prices on demand are for all periods, or by period.
        saved_usd = on_demand_usd if on_demand_usd.ndim == paid_usd.ndim else on_demand_usd[period]
        return [(0, self.reserved, paid_usd.ravel()), (0, self.used[period], -saved_usd.ravel())]

    def starts_and_stops(self, period: int) -> tuple[list[Entry], float]:
        """Return the starts and stops of a period: entries in row 0, and the constant to add.

        The constant is the present fleet in the first period, else 0.
        """
        # Stops are (instances before) + starts - (instances now).
        entries: list[Entry] = [(0, self.x[period], -1.0)]
        if period >= self.problem.lead:
            entries.append((0, self.starts[period - self.problem.lead], 2.0))
        if period:
            return [*entries, (0, self.x[period - 1], 1.0)], 0.0
        return entries, float(self.problem.first.current.sum())

    def round_counts(self, values: FloatArray, variables: IntArray | None) -> IntArray:
        """Return whole counts of instances from the ``values`` of all variables of the program.

        ``variables [period, cell]`` are those to read. The result is ``[period, model, region, GPU
        column]``. Counts without a variable are 0; None: all are 0.
        """
        counts = np.zeros((len(self.x), *self.problem.first.current.shape), np.int64)
        if variables is not None:
            counts[(slice(None), *self.cell)] = np.rint(values[variables])
        return counts

    def values_of(self, target: IntArray, lent: IntArray | None = None) -> FloatArray:
        """Return the values of all variables of the program at a given plan.

        ``target [period, model, region, GPU column]`` are its instances, and ``lent`` those of them
        that are lent to other work; None: no instance is lent. Unserved demand and cross-region
        traffic stay 0.
        """
        values = np.zeros(self.builder.count)
        cell = (slice(None), *self.cell)  # from [period, model, region, column] to [period, cell]
        serving = target if lent is None else target - lent
        values[self.x] = target[cell]
        values[self.starts] = self.problem.requested_starts(target)[cell]
        if self.lent is not None:
            values[self.lent] = (target - serving)[cell]
        if self.reserved is not None and self.used is not None:
            gpus = cheapest_reservation(self.problem, target)
            values[self.reserved] = gpus.ravel()
            in_use = np.minimum(gpus, gpus_in_use(self.problem, target))
            values[self.used] = in_use.reshape(len(target), -1)
        for period, by_lost in enumerate(self.pools):
            for pools in by_lost.values():
                pools.fill(values, serving[period][self.cell])
        if self.served is not None:
            for period, variables in enumerate(self.served):
                # The side with the least capacity, such as prefill or decode, is the limit.
                by_side = carried_tps(self.problem.first, serving[period])
                values[variables] = by_side.min(axis=0).ravel()
        return values


def _possible_cells(window: PlanningProblem) -> Cell:
    """Return model, region and GPU column of every cell whose GPU can run the model."""
    models_and_columns = np.flatnonzero(window.theta_tps > 0)
    model_and_column, region = np.meshgrid(
        models_and_columns, np.arange(len(window.regions)), indexing="ij"
    )
    model, column = np.divmod(model_and_column.ravel(), len(window.gpus))
    return model, region.ravel(), column


def _start_variables(
    builder: Builder, problem: HorizonProblem, cell: Cell, hourly_cost: FloatArray
) -> IntArray:
    """Add the variables of starts, ``[period, n]``, and return their indices.

    A starting instance is paid for during its lead, at ``hourly_cost [period, n]``. Starts too late
    to serve within the horizon are fixed at 0.
    """
    periods = len(problem.windows)
    usd = np.stack([start_cost(window)[cell] for window in problem.windows])
    for period in range(periods):
        usd[period] += hourly_cost[period : period + problem.lead].sum(axis=0)
    is_in_time = np.arange(periods)[:, None] < periods - problem.lead
    max_starts = np.where(is_in_time, np.inf, 0.0)
    return builder.grid(usd.shape, cost=usd * problem.hours, upper=max_starts, integral=True)


def _unserved_variables(builder: Builder, problem: HorizonProblem) -> tuple[IntArray, IntArray]:
    """Add the variables of unserved demand by tier, local and joint, if demand has a priority."""
    tiers = 0 if problem.priority is None else len(problem.demand)
    local_need = problem.own_demand.reshape(len(problem.demand), len(problem.windows), -1)[:tiers]
    unserved_local = builder.grid(local_need.shape, upper=local_need)
    joint_demand = problem.joint_demand[:tiers]
    return unserved_local, builder.grid(joint_demand.shape, upper=joint_demand)


def _reservation_variables(
    builder: Builder, problem: HorizonProblem
) -> tuple[IntArray | None, IntArray | None]:
    """Add the variables of GPUs reserved and of reserved GPUs in use; return their indices.

    They are ``[region * capacity row]`` and ``[period, region * capacity row]``; None for both
    without an offer. A reserved GPU costs its price in every period. Each one in use saves the
    price on demand.
    """
    if problem.reserved_usd is None or problem.on_demand_usd is None:
        return None, None
    periods = len(problem.windows)
    weighted_hours = problem.first.weights.usd * problem.hours
    # A cell is a region and capacity row.
    offered = np.isfinite(problem.reserved_usd).ravel()
    max_gpus = np.where(offered, problem.first.capacity_gpus.ravel(), 0)
    usd = np.where(offered, problem.reserved_usd.ravel(), 0.0)
    reserved = builder.grid(max_gpus.shape, cost=usd * weighted_hours * periods, upper=max_gpus)
    shape = (periods, *problem.reserved_usd.shape)
    saved_usd = np.broadcast_to(problem.on_demand_usd, shape).reshape(periods, -1)  # [period, cell]
    used = builder.grid(saved_usd.shape, cost=-weighted_hours * saved_usd, upper=max_gpus)
    return reserved, used


def _capacity_variables(
    builder: Builder,
    problem: HorizonProblem,
    cell: Cell,
    max_counts: IntArray,
) -> tuple[dict[int, Pools], ...]:
    """Return how capacity enters the program: for each period, ``Pools`` by lost instances.

    ``cell`` gives model, region and GPU column of each pool. ``max_counts [period, n]`` is the most
    instances that the GPU capacity allows. Variables are added to ``builder`` where needed.
    """
    first = problem.first
    models, _, columns = cell
    linear = Pools.linear(first.theta_tps[models, columns])
    has_curves = is_nonlinear(first).any()
    losses = sorted({int(lost) for side in role_sides(first) for lost in side.lost})
    pools_by_period = []
    for window, counts in zip(problem.windows, max_counts, strict=True):
        by_lost = {}
        for lost in losses:
            if has_curves or lost:
                by_lost[lost] = Pools.from_curves(builder, window, cell, counts, lost)
            else:
                by_lost[lost] = linear
        pools_by_period.append(by_lost)
    return tuple(pools_by_period)
