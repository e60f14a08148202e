"""Schedules: the instances of each pool over time, fixed or planned period by period."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from simulation.arrays import FloatArray, IntArray
from simulation.errors import SimulationError
from simulation.fleet import Fleet
from simulation.policies.parts.step_function import Counts, Steps, Times
from simulation.policy import Observation


@dataclass(frozen=True, slots=True, eq=False)
class PlannedStep:
    """Instances of each pool, ``counts [pools]``, of which ``lent`` serve nothing (E9).

    ``shares [models, regions, regions]`` tells which region serves the tokens of each home region
    (``Actions.shares``).
    """

    counts: IntArray
    lent: IntArray | None = None
    shares: FloatArray | None = None


class Course(Protocol):
    """A schedule."""

    def reset(self, fleet: Fleet) -> IntArray:
        """Forget everything; return the instances at time 0."""
        ...

    def see(self, observation: Observation) -> None:
        """Note the fleet at a scaling decision, before ``asked``."""
        ...

    def asked(self, time_s: float) -> PlannedStep:
        """Return the step at a scaling decision."""
        ...


class ByClock:
    """A fixed schedule: ``targets[i]`` instances per pool from ``times_s[i]`` on.

    Shapes are ``[steps]`` and ``[steps, pools]``. ``lent`` and ``shares`` have a row per step too.
    Before the first step the fleet keeps its initial instances. Raises SimulationError, naming
    ``policy``, for wrong shapes.
    """

    def __init__(
        self,
        policy: str,
        times_s: Times,
        targets: Counts,
        lent: IntArray | None = None,
        shares: FloatArray | None = None,
    ) -> None:
        self._steps = Steps(policy, "targets", times_s, targets)
        self._lent = None if lent is None else np.array(lent, np.int64)
        self._shares = shares
        counts = self._steps.counts
        if self._lent is not None and not (
            self._lent.shape == counts.shape and np.all(self._lent <= counts)
        ):
            raise SimulationError(f"Policy {policy!r}: lent must be part of the targets.")

    def reset(self, fleet: Fleet) -> IntArray:
        self._steps.reset(fleet)
        return self._steps.at(0.0)

    def see(self, observation: Observation) -> None:
        pass

    def asked(self, time_s: float) -> PlannedStep:
        counts, step = self._steps.at(time_s), self._steps.step(time_s)
        lent = None if self._lent is None else np.zeros_like(counts)
        if step < 0:
            return PlannedStep(counts, lent)
        shares = None if self._shares is None else self._shares[step]
        return PlannedStep(counts, None if self._lent is None else self._lent[step].copy(), shares)


# Plans a period from its index and the ready and starting instances ``[pools]`` at its decision;
# None: before the first decision.
Planner = Callable[[int, IntArray | None], PlannedStep]


class Decided:
    """A schedule of periods from ``starts_s`` on, each planned at ``asked_s`` (methods.md E8).

    A period is planned from the fleet at ``asked_s``, which is not after its start. The schedule is
    the maximum of the running period and of those already planned. The shares are those of the
    running one. Periods that are planned at one moment follow each other: the later one is planned
    from the counts of the earlier one.
    """

    def __init__(
        self, planner: Planner, starts_s: Sequence[float] | FloatArray, asked_s: FloatArray
    ) -> None:
        self._planner = planner
        self._starts_s = np.asarray(starts_s, np.float64)
        self._asked_s = np.minimum(asked_s, self._starts_s)
        self._answers: list[PlannedStep] = []

    def reset(self, fleet: Fleet) -> IntArray:
        self._answers = []
        self._decide(0.0, None)
        return self.asked(0.0).counts.copy()

    def see(self, observation: Observation) -> None:
        self._decide(observation.time_s, observation.ready + observation.starting)

    def _decide(self, time_s: float, running: IntArray | None) -> None:
        for period in range(len(self._answers), len(self._starts_s)):
            if self._asked_s[period] > time_s:
                break
            self._answers.append(self._planner(period, running))
            running = self._answers[-1].counts

    def asked(self, time_s: float) -> PlannedStep:
        runs = int(np.searchsorted(self._starts_s, time_s, side="right")) - 1
        ahead = self._answers[max(runs, 0) :]
        counts: IntArray = np.max([step.counts for step in ahead], axis=0)
        if all(step.lent is None for step in ahead):
            return PlannedStep(counts, None, ahead[0].shares)
        serving = [step.counts - (0 if step.lent is None else step.lent) for step in ahead]
        return PlannedStep(counts, counts - np.max(serving, axis=0), ahead[0].shares)
