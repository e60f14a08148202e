"""The control loop around a policy, and what the policy observes of the engine."""

from dataclasses import replace

import numpy as np

from simulation.arrays import Array, IntArray
from simulation.engine import entry_points, signals
from simulation.engine.compiled_observation import AMOUNTS, COUNTS, Reading
from simulation.engine.policy_actions import Actor
from simulation.engine.state import FIRST_SERVICE, State
from simulation.faults import ControllerOutage
from simulation.fleet import Fleet
from simulation.policy import Hold, Observation, ScalingPolicy, Signals, actions_of, holds


class Observer:
    """Callable that returns the observation at each scaling decision.

    Measurements cover the time since the previous decision. Signals first need the sums of every
    instance brought up to date. They are therefore read only for a policy with ``wants_signals``.
    """

    def __init__(self, state: State, policy: ScalingPolicy) -> None:
        """Allocate the arrays that compiled code fills, and turn signals on or off."""
        self._state = state
        self._wants_signals = bool(getattr(policy, "wants_signals", False))
        state.clock["counts_signals"] = self._wants_signals
        models = int(state.service_model.max(initial=-1)) + 1
        self.reading = Reading(
            router_pool=router_pools(state),
            requested_model=_model_requested_from(state),
            requested_tokens=np.zeros((models, state.asked_tokens.shape[1]), np.int64),
            observed_s=np.zeros(1),
            last_totals=np.zeros((2, len(state.pools))),
            **self._buffers(),
        )

    def __call__(self, now: float, *, read: bool = False) -> Observation:
        """Return the observation at ``now``.

        With ``read``, compiled code has already filled ``self.reading``. A pool without ready
        instances counts as full while requests wait for it at the router, and they count as
        waiting. Otherwise no rule would ever start its first instance.
        """
        if not read:
            entry_points.observe(self._state.handle, now, self.reading)
        reading = self.reading
        # An observation keeps its arrays, so the next one needs others.
        self.reading = self.reading._replace(**self._buffers())
        measured_signals = None
        if self._wants_signals:
            # In the order of ``Signals``. The last two are whole counts.
            rows: list[Array] = [*reading.measured[:-2], *reading.measured[-2:].astype(np.int64)]
            measured_signals = Signals(*rows)
            latencies = self._state.latency_counts.copy()
            self._state.latency_counts[:] = 0
        ready, starting, draining, spare, waiting, deferred = reading.counts
        utilisation, load, input_tps, asked_tps, backlog, fullest, longest, saturation = (
            reading.amounts
        )
        return Observation(
            time_s=now,
            ready=ready,
            starting=starting,
            draining=draining,
            utilisation=utilisation,
            waiting=waiting,
            input_tps=input_tps,
            signals=measured_signals,
            deferred=deferred,
            spare=spare,
            load=load,
            asked_tps=asked_tps,
            backlog=backlog,
            fullest=fullest,
            longest=longest,
            saturation=saturation,
            ttft_counts=latencies[signals.TTFT] if self._wants_signals else None,
            tbt_counts=latencies[signals.TENFOLD_TBT] if self._wants_signals else None,
        )

    def _buffers(self) -> dict[str, Array]:
        """Return new arrays for the next observation."""
        pools = len(self._state.pools)
        return {
            "counts": np.empty((len(COUNTS), pools), np.int64),
            "amounts": np.empty((len(AMOUNTS), pools)),
            "measured": np.empty((signals.COUNT if self._wants_signals else 0, pools)),
        }


def _model_requested_from(state: State) -> IntArray:
    """Return the index of the model whose requests count as ``asked_tps`` of each pool, ``[pool]``.

    It is the model of the pool's service; for a decode pool, that of the prefill service with which
    its requests began. -1: the pool has no service.
    """
    has_service = state.pools["service_count"] > 0
    service = state.pool_services[np.where(has_service, state.pools["first_service"], 0)]
    first_service = state.related_service[service, FIRST_SERVICE]
    first_service = np.where(first_service >= 0, first_service, service)
    return np.where(has_service, state.service_model[first_service], -1)


def router_pools(state: State) -> Array:
    """Return the pool whose ``waiting`` includes the requests at a router, ``[service, region]``.

    It is the first pool of the service in the nearest region that has one. -1: no such region can
    be reached.
    """
    services, regions = state.router_waiting.shape
    pool_shown = np.full((services, regions), -1)
    for service in range(services):
        for home in range(regions):
            for region in state.region_order[home][state.region_order[home] >= 0]:
                endpoint = service * regions + region
                first, end = state.endpoint_start[endpoint : endpoint + 2]
                if first < end:  # the region has a pool of the service
                    pool_shown[service, home] = state.endpoint_pools[first]
                    break
    return pool_shown


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

        With ``read``, compiled code has read the observation already. Return a ``Hold`` that says
        how long the decision stays the same; None: call the policy at each decision.
        """
        # Observe even during an outage: readings always cover the time since the last decision.
        observation = self.observe(now, read=read)
        current = [outage for outage in self._outages if outage.from_s <= now < outage.to_s]
        if current:
            self._state_lost |= any(not outage.state_kept for outage in current)
            return None
        if self._state_lost:
            self._state_lost = False
            # The present instances (ready or starting) are the initial ones.
            pools = self._state.pools
            counts = (pools["ready"] + pools["starting"] + pools["switching_in"]).tolist()
            present = zip(self._fleet.pools, counts, strict=True)
            present_pools = tuple(replace(pool, initial=count) for pool, count in present)
            self._policy.reset(replace(self._fleet, pools=present_pools))
        self._actor.act(actions_of(self._policy.decide(observation)), now)
        return None if self._outages or self._holds is None else self._holds.hold(now)
