"""Add soft scale-in and lending to a policy, and undo it when limits are missed.

Sources: methods.md D4 and E9; HeteroScale, section 3.6.
"""

from dataclasses import replace

import numpy as np

from simulation.arrays import IntArray
from simulation.fleet import Fleet
from simulation.policies.parts.endpoints import Service, allowed_late_share, services
from simulation.policies.wrappers.wrapper import Wrapper
from simulation.policy import Actions, Hold, Observation, ScalingPolicy, actions_of


class ScaleInOptions(Wrapper):
    """Make the scale-in of ``policy`` soft for ``soft_s`` seconds, and lend removed instances.

    With ``lend``, removed instances go to the spot pool, unless they are spot instances. Options
    that the policy itself sets have priority.
    """

    def __init__(self, policy: ScalingPolicy, *, soft_s: float = 0.0, lend: bool = False) -> None:
        super().__init__(policy)
        self._soft_s = soft_s
        self._lend = lend

    def reset(self, fleet: Fleet) -> IntArray:
        self._spot = np.array([pool.spot for pool in fleet.pools], np.bool_)
        return super().reset(fleet)

    def decide(self, observation: Observation) -> Actions:
        """Return the policy's actions with this soft scale-in and lending, unless it sets them."""
        actions = actions_of(self._policy.decide(observation))
        lend = actions.lend
        if lend is None and self._lend:
            lend = ~self._spot
        if lend is actions.lend and not self._soft_s:
            return actions
        return replace(actions, soft_s=actions.soft_s or self._soft_s, lend=lend)

    # Defined here too: ``policy.holds`` trusts a class only if it defines ``hold`` and ``decide``.
    def hold(self, time_s: float) -> Hold | None:
        return super().hold(time_s)


class ScaleInUndo(Wrapper):
    """Restore softly removed instances of ``policy`` when the service misses its limits.

    They are restored at once, even during the policy's cooldown. A service misses its limits in
    two cases. The share of late first tokens or completions since the last decision exceeds 1 -
    attainment of the strictest tier that is not deferrable. Or requests wait and no instance is
    ready.

    Restored instances stay for ``soft_s``. The source says when to reinstate, not for how long; the
    length is ours. With ``reads``, observations contain the share of late requests even if the
    policy does not need it.
    """

    def __init__(self, policy: ScalingPolicy, *, reads: bool = True) -> None:
        super().__init__(policy)
        self.wants_signals |= reads

    def reset(self, fleet: Fleet) -> IntArray:
        self._services = services(fleet)
        self._allowed = [allowed_late_share(fleet, service.pools) for service in self._services]
        # Times until which restored instances stay, by service.
        self._keep_until_s = np.full(len(self._services), -np.inf)
        # By pool: draining instances that may still return, as (time until which, instances),
        # the oldest first.
        self._restorable: list[list[tuple[float, int]]] = [[] for _ in fleet.pools]
        return super().reset(fleet)

    def decide(self, observation: Observation) -> Actions:
        """Return the policy's actions; services that miss limits get draining instances back.

        A service keeps all its instances for as long as the restored ones stay.
        """
        actions = actions_of(self._policy.decide(observation))
        now = observation.time_s
        if actions.soft_s <= 0 and not self._may_restore_or_keep(now):
            return actions
        restored = np.minimum(self._count_restorable(now), observation.draining)
        present = observation.present
        targets = actions.targets.copy()
        for i, service in enumerate(self._services):
            own = list(service.pools)
            if restored[own].any() and self._misses_limits(i, service, observation):
                # Keep them for the rest of the soft scale-in from which they return.
                self._keep_until_s[i] = max(until for p in own for until, _ in self._restorable[p])
                targets[own] = np.maximum(targets[own], (present + restored)[own])
            elif now < self._keep_until_s[i]:
                targets[own] = np.maximum(targets[own], present[own])
        self._record_removed(targets - present, observation, actions)
        return replace(actions, targets=targets)

    def _count_restorable(self, now: float) -> list[int]:
        """Return the restorable instances of each pool, and forget those that have stopped."""
        counts = []
        for restorable in self._restorable:
            restorable[:] = [removed for removed in restorable if removed[0] > now]
            counts.append(sum(count for _, count in restorable))
        return counts

    def hold(self, time_s: float) -> Hold | None:
        return None if self._may_restore_or_keep(time_s) else super().hold(time_s)

    def _may_restore_or_keep(self, now: float) -> bool:
        """Return whether any instance may still be restored, or was restored and must stay."""
        return any(self._restorable) or bool((self._keep_until_s > now).any())

    def _misses_limits(self, i: int, service: Service, observation: Observation) -> bool:
        """Return whether service ``i`` misses its limits, as the class says."""
        service_pools = list(service.pools)
        for role in (service.prefill, service.decode):
            any_ready = observation.ready[list(role)].any()
            if not any_ready and observation.waiting[service_pools].any():
                return True
        signals = observation.signals
        if signals is None:
            return False
        late = np.concatenate([signals.late_first[service_pools], signals.late_done[service_pools]])
        return bool((late > self._allowed[i]).any())  # NaN, without requests, is not late

    def _record_removed(self, change: IntArray, observation: Observation, actions: Actions) -> None:
        """Add what ``change [pools]`` drains to the restorable instances; drop what it restores.

        Instances that drain at once (``firm``), without a soft scale-in, cannot be restored.
        """
        for p, restorable in enumerate(self._restorable):
            # Starting instances are removed first, at once.
            draining = -int(change[p]) - int(observation.starting[p])
            firm = actions.firm is not None and bool(actions.firm[p])
            if draining > 0 and actions.soft_s > 0 and not firm:
                restorable.append((observation.time_s + actions.soft_s, draining))
            for _ in range(max(0, int(change[p]))):  # growth takes draining instances first
                if not restorable:
                    break
                until, count = restorable.pop()  # the latest to drain
                if count > 1:
                    restorable.append((until, count - 1))
