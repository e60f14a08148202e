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
    measure_placement,
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

    Added replicas are placed in the service's deployment groups. If a service grows in both roles,
    they are placed in new groups. Replicas without a place do not start. Removals begin in the
    most expensive subgroups.

    KV transfers get the bandwidth that the switches between prefill and decode leave. The simulator
    has one link per pool, so a service uses the mean over its units.

    A replica that drains or is lent out keeps its place. ``hardware`` is that of the scenario,
    with the same pools as the fleet.
    """

    def __init__(self, policy: ScalingPolicy, network: Network, hardware: Hardware) -> None:
        super().__init__(policy)
        self._network = network
        one_per_pool = np.zeros(hardware.minimum.shape, np.int64)
        one_per_pool[tuple(np.array(hardware.pool_index).T)] = 1
        pool_of_index = {pool: p for p, pool in enumerate(hardware.pool_index)}
        placed = services_by(network.rules, hardware, one_per_pool)
        self._services = tuple(placed_service.service for placed_service in placed)
        self._decisions = 0
        # [service][role] index of the pool.
        self._pools = [
            [
                pool_of_index[placed_service.model, placed_service.region, g]
                for g in placed_service.columns
            ]
            for placed_service in placed
        ]

    def reset(self, fleet: Fleet) -> IntArray:
        """Place the initial fleet, and return its counts by pool."""
        counts = super().reset(fleet)
        minimum, maximum = (
            np.array([getattr(pool, limit) for pool in fleet.pools], np.int64)
            for limit in ("minimum", "maximum")
        )
        if not self._decisions:  # before the first decision
            # Sums over decisions: replicas without a place, and shares of the bandwidth.
            self._refused, self._shares = np.zeros(len(minimum)), np.zeros(len(minimum))
        self._problem = self._placement_problem(np.clip(counts, minimum, maximum))
        self._sends = np.array([pool.link is not None for pool in fleet.pools])
        if not self._decisions:  # after a controller restart, the existing placement stays
            self._placement = run_algorithm4(self._problem)
        self._share = self._kv_bandwidth_shares()
        return counts

    def decide(self, observation: Observation) -> Actions:
        """Return the policy's actions without starts of replicas that cannot be placed."""
        actions = actions_of(self._policy.decide(observation))
        lent = 0 if observation.spare is None else observation.spare
        present = observation.ready + observation.starting + observation.draining + lent
        to_place = np.maximum(actions.targets, present)
        missing = self._move_placement(to_place)
        targets = actions.targets - np.minimum(missing, np.maximum(actions.targets - present, 0))
        self._refused += actions.targets - targets
        self._shares += self._share
        self._decisions += 1
        return replace(actions, targets=targets, link_share=self._share)

    def computed_parameters(self) -> tuple[ComputedParameter, ...]:
        """Return the policy's values and two of the placement, each a mean over decisions by pool.

        The share of the KV bandwidth is NaN for pools that send no KV caches.
        """
        decisions = max(self._decisions, 1)
        mean_share = self._shares / decisions if self._decisions else self._share
        sent_share = np.where(self._sends, mean_share, np.nan)
        unplaced = self._refused / decisions
        return (
            *super().computed_parameters(),
            ComputedParameter("mean share of KV bandwidth left by switches", sent_share),
            ComputedParameter("replicas without a place, mean over decisions", unplaced),
        )

    def _move_placement(self, targets: IntArray) -> IntArray:
        """Place ``targets`` ``[pools]``; return the replicas without a place, ``[pools]``."""
        problem = self._placement_problem(targets)
        # With unplaced replicas, try again even at the same targets: places may have become free.
        if problem.services != self._problem.services or self._placement.unplaced:
            self._problem = problem
            self._placement = run_algorithm4(problem, self._placement)
            self._share = self._kv_bandwidth_shares()
        missing = np.zeros_like(targets)
        for s, pools in enumerate(self._pools):
            present = placed_replicas(self._placement, s, len(pools))
            missing[pools] = np.maximum(targets[pools] - np.array(present), 0)
        return missing

    def _placement_problem(self, targets: IntArray) -> PlacementProblem:
        """Return the placement problem of ``targets``, ``[pools]``."""
        services = tuple(
            replace(service, wanted=tuple(targets[pools].tolist()))
            for service, pools in zip(self._services, self._pools, strict=True)
        )
        return PlacementProblem(self._network.topology, services)

    def _kv_bandwidth_shares(self) -> FloatArray:
        """Return the share of the KV bandwidth that the switches leave, ``[pools]``."""
        units = measure_placement(self._problem, self._placement, self._network.shares).units
        share = np.ones(sum(len(pools) for pools in self._pools))
        for s, pools in enumerate(self._pools):
            shared = service_share(units, s)
            share[pools] = 1.0 if shared is None else shared[0]
        return share
