"""The rules of Kubernetes' horizontal pod autoscaler, on a utilisation.

Source: kubernetes.io, "Horizontal Pod Autoscaling", and the controller's replica calculator:
``desired = ceil(current * metric / target)`` within a tolerance of 0.1, looked at every 15 s;
scale-in to the highest recommendation of the last 300 s; scale-out by at most the larger of 100%
and 4 instances per 15 s; default target 80%.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import ceil
from typing import Literal, get_args

import numpy as np

from simulation.arrays import FloatArray, IntArray
from simulation.errors import SimulationError
from simulation.fleet import Fleet
from simulation.policies.parts.endpoints import initial_counts
from simulation.policies.parts.stability import ROUNDING
from simulation.policy import Observation, ScalingPolicy

Metric = Literal["memory", "gpu"]  # KV memory in use; share of time an iteration runs


@dataclass(eq=False)
class Hpa(ScalingPolicy):
    """Each pool by itself, as an autoscaler object per deployment does; in a service with prefill
    and decode pools that is the uncoordinated scaling that D warns of.

    Instances that are starting count as idle where the others ask for more, and not at all where
    they do not, as the controller does with pods that are not ready.
    """

    metric: Metric = "memory"
    target: float = 0.8
    tolerance: float = 0.1
    stabilisation_s: float = 300.0
    scale_up_factor: float = 1.0
    scale_up_instances: int = 4
    interval_s: float = 15.0
    name: str = "hpa"

    def __post_init__(self) -> None:
        if self.metric not in get_args(Metric):
            metrics = ", ".join(get_args(Metric))
            raise SimulationError(f"There is no metric {self.metric!r}; use {metrics}.")
        if not self.target > 0:
            raise SimulationError("The target utilisation must be above 0.")
        self.wants_signals = self.metric == "gpu"

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
        if self.metric == "memory":
            return observation.utilisation
        if observation.signals is None:
            return np.full(len(observation.ready), np.nan)
        return observation.signals.busy

    def _recommended(self, value: float, ready: int, starting: int) -> int:
        present = ready + starting
        if not np.isfinite(value) or not ready:
            return present
        ratio = value / self.target
        if starting and ratio > 1:  # with what is coming counted as idle
            ratio = value * ready / present / self.target
            if ratio <= 1 + self.tolerance + ROUNDING:
                return present
            return max(present, ceil(ratio * present - ROUNDING))
        if abs(ratio - 1) <= self.tolerance + ROUNDING:
            return present
        return ceil(ratio * ready - ROUNDING)

    def _stabilised(self, p: int, time_s: float, present: int, wanted: int) -> int:
        recent = self._recent[p]
        recent.append((time_s, wanted))
        while recent[0][0] < time_s - self.stabilisation_s:
            recent.popleft()
        if wanted > present:
            # A limit per 15 s; with a longer interval so many of them have gone by.
            windows = max(1.0, self.interval_s / 15.0)
            by_factor = present * (1 + self.scale_up_factor) ** windows
            most = max(by_factor, present + self.scale_up_instances * windows)
            return min(wanted, int(most))
        return min(present, max(count for _, count in recent))
