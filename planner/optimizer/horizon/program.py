"""The program of all periods as arrays: its variables, and how rows refer to them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from planner.optimizer.horizon.problem import HorizonProblem
from planner.optimizer.model import STICKINESS
from planner.optimizer.objective import per_hour, per_start
from planner.optimizer.problem import MEASURES, PlanningProblem
from planner.optimizer.sides import sides
from planner.optimizer.solving import Builder
from simulation.arrays import FloatArray, IntArray

Entry = tuple[npt.ArrayLike, npt.ArrayLike, npt.ArrayLike]  # row, column, coefficient


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """Variables by period and cell. A cell is a model, region and column that can run it."""

    problem: HorizonProblem
    builder: Builder
    model: IntArray  # [n]
    region: IntArray  # [n]
    column: IntArray  # [n]
    x: IntArray  # [p, n] whole: instances up
    starts: IntArray  # [p, n] asked for; they are up ``lead`` periods later
    stops: IntArray  # [p, n]
    lent: IntArray | None  # [p, n] whole; None without lending
    served: IntArray | None  # [p, l * r] tokens/s that every side carries; None with one side
    short: IntArray | None  # [k, p, l * r] own need left unserved; None where all must be served
    beyond: IntArray | None  # [k, p, l] of the joint peak, more than that

    @classmethod
    def of(cls, problem: HorizonProblem) -> Draft:
        """Variables with their bounds and what they cost, without rows."""
        first, periods = problem.first, len(problem.windows)
        models, regions = len(first.models), len(first.regions)
        able, region = np.meshgrid(
            np.flatnonzero((first.theta_tps > 0).ravel()), np.arange(regions), indexing="ij"
        )
        model, column = np.divmod(able.ravel(), len(first.gpus))
        at = (model, region.ravel(), column)
        builder, count = Builder(), len(model)
        least, most, price, start = (np.empty((periods, count)) for _ in range(4))
        for period, window in enumerate(problem.windows):
            held = window.minimum[at]
            if period < problem.lead:  # nothing more can be up by then
                held = np.minimum(held, first.current[at])
            least[period] = held
            most[period] = np.minimum(window.maximum, window.room[None] // _size(window))[at]
            hourly, once = weighed(window)
            price[period] = hourly[at] * problem.hours
            start[period] = np.maximum(once, STICKINESS * hourly)[at] * problem.hours
        for period in range(periods):
            start[period] += price[period : period + problem.lead].sum(axis=0)
        too_late = np.arange(periods)[:, None] >= periods - problem.lead
        shape = (periods, count)
        x = builder.variables(
            periods * count,
            cost=price.ravel(),
            lower=least.ravel(),
            upper=np.maximum(least, most).ravel(),
            whole=True,
        ).reshape(shape)
        starts = builder.variables(
            periods * count,
            cost=start.ravel(),
            upper=np.broadcast_to(np.where(too_late, 0.0, np.inf), shape).ravel(),
        ).reshape(shape)
        stops = builder.variables(periods * count).reshape(shape)
        lent = served = short = beyond = None
        if problem.lend_usd is not None:
            earns = problem.lend_usd[at] * first.weights.usd * problem.hours
            most = np.where(earns > 0, np.inf, 0.0) * np.ones(shape)
            cost = np.broadcast_to(-earns, shape).ravel()
            lent = builder.variables(
                periods * count, cost=cost, upper=most.ravel(), whole=True
            ).reshape(shape)
        if len(sides(first)) > 1:
            served = builder.variables(periods * models * regions).reshape(periods, -1)
        if problem.priority is not None:
            tiers = len(problem.demand)
            own = epsilon_share(problem).reshape(tiers, periods, -1)
            short = builder.variables(own.size, upper=own.ravel()).reshape(own.shape)
            joint = problem.demand.sum(axis=3).max(axis=3)
            beyond = builder.variables(joint.size, upper=joint.ravel()).reshape(joint.shape)
        return cls(problem, builder, *at, x, starts, stops, lent, served, short, beyond)

    @property
    def pairs(self) -> int:
        """Of model and region."""
        return len(self.problem.first.models) * len(self.problem.first.regions)

    @property
    def pair(self) -> IntArray:
        """Of each cell, ``[n]``."""
        return self.model * len(self.problem.first.regions) + self.region

    @property
    def theta(self) -> FloatArray:
        """Of each cell, ``[n]``."""
        theta: FloatArray = self.problem.first.theta_tps[self.model, self.column]
        return theta

    def up(self, period: int, row: npt.ArrayLike, by: npt.ArrayLike) -> list[Entry]:
        """``by`` for every instance that serves (up and not lent)."""
        entries: list[Entry] = [(row, self.x[period], by)]
        if self.lent is not None:
            entries.append((row, self.lent[period], -np.asarray(by, float)))
        return entries

    def serving(self, period: int, row: IntArray) -> list[Entry]:
        """Tokens/s served, ``row`` being that of each pair of model and region."""
        if self.served is not None:
            return [(row, self.served[period], 1.0)]
        return self.up(period, row[self.pair], self.theta)

    def starting(self, period: int, row: npt.ArrayLike, by: npt.ArrayLike) -> list[Entry]:
        """``by`` for every instance that is asked for and not yet up."""
        asked = range(max(0, period - self.problem.lead + 1), period + 1)
        return [(row, self.starts[at], by) for at in asked] if self.problem.lead else []

    def takes(self, period: int, measure: str) -> list[Entry]:
        """What the period takes of a measure in an hour, in row 0."""
        window, at = self.problem.windows[period], (self.model, self.region, self.column)
        hourly, once = per_hour(window, measure)[at], per_start(window, measure)[at]
        entries: list[Entry] = [(0, self.x[period], hourly), (0, self.starts[period], once)]
        entries += self.starting(period, 0, hourly)
        if measure == "usd" and self.lent is not None and self.problem.lend_usd is not None:
            entries.append((0, self.lent[period], -self.problem.lend_usd[at]))
        return entries

    def spread(self, values: FloatArray, of: IntArray) -> IntArray:
        """Values of the variables ``of`` ``[p, n]`` as whole numbers by ``[p, l, r, g]``."""
        out = np.zeros((len(of), *self.problem.first.current.shape), np.int64)
        out[:, self.model, self.region, self.column] = np.rint(values[of])
        return out


def weighed(window: PlanningProblem) -> tuple[FloatArray, FloatArray]:
    """What the objective charges for an instance-hour and for a start, ``[l, r, g]`` each."""
    hourly, once = np.zeros((2, *window.current.shape))
    for measure in MEASURES:
        weight: float = getattr(window.weights, measure)
        if weight > 0:
            hourly += weight * per_hour(window, measure)
            once += weight * per_start(window, measure)
    return hourly, once


def epsilon_share(problem: HorizonProblem) -> FloatArray:
    """What of a tier's own peak a region must serve itself, ``[k, p, l, r]``."""
    epsilon = np.array([window.epsilon for window in problem.windows])
    own: FloatArray = problem.demand.max(axis=4) * epsilon[None, :, None, None]
    return own


def _size(window: PlanningProblem) -> IntArray:
    size: IntArray = np.maximum(1, window.gpus_per_instance)[:, None, :]
    return size
