"""Hold the program's variables as arrays, and the entries with which rows refer to them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from planner.optimizer.objective import per_hour, per_start, price, start_cost
from planner.optimizer.pools import is_nonlinear
from planner.optimizer.problem import HorizonProblem
from planner.optimizer.program.pools import Pools
from planner.optimizer.reservations import cheapest_reservation, gpus_in_use
from planner.optimizer.roles import Side, carried_tps, role_sides
from planner.optimizer.solvers.arrays import Builder, Entry
from simulation.arrays import FloatArray, IntArray


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """The program's variables by period and cell, and entries of the rows that refer to them.

    A cell is a model, a region and a column that can run the model.
    """

    problem: HorizonProblem
    builder: Builder
    model: IntArray  # [n]
    region: IntArray  # [n]
    column: IntArray  # [n]
    pools: tuple[dict[int, Pools], ...]  # [p] capacity of instances, by number lost
    x: IntArray  # [p, n] integer: instances up
    starts: IntArray  # [p, n] integer: starts requested, up ``lead`` periods later
    lent: IntArray | None  # [p, n] integer: instances lent; None without lending
    reserved: IntArray | None  # [r * t] GPUs reserved; None without an offer
    used: IntArray | None  # [p, r * t] those of them in use
    served: IntArray | None  # [p, l * r] tokens/s that every side carries; None with one side
    short: IntArray | None  # [k, p, l * r] unserved local need; None if all must be served
    beyond: IntArray | None  # [k, p, l] unserved joint peak beyond the local needs

    @classmethod
    def of(cls, problem: HorizonProblem) -> Draft:
        """Create the variables with their costs, without rows.

        Minimise  sum_p hours (price x[p] + start_cost s[p] - earnings d[p]).  A starting instance
        is paid from the request on. This is the fleet form of E7. The seed's objective counts only
        instances added to the present fleet, so it differs by a constant.

        x  <=  floor(capacity_gpus[r,t] / gpus_per_instance[l,g])  is implied by capacity. As a
        bound it lets HiGHS prove 0.2% instead of 0.4% on the 50x50x10 instance in 20 s.
        """
        first, periods = problem.first, len(problem.windows)
        models, regions = len(first.models), len(first.regions)
        usable, region = np.meshgrid(
            np.flatnonzero((first.theta_tps > 0).ravel()), np.arange(regions), indexing="ij"
        )
        model, column = np.divmod(usable.ravel(), len(first.gpus))
        cell = (model, region.ravel(), column)
        size = np.maximum(1, first.gpus_per_instance)[:, None, :]
        hours, builder, shape = problem.hours, Builder(), (periods, len(model))
        hourly, once = np.zeros((2, *shape))
        max_counts = np.zeros(shape, np.int64)
        for period, window in enumerate(problem.windows):
            hourly[period], once[period] = price(window)[cell], start_cost(window)[cell]
            max_counts[period] = (window.room[None] // size)[cell]
        for period in range(periods):
            # A starting instance is paid for during its lead.
            once[period] += hourly[period : period + problem.lead].sum(axis=0)
        # Starts too late to serve within the horizon are fixed at 0.
        in_time = np.arange(periods)[:, None] < periods - problem.lead
        x = builder.grid(shape, cost=hourly * hours, upper=max_counts, integral=True)
        starts = builder.grid(
            shape, cost=once * hours, upper=np.where(in_time, np.inf, 0.0), integral=True
        )
        lent = served = short = beyond = reserved = used = None
        if problem.lend_usd is not None:
            earns = problem.lend_usd[cell] * first.weights.usd * hours
            lent = builder.grid(
                shape, cost=-earns, upper=np.where(earns > 0, np.inf, 0.0), integral=True
            )
        if problem.reserved_usd is not None and problem.on_demand_usd is not None:
            offered = np.isfinite(problem.reserved_usd).ravel()
            gpus = np.where(offered, first.capacity_gpus.ravel(), 0)
            usd = np.where(offered, problem.reserved_usd.ravel(), 0.0)
            span = first.weights.usd * hours
            reserved = builder.grid(gpus.shape, cost=usd * span * periods, upper=gpus)
            saved = np.broadcast_to(
                problem.on_demand_usd, (periods, *problem.reserved_usd.shape)
            ).reshape(periods, -1)
            used = builder.grid(saved.shape, cost=-span * saved, upper=gpus)
        straight = Pools.straight(first.theta_tps[cell[0], cell[2]])
        bends = is_nonlinear(first).any()
        gone = sorted({int(lost) for side in role_sides(first) for lost in side.lost})
        pools = [
            {
                lost: Pools.of(builder, window, cell, upper, lost) if bends or lost else straight
                for lost in gone
            }
            for window, upper in zip(problem.windows, max_counts, strict=True)
        ]
        if len(role_sides(first)) > 1:
            served = builder.grid((periods, models * regions))
        if problem.priority is not None:
            regional = problem.own_demand.reshape(len(problem.demand), periods, -1)
            short = builder.grid(regional.shape, upper=regional)
            beyond = builder.grid(problem.joint_demand.shape, upper=problem.joint_demand)
        return cls(problem, builder, *cell, tuple(pools), x, starts, lent, reserved, used, served,
                   short, beyond)  # fmt: skip

    @property
    def cell(self) -> tuple[IntArray, IntArray, IntArray]:
        """Return model, region and column of each cell, ``[n]`` each; an index of ``[l, r, g]``."""
        return self.model, self.region, self.column

    @property
    def pairs(self) -> int:
        """Return the number of pairs of a model and a region."""
        return len(self.problem.first.models) * len(self.problem.first.regions)

    @property
    def pair(self) -> IntArray:
        """Return the pair of model and region of each cell, ``[n]``."""
        return self.model * len(self.problem.first.regions) + self.region

    @property
    def model_of_pair(self) -> IntArray:
        """Return the model of each pair of model and region, ``[l * r]``."""
        return np.arange(self.pairs) // len(self.problem.first.regions)

    def up(self, period: int, row: npt.ArrayLike, by: npt.ArrayLike) -> list[Entry]:
        """Return entries with coefficient ``by`` for instances that serve (up and not lent)."""
        entries: list[Entry] = [(row, self.x[period], by)]
        if self.lent is not None:
            entries.append((row, self.lent[period], -np.asarray(by, float)))
        return entries

    def serving(self, period: int, row: IntArray, by: FloatArray | None = None) -> list[Entry]:
        """Return entries for the tokens/s that each pair of model and region serves, times ``by``.

        ``row`` is the row of each pair.
        """
        by = np.ones(self.pairs) if by is None else by
        if self.served is not None:
            return [(row, self.served[period], by)]
        (side,) = role_sides(self.problem.first)
        return self.carrying(period, row[self.pair], side, by[self.pair])

    def carrying(
        self, period: int, row: IntArray, side: Side, times: FloatArray | float = 1.0
    ) -> list[Entry]:
        """Return entries for the tokens/s that each cell carries on a side, times ``times``.

        A side is a group of columns of one role, such as prefill. ``row`` ``[n]`` is the row of
        each cell. A pool's capacity is a line with bends, so it has entries of its own.
        """
        entries: list[Entry] = []
        for lost, pools in self.pools[period].items():
            coefficients = (side.columns & (side.lost == lost))[self.column] * np.asarray(
                times, float
            )
            if coefficients.any():
                entries += self.up(period, row, coefficients * pools.plain)
                cells = pools.cell
                entries.append((row[cells], pools.serving, coefficients[cells] * pools.slope))
        return entries

    def starting(self, period: int, row: npt.ArrayLike, by: npt.ArrayLike) -> list[Entry]:
        """Return entries with coefficient ``by`` for instances requested but not up yet."""
        periods = range(max(0, period - self.problem.lead + 1), period + 1)
        return [(row, self.starts[begun], by) for begun in periods] if self.problem.lead else []

    def takes(self, period: int, measure: str) -> list[Entry]:
        """Return entries in row 0 for the period's hourly use of a measure, such as "kwh"."""
        window = self.problem.windows[period]
        hourly, once = per_hour(window, measure)[self.cell], per_start(window, measure)[self.cell]
        entries: list[Entry] = [(0, self.x[period], hourly), (0, self.starts[period], once)]
        entries += self.starting(period, 0, hourly)
        if measure == "usd" and self.lent is not None and self.problem.lend_usd is not None:
            entries.append((0, self.lent[period], -self.problem.lend_usd[self.cell]))
        if measure == "usd" and self.reserved is not None and self.used is not None:
            paid, saved = self.problem.reserved_usd, self.problem.on_demand_usd
            assert paid is not None
            assert saved is not None
            paid = np.where(np.isfinite(paid), paid, 0.0)
            saved = saved if saved.ndim == paid.ndim else saved[period]
            entries += [(0, self.reserved, paid.ravel()), (0, self.used[period], -saved.ravel())]
        return entries

    def changed(self, period: int) -> tuple[list[Entry], float]:
        """Return entries in row 0 for the starts and stops of a period, and the constant to add.

        Stops are x[p-1] + starts - x[p].
        """
        entries: list[Entry] = [(0, self.x[period], -1.0)]
        if period >= self.problem.lead:
            entries.append((0, self.starts[period - self.problem.lead], 2.0))
        if period:
            return [*entries, (0, self.x[period - 1], 1.0)], 0.0
        return entries, float(self.problem.first.current.sum())

    def whole_counts(self, values: FloatArray, variables: IntArray | None) -> IntArray:
        """Return the values of ``variables [p, n]`` as whole counts of instances, ``[p, l, r, g]``.

        Counts without a variable are 0. ``values`` has the values of all variables of the program.
        """
        out = np.zeros((len(self.x), *self.problem.first.current.shape), np.int64)
        if variables is not None:
            out[(slice(None), *self.cell)] = np.rint(values[variables])
        return out

    def values_of(self, target: IntArray, lent: IntArray | None = None) -> FloatArray:
        """Return the values of all variables at a plan of instances ``target [p, l, r, g]``.

        ``lent`` are those of them that are lent to other work and do not serve; None: none are.
        Unserved demand and cross-region traffic stay 0.
        """
        values, cell = np.zeros(self.builder.count), (slice(None), *self.cell)
        serving = target if lent is None else target - lent
        values[self.x] = target[cell]
        values[self.starts] = self.problem.asked_for(target)[cell]
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
                values[variables] = (
                    carried_tps(self.problem.first, serving[period]).min(axis=0).ravel()
                )
        return values
