"""Define a schedule: from time t on, n replicas of each pool.

A policy follows a ``Schedule``, which is fixed or planned period by period.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from simulation.arrays import FloatArray, IntArray
from simulation.fleet import Fleet
from simulation.policies.parts.endpoints import initial_counts
from simulation.policy import Guard, Hold, Observation


@dataclass(frozen=True, slots=True, eq=False)
class ScheduleStep:
    """One step of a schedule."""

    counts: IntArray  # [pools] instances
    lent: IntArray | None = None  # [pools] those of ``counts`` that are lent and serve nothing
    shares: FloatArray | None = None  # [models, regions, regions] ``Actions.shares``
    release: FloatArray | None = None  # [models, regions] ``Actions.release_tokens``


class Schedule(Protocol):
    """Protocol of a schedule that a policy follows."""

    def reset(self, fleet: Fleet) -> IntArray:
        """Reset all state; return the instances at time 0, ``[pools]``."""
        ...

    def observe(self, observation: Observation) -> None:
        """Record the fleet at a scaling decision; called before ``step_at``."""
        ...

    def step_at(self, time_s: float) -> ScheduleStep:
        """Return the step at a scaling decision."""
        ...

    def next_change_s(self, time_s: float) -> float:
        """Return the next time after ``time_s`` at which the step may change; inf: never."""
        ...


def hold_step(schedule: Schedule, time_s: float, guard: Guard | None = None) -> Hold | None:
    """Return the counts of ``schedule`` at ``time_s`` and the time until which they apply.

    None if the step lends instances, since the policy must then be called at each decision.
    ``guard`` may add instances to the counts.
    """
    step = schedule.step_at(time_s)
    if step.lent is not None:
        return None
    return Hold(schedule.next_change_s(time_s), step.counts, guard)


class FixedSchedule:
    """A fixed schedule: ``targets[i]`` instances per pool from ``times_s[i]`` on.

    ``times_s [steps]`` increases, ``targets`` and ``lent`` are ``[steps, pools]``, and ``shares``
    and ``release`` are the arrays of ``ScheduleStep`` for each step. Before the first step the
    fleet keeps its initial instances. With ``lent`` None, no instance is lent. With ``shares``
    None, regions are chosen by latency and load. With ``release`` None, deferred requests are
    released without a limit.
    """

    def __init__(
        self,
        times_s: Sequence[float] | FloatArray,
        targets: Sequence[Sequence[int]] | IntArray,
        lent: IntArray | None = None,
        shares: FloatArray | None = None,
        release: FloatArray | None = None,
    ) -> None:
        self._times_s = np.array(times_s, np.float64)
        self._targets = np.array(targets, np.int64)
        self._lent, self._shares, self._release = lent, shares, release

    def reset(self, fleet: Fleet) -> IntArray:
        self._initial = initial_counts(fleet)
        return self.step_at(0.0).counts

    def observe(self, observation: Observation) -> None:
        pass

    def step_at(self, time_s: float) -> ScheduleStep:
        """Return the present step. Before the first one, nothing is lent."""
        step = int(np.searchsorted(self._times_s, time_s, side="right")) - 1
        if step < 0:
            no_instances = np.zeros_like(self._initial)
            return ScheduleStep(self._initial.copy(), None if self._lent is None else no_instances)
        return ScheduleStep(
            self._targets[step].copy(),
            None if self._lent is None else self._lent[step].copy(),
            None if self._shares is None else self._shares[step],
            None if self._release is None else self._release[step],
        )

    def next_change_s(self, time_s: float) -> float:
        return _next_after(self._times_s, time_s)


# Plans a period from its index and the ready and starting instances ``[pools]`` at its decision;
# None: before the first decision.
PeriodPlanner = Callable[[int, IntArray | None], ScheduleStep]


class RollingSchedule:
    """A schedule that plans period by period during the simulation (methods.md E8).

    Period i begins at ``starts_s[i]``. ``planner`` plans it at ``decided_s[i]`` or at its begin,
    whichever is earlier, from the instances at that time. If several periods are planned at one
    moment, each is planned from the counts of the one before it.

    The instances at any time are the maximum over the running period and the later ones that are
    planned. The shares are those of the running period.
    """

    def __init__(
        self, planner: PeriodPlanner, starts_s: Sequence[float] | FloatArray, decided_s: FloatArray
    ) -> None:
        self._planner = planner
        self._starts_s = np.asarray(starts_s, np.float64)
        self._decided_s = np.minimum(decided_s, self._starts_s)
        self._steps_planned: list[ScheduleStep] = []

    def reset(self, fleet: Fleet) -> IntArray:
        self._steps_planned = []
        self._plan_due(0.0, None)
        return self.step_at(0.0).counts.copy()

    def observe(self, observation: Observation) -> None:
        self._plan_due(observation.time_s, observation.present)

    def _plan_due(self, time_s: float, running: IntArray | None) -> None:
        """Plan the periods that are due by ``time_s``, from the ``running`` instances, ``[pools]``.

        ``running`` is None before the first decision.
        """
        for period in range(len(self._steps_planned), len(self._starts_s)):
            if self._decided_s[period] > time_s:
                break
            self._steps_planned.append(self._planner(period, running))
            running = self._steps_planned[-1].counts

    def step_at(self, time_s: float) -> ScheduleStep:
        """Return the maximum of the running period and the later ones that are planned."""
        current = int(np.searchsorted(self._starts_s, time_s, side="right")) - 1
        planned = self._steps_planned[max(current, 0) :]
        counts: IntArray = np.max([step.counts for step in planned], axis=0)
        shares = planned[0].shares  # of the running period
        if all(step.lent is None for step in planned):
            return ScheduleStep(counts, None, shares)
        serving = [step.counts - (0 if step.lent is None else step.lent) for step in planned]
        lent = counts - np.max(serving, axis=0)  # what no period needs to serve
        return ScheduleStep(counts, lent, shares)

    def next_change_s(self, time_s: float) -> float:
        """Return when the next period begins or is planned, whichever is first."""
        unplanned_s = self._decided_s[len(self._steps_planned) :]
        next_planned_s = float(unplanned_s[0]) if len(unplanned_s) else np.inf
        return min(_next_after(self._starts_s, time_s), next_planned_s)


def _next_after(times_s: FloatArray, time_s: float) -> float:
    """Return the first of the rising ``times_s`` after ``time_s``; inf: none."""
    later = times_s[np.searchsorted(times_s, time_s, side="right") :]
    return float(later[0]) if len(later) else np.inf
