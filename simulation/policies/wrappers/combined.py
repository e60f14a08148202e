"""Proportional control as the driver, negative feedback as the safety layer (methods.md D3)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from simulation.arrays import IntArray
from simulation.fleet import Fleet
from simulation.policies.feedback import Feedback
from simulation.policies.proportional import Proportional
from simulation.policy import Actions, Gauge, InForce, Observation, ScalingPolicy


@dataclass(eq=False)
class Combined(ScalingPolicy):
    """The driver's answer, except where latency is at risk: then instances that a safety layer asks
    for are added if the driver asks for fewer, and none are taken away (HeteroScale, section 3.3.2:
    "a safety mechanism rather than a primary scaling driver"). The safety layer never shrinks.

    Cooling is counted from the last time that instances were added or taken out, whichever layer
    had them so (T_last of Algorithms 2 and 3): what safety adds, the driver does not take back at
    the next instant, when latency has come down and they have not even started.
    """

    wants_signals = True

    driver: Proportional
    safety: tuple[Feedback, ...]
    name: str = "heteroscale"

    def __post_init__(self) -> None:
        self.interval_s = self.driver.interval_s

    def reset(self, fleet: Fleet) -> IntArray:
        counts = self.driver.reset(fleet)
        for layer in self.safety:
            layer.reset(fleet)
            layer.cooling.share(self.driver.cooling)
        return counts

    def gauge(self, observation: Observation) -> Gauge:
        return self.driver.gauge(observation)

    def in_force(self) -> tuple[InForce, ...]:
        """The driver's, and each layer's own limit."""
        return (*self.driver.in_force(), *(layer.in_force()[0] for layer in self.safety))

    def decide(self, observation: Observation) -> Actions:
        last_s = self.driver.cooling.last_s
        before = last_s.copy()
        answer = self.driver.decide(observation)
        present = observation.ready + observation.starting
        targets = answer.targets.copy()
        for layer in self.safety:
            last_s[:] = before  # each layer decides on what was done, not on what another asks
            layer_targets = layer.decide(observation).targets
            for service in layer.services:
                places = list(service.pools)
                if layer.at_risk(service, observation):
                    targets[places] = np.maximum(
                        targets[places], np.maximum(layer_targets[places], present[places])
                    )
        last_s[:] = before
        for i, service in enumerate(self.driver.services):
            places = list(service.pools)
            if (targets[places] != present[places]).any():
                self.driver.cooling.acted(i, observation.time_s)
        return Actions(targets, soft_s=answer.soft_s)
