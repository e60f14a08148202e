"""Wrap a policy so that its replicas are placed in the network before they start.

Sources: methods.md D5; HeteroScale, section 3.4.
"""

from dataclasses import replace

import numpy as np

from planner.domain.placement.services import services_by
from planner.inputs.scenario.build import Hardware
from planner.inputs.scenario.topology import Network
from planner.optimizer.placement import (
    PlacementProblem,
    measure_units,
    run_algorithm4,
    service_share,
)
from planner.optimizer.placement.scale_in import placed_replicas
from simulation.arrays import FloatArray, IntArray
from simulation.fleet import Fleet
from simulation.policies.wrappers.wrapper import Wrapper
from simulation.policy import Actions, ComputedParameter, Observation, ScalingPolicy, actions_of


class PlacingPolicy(Wrapper):
    """Wraps a policy so that its replicas are placed by Algorithm 4 at each scaling decision.

    A service is a model in a region; a unit is the smallest set of its prefill and decode replicas
    in their ratio. Added replicas are placed in the service's deployment groups, or in new groups
    if the service grows in both roles. Replicas without a place do not start. Removals begin in
    the most expensive subgroups.

    KV transfers get the bandwidth that the switches between prefill and decode leave. The simulator
    has one link per pool, so a service uses the mean over its units.

    A replica that drains or is lent out keeps its place. ``hardware`` is that of the scenario,
    with the same pools as the fleet.
    """

    def __init__(self, policy: ScalingPolicy, network: Network, hardware: Hardware) -> None:
        """Prepare to place the replicas of ``policy`` in ``network``."""
        super().__init__(policy)
        self._network = network
        # With a replica of every pool, every service exists.
        one_per_pool = np.zeros(hardware.minimum.shape, np.int64)
        number_of_pool = {}
        for p, pool in enumerate(hardware.model_region_gpu):
            one_per_pool[pool] = 1
            number_of_pool[pool] = p
        placed = services_by(network.rules, hardware, one_per_pool)
        self._services = tuple(row.service for row in placed)
        self._decisions = 0
        # Index of the pool, by service and role.
        self._pools = [
            [number_of_pool[row.model, row.region, g] for g in row.columns] for row in placed
        ]

    def reset(self, fleet: Fleet) -> IntArray:
        """Place the replicas that the policy starts with, and return them by pool."""
        counts = super().reset(fleet)
        minimum = np.array([pool.minimum for pool in fleet.pools], np.int64)
        maximum = np.array([pool.maximum for pool in fleet.pools], np.int64)
        self._problem = self._placement_problem(np.clip(counts, minimum, maximum))
        self._sends = np.array([pool.link is not None for pool in fleet.pools])
        if not self._decisions:  # a controller that restarts keeps its placement and sums
            # Sums over decisions: replicas without a place, and shares of the bandwidth.
            self._unplaced_sums, self._share_sums = np.zeros(len(minimum)), np.zeros(len(minimum))
            self._placement = run_algorithm4(self._problem)
        self._kv_shares = self._kv_bandwidth_shares()
        return counts

    def decide(self, observation: Observation) -> Actions:
        """Return the policy's actions, without starts of replicas that cannot be placed."""
        actions = actions_of(self._policy.decide(observation))
        lent = 0 if observation.spare is None else observation.spare
        present = observation.ready + observation.starting + observation.draining + lent
        unplaced = self._move_placement(np.maximum(actions.targets, present))
        starts = np.maximum(actions.targets - present, 0)
        targets = actions.targets - np.minimum(unplaced, starts)
        self._unplaced_sums += actions.targets - targets
        self._share_sums += self._kv_shares
        self._decisions += 1
        return replace(actions, targets=targets, link_share=self._kv_shares)

    def computed_parameters(self) -> tuple[ComputedParameter, ...]:
        """Return the parameters of the policy, and two means over decisions, by pool.

        They are the share of the KV bandwidth (NaN for pools that send no KV caches), and the
        replicas without a place.
        """
        decisions = max(self._decisions, 1)
        mean_share = self._share_sums / decisions if self._decisions else self._kv_shares
        sent_share = np.where(self._sends, mean_share, np.nan)
        mean_unplaced = self._unplaced_sums / decisions
        return (
            *super().computed_parameters(),
            ComputedParameter("mean share of KV bandwidth left by switches", sent_share),
            ComputedParameter("replicas without a place, mean over decisions", mean_unplaced),
        )

    def _move_placement(self, targets: IntArray) -> IntArray:
        """Place the replicas ``targets [pools]``; return those without a place, ``[pools]``."""
        problem = self._placement_problem(targets)
        # If replicas are unplaced, try again even at the same targets: GPUs may have become free.
        if problem.services != self._problem.services or self._placement.unplaced:
            self._problem = problem
            self._placement = run_algorithm4(problem, self._placement)
            self._kv_shares = self._kv_bandwidth_shares()
        missing = np.zeros_like(targets)
        for s, pools in enumerate(self._pools):
            present = placed_replicas(self._placement, s, len(pools))
            missing[pools] = np.maximum(targets[pools] - np.array(present), 0)
        return missing

    def _placement_problem(self, targets: IntArray) -> PlacementProblem:
        """Return the problem of placing the replicas ``targets [pools]``."""
        services = tuple(
            replace(service, wanted=tuple(targets[pools].tolist()))
            for service, pools in zip(self._services, self._pools, strict=True)
        )
        return PlacementProblem(self._network.topology, services)

    def _kv_bandwidth_shares(self) -> FloatArray:
        """Return the share of the KV bandwidth that the switches leave, ``[pools]``."""
        units = measure_units(self._problem, self._placement, self._network.shares)
        share = np.ones(sum(len(pools) for pools in self._pools))
        for s, pools in enumerate(self._pools):
            mean_and_worst = service_share(units, s)
            if mean_and_worst is not None:
                share[pools], _ = mean_and_worst
        return share
