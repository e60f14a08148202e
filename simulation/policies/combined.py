"""Proportional control as the driver, negative feedback as the safety layer (methods.md D3)."""

from __future__ import annotations

import numpy as np

from simulation.fleet import Fleet
from simulation.policies.base import Actions, IntArray, Observation
from simulation.policies.feedback import Feedback
from simulation.policies.proportional import Proportional


class Combined:
    """The driver's answer, except where latency is at risk: then instances that a safety layer asks
    for are added if the driver asks for fewer, and none are taken away (HeteroScale, section 3.3.2:
    "a safety mechanism rather than a primary scaling driver"). The safety layer never shrinks."""

    wants_signals = True

    def __init__(
        self, driver: Proportional, safety: tuple[Feedback, ...], name: str = "heteroscale"
    ) -> None:
        self._driver, self._safety, self._name = driver, safety, name

    @property
    def name(self) -> str:
        return self._name

    @property
    def interval_s(self) -> float:
        return self._driver.interval_s

    def reset(self, fleet: Fleet) -> IntArray:
        for layer in self._safety:
            layer.reset(fleet)
        return self._driver.reset(fleet)

    def decide(self, observation: Observation) -> Actions:
        answer = self._driver.decide(observation)
        present = observation.ready + observation.starting
        targets = answer.targets.copy()
        for layer in self._safety:
            asked = layer.decide(observation).targets
            for service in layer.services:
                at = list(service.pools)
                if layer.at_risk(service, observation):
                    targets[at] = np.maximum(targets[at], np.maximum(asked[at], present[at]))
        return Actions(targets, soft_s=answer.soft_s)
