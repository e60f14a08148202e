"""Chiron's hierarchical backpressure (methods.md E8)."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from planner.policies.base import Group, Interval, Knob, Policy, Step, Traits, factors
from planner.policies.context import Making, Ready
from planner.schema_types import Count, Share
from simulation.fleet import Fleet
from simulation.policies.chiron import Chiron as Rule
from simulation.policies.parts.tier_pools import CHIRON_START, chiron_fleet


class Chiron(Policy):
    """Backpressure, local and global."""

    kinds: ClassVar = {
        "chiron": Traits(
            "Chiron",
            "Backpressure on batches, interactive instances and queue; overprovisions.",
            Group.REACTIVE,
            complexity=30,
        )
    }

    name: Literal["chiron"]
    theta: Share = Rule.theta
    interactive: Count = CHIRON_START[0]  # initial instances per model and region
    mixed: Count = CHIRON_START[1]
    batch: Count = CHIRON_START[2]
    scale: Annotated[float, Field(gt=0, le=100)] = 1.0  # factor on the three counts
    tune_batch: bool = Rule.tune_batch
    grow: Step = Rule.grow
    shrink: Share = Rule.shrink
    interval_s: Interval = Rule.interval_s

    @property
    def knob(self) -> Knob:
        return Knob("theta", factors(0.95, 0.05))

    def ready(self, making: Making) -> Ready:
        fleet, whence = self._start(making)
        lengths = [making.lengths[p] for p in whence]
        policy = Rule(lengths, **self.told(Rule), name=self.key)
        return making.cut(policy, fleet, whence)

    def _start(self, making: Making) -> tuple[Fleet, list[int]]:
        """Return the initial fleet, scaled down if necessary to the available GPUs."""
        today = making.fleet(making.today)
        asked = np.array([self.interactive, self.mixed, self.batch]) * self.scale
        for share in np.linspace(1.0, 0.0, 101):
            start = np.maximum(np.round(asked * share), [1, 0, 0]).astype(int).tolist()
            fleet, whence = chiron_fleet(today, tuple(start))
            placed = sum(pool.initial for pool in fleet.pools)
            kinds = 3 if any(tier.deferrable for tier in fleet.tiers) else 2
            places = len({(pool.model, pool.region) for pool in fleet.pools if pool.maximum})
            # ``chiron_fleet`` places fewer than asked if a pool reaches its maximum.
            if placed == places * sum(start[:kinds]) and making.fits(fleet, whence):
                break
        return fleet, whence
