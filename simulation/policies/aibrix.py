"""AIBrix's pod autoscaler with the strategies APA and KPA, and its schedules of bounds.

Source: github.com/vllm-project/aibrix @ 015a2e5f, ``pkg/controller/podautoscaler``:
``algorithm/apa.go``, ``algorithm/kpa.go``, ``context/context.go`` (defaults), ``metrics/client.go``
(windows), ``applyPendingReplicaGuard`` and ``stabilizeRecommendation`` of the controller.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, floor
from typing import Literal

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

Strategy = Literal["apa", "kpa"]
WEEK_S = 7 * 86_400.0


@dataclass(frozen=True, slots=True)
class Bounds:
    """Least and most replicas of each pool in a part of the week."""

    begin_s: float  # since Monday 00:00
    end_s: float
    minimum: int
    maximum: int


def replicas_by_apa(
    value: float,
    target: float,
    replicas: int,
    tolerances: tuple[float, float],
    rates: tuple[float, float],
) -> int:
    """Return the replicas that AIBrix's strategy APA requests for a pool of ``replicas``.

    ``value`` is the mean metric of a replica. Nothing changes while it is within ``tolerances``
    (shares) of the target. ``rates`` are the largest factors of a change. Both pairs are for
    scale-out and scale-in.
    """
    (tolerance_out, tolerance_in), (rate_out, rate_in) = tolerances, rates
    ratio = value / target
    proportional = ceil(replicas * ratio - ROUNDING)
    if ratio > 1 + tolerance_out:
        return min(proportional, ceil(rate_out * replicas - ROUNDING))
    if ratio < 1 - tolerance_in:
        return max(proportional, floor(replicas / rate_in + ROUNDING))
    return replicas


def in_panic(stable: float, panic: float, threshold: float) -> bool:
    """Return whether ``panic`` exceeds ``threshold`` times ``stable``; True if ``stable`` is 0.

    They are the means of a metric over the short and the long window.
    """
    return stable <= 0 or panic / stable > threshold


def replicas_by_kpa(
    stable: float,
    panic: float,
    target: float,
    replicas: int,
    tolerances: tuple[float, float],
    rates: tuple[float, float],
    panic_threshold: float,
) -> int:
    """Return the replicas that AIBrix's strategy KPA requests for a pool of ``replicas``.

    ``stable`` is the metric's mean over the long window, ``panic`` over the short window. Each
    requests its value over ``target``, rounded up (as in the source, not times ``replicas``). The
    larger request counts if panic / stable exceeds ``panic_threshold``, else that of the long
    window. For ``tolerances`` and ``rates`` see ``replicas_by_apa``.
    """
    (tolerance_out, tolerance_in), (rate_out, rate_in) = tolerances, rates
    fewest, most = floor(replicas / rate_in + ROUNDING), max(1, ceil(rate_out * replicas))

    def replicas_for(mean: float) -> int:
        """Return the replicas for a mean metric, within the largest steps allowed."""
        near_target = target * (1 - tolerance_in) <= mean <= target * (1 + tolerance_out)
        count = replicas if near_target else ceil(mean / target - ROUNDING)
        return min(max(count, fewest), most)

    if in_panic(stable, panic, panic_threshold):
        return max(replicas_for(stable), replicas_for(panic))
    return replicas_for(stable)


def replicas_with_pending(
    strategy: Strategy, desired: int, value: float, target: float, ready: int, replicas: int
) -> int:
    """Return the ``desired`` replicas, moved toward the present ``replicas`` if some of them start.

    Only ``ready`` of them serve. On scale-out, replicas that start count as idle. On scale-in, they
    count as used at the target. ``value`` is the mean metric of a ready replica.
    """
    starting = replicas - ready
    if desired == replicas or starting <= 0:
        return desired
    load = value * ready / target  # in replicas at the target
    if desired < replicas:
        return min(max(ceil(load + starting - ROUNDING), desired), replicas)
    if strategy == "kpa":  # as in ``replicas_by_kpa``, the metric of one pod gives the count
        load /= replicas
    return min(max(ceil(load - ROUNDING), replicas), desired)


@dataclass(eq=False)
class PodAutoscaler(ScalingPolicy):
    """Scale each pool alone by a metric of its replicas.

    With ``holds``, a count moves only as far as every recommendation of the cooldown window
    requests. Without it, as in the source, scale-out takes the highest recommendation of its window
    and scale-in the lowest. That was reported as a bug (issue 2821). With ``pending_guard``,
    replicas that start damp every step, as in the source since September 2026 (pull request 2671).

    ``bounds`` replace the limits of every pool in their parts of the week. ``offset_s`` is the time
    since Monday 00:00 at which the simulation begins.
    """

    strategy: Strategy = "apa"
    metric: Metric = "memory"
    target: float | FloatArray = 0.7
    up_tolerance: float = 0.1
    down_tolerance: float = 0.1
    max_up_rate: float = 2.0
    max_down_rate: float = 2.0
    panic_threshold: float = 2.0
    up_cooldown_s: float = 0.0
    down_cooldown_s: float = 300.0
    holds: bool = True
    pending_guard: bool = True
    stable_window_s: float = 180.0
    panic_window_s: float = 60.0
    min_replicas: int = 1
    bounds: Sequence[Bounds] = ()
    offset_s: float = 0.0
    interval_s: float = 10.0
    name: str = ""

    def __post_init__(self) -> None:
        self.name = self.name or f"aibrix-{self.strategy}"
        self.wants_signals = self.metric in NEEDS_SIGNALS

    def reset(self, fleet: Fleet) -> IntArray:
        """Forget all metrics and recommendations; return the first counts, ``[pools]``."""
        counts = initial_counts(fleet)
        self._kv_capacity_tokens = np.array(
            [pool.profile.kv_capacity_tokens for pool in fleet.pools], np.float64
        )
        self._target = np.broadcast_to(np.asarray(self.target, np.float64), len(counts))
        self._most = np.array([pool.maximum for pool in fleet.pools], np.int64)
        # By pool, oldest first: (time in seconds, metric), and (time in seconds, replicas).
        self._recent_metrics: list[deque[tuple[float, float]]] = [deque() for _ in counts]
        self._recent_recommendations: list[deque[tuple[float, int]]] = [deque() for _ in counts]
        return counts

    def decide(self, observation: Observation) -> IntArray:
        """Return each pool's stabilised recommendation by its metric, within its limits."""
        metrics = per_instance(self.metric, observation, self._kv_capacity_tokens)
        targets, now = observation.present, observation.time_s
        all_least, all_most = self._limits(now)
        for p, metric in enumerate(metrics.tolist()):
            replicas, least, most = int(targets[p]), all_least[p], all_most[p]
            # Outside its limits a pool returns to them, whatever the metric says.
            if least <= replicas <= most and replicas and np.isfinite(metric):
                self._recent_metrics[p].append((now, metric))
                requested, mean = self._recommended_replicas(p, now, replicas)
                requested = min(max(requested, least), most)
                if self.pending_guard:
                    target, ready = float(self._target[p]), int(observation.ready[p])
                    requested = replicas_with_pending(
                        self.strategy, requested, mean, target, ready, replicas
                    )
                replicas = self._apply_cooldowns(p, now, replicas, requested)
            targets[p] = min(max(replicas, least), most)
        return targets

    def gauge(self, observation: Observation) -> Gauge:
        """Return the metric of each pool, and its target with the tolerances as thresholds."""
        values = per_instance(self.metric, observation, self._kv_capacity_tokens)
        return Gauge(
            WORDS[self.metric],
            self.metric in SHARES,
            values,
            out_above=self._target * (1 + self.up_tolerance),
            in_below=self._target * (1 - self.down_tolerance),
        )

    def computed_parameters(self) -> tuple[ComputedParameter, ...]:
        return (ComputedParameter(f"target of {WORDS[self.metric]}", self._target),)

    def _limits(self, now: float) -> tuple[list[int], list[int]]:
        """Return the least and the most replicas of each pool at ``now``.

        They come from the entry of ``bounds`` for that time, or else from ``min_replicas`` and the
        pool's maximum.
        """
        since_monday_s = (self.offset_s + now) % WEEK_S
        for bounds in self.bounds:
            if bounds.begin_s <= since_monday_s < bounds.end_s:
                most = [min(bounds.maximum, int(maximum)) for maximum in self._most]
                return [bounds.minimum] * len(self._most), most
        return [min(self.min_replicas, int(maximum)) for maximum in self._most], self._most.tolist()

    def _recommended_replicas(self, p: int, now: float, replicas: int) -> tuple[int, float]:
        """Return the replicas that the strategy requests for pool ``p``, and the metric it used.

        The metric is its mean over the stable window, or over the panic window in a panic of KPA.
        """
        recent = self._recent_metrics[p]
        while recent[0][0] < now - self.stable_window_s:  # drop metrics before the window
            recent.popleft()
        stable = sum(metric for _, metric in recent) / len(recent)
        tolerances = self.up_tolerance, self.down_tolerance
        rates, target = (self.max_up_rate, self.max_down_rate), float(self._target[p])
        if self.strategy == "apa":
            return replicas_by_apa(stable, target, replicas, tolerances, rates), stable
        in_panic_window = [metric for at_s, metric in recent if at_s >= now - self.panic_window_s]
        panic = sum(in_panic_window) / len(in_panic_window)
        threshold = self.panic_threshold
        requested = replicas_by_kpa(stable, panic, target, replicas, tolerances, rates, threshold)
        return requested, panic if in_panic(stable, panic, threshold) else stable

    def _apply_cooldowns(self, p: int, now: float, replicas: int, requested: int) -> int:
        """Return the replicas of pool ``p`` that the cooldowns allow.

        ``replicas`` are present, and the policy now recommends ``requested``. A cooldown looks at
        the recommendations of its last seconds. If the policy ``holds``, it scales only as far as
        all of them agree. Otherwise it follows the one that goes farthest.
        """
        recent = self._recent_recommendations[p]
        recent.append((now, requested))
        while recent[0][0] <= now - max(self.up_cooldown_s, self.down_cooldown_s, 1e-9):
            recent.popleft()
        # A window of 0 s has the present recommendation alone.
        up = [count for at_s, count in recent if at_s > now - self.up_cooldown_s] or [requested]
        down = [count for at_s, count in recent if at_s > now - self.down_cooldown_s] or [requested]
        if self.holds:  # the smallest recommendation limits scale-out, the largest scale-in
            return min(max(replicas, min(up)), max(down))
        if requested == replicas:
            return replicas
        return max(up) if requested > replicas else min(down)
