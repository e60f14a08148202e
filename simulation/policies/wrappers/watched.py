"""Any policy, with its soft scale-in undone where limits are missed (methods.md D4; HeteroScale,
section 3.6, "soft scaling in")."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from simulation.arrays import IntArray
from simulation.fleet import Fleet
from simulation.policies.parts.endpoints import Service, services
from simulation.policies.wrappers.wrapper import Wrapper
from simulation.policy import Actions, Observation, ScalingPolicy, actions_of


class Watched(Wrapper):
    """``policy``, whose instances taken out softly come back at once where the service misses its
    limits while they are still there, whatever the policy's cooling says.

    A service misses them where more than the tiers allow (1 - attainment, of the strictest tier
    that waits for nobody) of the first tokens or of the completions since the last look were late,
    or where requests wait and nothing is ready. What came back stays for as long as the watch was
    to last (``soft_s``): the source says when to reinstate, and not for how long; this is ours.
    Shares of late requests are signals: ``reads`` asks for them where the policy does not.
    """

    def __init__(self, policy: ScalingPolicy, *, reads: bool = True) -> None:
        super().__init__(policy)
        self.wants_signals |= reads

    def reset(self, fleet: Fleet) -> IntArray:
        self._services = services(fleet)
        self._allowed = [_allowed(fleet, service) for service in self._services]
        self._until = np.full(len(self._services), -np.inf)
        # [pools] of (until when, how many) that were taken out softly, oldest first
        self._out: list[list[tuple[float, int]]] = [[] for _ in fleet.pools]
        return super().reset(fleet)

    def decide(self, observation: Observation) -> Actions:
        actions = actions_of(self._policy.decide(observation))
        if actions.soft_s <= 0 and not self._watches(observation.time_s):
            return actions
        present = observation.ready + observation.starting
        back = np.minimum(self._recoverable(observation.time_s), observation.draining)
        targets = actions.targets.copy()
        for i, service in enumerate(self._services):
            places = list(service.pools)
            if back[places].any() and self._misses(i, service, observation):
                self._until[i] = max(until for p in places for until, _ in self._out[p])
                targets[places] = np.maximum(targets[places], (present + back)[places])
            elif observation.time_s < self._until[i]:
                targets[places] = np.maximum(targets[places], present[places])
        self._note(targets - present, observation, actions)
        return replace(actions, targets=targets)

    def _watches(self, now: float) -> bool:
        """Whether any instance taken out softly may still come back, or came back and stays."""
        return any(self._out) or bool((self._until > now).any())

    def _misses(self, i: int, service: Service, observation: Observation) -> bool:
        places = list(service.pools)
        for role in (service.prefill, service.decode):
            none = not observation.ready[list(role)].any()
            if none and observation.waiting[places].any():
                return True
        signals = observation.signals
        if signals is None:
            return False
        late = np.concatenate([signals.late_first[places], signals.late_done[places]])
        return bool((late > self._allowed[i]).any())  # NaN, where nothing came, is not late

    def _recoverable(self, now: float) -> IntArray:
        """Instances still to be had back, ``[pools]``."""
        self._out = [[outage for outage in out if outage[0] > now] for out in self._out]
        return np.array([sum(count for _, count in out) for out in self._out], np.int64)

    def _note(self, change: IntArray, observation: Observation, actions: Actions) -> None:
        for p, out in enumerate(self._out):
            gone = -int(change[p]) - int(observation.starting[p])  # starting ones go first, at once
            firm = actions.firm is not None and bool(actions.firm[p])
            if gone > 0 and actions.soft_s > 0 and not firm:
                out.append((observation.time_s + actions.soft_s, gone))
            for _ in range(max(0, int(change[p]))):  # growth takes those that drain first
                if not out:
                    break
                until, count = out.pop()
                if count > 1:
                    out.append((until, count - 1))


def _allowed(fleet: Fleet, service: Service) -> float:
    """Share of late requests that the tiers of a service allow, the strictest of those that are not
    deferrable; infinite where every tier is."""
    takes = [
        1.0 - tier.attainment
        for tier in fleet.tiers
        if not tier.deferrable and any(fleet.pools[p].takes(tier.name) for p in service.pools)
    ]
    return min(takes, default=np.inf)
