"""Proportional control with latency feedback as a safety layer (methods.md D3)."""

from dataclasses import dataclass

import numpy as np

from simulation.arrays import IntArray
from simulation.fleet import Fleet
from simulation.policies.feedback import Feedback
from simulation.policies.proportional import Proportional
from simulation.policy import Actions, ComputedParameter, Gauge, Observation, ScalingPolicy


@dataclass(eq=False)
class SafetyLayer(ScalingPolicy):
    """Follow ``driver``, and add instances for services whose latency is close to its limit.

    While a ``safety`` layer sees such a service, its target is the larger one of both layers and
    no instance of it is removed (HeteroScale, section 3.3.2: "a safety mechanism rather than a
    primary scaling driver"). The safety layers never shrink the fleet.

    Cooldowns start with the last change by any layer (T_last of Algorithms 2 and 3). So the driver
    does not remove added instances at the next decision, when latency is down and they have not
    even started.
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
            layer.cooling.last_s = self.driver.cooling.last_s  # shared from now on
        return counts

    def gauge(self, observation: Observation) -> Gauge:
        return self.driver.gauge(observation)

    def computed_parameters(self) -> tuple[ComputedParameter, ...]:
        """Return the targets of the driver and the limit of each safety layer."""
        return (
            *self.driver.computed_parameters(),
            *(layer.computed_parameters()[0] for layer in self.safety),
        )

    def decide(self, observation: Observation) -> Actions:
        """Return the driver's targets, or more for services with high latency."""
        # All layers share the times of the last changes. Their own ``decide`` would record changes
        # that are only requested, so these times are reset before each layer and at the end.
        last_s = self.driver.cooling.last_s
        before = last_s.copy()
        answer = self.driver.decide(observation)
        present = observation.present
        targets = answer.targets.copy()
        for layer in self.safety:
            last_s[:] = before
            least = np.maximum(layer.decide(observation).targets, present)
            for service in layer.services:
                own = list(service.pools)
                if layer.latency_ratio(service, observation) >= layer.beta_out:  # scales out
                    targets[own] = np.maximum(targets[own], least[own])
        last_s[:] = before
        changes = targets != present
        for i, service in enumerate(self.driver.services):
            if changes[list(service.pools)].any():
                self.driver.cooling.record_change(i, observation.time_s)
        return Actions(targets, soft_s=answer.soft_s)
