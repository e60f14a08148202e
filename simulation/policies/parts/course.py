"""What a plan asks for as time goes on: by the clock, or decided as each period comes near."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from simulation.arrays import FloatArray, IntArray
from simulation.errors import SimulationError
from simulation.fleet import Fleet
from simulation.policies.parts.steps import Counts, Steps, Times
from simulation.policy import Observation


@dataclass(frozen=True, slots=True, eq=False)
class PlannedStep:
    """Instances to hold, ``[pools]``, of which ``lent`` are lent out and serve nothing (E9); where
    home regions' tokens are to be served, ``[models, regions, regions]`` (``Actions.shares``)."""

    counts: IntArray
    lent: IntArray | None = None
    shares: FloatArray | None = None


class Course(Protocol):
    """A plan under way."""

    def reset(self, fleet: Fleet) -> IntArray:
        """Forget everything; the instances of time 0."""
        ...

    def see(self, observation: Observation) -> None:
        """What there is at a control instant, before what is asked for then."""
        ...

    def asked(self, time_s: float) -> PlannedStep:
        """What is asked for at a control instant."""
        ...


class ByClock:
    """A timetable: from ``times_s[i]`` on ``targets[i]`` instances per pool, shapes ``[steps]`` and
    ``[steps, pools]``; ``lent`` and ``shares`` have a row per step too. Before the first step what
    the fleet begins with. SimulationError, in the name of ``policy``, where it makes no sense."""

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


# What a period is to hold: asked by its place, with the instances ready and starting ``[pools]`` at
# its decision; None: nothing has run yet.
Planner = Callable[[int, IntArray | None], PlannedStep]


class Decided:
    """Periods from ``starts_s`` on, each planned at ``asked_s``, not after its start, from the
    fleet that there is then (methods.md E8). Held until it ends: at any time the most that the
    period that runs and those already decided ask for; the shares are those of the one that runs.

    Periods decided at one instant follow each other: the later is planned from what the earlier
    asks for.
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
