"""The control loop around a policy."""

from dataclasses import replace

from simulation.engine.observations import Observer
from simulation.engine.policy_actions import Actor
from simulation.engine.state import State
from simulation.faults import ControllerOutage
from simulation.fleet import Fleet
from simulation.policy import Hold, ScalingPolicy, actions_of, holds


class Controller:
    """Calls ``policy`` at each scaling decision and applies its actions.

    During a ``ControllerOutage`` the policy is not called. Starts and drains already requested go
    on. Afterwards the policy continues, or is reset to the present fleet if its state was lost.
    """

    def __init__(self, state: State, fleet: Fleet, policy: ScalingPolicy) -> None:
        self._state, self._fleet, self._policy = state, fleet, policy
        self._actor = Actor(state, fleet)
        self.observe = Observer(state, policy)
        self._outages = [fault for fault in fleet.faults if isinstance(fault, ControllerOutage)]
        self._state_lost = False
        self._holds = holds(policy)

    def decide(self, now: float, *, read: bool = False) -> Hold | None:
        """Make one scaling decision at ``now``, and apply its actions.

        With ``read``, compiled code has read the observation already. Returns how long the decision
        stays the same; None: the policy must be asked at each decision.
        """
        # Observe even during an outage: readings always cover the time since the last decision.
        observation = self.observe(now, read=read)
        current = [outage for outage in self._outages if outage.from_s <= now < outage.to_s]
        if current:
            self._state_lost |= any(not outage.state_kept for outage in current)
            return None
        if self._state_lost:
            self._state_lost = False
            self._policy.reset(self._present_fleet())
        self._actor.act(actions_of(self._policy.decide(observation)), now)
        return None if self._outages or self._holds is None else self._holds.hold(now)

    def _present_fleet(self) -> Fleet:
        """Return the fleet with its present instances (ready or starting) as the initial ones."""
        pools = self._state.pools
        up = (pools["ready"] + pools["starting"] + pools["arriving"]).tolist()
        counted = zip(self._fleet.pools, up, strict=True)
        return replace(
            self._fleet, pools=tuple(replace(pool, initial=count) for pool, count in counted)
        )
