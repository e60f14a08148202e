"""The rules of Kubernetes' horizontal pod autoscaler, on a utilisation.

Source: kubernetes.io, "Horizontal Pod Autoscaling", and the controller's replica calculator:
``desired = ceil(current * metric / target)`` within a tolerance of 0.1, looked at every 15 s;
scale-in to the highest recommendation of the last 300 s; scale-out by at most the larger of 100%
and 4 instances per 15 s; default target 80%.
"""

from __future__ import annotations

from collections import deque
from math import ceil

import numpy as np

from simulation.arrays import FloatArray, IntArray
from simulation.errors import SimulationError
from simulation.fleet import Fleet
from simulation.policies.parts.endpoints import initial_counts
from simulation.policies.parts.stability import ROUNDING
from simulation.policy import Observation

METRICS = ("memory", "gpu")  # KV memory in use; share of time an iteration runs


class Hpa:
    """Each pool by itself, as an autoscaler object per deployment does; in a service with prefill
    and decode pools that is the uncoordinated scaling that D warns of.

    Instances that are starting count as idle where the others ask for more, and not at all where
    they do not, as the controller does with pods that are not ready.
    """

    def __init__(
        self,
        target: float = 0.8,
        metric: str = "memory",
        tolerance: float = 0.1,
        stabilisation_s: float = 300.0,
        scale_up_factor: float = 1.0,
        scale_up_instances: int = 4,
        interval_s: float = 15.0,
        name: str = "hpa",
    ) -> None:
        if metric not in METRICS:
            raise SimulationError(f"There is no metric {metric!r}; use {', '.join(METRICS)}.")
        if not target > 0:
            raise SimulationError("The target utilisation must be above 0.")
        self._target, self._metric, self._tolerance = target, metric, tolerance
        self._stabilisation_s = stabilisation_s
        self._factor, self._instances = scale_up_factor, scale_up_instances
        self._interval_s, self._name = interval_s, name
        self._recent: list[deque[tuple[float, int]]] = []

    @property
    def name(self) -> str:
        return self._name

    @property
    def interval_s(self) -> float:
        return self._interval_s

    @property
    def wants_signals(self) -> bool:
        return self._metric == "gpu"

    def reset(self, fleet: Fleet) -> IntArray:
        counts = initial_counts(fleet)
        # The autoscaler found this fleet, and nothing is known against it.
        self._recent = [deque([(0.0, int(count))]) for count in counts]
        return counts

    def decide(self, observation: Observation) -> IntArray:
        metric = self._values(observation)
        targets = observation.ready + observation.starting
        for p in range(len(targets)):
            ready, starting = int(observation.ready[p]), int(observation.starting[p])
            wanted = self._recommended(float(metric[p]), ready, starting)
            if not ready and not starting:  # the controller leaves a deployment of none alone
                wanted = int(observation.waiting[p] > 0)
            targets[p] = self._stabilised(p, observation.time_s, ready + starting, wanted)
        return targets

    def _values(self, observation: Observation) -> FloatArray:
        if self._metric == "memory":
            return observation.utilisation
        if observation.signals is None:
            return np.full(len(observation.ready), np.nan)
        return observation.signals.busy

    def _recommended(self, value: float, ready: int, starting: int) -> int:
        present = ready + starting
        if not np.isfinite(value) or not ready:
            return present
        ratio = value / self._target
        if starting and ratio > 1:  # with what is coming counted as idle
            ratio = value * ready / present / self._target
            if ratio <= 1 + self._tolerance + ROUNDING:
                return present
            return max(present, ceil(ratio * present - ROUNDING))
        if abs(ratio - 1) <= self._tolerance + ROUNDING:
            return present
        return ceil(ratio * ready - ROUNDING)

    def _stabilised(self, p: int, time_s: float, present: int, wanted: int) -> int:
        recent = self._recent[p]
        recent.append((time_s, wanted))
        while recent[0][0] < time_s - self._stabilisation_s:
            recent.popleft()
        if wanted > present:
            # A limit per 15 s; with a longer interval so many of them have gone by.
            windows = max(1.0, self._interval_s / 15.0)
            most = max(present * (1 + self._factor) ** windows, present + self._instances * windows)
            return min(wanted, int(most))
        return min(present, max(count for _, count in recent))
