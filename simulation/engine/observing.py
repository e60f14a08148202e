"""What a policy gets to see, read from the state of the engine at a control instant."""

from __future__ import annotations

import numpy as np

from simulation.arrays import Array, FloatArray
from simulation.engine import entry, signals
from simulation.engine.state import State
from simulation.policy import Observation, ScalingPolicy, Signals


class Observer:
    """Called at every control instant; what it measures counts from the one before.

    Signals cost settling every instance at every instant, so they are read only for a policy that
    says ``wants_signals``.
    """

    def __init__(self, s: State, policy: ScalingPolicy) -> None:
        self._s = s
        self._wants_signals = bool(getattr(policy, "wants_signals", False))
        self._router_pool = router_pools(s)
        counts = s.pools["service_count"]
        self._pool_of_service = np.repeat(np.arange(len(s.pools)), counts)
        self._serves = counts > 0
        # A service of each pool; one that serves nobody is asked for nothing.
        starts = s.pool_services[np.where(self._serves, s.pools["services"], 0)]
        self._model_of_pool = s.service_model[
            np.where(s.handover[starts, 1] >= 0, s.handover[starts, 1], starts)
        ]
        self._observed_s = 0.0
        self._served_s = np.zeros(len(s.pools))
        self._preemptions = np.zeros(len(s.pools), np.int64)

    def __call__(self, now: float) -> Observation:
        """A pool without ready instances counts as full while requests wait for it at the router,
        and those count among its waiting: else nothing would ever call for its first instance."""
        s = self._s
        since_s, self._observed_s = now - self._observed_s, now
        utilisation, load = np.zeros(len(s.pools)), np.zeros(len(s.pools))
        entry.observe(s, now, utilisation, load, self._wants_signals)
        waiting = s.pools["waiting"].copy()
        np.add.at(waiting, self._router_pool, s.router_waiting)
        nobody = (s.pools["ready"] == 0) & (waiting > 0)
        utilisation[nobody] = load[nobody] = 1.0
        input_tps = s.pools["arrived_tokens"] / since_s
        s.pools["arrived_tokens"] = 0
        deferred = np.bincount(
            self._pool_of_service, s.deferred_count[s.pool_services], len(s.pools)
        )
        return Observation(
            time_s=now,
            ready=s.pools["ready"].copy(),
            starting=s.pools["starting"].copy(),
            draining=s.pools["draining"].copy(),
            utilisation=utilisation,
            waiting=waiting,
            input_tps=input_tps,
            signals=self._signals(since_s) if self._wants_signals else None,
            deferred=deferred.astype(np.int64),
            spare=s.pools["lent"].copy(),
            load=load,
            asked_tps=self._asked() / since_s,
        )

    def _asked(self) -> FloatArray:
        """Tokens asked for in the region of each pool of its model, counted anew from now on."""
        s = self._s
        there = s.service_model >= 0
        of_model = np.zeros((s.service_model.max(initial=-1) + 1, s.asked_tokens.shape[1]))
        np.add.at(of_model, s.service_model[there], s.asked_tokens[there])
        s.asked_tokens[:] = 0
        asked: FloatArray = of_model[self._model_of_pool, s.pools["region"]]
        return np.where(self._serves, asked, 0.0)

    def _signals(self, since_s: float) -> Signals:
        pools = self._s.pools
        served_s = pools["idle_s"] + pools["prefill_s"] + pools["decode_s"]
        there_s, self._served_s = served_s - self._served_s, served_s
        preemptions = pools["preemptions"] - self._preemptions
        self._preemptions = pools["preemptions"].copy()
        found = Signals(
            busy=np.minimum(_over(pools["busy_s"], there_s), 1.0),
            sm_activity=np.minimum(_over(pools["compute_s"], there_s), 1.0),
            prefill_tps=pools["computed"] / since_s,
            decode_tps=pools["given"] / since_s,
            batch=_over(pools["batch_s"], there_s),
            ttft_s=_over(pools["ttft_sum"], pools["ttft_n"]),
            tbt_s=_over(pools["tbt_sum"], pools["tbt_n"]),
            late_first=_over(pools["late_first"], pools["ttft_n"]),
            late_done=_over(pools["late_done"], pools["done"]),
            hit_rate=_over(pools["hits"], pools["lookups"]),
            evicted_tps=pools["evicted"] / since_s,
            preemptions=preemptions,
            failed=pools["failed"].copy(),
        )
        signals.reset(pools)
        return found


def _over(amount: Array, of: Array) -> FloatArray:
    """``amount / of``, NaN where there is nothing to divide by."""
    there = of > 0
    out: FloatArray = np.where(there, amount / np.where(there, of, 1), np.nan)
    return out


def router_pools(s: State) -> Array:
    """``[services, regions]``: the pool that answers for requests waiting at a region's router, the
    first of the service in the region nearest to home that has one."""
    services, regions = s.router_waiting.shape
    out = np.full((services, regions), -1)
    for service in range(services):
        for home in range(regions):
            for region in s.region_order[home]:
                endpoint = service * regions + region
                first, end = s.endpoint_start[endpoint : endpoint + 2]
                if first < end:
                    out[service, home] = s.endpoint_pools[first]
                    break
    return out
