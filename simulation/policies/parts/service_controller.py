"""Base class of HeteroScale's controllers: one count per service decides both of its roles."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from simulation.arrays import FloatArray, IntArray
from simulation.fleet import Fleet
from simulation.policies.parts.endpoints import (
    Endpoints,
    Service,
    count_in,
    initial_counts,
    services,
)
from simulation.policies.parts.ratio import PdRatio
from simulation.policies.parts.stability import OUT, STAY, Cooldowns, Stability
from simulation.policy import Actions, ComputedParameter, Observation, ScalingPolicy

PREFILL, DECODE = "prefill", "decode"


@dataclass(eq=False, kw_only=True)
class ServiceController(ScalingPolicy):
    """Scale the ``driving_role`` of each service, prefill or decode, and let the other role follow.

    It follows by the P/D ratio in the same decision, so that neither role grows alone (HeteroScale,
    section 3.3.2). If instances do both, there is only one count.

    After a fault or at a limit, counts may differ from the ratio by more than
    ``stability.theta_in``. Then instances are added to restore it. A subclass implements
    ``direction_and_instances``, which is called at every decision. The change is made if the
    cooldowns allow it.
    """

    wants_signals = True

    stability: Stability = field(default_factory=Stability)
    ratio: PdRatio = field(default_factory=PdRatio)
    interval_s: float = 60.0
    name: str = ""

    @property
    def driving_role(self) -> str:
        """Return the role whose count is decided: PREFILL or DECODE."""
        return DECODE

    def reset(self, fleet: Fleet) -> IntArray:
        self._endpoints = Endpoints(fleet)
        self.services = services(fleet)
        self.cooling = Cooldowns(len(self.services), self.stability)
        self.ratio.reset(fleet, self.services)
        return initial_counts(fleet)

    def decide(self, observation: Observation) -> Actions:
        """Scale each service if cooling allows it, else restore its P/D ratio."""
        self.ratio.observe(observation, self.services)
        present = observation.present
        targets = present.copy()
        for i, service in enumerate(self.services):
            present_count = count_in(present, self.driving_pools(service))
            direction, goal = self.direction_and_instances(i, observation)
            changes = (goal - present_count) * direction > 0  # the goal is in this direction
            if changes and self.cooling.allows(i, direction, observation.time_s):
                self._scale(targets, i, service, goal, direction)
                if (targets != present)[list(service.pools)].any():
                    self.cooling.record_change(i, observation.time_s)
            elif service.has_separate_roles:
                self._rebalance(targets, i, service)
        return Actions(targets, soft_s=self.stability.soft_s)

    def computed_parameters(self) -> tuple[ComputedParameter, ...]:
        """Return the P/D ratio of each pool's service; NaN for pools that do both."""
        ratios = np.full(len(self._endpoints.endpoint_of_pool), np.nan)
        for i, service in enumerate(self.services):
            if service.has_separate_roles:
                ratios[list(service.pools)] = self.ratio.prefills_per_decode(i)
        return (ComputedParameter("prefill replicas per decode replica", ratios),)

    def direction_and_instances(self, i: int, observation: Observation) -> tuple[int, int]:
        """Return the direction of service ``i``, and how many instances its driving role needs.

        The direction is OUT, STAY or IN. With STAY, the instances are ignored.
        """
        raise NotImplementedError

    def driving_pools(self, service: Service) -> tuple[int, ...]:
        """Return the pools of the service's driving role."""
        return service.prefill if self.driving_role == PREFILL else service.decode

    def start_first(
        self, service: Service, observation: Observation, present: int
    ) -> tuple[int, int]:
        """Return OUT and 1 if a request waits for the first instance, else STAY and ``present``."""
        starts = not present and observation.waiting[list(service.pools)].any()
        return (OUT, 1) if starts else (STAY, present)

    def _scale(
        self, targets: IntArray, i: int, service: Service, goal: int, direction: int
    ) -> None:
        """Set the driving role of service ``i`` to ``goal`` instances in ``targets``.

        The other role follows by the P/D ratio, but only in ``direction``: OUT or IN.
        """
        pools = self.driving_pools(service)
        self._set_total(targets, pools, goal)
        if not service.has_separate_roles:
            return
        driving_count = count_in(targets, pools)
        if self.driving_role == PREFILL:
            other_pools, other_goal = service.decode, self.ratio.decode_for(i, driving_count)
        else:
            other_pools, other_goal = service.prefill, self.ratio.prefill_for(i, driving_count)
        other_count = count_in(targets, other_pools)
        # ``_rebalance`` corrects the rest.
        limit = max if direction == OUT else min
        self._set_total(targets, other_pools, limit(other_goal, other_count))

    def _rebalance(self, targets: IntArray, i: int, service: Service) -> None:
        """Add instances to a role of service ``i`` that is too far below the P/D ratio."""
        prefills = count_in(targets, service.prefill)
        decodes = count_in(targets, service.decode)
        if self._lacks(self.ratio.decode_for, i, prefills, decodes):
            self._set_total(targets, service.decode, self.ratio.decode_for(i, prefills))
            decodes = count_in(targets, service.decode)
        if self._lacks(self.ratio.prefill_for, i, decodes, prefills):
            self._set_total(targets, service.prefill, self.ratio.prefill_for(i, decodes))

    def _lacks(
        self, required: Callable[[int, int], int], i: int, count: int, other_count: int
    ) -> bool:
        """Return whether ``other_count`` is too far below what ``count`` instances need.

        ``required`` gives the instances of the other role of service ``i`` for a count.
        """
        if not count:
            return False
        needed = required(i, count)
        # Counts are whole numbers: at 3 prefill to 1 decode, 7 prefill need 3 decode, which
        # would be enough for 9. So a lack is no drift if one instance less would remove it.
        needed_by_one_less = required(i, count - 1) if count > 1 else 0
        largest_gap = max(1.0, self.stability.theta_in * needed)
        return other_count <= needed_by_one_less and needed - other_count > largest_gap

    def _set_total(self, targets: IntArray, pools: tuple[int, ...], goal: int) -> None:
        """Change the instances of ``pools`` in ``targets`` to ``goal`` in total."""
        change = goal - count_in(targets, pools)
        if change:
            self._endpoints.move(targets, pools, change)


def pool_mean(values: FloatArray, ready: IntArray, pools: tuple[int, ...]) -> float:
    """Return the mean of ``values [pools]`` over the ready instances of ``pools``, or NaN.

    Pools with the value NaN do not count.
    """
    total, count = 0.0, 0
    for p in pools:
        if ready[p] > 0 and values[p] == values[p]:  # not NaN
            total += float(values[p]) * int(ready[p])
            count += int(ready[p])
    return total / count if count else float("nan")
