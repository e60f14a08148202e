"""Kubernetes' horizontal pod autoscaler, alone and under KEDA.

Sources: kubernetes.io, "Horizontal Pod Autoscaling", and the controller's replica calculator
(``GetMetricReplicas`` for a mean over pods, ``GetExternalPerPodMetricReplicas`` for a total, the
default of KEDA's triggers); keda.sh, "ScaledObject specification" and "Scaling Deployments,
StatefulSets & Custom Resources".
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np

from simulation.arrays import FloatArray, IntArray
from simulation.fleet import Fleet
from simulation.policies.parts.endpoints import initial_counts
from simulation.policies.parts.pool_metrics import (
    NEEDS_SIGNALS,
    SHARES,
    WORDS,
    Metric,
    per_instance,
)
from simulation.policies.parts.stability import ROUNDING
from simulation.policy import ComputedParameter, Gauge, Observation, ScalingPolicy

SCALING_POLICY_PERIOD_S = 15.0  # period of the scale-up limits


@dataclass(eq=False)
class Hpa(ScalingPolicy):
    """Scale each pool alone: ``desired = ceil(ready * metric / target)`` within a tolerance.

    There is an autoscaler per deployment. With prefill and decode pools that is the uncoordinated
    scaling that methods.md D warns of.

    ``target`` is the metric of one instance, one number or one per pool. A starting instance has no
    metric yet. It counts as idle when others need more instances, and as at the target when they
    need fewer. Scale-in uses the highest recommendation of the last ``stabilisation_s``. Scale-out
    is limited to the larger of ``scale_up_factor`` and ``scale_up_instances`` per 15 s. A pool that
    begins with instances keeps at least ``min_replicas``. A pool without any starts only when
    requests wait for it.
    """

    metric: Metric = "memory"
    target: float | Sequence[float] | FloatArray = 0.8
    tolerance: float = 0.1
    stabilisation_s: float = 300.0
    scale_up_factor: float = 1.0
    scale_up_instances: int = 4
    min_replicas: int = 1
    interval_s: float = 15.0
    name: str = "hpa"

    def __post_init__(self) -> None:
        self.wants_signals = self.metric in NEEDS_SIGNALS

    def reset(self, fleet: Fleet) -> IntArray:
        """Forget all recommendations; return the first counts, ``[pools]``."""
        counts = initial_counts(fleet)
        self._target = np.broadcast_to(np.asarray(self.target, np.float64), len(counts))
        self._kv_capacity_tokens = np.array(
            [pool.profile.kv_capacity_tokens for pool in fleet.pools], np.float64
        )
        self._min_by_pool = np.where(counts > 0, self.min_replicas, 0)
        # By pool, oldest first: (time in seconds, replicas). The initial fleet counts as one.
        self._recent_recommendations = [deque([(0.0, int(count))]) for count in counts]
        return counts

    def decide(self, observation: Observation) -> IntArray:
        """Return the stabilised targets; a pool without pods starts one if a request waits."""
        metric = per_instance(self.metric, observation, self._kv_capacity_tokens)
        targets = observation.present
        for p in range(len(targets)):
            ready, starting = int(observation.ready[p]), int(observation.starting[p])
            if ready or starting:
                recommended = self._recommended_replicas(p, metric[p], ready, starting)
                recommended = max(int(self._min_by_pool[p]), recommended)
            else:  # the controller ignores a deployment without pods
                recommended = int(observation.waiting[p] > 0)
            present = ready + starting
            targets[p] = self._apply_stabilization(p, observation.time_s, present, recommended)
        return targets

    def gauge(self, observation: Observation) -> Gauge:
        """Return the metric of each pool, and its target with the tolerance as thresholds."""
        return Gauge(
            WORDS[self.metric],
            self.metric in SHARES,
            per_instance(self.metric, observation, self._kv_capacity_tokens),
            out_above=self._target * (1 + self.tolerance),
            in_below=self._target * (1 - self.tolerance),
        )

    def computed_parameters(self) -> tuple[ComputedParameter, ...]:
        return (ComputedParameter(f"target of {WORDS[self.metric]}", self._target),)

    def _recommended_replicas(self, p: int, value: float, ready: int, starting: int) -> int:
        """Return the replicas for a mean metric ``value`` of a ready pod, as ``GetMetricReplicas``.

        A starting pod counts as idle if ready pods are above the target, else as at the target. If
        that reverses the direction, nothing changes.
        """
        present = ready + starting
        if not np.isfinite(value) or not ready:
            return present
        ratio = value / float(self._target[p])
        mean_ratio = ratio  # the mean over all pods, relative to the target
        if starting:
            starting_ratio = 1 if ratio < 1 else 0
            mean_ratio = (ratio * ready + starting_ratio * starting) / present
        within_tolerance = abs(mean_ratio - 1) <= self.tolerance + ROUNDING
        reverses = (mean_ratio - 1) * (ratio - 1) < 0
        if within_tolerance or reverses:
            return present
        return ceil(mean_ratio * present - ROUNDING)

    def _apply_stabilization(self, p: int, time_s: float, present: int, recommended: int) -> int:
        """Return the replicas of pool ``p`` after the scale-up limit and the stabilization window.

        Scale-out goes to ``recommended`` within the limit. Scale-in goes to the highest
        recommendation of the last ``stabilisation_s``.
        """
        recent = self._recent_recommendations[p]
        recent.append((time_s, recommended))
        while recent[0][0] < time_s - self.stabilisation_s:  # drop those before the window
            recent.popleft()
        if recommended > present:
            # The limit is per 15 s, so it applies several times per longer interval.
            periods = max(1.0, self.interval_s / SCALING_POLICY_PERIOD_S)
            by_factor = present * (1 + self.scale_up_factor) ** periods
            limit = max(by_factor, present + self.scale_up_instances * periods)
            return min(recommended, int(limit))
        return min(present, max(count for _, count in recent))


@dataclass(eq=False)
class Keda(Hpa):
    """Scale on the total of the metric over all instances: ``ceil(total / target)``.

    All instances count, ready or not. With ``min_replicas`` 0, a pool can scale to zero, as in
    KEDA. It does so ``cooldown_s`` after the trigger was last active (its value above 0). KEDA
    polls every ``polling_s``, and the first poll that finds the trigger active starts the pool.
    """

    metric: Metric = "queue"
    target: float | Sequence[float] | FloatArray = 5.0
    polling_s: float = 30.0
    cooldown_s: float = 300.0
    name: str = "keda"

    def reset(self, fleet: Fleet) -> IntArray:
        counts = super().reset(fleet)
        # An HPA never goes lower.
        self._min_by_pool = np.where(counts > 0, max(self.min_replicas, 1), 0)
        self._last_active_s = np.zeros(len(counts))
        self._last_poll = -1  # number of the last poll; -1: none yet
        return counts

    def decide(self, observation: Observation) -> IntArray:
        """Return the HPA's targets; KEDA itself starts empty pools and stops idle ones.

        A poll starts an empty pool whose trigger is active. With ``min_replicas`` 0, a pool stops
        once its trigger has been inactive for ``cooldown_s``.
        """
        targets = super().decide(observation)
        now = observation.time_s
        metric = per_instance(self.metric, observation, self._kv_capacity_tokens)
        is_active = (np.nan_to_num(metric) > 0) | (observation.waiting > 0)
        poll = int(now // self.polling_s)
        polled_active = is_active & (poll > self._last_poll)
        self._last_poll = poll
        self._last_active_s[polled_active] = now
        is_empty = observation.present == 0
        targets[is_empty] = max(1, self.min_replicas) * polled_active[is_empty]
        if self.min_replicas == 0:
            cooled_down = now - self._last_active_s >= self.cooldown_s
            targets[~is_empty & ~is_active & cooled_down] = 0
        return targets

    def _recommended_replicas(self, p: int, value: float, ready: int, starting: int) -> int:
        """Return the replicas for the total of all pods, as ``GetExternalPerPodMetricReplicas``.

        ``value`` is the mean of a ready pod.
        """
        present = ready + starting
        if not np.isfinite(value) or not ready:
            return present
        total = value * ready / float(self._target[p])
        if abs(total / present - 1) <= self.tolerance + ROUNDING:
            return present
        return ceil(total - ROUNDING)
