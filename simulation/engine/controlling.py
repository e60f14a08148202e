"""The control loop around a policy: it is asked at each instant, unless the controller is down."""

from __future__ import annotations

from dataclasses import replace

from simulation.engine.acting import Actor
from simulation.engine.observing import Observer
from simulation.engine.state import State
from simulation.faults import ControllerOutage
from simulation.fleet import Fleet
from simulation.policy import ScalingPolicy, actions_of


class Controller:
    """Asks ``policy`` and carries out what it says. While a ``ControllerOutage`` lasts nobody looks
    and nothing is decided; what was asked for before goes on starting and draining. Then the policy
    goes on where it stopped, or starts afresh from the fleet that there is."""

    def __init__(self, s: State, fleet: Fleet, policy: ScalingPolicy) -> None:
        self._s, self._fleet, self._policy = s, fleet, policy
        self._actor = Actor(s, fleet)
        self._observe = Observer(s, policy)
        self._outages = [fault for fault in fleet.faults if isinstance(fault, ControllerOutage)]
        self._forgets = False

    def look(self, now: float) -> None:
        """One control instant. Readings are of the time since the last instant, whoever looked."""
        observation = self._observe(now)
        down = [outage for outage in self._outages if outage.from_s <= now < outage.to_s]
        if down:
            self._forgets |= any(not fault.state_kept for fault in down)
            return
        if self._forgets:
            self._forgets = False
            self._policy.reset(self._present())
        self._actor.act(actions_of(self._policy.decide(observation)), now)

    def _present(self) -> Fleet:
        """The fleet as it is now, as one to begin with."""
        up = (self._s.pools["ready"] + self._s.pools["starting"]).tolist()
        pools = zip(self._fleet.pools, up, strict=True)
        return replace(
            self._fleet, pools=tuple(replace(pool, initial=count) for pool, count in pools)
        )
