"""Chiron's hierarchical backpressure (methods.md E8)."""

from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from planner.policies.base import Group, Interval, Policy, Step, Traits, TunedParameter, factors
from planner.policies.context import BuiltPolicy, PolicyContext
from planner.schema_types import Count, Share
from simulation.fleet import Fleet
from simulation.policies.chiron import Chiron as Rule
from simulation.policies.parts.tier_pools import CHIRON_START, chiron_fleet


class Chiron(Policy):
    """Scale on local and global backpressure."""

    kinds: ClassVar = {
        "chiron": Traits(
            "Chiron",
            "Sets batch sizes and replicas by backpressure: latency, busy replicas, batch queue.",
            Group.REACTIVE,
            complexity=30,
        )
    }

    name: Literal["chiron"]
    theta: Share = Rule.theta  # utilization of interactive replicas
    interactive: Count = CHIRON_START[0]  # initial replicas per model and region
    mixed: Count = CHIRON_START[1]  # the same of mixed replicas
    batch: Count = CHIRON_START[2]  # the same of batch replicas
    scale: Annotated[float, Field(gt=0, le=100)] = 1.0  # factor on the three counts
    tune_batch: bool = Rule.tune_batch  # whether batch sizes change
    grow: Step = Rule.grow  # factor on a growing batch (ours)
    shrink: Share = Rule.shrink  # factor on a shrinking batch (ours)
    interval_s: Interval = Rule.interval_s  # seconds between decisions (ours)

    @property
    def tuned_parameter(self) -> TunedParameter:
        return TunedParameter("theta", factors(0.95, 0.05))

    def build(self, context: PolicyContext) -> BuiltPolicy:
        fleet, source_pools = self._initial_fleet(context)
        lengths = [context.lengths[p] for p in source_pools]
        policy = Rule(lengths, **self.fields_for(Rule), name=self.key)
        return context.limited_to_shared_gpus(policy, fleet, source_pools)

    def _initial_fleet(self, context: PolicyContext) -> tuple[Fleet, list[int]]:
        """Return the initial fleet, reduced if necessary until it fits the available GPUs.

        The second value has the index of the study's pool that each pool of the fleet came from.
        """
        today = context.fleet(context.today)
        # Counts are by kind: interactive, mixed and batch. One interactive instance always stays.
        instances = np.array([self.interactive, self.mixed, self.batch]) * self.scale
        for share in np.linspace(1.0, 0.0, 101):
            start = np.maximum(np.round(instances * share), [1, 0, 0]).astype(int).tolist()
            fleet, source_pools = chiron_fleet(today, tuple(start))
            placed = sum(pool.initial for pool in fleet.pools)
            # Batch replicas only serve deferrable tiers.
            has_batch = any(tier.deferrable for tier in fleet.tiers)
            counts = start if has_batch else start[:2]
            model_regions = len({(pool.model, pool.region) for pool in fleet.pools if pool.maximum})
            # ``chiron_fleet`` places fewer than asked if a pool reaches its maximum.
            all_placed = placed == model_regions * sum(counts)
            if all_placed and context.fits_available_gpus(fleet, source_pools):
                break
        return fleet, source_pools
